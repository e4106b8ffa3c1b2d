"""Pipelines: stages on devices of their own, and one order of passes for all.

A `Stage` is a chunk of the model on a mesh of devices.  Its body says how they share the work.  An SPMD program says in
which sharding every device has every tensor; what other stages make arrives in the sharding that the program says that
it is stored in.  Placements say of each operator by itself how it is cut and which devices run its parts, as planners
in the manner of DAPPLE do.  A `PassOrder` says when each rank runs which pass of which stage.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from topoplan.arrays import ARRAY_EQ, F64, I32, OneLine, digest, f64, i32, ints
from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan.model.mesh import DeviceMesh
from topoplan.model.pass_order import Pass, PassOrder
from topoplan.model.placement import Placement
from topoplan.model.spmd import SpmdProgram
from topoplan.model.strategy import PlacedStrategy, Strategy, why_misordered

__all__ = ["Stage", "StagedStrategy", "Zero"]


@attrs.frozen(kw_only=True)
class Zero:
    """Which devices share the state of weights that they all have, and how much of it (ZeRO).

    Level 1 shares the state of the optimizer: gradients are reduce-scattered, each device updates its share, and new
    weights are all-gathered.  Level 2 shares gradients, too, so that each micro-batch has its reduce-scatter.  Level 3,
    a program that stores weights in slices (`SpmdProgram.gathers_again`), needs no axes here.  Source: Rajbhandari et
    al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, SC 2020.

    Attributes:
        level: 0 (nothing is shared), 1 or 2.
        axes: numbers of the axes of the mesh along which devices share; none for level 0.
        ahead: whether weights are gathered ahead of the next forward pass that reads them, not behind the update.
    """

    level: int = 0
    axes: tuple[int, ...] = attrs.field(default=(), converter=ints)
    ahead: bool = False

    def __attrs_post_init__(self) -> None:
        if self.level not in (0, 1, 2):
            raise TopoplanError(f"zero: level {self.level} (must be 0, 1 or 2; a program stores level 3 in slices)")
        if bool(self.level) != bool(self.axes) or len(set(self.axes)) != len(self.axes):
            raise TopoplanError(f"zero: level {self.level} with axes {self.axes} (each once; none for level 0)")


@attrs.frozen(kw_only=True, repr=False, hash=False)
class Stage(OneLine):
    """A chunk of the model, and what its devices run of it.

    Attributes:
        operators: (n,) numbers in the graph, ascending.
        mesh: the devices.
        body: of these operators, in this order: a program on a mesh of these sizes, where what operators of other
            stages make arrives in the sharding in which it is stored; or a placement of each on devices of the mesh.
        zero: what devices share; nothing where operators are placed.
        recomputed: (n,) number of the region that each operator lies in whose forward pass runs again together, right
            before its backward pass, and of which only the inputs are kept; -1 for an operator that keeps its
            activations.  Empty for none.  Where operators are placed, all of them or none.
        shares: (k, D) how many times its part of an operator each place of the mesh has: tokens of busy experts, or
            heads of queries that are divided further than those of keys and values.
        share_of: (n,) row of ``shares`` for each operator; -1 for its part as it is.  Empty for none.
        rings: (n,) axis of the mesh along which slices of what each operator reads whole go from neighbour to neighbour
            while it works on those that are there; -1 for one that has all of them first.  Empty for none.
        zigzag: whether slices of positions are dealt in pairs from both ends, so that causal attention is as much work
            on every device.
        gradient_bytes: of a number of a weight's gradient, where it is summed and kept; 0 for as many as of the weight.
        gather_bytes: of a number of a weight, where it is gathered; 0 for as many as the weight has.
        dispatch: neighbours along the axis of experts to which a token is sent once; 0: once for each of its experts.
        slowdown: share by which computing beside messages is slower: their kernels take a part of a device.
    """

    operators: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    mesh: DeviceMesh
    body: SpmdProgram | tuple[Placement, ...]
    zero: Zero = Zero()
    recomputed: I32 = attrs.field(default=(), converter=i32, eq=ARRAY_EQ)
    shares: F64 = attrs.field(default=(), converter=f64, eq=ARRAY_EQ)
    share_of: I32 = attrs.field(default=(), converter=i32, eq=ARRAY_EQ)
    rings: I32 = attrs.field(default=(), converter=i32, eq=ARRAY_EQ)
    zigzag: bool = True
    gradient_bytes: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    gather_bytes: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    dispatch: int = attrs.field(default=0, validator=attrs.validators.ge(0))
    slowdown: float = attrs.field(default=0.0, validator=attrs.validators.ge(0))

    def __attrs_post_init__(self) -> None:
        count = len(self.operators)
        if not count or self.operators[0] < 0 or (np.diff(self.operators) <= 0).any():
            raise TopoplanError("stage: operators must be ascending numbers, at least one")
        described = len(self.body if isinstance(self.body, tuple) else self.body.rules)
        if described != count:
            raise TopoplanError(f"stage: a body of {described} operators for {count} operators")
        if self.is_placed:
            self._check_placed()
        elif self.program.mesh != self.mesh.sizes:
            where = f"a mesh of {_by(self.program.mesh)} on one of {_by(self.mesh.sizes)}"
            raise TopoplanError(f"stage: a program for {where}")
        if max(self.zero.axes, default=-1) >= len(self.mesh.sizes):
            raise TopoplanError(f"stage: zero: axis {max(self.zero.axes)} of a mesh of {len(self.mesh.sizes)} axes")
        if len(self.recomputed) not in (0, count):
            raise TopoplanError(f"stage: recomputed has {len(self.recomputed)} values for {count} operators (or none)")
        rows = len(self.shares) if self.shares.shape[1:] == (self.mesh.n_devices,) and self.shares.min() >= 0 else 0
        if len(self.share_of) not in (0, count) or self.share_of.max(initial=-1) >= rows:
            raise TopoplanError(f"stage: share_of names rows of shares, one for each of {count} operators (or none)")
        if len(self.rings) not in (0, count) or self.rings.max(initial=-1) >= len(self.mesh.sizes):
            raise TopoplanError(f"stage: rings names axes of the mesh, one for each of {count} operators (or none)")

    @classmethod
    def placed(cls, operators: Sequence[int], placements: Sequence[Placement], *, recompute: bool = False) -> Stage:
        """Return a stage whose operators are placed one by one, on the devices that they name."""
        devices = np.unique(np.concatenate([placement.devices for placement in placements]))
        return cls(
            operators=operators,
            mesh=DeviceMesh(axes=("device",), sizes=(len(devices),), devices=devices),
            body=tuple(placements),
            recomputed=np.zeros(len(operators)) if recompute else (),
        )

    def _check_placed(self) -> None:
        if self.zero.level or self.slowdown or len(np.unique(self.recomputed)) > 1:
            raise TopoplanError("stage: placed operators share no state, slow nothing, and all or none are recomputed")
        named = np.unique(np.concatenate([placement.devices for placement in self.body]))  # type: ignore[union-attr]
        if not np.array_equal(named, np.sort(self.mesh.devices)):
            raise TopoplanError("stage: the mesh must have the devices of its placements")

    def __hash__(self) -> int:
        return hash(self.key)

    @functools.cached_property
    def key(self) -> bytes:
        """Value key: two stages are equal iff their keys are."""
        body = b"".join(each.key for each in self.body) if isinstance(self.body, tuple) else self.body
        return digest([body, *(getattr(self, field.name) for field in attrs.fields(Stage) if field.name != "body")])

    @property
    def is_placed(self) -> bool:
        """Whether its operators are placed one by one, and no program is there."""
        return isinstance(self.body, tuple)

    @property
    def program(self) -> SpmdProgram:
        """The program that all devices run.

        Raises:
            TopoplanError: operators are placed one by one.
        """
        if isinstance(self.body, tuple):
            raise TopoplanError("stage: its operators are placed one by one, and run no program")
        return self.body

    @functools.cached_property
    def regions(self) -> I32:
        """(n,) `recomputed`, with -1 for all operators if there is none."""
        return self.recomputed if len(self.recomputed) else i32(np.full(len(self.operators), -1))

    def placement(self, position: int, n_dims: int) -> Placement:
        """Return how an operator, by its position in the stage, is cut, and the first device that has each part."""
        if isinstance(self.body, tuple):
            return self.body[position]
        cut = n_dims, tuple(rule.dim for rule in self.program.rules[position])
        if cut not in self._placements:
            _, first = np.unique(self.program.part_of_place(position, n_dims), return_index=True)
            self._placements[cut] = Placement(self.program.degrees(position, n_dims), self.mesh.devices[first])
        return self._placements[cut]

    @functools.cached_property
    def _placements(self) -> dict[object, Placement]:
        return {}  # by the dimensions that operators cut


@attrs.frozen(repr=False)
class StagedStrategy(OneLine, Strategy):
    """Stages on meshes of their own, and the order in which ranks run their passes.

    Attributes:
        stages: in the order in which a micro-batch goes through them: the chunks of ``order``.  Where ``order`` deals
            micro-batches to several sets of chunks, each is a copy of the model with the same stages.
        order: which pass of which stage each rank of the pipeline runs, in turn.  The stages of one rank have the same
            devices, or some of the same where operators are placed; those of different ranks have none in common.
        micro_batches: equal parts of the batch.
        clips: whether weights are updated only once the norm of all gradients of all stages is known.
        pairs: whether a forward and a backward pass that follow each other on a rank run at the same time.
        blocks: whether ranks begin no pass before what they sent after the last one has arrived.
        one_stream: whether the stages are parts of one program of all devices, which have one communication stream for
            all collectives.  Bodies do not say how tensors of other parts arrive: who reads one first converts it.
    """

    stages: tuple[Stage, ...]
    order: PassOrder
    micro_batches: int
    clips: bool = False
    blocks: bool = False
    one_stream: bool = False
    pairs: bool = False

    @classmethod
    def of(
        cls, graph: OperatorGraph, stages: Sequence[Stage], order: PassOrder, micro_batches: int, *flags: bool
    ) -> StagedStrategy:
        """Return the strategy, whose placements follow from its stages; ``flags`` are the fields behind them.

        Raises:
            TopoplanError: the stages do not have every operator of the graph once, in each copy of the model.
        """
        if reason := _why_incomplete(graph, stages, order):
            raise TopoplanError(f"strategy: {reason}")
        return cls(_placements(graph, stages), tuple(stages), order, micro_batches, *flags)

    @classmethod
    def placed(cls, placements: Sequence[Placement], stage_of: Sequence[int], order: PassOrder) -> StagedStrategy:
        """Return a pipeline of placed operators, whose recomputed stages and micro-batches are those of the order.

        Args:
            placements: of every operator.
            stage_of: the stage of each, from 0 without gaps.
            order: of the passes of these stages.
        """
        numbers = np.asarray(stage_of)
        is_rerun = (order.row_of[Pass.RECOMPUTE] >= 0).any(axis=1)
        stages = []
        for number in range(int(numbers.max()) + 1):
            operators = np.flatnonzero(numbers == number).tolist()
            if not operators or number >= order.n_chunks:
                what = "has no operator" if not operators else f"is none of the {order.n_chunks} chunks of the order"
                raise TopoplanError(f"strategy: stage {number} {what}")
            parts = [placements[op] for op in operators]
            stages.append(Stage.placed(operators, parts, recompute=bool(is_rerun[number])))
        return cls(tuple(placements), tuple(stages), order, order.n_micro_batches)

    @property
    def is_placed(self) -> bool:
        """Whether the operators of the first stage, and so of all, are placed one by one."""
        return self.stages[0].is_placed

    @property
    def whole_batch(self) -> bool:
        """See `Strategy.whole_batch`."""
        return len(self.stages) == 1 and self.micro_batches == 1 and not self.is_placed

    @functools.cached_property
    def program(self) -> SpmdProgram | None:
        """See `Strategy.program`: what the stages are parts of, if they have one stream."""
        if not self.one_stream:
            return None
        bodies = [stage.program for stage in self.stages]
        order = np.argsort(np.concatenate([stage.operators for stage in self.stages])).tolist()
        rules = [row for body in bodies for row in body.rules]
        stored = [row for body in bodies for row in body.stored]
        return attrs.evolve(bodies[0], rules=tuple(rules[k] for k in order), stored=tuple(stored[k] for k in order))

    @functools.cached_property
    def copy_of(self) -> I32:
        """(stages,) the copy of the model that each stage belongs to."""
        return _copy_of(self.stages, self.order)

    @functools.cached_property
    def stage_of_copies(self) -> I32:
        """(copies, n_ops) the stage of each operator."""
        stage = np.zeros((int(self.copy_of.max()) + 1, len(self.placements)), dtype=np.int32)
        for number, each in enumerate(self.stages):
            stage[self.copy_of[number], each.operators] = number
        return i32(stage)

    @functools.cached_property
    def stage_of(self) -> I32:
        """(n_ops,) the stage of each operator; of the first copy of the model."""
        return i32(self.stage_of_copies[0])

    @functools.cached_property
    def rank_of(self) -> I32:
        """(n_ops,) the rank of the pipeline that has each operator."""
        return i32(self.order.rank_of[self.stage_of])

    @property
    def recomputes(self) -> tuple[bool, ...]:
        """See `Strategy.recomputes`."""
        regions = [stage.regions for stage in self.stages]
        is_rerun = any((each >= 0).any() for each in regions)
        return tuple(bool((each >= 0).all()) for each in regions) if is_rerun else ()

    @property
    def order_name(self) -> str:
        """See `Strategy.order_name`."""
        return self.order.name

    @functools.cached_property
    def _order_key(self) -> bytes:
        flags = self.clips, self.blocks, *((self.one_stream, self.pairs) if self.one_stream or self.pairs else ())
        return digest([self.order, self.micro_batches, *flags, *(stage.key for stage in self.stages)])

    def with_changes(self, changes: Mapping[int, Placement]) -> Strategy:
        """Return the strategy with the placements of some operators replaced; those of one program alone are left then.

        Raises:
            TopoplanError: its stages run programs of their own, which say more than placements do.
        """
        if self.one_stream:
            return PlacedStrategy(self.placements).with_changes(changes)
        if not self.is_placed:
            raise TopoplanError("strategy: operators of programs cannot be placed one by one (change the stages)")
        placements = [changes.get(op, placement) for op, placement in enumerate(self.placements)]
        return StagedStrategy.placed(placements, self.stage_of.tolist(), self.order)

    def why_invalid(self, graph: OperatorGraph, n_devices: int) -> str | None:
        """Return why stages, order of passes and cluster do not go together, or None if they do.

        Whether samples can be divided so, and programs fit, `topoplan_engine.sharding.programs.why_invalid` says.
        """
        reason = _why_incomplete(graph, self.stages, self.order) or why_misordered(self.stage_of, graph)
        return reason or self._why_misplaced(n_devices)

    def _why_misplaced(self, n_devices: int) -> str | None:
        """Return which pass or device does not fit the stages, or None."""
        order, stages = self.order, self.stages
        if order.n_chunks != len(stages):
            return f"order {order.name!r}: has {order.n_chunks} chunks for {len(stages)} stages (must be equal)"
        if order.n_micro_batches != self.micro_batches:
            return f"order {order.name!r}: has {order.n_micro_batches} micro-batches, the strategy {self.micro_batches}"
        several_copies = [np.flatnonzero(self.copy_of == copy) for copy in range(len(self.stage_of_copies))]
        copies = [[stages[k] for k in numbers] for numbers in several_copies]
        for several in zip(*copies, strict=False):
            parts = {(stage.operators.tobytes(), stage.mesh.sizes, stage.body, stage.zero) for stage in several}
            if len(parts) > 1 or len({*map(len, copies)}) > 1:
                return f"order {order.name!r}: copies of the model must have equal stages, each on other devices"
        for number in np.flatnonzero((order.row_of[Pass.RECOMPUTE] >= 0).any(axis=1)).tolist():
            if (stages[number].regions < 0).all():
                return f"order {order.name!r}: recomputes stage {number}, no operator of which is recomputed"
        if self.is_placed and self.copy_of.any():
            return f"order {order.name!r}: needs two copies of the model, whose stages run programs and are not placed"
        if len({stage.is_placed for stage in stages}) > 1:
            return "operators of some stages are placed one by one, those of others run a program (must be one kind)"
        owner = np.full(n_devices, -1)
        first_of: dict[int, int] = {}
        for number, (stage, rank) in enumerate(zip(stages, order.rank_of.tolist(), strict=True)):
            first, devices = stages[first_of.setdefault(rank, number)], stage.mesh.devices
            if not stage.is_placed and not np.array_equal(np.sort(devices), np.sort(first.mesh.devices)):
                return f"stages {first_of[rank]} and {number} are both on rank {rank}, but on different devices"
            if devices.max() >= n_devices:
                return f"stage {number} names device {devices.max()} of a cluster of {n_devices}"
            for device in devices[(owner[devices] >= 0) & (owner[devices] != rank)].tolist():
                return f"device {device} is on ranks {owner[device]} and {rank} (ranks have no device in common)"
            owner[devices] = rank
        return None


def _by(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _copy_of(stages: Sequence[Stage], order: PassOrder) -> I32:
    """(stages,) the copy of the model of each stage: those with the same first micro-batch; one if there is none."""
    if len(stages) != order.n_chunks:
        return i32(np.zeros(len(stages)))
    return i32(np.unique((order.row_of[Pass.FORWARD] >= 0).argmax(axis=1), return_inverse=True)[1])


def _why_incomplete(graph: OperatorGraph, stages: Sequence[Stage], order: PassOrder) -> str | None:
    """Return which operator is in no stage or in two, or None."""
    copy = _copy_of(stages, order)
    for number in range(int(copy.max(initial=0)) + 1):
        numbers = [stage.operators for stage, of in zip(stages, copy, strict=True) if of == number]
        times = np.bincount(np.concatenate([np.zeros(0, np.int32), *numbers]), minlength=len(graph.operators))
        if len(times) > len(graph.operators):
            return f"a stage has operator {len(times) - 1}, model {graph.name!r} has {len(graph.operators)}"
        if len(odd := np.flatnonzero(times != 1)):
            return f"operator {graph.operators[odd[0]].name!r} is in {times[odd[0]]} stages (must be in one)"
    return None


def _placements(graph: OperatorGraph, stages: Sequence[Stage]) -> tuple[Placement, ...]:
    """Return how each operator is cut, and the devices that have its parts first."""
    placements: list[Placement | None] = [None] * len(graph.operators)
    for stage in reversed(stages):  # that of the first copy of the model last
        for position, op in enumerate(stage.operators.tolist()):
            placements[op] = stage.placement(position, len(graph.operators[op].dims))
    return tuple(placement for placement in placements if placement is not None)
