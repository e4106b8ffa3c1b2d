"""The time that is printed beside a plan is the one that `topoplan simulate` gives for its file."""

from __future__ import annotations

import pytest

from topoplan import Cluster, Fabric, Host, Plan
from topoplan_engine.exporting import export
from topoplan_engine.replay import draws_of, simulate_file, written_seconds
from topoplan_exporter_flatbuffer import Flatbuffer
from topoplan_samples.fabrics import star
from topoplan_samples.tasks import collective, task_graph, transfer


def crossed():
    """Four hosts on a ring of switches: two equal paths between opposite hosts, of which each draw takes one."""
    links = [(h, 4 + h) for h in range(4)] + [(4 + h, 4 + (h + 1) % 4) for h in range(4)]
    both = sorted(links + [(b, a) for a, b in links])
    return Fabric.from_links(
        name="crossed", n_hosts=4, n_switches=4, links=both, bandwidth=1e9, latency=1e-6, max_paths=2
    )


@pytest.mark.parametrize("fabric", [star(4), crossed()], ids=lambda fabric: fabric.name)
@pytest.mark.parametrize("group", [[0, 1, 2, 3], [0, 2, 3]])
def test_the_time_beside_a_plan_is_that_of_simulate(fabric, group, tmp_path):
    host = Host.discover()
    tasks = [transfer(0, 2, 5_000_000), transfer(2, 0, 5_000_000), transfer(1, 3, 7_000_000), collective(group, 10**7)]
    cluster = Cluster.uniform(n_hosts=4, interface_bandwidth=1e9)
    plan = Plan(cluster=cluster, fabric=fabric, taskgraph=task_graph(tasks, n_devices=4))
    file = tmp_path / "plan.fbuf"
    export(plan, "flatbuffer", file, host=host)
    named = written_seconds(Flatbuffer(), file, host=host)
    assert named is not None
    simulated = simulate_file(file, host=host)
    draws = draws_of(simulated, host=host)
    again = [simulated.timeline.makespan] if draws is None else draws.seconds
    assert named[1].seconds == pytest.approx(again, rel=1e-9)
