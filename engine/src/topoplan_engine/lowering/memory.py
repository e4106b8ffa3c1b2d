"""Memory of strategies whose operators are placed: peak bytes by the order of passes, and bytes over time.

The weights of a part, with all that belongs to them, stay throughout.  Its activations of one micro-batch, a share of
those of the whole batch, live from the end of its forward pass to the end of its last backward one.  Where a stage
recomputes, a part holds its inputs from other stages in between, and its activations from the second forward pass
on.  Gradients of activations come and go within a backward pass (`topoplan_engine.lowering.gradient_peaks`).  Devices
run passes in a fixed order, so that the peak does not depend on how long passes take.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.graph import OperatorGraph, Tensor
from topoplan.model.pass_order import Pass, PassOrder
from topoplan.model.placement import Placement
from topoplan.model.recording import MemoryUse
from topoplan.model.strategy import Strategy
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan.model.timeline import Timeline
from topoplan_engine.lowering.alone import is_alone, late_gradients
from topoplan_engine.lowering.fragment_cache import FragmentCache
from topoplan_engine.lowering.fragments import OperatorFragment
from topoplan_engine.lowering.gradient_peaks import GradientOrder, gradient_bytes, last_readers, rises
from topoplan_engine.lowering.memory_levels import Activations, Changes, activations_of
from topoplan_engine.lowering.order import UNORDERED, Steps, order_of, steps_under
from topoplan_engine.lowering.pass_peaks import WHOLE, peaks_of
from topoplan_engine.partition import slice_elements

__all__ = [
    "PartBytes",
    "Peak",
    "TensorBytes",
    "memory_use_of",
    "placed_activations",
    "placed_memory_use",
    "scheduled_peak",
]


class PartBytes(NamedTuple):
    """(P,) bytes of each part, of the whole batch: persistent, activations, and inputs from other stages.

    ``gradients`` are (2, P), see `topoplan.model.costs.PartCosts`; None where nothing is counted for them.
    """

    persistent: F64
    activations: F64
    inputs: F64
    gradients: F64 | None


class Peak(NamedTuple):
    """(D,) bytes that each device holds at most, and those of gradients of activations among them.

    ``weight_gradients`` are (D,) those of gradients of weights among them; None where these stay throughout.
    """

    total: F64
    gradients: F64
    weight_gradients: F64 | None = None


class TensorBytes:
    """Bytes of the slices of a graph's tensors that parts of its operators hold; cached for every cut."""

    def __init__(self, graph: OperatorGraph) -> None:
        self._graph = graph
        self._sources: list[list[tuple[int, int, int]]] = [[] for _ in graph.operators]
        for u, output, v, argument in graph.edges.reshape(-1, 4).tolist():
            self._sources[v].append((u, output, argument))
        self._slices: dict[tuple[int, tuple[int, ...]], tuple[F64, list[F64]]] = {}

    def of_parts(self, placements: Sequence[Placement], costs: Sequence[OperatorFragment], stage_of: I32) -> PartBytes:
        """Divide the memory of every operator's parts; if their costs do not say what stays, outputs do not."""
        activations, inputs = [], []
        holders: set[tuple[object, ...]] = set()
        for op, (placement, cost) in enumerate(zip(placements, costs, strict=True)):
            output_bytes, input_bytes = self._of_operator(op, placement.degrees)
            activations.append(np.minimum(output_bytes, cost.memory) if cost.kept is None else cost.memory - cost.kept)
            from_stages = np.zeros(len(cost.memory))
            for source, nbytes in zip(self._sources[op], input_bytes, strict=True):
                # What several operators on the same devices read is there once.
                holder = source[:2], int(stage_of[op]), placement.devices.tobytes(), nbytes.tobytes()
                if stage_of[source[0]] != stage_of[op] and holder not in holders:
                    holders.add(holder)
                    from_stages += nbytes
            inputs.append(from_stages)
        activation_column = np.concatenate(activations)
        persistent = np.concatenate([cost.memory for cost in costs]) - activation_column
        return PartBytes(persistent, activation_column, np.concatenate(inputs), gradient_bytes(costs))

    def _of_operator(self, op: int, degrees: tuple[int, ...]) -> tuple[F64, list[F64]]:
        """(P,) bytes of all outputs, and of each input that comes from another operator."""
        slices = self._slices.get((op, degrees))
        if slices is None:
            operator = self._graph.operators[op]

            def nbytes(tensor: Tensor) -> F64:
                return slice_elements(operator, tensor, degrees).astype(np.float64) * tensor.itemsize

            outputs = [nbytes(tensor) for tensor in operator.outputs]
            slices = np.sum(outputs, axis=0), [nbytes(operator.inputs[place]) for *_, place in self._sources[op]]
            self._slices[op, degrees] = slices
        return slices


