"""The order in which the devices of a pipeline run the passes of micro-batches.

A *block* is one pass (`topoplan.model.pass_order.Pass`) of one micro-batch through one stage; a device runs its parts
of a block one after the other, and the blocks of its rank in the order of a `PassOrder`.  `steps_under` numbers the
compute tasks of one micro-batch, and `tasks_in_turn` says which tasks devices run one after the other.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.pass_order import Pass, PassOrder
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import Strategy
from topoplan_engine.csr import expand, indptr

__all__ = ["UNORDERED", "Steps", "order_of", "steps_under", "tasks_in_turn"]


class Steps(NamedTuple):
    """Compute tasks of one micro-batch, part by part in the order of `Pass`.

    Attributes:
        part, kind: (K,) part and `Pass` of each.
        task: (P, 4) the task of every pass of each part; -1 for a pass that it does not run.
    """

    part: I32
    kind: I32
    task: I32


#: The passes of the whole batch through one stage.
UNORDERED = PassOrder(name="", rank_ptr=[0, 2], kind=[Pass.FORWARD, Pass.BACKWARD], chunk=[0, 0], micro_batch=[0, 0])


def order_of(strategy: Strategy) -> PassOrder | None:
    """Return the order of passes; None if it leaves nothing to order: one stage, one micro-batch, no pass twice."""
    if not isinstance(strategy, StagedStrategy):
        return None
    trivial = strategy.micro_batches == 1 and len(strategy.stages) == 1 and not any(strategy.recomputes)
    return None if trivial else strategy.order


def steps_under(order: PassOrder, stage: I32, weight_gradient: F64, backward: np.ndarray | None = None) -> Steps:
    """Number the compute tasks of one micro-batch.

    Args:
        order: of the passes of the stages.
        stage: (P,) of every part.
        weight_gradient: (P,) seconds of the gradients of its weights, which are a task of their own where the order
            has a pass for them.
        backward: (P,) whether it has a backward pass; None: all have.
    """
    recomputes, splits = ((order.row_of[kind] >= 0).any(axis=1) for kind in (Pass.RECOMPUTE, Pass.WEIGHTS))
    exists = np.ones((len(stage), 4), dtype=bool)
    exists[:, Pass.WEIGHTS] = (weight_gradient > 0) & splits[stage]
    if backward is not None:
        recomputes &= np.bincount(stage[backward], minlength=order.n_chunks) > 0
        exists[~backward, Pass.BACKWARD :] = False
    exists[:, Pass.RECOMPUTE] = recomputes[stage]
    part, kind = np.nonzero(exists)
    task = np.full(exists.shape, -1, dtype=np.int32)
    task[part, kind] = np.arange(len(part))
    return Steps(part.astype(np.int32), kind.astype(np.int32), task)


def tasks_in_turn(order: PassOrder, steps: Steps, stage: I32, device: I32, n_tasks: int) -> tuple[I64, I64]:
    """Return the tasks that devices run, and the one that each of these runs next, the former ascending.

    Args:
        order: of the passes of the stages.
        steps: of one micro-batch; those of the next one have numbers that are larger by ``n_tasks``.
        stage, device: (P,) of every part.
        n_tasks: of a micro-batch, with its messages.
    """
    stages, number = order.n_chunks, np.arange(len(steps.part))
    # A block of each device, stage and kind of pass; forward passes run operators in their order, others backwards.
    block_of = (device[steps.part].astype(np.int64) * stages + stage[steps.part]) * 4 + steps.kind
    in_block = np.where(steps.kind <= Pass.RECOMPUTE, number, len(number) - 1 - number)
    task, sizes = np.argsort(block_of * len(number) + in_block), np.bincount(block_of)
    devices, first = np.unique(device, return_index=True)
    rank = order.rank_of[stage[first]]
    owner, row = expand(order.rank_ptr[:-1][rank], np.diff(order.rank_ptr)[rank])
    block = (devices[owner].astype(np.int64) * stages + order.chunk[row]) * 4 + order.kind[row]
    sizes = np.append(sizes, np.zeros(max(0, int(block.max()) + 1 - len(sizes)), np.int64))
    run, place = expand(indptr(sizes)[block], sizes[block])
    in_turn = task[place] + order.micro_batch[row][run].astype(np.int64) * n_tasks
    next_task = np.full(order.n_micro_batches * n_tasks, -1)
    same = np.diff(owner[run]) == 0
    next_task[in_turn[:-1][same]] = in_turn[1:][same]
    tails = np.flatnonzero(next_task >= 0)
    return tails, next_task[tails]
