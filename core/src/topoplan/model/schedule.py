"""Schedules: a batch cut into micro-batches that go through the stages of a pipeline.

A strategy says where operators run; its schedule says in which order the devices of each stage work on which
micro-batch.  `topoplan_engine.lowering.pipeline` makes the task graph of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Any

import attrs
import numpy as np

from topoplan.arrays import ARRAY_EQ, I32, i32
from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan.model.placement import Placement

__all__ = ["Schedule", "ScheduleKind", "pipeline_depth"]


class ScheduleKind(StrEnum):
    """In which order the devices of a stage take forward and backward passes."""

    GPIPE = "gpipe"
    """All forward passes, then all backward passes (Huang et al., GPipe, NeurIPS 2019)."""
    ONE_F_ONE_B = "1f1b"
    """As many forward passes as there are stages to come, then one backward and one forward pass in turn: the early
    backward schedule of DAPPLE (Fan et al., PPoPP 2021), flushed after each batch."""
    DEEP = "1f1b-deep"
    """The same with twice as many forward passes ahead, less one, which hides transfers that take as long as passes:
    DAPPLE's policy for models with large activations (section 3.2), at the price of more memory."""
    INTERLEAVED = "interleaved"
    """The same where every device has several chunks of the model (Narayanan et al., SC'21, section 2.2)."""
    ZERO_BUBBLE = "zero-bubble"
    """One forward, one backward, with the gradients of weights put off into what would be bubbles: ZB-H1, which keeps
    no more activations than 1F1B (Qi et al., Zero Bubble Pipeline Parallelism, ICLR 2024, section 2.2)."""
    TWO_MICROBATCH = "two-microbatch"
    """Of an SPMD program: stages follow each other on all devices, micro-batches take turns in each, and one
    computes while another one communicates (HiDup, Zhang et al., SoCC 2022, section 3.3, with two of them)."""

    @classmethod
    def _missing_(cls, value: object) -> ScheduleKind | None:
        """Return the kind of an old plan's word."""
        return cls.TWO_MICROBATCH if value == "duplex" else None


def _kind(word: Any) -> ScheduleKind:
    try:
        return ScheduleKind(word)
    except ValueError:
        raise TopoplanError(f"schedule: kind {word!r} is unknown (must be {', '.join(ScheduleKind)})") from None


def _flags(values: Iterable[bool]) -> tuple[bool, ...]:
    return tuple(bool(flag) for flag in values)


