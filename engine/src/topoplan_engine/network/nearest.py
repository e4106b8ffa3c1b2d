"""Breadth-first searches for shortest paths, from one end or from both.

From one end (`search`) all nodes up to the farthest target are looked at.  In a tree of three levels these are all
racks, of which a pair of hosts needs two.  From both ends (`meet`) a search takes the side with the smaller frontier a
link further until the sides meet: what lies farther away is not looked at.  Both leave distances and numbers of
shortest paths that are the same on every node of a shortest path, to the bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I64, U64
from topoplan_engine.csr import indptr
from topoplan_engine.kernels.hashing import mix
from topoplan_engine.kernels.jit import inline_kernel, kernel, part

__all__ = ["FEW_TARGETS", "Core", "Meeting", "Scratch", "core_of", "distances", "leave", "meet", "search", "start"]

#: Targets of a source up to which sides meet, and beyond which one search finds all of them.
FEW_TARGETS = 8


class Core(NamedTuple):
    """Links among nodes of the core as CSR, by tail and by head, in ascending order of links."""

    out_ptr: I64
    out_node: I64
    in_ptr: I64
    in_node: I64
    in_link: I64


class Scratch(NamedTuple):
    """Room of a search, by node.

    Attributes:
        distance: links from the root, -1 if it was not reached; -1 everywhere between searches.
        asked: the last root from which paths to the node were asked.
        n_paths: shortest paths from the root.
        queue: nodes in the order in which they are reached.
    """

    distance: I64
    asked: I64
    n_paths: F64
    queue: I64

    @classmethod
    def of(cls, nodes: int) -> Scratch:
        """Return room for searches among so many nodes."""
        none = np.full(nodes, -1, dtype=np.int64)
        return cls(none, none.copy(), np.zeros(nodes), np.empty(nodes, dtype=np.int64))


class Meeting(NamedTuple):
    """Room of a search from both ends, besides `Scratch`, which is that of the root's side.

    Attributes:
        back: by node, links to the target; -1 if it was not reached from there, and everywhere between targets.
        queue: nodes in the order in which they are reached from the target.
        front: (4,) where the root's frontier starts and ends in its queue, its distance, and nodes of ``queue``.
    """

    back: I64
    queue: I64
    front: I64

    @classmethod
    def of(cls, nodes: int) -> Meeting:
        """Return room for searches among so many nodes."""
        return cls(np.full(nodes, -1), np.empty(nodes, np.int64), np.zeros(4, np.int64))


def core_of(src: I64, dst: I64, rows: I64, nodes: int) -> Core:
    """Return links among nodes as compressed rows, by tail and by head.

    Args:
        src, dst: (n,) their ends.
        rows: (n,) their numbers, ascending.
        nodes: how many there are.

    >>> core_of(np.array([0, 1]), np.array([1, 0]), np.array([4, 7]), 2).in_link.tolist()
    [7, 4]
    """
    by_tail, by_head = np.argsort(src, kind="stable"), np.argsort(dst, kind="stable")
    tails, heads = (indptr(np.bincount(ends, minlength=nodes)) for ends in (src, dst))
    return Core(tails, dst[by_tail], heads, src[by_head], rows[by_head])


@inline_kernel
def search(root: int, depth: int, missing: int, scratch: Scratch, core: Core) -> int:
    """Search breadth first from ``root``, counting shortest paths; return the number of nodes reached.

    ``queue`` lists the reached nodes on exit.  The search ends after level ``depth`` (if that is not negative), or
    after the level of the last one of the ``missing`` nodes with ``asked[node] == root``.

    Invariant: when a node leaves the queue, its distance and its number of paths are final.
    """
    distance, asked, n_paths, queue = scratch
    distance[root], n_paths[root], queue[0] = 0, 1.0, root
    if asked[root] == root:
        missing -= 1
        if missing == 0:
            depth = 0
    head, tail = 0, 1
    while head < tail:
        node = queue[head]
        head += 1
        step = distance[node] + 1
        if 0 <= depth < step:
            break
        for k in range(core.out_ptr[node], core.out_ptr[node + 1]):
            neighbour = core.out_node[k]
            if distance[neighbour] < 0:
                distance[neighbour], n_paths[neighbour], queue[tail] = step, 0.0, neighbour
                tail += 1
                if asked[neighbour] == root:
                    missing -= 1
                    if missing == 0:
                        depth = step
            if distance[neighbour] == step:
                n_paths[neighbour] += n_paths[node]
    return tail


@inline_kernel
def start(root: int, scratch: Scratch, meeting: Meeting) -> None:
    """Begin searches from a root, one target after the other."""
    scratch.distance[root], scratch.n_paths[root], scratch.queue[0] = 0, 1.0, root
    meeting.front[0], meeting.front[1], meeting.front[2], meeting.front[3] = 0, 1, 0, 0


@part(_nrt=False)
def meet(target: int, scratch: Scratch, meeting: Meeting, core: Core) -> None:
    """Find all shortest paths from the root to a target that is not the one before.

    Invariant: nodes up to the distance of the root's frontier have their distance and number of paths, as have all on
    a shortest path to the target; other nodes have none.  A target that cannot be reached keeps -1.
    """
    distance, n_paths, back, queue = scratch.distance, scratch.n_paths, meeting.back, meeting.queue
    _forget_target(scratch, meeting)
    if distance[target] >= 0:
        return
    back[target], queue[0] = 0, target
    first, last, links = 0, 1, 0
    is_met = False
    while not is_met and first < last and meeting.front[0] < meeting.front[1]:
        if meeting.front[1] - meeting.front[0] <= last - first:
            is_met = _further(scratch, meeting, core)
            continue
        links += 1
        end = last
        for i in range(first, last):
            for k in range(core.in_ptr[queue[i]], core.in_ptr[queue[i] + 1]):
                before = core.in_node[k]
                if back[before] < 0:
                    back[before], queue[end] = links, before
                    end += 1
                    is_met = is_met or distance[before] >= 0
        first, last = last, end
    meeting.front[3] = last
    if not is_met:
        return
    whole = meeting.front[2] + links
    for i in range(first - 1, -1, -1):
        node = queue[i]
        count = 0.0
        for k in range(core.in_ptr[node], core.in_ptr[node + 1]):
            before = core.in_node[k]
            if back[before] == back[node] + 1 and distance[before] == whole - back[before]:
                count += n_paths[before]
        if count > 0.0:
            distance[node], n_paths[node] = whole - back[node], count


@inline_kernel
def _further(scratch: Scratch, meeting: Meeting, core: Core) -> bool:
    """Take the root's frontier a link further; return whether it meets the target's side."""
    distance, n_paths, queue, front = scratch.distance, scratch.n_paths, scratch.queue, meeting.front
    step, tail, is_met = front[2] + 1, front[1], False
    for i in range(front[0], front[1]):
        node = queue[i]
        for k in range(core.out_ptr[node], core.out_ptr[node + 1]):
            neighbour = core.out_node[k]
            if distance[neighbour] < 0:
                distance[neighbour], n_paths[neighbour], queue[tail] = step, 0.0, neighbour
                tail += 1
                is_met = is_met or meeting.back[neighbour] >= 0
            if distance[neighbour] == step:
                n_paths[neighbour] += n_paths[node]
    front[0], front[1], front[2] = front[1], tail, step
    return is_met


@inline_kernel
def _forget_target(scratch: Scratch, meeting: Meeting) -> None:
    """Leave the target before: what only its side has reached is unknown again."""
    for i in range(meeting.front[3]):
        node = meeting.queue[i]
        meeting.back[node] = -1
        if scratch.distance[node] > meeting.front[2]:
            scratch.distance[node] = -1
    meeting.front[3] = 0


@inline_kernel
def leave(scratch: Scratch, meeting: Meeting) -> None:
    """Leave a root: nothing is reached any more."""
    _forget_target(scratch, meeting)
    for i in range(meeting.front[1]):
        scratch.distance[scratch.queue[i]] = -1


def distances(core: Core, source: I64, target: I64) -> I64:
    """Return the links between (n,) nodes; -1 where there is no way.

    >>> ring = core_of(np.arange(5), (np.arange(5) + 1) % 5, np.arange(5), 5)
    >>> distances(ring, np.array([1, 1]), np.array([0, 3])).tolist()
    [4, 2]
    """
    nodes = len(core.out_ptr) - 1
    leaving, arriving, kinds = *np.zeros((2, nodes), np.uint64), np.empty(len(source), np.uint64)
    _mix_neighbours(core, leaving, arriving, source, target, kinds)
    _, first, kind = np.unique(kinds, return_index=True, return_inverse=True)
    source, target, links = source[first], target[first], np.empty(len(first), np.int64)
    _distances(core, Scratch.of(nodes), Meeting.of(nodes), np.lexsort((target, source)), source, target, links)
    return links[kind.ravel()]


@kernel
def _mix_neighbours(core: Core, leaving: U64, arriving: U64, source: I64, target: I64, kinds: U64) -> None:
    """Write a number of each pair: of the nodes that the source leads to, and of those that lead to the target.

    Nodes that lead to the same ones are equally far from any other node, and so are pairs of them.  Equal sums of mixed
    numbers are taken for equal sets.  Both columns by node are room, all 0.
    """
    for node in range(len(leaving)):
        for k in range(core.out_ptr[node], core.out_ptr[node + 1]):
            leaving[node] += mix(np.uint64(core.out_node[k] + 1))
        for k in range(core.in_ptr[node], core.in_ptr[node + 1]):
            arriving[node] += mix(np.uint64(core.in_node[k] + 1))
    for pair in range(len(source)):
        kinds[pair] = mix(leaving[source[pair]] + np.uint64(1)) + arriving[target[pair]]
        if source[pair] == target[pair]:
            kinds[pair] = 0


@kernel
def _distances(
    core: Core, scratch: Scratch, meeting: Meeting, order: I64, source: I64, target: I64, links: I64
) -> None:
    """Write the links of each pair; ``order`` sorts them by source and target."""
    for k in range(len(order)):
        root, last = source[order[k]], target[order[k]]
        if k == 0 or source[order[k - 1]] != root:
            if k > 0:
                leave(scratch, meeting)
            start(root, scratch, meeting)
        if k == 0 or source[order[k - 1]] != root or target[order[k - 1]] != last:
            meet(last, scratch, meeting, core)
        links[order[k]] = scratch.distance[last]
