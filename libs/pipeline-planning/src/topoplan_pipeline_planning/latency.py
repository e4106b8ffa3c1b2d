"""How long an iteration of a pipeline takes: the two cost models of HPGO's released code (0.9.2), on columns.

`analytical_seconds` ranks plans.  `early_backward_seconds` plays the schedule of DAPPLE (one forward, one backward in
turn) step by step; it is a second opinion that is reported and decides nothing.
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
    """Return the seconds of an iteration: fill, steady state, and what of the all-reduces outlasts it.

    As released: a transfer is charged one way, the fill ignores how often a stage is replicated, and the
    all-reduce of stage ``s`` has ``s`` micro-batches of time to hide in.  Columns have one row per plan.

    Args:
        total: seconds of the whole model on one device.
        bottleneck: seconds of the slowest stage or transfer for the whole batch.
        pipelines: how many copies of the pipeline share the batch.
        micro_batches: of each copy; at least 1.
        transfers: seconds of all cuts, for one micro-batch.
        reductions: for each stage, the seconds of its gradient all-reduce.
    """
    interval = bottleneck / micro_batches
    exposed = np.maximum.reduce([seconds - stage * interval for stage, seconds in enumerate(reductions)])
    return np.asarray(
        interval * (micro_batches - 1) + total / pipelines / micro_batches + transfers + np.maximum(exposed, 0.0)
    )


def early_backward_seconds(steps: F64, reductions: F64, micro_batches: int) -> float:
    """Return the seconds of an iteration of early-backward scheduling (DAPPLE, section 3).

    Stage ``x`` of ``S`` runs ``K = S - x`` forward steps, then one backward and one forward in turn::

        f(i, x) = step(x) + max(b(i-K, x), f(i-1, x), f(i, x-1))
        b(i, x) = step(x) + max(b(i, x+1), f(i+K-1, x))

    with 0 for what does not exist.  As released, a backward step does not wait for the one before it.
    The forward step that ``b(i, x)`` waits for is ``g(i, x) = f(i+K-1, x)``, and all that ``g(i, .)`` waits for is
    in ``g(i-1, .)`` and ``b(i-1, .)``: a column for each i.

    Args:
        steps: (S,) seconds of one micro-batch on each stage, one way; transfers between stages are stages, too.
        reductions: (S,) seconds of the all-reduce that follows the last backward step.
        micro_batches: at least 1.
    """
    count = len(steps)
    warm_up = count - np.arange(count)
    # Backward, the prefix maximum runs from the last stage to the first one.
    later = np.cumsum(steps[::-1])
    before = np.concatenate(([0.0], later[:-1]))
    forward, backward = np.zeros(count), np.zeros(count)
    for i in range(1 - count, micro_batches):
        number = i + warm_up - 1
        exists = (number >= 0) & (number < micro_batches)
        previous = np.concatenate(([0.0], forward[:-1]))  # f of the same micro-batch, one stage before
        ready = np.maximum(np.maximum(backward, forward), previous)
        forward = np.where(exists, steps + ready, 0.0)
        if i >= 0:
            backward = (later + np.maximum.accumulate(forward[::-1] - before))[::-1]
    return float(np.max(backward + reductions))
