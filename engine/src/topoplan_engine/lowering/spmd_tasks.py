"""The tasks of an SPMD program: two streams on every device, in program order.

Every device runs its operators one after the other on a compute stream, and all reshardings one after the other on a
communication stream, both in an order that is the same on all devices; dependencies tie the streams together.
If the whole batch goes through at once, every operator is a stage of its own.  A two-microbatch overlap
(`topoplan_engine.program_strategies.overlapped_strategy`) has stages of several operators and several micro-batches:
while one micro-batch of a stage computes, another one communicates, as HiDup does it (Zhang et al., SoCC 2022, section
3.3; it also lets the streams wait for each other between stages, which nothing here needs).

    forward    compute        C1 stage 1 | C2 stage 1 | C1 stage 2 | ...
               communication  X1 stage 1 | X2 stage 1 | X1 stage 2 | ...
    backward   the same from the end, micro-batches in the opposite order

Parameters are resharded once, with the first micro-batch; their gradients follow those of all micro-batches.  Where
they are given back after the forward pass of a layer (`topoplan_engine.lowering.gather_units`), they are gathered again
for its backward one, and a gather waits until the layer before the one that computes is done.
Gradients may share all-reduces (`SpmdProgram.gradient_bucket_bytes`).

All-reduces, all-gathers and reduce-scatters are tasks (`TaskGraph.collective`); all-to-alls are transfers of every
pair between two joins of their members, which take no time and no device.

Data flow: `write_program` walks the program in the order of the streams and tells a `ProgramWriter` what to add.
`program_taskgraph` adds the tasks of every device, `topoplan_engine.lowering.spmd_quotient` those of one device for
all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import attrs
import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.graph import OperatorGraph
from topoplan.model.spmd import SpmdProgram
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.checkpoints import checkpoint_regions, repeated_operators
from topoplan_engine.lowering.gather_units import GatherUnits, gather_units, parts_of
from topoplan_engine.lowering.passes import BackwardPasses
from topoplan_engine.lowering.spmd_costs import DeviceCosts
from topoplan_engine.lowering.task_columns import TaskColumns
from topoplan_engine.program_strategies import program_of
from topoplan_engine.sharding.mesh import MeshStep, mesh_groups
from topoplan_engine.sharding.programs import Reshard, reshards_of

__all__ = [
    "GathersAgain",
    "ProgramWriter",
    "pair_bytes",
    "program_taskgraph",
    "ring_bytes",
    "sent_again",
    "write_program",
]


def program_taskgraph(
    graph: OperatorGraph, strategy: StagedStrategy, prices: Sequence[DeviceCosts], *, one_task: bool = False
) -> TaskGraph:
    """Return the task graph of one iteration.

    Args:
        graph: the model.
        strategy: one that fits it (`topoplan_engine.sharding.programs.why_invalid`).
        prices: of every operator on every device, by the micro-batches of ``strategy``.
        one_task: see `topoplan_engine.lowering.Lowering`.
    """
    writer = _AllDevices(program_of(strategy), strategy.micro_batches, one_task=one_task)
    write_program(writer, graph, strategy, prices)
    return writer.taskgraph(tuple(op.name for op in graph.operators))


def write_program(
    writer: ProgramWriter[Any],
    graph: OperatorGraph,
    strategy: StagedStrategy,
    prices: Sequence[DeviceCosts],
) -> None:
    """Tell a writer what to add, in the order of the streams; see `program_taskgraph`."""
    program = program_of(strategy)
    order = _Order.of(graph, program, parts_of(strategy).tolist())
    units = gather_units(strategy, graph)
    _write_forward(writer, order, strategy.micro_batches, prices, units)
    buckets = _Buckets(writer, program.gradient_bucket_bytes)
    runs_backward = BackwardPasses.of(graph).operators.tolist()
    repeats = sent_again(graph, reshards_of(program, graph), runs_backward)
    gathers = None if units is None else GathersAgain(writer, units, runs_backward)
    _write_backward(writer, order, strategy.micro_batches, prices, buckets, runs_backward, repeats, gathers)
    buckets.send_rest()


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
    def of(cls, graph: OperatorGraph, program: SpmdProgram, stage: Sequence[int]) -> _Order:
        """Put the operators and reshardings of a program into stages."""
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
_Ends = dict[tuple[Any, int], Any]


def _write_forward(
    writer: ProgramWriter[Any],
    order: _Order,
    copies: int,
    prices: Sequence[DeviceCosts],
    units: GatherUnits | None,
) -> None:
    """Write the forward pass of all micro-batches, stage by stage."""
    ends: _Ends = {}
    layer_ends: dict[int, Any] = {}  # layer -> its last computation
    for stage, operators in order.operators.items():
        for copy in range(copies):
            for reshard in order.reshards[stage]:
                if not reshard.parameter or copy == 0:
                    before = [ends[reshard.op, copy]] if reshard.output >= 0 else []
                    if units is not None and reshard in units.given_back:
                        before.append(layer_ends.get(int(units.unit[reshard.users[0]]) - 2))
                    last = writer.exchange(reshard, reshard.forward, copy, before)
                    ends.update({(reshard, k): last for k in (range(copies) if reshard.parameter else (copy,))})
            for op in operators:
                before = [ends[reshard, copy] for reshard in order.inputs[op]]
                ends[op, copy] = writer.compute(TaskKind.FORWARD, op, copy, prices[op].forward, before)
                if units is not None:
                    layer_ends[int(units.unit[op])] = ends[op, copy]


class Writer(Protocol):
    """What adds the collectives of a resharding; see `ProgramWriter`."""

    @property
    def computed(self) -> Any:
        """The last tasks of the compute stream."""

    def exchange(self, reshard: Reshard, steps: Sequence[MeshStep], copy: int, before: Iterable[Any]) -> Any:
        """Add the collectives of a resharding; return the last tasks."""


class GathersAgain:
    """Gathers parameters for the backward pass, each layer's while the one behind it computes."""

    def __init__(self, writer: Writer, units: GatherUnits, runs_backward: Sequence[bool]) -> None:
        self._writer, self._unit = writer, units.unit
        self._reshards: dict[int, list[Reshard]] = {}
        for reshard in sorted(units.given_back, key=lambda each: (each.users[0], each.argument), reverse=True):
            number = int(units.unit[reshard.users[0]])
            if number < units.last and any(runs_backward[op] for op in reshard.users):
                self._reshards.setdefault(number, []).append(reshard)
        self._ends: dict[Reshard, Any] = {}
        self._begun = units.last + 1

    def before(self, op: int, reshards: Sequence[Reshard]) -> list[Any]:
        """Return what the backward pass of an operator waits for; with a new layer, gather the parameters of the next.

        Args:
            op: the operator, in the order of the backward pass.
            reshards: of its inputs.
        """
        number = int(self._unit[op])
        while self._begun > number:
            self._begun -= 1
            # At the begin of a layer the one behind it has just been computed, and given back.
            for reshard in self._reshards.get(self._begun - 1, ()):
                computed = [self._writer.computed]
                self._ends[reshard] = self._writer.exchange(reshard, reshard.forward, 0, computed)
        return [self._ends[reshard] for reshard in reshards if reshard in self._ends]


