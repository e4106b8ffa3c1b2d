"""Memory of staged strategies: the most that a device holds while its rank runs its passes in their order.

What belongs to weights stays throughout; ZeRO divides the optimizer's state, and gradients, among the devices that
share them.  Activations of a micro-batch come with its forward pass and go with its backward pass, or with that of the
gradients of weights where it is one of its own.  Of operators that run again only what others read stays, and what
comes from another stage.  Within a backward pass gradients of activations, and what is computed again, come and go
(`topoplan_engine.lowering.gradient_peaks`).  Ranks run passes in a fixed order, so that the peak does not depend on how
long they take.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import attrs
import numpy as np

from topoplan.arrays import F64, I32, I64, i32
from topoplan.model.graph import OperatorGraph
from topoplan.model.pass_order import Pass, PassOrder
from topoplan.model.recording import MemoryUse
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan.model.timeline import Timeline
from topoplan_engine.distinct import distinct_columns
from topoplan_engine.equal_operators import first_equal
from topoplan_engine.lowering.gather_units import gather_units, parts_of
from topoplan_engine.lowering.gradient_peaks import Rise, last_readers, levels_in_backward, rise_in_backward
from topoplan_engine.lowering.memory import memory_use_of
from topoplan_engine.lowering.memory_levels import Activations, Changes, activations_of
from topoplan_engine.lowering.pass_peaks import WHOLE, peaks_of
from topoplan_engine.lowering.spmd_costs import DeviceCosts, OperatorBytes, gradients_of, operator_bytes
from topoplan_engine.lowering.stage_buffers import (
    Shape,
    accumulated_gradients,
    gather_pool,
    gathered_in_backward,
    handed_on,
    kept_for_weights,
    kept_in_other_slices,
    made_in_backward,
    pipeline_buffers,
    placeholders,
    received_again,
    regions_without_outputs,
)
from topoplan_engine.lowering.stage_costs import StageCosts
from topoplan_engine.pass_orders import backward_at_once
from topoplan_engine.recomputation import kept_in
from topoplan_engine.sharding.programs import pieces
from topoplan_engine.sharding.stage_graphs import StageGraph
from topoplan_engine.tied import TiedWeight
from topoplan_engine.trainer_kernels import kernels_of, products_in_fp8
from topoplan_engine.training import gradient_flow, is_view, tensors_read

__all__ = ["StageBytes", "StagedPeak", "staged_activations", "staged_memory_use", "staged_peak"]


#: How much smaller a number in fp8 is than one in the precision of activations.
_SMALLER = 2


class StagedPeak(NamedTuple):
    """(D,) bytes that each device holds at most, and what of them comes and goes.

    Attributes:
        total: all of them.
        gathered: weights that are put together for a pass and given back, among them.
        summed: gradients that are summed whole from the first backward pass of a stage to its last one, among them.
        at_once: activations at that time over those of the whole batch, if everything were kept.
    """

    total: F64
    gathered: F64
    summed: F64
    at_once: F64


class StageBytes(NamedTuple):
    """Bytes of a stage on its devices, by places in its mesh; those of places that cost the same are one column of K.

    Attributes:
        devices: (D,) of the places.
        column: (D,) the column of each place.
        states: (3, K) bytes of weights, gradients and optimizer state.
        undivided: (K,) bytes that stay, of which no more is known.
        activations: (K,) of the whole batch, if everything is kept.
        change: (2, 5, K) bytes of one micro-batch that are there after each `Pass` and were not before: of activations,
            and of gradients that wait for those of weights; last after a backward pass with gradients of weights.
        rise: what a backward pass has at most beyond what is there at its begin.
        gathered: bytes of weights that are gathered for a forward pass and given back.
        placeholders: bytes of what stands for gradients of matrices throughout, by shape; a device has each once.
        whole: (K,) bytes of `states` that are on every device, however many share the rest: weights that stay once they
            are gathered.
        accumulated: bytes of gradients that are summed whole, from the first backward pass to the last one.
        levels: (n,) what a backward pass has beyond what is there at its begin, operator by operator.
    """

    devices: I32
    column: I64
    states: F64
    undivided: F64
    activations: F64
    change: F64
    rise: Rise
    gathered: float
    placeholders: Mapping[Shape, float] = MappingProxyType({})
    whole: F64 = np.zeros(1)
    accumulated: float = 0.0
    levels: F64 = np.zeros(0)

    @classmethod
    def of(
        cls,
        strategy: StagedStrategy,
        graph: OperatorGraph,
        number: int,
        stage: StageGraph,
        costs: StageCosts,
        crossing: Sequence[TiedWeight],
    ) -> StageBytes:
        """Return the bytes of a stage.

        Args:
            strategy, graph: what is lowered.
            number: of the stage.
            stage: its graph.
            costs: of its operators.
            crossing: weights that stages share.
        """
        prices, equal = costs.passes, [*map(first_equal(graph).__getitem__, stage.stage.operators.tolist())]
        rows = operator_bytes(stage.stage.program, _alone(graph, stage.stage.operators), list(prices), equal)
        states, undivided = _states(stage, prices, rows)
        states += _copies(strategy, graph, number, prices, crossing)
        separate, at_once = strategy.order.row_of[:, number] >= 0, bool(backward_at_once(strategy.order, number).all())
        tensors = _Held.of(strategy, graph, number, stage, prices, rows)
        split = tensors.split if separate[Pass.WEIGHTS].any() else np.zeros(len(rows), dtype=np.bool_)
        has_pass = separate[Pass.RECOMPUTE].any()
        activations = np.stack([row.activations for row in rows]) + (more := kept_in_other_slices(stage))[:, None]
        regions, boundary = stage.stage.regions, tensors.kept[:, None]
        freed = np.where(regions[:, None] >= 0, np.maximum(activations, boundary), activations + boundary)
        freed = freed + tensors.received[:, None]
        change, waiting = np.zeros((2, WHOLE + 1, activations.shape[1]))
        after = np.where(regions[:, None] >= 0, boundary + tensors.received[:, None], freed)
        repeated = (freed - after)[regions >= 0].sum(axis=0)
        change[Pass.FORWARD] = after.sum(axis=0)
        change[Pass.RECOMPUTE if has_pass else Pass.BACKWARD] = repeated
        change[WHOLE] = change[Pass.BACKWARD] - freed.sum(axis=0)
        late = _late(stage, split, freed, more)
        change[Pass.BACKWARD] -= (freed - late).sum(axis=0)
        change[Pass.WEIGHTS] = -late.sum(axis=0)
        change[[Pass.FORWARD, Pass.BACKWARD, WHOLE]] += np.array([[1], [-1], [-1]]) * handed_on(strategy, stage)
        waiting[Pass.BACKWARD] = (of_outputs := np.where(split, tensors.waiting, 0.0)).sum()
        waiting[Pass.WEIGHTS] = -waiting[Pass.BACKWARD]
        temporary = (gathered := gathered_in_backward(stage)) + made_in_backward(stage, strategy.micro_batches)
        entered = np.zeros(len(rows)) if has_pass else tensors.entered(stage, (freed - after).min(axis=1))
        in_pass = (freed - late).min(axis=1) - of_outputs, entered, temporary
        levels = levels_in_backward(*tensors.gradients, *in_pass, strategy.micro_batches)
        return cls(
            devices=stage.stage.mesh.devices,
            column=costs.column,
            states=states,
            whole=np.full(states.shape[1], sum(row.gathered for row in rows)),
            accumulated=accumulated_gradients(stage, strategy.micro_batches, at_once=at_once),
            undivided=undivided + pipeline_buffers(stage, strategy.order.rank_of) + gather_pool(stage),
            activations=activations.sum(axis=0),
            change=np.stack([change, waiting]) / strategy.micro_batches,
            rise=Rise.of(levels, temporary),
            levels=levels,
            gathered=float(gathered.max(initial=0.0)),
            placeholders=placeholders(stage),
        )

    @classmethod
    def of_program(
        cls, strategy: StagedStrategy, graph: OperatorGraph, stage: StageGraph, costs: StageCosts
    ) -> StageBytes:
        """Return the bytes of a program with one stream, whose whole batch runs forward, and then back (`UNORDERED`).

        The state of parameters shrinks with the slices in which they are stored; gathered parameters stay until the
        backward pass, unless they are given back.  With sharded state, a device holds only its own share of everything
        but the parameters.

        Args:
            strategy, graph: what is lowered.
            stage: the program as one stage.
            costs: of its operators.
        """
        prices = costs.passes
        rows = operator_bytes(stage.program, graph, prices)
        states, undivided = _states(stage, prices, rows)
        activations = np.stack([row.activations for row in rows])
        total = activations.sum(axis=0)
        change = np.zeros((2, WHOLE + 1, len(total)))
        change[0, Pass.FORWARD], change[0, WHOLE] = total, -total
        return cls(
            devices=stage.stage.mesh.devices,
            column=costs.column,
            states=states,
            undivided=undivided,
            activations=total,
            change=change,
            rise=_rise_of_turns(strategy, graph, gradients_of(prices), activations.min(axis=1)),
            gathered=0.0,
        )

    @property
    def resting(self) -> F64:
        """(K,) bytes at the end of the forward pass of the whole batch, if everything is kept."""
        nbytes: F64 = self.states.sum(axis=0) + self.undivided + self.activations
        return nbytes


def _rise_of_turns(strategy: StagedStrategy, graph: OperatorGraph, gradients: F64, freed: F64) -> Rise:
    """Return what the backward passes of micro-batches that take turns in the parts of a program have at most.

    Args:
        strategy, graph: what is lowered.
        gradients, freed: (2, n_ops) and (n_ops,) bytes of the batch.
    """
    count, part, n_ops = strategy.micro_batches, parts_of(strategy), len(graph.operators)
    op, micro_batch = np.repeat(np.arange(n_ops), count), np.tile(np.arange(count), n_ops)
    order = np.lexsort((op, micro_batch, part[op]))
    place = np.empty((n_ops, count), dtype=np.int64)
    place[op[order], micro_batch[order]] = np.arange(len(order))
    edges = place[graph.edges.reshape(-1, 4)[:, [0, 2]]].transpose(0, 2, 1).reshape(-1, 2)
    outputs, extras, freed = (each[op[order]] / count for each in (*gradients, freed))
    zeros, units = np.zeros(len(order)), gather_units(strategy, graph)
    gathered = zeros if units is None else units.in_backward()[op[order]]
    return rise_in_backward(last_readers(edges, len(order)), outputs, extras, freed, zeros, gathered)


def _late(stage: StageGraph, split: np.ndarray, freed: F64, slices_more: F64) -> F64:
    """(n, K) bytes of what operators free that wait for gradients of weights, which those that are ``split`` have.

    With kernels of a trainer what these read; else, as placed operators count it, what they have made.
    """
    if kernels_of(stage.graph) is None:
        return np.where(split[:, None], freed, 0.0)
    nbytes: F64 = np.minimum(freed, kept_for_weights(stage, split, slices_more)[:, None])
    return nbytes


def _alone(graph: OperatorGraph, operators: I32) -> OperatorGraph:
    """Return some operators of a graph, without what is between them."""
    chosen = tuple(graph.operators[op] for op in operators.tolist())
    return attrs.evolve(graph, operators=chosen, edges=i32(np.zeros((0, 4))))


class _Held(NamedTuple):
    """What operators of a stage hold, in its order; bytes of the whole batch on a device.

    Attributes:
        kept: (n,) of outputs of operators that run again, as far as operators outside of their region read them; and
            of outputs that nothing but a region's forward pass reads again.
        received: (n,) of what comes from other stages to operators that run again.
        outputs, extras: (n,) gradients of outputs, and what a backward pass makes beside them.
        made_by: (n,) the operator of the stage whose backward pass makes the gradient of the output; n where it is
            there before, -1 where there is none.
        split: (n,) whether the gradients of its weights are computed apart, if any are.
        waiting: (n,) gradients of outputs as they wait for these.
    """

    kept: F64
    received: F64
    outputs: F64
    extras: F64
    made_by: np.ndarray
    split: np.ndarray
    waiting: F64

    @classmethod
    def of(
        cls,
        strategy: StagedStrategy,
        graph: OperatorGraph,
        number: int,
        stage: StageGraph,
        prices: Sequence[DeviceCosts],
        rows: Sequence[OperatorBytes],
    ) -> _Held:
        n, regions, stage_of = (
            len(rows),
            stage.stage.regions,
            strategy.stage_of_copies[strategy.copy_of[number]].tolist(),
        )
        place = {op: position for position, op in enumerate(stage.stage.operators.tolist())}
        boundary, received, made_by = np.zeros(n), np.zeros(n), np.full(n, -1)
        stored: set[tuple[int, int]] = set()
        arguments = _arguments_read(graph) if (regions >= 0).any() else ()
        read_again = _read_again(graph, arguments) if arguments else frozenset()
        without_outputs = regions_without_outputs(stage)
        unneeded = _unneeded(stage, read_again)
        for u, output, v, argument in graph.edges.reshape(-1, 4).tolist():
            if stage_of[u] != number:
                continue
            if stage_of[v] != number:
                made_by[place[u]] = n
                continue
            made_by[place[u]] = max(made_by[place[u]], place[v])
            region, reader = int(regions[place[u]]), int(regions[place[v]])
            reader = max(reader, kept_in(reader)) if region >= 0 else reader
            if region >= 0:  # what a sum outside makes of it stays, and it does not
                read = reader != region and (reader >= 0 or argument in arguments[v])
            else:
                read = reader >= 0 and (u, output) not in read_again
            read &= region not in without_outputs and (place[u], output) not in unneeded
            if read and (u, output) not in stored:
                stored.add((u, output))
                slices = pieces(stage.stage.program, stage.stage.program.made(place[u], output))
                boundary[place[u]] += graph.operators[u].outputs[output].nbytes / slices
        for op, link in stage.receives.items():
            if repeated := received_again(strategy, stage, op):
                tensor = graph.operators[link.op].outputs[link.output]
                received[repeated[0]] += tensor.nbytes / pieces(stage.program, link.arrives)
        outputs, extras = gradients_of(prices)
        split = np.array([bool((price.weight_gradient > 0).any()) for price in prices])
        narrow = products_in_fp8(graph)
        smaller = [1 / _SMALLER if op in narrow else 1.0 for op in stage.stage.operators.tolist()]
        return cls(boundary, received, outputs, extras, made_by, split, outputs * smaller)

    @property
    def gradients(self) -> tuple[np.ndarray, F64, F64]:
        """``made_by``, ``outputs`` and ``extras``."""
        return self.made_by, self.outputs, self.extras

    def entered(self, stage: StageGraph, nbytes: F64) -> F64:
        """(n,) bytes that come before the backward pass of each operator: of regions that run again."""
        result = np.zeros(len(nbytes))
        for members, first in self.repeated(stage):
            result[first] += nbytes[members].sum()
        return result

    def repeated(self, stage: StageGraph) -> Iterator[tuple[I64, int]]:
        """Yield the members of each region that runs again, and the operator before whose backward pass it does."""
        regions, without_outputs = stage.stage.regions, regions_without_outputs(stage)
        for region in np.unique(regions[regions >= 0]).tolist():
            members = np.flatnonzero(regions == region)
            reader = min(int(self.made_by[members].max()), len(regions) - 1)
            yield members, max(int(members[-1]), reader if region in without_outputs else 0)


def _arguments_read(graph: OperatorGraph) -> tuple[Collection[int], ...]:
    """(n_ops) the arguments that the backward pass of each operator reads; all of one without work."""
    flow = gradient_flow(graph)
    return tuple(
        (tensors_read(op, (*inputs, *weights))[0] if op.work else range(len(op.inputs))) if backward else ()
        for op, inputs, weights, backward in zip(graph.operators, flow.inputs, flow.weights, flow.backward, strict=True)
    )


def _read_again(graph: OperatorGraph, arguments: Sequence[Collection[int]]) -> frozenset[tuple[int, int]]:
    """Return the outputs of operators that backward passes read, by themselves or through operators without work.

    Views of these are among them, which have no bytes of their own.

    Args:
        graph: the model.
        arguments: that backward passes read (`_arguments_read`).
    """
    flow = gradient_flow(graph)
    read = {
        (index, output)
        for index, op in enumerate(graph.operators)
        for output in tensors_read(op, (*flow.inputs[index], *flow.weights[index]))[1]
    }
    edges = graph.edges.reshape(-1, 4).tolist()
    read |= {(u, output) for u, output, v, k in edges if k in arguments[v]}
    for u, output, v, _ in edges:  # in the order of operators
        if (u, output) in read and is_view(graph.operators[v]):
            read |= {(v, place) for place in range(len(graph.operators[v].outputs))}
    return frozenset(read)


def _unneeded(stage: StageGraph, read_again: Collection[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    """Return outputs, by place in a stage, that a region is said to keep, and that none of its backward passes needs.

    Where layers are compiled these are not kept: a sum at the end of a layer needs no term of it.

    Args:
        stage: with its regions.
        read_again: outputs of the model's operators that backward passes read.
    """
    kernels, regions = kernels_of(stage.graph), stage.stage.regions.tolist()
    if kernels is None or not kernels.compiled or min(regions, default=-1) > -2:
        return frozenset()
    around, numbers = [max(region, kept_in(region)) for region in regions], stage.stage.operators.tolist()
    inside: dict[int, list[tuple[int, int]]] = {}
    needed: set[tuple[int, int]] = set()
    for u, output, v, argument in stage.graph.edges.reshape(-1, 4).tolist():
        maker, reader = stage.position[u], stage.position[v]
        if min(maker, reader) < 0 or around[maker] != around[reader]:
            continue
        inside.setdefault(reader, []).append((maker, output))
        if stage.backward[v] and argument in stage.arguments_read[v] and (numbers[maker], output) in read_again:
            needed.add((maker, output))
    makers_needed = {maker for maker, _ in needed}
    for reader in reversed(range(len(regions))):
        if regions[reader] >= 0 and reader in makers_needed:
            needed.update(inside.get(reader, ()))
            makers_needed.update(maker for maker, _ in inside.get(reader, ()))
    makers = {maker for places in inside.values() for maker in places}
    return frozenset(each for each in makers if regions[each[0]] < -1 and each not in needed)


def _shares(stage: StageGraph, position: int) -> float:
    """Return among how many devices ZeRO divides the state of an operator's weights."""
    zero = stage.stage.zero
    if not zero.level or not (operator := stage.graph.operators[stage.position.index(position)]).weights:
        return 1.0
    stored = stage.stage.program.stored[position][len(operator.inputs)]
    return float(math.prod(stage.program.mesh[axis] for axis in zero.axes if not stored[axis].sliced))


