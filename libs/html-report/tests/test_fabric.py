"""Where hosts and switches stand."""

from __future__ import annotations

import attrs
import networkx as nx
import numpy as np
import pytest

from topoplan import Fabric, Topology, TopologyContext
from topoplan.testing import reference
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_html_report.fabric import _between_hosts, fabric_picture
from topoplan_html_report.grids import places
from topoplan_html_report.limits import Limits
from topoplan_samples.fabrics import star
from topoplan_samples.pages import column


def twisted(*sides):
    """A torus of sides k and 2k: wraps of its short axes end k places ahead along the long ones."""
    hosts = list(np.ndindex(*sides))
    graph = nx.Graph()
    graph.add_nodes_from(hosts)
    for host in hosts:
        for axis, side in enumerate(sides):
            after = list(host)
            after[axis] += 1
            if after[axis] == side:
                after = [
                    place + min(sides) * (side == min(sides) < other) for place, other in zip(after, sides, strict=True)
                ]
            graph.add_edge(host, tuple(place % other for place, other in zip(after, sides, strict=True)))
    return graph


def built(host, topology, hosts, **options):
    """A picture of a topology, with nothing on its links."""
    cluster = build_cluster(ClusterOptions(servers=hosts, **options), host)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    fabric = host.make(Topology, topology).build(context)
    plan = attrs.evolve(reference.plan(), fabric=fabric, timeline=None, cluster=cluster)
    return fabric, fabric_picture(plan, Limits())


def picture(graph, **limits):
    fabric = (
        Fabric.from_networkx(graph, name="drawn", bandwidth=1e9, latency=0.0) if isinstance(graph, nx.Graph) else graph
    )
    plan = attrs.evolve(reference.plan(), fabric=fabric, timeline=None)
    cluster = reference.cluster(fabric.n_hosts)
    return fabric_picture(attrs.evolve(plan, cluster=cluster), Limits(**limits))


@pytest.mark.parametrize(
    ("graph", "layout", "said"),
    [
        (nx.circulant_graph(12, [1, 5]), "circle", "every host is wired to those +1, -1, +5, -5 places ahead"),
        (nx.complete_graph(6), "circle", "every host is wired to every other one"),
        (nx.grid_2d_graph(4, 6, periodic=True), "grid", "a grid of 4 x 6 hosts"),
        (nx.grid_2d_graph(3, 5), "grid", "a grid of 3 x 5 hosts"),
        (nx.grid_graph([4, 3, 3], periodic=True), "grid", "a grid of 3 x 3 x 4 hosts"),
        (nx.grid_graph([3, 3, 3, 3], periodic=True), "grid", "a grid of 3 x 3 x 3 x 3 hosts"),
        (twisted(4, 8), "grid", "a twisted grid of 4 x 8 hosts"),
        (twisted(4, 4, 8), "grid", "a twisted grid of 4 x 4 x 8 hosts"),
        (twisted(4, 8, 8), "grid", "a twisted grid of 4 x 8 x 8 hosts"),
        (twisted(2, 2, 4), "grid", "a twisted grid of 2 x 2 x 4 hosts"),
        (nx.random_regular_graph(4, 64, seed=1), "circle", "hosts on a circle, in the order of their numbers"),
        (nx.random_regular_graph(3, 12, seed=1), "circle", "hosts on a circle, in the order of their numbers"),
        (star(8), "tiers", "8 hosts, 1 switch above"),
    ],
)
def test_layouts(graph, layout, said):
    found = picture(graph)
    assert (found["layout"], found["said"]) == (layout, said)


def fat_tree(host, hosts):
    from topoplan import Topology, TopologyContext

    context = TopologyContext(cluster=reference.cluster(hosts), demand=None, rng=np.random.default_rng(0))
    return host.make(Topology, "fattree").build(context)


