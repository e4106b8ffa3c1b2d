"""Sums of the gradients of a stage's weights, and gathers of weights that devices share.

    gradient of a weight ─► bucket of its axes ─► all-reduce                                       data parallelism
                                              └► reduce-scatter ─► update of a share ─► all-gather  ZeRO 1 and 2

Gradients are summed in the order of the backward pass.  A bucket is sent when it is full, the others with the end of
the pass (PyTorch's DistributedDataParallel, Megatron-LM's ``--ddp-bucket-size``).  ZeRO shares each bucket among the
devices along its axes; what they have updated they gather behind the update, or ahead of the next forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import attrs
import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.sharding import arguments
from topoplan.model.taskgraph import Collective
from topoplan_engine.lowering.inside_sums import inside_seconds
from topoplan_engine.lowering.stage_writer import Arrival, Before, StageWriter
from topoplan_engine.sharding.mesh import MeshStep
from topoplan_engine.sharding.programs import Reshard, pieces
from topoplan_engine.sharding.resharding import CollectiveStep
from topoplan_engine.sharding.stage_graphs import StageGraph

__all__ = ["REDUCE", "Gathering", "GathersAhead", "Sums"]


class Gathering(NamedTuple):
    """Adds the collectives of reshardings, those of weights in the bytes in which they travel."""

    writer: StageWriter
    stage: StageGraph

    @property
    def computed(self) -> I64 | None:
        """The last tasks of the compute stream in this pass."""
        return self.writer.computed

    def exchange(self, reshard: Reshard, steps: Sequence[MeshStep], before: Before) -> I64 | None:
        """Add the collectives of a resharding; return the last tasks, None if nothing is sent."""
        if not reshard.parameter:
            return self.writer.exchange(reshard, steps, before)
        if self.stage.stage.gather_bytes:
            reshard = attrs.evolve(reshard, nbytes=_gathered_bytes(self.stage, reshard))
        nbytes = reshard.nbytes / _pieces(self.stage, reshard)[1]
        return self.writer.exchange(reshard, steps, before, inside=inside_seconds(self.stage, reshard, nbytes))


REDUCE, _SCATTER, _GATHER = (
    CollectiveStep(kind) for kind in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER, Collective.ALL_GATHER)
)


#: Gradients that are summed together: the axes along which they are, their bytes, and which these are.
_Bucket = tuple[tuple[int, ...], int, list[Reshard]]


class _Buckets:
    """Puts gradients together that are summed along the same axes, until they have so many bytes as a bucket has."""

    def __init__(self, stage: StageGraph) -> None:
        self._stage = stage
        self._waiting: dict[tuple[int, ...], tuple[int, list[Reshard]]] = {}

    def put(self, reshard: Reshard, step: MeshStep) -> _Bucket | None:
        """Add a gradient, which ``step`` sums; return its bucket if that is full now."""
        nbytes, reshards = self._waiting.pop(step.axes, (0, []))
        nbytes += round(_gradient_bytes(self._stage, reshard) * step.share)
        if nbytes >= self._stage.program.gradient_bucket_bytes:
            return step.axes, nbytes, [*reshards, reshard]
        self._waiting[step.axes] = nbytes, [*reshards, reshard]
        return None

    def rest(self) -> list[_Bucket]:
        """Return the buckets that are not full, the oldest last gradient first, and forget them."""
        buckets = [(axes, *bucket) for axes, bucket in self._waiting.items()]
        self._waiting = {}
        return buckets


def _before_the_last(steps: Sequence[MeshStep]) -> list[MeshStep]:
    """Return what of the sum of a gradient runs in each micro-batch: all but all-reduces of what is in slices then."""
    scattered = [k for k, step in enumerate(steps) if step.step.collective is Collective.REDUCE_SCATTER]
    end = scattered[-1] if scattered else 0
    return [s for k, s in enumerate(steps) if k < end or s.step.collective is not Collective.ALL_REDUCE]


class _Later(NamedTuple):
    """A sum that waits for the end of all passes: of how much, after which tasks, and for which gradients."""

    bucket: Reshard
    share: float
    before: Sequence[I64 | Arrival | None]
    reshards: Sequence[Reshard]


class Sums:
    """Sums of the gradients of weights, in buckets, and what ZeRO sends in place of all-reduces.

    Where some devices share gradients and others have the same shares, gradients are reduce-scattered among the first,
    in each micro-batch if they are not kept whole, and shares are all-reduced among the others, once.  Where these
    others also send each other activations, as tensor-parallel devices do, that all-reduce comes after all passes: in
    the order of their communicator it would stop activations until the first sum is there.  Megatron-LM does so, with
    one all-reduce of all such gradients (``finalize_model_grads``: ``_allreduce_non_tensor_model_parallel_grads``).

    Attributes:
        ends: (operator, argument) -> the tasks that end the sum of its gradient.
    """

    def __init__(self, writer: StageWriter, stage: StageGraph, is_last: bool, *, one_stream: bool = False) -> None:
        """Sum gradients; ``one_stream``: all collectives run in one order, so that no sum waits for the end."""
        self._writer, self._stage, self._zero, self._is_last = writer, stage, stage.stage.zero, is_last
        self.ends: dict[tuple[int, int], list[I64]] = {}
        self._buckets = _Buckets(stage)
        #: By axes: what the last gradient of a bucket waits for.
        self._before: dict[tuple[int, ...], Any] = {}
        self._gathers: list[tuple[tuple[int, ...], list[Reshard]]] = []
        self._later: dict[tuple[int, ...], list[_Later]] = {}
        self._passed = set() if one_stream else _axes_in_passes(stage)
        self._shared: dict[tuple[int, int], float] = {}

    def take(self, reshard: Reshard, before: Any) -> None:
        """Sum a gradient that is there after ``before``, or put it into a bucket."""
        steps = [step for step in reshard.backward if not step.free]
        gradient = attrs.evolve(reshard, nbytes=_gradient_bytes(self._stage, reshard))
        if not _is_in_bucket(steps):
            steps = steps if self._is_last else _before_the_last(steps)
            stored, used = _pieces(self._stage, reshard)
            inside = self._inside(reshard, gradient.nbytes / used, used / stored)
            self._exchange(gradient, steps, before, [reshard], inside)
            return
        self._before[steps[0].axes] = before
        if bucket := self._buckets.put(reshard, steps[0]):
            self._send(bucket)

    def send_rest(self) -> None:
        """Send the buckets that are not full, the oldest last gradient first."""
        for bucket in self._buckets.rest():
            self._send(bucket)

    def _send(self, bucket: _Bucket) -> None:
        axes, nbytes, reshards = bucket
        shared = tuple(axis for axis in axes if axis in self._zero.axes) if self._zero.level else ()
        whole = tuple(axis for axis in axes if axis not in shared)
        share = 1.0 / _members(self._stage, shared)
        steps = [MeshStep(_SCATTER, shared, 1.0)] if shared else []
        if self._is_last if not axes else whole and (self._is_last or not shared):
            steps.append(MeshStep(REDUCE, whole, share))
        sizes = [_gradient_bytes(self._stage, each) * _share_of_sum(each) for each in reshards]
        inside = sum(self._inside(each, size, share) for each, size in zip(reshards, sizes, strict=True))
        self._exchange(attrs.evolve(reshards[-1], nbytes=nbytes), steps, self._before[axes], reshards, inside)
        for reshard in reshards:
            self._shared[reshard.op, reshard.argument] = share
        if shared and not self._zero.ahead:
            self._gathers.append((shared, reshards))

    def _inside(self, reshard: Reshard, nbytes: float, share: float) -> float:
        """Return the seconds in which GPUs of a device sum a gradient, of which a share is left once devices did.

        They gather what is left once, with the last micro-batch.
        """
        return inside_seconds(self._stage, reshard, nbytes * (1.0 + share * self._is_last))

    def _exchange(
        self,
        bucket: Reshard,
        steps: Sequence[MeshStep],
        before: Sequence[Any],
        reshards: Sequence[Reshard],
        inside: float,
    ) -> None:
        """Add the collectives of gradients; the last of several is for `send_later` if it would stop activations."""
        now = len(steps)
        if now > 1 and steps[-1].step == REDUCE and _sent_along(self._stage, steps[-1]) in self._passed:
            now -= 1
        end = self._writer.exchange(bucket, steps[:now], before, inside=inside)
        ends = [*before] if end is None else [end]
        for reshard in reshards:
            self.ends[reshard.op, reshard.argument] = ends
        for step in steps[now:]:
            self._later.setdefault(step.axes, []).append(_Later(bucket, step.share, ends, reshards))

    def send_later(self) -> None:
        """Send what waits for the end of all passes, as one all-reduce of each communicator."""
        for axes, several in self._later.items():
            nbytes = sum(round(each.bucket.nbytes * each.share) for each in several)
            bucket = attrs.evolve(several[-1].bucket, nbytes=nbytes)
            before = [end for each in several for end in each.before]
            end = self._writer.exchange(bucket, [MeshStep(REDUCE, axes, 1.0)], before)
            if end is not None:
                self.ends |= {(reshard.op, reshard.argument): [end] for each in several for reshard in each.reshards}

    def shares(self, op: int, first: int) -> F64:
        """(weights, 1) the part of each weight of an operator that a device updates; ``first`` is its first one."""
        count = len(self._stage.graph.operators[op].weights)
        return np.array([[self._shared.get((op, first + k), 1.0)] for k in range(count)])

    def gather(self, updated: dict[int, I64 | None]) -> dict[tuple[int, int], I64]:
        """Gather the weights that devices have updated for each other, in the order of the forward pass.

        Returns:
            (operator, argument) -> the tasks that gather it.
        """
        gathers: dict[tuple[int, int], I64] = {}
        for axes, reshards in reversed(self._gathers):
            before = [updated.get(reshard.op) for reshard in reshards]
            before += [end for reshard in reshards for end in self.ends[reshard.op, reshard.argument]]
            tasks = _Gather.of(self._stage, axes, reshards).add(self._writer, before)
            if tasks is not None:
                gathers |= {(reshard.op, reshard.argument): tasks for reshard in reshards}
        return gathers


class GathersAhead:
    """Gathers of the weights that devices share, ahead of the first forward pass of an iteration that reads them.

    The optimizer's step behind which they are sent is the one that ended the iteration before, so that one iteration
    takes what each of many does.  All of them are in the stream of their communicator from the beginning, in the order
    in which layers run.  Megatron-LM does so with ``--overlap-param-gather``: a forward pass waits for the gather of
    its bucket, which was begun at the latest when the one before was waited for, and ranks of a pipeline behind the
    first, which wait for activations, begin all of theirs at once (``megatron/core/distributed``: a rank behind the
    first has one bucket).
    """

    def __init__(self, writer: StageWriter, stage: StageGraph) -> None:
        """Prepare the gathers; there are none where the stage has them behind its updates."""
        self._writer = writer
        self._bucket_of: dict[Reshard, _Gather] = {}
        self._ends: dict[_Gather, I64 | None] = {}
        for axes, _, reshards in _buckets(stage) if stage.stage.zero.ahead else ():
            if shared := tuple(axis for axis in axes if axis in stage.stage.zero.axes):
                self._bucket_of |= dict.fromkeys(reshards, _Gather.of(stage, shared, reshards))

    def __contains__(self, reshard: Reshard) -> bool:
        return reshard in self._bucket_of

    def end(self, reshard: Reshard) -> list[I64 | None]:
        """Return the tasks after which a weight is there; its bucket's gather is written if it was not yet."""
        bucket = self._bucket_of[reshard]
        if bucket not in self._ends:
            self._ends[bucket] = bucket.add(self._writer, ())
        return [self._ends[bucket]]


