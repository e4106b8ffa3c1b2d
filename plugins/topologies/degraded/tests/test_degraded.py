"""Networks without what failed: by name, at random, and what is left of paths and rings."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Fabric, TopologyContext, TopoplanError
from topoplan.model.fabric import Routes
from topoplan.options import structure
from topoplan.testing import parametrize_with_checks
from topoplan_topology_degraded import Degraded
from topoplan_topology_degraded.failures import Failures, without


@parametrize_with_checks(Degraded)
def test_conformance(check):
    check()


def build(**options):
    cluster = Cluster.uniform(n_hosts=16, interfaces=4, interface_bandwidth=1e9, latency=1e-6)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    return structure(Degraded, options, "topology degraded").build(context)


def cables(fabric, at_hosts):
    at_host = np.minimum(fabric.link_src, fabric.link_dst) < fabric.n_hosts
    return int(fabric.link_count[at_host == at_hosts].sum()) // 2


def test_nothing_fails_unless_asked():
    whole = build()
    assert cables(whole, False) == cables(build(links="0%"), False)
    assert whole.name == "fattree (degraded)"


@pytest.mark.parametrize(("links", "nics"), [("3", "0"), ("0", "5"), ("10%", "25%")])
def test_so_many_cables_are_gone_both_ways(links, nics):
    whole, left = build(of="rail-optimized"), build(of="rail-optimized", links=links, nics=nics)
    for asked, at_hosts in ((links, False), (nics, True)):
        total = cables(whole, at_hosts)
        fails = round(float(asked[:-1]) / 100 * total) if asked.endswith("%") else int(asked)
        assert cables(left, at_hosts) == total - fails
    back = left.link_rows(left.link_dst, left.link_src)
    assert (left.link_count[back] == left.link_count).all()
    assert left.link_bandwidth == pytest.approx(left.link_count * 1e9)


def test_draws_depend_on_the_seed_alone():
    first, again, other = (build(of="rail-optimized", links="6", seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_switch_and_a_cable_fail_by_name():
    whole = build(of="rail-optimized")
    left = build(of="rail-optimized", failed="spine 0+host 2~leaf 0 rail 1")
    assert left.n_switches == whole.n_switches - 1
    assert "spine 0" not in left.node_names
    leaf = left.node_names.index("leaf 0 rail 1")
    assert left.link_rows([2], [leaf])[0] == -1
    assert left.link_rows([3], [leaf])[0] >= 0


def test_hosts_fail_beside_those_of_the_cluster():
    left = build(of="fattree", hosts=2, seed=4)
    assert left.n_hosts == 16
    named = build(of="bigswitch", hosts=1, failed="host 3")
    assert [named.node_name(host) for host in (2, 3)] == ["host 2", "host 4"]
    with pytest.raises(TopoplanError, match=r"1 hosts fail by name, but hosts=0"):
        build(of="bigswitch", failed="host 3")


def test_rings_over_links_that_are_gone_are_looked_for_anew():
    pairs = [(0, 1), (1, 2), (2, 3), (3, 0), (0, 2), (1, 3)]
    mesh = Fabric.from_links(
        name="mesh",
        n_hosts=4,
        links=[*pairs, *((b, a) for a, b in pairs)],
        bandwidth=1.0,
        latency=0.0,
        rings={4: ((1,),)},
        cycles=[(0, 1, 2, 3), (0, 2, 1, 3)],
    )
    left = without(mesh, Failures(names=("host 0~host 1",)), np.random.default_rng(0))
    assert (left.rings, left.cycles) == ({}, ((0, 2, 1, 3),))
    assert left.rings_along_links


def test_routes_over_links_that_are_gone_give_their_share_to_others():
    square = Fabric.from_links(
        name="square", n_hosts=2, n_switches=2, links=[(0, 2), (2, 1), (0, 3), (3, 1)], bandwidth=1.0, latency=0.0
    )
    rows = square.link_rows([0, 2, 0, 3], [2, 1, 3, 1])
    routes = Routes(pairs=[[0, 1]], pair_ptr=[0, 2], path_ptr=[0, 2, 4], links=rows, weight=[0.25, 0.75])
    left = without(attrs.evolve(square, routes=routes), Failures(names=("host 0~switch 0",)), np.random.default_rng(0))
    assert left.routes.weight.tolist() == [1.0]
    assert left.link_dst[left.routes.links].tolist() == [3, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"of": "fat-tree"}, r"of: no topology named 'fat-tree'; did you mean 'fattree'"),
        ({"of": "rail-optimized/units=3"}, r"of: topology rail-optimized: no option 'units'; did you mean 'unit'"),
        ({"of": "degraded"}, r"of=degraded \(name another topology"),
        ({"of": "topoopt"}, r"of=topoopt is wired for a demand"),
        ({"links": "some"}, r"links: 'some' is no number and no percentage \(3, or 2%\)"),
        ({"links": "101%"}, r"links: '101%' is no number"),
        ({"nics": "100"}, r"nics: 100 fail, but there are 64"),
        ({"failed": "spine 1"}, r"failed: no node 'spine 1'"),
        ({"failed": "host 0~host 1"}, r"failed: no cable 'host 0~host 1'"),
    ],
)
def test_bad_input_is_named_in_one_line(options, message):
    with pytest.raises(TopoplanError, match=message) as caught:
        build(**options)
    assert "\n" not in str(caught.value)
