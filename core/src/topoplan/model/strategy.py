"""Strategies: who computes what, and in which order a batch goes through the devices.

A strategy is a `PlacedStrategy` (any operator on any devices) or a `topoplan.model.staged.StagedStrategy` (stages on
meshes of their own, which micro-batches pass).  What every kind can say is in `Strategy`.  Searchers move from strategy
to strategy by replacing placements; `topoplan_engine.lowering` has a lowering to task graphs for each kind.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import attrs
import numpy as np

from topoplan.arrays import I32, OneLine, i32
from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan.model.placement import Placement
from topoplan.model.spmd import SpmdProgram

__all__ = ["PlacedStrategy", "Strategy", "why_misordered"]


@attrs.frozen
class Strategy:
    """What every kind of strategy can say.

    Attributes:
        placements: how each operator of the graph is cut, and the devices of its parts, in the graph's order.
    """

    placements: tuple[Placement, ...]

    @property
    def micro_batches(self) -> int:
        """Equal parts of the batch, one after the other."""
        return 1

    @property
    def stage_of(self) -> I32:
        """(n_ops,) the stage of each operator, from 0 without gaps."""
        return i32(np.zeros(len(self.placements)))

    @property
    def recomputes(self) -> tuple[bool, ...]:
        """For each stage whether all of it runs its forward pass again before the backward one; empty for none."""
        return ()

    @property
    def whole_batch(self) -> bool:
        """Whether the strategy has no schedule to speak of: the batch is not cut, and no stages are named."""
        return True

    @property
    def program(self) -> SpmdProgram | None:
        """The SPMD program of all operators that all devices run, if there is one."""
        return None

    @property
    def order_name(self) -> str:
        """What reports call the order of passes; empty where devices run what is ready."""
        return ""

    @property
    def n_stages(self) -> int:
        """Number of stages; chunks where several are on the same devices."""
        return int(self.stage_of.max()) + 1

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
        placements = [changes.get(op, placement) for op, placement in enumerate(self.placements)]
        return attrs.evolve(self, placements=tuple(placements))

    def why_invalid(self, graph: OperatorGraph, n_devices: int) -> str | None:
        """Return why placements, order of passes and cluster do not go together, or None if they do.

        Single placements are left to `check`, programs to `topoplan_engine.sharding.programs.why_invalid`.
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
                most = placement.devices.max()
                raise TopoplanError(f"strategy: {op.name!r} names device {most} of a cluster of {n_devices}")
        if reason := self.why_invalid(graph, n_devices):
            raise TopoplanError(f"strategy: {reason}")


@attrs.frozen(repr=False)
class PlacedStrategy(OneLine, Strategy):
    """Any operator on any devices; the whole batch goes through the model at once, devices run what is ready."""


def why_misordered(stage_of: I32, graph: OperatorGraph) -> str | None:
    """Return which operator comes before what it needs, given the stage of each, or None."""
    ends = graph.edges.reshape(-1, 4)[:, [0, 2]]
    late = np.flatnonzero(stage_of[ends[:, 0]] > stage_of[ends[:, 1]])
    if not len(late):
        return None
    u, v = ends[late[0]].tolist()
    return (
        f"operator {graph.operators[v].name!r} of stage {stage_of[v]} needs the output of "
        f"{graph.operators[u].name!r} of stage {stage_of[u]} (stages must not fall along an edge)"
    )