def _states(stage: StageGraph, prices: Sequence[DeviceCosts], rows: Sequence[OperatorBytes]) -> tuple[F64, F64]:
    """(3, D) bytes of weights, gradients and optimizer state of a stage, and (D,) of what is not divided."""
    states, undivided = np.zeros((3, len(rows[0].state))), np.zeros(len(rows[0].state))
    for position, (price, row) in enumerate(zip(prices, rows, strict=True)):
        if price.states is None:
            undivided += row.state + row.gathered
            continue
        states[0] += row.weights + row.gathered
        parts = price.states[1:]
        divided = parts / np.maximum(parts.sum(axis=0), 1e-300) * (row.state - row.weights)
        shares = _shares(stage, position)
        divided[1] /= shares
        if stage.stage.zero.level == 2:
            divided[0] /= shares
        states[1:] += divided
    return states, undivided


def _copies(
    strategy: StagedStrategy,
    graph: OperatorGraph,
    number: int,
    prices: Sequence[DeviceCosts],
    crossing: Sequence[TiedWeight],
) -> F64:
    """(3, 1) bytes of copies of other stages' weights: as many of gradients and state for each as in mixed Adam."""
    total = np.zeros((3, 1))
    stage = strategy.stages[number]
    of_weights = [price.states.sum(axis=1) for price in prices if price.states is not None and price.states.any()]
    each = of_weights[0] / of_weights[0][0] if of_weights and of_weights[0][0] else np.array([1.0, 0.0, 0.0])
    for tied in crossing:
        for op, argument in tied.users:
            if strategy.stage_of[op] != number or strategy.rank_of[op] == strategy.rank_of[tied.owner]:
                continue
            stored = stage.program.stored[int(np.searchsorted(stage.operators, op))][argument]
            nbytes = graph.operators[op].inputs[argument].nbytes / pieces(stage.program, stored)
            zero = math.prod(stage.program.mesh[axis] for axis in stage.zero.axes if not stored[axis].sliced)
            shares = np.array([1, zero if stage.zero.level == 2 else 1, zero])
            total += (each * nbytes / shares)[:, None]
            break
    return total