@attrs.frozen(kw_only=True, hash=False)
class Schedule:
    """How a batch goes through a pipeline.

    Attributes:
        kind: the order of passes.
        micro_batches: equal parts of the batch, one after the other.
        stage: (n_ops,) stage of each operator, numbered from 0 without gaps; never falls along an edge.  The devices
            of different stages differ, except in an interleaved schedule: there a stage is a chunk, and chunk ``k``
            runs on the devices of chunk ``k % depth``; and in a two-microbatch one, whose stages all devices have.
        recompute: for each stage, whether it keeps its inputs only and runs its forward pass again before the
            backward one; empty for none.
    """

    kind: ScheduleKind = attrs.field(converter=_kind)
    micro_batches: int
    stage: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    recompute: tuple[bool, ...] = attrs.field(default=(), converter=_flags)

    def __attrs_post_init__(self) -> None:
        if self.micro_batches < 1:
            raise TopoplanError(f"schedule: {self.micro_batches} micro-batches (must be at least 1)")
        if self.stage.ndim != 1 or not len(self.stage) or self.stage.min() < 0:
            raise TopoplanError("schedule: stage must name a stage, from 0 up, for every operator")
        missing = np.flatnonzero(np.bincount(self.stage) == 0)
        if len(missing):
            raise TopoplanError(f"schedule: stage {missing[0]} of {self.n_stages} has no operator")
        if len(self.recompute) not in (0, self.n_stages):
            raise TopoplanError(
                f"schedule: recompute has {len(self.recompute)} values for {self.n_stages} stages (one each, or none)"
            )

    def __hash__(self) -> int:
        return hash((self.kind, self.micro_batches, self.stage.tobytes(), self.recompute))

    @classmethod
    def whole_batch(cls, n_ops: int) -> Schedule:
        """Return the schedule that orders nothing: the whole batch in one stage."""
        return cls(kind=ScheduleKind.GPIPE, micro_batches=1, stage=np.zeros(n_ops, dtype=np.int32))

    @classmethod
    def one_by_one(cls, n_ops: int) -> Schedule:
        """Return the schedule of a program whose whole batch passes its operators one after the other."""
        return cls(kind=ScheduleKind.TWO_MICROBATCH, micro_batches=1, stage=np.arange(n_ops, dtype=np.int32))

    @property
    def n_stages(self) -> int:
        """Number of stages; in an interleaved schedule, of chunks."""
        return int(self.stage.max()) + 1

    @property
    def trivial(self) -> bool:
        """Whether it leaves nothing to order: one stage, one micro-batch, and no pass twice."""
        return self.micro_batches == 1 and self.n_stages == 1 and not any(self.recompute)

    def why_invalid(self, graph: OperatorGraph, placements: Sequence[Placement]) -> str | None:
        """Return why operators placed like this cannot follow the schedule, or None if they can."""
        count, operators = self.micro_batches, graph.operators
        if len(self.stage) != len(operators):
            return f"schedule: has stages for {len(self.stage)} operators, model {graph.name!r} has {len(operators)}"
        if self.kind is ScheduleKind.TWO_MICROBATCH and any(self.recompute):
            return "schedule: two-microbatch: no stage can recompute"
        if graph.batch_size % count:
            return f"schedule: {count} micro-batches do not divide a batch of {graph.batch_size}"
        for op, placement in zip(operators, placements, strict=True):
            if (dim := op.sample_dim) >= 0:
                size, degree = op.dims[dim].size, placement.degrees[dim]
                if size % count:
                    return f"schedule: {count} micro-batches do not divide the {size} samples of operator {op.name!r}"
                if degree > size // count:
                    return (
                        f"schedule: operator {op.name!r} is cut into {degree} parts, "
                        f"but a micro-batch has {size // count} samples (use at most {size // degree} micro-batches)"
                    )
        ends = graph.edges.reshape(-1, 4)[:, [0, 2]]
        late = np.flatnonzero(self.stage[ends[:, 0]] > self.stage[ends[:, 1]])
        if len(late):
            u, v = ends[late[0]].tolist()
            return (
                f"schedule: operator {operators[v].name!r} of stage {self.stage[v]} needs the output of "
                f"{operators[u].name!r} of stage {self.stage[u]} (stages must not fall along an edge)"
            )
        if self.kind is ScheduleKind.TWO_MICROBATCH:  # all devices have all stages
            return None
        stage = np.repeat(self.stage, [placement.parts for placement in placements])
        return self._misplaced(stage, np.concatenate([placement.devices for placement in placements]))

    def _misplaced(self, stage: I32, device: I32) -> str | None:
        """Return which device has parts of stages that may not share it, given the stage and device of every part."""
        depth = pipeline_depth(self.kind, stage, device)
        if self.kind is ScheduleKind.INTERLEAVED:
            if self.n_stages % depth:
                return f"schedule: interleaved: {self.n_stages} chunks on {depth} groups of devices (needs a multiple)"
            if self.micro_batches % depth:
                return (
                    f"schedule: interleaved: {self.micro_batches} micro-batches on {depth} groups of devices "
                    f"(needs a multiple of {depth})"
                )
        lowest = np.full(int(device.max()) + 1, self.n_stages)
        np.minimum.at(lowest, device, stage)
        wrong = np.flatnonzero(stage % depth != lowest[device] % depth)
        if not len(wrong):
            return None
        low, high = int(lowest[device[wrong[0]]]), int(stage[wrong[0]])
        rule = (
            f"with {depth} groups of devices, chunks {depth} apart share one"
            if self.kind is ScheduleKind.INTERLEAVED
            else "stages need devices of their own, except in an interleaved schedule"
        )
        return f"schedule: {self.kind}: device {device[wrong[0]]} has operators of stages {low} and {high} ({rule})"


def pipeline_depth(kind: ScheduleKind, stage: I32, device: I32) -> int:
    """Return how many groups of devices a micro-batch passes, given the stage and device of every part.

    In an interleaved schedule the first chunk that shares a device with chunk 0 begins the second round.
    """
    stages = int(stage.max()) + 1
    if kind is not ScheduleKind.INTERLEAVED:
        return stages
    first = np.zeros(int(device.max()) + 1, dtype=bool)
    first[device[stage == 0]] = True
    return int(np.min(stage[first[device] & (stage > 0)], initial=stages))
