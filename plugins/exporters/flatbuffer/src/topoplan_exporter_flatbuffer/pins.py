"""Pins the transfers of rings to their paths: each path of a ring gets a pair of hosts that has this path alone.

FlexNetPacket draws one of the paths that ``routes`` lists for the pair of a transfer.  But each step of a ring has one
path, and several rings of a group may connect the same two hosts by different paths.  `pin_rings` therefore assigns a
pair of hosts to every path of a ring: the pair of its ends if no other message uses that pair, else an unused pair.
FlexNetPacket follows the nodes of a path, whatever pair it is listed for, so the pair is only a name.  If no unused
pair remains, paths share the pair of their ends, and all of its messages draw among them (`RING_SHARE`).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Mapping

import attrs
import numpy as np

from topoplan import Fabric, Routes, TaskGraph, TaskKind
from topoplan.arrays import F64, I32, I64
from topoplan_engine.network.rings import cycles_of, rings_of
from topoplan_exporter_flatbuffer.network import ALL_PAIRS, routes_of
from topoplan_exporter_flatbuffer.unroll import Unrolled

__all__ = ["RING_SHARE", "pin_rings"]

#: Share of the draws of a pair that its paths of rings get, all together, where other messages use it as well.  With
#: all draws, these messages lose their paths (a plan of 116 ms became a file of 102 ms); with half of them, rings stray
#: too often (120 ms).
RING_SHARE = 2 / 3
#: Nodes of a path, both ends included.
_Path = tuple[int, ...]
#: Paths of each pair, ``source * hosts + destination``, and their shares of its draws.
_Ways = dict[int, dict[_Path, float]]


def pin_rings(fabric: Fabric, graph: TaskGraph, expanded: Unrolled) -> tuple[Fabric, TaskGraph]:
    """Assign the transfers of rings to pairs that have the ring's path alone.

    Args:
        fabric: with one device in each host.
        graph: the task graph before the expansion.
        expanded: the expanded task graph; transfers on rings of the fabric get other pairs.

    Returns:
        The fabric with the routes of these pairs, and the task graph with their transfers.
    """
    flows, paths = _ring_paths(fabric, graph, expanded)
    if not len(flows):
        return fabric, expanded.taskgraph
    transfers = expanded.taskgraph.kind == TaskKind.TRANSFER
    transfers[flows] = False
    hosts = fabric.n_hosts
    message_pairs = np.unique(
        expanded.taskgraph.src[transfers].astype(np.int64) * hosts + expanded.taskgraph.dst[transfers]
    )
    routes = routes_of(fabric, _named_pairs(set(paths), message_pairs, hosts))
    names, changed = _assign_pairs(Counter(paths), set(message_pairs.tolist()), _node_paths(fabric, routes), hosts)
    src, dst = expanded.taskgraph.src.copy(), expanded.taskgraph.dst.copy()
    src[flows], dst[flows] = np.divmod([names[path] for path in paths], hosts)
    new_fabric = attrs.evolve(fabric, routes=_replace_routes(fabric, routes, changed))
    return new_fabric, attrs.evolve(expanded.taskgraph, src=src, dst=dst)


def _named_pairs(paths: Collection[_Path], message_pairs: I64, hosts: int) -> I64:
    """Return the pairs that paths of rings may get, ascending: all, or of many hosts enough of them.

    These are the pairs of messages, the ends of all paths, as many others, and all of them backwards.
    """
    if hosts <= ALL_PAIRS:
        pairs = np.arange(hosts * hosts)
    else:
        ends = [path[0] * hosts + path[-1] for path in paths]
        named = np.unique(np.concatenate([message_pairs, np.array(ends, dtype=np.int64)]))
        pairs = np.unique(np.concatenate([named, np.arange(min(len(named) + 2 * len(paths) + hosts, hosts * hosts))]))
        pairs = np.unique(np.concatenate([pairs, pairs % hosts * hosts + pairs // hosts]))
    return np.asarray(pairs[pairs // hosts != pairs % hosts])


def _ring_paths(fabric: Fabric, graph: TaskGraph, expanded: Unrolled) -> tuple[I64, list[_Path]]:
    """Return the transfers of rings of the fabric, and their paths in the order of simulators: the first jump last."""
    groups = np.split(graph.group_members, graph.group_ptr[1:-1])
    rings = [rings_of(fabric, members) for members in groups]
    cycles = [len(cycles_of(fabric, members)) > 0 for members in groups]
    has_rings = np.array([len(several) > 0 for several in rings], dtype=bool) | cycles
    group = graph.group[expanded.origin]
    flows = np.flatnonzero((expanded.ring >= 0) & np.append(has_rings, False)[group]).astype(np.int64, copy=False)
    cache: dict[tuple[int, tuple[int, ...]], _Path] = {}
    paths: list[_Path] = []
    ends = (expanded.taskgraph.src[flows].tolist(), expanded.taskgraph.dst[flows].tolist())
    for source, target, g, ring in zip(*ends, group[flows].tolist(), expanded.ring[flows].tolist(), strict=True):
        if cycles[g]:
            paths.append((source, target))
            continue
        jumps = rings[g][ring]
        if (source, jumps) not in cache:
            steps = itertools.accumulate((*jumps[1:], jumps[0]), initial=source)
            cache[source, jumps] = tuple(node % fabric.n_hosts for node in steps)
        paths.append(cache[source, jumps])
    return flows, paths


def _assign_pairs(
    paths: Mapping[_Path, int], used: set[int], pair_paths: _Ways, hosts: int
) -> tuple[dict[_Path, int], _Ways]:
    """Assign a pair to each path.

    Args:
        paths: number of transfers on each path.
        used: pairs between which other messages go.
        pair_paths: the paths that these take, for all pairs that reach each other.
        hosts: number of hosts.

    Returns:
        The pair of each path, and the pairs whose routes change, with their new ones.
    """
    joined = {path: path[0] * hosts + path[-1] for path in paths}
    names = {path: pair for path, pair in joined.items() if list(pair_paths.get(pair, ())) == [path]}
    reserved = used.union(names.values())
    routes: _Ways = {}
    for path, pair in joined.items():
        if path not in names and pair not in reserved:
            names[path], routes[pair] = pair, {path: 1.0}
            reserved.add(pair)
    # FlexNetPacket also looks up a path of the reverse direction, even if nothing is sent over it.
    free = (pair for pair in pair_paths if pair not in reserved and pair % hosts * hosts + pair // hosts in pair_paths)
    # Rings whose paths would be mixed with each other are the slowest, so they get unused pairs first.
    several = Counter(joined.values())
    unnamed = sorted(
        (path for path in paths if path not in names), key=lambda path: -several[joined[path]] * paths[path]
    )
    for path, name in zip(unnamed, free, strict=False):
        names[path], routes[name] = name, {path: 1.0}
    names |= {path: joined[path] for path in unnamed if path not in names}
    for pair in {joined[path] for path in unnamed if names[path] == joined[path]}:
        rings = [path for path, name in names.items() if name == pair]
        share = RING_SHARE if pair in used else 1.0
        ways = {path: (1.0 - share) * part for path, part in pair_paths[pair].items() if share < 1.0}
        routes[pair] = ways | {path: ways.get(path, 0.0) + share / len(rings) for path in rings}
    return names, routes


def _node_paths(fabric: Fabric, routes: Routes) -> _Ways:
    """List the nodes of all paths of all pairs that reach each other."""
    src, dst, links = fabric.link_src.tolist(), fabric.link_dst.tolist(), routes.links.tolist()
    steps = itertools.pairwise(routes.path_ptr.tolist())
    paths = [(src[links[a]], *(dst[link] for link in links[a:b])) for a, b in steps]
    ways = list(zip(paths, routes.weight.tolist(), strict=True))
    ends = itertools.pairwise(routes.pair_ptr.tolist())
    return {
        a * fabric.n_hosts + b: dict(ways[start:end])
        for (a, b), (start, end) in zip(routes.pairs.tolist(), ends, strict=True)
        if end > start
    }


def _replace_routes(fabric: Fabric, routes: Routes, changed: _Ways) -> Routes:
    """Replace the paths of some pairs; all other pairs keep theirs."""
    counts: list[int] = []
    lengths: list[I64] = []
    links: list[I32 | I64] = []
    weights: list[F64] = []
    for row, (a, b) in enumerate(routes.pairs.tolist()):
        ways = changed.get(a * fabric.n_hosts + b)
        if ways is None:
            start, end = routes.pair_ptr[row], routes.pair_ptr[row + 1]
            ends = routes.path_ptr[start : end + 1]
            counts.append(end - start)
            lengths.append(np.diff(ends))
            links.append(routes.links[ends[0] : ends[-1]])
            weights.append(routes.weight[start:end])
            continue
        counts.append(len(ways))
        lengths.append(np.array([len(path) - 1 for path in ways]))
        tails, heads = zip(*(step for path in ways for step in itertools.pairwise(path)), strict=True)
        links.append(fabric.link_rows(tails, heads))
        weights.append(np.array(list(ways.values())))
    return Routes(
        pairs=routes.pairs,
        pair_ptr=np.concatenate([[0], np.cumsum(counts)]),
        path_ptr=np.concatenate([[0], np.cumsum(np.concatenate(lengths))]),
        links=np.concatenate(links),
        weight=np.concatenate(weights),
    )
