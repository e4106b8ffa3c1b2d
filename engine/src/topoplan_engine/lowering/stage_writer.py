"""Adds the tasks of a stage in the order of its streams: what devices compute, and what they send to each other.

A device has one compute stream, and a communication stream for each communicator, as in NCCL.  A task follows the one
before it on its stream, and what it needs of other streams.  `StageWriter.end_pass` returns the first and last tasks of
all streams, by which passes of other micro-batches are put before and behind them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import attrs

from topoplan.arrays import F64, I64
from topoplan.model.mesh import DeviceMesh
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan_engine.lowering.places import Places
from topoplan_engine.lowering.task_columns import TaskColumns, Weights
from topoplan_engine.sharding.mesh import MeshStep
from topoplan_engine.sharding.programs import Reshard
from topoplan_engine.sharding.resharding import CollectiveStep

__all__ = ["Arrival", "Before", "Part", "StageWriter"]


class Part(NamedTuple):
    """A pass of one micro-batch: its first and last tasks on every device, by places in the mesh.

    Attributes:
        computed: of the compute stream; None if nothing is computed.
        exchanged: axes of a communicator -> of its stream.
        parts: of the compute stream, what is computed between two waits for what is exchanged.
        waits_for_experts: of each part, whether it waits for what experts got or gave.
    """

    computed: tuple[I64, I64] | None
    exchanged: dict[tuple[int, ...], tuple[I64, I64]]
    parts: tuple[tuple[I64, I64], ...] = ()
    waits_for_experts: tuple[bool, ...] = ()

    def between_experts(self) -> list[tuple[I64, I64]]:
        """Return what is computed between two waits for experts."""
        between: list[tuple[I64, I64]] = []
        for (first, last), begins in zip(self.parts, self.waits_for_experts, strict=True):
            between += [(first, last)] if begins or not between else [(between.pop()[0], last)]
        return between


@attrs.define(eq=False)
class Arrival:
    """Stands for what arrives from another stage: the (D,) tasks that wait for it."""

    heads: list[I64] = attrs.field(factory=list)


#: What a task waits for: tasks of every device, what arrives, or nothing.
Before = Iterable["I64 | Arrival | None"]


class StageWriter(TaskColumns):
    """Adds tasks of a stage in the order of its streams.

    Attributes:
        weights: all-to-all -> those of its messages forward and back.
        smaller: all-to-all -> bytes that it sends forward and back over those of the tensor; 1 for those left out.
        micro_batch: of the tasks to come.
    """

    def __init__(self, mesh: DeviceMesh, places: Places, groups: TaskColumns, *, one_stream: bool = False) -> None:
        """Add tasks; with one stream for all communicators, if ``one_stream``."""
        super().__init__(groups)
        self.micro_batch, self._one_stream = 0, one_stream
        self._mesh, self._places = mesh, places
        self._first: I64 | None = None
        self._last: I64 | None = None
        self._streams: dict[tuple[int, ...], tuple[I64, I64]] = {}
        self._parts: list[tuple[I64, I64, bool]] = []
        #: Identity of the ends of exchanges of this pass -> these, and whether experts got or gave what was exchanged.
        self._ends: dict[int, tuple[I64, bool]] = {}
        self.weights: Mapping[Reshard, tuple[Sequence[Weights], Sequence[Weights]]] = {}
        self.smaller: Mapping[Reshard, tuple[float, float]] = {}

    @property
    def computed(self) -> I64 | None:
        """The last tasks of the compute stream in this pass."""
        return self._last

    def end_pass(self) -> Part:
        """Return what was written since the last call; the next pass begins."""
        computed = None if self._first is None or self._last is None else (self._first, self._last)
        parts = tuple((first, last) for first, last, _ in self._parts)
        part = Part(computed, self._streams, parts, tuple(each for *_, each in self._parts))
        self._first = self._last = None
        self._streams, self._parts, self._ends = {}, [], {}
        return part

    def compute(self, kind: TaskKind, op: int, seconds: F64, before: Before) -> I64:
        """Add a pass of an operator on every device."""
        devices = self._places.devices
        number = -1 if kind is TaskKind.UPDATE else self.micro_batch
        common = {"kind": kind, "op": op, "micro_batch": number}
        before = list(before)
        tasks = self.add(len(devices), device=devices, seconds=seconds, **common)
        self._wait(tasks, (self._last, *before))
        waits = self._waits(before)
        if waits or not self._parts:
            self._parts.append((tasks, tasks, any(waits)))
        else:
            first, _, of_experts = self._parts.pop()
            self._parts.append((first, tasks, of_experts))
        self._first, self._last = tasks if self._first is None else self._first, tasks
        return tasks

    def exchange(
        self, reshard: Reshard, steps: Sequence[MeshStep], before: Before, *, inside: float = 0.0
    ) -> I64 | None:
        """Add the collectives of a resharding; return the last tasks, None if nothing is sent.

        Args:
            reshard: what is sent.
            steps: its collectives, one after the other.
            before: what the first of them waits for.
            inside: seconds in which GPUs of a device send each other something for it; the first one has these.
        """
        last, before = None, list(before)
        of_experts = any(self._waits(before))
        for step in steps:
            kind = step.step.collective
            if not isinstance(kind, Collective):
                continue
            axes = tuple(sorted(axis for axis in step.axes if self._mesh.sizes[axis] > 1))
            if not axes and not inside:
                continue
            if inside and kind is Collective.ALL_TO_ALL:  # whose messages have no such seconds
                one_member = MeshStep(CollectiveStep(Collective.ALL_REDUCE), (), step.share)
                last, inside = self.exchange(reshard, (one_member,), before, inside=inside), 0.0
            communicator = self._places.communicator(axes)
            size = communicator.size
            way = 0 if steps is reshard.forward else 1
            smaller = self.smaller.get(reshard, (1.0, 1.0))[way]
            divisor = {Collective.ALL_REDUCE: 1, Collective.ALL_TO_ALL: size * size}.get(kind, 2)
            first, end = communicator.add(
                self,
                kind,
                weights=self.weights.get(reshard, ((), ()))[way],
                size=round(reshard.nbytes * step.share * smaller),
                seconds=inside,
                divisor=divisor,
                op=reshard.users[0],
                micro_batch=-1 if reshard.parameter else self.micro_batch,
            )
            key = () if self._one_stream else axes
            stream = self._streams.get(key)
            ended = None if stream is None else stream[1]
            self._wait(first, (*before, None if last is ended else last, ended))
            self._streams[key] = (first if stream is None else stream[0], end)
            last, before, inside = end, [], 0.0
            of_experts |= kind is Collective.ALL_TO_ALL
        if last is not None:
            self._ends[id(last)] = last, of_experts
        return last

    def _waits(self, before: Before) -> list[bool]:
        """Return, of the exchanges of this pass that a task waits for, whether experts got or gave them."""
        return [self._ends[id(end)][1] for end in before if id(end) in self._ends]

    def join(self, axis: int, op: int, before: Before) -> I64:
        """Add a point at which the devices along an axis are all there, in the stream of their communicator."""
        tasks = self._places.communicator((axis,)).join(self, op=op, micro_batch=self.micro_batch)
        stream = self._streams.get((axis,))
        self._wait(tasks, (*before, None if stream is None else stream[1]))
        self._streams[axis,] = (tasks if stream is None else stream[0], tasks)
        return tasks

    def hop(self, axis: int, op: int, nbytes: int, before: Before) -> I64:
        """Send a slice from each device to the next one along an axis; return (P,) the message that each receives.

        Args:
            axis: of the mesh.
            op: that reads it.
            nbytes: of the slices of all devices along the axis.
            before: what the sender waits for.
        """
        columns, sender = self._places.next_along(axis)
        size = {"size": nbytes, "divisor": self._mesh.sizes[axis]}
        tasks = self.add(len(sender), kind=TaskKind.TRANSFER, **size, op=op, micro_batch=self.micro_batch, **columns)
        self._wait(tasks, before)
        return tasks[sender]

    def _wait(self, tasks: I64, before: Before) -> None:
        for ends in before:
            if isinstance(ends, Arrival):
                ends.heads.append(tasks)
            elif ends is not None:
                self.follow(ends, tasks)
