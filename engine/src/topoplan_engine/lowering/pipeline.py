"""Lowering of pipelines: micro-batches that pass stages under a schedule.

The tasks of one micro-batch are laid out once (`_one`): the passes of every part, then the messages between parts
on different devices.  All micro-batches are copies of that, one after the other; all-reduces come last and wait for
the last micro-batch.  Every compute task leads to the one that its device runs next, so that edges between parts on
one device would say nothing more, and none is made.  Messages wait for nobody's turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I8, I32, I64
from topoplan.csr import indptr
from topoplan.model.memory import MemoryUse
from topoplan.model.problem import Demand
from topoplan.model.schedule import Schedule
from topoplan.model.strategy import PipelineStrategy
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.lowering.fragments import Fragments
from topoplan_engine.lowering.join import Joined
from topoplan_engine.lowering.memory import Slices, divided, scheduled_peak
from topoplan_engine.lowering.order import Pass, Steps, runs_of, steps_under
from topoplan_engine.lowering.placements import PlacementLowering, placement_demand

if TYPE_CHECKING:
    from topoplan_engine.lowering.fold import Alike

__all__ = ["PipelineLowering", "scheduled"]

_KIND = np.array([TaskKind.FORWARD, TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.BACKWARD], dtype=np.int8)


class _One(NamedTuple):
    """Tasks of one micro-batch: columns of `TaskGraph`, messages' bytes in the whole batch, and their edges."""

    kind: I8
    device: I32
    seconds: F64
    size: I64
    src: I32
    dst: I32
    op: I32
    tails: I32
    heads: I32


class PipelineLowering:
    """Lowers pipelines; see `topoplan_engine.lowering.lower.StrategyLowering`.

    A trivial schedule orders nothing, so that its strategies are lowered as placements alone.
    """

    def __init__(self, fragments: Fragments) -> None:
        self._fragments = fragments
        self._placements = PlacementLowering(fragments)
        self._slices = Slices(fragments.graph)

    def lower(self, strategy: PipelineStrategy) -> TaskGraph:
        """Return the task graph of one iteration."""
        if strategy.schedule.trivial:
            return self._placements.lower(strategy)
        fragments = self._fragments
        pieces = fragments.operators(strategy.placements)
        gradient = np.concatenate([piece.weight_gradient for piece in pieces])
        joined = fragments.joined(strategy.placements)
        return scheduled(joined, strategy.schedule, gradient, fragments.op_names, fragments.cluster.n_devices)

    def alike(self, strategy: PipelineStrategy) -> Alike | None:
        """Find what nothing tells apart; None if there is an order of passes."""
        return self._placements.alike(strategy) if strategy.schedule.trivial else None

    def memory(self, strategy: PipelineStrategy) -> F64:
        """Return the (D,) most bytes that each device holds at a time."""
        if strategy.schedule.trivial:
            return self._placements.memory(strategy)
        schedule, pieces = strategy.schedule, self._fragments.operators(strategy.placements)
        memory, kept = [piece.memory for piece in pieces], [piece.kept for piece in pieces]
        return scheduled_peak(
            schedule,
            self._slices.held(strategy.placements, memory, kept, schedule),
            np.repeat(schedule.stage, [len(piece.devices) for piece in pieces]),
            np.concatenate([piece.devices for piece in pieces]),
            np.concatenate([piece.weight_gradient for piece in pieces]),
            self._fragments.cluster.n_devices,
        )

    def memory_use(self, strategy: PipelineStrategy) -> MemoryUse:
        """Return the same by what it is for, in whole bytes."""
        pieces = self._fragments.operators(strategy.placements)
        return divided(strategy, pieces, self._slices, self.memory(strategy))

    def demand(self, strategy: PipelineStrategy) -> Demand:
        """Return what ``strategy`` asks of the network, host by host."""
        return placement_demand(self._fragments, strategy, self._repeated_edges(strategy.schedule))

    def _repeated_edges(self, schedule: Schedule) -> set[int]:
        """Return the edges inside stages that recompute: their messages are sent again."""
        if not any(schedule.recompute):
            return set()
        stage = schedule.stage.tolist()
        return {
            edge
            for edge, (u, _, v, _) in enumerate(self._fragments.edges)
            if stage[u] == stage[v] and schedule.recompute[stage[u]]
        }