def scheduled_peak(
    passes: PassOrder,
    part_bytes: PartBytes,
    order: GradientOrder,
    op_ptr: I32,
    stage: I32,
    device: I32,
    weight_gradient: F64,
    n_devices: int,
) -> Peak:
    """Return the peak of the bytes that each device holds.

    Args:
        passes: the order of those of the stages of the parts.
        part_bytes: of every part.
        order: of the graph's gradients.
        op_ptr: (n_ops + 1,) first part of each operator.
        stage, device, weight_gradient: (P,) of every part; see `topoplan_engine.lowering.pipeline.scheduled_taskgraph`.
        n_devices: of the cluster.
    """
    steps, n_chunks = steps_under(passes, stage, weight_gradient), passes.n_chunks
    slot, changes = device * n_chunks + stage, _changes(steps, part_bytes)
    place = (device[steps.part] * WHOLE + steps.kind) * n_chunks + stage[steps.part]
    change = np.zeros((n_devices, WHOLE + 1, n_chunks))
    change[:, :WHOLE] = np.bincount(place, changes, n_devices * WHOLE * n_chunks).reshape(n_devices, WHOLE, n_chunks)
    change[:, WHOLE] = change[:, Pass.BACKWARD] + change[:, Pass.WEIGHTS]
    change, rise = change / passes.n_micro_batches, np.zeros((n_devices, n_chunks))
    if part_bytes.gradients is not None:
        freed, backward = np.zeros(len(device)), steps.kind == Pass.BACKWARD
        freed[steps.part[backward]] = -changes[backward]
        raised = rises(order, op_ptr, slot, part_bytes.gradients, freed, n_devices * n_chunks)
        rise = raised.reshape(n_devices, n_chunks) / passes.n_micro_batches
    total = np.bincount(device, part_bytes.persistent, n_devices).astype(np.float64)
    gradients = np.zeros(n_devices)
    devices, first = np.unique(device, return_index=True)
    peak = peaks_of(passes, passes.rank_of[stage[first]], change[None, devices], rise[devices])
    total[devices] += peak.most
    kind, chunk = passes.kind[peak.row].astype(np.int64), passes.chunk[peak.row]
    # Gradients that wait for a pass of their own are as much at the end of a backward pass; they are activations then.
    raises = (kind == Pass.BACKWARD) & (peak.row >= 0) & (rise[devices, chunk] > change[devices, kind, chunk])
    gradients[devices] = np.where(raises, rise[devices, chunk], 0.0)
    return Peak(total, gradients)


def memory_use_of(total: F64, states: F64, undivided: F64, at_once: F64 | None = None) -> MemoryUse:
    """Divide the bytes that devices hold by their use; activations are the rest.

    Args:
        total: (D,) bytes.
        states: (3, D) bytes of weights, gradients and optimizer state.
        undivided: (D,) bytes that stay throughout, of which no more is known.
        at_once: (D,) share of the batch; 1 unless given.
    """
    weights, gradients, optimizer = np.rint(states)
    unknown = np.rint(undivided)
    remainder = np.rint(total) - weights - gradients - optimizer - unknown
    return MemoryUse(
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        # A negative remainder comes from rounding, and belongs to what was rounded.
        activations=np.maximum(remainder, 0.0),
        undivided=unknown,
        at_once=np.ones(len(total)) if at_once is None else at_once,
    )


