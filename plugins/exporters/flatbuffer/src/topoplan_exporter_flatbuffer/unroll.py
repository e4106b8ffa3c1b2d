"""Expands collectives that the format lacks into transfers and joins.

In this format an all-reduce has no successors, and there are no all-gathers and reduce-scatters.  `unroll` expands such
collectives round by round: each of the n members sends to the next one, n transfers in each round, with the number of
rounds of the simulators (Patarasuk, Yuan, J. Parallel Distrib. Comput. 69, 2009, section 3).  As in FlexNetPacket, a
round of a ring starts when all transfers of the previous one have ended, and rings do not wait for each other.

    predecessors -> join -> round 0 -> join -> round 1 -> ... -> join -> successors

A join is a barrier without run time on its own device, a CPU in the file.  It preserves the dependencies of the
collective exactly, with n edges on each side instead of n times n.  The joins before and after all-to-alls of SPMD
programs remain joins.
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
from topoplan_engine.csr import indptr
from topoplan_engine.simulation.messages import collective_rounds

__all__ = ["Unrolled", "unroll"]


@attrs.frozen(eq=False)
class Unrolled:
    """A task graph with expanded collectives.

    Attributes:
        taskgraph: tasks in the order of their original tasks.
        joins: number of devices for joins; they are the last ones.
        origin: (T,) original task of each task.
        part: (T,) share of the original task's time on the network: that of one round, or 1.
        ring: (T,) number of the ring of a collective's transfer in its group; -1 for all other tasks.
    """

    taskgraph: TaskGraph
    joins: int
    origin: I64
    part: F64
    ring: I64


def unroll(
    graph: TaskGraph,
    chosen: NDArray[np.bool_],
    shifts: Sequence[tuple[int, ...]],
    n_devices: int,
    receivers: Mapping[int, I64] = MappingProxyType({}),
) -> Unrolled:
    """Expand some collectives of a task graph.

    Args:
        graph: in range (`TaskGraph.check`).
        chosen: (T,) mask of these collectives.
        shifts: for every group and each of its concurrent rings, the distance from a member to its receiver; coprime to
            the number of members, so that each ring visits all members.
        n_devices: number of the first device for joins.
        receivers: for groups whose rings are no shifts, group -> (rings, members) the receiver of each member.
    """
    if not chosen.any():
        none = np.full(graph.n_tasks, -1)
        return Unrolled(graph, 0, np.arange(graph.n_tasks), np.ones(graph.n_tasks), none)
    shape = _shape(graph, chosen, shifts)
    layout = _Layout.of(graph, shape)
    flows = _Flows.of(layout, shape)
    receiver = _receivers(graph, flows, shape, shifts, receivers)
    columns, joins = _columns(graph, chosen, shape, layout, flows, receiver, n_devices)
    tails, heads = _edges(graph, shape, layout, flows)
    n_tasks = len(layout.origin)
    expanded = attrs.evolve(
        graph,
        **columns,
        succ_ptr=indptr(np.bincount(tails, minlength=n_tasks)),
        succ=heads[np.argsort(tails, kind="stable")],
        micro_batch=None if graph.micro_batch is None else graph.micro_batch[layout.origin],
        n_devices=n_devices + joins,
        foreign={},
    )
    part = np.ones(n_tasks)
    part[flows.task] = 1.0 / shape.rounds[flows.origin]
    ring = np.full(n_tasks, -1)
    ring[flows.task] = flows.ring
    return Unrolled(expanded, joins, layout.origin, part, ring)


class _Layout(NamedTuple):
    """The positions of the new tasks.

    The flows of a collective are sorted by round, ring and sender.  The joins of a round follow it, one for each ring.
    The join of the last round is that of the collective.

    Attributes:
        block: (T,) number of tasks of a round.
        first, last: (T,) first and last new task of each original task.
        origin, place: (new tasks,) the original task, and the index among its new tasks.
    """

    block: I64
    first: I64
    last: I64
    origin: I64
    place: I64

    @classmethod
    def of(cls, graph: TaskGraph, shape: _Shape) -> _Layout:
        """Lay out all tasks."""
        block = shape.parallel * (shape.members + 1)
        count = np.where(shape.rounds > 0, shape.rounds * block - shape.parallel + 2, 1)
        first = np.cumsum(count) - count
        origin = np.repeat(np.arange(graph.n_tasks), count)
        return cls(block, first, first + count - 1, origin, np.arange(len(origin)) - first[origin])


class _Flows(NamedTuple):
    """Transfers of collectives.

    Attributes:
        task, origin: number, and the collective that it belongs to.
        turn, ring, member: round, ring and number of the member that sends.
    """

    task: I64
    origin: I64
    turn: I64
    ring: I64
    member: I64

    @classmethod
    def of(cls, layout: _Layout, shape: _Shape) -> _Flows:
        """Find the transfers in a layout."""
        inner = np.flatnonzero((layout.place > 0) & (np.arange(len(layout.place)) < layout.last[layout.origin]))
        turn, position = np.divmod(layout.place[inner] - 1, layout.block[layout.origin[inner]])
        sends = position < (shape.parallel * shape.members)[layout.origin[inner]]
        origin = layout.origin[inner[sends]]
        ring, member = np.divmod(position[sends], shape.members[origin])
        return cls(inner[sends], origin, turn[sends], ring, member)


def _receivers(
    graph: TaskGraph,
    flows: _Flows,
    shape: _Shape,
    shifts: Sequence[tuple[int, ...]],
    tables: Mapping[int, I64],
) -> I64:
    """(flows,) number of the member that receives each flow; ``shifts`` and ``tables`` are arguments of `unroll`."""
    group = graph.group[flows.origin]
    shift, first_shift = np.concatenate(shifts), np.cumsum([0, *map(len, shifts)])
    receiver: I64 = (flows.member + shift[first_shift[group] + flows.ring]) % shape.members[flows.origin]
    for number, table in tables.items():
        rows = group == number
        receiver[rows] = table[flows.ring[rows], flows.member[rows]]
    return receiver


def _columns(
    graph: TaskGraph,
    chosen: NDArray[np.bool_],
    shape: _Shape,
    layout: _Layout,
    flows: _Flows,
    receiver: I64,
    n_devices: int,
) -> tuple[dict[str, Any], int]:
    """Return the columns of all tasks, and how many devices joins need."""
    origin = layout.origin
    join = chosen[origin]
    join[flows.task] = False
    opening = join & (shape.rounds[origin] > 0) & (layout.place == 0)
    inside = opening & (graph.seconds[origin] > 0)  # these take time, so each has its own device
    columns: dict[str, Any] = {name: getattr(graph, name)[origin] for name in _COLUMNS}
    columns["kind"][join] = TaskKind.BARRIER
    columns["device"][join] = n_devices + np.where(inside, np.cumsum(inside), 0)[join]
    columns["size"][join] = 0
    columns["group"][chosen[origin]] = columns["collective"][chosen[origin]] = -1
    columns["seconds"][chosen[origin] & ~opening] = 0.0
    first_member = graph.group_ptr[graph.group[flows.origin]].astype(np.int64)
    columns["kind"][flows.task] = TaskKind.TRANSFER
    columns["size"][flows.task] = np.ceil(shape.share[flows.origin] / shape.parallel[flows.origin])
    columns["src"][flows.task] = graph.group_members[first_member + flows.member]
    columns["dst"][flows.task] = graph.group_members[first_member + receiver]
    return columns, 1 + int(inside.sum())


def _edges(graph: TaskGraph, shape: _Shape, layout: _Layout, flows: _Flows) -> tuple[I64, I64]:
    """Return both ends of all edges."""
    task, origin, turn = flows.task, flows.origin, flows.turn
    begins, ends = turn == 0, turn == shape.rounds[origin] - 1
    join = (
        layout.first[origin] + 1 + turn * layout.block[origin] + (shape.parallel * shape.members)[origin] + flows.ring
    )
    edges = (
        (np.repeat(layout.last, np.diff(graph.succ_ptr)), layout.first[graph.succ]),
        (layout.first[origin][begins], task[begins]),
        (task[~ends], join[~ends]),
        (join[~ends], (task + layout.block[origin])[~ends]),
        (task[ends], layout.last[origin][ends]),
    )
    tails, heads = (np.concatenate(side) for side in zip(*edges, strict=True))
    return tails, heads


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


def _shape(graph: TaskGraph, mask: NDArray[np.bool_], shifts: Sequence[tuple[int, ...]]) -> _Shape:
    members, parallel = np.ones((2, graph.n_tasks), dtype=np.int64)
    rounds, share = np.zeros(graph.n_tasks, dtype=np.int64), np.zeros(graph.n_tasks)
    tasks = np.flatnonzero(mask)
    sizes = np.diff(graph.group_ptr)[graph.group[tasks]]
    tasks, sizes = tasks[sizes > 1], sizes[sizes > 1]
    if len(tasks):
        kinds = graph.collective[tasks]
        distinct, row_of = np.unique(np.stack([graph.size[tasks], sizes, kinds]), axis=1, return_inverse=True)
        shapes = np.array([collective_rounds(*row) for row in distinct.T.tolist()])[row_of.ravel()]
        rounds[tasks], share[tasks] = shapes[:, 0].astype(np.int64), shapes[:, 1]
        members[tasks] = sizes
        parallel[tasks] = np.array([len(row) for row in shifts])[graph.group[tasks]]
    return _Shape(rounds, share, members, parallel)