def _write_backward(
    writer: ProgramWriter[Any],
    order: _Order,
    copies: int,
    prices: Sequence[DeviceCosts],
    buckets: _Buckets,
    runs_backward: Sequence[bool],
    repeats: Mapping[int, Sequence[Reshard]],
    gathers: GathersAgain | None,
) -> None:
    """Write the backward pass of all micro-batches; gradients of an output wait for those of all its reshardings.

    Operators that train nothing have none, and nothing of theirs is sent back.  Before the backward pass of a
    checkpointed region (its operator among ``repeats``) the reshardings inside of it run again, one after the other:
    each lies between two operators that run again, whose seconds are among those of backward passes.
    """
    ends: _Ends = {}
    for stage, operators in reversed(order.operators.items()):
        for copy in reversed(range(copies)):
            for op in reversed(operators):
                if not runs_backward[op]:
                    continue
                before = [ends[reshard, copy] for reshard in order.outputs[op]]
                if gathers is not None:
                    before += gathers.before(op, order.inputs[op])
                for reshard in repeats.get(op, ()):
                    before.append(writer.exchange(reshard, reshard.forward, copy, [writer.computed, *before]))
                ends[op, copy] = writer.compute(TaskKind.BACKWARD, op, copy, prices[op].backward, before)
            for reshard in reversed(order.reshards[stage]):
                if not reshard.parameter or copy == 0:
                    used = range(copies) if reshard.parameter else (copy,)
                    before = [ends[op, k] for op in reshard.users for k in used if runs_backward[op]]
                    if not buckets.take(reshard, before):
                        ends[reshard, copy] = writer.exchange(reshard, reshard.backward, copy, before)


def sent_again(
    graph: OperatorGraph, reshards: Sequence[Reshard], runs_backward: Sequence[bool]
) -> dict[int, list[Reshard]]:
    """Return the last operator of each checkpointed region -> the reshardings inside of it that run again."""
    region, repeated = checkpoint_regions(graph).tolist(), repeated_operators(graph)
    last = {number: op for op, number in enumerate(region) if number >= 0 and runs_backward[op]}
    repeats: dict[int, list[Reshard]] = {}
    for reshard in reshards if last else ():
        number = region[reshard.op]
        if reshard.output >= 0 and repeated[reshard.op] and any(region[op] == number for op in reshard.users):
            repeats.setdefault(last[number], []).append(reshard)
    return repeats


