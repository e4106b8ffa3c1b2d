"""Strategies: for every operator, how it is cut and which devices run its parts.

Searchers move from strategy to strategy by replacing placements; lowering turns them into task graphs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np

from topoplan.arrays import ARRAY_EQ, I32, i32
from topoplan.errors import TopoplanError, shown
from topoplan.model.graph import OperatorGraph
from topoplan.model.schedule import Schedule, ScheduleKind
from topoplan.model.spmd import SpmdProgram, conversions_of

__all__ = ["Placement", "Strategy", "data_parallel"]


def _degrees(given: Iterable[int]) -> tuple[int, ...]:
    return tuple(int(degree) for degree in given)


@attrs.frozen(hash=False)
class Placement:
    """One operator's degree vector and the devices that run its parts.

    Attributes:
        degrees: into how many parts each dimension of the iteration space is cut.
        devices: (P,) int32, P the product of degrees: the device of each part, parts numbered with the
            last dimension fastest (C order of an array of shape ``degrees``).
    """

    degrees: tuple[int, ...] = attrs.field(converter=_degrees)
    devices: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)

    def __attrs_post_init__(self) -> None:
        parts = math.prod(self.degrees)
        if min(self.degrees, default=1) < 1 or self.devices.shape != (parts,):
            raise TopoplanError(
                f"placement: degrees {shown(self.degrees)} need {shown(parts)} devices, got {self.devices.size}"
            )

    @functools.cached_property
    def key(self) -> tuple[tuple[int, ...], bytes]:
        """Hashable identity: two placements are equal iff their keys are."""
        return (self.degrees, self.devices.tobytes())

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def parts(self) -> int:
        """Number of parts."""
        return len(self.devices)


@attrs.frozen
class Strategy:
    """A placement for every operator of a graph, in its order, a schedule, and a program for all devices.

    Without a schedule, the whole batch goes through the model at once, and devices run what is ready; with a program
    in its order.  Where there is a program, all devices run every operator, and placements only show how it is cut.
    """

    placements: tuple[Placement, ...]
    schedule: Schedule | None = None
    program: SpmdProgram | None = None

    @classmethod
    def of(cls, program: SpmdProgram, graph: OperatorGraph, schedule: Schedule | None = None) -> Strategy:
        """Return the strategy of a program for all devices: placements that show how it cuts every operator."""
        cuts = [program.degrees(index, len(op.dims)) for index, op in enumerate(graph.operators)]
        placements = tuple(Placement(cut, np.arange(int(np.prod(cut, dtype=np.int64)))) for cut in cuts)
        return cls(placements, schedule, program)

    @property
    def plain(self) -> bool:
        """Whether placements say everything: no program, and no schedule that orders anything."""
        return self.program is None and (self.schedule is None or self.schedule.trivial)

    def with_changes(self, changes: Mapping[int, Placement]) -> Strategy:
        """Return the strategy with the placements of some operators replaced, under the same schedule.

        A program tells more than placements, so that there is none any more, nor the duplex schedule of one.
        """
        placements = list(self.placements)
        for index, placement in changes.items():
            placements[index] = placement
        schedule = self.schedule
        if schedule is not None and schedule.kind is ScheduleKind.DUPLEX:
            schedule = None
        return Strategy(tuple(placements), schedule)

    def misfit(self, graph: OperatorGraph, n_devices: int) -> str:
        """Say why the model cannot follow the schedule, or run the program on so many devices; empty if it can."""
        schedule, program = self.schedule, self.program
        duplex = schedule is not None and schedule.kind is ScheduleKind.DUPLEX
        if program is None:
            if duplex:
                return "schedule: duplex: needs a program for all devices"
            return "" if schedule is None else schedule.misfit(graph, self.placements)
        if reason := program.misfit(graph, n_devices):
            return reason
        for index, (op, placement) in enumerate(zip(graph.operators, self.placements, strict=True)):
            if placement.degrees != (cut := program.degrees(index, len(op.dims))):
                return f"program: operator {op.name!r} is cut by {cut}, its placement by {placement.degrees}"
        if schedule is None:
            return ""
        if not duplex:
            return f"schedule: {schedule.kind}: a program for all devices needs a duplex schedule, or none"
        if reason := schedule.misfit(graph, self.placements):
            return reason
        for move in conversions_of(program, graph):
            if move.output >= 0 and schedule.stage[move.op] >= schedule.stage[move.users[0]]:
                names = [graph.operators[op].name for op in (move.op, move.users[0])]
                return (
                    f"schedule: duplex: {names[1]!r} wants what {names[0]!r} makes in another form, in the same stage "
                    f"{schedule.stage[move.op]} (stages begin with their conversions)"
                )
        return ""

    def check(self, graph: OperatorGraph, n_devices: int) -> None:
        """Raise `TopoplanError` unless the strategy fits the graph and the cluster."""
        if len(self.placements) != len(graph.operators):
            raise TopoplanError(f"strategy: {len(self.placements)} placements for {len(graph.operators)} operators")
        for op, placement in zip(graph.operators, self.placements, strict=True):
            if reason := op.misfit(placement.degrees):
                raise TopoplanError(f"strategy: {op.name!r}: {reason}")
            if placement.devices.min() < 0 or placement.devices.max() >= n_devices:
                raise TopoplanError(
                    f"strategy: {op.name!r} names device {placement.devices.max()} of a cluster of {n_devices}"
                )
        if reason := self.misfit(graph, n_devices):
            raise TopoplanError(f"strategy: {reason}")


def data_parallel(graph: OperatorGraph, op: int, devices: Sequence[int]) -> Placement:
    """Cut the sample dimension of operator ``op`` over ``devices``; one part where it has none."""
    operator = graph.operators[op]
    degrees = [1] * len(operator.dims)
    if operator.sample_dim < 0:
        return Placement(degrees, devices[:1])
    degrees[operator.sample_dim] = len(devices)
    return Placement(degrees, devices)
