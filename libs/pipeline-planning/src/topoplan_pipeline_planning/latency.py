"""The two latency models of HPGO's released code (0.9.2), on columns.

`analytical_seconds` ranks plans.  `early_backward_seconds` simulates DAPPLE's schedule (alternately one forward and one
backward step).  It is reported as a second estimate and does not affect the choice.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topoplan.arrays import F64

__all__ = ["analytical_seconds", "early_backward_seconds"]


def analytical_seconds(
    *,
    total: float,
    bottleneck: F64,
    pipelines: int,
    micro_batches: int,
    transfers: F64,
    reductions: Sequence[F64],
) -> F64:
    """Return the seconds of an iteration: fill phase, steady phase, and the rest of the all-reduces.

    As in the release, a transfer is charged in one direction, the fill phase ignores the replication of stages, and the
    time of ``s`` micro-batches hides the all-reduce of stage ``s``.  Columns have one row per plan.

    Args:
        total: seconds of the whole model on one device.
        bottleneck: seconds of the slowest stage or transfer for the whole batch.
        pipelines: number of copies of the pipeline, which share the batch.
        micro_batches: of each copy; at least 1.
        transfers: seconds of all cuts, for one micro-batch.
        reductions: for each stage, the seconds of its gradient all-reduce.
    """
    interval = bottleneck / micro_batches
    exposed_seconds = np.maximum.reduce([seconds - stage * interval for stage, seconds in enumerate(reductions)])
    return np.asarray(
        interval * (micro_batches - 1)
        + total / pipelines / micro_batches
        + transfers
        + np.maximum(exposed_seconds, 0.0)
    )


def early_backward_seconds(steps: F64, reductions: F64, micro_batches: int) -> float:
    """Return the seconds of an iteration of early-backward scheduling (DAPPLE, section 3).

    Stage ``x`` of ``S`` runs ``K = S - x`` forward steps, then one backward and one forward in turn::

        f(i, x) = step(x) + max(b(i-K, x), f(i-1, x), f(i, x-1))
        b(i, x) = step(x) + max(b(i, x+1), f(i+K-1, x))

    where steps that do not exist are 0.  As in the release, a backward step does not wait for the previous one.
    ``b(i, x)`` waits for the forward step ``g(i, x) = f(i+K-1, x)``.  ``g(i, .)`` depends only on ``g(i-1, .)`` and
    ``b(i-1, .)``, so the recurrence runs over columns, one for each i.

    Args:
        steps: (S,) seconds of one micro-batch on each stage, one way; transfers between stages are stages, too.
        reductions: (S,) seconds of the all-reduce that follows the last backward step.
        micro_batches: at least 1.
    """
    count = len(steps)
    warm_up = count - np.arange(count)
    # Backward, the prefix maximum runs from the last stage to the first one.
    tail_from = np.cumsum(steps[::-1])
    tail_after = np.concatenate(([0.0], tail_from[:-1]))
    forward, backward = np.zeros(count), np.zeros(count)
    for i in range(1 - count, micro_batches):
        number = i + warm_up - 1
        exists = (number >= 0) & (number < micro_batches)
        previous = np.concatenate(([0.0], forward[:-1]))  # f of the same micro-batch, one stage before
        ready = np.maximum(np.maximum(backward, forward), previous)
        forward = np.where(exists, steps + ready, 0.0)
        if i >= 0:
            backward = (tail_from + np.maximum.accumulate(forward[::-1] - tail_after))[::-1]
    return float(np.max(backward + reductions))
