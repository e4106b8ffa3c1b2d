"""Strategies: who computes what, and in which order a batch goes through the devices.

A strategy is one of several kinds, each a type of its own: `PlacedStrategy` (parts of operators on devices),
`PipelineStrategy` (the same, with micro-batches that pass stages) and `SpmdStrategy` (all devices run one program).
What every kind can say is in `Strategy`.  Searchers move from strategy to strategy by replacing placements;
`topoplan_engine.lowering` has one lowering to task graphs for each kind.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import attrs
import numpy as np

from topoplan.arrays import OneLine, digest
from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan.model.placement import Placement
from topoplan.model.schedule import Schedule, ScheduleKind
from topoplan.model.spmd import SpmdProgram

__all__ = ["PipelineStrategy", "PlacedStrategy", "SpmdStrategy", "Strategy"]


@attrs.frozen
class Strategy(ABC):
    """What every kind of strategy can say.

    Attributes:
        placements: how each operator of the graph is cut, and the devices of its parts, in the graph's order.
        keeps_whole_batch: whether the activations of the whole batch are in memory at once.
    """

    placements: tuple[Placement, ...]
    keeps_whole_batch: ClassVar[bool] = True

    @property
    @abstractmethod
    def schedule(self) -> Schedule:
        """The order of passes; a trivial one if the whole batch goes through at once and devices run what is ready."""

    @property
    def whole_batch(self) -> bool:
        """Whether the strategy has no schedule to speak of: the batch is not cut, and no stages are named."""
        return True

    @property
    def order_name(self) -> str:
        """What reports call the order of passes."""
        return str(self.schedule.kind)

    @property
    def _order_key(self) -> bytes:
        """What `key` says besides the placements."""
        return b""

    @functools.cached_property
    def key(self) -> bytes:
        """Value key: two strategies are equal iff their keys are."""
        return self._order_key + b"".join([placement.key for placement in self.placements])

    def with_changes(self, changes: Mapping[int, Placement]) -> Strategy:
        """Return the strategy with the placements of some operators replaced, in the same order of passes."""
        placements = list(self.placements)
        for index, placement in changes.items():
            placements[index] = placement
        return attrs.evolve(self, placements=tuple(placements))

    def why_invalid(self, graph: OperatorGraph, n_devices: int) -> str | None:
        """Return why placements, order of passes and cluster do not go together, or None if they do.

        Says nothing of single placements (`check` does), nor whether an SPMD program computes what the graph says
        (`topoplan_engine.sharding.programs.why_invalid`).
        """
        return None

    def check(self, graph: OperatorGraph, n_devices: int) -> None:
        """Raise `TopoplanError` unless the strategy fits the graph and the cluster."""
        if len(self.placements) != len(graph.operators):
            raise TopoplanError(f"strategy: {len(self.placements)} placements for {len(graph.operators)} operators")
        for op, placement in zip(graph.operators, self.placements, strict=True):
            if reason := op.why_invalid(placement.degrees):
                raise TopoplanError(f"strategy: {op.name!r}: {reason}")
            if placement.devices.min() < 0 or placement.devices.max() >= n_devices:
                raise TopoplanError(
                    f"strategy: {op.name!r} names device {placement.devices.max()} of a cluster of {n_devices}"
                )
        if reason := self.why_invalid(graph, n_devices):
            raise TopoplanError(f"strategy: {reason}")


@attrs.frozen(repr=False)
class PlacedStrategy(OneLine, Strategy):
    """Any operator on any devices; the whole batch goes through the model at once, devices run what is ready."""

    @property
    def schedule(self) -> Schedule:
        """A trivial one."""
        return Schedule.whole_batch(len(self.placements))

    def with_changes(self, changes: Mapping[int, Placement]) -> PlacedStrategy:
        """Return the strategy with the placements of some operators replaced."""
        placements = list(self.placements)
        for index, placement in changes.items():
            placements[index] = placement
        return PlacedStrategy(tuple(placements))


@attrs.frozen(repr=False)
class PipelineStrategy(OneLine, Strategy):
    """Micro-batches that pass stages; the operators of each stage are placed on devices of the stage.

    Attributes:
        schedule: the stage of each operator, and the order of passes.
    """

    schedule: Schedule
    keeps_whole_batch = False

    @property
    def whole_batch(self) -> bool:
        """See `Strategy.whole_batch`."""
        return False

    @property
    def _order_key(self) -> bytes:
        return digest([self.schedule])

    def why_invalid(self, graph: OperatorGraph, n_devices: int) -> str | None:
        """Return why the schedule does not go with the placements, or None if it does."""
        if self.schedule.kind is ScheduleKind.TWO_MICROBATCH:
            return "schedule: two-microbatch: needs an SPMD program"
        return self.schedule.why_invalid(graph, self.placements)


@attrs.frozen(repr=False)
class SpmdStrategy(OneLine, Strategy):
    """Every device runs every operator, each on its share of the tensors; placements only show how that cuts them.

    Attributes:
        program: the shardings of all tensors on a mesh of devices.
        schedule: a two-microbatch overlap; of one micro-batch with a stage for every operator if the
            whole batch goes through in the order of the program.  Activations of all micro-batches are there when the
            forward pass ends.
    """

    program: SpmdProgram
    schedule: Schedule

    @classmethod
    def of(cls, program: SpmdProgram, graph: OperatorGraph) -> SpmdStrategy:
        """Return the strategy of a program that takes the whole batch at once."""
        cuts = [program.degrees(index, len(op.dims)) for index, op in enumerate(graph.operators)]
        placements = tuple(Placement(cut, np.arange(int(np.prod(cut, dtype=np.int64)))) for cut in cuts)
        return cls(placements, program, Schedule.one_by_one(len(cuts)))

    @property
    def whole_batch(self) -> bool:
        """See `Strategy.whole_batch`."""
        return self.schedule == Schedule.one_by_one(len(self.schedule.stage))

    @property
    def _order_key(self) -> bytes:
        return digest([self.program, self.schedule])

    def with_changes(self, changes: Mapping[int, Placement]) -> Strategy:
        """Return placements alone: a program says more than they do, and fits changed ones no longer."""
        return PlacedStrategy(self.placements).with_changes(changes)

    def why_invalid(self, graph: OperatorGraph, n_devices: int) -> str | None:
        """Return why program, placements, schedule and cluster do not go together, or None if they do."""
        program, schedule = self.program, self.schedule
        if reason := program.why_invalid(graph, n_devices):
            return reason
        for index, (op, placement) in enumerate(zip(graph.operators, self.placements, strict=True)):
            if placement.degrees != (cut := program.degrees(index, len(op.dims))):
                return f"program: operator {op.name!r} is cut by {cut}, its placement by {placement.degrees}"
        if schedule.kind is not ScheduleKind.TWO_MICROBATCH:
            return f"schedule: {schedule.kind}: an SPMD program needs a two-microbatch schedule, or none"
        return schedule.why_invalid(graph, self.placements)
