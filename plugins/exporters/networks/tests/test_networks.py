"""The promises of exporters; what they write is read again by the topology ``file``."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Host, TopologyContext, TopoplanError
from topoplan.testing import parametrize_with_checks, reference
from topoplan_engine.experiment import Choice
from topoplan_engine.exporting import write_outputs
from topoplan_exporter_networks import Cabling, CablingMarkdown, GraphMl, InfraGraph, NetworkDot, NodeLink, Ns3

HOST = Host.discover()
ALL = (NodeLink, GraphMl, InfraGraph, Ns3, NetworkDot, Cabling, CablingMarkdown)


@parametrize_with_checks(NodeLink)
def test_node_link(check):
    check()


@parametrize_with_checks(GraphMl)
def test_graphml(check):
    check()


@parametrize_with_checks(InfraGraph)
def test_infragraph(check):
    check()


@pytest.mark.filterwarnings("ignore:ns3. no switches join:UserWarning")
@parametrize_with_checks(Ns3)
def test_ns3(check):
    check()


@parametrize_with_checks(NetworkDot)
def test_network_dot(check):
    check()


@parametrize_with_checks(Cabling)
def test_cabling(check):
    check()


@pytest.mark.parametrize(("name", "suffix"), [("node-link", ".json"), ("graphml", ".graphml"), ("infragraph", ".yaml")])
@pytest.mark.parametrize("topology", ["fattree", "bigswitch", "random", "topoopt"])
@pytest.mark.filterwarnings("ignore:infragraph:UserWarning")
def test_a_network_comes_back_through_a_file(tmp_path, topology, name, suffix):
    cluster = attrs.evolve(
        reference.cluster(16), interfaces=np.full(16, 1 if topology in ("fattree", "bigswitch") else 4)
    )
    wired = HOST.make("topology", topology)
    demand = reference.demand(16) if wired.follows_demand else None
    fabric = wired.build(TopologyContext(cluster=cluster, demand=demand, rng=np.random.default_rng(0)))
    plan = attrs.evolve(reference.plan(), cluster=cluster, fabric=fabric)
    path = tmp_path / f"network{suffix}"
    assert not write_outputs(HOST, plan, ((Choice(name), str(path)),)).refused
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    read = HOST.make("topology", "file", {"path": str(path)}).build(context)
    if name != "infragraph":
        assert read == fabric
    for column in ("link_src", "link_dst", "link_count", "link_bandwidth", "link_latency"):
        assert getattr(read, column) == pytest.approx(getattr(fabric, column), rel=1e-14)


@pytest.mark.parametrize("exporter", ALL)
def test_a_network_that_is_rebuilt_is_refused(exporter):
    plan = attrs.evolve(reference.plan(), fabric=reference.rebuilt(delay=1e-3))
    with pytest.raises(TopoplanError, match=rf"^{exporter.name}: the network is rebuilt during the iteration"):
        exporter().write(plan)
    assert "is rebuilt" in exporter().refuses(plan.cluster, HOST.make("topology", "ocs"))


@parametrize_with_checks(CablingMarkdown)
def test_cabling_markdown(check):
    check()


def test_markdown():
    plan = attrs.evolve(reference.plan(), fabric=reference.two_switches())
    lines = CablingMarkdown().write(plan).decode().splitlines()
    assert lines[0] == "| from | from panel port | to panel port | to | direction | Gbps |"
    assert lines[2] == "| host 0:0 |  |  | switch 0:0 | both ways | 8 |"