def _buckets(stage: StageGraph) -> list[_Bucket]:
    """Return the buckets of all gradients, as `Sums` takes them."""
    waiting, buckets = _Buckets(stage), []
    for reshard in sorted(stage.reshards, key=lambda each: each.users[0])[::-1]:
        steps = [step for step in reshard.backward if not step.free]
        if reshard.parameter and _is_in_bucket(steps) and (bucket := waiting.put(reshard, steps[0])):
            buckets.append(bucket)
    return [*buckets, *waiting.rest()]


def _is_in_bucket(steps: Sequence[MeshStep]) -> bool:
    """Whether a gradient is all-reduced, and so has a place in a bucket."""
    return [step.step.collective for step in steps] == [Collective.ALL_REDUCE]


class _Gather(NamedTuple):
    """A gather of the weights of a bucket's gradients along some axes, and the seconds that it takes inside devices."""

    weights: Reshard
    axes: tuple[int, ...]
    inside: float

    @classmethod
    def of(cls, stage: StageGraph, axes: tuple[int, ...], reshards: Sequence[Reshard]) -> _Gather:
        """Return the gather of weights, which devices have updated for each other."""
        sizes = [_gathered_bytes(stage, each) * _share_of_sum(each) for each in reshards]
        inside = sum(inside_seconds(stage, each, size) for each, size in zip(reshards, sizes, strict=True))
        return cls(attrs.evolve(reshards[-1], nbytes=round(sum(sizes))), axes, inside)

    def add(self, writer: StageWriter, before: Before) -> I64 | None:
        """Write it; return its last tasks."""
        return writer.exchange(self.weights, (MeshStep(_GATHER, self.axes, 1.0),), before, inside=self.inside)