def staged_peak(order: PassOrder, stages: Sequence[StageBytes], n_devices: int, turns: int = 1) -> StagedPeak:
    """Return the peak of the bytes that each device holds; ``turns`` backward passes raise it at the same time."""
    total, gathered, summed, of_batch, in_use = np.zeros((5, n_devices))
    for stage in stages:
        total[stage.devices] += (stage.states.sum(axis=0) + stage.undivided)[stage.column]
        of_batch[stage.devices] += stage.activations[stage.column]
    total += placeholder_bytes(stages, n_devices)
    in_forward, accumulated = np.array([(stage.gathered, stage.accumulated) for stage in stages]).T
    rises, in_backward = np.array([stage.rise for stage in stages]).T
    kinds = [_kinds_of_devices(stages, np.flatnonzero(order.rank_of == rank)) for rank in range(order.n_ranks)]
    rank = np.repeat(np.arange(order.n_ranks), [each.change.shape[1] for each in kinds])
    change = np.concatenate([each.change for each in kinds], axis=1)
    rise = np.broadcast_to(turns * rises, (len(rank), len(stages)))
    peak = peaks_of(order, rank, change, rise, in_forward, accumulated)
    kind, chunk = order.kind[peak.row], order.chunk[peak.row]
    in_others = np.where(kind == Pass.WEIGHTS, 0.0, in_forward[chunk])
    gathers = np.where(kind == Pass.BACKWARD, in_backward[chunk], in_others)
    for number, each in enumerate(kinds):
        columns = np.flatnonzero(rank == number)[each.number]
        total[each.devices] += peak.most[columns]
        gathered[each.devices] = np.where(peak.row < 0, 0.0, gathers)[columns]
        summed[each.devices], in_use[each.devices] = peak.summed[columns], peak.kept[columns]
    at_once = np.divide(in_use, of_batch, out=np.zeros(n_devices), where=of_batch > 0)
    return StagedPeak(total, gathered, summed, at_once)


