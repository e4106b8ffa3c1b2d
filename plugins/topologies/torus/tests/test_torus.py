"""Tori: counts, distances and cuts by graph libraries and by hand, twisted ones by their published distances."""

import functools
import itertools
import math

import networkx as nx
import numpy as np
import pytest
import rustworkx

from topoplan import Cluster, Demand, LinkKind, TopologyContext, TopoplanError
from topoplan.options import structure
from topoplan_engine.cache import LruCache
from topoplan_engine.interfaces import check_fabric
from topoplan_engine.network import ring_search
from topoplan_engine.network.ring_search import find_cycles
from topoplan_topology_torus import Torus


def make(hosts, interfaces=4, **options):
    cluster = Cluster.uniform(n_hosts=hosts, interfaces=interfaces, interface_bandwidth=1e9, latency=1e-6)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    fabric = structure(Torus, options, "topology torus").build(context)
    check_fabric(fabric, cluster)
    return fabric


def distances(graph):
    """Return the diameter of a graph and the mean distance of its pairs."""
    hops = rustworkx.distance_matrix(rustworkx.networkx_converter(graph))
    return hops.max(), hops.sum() / (len(graph) * (len(graph) - 1))


# Counts of the definition; bisections are those of the cut across the longest axis: both of its halves meet twice.
@pytest.mark.parametrize(
    ("sides", "links", "diameter", "mean", "bisection"),
    [
        ("4-4", 32, 4, 2.133333, 8),
        ("8-8", 128, 8, 4.063492, 16),
        ("4-4-4", 192, 6, 3.047619, 32),
        ("4-4-8", 384, 8, 4.031496, 32),
        ("4-8-8", 768, 10, 5.019608, 64),
        ("8-8-8", 1536, 12, 6.011742, 128),
        ("2-4", 12, 3, 1.714286, 4),
        ("16-16", 512, 16, 8.031373, 32),
    ],
)
def test_counts(sides, links, diameter, mean, bisection):
    shape = tuple(map(int, sides.split("-")))
    fabric = make(math.prod(shape), sides=sides)
    graph = fabric.to_networkx().to_undirected()
    assert (graph.number_of_edges(), fabric.n_switches) == (links, 0)
    assert distances(graph) == pytest.approx((diameter, mean), abs=1e-6)
    axis = shape.index(max(shape))
    half = {n for n in graph if np.unravel_index(n, shape)[axis] < shape[axis] // 2}
    assert len(list(nx.edge_boundary(graph, half))) == bisection
    assert {degree for _, degree in fabric.to_networkx().out_degree} == {sum(min(s - 1, 2) for s in shape)}


@pytest.mark.parametrize(
    ("sides", "links", "diameter", "mean"),
    [("4-4-8", 384, 6, 3.464567), ("4-8-8", 768, 6, 4.329412)],  # Camarero et al. 2010; Jouppi et al. 2023
)
def test_twisted(sides, links, diameter, mean):
    graph = make(math.prod(map(int, sides.split("-"))), sides=sides, twisted=True).to_networkx().to_undirected()
    assert graph.number_of_edges() == links
    assert distances(graph) == pytest.approx((diameter, mean), abs=1e-6)


def test_the_smallest_cut_of_a_small_torus_by_trying_all():
    graph = make(8, sides="2-4").to_networkx().to_undirected()
    assert min(len(list(nx.edge_boundary(graph, half))) for half in itertools.combinations(range(8), 4)) == 4


def test_cubes_join_at_optical_ports():
    """64 cubes of 4 x 4 x 4 have 96 ports each, 6,144 together: 3,072 links, whatever the sides (Jouppi et al.)."""
    for sides in ("16-16-16", "4-16-64"):
        fabric = make(4096, 6, sides=sides, cube=4)
        optical = fabric.link_kind != LinkKind.INSIDE
        assert (fabric.switching, fabric.n_links, int(optical.sum())) == ("ocs", 2 * 3 * 4096, 6144)


@pytest.mark.parametrize(
    ("hosts", "interfaces", "sides"), [(16, 4, (4, 4)), (16, 6, (2, 2, 4)), (13, 4, (13,)), (16, 1, (16,)), (1, 4, ())]
)
def test_sides_follow_hosts_and_interfaces(hosts, interfaces, sides):
    graph = make(hosts, interfaces).to_networkx().to_undirected()
    expected = nx.grid_graph(sides, periodic=True) if sides else nx.empty_graph(1)
    assert nx.is_isomorphic(graph, expected)


@pytest.mark.parametrize("interfaces", range(1, 9))
@pytest.mark.parametrize("sides", ["4-4", "2-8", "2-2-4"])
def test_a_host_shares_all_of_its_bandwidth(sides, interfaces):
    fabric = make(16, interfaces, sides=sides)
    assert np.bincount(fabric.link_src, fabric.link_bandwidth) == pytest.approx(interfaces * 1e9)


def test_rings_of_equally_joined_stages_are_searched_for_once(monkeypatch):
    fabric, searches = make(96, 4, sides="12-8"), []
    monkeypatch.setattr(ring_search, "_found_for", LruCache(16))
    search = ring_search._search
    monkeypatch.setattr(ring_search, "_search", lambda *columns: searches.append(0) or search(*columns))
    rows = [find_cycles(fabric, np.arange(24 * stage, 24 * (stage + 1), dtype=np.int32)) for stage in range(4)]
    assert len(searches) == 1
    for stage, receivers in enumerate(rows):
        hosts = np.arange(24 * stage, 24 * (stage + 1), dtype=np.int32)
        assert len(receivers)
        for each in receivers:
            assert (fabric.link_rows(hosts, hosts[each]) >= 0).all()


def test_rings_use_all_links():
    fabric = make(64, 6)
    assert find_cycles(fabric, np.arange(64, dtype=np.int32)).shape == (6, 64)


@pytest.mark.parametrize(
    ("hosts", "options", "message"),
    [
        (60, {"sides": "4-4-4"}, r"60 \(sides=3-4-5, or a plan for 64 hosts: optimize --servers 64\)"),
        (13, {"dimensions": 2}, r"13 hosts make no torus of 2 dimensions \(12 or 14 hosts do\)"),
        (64, {"twisted": True, "dimensions": 3}, r"no twisted torus of 3 dimensions \(54 or 108 hosts do\)"),
        (64, {"sides": "4-4-4", "twisted": True}, "must be k and 2k"),
        (120, {"sides": "4-5-6", "cube": 4}, "5 is no multiple of the cube's edge 4"),
        (16, {"sides": "4-4", "dimensions": 3}, "leave dimensions out"),
    ],
)
def test_errors_name_what_would_be_right(hosts, options, message):
    with pytest.raises(TopoplanError, match=message):
        make(hosts, **options)


def test_a_hundred_times_the_size():
    assert make(65_536, 6).n_links == 6 * 65_536


# ── Shapes for a demand ─────────────────────────────────────────────────────────────────────────────────────────────


def demand(n, matrix=None, groups=()):
    members = [sorted(group) for group in groups]
    return Demand(
        group_ptr=np.cumsum([0, *map(len, members)]),
        group_members=[host for group in members for host in group],
        group_bytes=np.ones(len(members)),
        matrix=np.zeros((n, n)) if matrix is None else matrix,
    )


def wired_for(asked, n=256):
    cluster = Cluster.uniform(n_hosts=n, interfaces=6, interface_bandwidth=1e9, latency=1e-6)
    context = TopologyContext(cluster=cluster, demand=asked, rng=np.random.default_rng(0))
    fabric = structure(Torus, {"cube": 4}, "topology torus").wired_for(context)
    check_fabric(fabric, cluster)
    return fabric


@functools.cache
def usual_wiring():
    return wired_for(None)


def joined_hosts(fabric):
    return set(zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True))


