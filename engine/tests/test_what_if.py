"""What more bandwidth, compute and interfaces would bring is simulated, or said not to be."""

from __future__ import annotations

import attrs
import pytest

from topoplan import Fabric, Host, Topology, optimize
from topoplan_engine.what_if import what_if


class SameRing(Topology):
    """A ring of one cable each way, however many interfaces there are."""

    name = "same-ring"

    def build(self, context):
        n, speed = context.cluster.n_hosts, float(context.cluster.interface_bandwidth.min())
        links = sorted({(a, b) for i in range(n) for a, b in ((i, (i + 1) % n), ((i + 1) % n, i))})
        return Fabric.from_links(
            name=self.name, n_hosts=n, links=links, bandwidth=speed, latency=context.cluster.latency
        )


@pytest.fixture(scope="module")
def host():
    host = Host.discover()
    host.add(SameRing)
    return host


def planned(host, topology):
    return optimize("alexnet", host=host, topology=topology, servers=4, batch_size=64, budget=0).plan


def test_changes_are_simulated(host):
    plan = planned(host, "topoopt")
    faster, quicker, wider = what_if(plan, host)
    assert plan.timeline.makespan / 1.1 <= faster.seconds < plan.timeline.makespan
    assert plan.timeline.makespan / 1.1 <= quicker.seconds < plan.timeline.makespan
    assert wider.seconds is not None
    assert "wired by topoopt" in wider.remark


def test_an_interface_that_a_topology_does_not_use_brings_nothing(host):
    *_, wider = what_if(planned(host, "same-ring"), host)
    assert wider.seconds is None
    assert wider.remark == "topology same-ring has no use for it: it builds the same network"


def test_a_plan_that_its_simulator_does_not_repeat_has_reasons_for_times(host):
    plan = planned(host, "topoopt")
    other = attrs.evolve(plan, timeline=attrs.evolve(plan.timeline, makespan=2 * plan.timeline.makespan))
    assert [change.seconds for change in what_if(other, host)] == [None] * 3
    assert all("for this plan, its timeline" in change.remark for change in what_if(other, host))
