"""What a scheduled strategy keeps in memory: at most, from the order of passes alone, and over time, from a timeline.

A part keeps its weights with all that belongs to them throughout.  Its activations of one micro-batch, a share of
those of the whole batch, live from the end of its forward pass to the end of its last backward one.  Where a stage
recomputes, a part keeps what it got from other stages in between, and its activations from the second forward pass
on.  Devices run passes in a fixed order, so that the peak does not depend on how long they take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32
from topoplan.model.graph import OperatorGraph, Tensor
from topoplan.model.memory import MemoryUse
from topoplan.model.placement import Placement
from topoplan.model.schedule import Schedule
from topoplan.model.strategy import Strategy
from topoplan.model.taskgraph import TaskGraph
from topoplan.model.timeline import Timeline
from topoplan.plugin.components import CostFunction
from topoplan_engine.lowering.order import Pass, Steps, runs_of, steps_under
from topoplan_engine.lowering.pieces import OperatorPiece, weight_seconds
from topoplan_engine.partition import slice_elements

__all__ = ["Held", "MemoryCurve", "Slices", "divided", "memory_curve", "scheduled_peak"]


class Held(NamedTuple):
    """(P,) bytes of each part, of the whole batch: kept throughout, activations, and inputs from other stages."""

    kept: F64
    activations: F64
    inputs: F64


class MemoryCurve(NamedTuple):
    """Bytes in use on every device.

    Attributes:
        kept: (D,) throughout.
        peak: (D,) the most at any time.
        device, time, used: (n,) device by device, bytes in use from each time (seconds) on.
    """

    kept: F64
    peak: F64
    device: I32
    time: F64
    used: F64


class Slices:
    """What parts of a graph's operators hold of tensors, derived once for every cut."""

    def __init__(self, graph: OperatorGraph) -> None:
        self._graph = graph
        self._into: list[list[tuple[int, int]]] = [[] for _ in graph.operators]
        for u, _, v, into in graph.edges.reshape(-1, 4).tolist():
            self._into[v].append((u, into))
        self._known: dict[tuple[int, tuple[int, ...]], tuple[F64, list[F64]]] = {}

    def held(
        self, placements: Sequence[Placement], memory: Sequence[F64], kept: Sequence[F64 | None], schedule: Schedule
    ) -> Held:
        """Divide the ``memory`` of every operator's parts; where ``kept`` says nothing, outputs come and go."""
        come, got = [], []
        for op, (placement, whole, stays) in enumerate(zip(placements, memory, kept, strict=True)):
            outputs, inputs = self._of(op, placement.degrees)
            come.append(np.minimum(outputs, whole) if stays is None else whole - stays)
            others = [
                nbytes
                for (u, _), nbytes in zip(self._into[op], inputs, strict=True)
                if schedule.stage[u] != schedule.stage[op]
            ]
            got.append(sum(others, np.zeros(len(whole))))
        activations = np.concatenate(come)
        return Held(np.concatenate(memory) - activations, activations, np.concatenate(got))

    def _of(self, op: int, degrees: tuple[int, ...]) -> tuple[F64, list[F64]]:
        """Bytes of all outputs, and of each input that another operator gives, of every part."""
        known = self._known.get((op, degrees))
        if known is None:
            operator = self._graph.operators[op]

            def nbytes(tensor: Tensor) -> F64:
                return slice_elements(operator, tensor, degrees).astype(np.float64) * tensor.itemsize

            outputs = [nbytes(tensor) for tensor in operator.outputs]
            known = np.sum(outputs, axis=0), [nbytes(operator.inputs[into]) for _, into in self._into[op]]
            self._known[op, degrees] = known
        return known


def scheduled_peak(
    schedule: Schedule, held: Held, stage: I32, device: I32, weight_gradient: F64, n_devices: int
) -> F64:
    """Return the (D,) most bytes that each device holds at a time.

    Args:
        schedule: which fits the parts.
        held: bytes of every part.
        stage, device, weight_gradient: (P,) of every part; see `topoplan_engine.lowering.pipeline.scheduled`.
        n_devices: of the cluster.
    """
    steps = steps_under(schedule, stage, weight_gradient)
    runs = runs_of(schedule, steps, stage, device, n_devices)
    # Within a block memory only grows, or only shrinks, so that the most is in use between two of them.
    change = np.bincount(runs.block_of, _changes(steps, held) / schedule.micro_batches, len(runs.task_ptr) - 1)
    level = np.cumsum(change[runs.block])
    peak = np.bincount(device, held.kept, n_devices).astype(np.float64)
    before = 0.0
    for d in np.flatnonzero(np.diff(runs.device_ptr)).tolist():
        rows = level[runs.device_ptr[d] : runs.device_ptr[d + 1]]
        peak[d] += max(0.0, float(rows.max()) - before)
        before = float(rows[-1])
    return peak


