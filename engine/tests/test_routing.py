"""Paths: the compiled kernels against a plain enumeration of all shortest paths, and promised properties."""

import math

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routes_from_nodes import routes_from_nodes

from topoplan import Fabric, Routes, TopoplanError
from topoplan_engine.network.routing import full_routes, paths

MASK = (1 << 64) - 1


def fraction(src, dst):
    z = (src * 0x9E3779B97F4A7C15 + dst * 0xD1B54A32D192ED03 + 1) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    return (z >> 11) / 2**53


def all_shortest(fabric, src, dst):
    """Every shortest path as a list of links, enumerated backwards over links in ascending order."""
    distance = {src: 0}
    level = [src]
    while level:
        following = []
        for node in level:
            for tail, head in zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True):
                if tail == node and head not in distance:
                    distance[head] = distance[node] + 1
                    following.append(head)
        level = following

    def back(node):
        if node == src:
            return [[]]
        return [
            [*path, link]
            for link in np.flatnonzero(fabric.link_dst == node).tolist()
            if distance.get(int(fabric.link_src[link]), math.inf) == distance[node] - 1
            for path in back(int(fabric.link_src[link]))
        ]

    return back(dst) if dst in distance and src != dst else []


def reference(fabric, src, dst):
    every = all_shortest(fabric, src, dst)
    if len(every) <= fabric.max_paths:
        return every
    start = math.floor(fraction(src, dst) * len(every))
    return [
        every[(start + math.floor(j * len(every) / fabric.max_paths)) % len(every)] for j in range(fabric.max_paths)
    ]


def answers(found):
    rows = []
    for first, last in zip(found.pair_ptr[:-1], found.pair_ptr[1:], strict=True):
        rows.append([found.links[found.path_ptr[p] : found.path_ptr[p + 1]].tolist() for p in range(first, last)])
    return rows


def make(n_hosts, n_switches, links, **more):
    return Fabric.from_links(
        name="test", n_hosts=n_hosts, n_switches=n_switches, links=links, bandwidth=1e9, latency=1e-6, **more
    )


def circulant(n, steps, **more):
    return make(n, 0, [(i, (i + step) % n) for i in range(n) for step in steps], **more)


def star(n):
    return make(n, 1, [(i, n) for i in range(n)] + [(n, i) for i in range(n)])


@st.composite
def fabrics(draw):
    hosts, switches = draw(st.integers(1, 7)), draw(st.integers(0, 3))
    nodes = st.integers(0, hosts + switches - 1)
    links = draw(st.lists(st.tuples(nodes, nodes).filter(lambda p: p[0] != p[1]), max_size=24))
    if draw(st.booleans()):
        links += [(b, a) for a, b in links]
    return make(hosts, switches, links, max_paths=draw(st.integers(1, 4)))


@given(fabrics(), st.data())
@settings(max_examples=150, deadline=None)
def test_matches_reference(fabric, data):
    host = st.integers(0, fabric.n_hosts - 1)
    pairs = data.draw(st.lists(st.tuples(host, host), min_size=1, max_size=20))
    routes = paths(fabric, [p[0] for p in pairs], [p[1] for p in pairs])
    assert answers(routes) == [reference(fabric, *pair) for pair in pairs]
    for first, last in zip(routes.pair_ptr[:-1], routes.pair_ptr[1:], strict=True):
        assert first == last or routes.weight[first:last].sum() == pytest.approx(1)


def test_shortest_lengths_and_continuity_on_a_circulant():
    fabric = circulant(24, (1, 23, 5, 19), max_paths=3)
    routes = full_routes(fabric)
    assert routes.pairs.tolist() == [[a, b] for a in range(24) for b in range(24) if a != b]
    for (src, dst), ways in zip(routes.pairs.tolist(), answers(routes), strict=True):
        assert len({tuple(path) for path in ways}) == len(ways) == min(3, len(all_shortest(fabric, src, dst)))
        for path in ways:
            nodes = [src, *fabric.link_dst[path].tolist()]
            assert nodes[:-1] == fabric.link_src[path].tolist()
            assert nodes[-1] == dst


