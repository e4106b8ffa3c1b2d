"""Moves between staged strategies: layout, border of a stage, micro-batches, ZeRO, recomputation.

`StagedMoves.draw` draws a kind of move, then one of that kind, and returns a strategy that fits the problem.  What a
move leaves alone stays as it is: programs keep the signatures of all operators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from topoplan import Host, PipelineSchedule, Problem, Stage, StagedStrategy, TopoplanError, Zero
from topoplan.arrays import I32
from topoplan.model.pass_order import Pass
from topoplan_engine.checked_values import build_order
from topoplan_engine.equal_operators import layers_of
from topoplan_engine.recomputation import regions_of
from topoplan_engine.sharding.programs import why_invalid
from topoplan_engine.sharding.stage_programs import stage_programs

__all__ = ["StagedMoves"]

#: Draws until one is a strategy that differs and fits.
_TRIES = 30
_SHARED = ("dp", "shard", "ep", "ep-cp", "cp")


class StagedMoves:
    """Draws moves for the staged strategies of one problem."""

    def __init__(self, problem: Problem) -> None:
        self._graph, self._n_devices = problem.graph, problem.cluster.n_devices
        self._layer = layers_of(problem.graph).layer
        self._host: Host | None = None

    def draw(self, strategy: StagedStrategy, rng: np.random.Generator) -> StagedStrategy:
        """Return a strategy next to ``strategy``; itself where nothing was found."""
        moves = (self._other_layout, self._moved_border, self._other_micro_batches, self._other_zero, self._other_again)
        for _ in range(_TRIES):
            try:
                moved = moves[int(rng.integers(len(moves)))](strategy, rng)
            except TopoplanError:  # a schedule without an order of so many micro-batches, say
                continue
            if moved is None or moved.key == strategy.key:
                continue
            if not why_invalid(moved, self._graph, self._n_devices):
                return moved
        return strategy

    def _other_layout(self, strategy: StagedStrategy, rng: np.random.Generator) -> StagedStrategy | None:
        """Let two axes, of a mesh or of the ranks, change places in the order of devices."""
        if strategy.is_placed:
            return None
        first = [strategy.order.rank_of.tolist().index(rank) for rank in range(strategy.order.n_ranks)]
        meshes = [strategy.stages[number].mesh for number in first]
        if len({mesh.sizes for mesh in meshes}) > 1:
            return None
        devices = np.stack([mesh.devices.reshape(mesh.sizes) for mesh in meshes])
        wide = [axis for axis, size in enumerate(devices.shape) if size > 1]
        if len(wide) < 2:
            return None
        first_axis, second_axis = rng.choice(wide, 2, replace=False).tolist()
        new_number = np.empty(int(devices.max()) + 1, dtype=np.int32)
        new_number[devices.ravel()] = devices.swapaxes(first_axis, second_axis).ravel()
        stages = [
            attrs.evolve(stage, mesh=attrs.evolve(stage.mesh, devices=new_number[stage.mesh.devices]))
            for stage in strategy.stages
        ]
        return self._with(strategy, stages)

    def _moved_border(self, strategy: StagedStrategy, rng: np.random.Generator) -> StagedStrategy | None:
        """Move a layer from a stage to the next or the previous one."""
        stages = strategy.stages
        same = {(stage.mesh.axes, stage.mesh.sizes, stage.shares.tobytes()) for stage in stages}
        if len(stages) < 2 or len(same) > 1 or "kv" in stages[0].mesh.axes:
            return None
        if any(stage.program.gathers_again for stage in stages):
            return None
        border, later = int(rng.integers(len(stages) - 1)), bool(rng.integers(2))
        giver = stages[border if later else border + 1].operators.tolist()
        named = [op for op in giver if self._layer[op]]
        if not named:
            return None
        name = self._layer[named[-1 if later else 0]]
        layer = [op for op in named if self._layer[op] == name]
        moved = [op for op in giver if (op >= layer[0] if later else op <= layer[-1])]
        if len(moved) == len(giver):
            return None
        stage_of = strategy.stage_of.copy()
        stage_of[moved] = border + 1 if later else border
        return self._divided(strategy, stage_of)

    def _divided(self, strategy: StagedStrategy, stage_of: I32) -> StagedStrategy:
        """Return the strategy with its operators on other stages."""
        stages, n_ops = strategy.stages, len(strategy.stage_of)
        regions, shares, rings = (np.full(n_ops, -1, dtype=np.int32) for _ in range(3))
        rules: list[tuple[object, ...]] = [()] * n_ops
        for stage in stages:
            regions[stage.operators] = stage.regions
            shares[stage.operators] = stage.share_of if len(stage.share_of) else -1
            rings[stage.operators] = stage.rings if len(stage.rings) else -1
            for op, rule in zip(stage.operators.tolist(), stage.program.rules, strict=True):
                rules[op] = rule
        bucket = stages[0].program.gradient_bucket_bytes
        sizes = [stage.mesh.sizes for stage in stages]
        programs = stage_programs(self._graph, stage_of.tolist(), sizes, rules, bucket)  # type: ignore[arg-type]
        changed = []
        for number, (stage, program) in enumerate(zip(stages, programs, strict=True)):
            operators = np.flatnonzero(stage_of == number)
            columns = {"recomputed": regions, "share_of": shares, "rings": rings}
            own_columns = {name: column[operators] for name, column in columns.items()}
            columns_used: dict[str, Any] = {
                name: column if (column >= 0).any() else () for name, column in own_columns.items()
            }
            if len(stage.shares):
                columns_used["share_of"] = own_columns["share_of"]
            changed.append(attrs.evolve(stage, operators=operators, body=program, **columns_used))
        return self._with(strategy, changed)

    def _other_micro_batches(self, strategy: StagedStrategy, rng: np.random.Generator) -> StagedStrategy | None:
        """Have twice or half as many micro-batches."""
        count, order = strategy.micro_batches, strategy.order
        new_count = 2 * count if rng.integers(2) else count // 2
        if not new_count or self._graph.batch_size % new_count or strategy.pairs:
            return None
        self._host = self._host or Host.discover()
        options = {"chunks": order.n_chunks // order.n_ranks} if order.name == "interleaved" else {}
        new_order = build_order(self._host.make(PipelineSchedule, order.name, options), order.n_ranks, new_count)
        if not np.array_equal(new_order.rank_of, order.rank_of):
            return None
        if strategy.is_placed:
            return attrs.evolve(strategy, order=new_order, micro_batches=new_count)
        return StagedStrategy.of(self._graph, strategy.stages, new_order, new_count, strategy.clips, strategy.blocks)

    def _other_zero(self, strategy: StagedStrategy, rng: np.random.Generator) -> StagedStrategy | None:
        """Let devices share more or less of the state of their weights."""
        level = int(rng.integers(3))
        stages = []
        for stage in strategy.stages:
            axes, sizes = stage.mesh.axes, stage.mesh.sizes
            shared = tuple(k for k, axis in enumerate(axes) if axis in _SHARED and sizes[k] > 1)
            if "shard" in axes:  # all but the replicas of groups that share
                shared = tuple(k for k in shared if axes[k] != "dp")
            if stage.program.gathers_again or not shared:
                return None
            stages.append(attrs.evolve(stage, zero=Zero(level=level, axes=shared) if level else Zero()))
        return self._with(strategy, stages)

    def _other_again(self, strategy: StagedStrategy, rng: np.random.Generator) -> StagedStrategy | None:
        """Let other operators run again."""
        if strategy.is_placed or (strategy.order.row_of[Pass.RECOMPUTE] >= 0).any():
            return None
        way = ("none", "selective", "every:2", "full")[int(rng.integers(4))]
        regions = regions_of(way, self._graph)
        stages = []
        for stage in strategy.stages:
            stage_regions = regions[stage.operators]
            stages.append(attrs.evolve(stage, recomputed=stage_regions if (stage_regions >= 0).any() else ()))
        return self._with(strategy, stages)

    def _with(self, strategy: StagedStrategy, stages: Sequence[Stage]) -> StagedStrategy:
        return StagedStrategy.of(
            self._graph, stages, strategy.order, strategy.micro_batches, strategy.clips, strategy.blocks
        )
