"""The order in which the devices of a pipeline run the passes of micro-batches.

A *block* is one pass (`topoplan.model.pass_order.Pass`) of one micro-batch through one stage; a device runs its parts
of a block one after the other.  `blocks_of` lists the blocks of the devices at one position of the pipeline; `steps_of`
numbers the compute tasks of one micro-batch, and `runs_of` puts the two together: which tasks every device runs, in
order.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32
from topoplan.model.pass_order import Pass
from topoplan.model.schedule import Schedule, ScheduleKind, pipeline_depth
from topoplan_engine.csr import expand, indptr
from topoplan_engine.pass_orders import Rows, alternating_rows, repeated_rows

__all__ = ["Runs", "Steps", "blocks_of", "runs_of", "steps_of", "steps_under"]


class Steps(NamedTuple):
    """Compute tasks of one micro-batch, part by part in the order of `Pass`.

    Attributes:
        part, kind: (K,) part and `Pass` of each.
        task: (P, 4) the task of every pass of each part; -1 for a pass that it does not run.
    """

    part: I32
    kind: I32
    task: I32


class Runs(NamedTuple):
    """The tasks of every device in order, as blocks.

    Attributes:
        device_ptr: (D+1,) rows of each device in the columns of blocks.
        block, micro_batch: of every device in order: row of ``task_ptr``, and the micro-batch.
        task_ptr, task: CSR, the tasks (of `Steps`) of each block on each device, in order.
        block_of: (K,) the row that each task is in.
    """

    device_ptr: I32
    block: I32
    micro_batch: I32
    task_ptr: I32
    task: I32
    block_of: I32

    @property
    def rows(self) -> tuple[I32, I32]:
        """Each task that a device runs, device by device in order: its row of ``block``, and its place in ``task``."""
        return expand(self.task_ptr[self.block], np.diff(self.task_ptr)[self.block])


@functools.lru_cache(maxsize=1024)
def blocks_of(
    kind: ScheduleKind, depth: int, rounds: int, micro_batches: int, position: int, recompute: tuple[bool, ...]
) -> Rows:
    """Return the blocks of the devices at ``position`` of ``depth``, in order.

    Args:
        kind: of the schedule.
        depth: groups of devices.
        rounds: stages of each group; more than one in interleaved schedules only.
        micro_batches: of the batch; a multiple of ``depth`` if interleaved.
        position: which group.
        recompute: for each of its stages, whether it recomputes.

    GPipe warms up with all forward passes; 1F1B with one for each position to come, its deep form with two; the
    interleaved schedule with two and all rounds but the last one of ``depth`` micro-batches.  ZB-H1 is 1F1B whose
    position ``s`` puts off the gradients of weights by ``s`` micro-batches, so that gradients of inputs arrive sooner
    and every position has as many micro-batches in flight.
    """
    total, later = micro_batches * rounds, depth - 1 - position
    warm_up = {
        ScheduleKind.GPIPE: total,
        ScheduleKind.DEEP: 2 * later,
        ScheduleKind.INTERLEAVED: 2 * later + (rounds - 1) * depth,
    }.get(kind, later)
    late = position if kind is ScheduleKind.ZERO_BUBBLE else None
    rows = alternating_rows(depth, rounds, micro_batches, position, warm_up, late)
    return repeated_rows(rows, np.array(recompute or (False,) * rounds)[rows.chunk // depth])


def steps_of(recompute: np.ndarray, split: np.ndarray, backward: np.ndarray | None = None) -> Steps:
    """Number the compute tasks of one micro-batch.

    Args:
        recompute: (P,) whether a part runs its forward pass twice.
        split: (P,) whether the gradients of its weights are a task of their own.
        backward: (P,) whether a part has a backward pass at all; None: all have.
    """
    exists = np.ones((len(recompute), 4), dtype=bool)
    exists[:, Pass.RECOMPUTE], exists[:, Pass.WEIGHTS] = recompute, split
    if backward is not None:
        exists[~backward, Pass.BACKWARD :] = False
    part, kind = np.nonzero(exists)
    task = np.full(exists.shape, -1, dtype=np.int32)
    task[part, kind] = np.arange(len(part))
    return Steps(part.astype(np.int32), kind.astype(np.int32), task)


def steps_under(schedule: Schedule, stage: I32, weight_gradient: F64, backward: np.ndarray | None = None) -> Steps:
    """Number the compute tasks of one micro-batch.

    Args:
        schedule: of the stages.
        stage: (P,) of every part.
        weight_gradient: (P,) seconds of the gradients of its weights.
        backward: (P,) whether it has a backward pass; None: all have.
    """
    recomputes = np.array(schedule.recompute or (False,) * schedule.n_stages)
    if backward is not None:
        recomputes &= np.bincount(stage[backward], minlength=schedule.n_stages) > 0
    recompute = recomputes[stage]
    return steps_of(recompute, (weight_gradient > 0) & (schedule.kind is ScheduleKind.ZERO_BUBBLE), backward)


def runs_of(schedule: Schedule, steps: Steps, stage: I32, device: I32, n_devices: int) -> Runs:
    """Return the blocks and tasks of every device, given the stage and device of every part."""
    depth, stages = pipeline_depth(schedule.kind, stage, device), schedule.n_stages
    rounds = stages // depth
    orders = [
        blocks_of(schedule.kind, depth, rounds, schedule.micro_batches, position, schedule.recompute[position::depth])
        for position in range(depth)
    ]
    lengths = np.array([len(order.kind) for order in orders], dtype=np.int32)
    kind, of_stage, micro_batch = (np.concatenate(column) for column in zip(*orders, strict=True))
    # Forward passes run operators in their order, backward passes in the opposite one.
    part, number = steps.part, np.arange(len(steps.part))
    block_of = (device[part] * stages + stage[part]) * 4 + steps.kind
    upwards = steps.kind <= Pass.RECOMPUTE
    task = np.argsort(block_of.astype(np.int64) * len(number) + np.where(upwards, number, len(number) - 1 - number))
    sizes = np.bincount(block_of, minlength=n_devices * stages * 4)
    position = np.full(n_devices, -1)
    position[device] = stage % depth
    counts = np.where(position >= 0, lengths[position], 0)
    owner, row = expand(indptr(lengths, np.int32)[position], counts)
    return Runs(
        device_ptr=indptr(counts, np.int32),
        block=(owner * np.int32(stages) + of_stage[row]) * np.int32(4) + kind[row],
        micro_batch=micro_batch[row],
        task_ptr=indptr(sizes, np.int32),
        task=task.astype(np.int32),
        block_of=block_of,
    )