def test_more_paths_than_kept_load_parallel_links_alike():
    hosts, middle = 40, 8  # two stars joined by eight parallel middle switches
    left, right = hosts, hosts + 1
    links = [(h, left if h < 20 else right) for h in range(hosts)]
    links += [(side, hosts + 2 + m) for side in (left, right) for m in range(middle)]
    fabric = make(hosts, 2 + middle, links + [(b, a) for a, b in links], max_paths=1)
    src, dst = np.divmod(np.arange(400), 20)
    routes = paths(fabric, src, dst + 20)
    load = np.bincount(fabric.link_dst[routes.links], minlength=fabric.n_nodes)[hosts + 2 :]
    assert load.sum() == 400
    assert load.min() > 25  # 50 on average; always the first would be 400 and 0


def test_itself_and_unreachable_have_no_path():
    fabric = make(3, 0, [(0, 1)])
    routes = paths(fabric, [0, 0, 1, 0], [0, 1, 0, 2])
    assert answers(routes) == [[], [[0]], [], []]


def test_two_hosts_on_each_other():
    assert answers(paths(make(2, 0, [(0, 1), (1, 0)]), [0, 1], [1, 0])) == [[[0]], [[1]]]


def test_nothing_asked_and_no_links():
    routes = paths(make(2, 0, []), [], [])
    assert routes.pair_ptr.tolist() == [0]
    assert answers(paths(make(2, 0, []), [0], [1])) == [[]]


def test_explicit_routes_win():
    fabric = circulant(6, (1, 5))
    routes = routes_from_nodes(fabric, {(0, 1): [[0, 5, 4, 3, 2, 1], [0, 1]], (2, 0): []}, {(0, 1): [0.25, 0.75]})
    fabric = attrs.evolve(fabric, routes=routes)
    found = paths(fabric, [1, 0, 2, 0], [0, 1, 0, 1])
    rows = answers(found)
    assert [len(path) for path in rows[1]] == [5, 1]
    assert fabric.link_dst[rows[1][0]].tolist() == [5, 4, 3, 2, 1]
    assert rows[1] == rows[3]
    assert rows[2] == []
    assert len(rows[0]) == 1
    assert found.weight.tolist() == [1, 0.25, 0.75, 0.25, 0.75]
    table = full_routes(fabric)
    row = table.pairs.tolist().index([0, 1])
    assert answers(table)[row] == rows[1]


@pytest.mark.parametrize(
    ("node_paths", "weights", "message"),
    [
        ({(0, 2): [[0, 2]]}, None, "0 -> 2, which is no link"),
        ({(0, 2): [[0, 1]]}, None, "does not lead from 0 to 2"),
        ({(0, 1): [[0, 1]]}, {(0, 1): [0.5]}, "sum 1"),
    ],
)
def test_bad_node_paths(node_paths, weights, message):
    with pytest.raises(TopoplanError, match=message):
        routes_from_nodes(circulant(6, (1, 5)), node_paths, weights)


def test_unknown_host():
    with pytest.raises(TopoplanError, match="no host 3"):
        paths(star(3), [0], [3])


def test_a_large_star_costs_what_is_asked():
    fabric = star(20000)
    routes = paths(fabric, np.arange(20000), np.roll(np.arange(20000), 1))
    assert len(routes.links) == 40000
    assert (fabric.link_dst[routes.links[0::2]] == 20000).all()


def test_link_rows():
    fabric = circulant(5, (1,))
    assert fabric.link_rows([[0, 4]], [[1, 1]]).tolist() == [[0, -1]]
    assert make(2, 0, []).link_rows([0], [1]).tolist() == [-1]


def test_routes_of_an_empty_mapping():
    routes = routes_from_nodes(star(2), {})
    assert isinstance(routes, Routes)
    assert routes.pairs.shape == (0, 2)


def test_a_single_path_is_the_same_beside_short_ones_and_alone():
    """Paths are written while they are searched where there is room, which one of 40 links alone has not."""
    links = [(a, (a + 1) % 80) for a in range(80)]
    ring = make(80, 0, links + [(b, a) for a, b in links], max_paths=1)
    alone = paths(ring, [0], [40])
    targets = np.append(40, np.arange(1, 20))
    beside = paths(ring, np.zeros(20, int), targets)
    assert np.diff(beside.path_ptr).tolist() == targets.tolist()
    assert beside.links[:40].tolist() == alone.links.tolist()
    for row, target in enumerate(targets.tolist()):
        way = beside.links[beside.path_ptr[row] : beside.path_ptr[row + 1]]
        assert [0, *ring.link_dst[way]] == [*ring.link_src[way], target]