class _Kinds(NamedTuple):
    """The (D,) devices of a rank, ascending, the kind of each, and (2, K, 5, C) changes of bytes of each kind."""

    devices: I32
    number: I64
    change: F64


def _kinds_of_devices(stages: Sequence[StageBytes], chunks: I64) -> _Kinds:
    """Return the devices of a rank; those are of one kind that have the same columns of all its chunks."""
    of_chunk = np.stack([stages[number].column[np.argsort(stages[number].devices)] for number in chunks])
    distinct = distinct_columns(*of_chunk)
    change = np.zeros((2, len(distinct.first), WHOLE + 1, len(stages)))
    for number, column in zip(chunks.tolist(), of_chunk[:, distinct.first], strict=True):
        change[..., number] = stages[number].change[:, :, column].transpose(0, 2, 1)
    return _Kinds(np.sort(stages[chunks[0]].devices), distinct.number, change)


def staged_memory_use(stages: Sequence[StageBytes], peak: StagedPeak) -> MemoryUse:
    """Return the bytes of the peak by their use."""
    states, undivided = np.zeros((3, len(peak.total))), np.zeros(len(peak.total))
    for stage in stages:
        states[:, stage.devices] += stage.states[:, stage.column]
        undivided[stage.devices] += stage.undivided[stage.column]
    states[0] += peak.gathered
    states[1] += placeholder_bytes(stages, len(peak.total)) + peak.summed
    return memory_use_of(peak.total, states, undivided, peak.at_once)


