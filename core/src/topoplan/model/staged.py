"""Pipelines whose stages run sharded programs: stages on meshes of their own, and one order of passes for all.

A `Stage` is a chunk of the model on a mesh of devices.  Its SPMD program says in which sharding every device has every
tensor; what other stages make arrives in the sharding that the program says that it is stored in.  A `PassOrder` says
when each rank runs which pass of which stage.  Pipelines of single devices and programs over all devices are the two
ends of what this can say: stages with one device each, and one stage.

`topoplan_engine.lowering.staged` makes the task graph: tensors between the meshes of two stages, sums of gradients, and
what travels of sharded state are derived there.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import attrs
import numpy as np

from topoplan.arrays import ARRAY_EQ, F64, I32, OneLine, digest, f64, i32, ints
from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan.model.mesh import DeviceMesh
from topoplan.model.pass_order import Pass, PassOrder
from topoplan.model.placement import Placement
from topoplan.model.schedule import Schedule, ScheduleKind
from topoplan.model.spmd import SpmdProgram
from topoplan.model.strategy import Strategy

__all__ = ["Stage", "StagedStrategy", "Zero"]


@attrs.frozen(kw_only=True)
class Zero:
    """Which devices share the state of weights that they all have, and how much of it (ZeRO).

    Level 1 shares the state of the optimizer: gradients are reduce-scattered, each device updates its share, and new
    weights are all-gathered.  Level 2 shares gradients, too, so that each micro-batch has its reduce-scatter.  Level 3
    shares the weights themselves, which is what a program stores in slices, and gathers again
    (`SpmdProgram.gathers_again`); it needs no axes here.

    Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020.

    Attributes:
        level: 0 (nothing is shared), 1 or 2.
        axes: numbers of the axes of the mesh along which devices share; none for level 0.
    """

    level: int = 0
    axes: tuple[int, ...] = attrs.field(default=(), converter=ints)

    def __attrs_post_init__(self) -> None:
        if self.level not in (0, 1, 2):
            raise TopoplanError(f"zero: level {self.level} (must be 0, 1 or 2; a program stores level 3 in slices)")
        if bool(self.level) != bool(self.axes) or len(set(self.axes)) != len(self.axes):
            raise TopoplanError(f"zero: level {self.level} with axes {self.axes} (each once; none for level 0)")


@attrs.frozen(kw_only=True, repr=False, hash=False)
class Stage(OneLine):
    """A chunk of the model, and the program that its devices run.

    Attributes:
        operators: (n,) numbers in the graph, ascending.
        mesh: the devices.
        program: of these operators, in this order, on a mesh of these sizes; what operators of other stages make
            arrives in the sharding in which it is stored.
        zero: what devices share.
        recomputed: (n,) number of the region that each operator lies in whose forward pass runs again together, right
            before its backward pass, and of which only the inputs are kept; -1 for an operator that keeps its
            activations.  Empty for none.
        shares: (k, D) how many times its part of an operator each place of the mesh has: tokens of busy experts, or
            heads of queries that are divided further than those of keys and values.
        share_of: (n,) row of ``shares`` for each operator; -1 for its part as it is.  Empty for none.
        rings: (n,) axis of the mesh along which slices of what each operator reads whole go from neighbour to neighbour
            while it works on those that are there; -1 for one that has all of them first.  Empty for none.
        zigzag: whether slices of positions are dealt in pairs from both ends, so that causal attention is as much work
            on every device.
        gradient_bytes: of a number of a weight's gradient, where it is summed and kept; 0 for as many as of the weight.
        gather_bytes: of a number of a weight, where it is gathered; 0 for as many as the weight has.
    """

    operators: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    mesh: DeviceMesh
    program: SpmdProgram
    zero: Zero = Zero()
    recomputed: I32 = attrs.field(default=(), converter=i32, eq=ARRAY_EQ)
    shares: F64 = attrs.field(default=(), converter=f64, eq=ARRAY_EQ)
    share_of: I32 = attrs.field(default=(), converter=i32, eq=ARRAY_EQ)
    rings: I32 = attrs.field(default=(), converter=i32, eq=ARRAY_EQ)
    zigzag: bool = True
    gradient_bytes: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    gather_bytes: int = attrs.field(default=0, validator=attrs.validators.ge(0))

    def __attrs_post_init__(self) -> None:
        count = len(self.operators)
        if not count or self.operators[0] < 0 or (np.diff(self.operators) <= 0).any():
            raise TopoplanError("stage: operators must be ascending numbers, at least one")
        if self.program.mesh != self.mesh.sizes:
            raise TopoplanError(
                f"stage: a program for a mesh of {_by(self.program.mesh)} on one of {_by(self.mesh.sizes)}"
            )
        if self.program.sharded_state:
            raise TopoplanError("stage: program has sharded_state (a stage says it as zero=Zero(level=2, axes=...))")
        if len(self.program.rules) != count:
            raise TopoplanError(f"stage: a program of {len(self.program.rules)} operators for {count} operators")
        if max(self.zero.axes, default=-1) >= len(self.mesh.sizes):
            raise TopoplanError(f"stage: zero: axis {max(self.zero.axes)} of a mesh of {len(self.mesh.sizes)} axes")
        if len(self.recomputed) not in (0, count):
            raise TopoplanError(f"stage: recomputed has {len(self.recomputed)} values for {count} operators (or none)")
        rows = len(self.shares) if self.shares.shape[1:] == (self.mesh.n_devices,) and self.shares.min() >= 0 else 0
        if len(self.share_of) not in (0, count) or self.share_of.max(initial=-1) >= rows:
            raise TopoplanError(f"stage: share_of names rows of shares, one for each of {count} operators (or none)")
        if len(self.rings) not in (0, count) or self.rings.max(initial=-1) >= len(self.mesh.sizes):
            raise TopoplanError(f"stage: rings names axes of the mesh, one for each of {count} operators (or none)")

    def __hash__(self) -> int:
        return hash(self.key)

    @functools.cached_property
    def key(self) -> bytes:
        """Value key: two stages are equal iff their keys are."""
        return digest([getattr(self, field.name) for field in attrs.fields(Stage)])

    @functools.cached_property
    def regions(self) -> I32:
        """(n,) `recomputed`, with -1 for all operators if there is none."""
        return self.recomputed if len(self.recomputed) else i32(np.full(len(self.operators), -1))

    def placement(self, position: int, n_dims: int) -> Placement:
        """Return how an operator, by its position in the stage, is cut, and the first device that has each part."""
        degrees = self.program.degrees(position, n_dims)
        part = self.program.part_of_place(position, n_dims)
        _, first = np.unique(part, return_index=True)
        return Placement(degrees, self.mesh.devices[first])


@attrs.frozen(repr=False)
class StagedStrategy(OneLine, Strategy):
    """Stages that run programs on meshes of their own, and the order in which ranks run their passes.

    Attributes:
        stages: in the order in which a micro-batch goes through them: the chunks of ``order``.
        order: which pass of which stage each rank of the pipeline runs, in turn.  The stages of one rank have the same
            devices, those of different ranks have none in common.
        micro_batches: equal parts of the batch.
        clips: whether weights are updated only once the norm of all gradients of all stages is known.
    """

    stages: tuple[Stage, ...]
    order: PassOrder
    micro_batches: int
    clips: bool = False
    keeps_whole_batch = False

    @classmethod
    def of(
        cls, graph: OperatorGraph, stages: Sequence[Stage], order: PassOrder, micro_batches: int, clips: bool = False
    ) -> StagedStrategy:
        """Return the strategy, whose placements follow from its stages.

        Raises:
            TopoplanError: the stages do not have every operator of the graph once.
        """
        if reason := _why_incomplete(graph, stages):
            raise TopoplanError(f"strategy: {reason}")
        return cls(_placements(graph, stages), tuple(stages), order, micro_batches, clips)

    @property
    def whole_batch(self) -> bool:
        """See `Strategy.whole_batch`."""
        return len(self.stages) == 1 and self.micro_batches == 1

    @functools.cached_property
    def stage_of(self) -> I32:
        """(n_ops,) the stage of each operator."""
        stage = np.zeros(len(self.placements), dtype=np.int32)
        for number, each in enumerate(self.stages):
            stage[each.operators] = number
        return i32(stage)

    @functools.cached_property
    def rank_of(self) -> I32:
        """(n_ops,) the rank of the pipeline that has each operator."""
        return i32(self.order.rank_of[self.stage_of])

    @property
    def schedule(self) -> Schedule:
        """The stage of each operator, and the kind of schedule that comes nearest to `order`, whose name says more."""
        named = {kind.value: kind for kind in ScheduleKind if kind is not ScheduleKind.TWO_MICROBATCH}
        named |= {"zb-h1": ScheduleKind.ZERO_BUBBLE}
        regions = [stage.regions for stage in self.stages]
        return Schedule(
            kind=named.get(self.order.name, ScheduleKind.GPIPE),
            micro_batches=self.micro_batches,
            stage=self.stage_of,
            recompute=[bool((each >= 0).all()) for each in regions] if any((r >= 0).any() for r in regions) else (),
        )

    @property
    def order_name(self) -> str:
        """See `Strategy.order_name`."""
        return self.order.name

    @functools.cached_property
    def _order_key(self) -> bytes:
        return digest([self.order, self.micro_batches, self.clips, *(stage.key for stage in self.stages)])

    def with_changes(self, changes: object) -> Strategy:
        """Refuse: stages say more than placements do.

        Raises:
            TopoplanError: always.
        """
        raise TopoplanError("strategy: operators of staged strategies cannot be placed one by one (change the stages)")

    def why_invalid(self, graph: OperatorGraph, n_devices: int) -> str | None:
        """Return why stages, order of passes, graph and cluster do not go together, or None if they do."""
        return (
            _why_incomplete(graph, self.stages)
            or self._why_misplaced()
            or self._why_misordered(graph)
            or self._why_uneven(graph)
            or self._why_no_program(graph, n_devices)
        )

    def _why_misplaced(self) -> str | None:
        """Return which pass or device does not fit the stages, or None."""
        order, stages = self.order, self.stages
        if order.n_chunks != len(stages):
            return f"order {order.name!r}: has {order.n_chunks} chunks for {len(stages)} stages (must be equal)"
        if order.n_micro_batches != self.micro_batches:
            return f"order {order.name!r}: has {order.n_micro_batches} micro-batches, the strategy {self.micro_batches}"
        if (order.row_of[Pass.FORWARD] < 0).any():
            return f"order {order.name!r}: two copies of the model in one pipeline are not lowered yet"
        for number in np.flatnonzero((order.row_of[Pass.RECOMPUTE] >= 0).any(axis=1)).tolist():
            if (stages[number].regions < 0).all():
                return f"order {order.name!r}: recomputes stage {number}, no operator of which is recomputed"
        owner: dict[int, int] = {}
        first_of: dict[int, int] = {}
        for number, (stage, rank) in enumerate(zip(stages, order.rank_of.tolist(), strict=True)):
            first = stages[first_of.setdefault(rank, number)]
            if set(stage.mesh.devices.tolist()) != set(first.mesh.devices.tolist()):
                return f"stages {first_of[rank]} and {number} are both on rank {rank}, but on different devices"
            for device in stage.mesh.devices.tolist():
                if owner.setdefault(device, rank) != rank:
                    return f"device {device} is on ranks {owner[device]} and {rank} (ranks have no device in common)"
        return None

    def _why_misordered(self, graph: OperatorGraph) -> str | None:
        """Return which operator comes before what it needs, or None."""
        ends = graph.edges.reshape(-1, 4)[:, [0, 2]]
        late = np.flatnonzero(self.stage_of[ends[:, 0]] > self.stage_of[ends[:, 1]])
        if not len(late):
            return None
        u, v = ends[late[0]].tolist()
        return (
            f"operator {graph.operators[v].name!r} of stage {self.stage_of[v]} needs the output of "
            f"{graph.operators[u].name!r} of stage {self.stage_of[u]} (stages must not fall along an edge)"
        )

    def _why_uneven(self, graph: OperatorGraph) -> str | None:
        """Return which operator has no equal parts for micro-batches and devices, or None."""
        count = self.micro_batches
        if count < 1 or graph.batch_size % count:
            return f"{count} micro-batches do not divide a batch of {graph.batch_size}"
        for op, placement in zip(graph.operators, self.placements, strict=True):
            if (dim := op.sample_dim) >= 0:
                size, degree = op.dims[dim].size, placement.degrees[dim]
                if size % (count * degree):
                    return (
                        f"operator {op.name!r} has {size} samples for {count} micro-batches on {degree} devices "
                        f"(needs a multiple of {count * degree})"
                    )
        return None

    def _why_no_program(self, graph: OperatorGraph, n_devices: int) -> str | None:
        """Return which program does not fit its operators, or the devices, or None."""
        fed = {(v, into) for _, _, v, into in graph.edges.reshape(-1, 4).tolist()}
        stage_of = self.stage_of
        sources = {(v, into): u for u, _, v, into in graph.edges.reshape(-1, 4).tolist()}
        for number, stage in enumerate(self.stages):
            if stage.mesh.devices.max() >= n_devices:
                return f"stage {number} names device {stage.mesh.devices.max()} of a cluster of {n_devices}"
            inside = {
                (position, into)
                for position, op in enumerate(stage.operators.tolist())
                for into in range(len(graph.operators[op].inputs))
                if (op, into) in fed and stage_of[sources[op, into]] == number
            }
            operators = [graph.operators[op] for op in stage.operators.tolist()]
            if reason := stage.program.why_unfit(operators, inside):
                return f"stage {number}: {reason}"
        expected = _placements(graph, self.stages)
        wrong = next((k for k, each in enumerate(expected) if each != self.placements[k]), None)
        return None if wrong is None else f"placement of {graph.operators[wrong].name!r} is not that of its stage"


def _by(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _why_incomplete(graph: OperatorGraph, stages: Sequence[Stage]) -> str | None:
    """Return which operator is in no stage or in two, or None."""
    numbers = np.concatenate([stage.operators for stage in stages]) if stages else np.zeros(0, dtype=np.int32)
    if len(numbers) and numbers.max() >= len(graph.operators):
        return f"a stage has operator {numbers.max()}, model {graph.name!r} has {len(graph.operators)}"
    times = np.bincount(numbers, minlength=len(graph.operators))
    odd = np.flatnonzero(times != 1)
    if not len(odd):
        return None
    return f"operator {graph.operators[odd[0]].name!r} is in {times[odd[0]]} stages (must be in one)"


def _placements(graph: OperatorGraph, stages: Sequence[Stage]) -> tuple[Placement, ...]:
    """Return how each operator is cut, and the devices that have its parts first."""
    placements: list[Placement | None] = [None] * len(graph.operators)
    for stage in stages:
        for position, op in enumerate(stage.operators.tolist()):
            placements[op] = stage.placement(position, len(graph.operators[op].dims))
    return tuple(placement for placement in placements if placement is not None)
