"""Lower bounds on the rest of a plan after each cut, which end searches that cannot win or cannot fit.

Every stage waits for its computation and for its communication, in both passes.  A plan therefore takes at least all
computation of both micro-batches, and at least all communication.  The bound on computation is the sum of the minima
over the signatures.  The bound on communication counts only parameters, each with its own minimum.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import F64, I32
from topoplan_spmd_planning.columns import Columns
from topoplan_spmd_planning.space import MeshProgram

__all__ = ["min_after", "with_bound"]


def with_bound(columns: Columns, model: MeshProgram, seconds: float) -> Columns:
    """Return the columns with the upper limit ``seconds`` and a lower bound on the seconds after every cut.

    The bound is that on computation or that on communication, whichever is larger, with the seconds of bytes that have
    a price.  Bounds are rounded so that they remain valid.
    """
    if not np.isfinite(seconds):
        return columns
    byte_seconds = columns.signature_bytes if columns.priced else np.zeros_like(columns.signature_bytes)
    compute = _minima(2 * (columns.seconds + columns.back) + byte_seconds, columns.signature_at)
    exchange = _parameters(columns, model) + _minima(byte_seconds, columns.signature_at)
    charge = 1.0 if compute.sum() > exchange.sum() else 0.0
    remaining = _suffix_sums(compute if charge else exchange)
    return columns._replace(bound=seconds * (1 + 1e-9), tail=remaining, charge=charge)


def min_after(costs: F64, offsets: I32) -> F64:
    """(n+1,) lower bound on the cost after each cut, from the ``costs`` of signatures; ``offsets`` (n+1,) of rows."""
    return _suffix_sums(_minima(costs, offsets))


def _minima(costs: F64, offsets: I32) -> F64:
    """(n,) minimum over the signatures of each instruction; 0 if it has none."""
    minima = np.zeros(len(offsets) - 1)
    rows = np.flatnonzero(np.diff(offsets))
    if len(rows):
        minima[rows] = np.minimum.reduceat(costs, offsets[rows])
    return minima


def _suffix_sums(costs: F64) -> F64:
    """(n+1,) suffix sums."""
    return np.concatenate([np.cumsum(costs[::-1])[::-1], [0.0]])


def _parameters(columns: Columns, model: MeshProgram) -> F64:
    """(n,) lower bound on the seconds of communication for each instruction that reads a parameter."""
    bounds = np.zeros(len(columns.signature_at) - 1)
    bound_of_key: dict[object, float] = {}  # of equal layers, which share signatures
    for position, instruction in enumerate(model.program.instructions):
        if instruction.op >= 0 or not instruction.outputs:
            continue
        (value,) = instruction.outputs
        if not model.outline.kinds[value].parameter or not instruction.signatures:
            continue
        reader, argument = model.outline.user[value]
        users = model.program.instructions[reader].signatures
        sums = columns.sums[columns.signature_at[position] : columns.signature_at[position + 1]]
        kind = model.outline.kinds[value]
        key = int(columns.like[value]), kind, id(instruction.signatures), id(users), argument, sums.tobytes()
        if key not in bound_of_key:
            uses = np.arange(columns.signature_at[reader], columns.signature_at[reader + 1])
            target = columns.needs[columns.needs_at[uses] + argument]
            source = columns.makes[columns.makes_at[columns.signature_at[position]] + np.arange(len(sums))]
            takes = columns.forward[value] + columns.backward[value]
            np.fill_diagonal(takes, 0.0)
            bound_of_key[key] = float((sums[:, None] + takes[np.ix_(source, target)]).min(initial=np.inf))
        bounds[position] = bound_of_key[key]
    return bounds
