"""The order in which the devices of a pipeline run the passes of micro-batches.

A *block* is one pass (`topoplan.model.pass_order.Pass`) of one micro-batch through one stage; a device runs its parts
of a block one after the other, and the blocks of its rank in the order of a `PassOrder`.  `steps_of` numbers the
compute tasks of one micro-batch, and `runs_of` puts the two together: which tasks every device runs, in order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32
from topoplan.model.pass_order import Pass, PassOrder
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import Strategy
from topoplan_engine.csr import expand, indptr

__all__ = ["UNORDERED", "Runs", "Steps", "order_of", "runs_of", "steps_of", "steps_under"]


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


#: The passes of the whole batch through one stage.
UNORDERED = PassOrder(name="", rank_ptr=[0, 2], kind=[Pass.FORWARD, Pass.BACKWARD], chunk=[0, 0], micro_batch=[0, 0])


def order_of(strategy: Strategy) -> PassOrder | None:
    """Return the order of passes; None if it leaves nothing to order: one stage, one micro-batch, no pass twice."""
    if not isinstance(strategy, StagedStrategy):
        return None
    trivial = strategy.micro_batches == 1 and len(strategy.stages) == 1 and not any(strategy.recomputes)
    return None if trivial else strategy.order


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


def steps_under(order: PassOrder, stage: I32, weight_gradient: F64, backward: np.ndarray | None = None) -> Steps:
    """Number the compute tasks of one micro-batch.

    Args:
        order: of the passes of the stages.
        stage: (P,) of every part.
        weight_gradient: (P,) seconds of the gradients of its weights.
        backward: (P,) whether it has a backward pass; None: all have.
    """
    recomputes, splits = ((order.row_of[kind] >= 0).any(axis=1) for kind in (Pass.RECOMPUTE, Pass.WEIGHTS))
    if backward is not None:
        recomputes &= np.bincount(stage[backward], minlength=order.n_chunks) > 0
    return steps_of(recomputes[stage], (weight_gradient > 0) & splits[stage], backward)


def runs_of(order: PassOrder, steps: Steps, stage: I32, device: I32, n_devices: int) -> Runs:
    """Return the blocks and tasks of every device, given the stage and device of every part."""
    stages = order.n_chunks
    # Forward passes run operators in their order, backward passes in the opposite one.
    part, number = steps.part, np.arange(len(steps.part))
    block_of = (device[part] * stages + stage[part]) * 4 + steps.kind
    upwards = steps.kind <= Pass.RECOMPUTE
    task = np.argsort(block_of.astype(np.int64) * len(number) + np.where(upwards, number, len(number) - 1 - number))
    sizes = np.bincount(block_of, minlength=n_devices * stages * 4)
    rank = np.full(n_devices, -1)
    rank[device] = order.rank_of[stage]
    counts = np.where(rank >= 0, np.diff(order.rank_ptr)[rank], 0)
    owner, row = expand(order.rank_ptr[:-1][rank], counts)
    return Runs(
        device_ptr=indptr(counts, np.int32),
        block=(owner * np.int32(stages) + order.chunk[row]) * np.int32(4) + order.kind[row],
        micro_batch=order.micro_batch[row],
        task_ptr=indptr(sizes, np.int32),
        task=task.astype(np.int32),
        block_of=block_of,
    )