def test_rings_of_sixteen_neighbours_get_an_axis_of_sixteen():
    """256 hosts in four cubes: the usual 4 x 8 x 8 joins 7 to 8 by none of its axes, 4 x 4 x 16 all of the ring."""
    groups = [range(16 * k, 16 * k + 16) for k in range(16)]
    joined = joined_hosts(wired_for(demand(256, groups=groups)))
    assert all((group[k], group[(k + 1) % 16]) in joined for group in groups for k in range(16))
    assert (15, 0) not in joined_hosts(usual_wiring())


def test_without_a_demand_the_shape_is_the_usual_one():
    cluster = Cluster.uniform(n_hosts=256, interfaces=6, interface_bandwidth=1e9, latency=1e-6)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    usual = structure(Torus, {"cube": 4}, "topology torus")
    assert usual.chooses
    assert usual_wiring() == usual.build(context)
    assert wired_for(demand(256)) == usual_wiring()  # no bytes: all shapes are as good
    assert not structure(Torus, {"cube": 4, "sides": "4-8-8"}, "topology torus").chooses


def test_bytes_between_far_hosts_twist_the_torus():
    """All pairs exchange as much: of 128 hosts the twisted 4 x 4 x 8 has a mean distance of 3.46, the other of 4.03."""
    cluster = Cluster.uniform(n_hosts=128, interfaces=6, interface_bandwidth=1e9, latency=1e-6)
    context = TopologyContext(cluster=cluster, demand=demand(128, np.ones((128, 128))), rng=np.random.default_rng(0))
    fabric = structure(Torus, {"cube": 4}, "topology torus").wired_for(context)
    assert distances(fabric.to_networkx().to_undirected())[1] == pytest.approx(3.464567, abs=1e-6)