@pytest.mark.parametrize(
    ("hosts", "rows", "switches"), [(8, 8, "8 switches as"), (128, 24, "32 switches, 16 switches as")]
)
def test_rails_are_bars_that_hosts_cross(host, hosts, rows, switches):
    """A row for each rail, whatever the unit, and one for each spine; each link is where its ends cross."""
    cluster = build_cluster(ClusterOptions(servers=hosts, machine="dgx-h100"), host)
    fabric = host.make(Topology, "rail-optimized").build(TopologyContext(cluster=cluster, demand=None, rng=None))
    plan = attrs.evolve(reference.plan(), fabric=fabric, timeline=None, cluster=cluster)
    found = fabric_picture(plan, Limits())
    assert found["layout"] == "bars"
    assert f"{hosts} hosts as vertical lines, {switches} bars above" in found["said"]
    assert len(found["rows"]["y"]) == len(set(found["rows"]["y"])) == rows
    assert [name for name in found["rows"]["name"] if "rail" in name] == [
        f"leaf {'' if hosts > 32 else '0 '}rail {rail}" for rail in range(8)
    ]
    x, y, low, high = (column(found[name]) for name in ("x", "y", "low", "high"))
    ends = np.stack([column(found["from"]), column(found["to"])])
    lower, upper = np.where(y[ends[0]] > y[ends[1]], ends, ends[::-1])
    assert (y[lower] > y[upper]).all()
    assert ((low[upper] <= x[lower]) & (x[lower] <= high[upper])).all()
    bars = np.flatnonzero((x >= 0) & (np.arange(len(x)) >= hosts))
    for height in np.unique(y[bars]):  # bars of one row lie beside each other
        row = bars[y[bars] == height]
        row = row[np.argsort(low[row])]
        assert (high[row][:-1] < low[row][1:]).all()
    assert len(np.unique(np.stack([x[lower], y[upper]]), axis=1).T) == len(lower)  # no two links at one point


