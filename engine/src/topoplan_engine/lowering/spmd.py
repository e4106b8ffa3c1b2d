"""Lowering of SPMD programs: two streams on every device, in program order.

Every device runs its operators one after the other on a compute stream, and all conversions one after the other on a
communication stream, both in an order that is the same on all devices; what needs what ties the streams together.
If the whole batch goes through at once, every operator is a stage of its own.  A duplex schedule with micro-batches
(`topoplan.model.schedule.ScheduleKind.DUPLEX`) has stages of several operators and several micro-batches: while one
micro-batch of a stage computes, another one communicates, as HiDup does it (Zhang et al., SoCC 2022, section 3.3; it
also lets the streams wait for each other between stages, which nothing here needs).

    forward    compute        C1 stage 1 | C2 stage 1 | C1 stage 2 | ...
               communication  X1 stage 1 | X2 stage 1 | X1 stage 2 | ...
    backward   the same from the end, micro-batches in the opposite order

Parameters are converted once, with the first micro-batch; their gradients follow those of all micro-batches.

All-reduces, all-gathers and reduce-scatters are tasks (`TaskGraph.collective`); all-to-alls are transfers of every
pair between two joins of their members, which take no time and no device.

An operator is priced as the placement that its signatures make; if they make fewer parts than there are devices,
several devices run the same part.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.cluster import Cluster
from topoplan.model.graph import OperatorGraph
from topoplan.model.memory import MemoryUse
from topoplan.model.problem import Demand
from topoplan.model.schedule import Schedule
from topoplan.model.sharding import arguments
from topoplan.model.spmd import SpmdProgram
from topoplan.model.strategy import SpmdStrategy
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.plugin.components import CostFunction
from topoplan_engine.network.demand import taskgraph_demand
from topoplan_engine.partition import slice_elements
from topoplan_engine.sharding.mesh import MeshStep, mesh_groups
from topoplan_engine.sharding.programs import Reshard, reshards_of

__all__ = ["DeviceCosts", "SpmdLowering", "device_costs", "program_taskgraph"]


class SpmdLowering:
    """Lowers SPMD programs; see `topoplan_engine.lowering.lower.StrategyLowering`."""

    def __init__(self, graph: OperatorGraph, cluster: Cluster, costs: CostFunction) -> None:
        self._graph, self._cluster, self._costs = graph, cluster, costs

    def lower(self, strategy: SpmdStrategy) -> TaskGraph:
        """Return the task graph of one iteration."""
        program = strategy.program
        return program_taskgraph(self._graph, program, strategy.schedule, self._prices(program))

    def alike(self, strategy: SpmdStrategy) -> None:
        """Return None: programs are not reduced."""

    def memory(self, strategy: SpmdStrategy) -> F64:
        """Return the (D,) most bytes that each device holds."""
        return program_memory(strategy.program, self._graph, self._prices(strategy.program))

    def memory_use(self, strategy: SpmdStrategy) -> MemoryUse:
        """Return the same by what it is for, in whole bytes."""
        return program_memory_use(strategy.program, self._graph, self._prices(strategy.program))

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
        program: which fits it (`topoplan_engine.sharding.programs.why_invalid`).
        schedule: a duplex one.
        prices: of every operator on every device.
    """
    stage, copies = schedule.stage, schedule.micro_batches
    writer = _Writer(program, copies)
    # Stages in order, and in each what it converts and what it computes, in the order of the program.
    stages = [int(number) for number in dict.fromkeys(stage.tolist())]
    inside: dict[int, list[int]] = {number: [] for number in stages}
    for op, number in enumerate(stage.tolist()):
        inside[number].append(op)
    moves = reshards_of(program, graph)
    needs: dict[int, list[Reshard]] = {op: [] for op in range(len(graph.operators))}
    begins: dict[int, list[Reshard]] = {number: [] for number in stages}
    for move in moves:
        begins[int(stage[move.users[0]])].append(move)
        for op in move.users:
            needs[op].append(move)

    forward: dict[tuple[Any, int], I64 | None] = {}
    for number in stages:
        for copy in range(copies):
            for move in begins[number]:
                if not move.parameter or copy == 0:
                    before = [forward[move.op, copy]] if move.output >= 0 else []
                    ends = writer.exchange(move, move.forward, copy, before)
                    forward.update({(move, k): ends for k in (range(copies) if move.parameter else (copy,))})
            for op in inside[number]:
                before = [forward[move, copy] for move in needs[op]]
                forward[op, copy] = writer.compute(TaskKind.FORWARD, op, copy, prices[op].forward, before)

    # Gradients of what an operator made wait for those of everything that it was made into.
    after: dict[int, list[Reshard]] = {op: [] for op in range(len(graph.operators))}
    for move in moves:
        if move.output >= 0:
            after[move.op].append(move)
    backward: dict[tuple[Any, int], I64 | None] = {}
    for number in reversed(stages):
        for copy in reversed(range(copies)):
            for op in reversed(inside[number]):
                before = [backward[move, copy] for move in after[op]]
                backward[op, copy] = writer.compute(TaskKind.BACKWARD, op, copy, prices[op].backward, before)
            for move in reversed(begins[number]):
                if not move.parameter or copy == 0:
                    used = range(copies) if move.parameter else (copy,)
                    before = [backward[op, k] for op in move.users for k in used]
                    backward[move, copy] = writer.exchange(move, move.backward, copy, before)
    return writer.taskgraph(tuple(op.name for op in graph.operators))