def scheduled(
    joined: Joined, schedule: Schedule, weight_gradient: F64, op_names: tuple[str, ...], n_devices: int
) -> TaskGraph:
    """Return the task graph of one iteration.

    Args:
        joined: the strategy's parts, all-reduces and pairs.
        schedule: which fits them (`Schedule.why_invalid`).
        weight_gradient: (parts,) seconds of ``joined.backward`` that gradients of weights take.
        op_names, n_devices: of the task graph.
    """
    count, stage = schedule.micro_batches, schedule.stage[joined.op]
    steps = steps_under(schedule, stage, weight_gradient)
    one = _one(joined, steps, stage, weight_gradient, count)
    tasks, groups = len(one.kind), len(joined.group_bytes)
    runs = runs_of(schedule, steps, stage, joined.device, n_devices)
    row, place = runs.rows
    order = runs.task[place] + (runs.micro_batch * np.int32(tasks))[row]
    following = np.full(count * tasks, -1, dtype=np.int32)
    following[order[:-1]] = order[1:]
    ends = np.cumsum(np.diff(runs.task_ptr)[runs.block])[runs.device_ptr[1:] - 1] - 1
    following[order[ends]] = -1
    succ_ptr, succ = _successors(joined, steps, one, following.reshape(count, tasks), groups)

    # Micro-batch m moves what lies between the fractions m / count and (m + 1) / count of the bytes.
    share, rest = np.divmod(one.size, count)
    upto = np.arange(count + 1)[:, None] * rest // count
    size = np.zeros((count, tasks), dtype=np.int64)
    size[:, len(steps.part) :] = share + np.diff(upto, axis=0)
    none = np.full(groups, -1, dtype=np.int32)
    columns: dict[str, Any] = {
        "kind": np.append(np.tile(one.kind, count), np.full(groups, TaskKind.COLLECTIVE, dtype=np.int8)),
        "device": np.append(np.tile(one.device, count), none),
        "seconds": np.append(np.tile(one.seconds, count), joined.group_seconds),
        "size": np.append(size, joined.group_bytes),
        "src": np.append(np.tile(one.src, count), none),
        "dst": np.append(np.tile(one.dst, count), none),
        "group": np.append(np.full(count * tasks, -1, dtype=np.int32), np.arange(groups, dtype=np.int32)),
        "op": np.append(np.tile(one.op, count), joined.group_op),
        "succ_ptr": succ_ptr,
        "succ": succ,
        "micro_batch": np.append(np.repeat(np.arange(count, dtype=np.int32), tasks), none),
    }
    for column in columns.values():
        column.setflags(write=False)
    return TaskGraph(
        **columns,
        group_ptr=joined.device_ptr,
        group_members=joined.group_devices,
        op_names=op_names,
        n_devices=n_devices,
    )


def _one(joined: Joined, steps: Steps, stage: I32, weight_gradient: F64, count: int) -> _One:
    """Lay out one of ``count`` micro-batches."""
    part, kind = steps.part, steps.kind
    split = steps.task[:, Pass.WEIGHTS] >= 0
    gradient = np.where(split, weight_gradient, 0.0)
    seconds = np.stack([joined.forward, joined.forward, joined.backward - gradient, gradient], axis=1) / count

    pairs, far = np.diff(joined.edge_ptr), ~joined.local
    source = (joined.src + np.repeat(joined.op_base[joined.edge_src_op], pairs))[far]
    target = (joined.dst + np.repeat(joined.op_base[joined.edge_dst_op], pairs))[far]
    size, op = joined.size[far], np.repeat(joined.edge_dst_op, pairs)[far]
    # What a stage gets from another one is an input, which is kept; the rest is sent again.
    again = (steps.task[target, Pass.AGAIN] >= 0) & (stage[source] == stage[target])
    forward, repeated, backward = steps.task[:, Pass.FORWARD], steps.task[:, Pass.AGAIN], steps.task[:, Pass.BACKWARD]
    before = np.concatenate([forward[source], repeated[source[again]], backward[target]])
    behind = np.concatenate([forward[target], repeated[target[again]], backward[source]])
    message = np.arange(len(part), len(part) + len(before), dtype=np.int32)
    none = np.full(len(part), -1, dtype=np.int32)
    return _One(
        kind=np.append(_KIND[kind], np.full(len(before), TaskKind.TRANSFER, dtype=np.int8)),
        device=np.append(joined.device[part], np.full(len(before), -1, dtype=np.int32)),
        seconds=np.append(seconds[part, kind], np.zeros(len(before))),
        size=np.concatenate([size, size[again], size]),
        src=np.append(none, joined.device[part[before]]),
        dst=np.append(none, joined.device[part[behind]]),
        op=np.concatenate([joined.op[part], op, op[again], op]),
        tails=np.append(before, message),
        heads=np.append(message, behind),
    )


def _successors(joined: Joined, steps: Steps, one: _One, following: I32, groups: int) -> tuple[I32, I32]:
    """Return compressed rows of successors: the next task of the device first, then messages, then all-reduces."""
    (count, tasks), computes = following.shape, len(steps.part)
    chain = np.arange(computes, dtype=np.int32)
    # The last backward task of each part, for the gradients of its weights.
    last = np.where(steps.task[:, Pass.WEIGHTS] >= 0, steps.task[:, Pass.WEIGHTS], steps.task[:, Pass.BACKWARD])
    members = np.diff(joined.part_ptr)
    summed = last[joined.group_parts + np.repeat(joined.op_base[joined.group_op], members)]
    to_group = np.repeat(np.arange(count * tasks, count * tasks + groups, dtype=np.int32), members)

    def rows(tails: I32, heads: I32, copies: I32) -> tuple[I32, I32]:
        """Sort edges by tail and copy them; return how many leave each task, and the heads."""
        order = np.argsort(tails, kind="stable")
        degree = np.bincount(tails, minlength=tasks).astype(np.int32)
        heads = heads[order] + np.where(order < len(chain) + len(one.heads), copies[:, None] * np.int32(tasks), 0)
        heads[:, (np.cumsum(degree) - degree)[:computes]] = following[copies, :computes]
        return np.tile(degree, len(copies)), heads.ravel()

    tails, heads = np.append(chain, one.tails), np.append(chain, one.heads)
    number = np.arange(count, dtype=np.int32)
    degree, succ = rows(tails, heads, number[:-1])
    last_degree, last_succ = rows(np.append(tails, summed), np.append(heads, to_group), number[-1:])
    degree = np.concatenate([degree, last_degree, np.zeros(groups, dtype=np.int32)])
    succ = np.append(succ, last_succ)
    degree[: -groups or None].reshape(count, tasks)[:, :computes] -= following[:, :computes] < 0
    return indptr(degree, np.int32), succ[succ >= 0]
