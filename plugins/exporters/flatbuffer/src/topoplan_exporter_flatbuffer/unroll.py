"""Collectives that the format cannot say -> transfers and joins, which it can.

In this format nothing may follow an all-reduce, and there are no all-gathers and reduce-scatters.  `unrolled` writes
such collectives out, round by round: member i of n sends to the next one, n transfers in each of so many rounds as
simulators run (Patarasuk, Yuan, J. Parallel Distrib. Comput. 69, 2009, section 3).  As in FlexNetPacket, a round of a
ring begins when all transfers of the one before have ended, and several rings do not wait for each other.

    predecessors -> join -> round 0 -> join -> round 1 -> ... -> join -> successors

A join is a barrier without run time on a device that nothing else uses, a CPU in the file.  It keeps the dependencies
of the collective to the letter, with n edges on each side in place of n times n.  All-reduces of one member, which in
SPMD programs begin and end all-to-alls, become joins alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs
import numpy as np
from numpy.typing import NDArray

from topoplan import TaskGraph, TaskKind
from topoplan.arrays import F64, I64
from topoplan.csr import indptr
from topoplan_engine.simulation.messages import collective_rounds

__all__ = ["Unrolled", "unrolled"]


@attrs.frozen(eq=False)
class Unrolled:
    """A task graph in which some collectives are written out.

    Attributes:
        taskgraph: tasks in the order of those that they were made from.
        joins: how many devices were added for joins; they are the last ones.
        origin: (T,) task that each was made from.
        part: (T,) share of that task's time on the network that it takes: a round's, or all of it.
        ring: (T,) which of its group's rings a transfer of a collective belongs to; -1 for all other tasks.
    """

    taskgraph: TaskGraph
    joins: int
    origin: I64
    part: F64
    ring: I64


def unrolled(
    graph: TaskGraph,
    chosen: NDArray[np.bool_],
    shifts: Sequence[tuple[int, ...]],
    n_devices: int,
    receivers: Mapping[int, I64] = MappingProxyType({}),
) -> Unrolled:
    """Write the chosen collectives of a task graph out.

    Args:
        graph: in range (`TaskGraph.check`).
        chosen: (T,) which collectives.
        shifts: for every group, how many members ahead each one sends, on each of the rings that it runs at a time;
            all of them coprime to the number of members, so that each ring visits everybody.
        n_devices: number of the first device for joins.
        receivers: for groups whose rings are no shifts, group -> (rings, members) the member to which each one sends.
    """
    if not chosen.any():
        none = np.full(graph.n_tasks, -1)
        return Unrolled(graph, 0, np.arange(graph.n_tasks), np.ones(graph.n_tasks), none)
    shape = _shape(graph, chosen, shifts)
    # In a collective flows stand round by round, ring by ring, and in the order of the members that send; the joins of
    # a round stand behind it, one for each ring.  The last round has that of the collective.
    block = shape.parallel * (shape.members + 1)
    count = np.where(shape.rounds > 0, shape.rounds * block - shape.parallel + 2, 1)
    first = np.cumsum(count) - count
    last = first + count - 1
    origin = np.repeat(np.arange(graph.n_tasks), count)
    place = np.arange(len(origin)) - first[origin]
    inner = np.flatnonzero((place > 0) & (place < count[origin] - 1))
    turn, position = np.divmod(place[inner] - 1, block[origin[inner]])
    flows = position < (shape.parallel * shape.members)[origin[inner]]
    flow, turn, position = inner[flows], turn[flows], position[flows]
    of = origin[flow]
    ring, member = np.divmod(position, shape.members[of])
    ahead, before = np.concatenate(shifts), np.cumsum([0, *map(len, shifts)])
    receiver = (member + ahead[before[graph.group[of]] + ring]) % shape.members[of]
    for group, table in receivers.items():
        members = graph.group[of] == group
        receiver[members] = table[ring[members], member[members]]
    listed = graph.group_ptr[graph.group[of]].astype(np.int64)

    join = chosen[origin]
    join[flow] = False
    opening = join & (shape.rounds[origin] > 0) & (place == 0)
    inside = opening & (graph.seconds[origin] > 0)  # these take time, so each has a device for itself
    columns: dict[str, Any] = {name: getattr(graph, name)[origin] for name in _COLUMNS}
    columns["kind"][join] = TaskKind.BARRIER
    columns["device"][join] = n_devices + np.where(inside, np.cumsum(inside), 0)[join]
    columns["size"][join] = 0
    columns["group"][chosen[origin]] = columns["collective"][chosen[origin]] = -1
    columns["seconds"][chosen[origin] & ~opening] = 0.0
    columns["kind"][flow] = TaskKind.TRANSFER
    columns["size"][flow] = np.ceil(shape.share[of] / shape.parallel[of])
    columns["src"][flow] = graph.group_members[listed + member]
    columns["dst"][flow] = graph.group_members[listed + receiver]
    joins = 1 + int(inside.sum())

    ends = turn == shape.rounds[of] - 1
    barrier = first[of] + 1 + turn * block[of] + (shape.parallel * shape.members)[of] + ring
    edges = (
        (np.repeat(last, np.diff(graph.succ_ptr)), first[graph.succ]),
        (first[of][turn == 0], flow[turn == 0]),
        (flow[~ends], barrier[~ends]),
        (barrier[~ends], (flow + block[of])[~ends]),
        (flow[ends], last[of][ends]),
    )
    tails, heads = (np.concatenate(side) for side in zip(*edges, strict=True))
    expanded = attrs.evolve(
        graph,
        **columns,
        succ_ptr=indptr(np.bincount(tails, minlength=len(origin))),
        succ=heads[np.argsort(tails, kind="stable")],
        micro_batch=None if graph.micro_batch is None else graph.micro_batch[origin],
        n_devices=n_devices + joins,
        foreign={},
    )
    part = np.ones(len(origin))
    part[flow] = 1.0 / shape.rounds[of]
    rings = np.full(len(origin), -1)
    rings[flow] = ring
    return Unrolled(expanded, joins, origin, part, rings)


_COLUMNS = ("kind", "device", "seconds", "size", "src", "dst", "group", "op", "collective")


class _Shape(NamedTuple):
    """How each chosen collective of several members runs; 0 rounds for all other tasks.

    Attributes:
        rounds: (T,) how many there are.
        share: (T,) bytes that each member sends in one, over all rings.
        members, parallel: (T,) members, and rings at a time; 1 for all other tasks.
    """

    rounds: I64
    share: F64
    members: I64
    parallel: I64


def _shape(graph: TaskGraph, chosen: NDArray[np.bool_], shifts: Sequence[tuple[int, ...]]) -> _Shape:
    members, parallel = np.ones((2, graph.n_tasks), dtype=np.int64)
    rounds, share = np.zeros(graph.n_tasks, dtype=np.int64), np.zeros(graph.n_tasks)
    tasks = np.flatnonzero(chosen)
    sizes = np.diff(graph.group_ptr)[graph.group[tasks]]
    tasks, sizes = tasks[sizes > 1], sizes[sizes > 1]
    if len(tasks):
        kinds = graph.collective[tasks]
        asked, which = np.unique(np.stack([graph.size[tasks], sizes, kinds]), axis=1, return_inverse=True)
        shapes = np.array([collective_rounds(*row) for row in asked.T.tolist()])[which.ravel()]
        rounds[tasks], share[tasks] = shapes[:, 0].astype(np.int64), shapes[:, 1]
        members[tasks] = sizes
        parallel[tasks] = np.array([len(row) for row in shifts])[graph.group[tasks]]
    return _Shape(rounds, share, members, parallel)