class _Writer:
    """Tasks and edges so far, and the last task of each stream."""

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

    def exchange(self, move: Reshard, steps: Sequence[MeshStep], copy: int, before: Iterable[I64 | None]) -> I64 | None:
        """Add the collectives of a conversion; return, by device, the last task, None where nothing is sent.

        Then the order of the compute stream says all that is to be said.
        """
        last = None
        for step in steps:
            if not step.free:
                begin, end = self._collective(move, step, -1 if move.parameter else copy)
                for ends in (*before, self._exchanged):
                    self._follow(ends, begin)
                last = self._exchanged = end
                before = ()
        return last

    def taskgraph(self, names: tuple[str, ...]) -> TaskGraph:
        """Return everything."""
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

    def _collective(self, move: Reshard, step: MeshStep, copy: int) -> tuple[I64, I64]:
        """Add one collective in every group, of one micro-batch or (-1) of all; return its ends by device."""
        members = mesh_groups(self._mesh, step.axes)
        groups, size = members.shape
        whole = round(move.nbytes * step.share)
        if copy >= 0:
            whole = whole * (copy + 1) // self._copies - whole * copy // self._copies
        common = {"op": move.users[0], "micro_batch": copy}
        where = np.empty(self._devices, dtype=np.int64)
        where[members] = np.arange(groups)[:, None]
        kind = step.step.collective
        assert isinstance(kind, Collective)  # what is local is no step of the stream
        if kind is not Collective.ALL_TO_ALL:
            ring_bytes = whole if kind is Collective.ALL_REDUCE else -(-whole // 2)
            tasks = self._add_collective(kind, self._numbers(members), size=ring_bytes, **common)
            return tasks[where], tasks[where]
        alone = self._numbers(members[:, :1])
        join = self._add_collective(Collective.JOIN, alone, **common)
        here, there = np.nonzero(~np.eye(size, dtype=bool))
        sent = self._add(
            groups * len(here),
            kind=TaskKind.TRANSFER,
            size=-(-whole // size**2),
            src=members[:, here].ravel(),
            dst=members[:, there].ravel(),
            **common,
        ).reshape(groups, -1)
        leave = self._add_collective(Collective.JOIN, alone, **common)
        self._tails += [np.repeat(join, len(here)), sent.ravel()]
        self._heads += [sent.ravel(), np.repeat(leave, len(here))]
        return join[where], leave[where]

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


# ── What operators take on every device: seconds and bytes ──────────────────────────────────────────────


class DeviceCosts(NamedTuple):
    """(D,) seconds of one operator's passes on every device, and the bytes that it keeps there by itself.

    ``states`` has three rows; see `PartCosts`.
    """

    forward: F64
    backward: F64
    memory: F64
    kept: F64 | None
    states: F64 | None


def device_costs(
    program: SpmdProgram, op: int, graph: OperatorGraph, cluster: Cluster, costs: CostFunction
) -> DeviceCosts:
    """Price one operator.

    Raises:
        TopoplanError: the cost function cannot price the cut.
    """
    degrees = program.degrees(op, len(graph.operators[op].dims))
    part = program.part(op, degrees)
    rows = np.argsort(part, kind="stable").reshape(int(part.max()) + 1, -1).T  # (copies of the parts, parts)
    alike = len(set(cluster.device_preset)) == 1 and bool((cluster.device_speed == cluster.device_speed[0]).all())
    columns = np.empty((4, len(part)))
    states = np.empty((3, len(part)))
    kept = known = True
    for number, devices in enumerate(rows):
        if number == 0 or not alike:
            priced = costs.price(op, degrees, devices.astype(np.int32))
            kept, known = priced.kept is not None, priced.states is not None
            stays = priced.memory if priced.kept is None else priced.kept
        columns[:, devices] = priced.forward, priced.backward, priced.memory, stays
        if priced.states is not None:
            states[:, devices] = priced.states
    return DeviceCosts(columns[0], columns[1], columns[2], columns[3] if kept else None, states if known else None)


class _Held(NamedTuple):
    """(D,) bytes of one operator on every device, and what is put together of its parameters.

    ``weights`` are part of ``state``, as they are stored.
    """

    activations: F64
    state: F64
    weights: F64
    whole: float


def program_memory(program: SpmdProgram, graph: OperatorGraph, prices: list[DeviceCosts]) -> F64:
    """Return the (D,) most bytes that each device holds.

    Activations of all micro-batches are there when the forward pass ends.  What belongs to parameters shrinks with the
    slices in which they are stored, and what is put together of them stays until the backward pass; with shared state
    a device keeps of it all but the parameters themselves only the share that is its own.
    """
    total = np.zeros(program.n_devices)
    for index, price in enumerate(prices):
        held = _held(program, graph, index, price)
        total += held.activations + held.state + held.whole
    return total


def program_memory_use(program: SpmdProgram, graph: OperatorGraph, prices: list[DeviceCosts]) -> MemoryUse:
    """Return the same by what it is for."""
    states, undivided = np.zeros((3, program.n_devices)), np.zeros(program.n_devices)
    for index, price in enumerate(prices):
        held = _held(program, graph, index, price)
        if price.states is None:
            undivided += held.state + held.whole
            continue
        states[0] += held.weights + held.whole
        rest = price.states[1:]
        share = rest / np.maximum(rest.sum(axis=0), 1e-300)
        states[1:] += share * (held.state - held.weights)
    return MemoryUse.of(program_memory(program, graph, prices), states, undivided)


def _held(program: SpmdProgram, graph: OperatorGraph, index: int, price: DeviceCosts) -> _Held:
    op = graph.operators[index]
    degrees = program.degrees(index, len(op.dims))
    outputs = sum(int(slice_elements(op, tensor, degrees).max()) * tensor.itemsize for tensor in op.outputs)
    state = price.kept if price.kept is not None else price.memory - np.minimum(outputs, price.memory)
    activations = price.memory - state
    cut = stored = whole = 0.0
    for argument, tensor in list(enumerate(arguments(op)))[len(op.inputs) :]:
        wanted, given = program.wanted(index, argument), program.stored[index][argument]
        cut += tensor.nbytes / program.pieces(wanted)
        stored += tensor.nbytes / program.pieces(given)
        if program.pieces(wanted) < program.pieces(given):
            whole += tensor.nbytes / program.pieces(wanted)
    if cut == 0:
        return _Held(activations, state, np.zeros_like(state), whole)
    state = state * (stored / cut)
    weights = np.minimum(state, stored)
    if program.sharded_state:
        sharers = max(1.0, program.n_devices * stored / sum(tensor.nbytes for tensor in op.weights))
        state = weights + (state - weights) / sharers
    return _Held(activations, state, weights, whole)