class _Buckets:
    """Gradients that wait until they are enough for an all-reduce (`SpmdProgram.gradient_bucket_bytes`).

    Those that are summed over different groups of devices have buckets of their own.
    """

    def __init__(self, writer: ProgramWriter[Any], nbytes: int) -> None:
        self._writer, self._nbytes = writer, nbytes
        self._waiting: dict[tuple[int, ...], tuple[int, Reshard, Sequence[Any]]] = {}

    def take(self, reshard: Reshard, before: Sequence[Any]) -> bool:
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


Tasks = TypeVar("Tasks")


class ProgramWriter(ABC, Generic[Tasks]):
    """Adds tasks and edges, and knows the last tasks of each stream; ``Tasks`` are those of one pass or collective."""

    def __init__(self, copies: int) -> None:
        self._copies = copies
        self._computed: Tasks | None = None
        self._exchanged: Tasks | None = None

    @property
    def computed(self) -> Tasks | None:
        """The last tasks of the compute stream; None at first."""
        return self._computed

    def compute(self, kind: TaskKind, op: int, copy: int, seconds: F64, before: Iterable[Tasks | None]) -> Tasks:
        """Add a pass of an operator on every device; return its tasks."""
        tasks = self._run(kind, op, copy, seconds)
        for ends in (self._computed, *before):
            if ends is not None:
                self._follow(ends, tasks)
        self._computed = tasks
        return tasks

    def exchange(
        self, reshard: Reshard, steps: Sequence[MeshStep], copy: int, before: Iterable[Tasks | None]
    ) -> Tasks | None:
        """Add the collectives of a resharding; return, by device, the last task, None if nothing is sent.

        In that case the order of the compute stream is the whole dependency.
        """
        last = None
        for step in steps:
            kind = step.step.collective
            if not isinstance(kind, Collective):
                continue  # nothing is sent
            whole = round(reshard.nbytes * step.share)
            micro_batch = -1 if reshard.parameter else copy
            if micro_batch >= 0:
                whole = whole * (copy + 1) // self._copies - whole * copy // self._copies
            first, end = self._communicate(kind, whole, step.axes, op=reshard.users[0], micro_batch=micro_batch)
            for ends in (*before, self._exchanged):
                if ends is not None:
                    self._follow(ends, first)
            last = self._exchanged = end
            before = ()
        return last

    @abstractmethod
    def _run(self, kind: TaskKind, op: int, copy: int, seconds: F64) -> Tasks:
        """Add a pass of an operator, for which every device takes its (D,) ``seconds``."""

    @abstractmethod
    def _communicate(
        self, kind: Collective, nbytes: int, axes: tuple[int, ...], *, op: int, micro_batch: int
    ) -> tuple[Tasks, Tasks]:
        """Add a collective of ``nbytes`` in every group along some axes; return, by device, its first and last task."""

    @abstractmethod
    def _follow(self, ends: Tasks, tasks: Tasks) -> None:
        """Let tasks follow others, device by device."""


class _AllDevices(TaskColumns, ProgramWriter[I64]):
    """Collects the tasks of every device."""

    def __init__(self, program: SpmdProgram, copies: int, *, one_task: bool = False) -> None:
        TaskColumns.__init__(self, one_task=one_task)
        ProgramWriter.__init__(self, copies)
        self._mesh, self._devices = program.mesh, program.n_devices

    def taskgraph(self, names: tuple[str, ...]) -> TaskGraph:
        """Return the task graph of all tasks so far."""
        columns = self.columns()
        if self._copies == 1:
            columns["micro_batch"] = None
        succ_ptr, succ = self.successors()
        return TaskGraph(
            **columns, **self.group_columns(), succ_ptr=succ_ptr, succ=succ, op_names=names, n_devices=self._devices
        )

    def _run(self, kind: TaskKind, op: int, copy: int, seconds: F64) -> I64:
        device = np.arange(self._devices)
        return self.add(self._devices, kind=kind, device=device, seconds=seconds, op=op, micro_batch=copy)

    def _communicate(
        self, kind: Collective, nbytes: int, axes: tuple[int, ...], *, op: int, micro_batch: int
    ) -> tuple[I64, I64]:
        common: dict[str, Any] = {"op": op, "micro_batch": micro_batch}
        members = mesh_groups(self._mesh, axes)
        all_to_all = kind is Collective.ALL_TO_ALL
        size = pair_bytes(nbytes, members.shape[1]) if all_to_all else ring_bytes(kind, nbytes)
        return self.collective(kind, members, np.arange(self._devices), size=size, **common)

    def _follow(self, ends: I64, tasks: I64) -> None:
        self.follow(ends, tasks)


def ring_bytes(kind: Collective, nbytes: int) -> int:
    """Return the size (`TaskGraph.size`) of a collective of a tensor of ``nbytes``."""
    return nbytes if kind is Collective.ALL_REDUCE else -(-nbytes // 2)


def pair_bytes(nbytes: int, members: int) -> int:
    """Return what every member of an all-to-all sends to each other one."""
    return -(-nbytes // members**2)