def placed_memory_use(
    strategy: Strategy, fragments: Sequence[OperatorFragment], tensor_bytes: TensorBytes, peak: Peak
) -> MemoryUse:
    """Return the bytes of a strategy whose operators are placed, by their use.

    Args:
        strategy: placements, with or without a schedule.
        fragments: of every operator.
        tensor_bytes: of the graph.
        peak: of the bytes that each device holds.
    """
    total = peak.total
    part_bytes = tensor_bytes.of_parts(strategy.placements, fragments, strategy.stage_of)
    device = np.concatenate([fragment.devices for fragment in fragments])

    def on_devices(rows: F64) -> F64:
        return np.bincount(device, rows, len(total)).astype(np.float64)

    divided = np.concatenate([np.full(len(fragment.devices), fragment.states is not None) for fragment in fragments])
    states = [
        np.zeros((3, len(fragment.devices))) if fragment.states is None else fragment.states for fragment in fragments
    ]
    of_batch = on_devices(part_bytes.activations)
    in_use = total - on_devices(part_bytes.persistent) - peak.gradients
    state_bytes = np.stack([on_devices(row) for row in np.concatenate(states, axis=1)])
    if peak.weight_gradients is not None:
        state_bytes[1] = peak.weight_gradients
    return memory_use_of(
        total,
        state_bytes,
        on_devices(np.where(divided, 0.0, part_bytes.persistent)),
        None if order_of(strategy) is None else _quotient(in_use, of_batch),
    )


def _quotient(part: F64, whole: F64) -> F64:
    return np.divide(part, whole, out=np.zeros(len(whole)), where=whole > 0)


def placed_activations(
    taskgraph: TaskGraph,
    timeline: Timeline,
    strategy: Strategy,
    use: MemoryUse,
    operators: Sequence[OperatorFragment],
    fragments: FragmentCache,
) -> Activations:
    """Return the bytes over time, in a simulated iteration, but for what stays throughout by ``use``.

    Args:
        taskgraph: lowered from ``strategy`` by `topoplan_engine.lowering.Lowering`.
        timeline: of it, from any simulator.
        strategy: placements, with or without a schedule.
        use: of its memory.
        operators: fragments of all operators, with copies of weights that stages share.
        fragments: of the model.
    """
    graph, order, count = fragments.graph, order_of(strategy), strategy.micro_batches
    part_bytes = TensorBytes(graph).of_parts(strategy.placements, operators, strategy.stage_of)
    device, gradient = (
        np.concatenate([getattr(each, name) for each in operators]) for name in ("devices", "weight_gradient")
    )
    op = np.repeat(np.arange(len(operators)), [len(each.devices) for each in operators])
    arguments = UNORDERED if order is None else order, strategy.stage_of[op], gradient
    steps = steps_under(*arguments)
    is_run = steps_under(*arguments, fragments.passes.operators[op]).task[steps.part, steps.kind] >= 0
    tasks = np.flatnonzero(np.isin(taskgraph.kind, (TaskKind.FORWARD, TaskKind.BACKWARD)))
    start, end = (
        _times_of_steps(steps, device, is_run, times[tasks].reshape(count, -1))
        for times in (timeline.start, timeline.finish)
    )
    has_gradients = part_bytes.gradients is not None
    changes = [
        Changes(
            np.tile(device[steps.part], count),
            end.ravel(),
            np.tile(_changes(steps, part_bytes) / count, count),
            np.tile((steps.kind == Pass.BACKWARD) & has_gradients, count),
        )
    ]
    resting = np.bincount(device, part_bytes.persistent, taskgraph.n_devices).astype(np.float64) - (
        use.weights + use.gradients + use.optimizer + use.undivided
    )
    if part_bytes.gradients is not None:
        backward = steps.task[:, Pass.BACKWARD]
        passes, nbytes = (start[:, backward], end[:, backward]), part_bytes.gradients / count
        changes.append(_gradient_changes(graph, op, strategy.stage_of, device, nbytes, *passes))
        if order is None and is_alone(graph, fragments.cluster):
            throughout, late = late_gradients(graph, operators, start[0, backward], timeline.makespan)
            changes.append(late)
            resting = resting + throughout
    return activations_of(changes, resting)


