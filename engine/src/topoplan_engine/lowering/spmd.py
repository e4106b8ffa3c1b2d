"""Lowering of SPMD programs: two streams on every device, in program order.

Every device runs its operators one after the other on a compute stream, and all reshardings one after the other on a
communication stream, both in an order that is the same on all devices; dependencies tie the streams together.
If the whole batch goes through at once, every operator is a stage of its own.  A duplex schedule with micro-batches
(`topoplan.model.schedule.ScheduleKind.DUPLEX`) has stages of several operators and several micro-batches: while one
micro-batch of a stage computes, another one communicates, as HiDup does it (Zhang et al., SoCC 2022, section 3.3; it
also lets the streams wait for each other between stages, which nothing here needs).

    forward    compute        C1 stage 1 | C2 stage 1 | C1 stage 2 | ...
               communication  X1 stage 1 | X2 stage 1 | X1 stage 2 | ...
    backward   the same from the end, micro-batches in the opposite order

Parameters are resharded once, with the first micro-batch; their gradients follow those of all micro-batches.
Gradients may share all-reduces (`SpmdProgram.gradient_bucket_bytes`).

All-reduces, all-gathers and reduce-scatters are tasks (`TaskGraph.collective`); all-to-alls are transfers of every
pair between two joins of their members, which take no time and no device.

An operator is priced as the placement that its signatures make; if they make fewer parts than there are devices,
several devices run the same part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.graph import OperatorGraph
from topoplan.model.problem import Demand
from topoplan.model.recording import MemoryUse
from topoplan.model.schedule import Schedule
from topoplan.model.sharding import arguments
from topoplan.model.spmd import SpmdProgram
from topoplan.model.strategy import SpmdStrategy
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.model.timeline import Timeline
from topoplan_engine.lowering.memory import memory_use_of
from topoplan_engine.lowering.memory_levels import Activations, activations_of
from topoplan_engine.network.demand import taskgraph_demand
from topoplan_engine.partition import slice_elements
from topoplan_engine.sharding.mesh import MeshStep, mesh_groups
from topoplan_engine.sharding.programs import Reshard, pieces, reshards_of

__all__ = ["DeviceCosts", "SpmdLowering", "device_costs", "program_taskgraph"]


class SpmdLowering:
    """Lowers SPMD programs; see `topoplan_engine.lowering.lower.StrategyLowering`."""

    def __init__(self, graph: OperatorGraph, cluster: Cluster, costs: CostFunction) -> None:
        self._graph, self._cluster, self._costs = graph, cluster, costs

    def lower(self, strategy: SpmdStrategy) -> TaskGraph:
        """Return the task graph of one iteration."""
        program = strategy.program
        return program_taskgraph(self._graph, program, strategy.schedule, self._prices(program))

    def symmetry(self, strategy: SpmdStrategy, in_turn_bytes: int) -> None:
        """Return None: programs are not reduced."""

    def memory(self, strategy: SpmdStrategy) -> F64:
        """Return the (D,) peak of the bytes that each device holds."""
        return program_memory(strategy.program, self._graph, self._prices(strategy.program))

    def memory_use(self, strategy: SpmdStrategy) -> MemoryUse:
        """Return the bytes of `memory` by their use, rounded to whole bytes."""
        return program_memory_use(strategy.program, self._graph, self._prices(strategy.program))

    def activations(self, strategy: SpmdStrategy, taskgraph: TaskGraph, timeline: Timeline) -> Activations:
        """Return the bytes of activations over time: from the forward pass of an operator to its backward one."""
        program, graph = strategy.program, self._graph
        prices = enumerate(self._prices(program))
        nbytes = np.stack([_operator_bytes(program, graph, index, price).activations for index, price in prices])
        tasks = np.flatnonzero(np.isin(taskgraph.kind, (TaskKind.FORWARD, TaskKind.BACKWARD)))
        device, forward = taskgraph.device[tasks], taskgraph.kind[tasks] == TaskKind.FORWARD
        share = nbytes[taskgraph.op[tasks], device] / strategy.schedule.micro_batches
        return activations_of(device, timeline.finish[tasks], np.where(forward, share, -share))

    def demand(self, strategy: SpmdStrategy) -> Demand:
        """Return what ``strategy`` asks of the network, host by host."""
        return taskgraph_demand(self.lower(strategy), self._cluster)

    def _prices(self, program: SpmdProgram) -> list[DeviceCosts]:
        ops = range(len(self._graph.operators))
        return [device_costs(program, op, self._graph, self._cluster, self._costs) for op in ops]


# ── Tasks ───────────────────────────────────────────────────────────────────────────────────────────────


def program_taskgraph(
    graph: OperatorGraph, program: SpmdProgram, schedule: Schedule, prices: Sequence[DeviceCosts]
) -> TaskGraph:
    """Return the task graph of one iteration.

    Args:
        graph: the model.
        program: one that fits it (`topoplan_engine.sharding.programs.why_invalid`).
        schedule: a duplex one.
        prices: of every operator on every device.
    """
    writer = _Writer(program, schedule.micro_batches)
    order = _Order.of(graph, program, schedule)
    _write_forward(writer, order, schedule.micro_batches, prices)
    buckets = _Buckets(writer, program.gradient_bucket_bytes)
    _write_backward(writer, order, schedule.micro_batches, prices, buckets)
    buckets.send_rest()
    return writer.taskgraph(tuple(op.name for op in graph.operators))


class _Order(NamedTuple):
    """Operators and reshardings in the order of the streams.

    Attributes:
        operators: stage -> its operators, stages in order.
        reshards: stage -> the reshardings with which it begins.
        inputs, outputs: operator -> the reshardings that it waits for, and those of its outputs.
    """

    operators: dict[int, list[int]]
    reshards: dict[int, list[Reshard]]
    inputs: dict[int, list[Reshard]]
    outputs: dict[int, list[Reshard]]

    @classmethod
    def of(cls, graph: OperatorGraph, program: SpmdProgram, schedule: Schedule) -> _Order:
        """Put the operators and reshardings of a program into the stages of a schedule."""
        stage = [int(number) for number in schedule.stage]
        order = cls(
            operators={number: [] for number in stage},
            reshards={number: [] for number in stage},
            inputs={op: [] for op in range(len(stage))},
            outputs={op: [] for op in range(len(stage))},
        )
        for op, number in enumerate(stage):
            order.operators[number].append(op)
        for reshard in reshards_of(program, graph):
            order.reshards[stage[reshard.users[0]]].append(reshard)
            for op in reshard.users:
                order.inputs[op].append(reshard)
            if reshard.output >= 0:
                order.outputs[reshard.op].append(reshard)
        return order


_ALL_REDUCE = Collective.ALL_REDUCE
#: The last tasks, by device, of an operator or a resharding in a micro-batch; None if nothing is sent.
_Ends = dict[tuple[Any, int], I64 | None]


def _write_forward(writer: _Writer, order: _Order, copies: int, prices: Sequence[DeviceCosts]) -> None:
    """Write the forward pass of all micro-batches, stage by stage."""
    ends: _Ends = {}
    for stage, operators in order.operators.items():
        for copy in range(copies):
            for reshard in order.reshards[stage]:
                if not reshard.parameter or copy == 0:
                    before = [ends[reshard.op, copy]] if reshard.output >= 0 else []
                    last = writer.exchange(reshard, reshard.forward, copy, before)
                    ends.update({(reshard, k): last for k in (range(copies) if reshard.parameter else (copy,))})
            for op in operators:
                before = [ends[reshard, copy] for reshard in order.inputs[op]]
                ends[op, copy] = writer.compute(TaskKind.FORWARD, op, copy, prices[op].forward, before)


def _write_backward(
    writer: _Writer, order: _Order, copies: int, prices: Sequence[DeviceCosts], buckets: _Buckets
) -> None:
    """Write the backward pass of all micro-batches; gradients of an output wait for those of all its reshardings."""
    ends: _Ends = {}
    for stage, operators in reversed(order.operators.items()):
        for copy in reversed(range(copies)):
            for op in reversed(operators):
                before = [ends[reshard, copy] for reshard in order.outputs[op]]
                ends[op, copy] = writer.compute(TaskKind.BACKWARD, op, copy, prices[op].backward, before)
            for reshard in reversed(order.reshards[stage]):
                if not reshard.parameter or copy == 0:
                    used = range(copies) if reshard.parameter else (copy,)
                    before = [ends[op, k] for op in reshard.users for k in used]
                    if not buckets.take(reshard, before):
                        ends[reshard, copy] = writer.exchange(reshard, reshard.backward, copy, before)


class _Buckets:
    """Gradients that wait until they are enough for an all-reduce (`SpmdProgram.gradient_bucket_bytes`).

    Those that are summed over different groups of devices have buckets of their own.
    """

    def __init__(self, writer: _Writer, nbytes: int) -> None:
        self._writer, self._nbytes = writer, nbytes
        self._waiting: dict[tuple[int, ...], tuple[int, Reshard, Sequence[I64 | None]]] = {}

    def take(self, reshard: Reshard, before: Sequence[I64 | None]) -> bool:
        """Take a gradient if it is a parameter's that one all-reduce sums; return whether it is.

        Devices make gradients in the same order, so a bucket waits for ``before``, the tasks of its last one, alone.
        """
        steps = reshard.backward
        if not self._nbytes or not reshard.parameter or [step.step.collective for step in steps] != [_ALL_REDUCE]:
            return False
        (step,) = steps
        nbytes = self._waiting.pop(step.axes, (0,))[0] + round(reshard.nbytes * step.share)
        self._waiting[step.axes] = nbytes, reshard, before
        if nbytes >= self._nbytes:
            self._send(step.axes)
        return True

    def send_rest(self) -> None:
        """Send the buckets that are not full, the oldest last gradient first."""
        for axes in list(self._waiting):
            self._send(axes)

    def _send(self, axes: tuple[int, ...]) -> None:
        nbytes, reshard, before = self._waiting.pop(axes)
        steps = (attrs.evolve(reshard.backward[0], share=1.0),)
        self._writer.exchange(attrs.evolve(reshard, nbytes=nbytes, backward=steps), steps, 0, before)


class _Writer:
    """Collects tasks and edges, and knows the last task of each stream."""

    def __init__(self, program: SpmdProgram, copies: int) -> None:
        self._mesh, self._devices, self._copies = program.mesh, program.n_devices, copies
        self._count = 0
        self._columns: dict[str, list[Any]] = {name: [] for name in _EMPTY}
        self._tails: list[I64] = []
        self._heads: list[I64] = []
        self._groups: dict[bytes, int] = {}
        self._members: list[I64] = []
        self._computed: I64 | None = None
        self._exchanged: I64 | None = None

    def compute(self, kind: TaskKind, op: int, copy: int, seconds: F64, before: Iterable[I64 | None]) -> I64:
        """Add a pass of an operator on every device; return its tasks."""
        tasks = self._add(
            self._devices,
            kind=kind,
            device=np.arange(self._devices),
            seconds=seconds / self._copies,
            op=op,
            micro_batch=copy,
        )
        self._follow(self._computed, tasks)
        for ends in before:
            self._follow(ends, tasks)
        self._computed = tasks
        return tasks

    def exchange(
        self, reshard: Reshard, steps: Sequence[MeshStep], copy: int, before: Iterable[I64 | None]
    ) -> I64 | None:
        """Add the collectives of a resharding; return, by device, the last task, None if nothing is sent.

        In that case the order of the compute stream is the whole dependency.
        """
        last = None
        for step in steps:
            if not step.free:
                first, end = self._collective(reshard, step, -1 if reshard.parameter else copy)
                for ends in (*before, self._exchanged):
                    self._follow(ends, first)
                last = self._exchanged = end
                before = ()
        return last

    def taskgraph(self, names: tuple[str, ...]) -> TaskGraph:
        """Return the task graph of all tasks so far."""
        tails, heads = (np.concatenate(ends) if ends else np.zeros(0, np.int64) for ends in (self._tails, self._heads))
        order = np.argsort(tails, kind="stable")
        columns: dict[str, Any] = {name: np.concatenate(rows) for name, rows in self._columns.items()}
        degree = np.bincount(tails, minlength=self._count)
        if self._copies == 1:
            columns["micro_batch"] = None
        return TaskGraph(
            **columns,
            group_ptr=np.concatenate([[0], np.cumsum([len(row) for row in self._members])]),
            group_members=np.concatenate(self._members) if self._members else np.zeros(0, np.int32),
            succ_ptr=np.concatenate([[0], np.cumsum(degree)]),
            succ=heads[order],
            op_names=names,
            n_devices=self._devices,
        )

    def _collective(self, reshard: Reshard, step: MeshStep, copy: int) -> tuple[I64, I64]:
        """Add one collective in every group, of one micro-batch or (-1) of all; return its ends by device."""
        members = mesh_groups(self._mesh, step.axes)
        groups, size = members.shape
        whole = round(reshard.nbytes * step.share)
        if copy >= 0:
            whole = whole * (copy + 1) // self._copies - whole * copy // self._copies
        common = {"op": reshard.users[0], "micro_batch": copy}
        group_of = np.empty(self._devices, dtype=np.int64)
        group_of[members] = np.arange(groups)[:, None]
        kind = step.step.collective
        assert isinstance(kind, Collective)  # local steps are free
        if kind is not Collective.ALL_TO_ALL:
            ring_bytes = whole if kind is Collective.ALL_REDUCE else -(-whole // 2)
            tasks = self._add_collective(kind, self._numbers(members), size=ring_bytes, **common)
            return tasks[group_of], tasks[group_of]
        singles = self._numbers(members[:, :1])
        join = self._add_collective(Collective.JOIN, singles, **common)
        sender, receiver = np.nonzero(~np.eye(size, dtype=bool))
        transfers = self._add(
            groups * len(sender),
            kind=TaskKind.TRANSFER,
            size=-(-whole // size**2),
            src=members[:, sender].ravel(),
            dst=members[:, receiver].ravel(),
            **common,
        ).reshape(groups, -1)
        leave = self._add_collective(Collective.JOIN, singles, **common)
        self._tails += [np.repeat(join, len(sender)), transfers.ravel()]
        self._heads += [transfers.ravel(), np.repeat(leave, len(sender))]
        return join[group_of], leave[group_of]

    def _numbers(self, groups: I64) -> list[int]:
        """Return the number of each group, given by a row of its members."""
        numbers = []
        for members in groups:
            number = self._groups.setdefault(members.tobytes(), len(self._members))
            if number == len(self._members):
                self._members.append(members)
            numbers.append(number)
        return numbers

    def _add(self, count: int, **columns: Any) -> I64:
        for name, empty in _EMPTY.items():
            self._columns[name].append(np.broadcast_to(np.asarray(columns.get(name, empty)), count))
        self._count += count
        return np.arange(self._count - count, self._count, dtype=np.int64)

    def _add_collective(self, collective: Collective, groups: list[int], **columns: Any) -> I64:
        """Add one collective of a kind in each group, by number; return the tasks."""
        return self._add(len(groups), kind=TaskKind.COLLECTIVE, collective=collective, group=groups, **columns)

    def _follow(self, ends: I64 | None, tasks: I64) -> None:
        """Let tasks follow others, device by device; each edge is made once."""
        if ends is None:
            return
        edges = np.unique(np.stack([ends, tasks]), axis=1)
        self._tails.append(edges[0])
        self._heads.append(edges[1])


_EMPTY: dict[str, Any] = {
    "kind": 0,
    "device": -1,
    "seconds": 0.0,
    "size": 0,
    "src": -1,
    "dst": -1,
    "group": -1,
    "op": -1,
    "micro_batch": -1,
    "collective": -1,
}


# ── Costs of operators on every device: seconds and bytes ───────────────────────────────────────────────


class DeviceCosts(NamedTuple):
    """(D,) seconds of one operator's passes on every device, and bytes of memory, before those of other operators.

    ``kept`` and ``states`` (three rows) are those of `PartCosts`.
    """

    forward: F64
    backward: F64
    memory: F64
    kept: F64 | None
    states: F64 | None


def _part_of_device(program: SpmdProgram, op: int, degrees: tuple[int, ...]) -> I32:
    """(n_devices,) the part of an operator, cut by ``degrees``, that each device runs."""
    position = np.unravel_index(np.arange(program.n_devices), program.mesh)
    place = [np.zeros(program.n_devices, dtype=np.int64) for _ in degrees]
    for rule, size, along in zip(program.rules[op], program.mesh, position, strict=True):
        if rule.dim >= 0:
            place[rule.dim] = place[rule.dim] * size + along
    return np.ravel_multi_index(place, degrees).astype(np.int32) if degrees else np.zeros(program.n_devices, np.int32)


def device_costs(
    program: SpmdProgram, op: int, graph: OperatorGraph, cluster: Cluster, costs: CostFunction
) -> DeviceCosts:
    """Price one operator.

    Raises:
        TopoplanError: the cost function cannot price the cut.
    """
    degrees = program.degrees(op, len(graph.operators[op].dims))
    part = _part_of_device(program, op, degrees)
    rows = np.argsort(part, kind="stable").reshape(int(part.max()) + 1, -1).T  # (copies of the parts, parts)
    uniform = len(set(cluster.device_preset)) == 1 and bool((cluster.device_speed == cluster.device_speed[0]).all())
    columns = np.empty((4, len(part)))
    states = np.empty((3, len(part)))
    persistent_known = states_known = True
    for number, devices in enumerate(rows):
        if number == 0 or not uniform:
            price = costs.price(op, degrees, devices.astype(np.int32))
            persistent_known, states_known = price.kept is not None, price.states is not None
            persistent = price.memory if price.kept is None else price.kept
        columns[:, devices] = price.forward, price.backward, price.memory, persistent
        if price.states is not None:
            states[:, devices] = price.states
    return DeviceCosts(
        forward=columns[0],
        backward=columns[1],
        memory=columns[2],
        kept=columns[3] if persistent_known else None,
        states=states if states_known else None,
    )


class _OperatorBytes(NamedTuple):
    """(D,) bytes of one operator on every device.

    Attributes:
        activations: of the whole batch.
        state: what belongs to parameters, as they are stored.
        weights: the parameters themselves, a part of ``state``.
        gathered: bytes of all-gathered parameters, the same on every device.
    """

    activations: F64
    state: F64
    weights: F64
    gathered: float


def program_memory(program: SpmdProgram, graph: OperatorGraph, prices: list[DeviceCosts]) -> F64:
    """Return the (D,) peak of the bytes that each device holds.

    Activations of all micro-batches are there when the forward pass ends.  The state of parameters shrinks with the
    slices in which they are stored; gathered parameters stay until the backward pass.  With sharded state, a device
    holds only its own share of everything but the parameters.
    """
    total = np.zeros(program.n_devices)
    for index, price in enumerate(prices):
        nbytes = _operator_bytes(program, graph, index, price)
        total += nbytes.activations + nbytes.state + nbytes.gathered
    return total


def program_memory_use(program: SpmdProgram, graph: OperatorGraph, prices: list[DeviceCosts]) -> MemoryUse:
    """Return the bytes of `program_memory` by their use."""
    states, undivided = np.zeros((3, program.n_devices)), np.zeros(program.n_devices)
    for index, price in enumerate(prices):
        nbytes = _operator_bytes(program, graph, index, price)
        if price.states is None:
            undivided += nbytes.state + nbytes.gathered
            continue
        states[0] += nbytes.weights + nbytes.gathered
        gradients_and_optimizer = price.states[1:]
        share = gradients_and_optimizer / np.maximum(gradients_and_optimizer.sum(axis=0), 1e-300)
        states[1:] += share * (nbytes.state - nbytes.weights)
    return memory_use_of(program_memory(program, graph, prices), states, undivided)


def _operator_bytes(program: SpmdProgram, graph: OperatorGraph, index: int, price: DeviceCosts) -> _OperatorBytes:
    op = graph.operators[index]
    degrees = program.degrees(index, len(op.dims))
    outputs = sum(int(slice_elements(op, tensor, degrees).max()) * tensor.itemsize for tensor in op.outputs)
    state = price.kept if price.kept is not None else price.memory - np.minimum(outputs, price.memory)
    activations = price.memory - state
    cut_bytes = stored_bytes = gathered = 0.0
    for argument, tensor in list(enumerate(arguments(op)))[len(op.inputs) :]:
        required, stored = program.wanted(index, argument), program.stored[index][argument]
        cut_bytes += tensor.nbytes / pieces(program, required)
        stored_bytes += tensor.nbytes / pieces(program, stored)
        if pieces(program, required) < pieces(program, stored):
            gathered += tensor.nbytes / pieces(program, required)
    if cut_bytes == 0:
        return _OperatorBytes(activations, state, np.zeros_like(state), gathered)
    state = state * (stored_bytes / cut_bytes)
    weights = np.minimum(state, stored_bytes)
    if program.sharded_state:
        sharers = max(1.0, program.n_devices * stored_bytes / sum(tensor.nbytes for tensor in op.weights))
        state = weights + (state - weights) / sharers
    return _OperatorBytes(activations, state, weights, gathered)
