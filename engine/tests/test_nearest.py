"""Searches from both ends find what a search from one end does."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

from topoplan import Fabric
from topoplan_engine.network import nearest
from topoplan_engine.network.nearest import FEW_TARGETS, core_of, distances
from topoplan_engine.network.routing import paths

_DISTANCES = nearest._distances


def searched(src, dst, nodes, root):
    """Links and shortest paths from a root to each node, by one plain search."""
    links, count = [-1] * nodes, [0] * nodes
    links[root], count[root], queue = 0, 1, deque([root])
    while queue:
        node = queue.popleft()
        for head in dst[src == node].tolist():
            if links[head] < 0:
                links[head] = links[node] + 1
                queue.append(head)
            if links[head] == links[node] + 1:
                count[head] += count[node]
    return links, count


@pytest.mark.parametrize("seed", range(8))
def test_distances_are_those_of_a_plain_search(seed):
    rng = np.random.default_rng(seed)
    nodes = int(rng.integers(2, 30))
    pairs = np.unique(rng.integers(0, nodes, (int(rng.integers(1, 3 * nodes)), 2)), axis=0)
    src, dst = pairs[pairs[:, 0] != pairs[:, 1]].T
    source, target = rng.integers(0, nodes, (2, 60))
    found = distances(core_of(src, dst, np.arange(len(src)), nodes), source, target)
    expected = [searched(src, dst, nodes, a)[0][b] for a, b in zip(source.tolist(), target.tolist(), strict=True)]
    assert found.tolist() == expected


@pytest.mark.parametrize("n_targets", [1, FEW_TARGETS, FEW_TARGETS + 3])
def test_few_targets_have_the_paths_that_many_have(n_targets):
    rng = np.random.default_rng(n_targets)
    links = [(a, b) for a in range(24) for b in rng.choice(24, 4, replace=False).tolist() if a != b]
    both = sorted({*links, *((b, a) for a, b in links)})
    net = Fabric.from_links(name="x", n_hosts=24, links=both, bandwidth=1.0, latency=0.0, max_paths=10_000)
    src, dst = np.array(both).T
    targets = 1 + np.arange(n_targets)
    found = paths(net, np.zeros_like(targets), targets)
    length, count = searched(src, dst, 24, 0)
    assert np.diff(found.pair_ptr).tolist() == [count[target] for target in targets]
    for row, target in enumerate(targets.tolist()):
        ways = set()
        for path in range(found.pair_ptr[row], found.pair_ptr[row + 1]):
            way = found.links[found.path_ptr[path] : found.path_ptr[path + 1]]
            assert len(way) == length[target]
            assert [0, *net.link_dst[way]] == [*net.link_src[way], target]
            ways.add(tuple(way.tolist()))
        assert len(ways) == count[target]


def test_pairs_of_ends_with_the_same_neighbours_are_searched_once(monkeypatch):
    """Leaves of one pod lead to the same switches: a kind of pair inside of a pod, and one for each two pods."""
    pods, leaves, spines = 3, 4, 2
    leaf, spine, core = np.arange(12), 12 + np.arange(6), 18
    links = [(a, 12 + spines * (a // leaves) + s) for a in leaf.tolist() for s in range(spines)]
    links += [(s, core) for s in spine.tolist()]
    src, dst = np.array([*links, *((b, a) for a, b in links)]).T
    searches = []
    monkeypatch.setattr(nearest, "_distances", lambda *columns: searches.append(columns) or _DISTANCES(*columns))
    source, target = (each.ravel() for each in np.meshgrid(leaf, leaf, indexing="ij"))
    found = distances(core_of(src, dst, np.arange(len(src)), 19), source, target)
    same_pod = source // leaves == target // leaves
    assert found.tolist() == np.where(source == target, 0, np.where(same_pod, 2, 4)).tolist()
    assert len(searches[0][3]) == 1 + pods**2