@pytest.mark.parametrize("sides", [(8, 8, 8), (4, 4, 8), (16, 4, 4), (2, 2, 4), (4, 4, 4, 4), (16, 32)])
def test_no_host_of_a_grid_lies_on_a_line_between_two_others(sides):
    """Lines between neighbours along one axis; those that wrap are curves."""
    place, hosts = places(sides), np.arange(np.prod(sides)).reshape(sides)
    assert place.min() == 0
    assert place.max() == pytest.approx(1)
    for axis in range(len(sides)):
        before = hosts.take(range(sides[axis] - 1), axis).ravel()[:: max(hosts.size // 300, 1)]
        after = before + np.prod(sides[axis + 1 :], dtype=int)
        way = place[after] - place[before]
        along = np.einsum("nhk,nk->nh", place[None] - place[before][:, None], way) / (way**2).sum(axis=1)[:, None]
        foot = place[before][:, None] + np.clip(along, 0, 1)[..., None] * way[:, None]
        away = np.linalg.norm(place[None] - foot, axis=2)
        away[np.arange(len(before)), before] = away[np.arange(len(before)), after] = 1
        assert away.min() > 0.004, axis


@pytest.mark.parametrize("topology", ["rail-optimized", "rail-only", "rail-only:ports=16", "rail-optimized:planes=2"])
def test_rails_of_512_hosts_are_lanes(host, topology):
    """Spines of a rail are one bar, which shows the busiest link of each crossing; rails stay apart."""
    fabric, found = built(host, topology, 512, machine="dgx-h100")
    assert found["layout"] == "bars"
    assert "of which those over the same switches are one" in found["said"]
    assert len(found["rows"]["y"]) <= 48
    planes = 2 if "planes" in topology else 1
    assert sum(name.startswith("leaf rail ") for name in found["rows"]["name"]) == 8 * planes
    load = np.random.default_rng(1).random(fabric.n_links)
    plan = reference.plan()
    idle = np.zeros(4096)
    timeline = attrs.evolve(plan.timeline, link_busy=load * plan.timeline.makespan, link_bytes=load, device_busy=idle)
    cluster = build_cluster(ClusterOptions(servers=512, machine="dgx-h100"), host)
    found = fabric_picture(
        attrs.evolve(plan, fabric=fabric, timeline=timeline, cluster=cluster), Limits(lines=1_000_000)
    )
    x, y, drawn = (column(found[name]) for name in ("x", "y", "load"))
    ends = np.stack([fabric.link_src, fabric.link_dst])
    shown = found["lineOfLink"]
    seen = (x[ends] >= 0).all(axis=0)
    assert (shown[seen] >= 0).all()
    assert (drawn[shown[seen]] >= np.float32(load[seen]) * (1 - 1e-6)).all()
    of_line = np.stack([column(found["from"]), column(found["to"])])[:, shown[seen]]
    crossings = []
    for pair in (ends[:, seen], of_line):
        lower, upper = np.where(y[pair[0]] > y[pair[1]], pair, pair[::-1])
        crossings.append(np.stack([x[lower], y[upper]]))
    assert (crossings[0] == crossings[1]).all()


def test_rails_keep_their_lanes_where_interfaces_failed(host):
    """A leaf that host 0 does not reach begins at host 1, and stays in the row of its rail."""
    _, found = built(
        host, "degraded:of=rail-optimized,failed=host 0~leaf 0 rail 3+host 2~leaf 0 rail 5", 128, machine="dgx-h100"
    )
    rows = [name for name in found["rows"]["name"] if "rail" in name]
    assert rows == [f"leaf rail {rail}" for rail in range(8)]


def test_bars_are_drawn_where_hosts_have_several_switches_alone(host):
    assert picture(star(4))["layout"] == "tiers"
    assert picture(nx.complete_graph(4))["layout"] == "circle"


def test_a_fat_tree_has_three_tiers_of_switches(host):
    found = picture(fat_tree(host, 16))
    assert found["said"] == "16 hosts, 8 switches above, 8 switches above, 4 switches above"


@pytest.mark.parametrize("name", ["hyperx", "dragonfly", "slim-fly", "jellyfish"])
def test_hosts_stand_around_switches_that_are_linked_directly(host, name):
    """No switch lies on the line between two others, and each host is nearer to its own switch than to the next one."""
    from topoplan import Topology, TopologyContext

    context = TopologyContext(cluster=reference.cluster(20), demand=None, rng=np.random.default_rng(0))
    fabric = host.make(Topology, name).build(context)
    found = picture(fabric)
    assert found["layout"] == "around"
    place = np.stack([column(found["x"]), column(found["y"])], axis=1)
    radius = np.hypot(*(place - 0.5).T)
    assert np.allclose(radius[:20], 0.5)
    assert np.allclose(radius[20:], 0.34)
    of_host = fabric.link_dst[np.searchsorted(fabric.link_src, np.arange(20))]
    distance = np.linalg.norm(place[:20, None] - place[None, 20:], axis=2)
    assert (distance.argmin(axis=1) + 20 == of_host).all()


def test_pods_without_hosts_are_not_drawn(host):
    """A fat-tree of 8 ports has 8 pods of 16 hosts; 64 hosts fill 4, and need all 16 switches of the core."""
    found = picture(fat_tree(host, 64))
    said = "64 hosts, 16 switches above, 16 switches above, 16 switches above"
    assert found["said"] == f"{said}; switches on no shortest path between hosts are not drawn (32)"
    assert (column(found["x"]) < 0).sum() == 32
    ends = np.concatenate([column(found["from"]), column(found["to"])])
    assert (column(found["x"])[ends] >= 0).all()


def test_hosts_of_one_pod_need_no_core(host):
    assert picture(fat_tree(host, 12))["said"].startswith("12 hosts, 6 switches above, 6 switches above, ")


def test_a_switch_that_is_used_is_drawn_wherever_it_is():
    """Between hosts on one switch, a detour by another one is no shortest path, but may be the route of a message."""
    ends = np.array([[0, 2], [1, 2], [2, 0], [2, 1], [2, 3], [3, 2]])
    fabric = attrs.evolve(
        star(2),
        n_switches=2,
        link_src=ends[:, 0],
        link_dst=ends[:, 1],
        link_count=np.ones(6),
        link_bandwidth=np.full(6, 1e9),
        link_latency=np.zeros(6),
        link_kind=np.zeros(6),
    )
    assert _between_hosts(fabric, np.zeros(fabric.n_links)).tolist() == [True, True, True, False]
    assert _between_hosts(fabric, np.ones(fabric.n_links)).all()


def test_a_fabric_of_too_many_nodes_is_not_drawn():
    found = picture(star(8), nodes=8)
    assert found["said"] == "8 hosts and 1 switches, which are not drawn: a picture has 8 nodes at most"
    assert len(column(found["x"])) == len(column(found["load"])) == 0


def test_the_network_of_a_host_by_itself_is_not_drawn():
    found = picture(star(1))
    assert (found["layout"], found["said"]) == ("none", "1 host, which sends nothing")
    assert column(found["x"]).size == column(found["from"]).size == 0


def test_switches_that_nothing_is_joined_to_are_not_drawn(host):
    """128 hosts are half of a BCube with 4 ports and four levels: some switches of all levels stay without a host."""
    cluster = build_cluster(ClusterOptions(servers=128, degree=4), host)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    fabric = host.make(Topology, "bcube").build(context)
    found = picture(fabric)
    joined = np.union1d(fabric.link_src, fabric.link_dst)
    x, low, high = (column(found[name]) for name in ("x", "low", "high"))
    assert set(np.flatnonzero(x >= 0)) == set(joined.tolist()) < set(range(fabric.n_nodes))
    assert np.isfinite(np.stack([low, high])).all()
    assert f"not drawn ({fabric.n_nodes - len(joined)})" in found["said"]


def test_rows_of_bars_are_called_what_their_switches_have_in_common(host):
    """Several switches that have no more in common than to be switches are counted."""
    cluster = build_cluster(ClusterOptions(servers=128, degree=4), host)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    names = picture(host.make(Topology, "bcube").build(context))["rows"]["name"]
    assert "switch" not in names
    assert any(name.endswith(" switches") for name in names)