def placeholder_bytes(stages: Sequence[StageBytes], n_devices: int) -> F64:
    """(D,) bytes that stand for gradients of matrices on each device, once for each shape that its stages have."""
    total, stages_of = np.zeros(n_devices), dict[bytes, list[StageBytes]]()
    for stage in stages:
        stages_of.setdefault(np.sort(stage.devices).tobytes(), []).append(stage)
    for members in stages_of.values():
        nbytes = {shape: size for stage in members for shape, size in stage.placeholders.items()}
        total[members[0].devices] += sum(nbytes.values())
    return total


def staged_activations(
    strategy: StagedStrategy, stages: Sequence[StageBytes], taskgraph: TaskGraph, timeline: Timeline
) -> Activations:
    """Return the bytes of activations over time, pass by pass: with the end of a forward pass they are there.

    From the begin of a backward pass to its end what it has at most is counted.
    """
    computes = np.flatnonzero(np.isin(taskgraph.kind, (TaskKind.FORWARD, TaskKind.BACKWARD)))
    count, devices = strategy.micro_batches, taskgraph.n_devices
    micro_batch = 0 if taskgraph.micro_batch is None else taskgraph.micro_batch[computes]
    first_of = np.unique(strategy.copy_of, return_index=True)[1]  # (copies,) the first stage of each
    copy_of = (strategy.order.row_of[Pass.FORWARD][first_of] >= 0).argmax(axis=0)  # (micro-batches,)
    stage_of = strategy.stage_of_copies[copy_of[micro_batch], taskgraph.op[computes]]
    slot = (stage_of * count + micro_batch) * devices + taskgraph.device[computes]
    forward = taskgraph.kind[computes] == TaskKind.FORWARD
    first, end = np.full((2, len(stages) * count * devices), np.inf)
    start, finish = timeline.start[computes], timeline.finish[computes]
    np.minimum.at(first, slot[~forward], start[~forward])
    end[:] = -np.inf
    np.maximum.at(end, slot[~forward], finish[~forward])
    forward_end = np.full(len(first), -np.inf)
    early = forward & (finish <= first[slot])
    np.maximum.at(forward_end, slot[early], finish[early])
    changes = np.zeros((2, len(stages), 1, devices))
    for number, stage in enumerate(stages):
        changes[0, number, 0, stage.devices] = stage.change[0, Pass.FORWARD][stage.column]
        changes[1, number, 0, stage.devices] = stage.rise.total
    activations, rise = np.broadcast_to(changes, (2, len(stages), count, devices)).reshape(2, -1)
    device = np.tile(np.arange(devices), len(stages) * count)
    some, back = np.isfinite(forward_end), np.isfinite(first)
    closed = np.where(back, end, forward_end)
    rows = [(some, forward_end, activations), (some, closed, -activations), (back, first, rise), (back, end, -rise)]
    return activations_of(
        [Changes(device[has], time[has], nbytes[has], np.zeros(has.sum(), bool)) for has, time, nbytes in rows]
    )