def _gradient_bytes(stage: StageGraph, reshard: Reshard) -> int:
    """Return the bytes of the gradient of a whole weight."""
    itemsize = arguments(stage.graph.operators[reshard.op])[reshard.argument].itemsize
    return reshard.nbytes // itemsize * (stage.stage.gradient_bytes or itemsize)


def _gathered_bytes(stage: StageGraph, reshard: Reshard) -> int:
    """Return the bytes of a whole weight where it is gathered."""
    itemsize = arguments(stage.graph.operators[reshard.op])[reshard.argument].itemsize
    return reshard.nbytes // itemsize * (stage.stage.gather_bytes or itemsize)


def _share_of_sum(reshard: Reshard) -> float:
    """Return the part of a weight whose gradient is summed in one group."""
    return next(step.share for step in reshard.backward if step.step.collective is Collective.ALL_REDUCE)


def _pieces(stage: StageGraph, reshard: Reshard) -> tuple[int, int]:
    """Return into how many slices a weight is cut where it is stored, and where it is used."""
    program, key = stage.program, (reshard.op, reshard.argument)
    return pieces(program, program.stored[key[0]][key[1]]), pieces(program, program.wanted(*key))


def _sent_along(stage: StageGraph, step: MeshStep) -> tuple[int, ...]:
    """Return the axes of the communicator of a collective."""
    return tuple(sorted(axis for axis in step.axes if stage.program.mesh[axis] > 1))


def _axes_in_passes(stage: StageGraph) -> set[tuple[int, ...]]:
    """Return the axes of the communicators that passes wait for: those of activations, and of weights in slices."""
    steps = [step for each in stage.reshards for step in each.forward if not step.free]
    steps += [step for each in stage.reshards if not each.parameter for step in each.backward if not step.free]
    return {_sent_along(stage, step) for step in steps}


def _members(stage: StageGraph, axes: Iterable[int]) -> int:
    return int(np.prod([stage.program.mesh[axis] for axis in axes], dtype=np.int64))