def divided(strategy: Strategy, pieces: Sequence[OperatorPiece], slices: Slices, total: F64) -> MemoryUse:
    """Return by what it is for what a strategy without a program keeps.

    Args:
        strategy: with or without a schedule.
        pieces: of every operator.
        slices: of the graph.
        total: (D,) the most bytes that each device holds at a time.
    """
    schedule = strategy.schedule
    memory, kept = [piece.memory for piece in pieces], [piece.kept for piece in pieces]
    held = slices.held(strategy.placements, memory, kept, schedule)
    device = np.concatenate([piece.devices for piece in pieces])

    def on_devices(rows: F64) -> F64:
        return np.bincount(device, rows, len(total)).astype(np.float64)

    known = np.concatenate([np.full(len(piece.devices), piece.states is not None) for piece in pieces])
    rows = [np.zeros((3, len(piece.devices))) if piece.states is None else piece.states for piece in pieces]
    of_batch = on_devices(held.activations)
    in_use = total - on_devices(held.kept)
    return MemoryUse.of(
        total,
        np.stack([on_devices(row) for row in np.concatenate(rows, axis=1)]),
        on_devices(np.where(known, 0.0, held.kept)),
        None if schedule.trivial else np.divide(in_use, of_batch, out=np.zeros(len(total)), where=of_batch > 0),
    )


def memory_curve(
    taskgraph: TaskGraph, timeline: Timeline, strategy: Strategy, graph: OperatorGraph, costs: CostFunction
) -> MemoryCurve:
    """Return what a simulated iteration keeps in memory over time.

    Args:
        taskgraph: lowered from ``strategy`` by `topoplan_engine.lowering.Lowering`.
        timeline: of it, from any simulator.
        strategy: with or without a schedule.
        graph, costs: the model, and what its parts keep.
    """
    placements, operators = strategy.placements, graph.operators
    schedule = strategy.schedule
    prices = [costs.price(op, placement.degrees, placement.devices) for op, placement in enumerate(placements)]
    held = Slices(graph).held(
        placements, [price.memory for price in prices], [price.kept for price in prices], schedule
    )
    gradient = [weight_seconds(operator, price) for operator, price in zip(operators, prices, strict=True)]
    stage = np.repeat(schedule.stage, [placement.parts for placement in placements])
    device = np.concatenate([placement.devices for placement in placements])
    count = schedule.micro_batches
    ordered = Schedule.whole_batch(len(operators)) if schedule.trivial else schedule
    steps = steps_under(ordered, stage, np.concatenate(gradient))
    change = np.tile(_changes(steps, held) / count, count)
    # Micro-batches lie one after the other, at equal distances.
    distance = (taskgraph.n_tasks - int((taskgraph.group >= 0).sum())) // count
    task = (np.arange(count)[:, None] * distance + np.arange(len(steps.part))).ravel()
    where = np.tile(device[steps.part], count)
    time = timeline.finish[task]
    # What begins and what ends at one time is counted together.
    order = np.lexsort((-change, time, where))
    where, time = where[order], time[order]
    kept = np.bincount(device, held.kept, taskgraph.n_devices).astype(np.float64)
    level = np.cumsum(change[order])
    first = np.searchsorted(where, where)
    used = kept[where] + level - np.where(first > 0, level[first - 1], 0.0)
    peak = kept.copy()
    np.maximum.at(peak, where, used)
    return MemoryCurve(kept, peak, where, time, used)


def _changes(steps: Steps, held: Held) -> F64:
    """(K,) bytes of the whole batch that are in use after each compute task and not before."""
    has = steps.task >= 0
    again, split = has[:, Pass.AGAIN], has[:, Pass.WEIGHTS]
    after = np.zeros((len(again), 4))
    after[:, Pass.FORWARD] = np.where(again, held.inputs, held.activations)
    after[:, Pass.AGAIN] = held.activations
    freed = -(after[:, Pass.FORWARD] + np.where(again, held.activations, 0.0))
    after[:, Pass.BACKWARD], after[:, Pass.WEIGHTS] = np.where(split, 0.0, freed), freed
    changes: F64 = after[steps.part, steps.kind]
    return changes