def _times_of_steps(steps: Steps, device: I32, is_run: np.ndarray, times: F64) -> F64:
    """(micro-batches, K) when each step of each micro-batch ends, of which some are no tasks.

    What a part without a backward pass keeps is freed with the last backward task of its device, or at once where there
    is none.

    Args:
        steps: of parts that all run backward.
        device: (P,) of every part.
        is_run: (K,) whether there are tasks for each step; of what is not trained there are none.
        times: (micro-batches, tasks) ends of the tasks, or their starts.
    """
    times = times[:, np.where(is_run, np.cumsum(is_run) - 1, 0)]
    if not is_run.all():
        back = np.flatnonzero(is_run & (steps.kind >= Pass.BACKWARD))
        forward = steps.task[steps.part[~is_run], Pass.FORWARD]
        for row in times:
            last = np.full(int(device.max()) + 1, -1.0)
            np.maximum.at(last, device[steps.part[back]], row[back])
            row[~is_run] = np.maximum(last[device[steps.part[~is_run]]], row[forward])
    return times


def _gradient_changes(
    graph: OperatorGraph, op: I64, stage: I32, device: I32, gradients: F64, start: F64, end: F64
) -> Changes:
    """Return when gradients come and go; see `topoplan_engine.lowering.gradient_peaks`.

    The gradient of an output is there when the pass that makes it has ended, at the latest when the pass that reads it
    begins; it goes with that.  One that another stage makes is there when the backward pass of its own stage begins.
    What a pass makes beside it comes and goes with the pass.

    Args:
        graph: the model.
        op, device: (P,) of every part; ``stage`` (n_ops,) of every operator.
        gradients: (2, P) bytes of a micro-batch.
        start, end: (micro-batches, P) of the backward passes.
    """
    reader = last_readers(graph.edges.reshape(-1, 4)[:, [0, 2]], len(stage))[op]
    slot = device * (int(stage.max()) + 1) + stage[op]
    rows = np.arange(len(start))[:, None]
    ended, pass_begins = np.zeros((len(start), len(stage))), np.full((len(start), int(slot.max()) + 1), np.inf)
    np.maximum.at(ended, (rows, op), end)
    np.minimum.at(pass_begins, (rows, slot), start)
    from_stage = stage[reader] != stage[op]
    arrival = np.where(from_stage, pass_begins[:, slot], np.minimum(ended[:, reader], start))
    outputs, extras = np.tile(gradients, len(start))
    return Changes.of_gradients(
        np.tile(device, len(start)), arrival.ravel(), start.ravel(), end.ravel(), outputs, extras
    )


def _changes(steps: Steps, part_bytes: PartBytes) -> F64:
    """(K,) bytes of the whole batch that are in use after each compute task and not before."""
    has = steps.task >= 0
    recompute, split = has[:, Pass.RECOMPUTE], has[:, Pass.WEIGHTS]
    after = np.zeros((len(recompute), 4))
    after[:, Pass.FORWARD] = np.where(recompute, part_bytes.inputs, part_bytes.activations)
    after[:, Pass.RECOMPUTE] = part_bytes.activations
    freed = -(after[:, Pass.FORWARD] + np.where(recompute, part_bytes.activations, 0.0))
    # The gradients of weights are made of those of outputs, which stay until then.
    outputs = 0.0 if part_bytes.gradients is None else part_bytes.gradients[0]
    after[:, Pass.BACKWARD], after[:, Pass.WEIGHTS] = np.where(split, outputs, freed), freed - outputs
    changes: F64 = after[steps.part, steps.kind]
    return changes
