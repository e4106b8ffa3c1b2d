"""What a plan takes at least from any cut on: so that searches that cannot win, or cannot fit, end early.

Every stage waits for its computation and for its communication, forward and backward, so that a plan takes no less
than all computation of both micro-batches, nor than all communication, nor than any mean of the two.  Computation is
counted at its least; of communication only what parameters take, each by itself at its least.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import F64, I32
from topoplan_searcher_spmd.space import Kind, Written
from topoplan_spmd_planning.columns import Columns

__all__ = ["bounded", "following"]


def bounded(columns: Columns, written: Written, seconds: float) -> Columns:
    """Return the columns with ``seconds`` as a bound, and with what follows every cut at least.

    Of computation and communication the one counts that takes longer; bounds round off to the safe side.
    """
    if not np.isfinite(seconds):
        return columns
    compute = _least(2 * (columns.seconds + columns.back), columns.signature_at)
    exchange = _parameters(columns, written)
    charge = 1.0 if compute.sum() > exchange.sum() else 0.0
    remaining = _after(compute if charge else exchange)
    return columns._replace(bound=seconds * (1 + 1e-9), rest=remaining, charge=charge)


def following(each: F64, offsets: I32) -> F64:
    """(n+1,) the least sum of what follows each cut, given what ``each`` signature takes and where they begin."""
    return _after(_least(each, offsets))


def _least(each: F64, offsets: I32) -> F64:
    """(n,) the least of each instruction's signatures; 0 where it has none."""
    minima = np.zeros(len(offsets) - 1)
    some = np.flatnonzero(np.diff(offsets))
    if len(some):
        minima[some] = np.minimum.reduceat(each, offsets[some])
    return minima


def _after(each: F64) -> F64:
    """(n+1,) sums of all from each cut on."""
    return np.concatenate([np.cumsum(each[::-1])[::-1], [0.0]])


def _parameters(columns: Columns, written: Written) -> F64:
    """(n,) the least seconds of communication that each read of a parameter, and its use, comes to."""
    bounds = np.zeros(len(columns.signature_at) - 1)
    takes = columns.forward + columns.backward
    takes[:, np.arange(takes.shape[1]), np.arange(takes.shape[1])] = 0.0
    for position, instruction in enumerate(written.program.instructions):
        if instruction.op >= 0 or not instruction.outputs:
            continue
        (value,) = instruction.outputs
        rows = np.arange(columns.signature_at[position], columns.signature_at[position + 1])
        if written.outline.kinds[value] is not Kind.WEIGHT or not len(rows):
            continue
        by, argument = written.outline.user[value]
        uses = np.arange(columns.signature_at[by], columns.signature_at[by + 1])
        target = columns.needs[columns.needs_at[uses] + argument]
        source = columns.makes[columns.makes_at[rows]]
        bounds[position] = (columns.sums[rows][:, None] + takes[value][np.ix_(source, target)]).min(initial=np.inf)
    return bounds
