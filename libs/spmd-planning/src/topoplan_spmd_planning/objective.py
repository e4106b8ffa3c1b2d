"""HiDup's objective of a plan whose stages are known, as its released search prices them.

Two copies of the model take turns.  In the forward pass one copy computes while the other communicates; the backward
pass is priced without overlap.  At the end the last computation of the second copy is due.

Source: HiDup (Zhang et al., SoCC 2022, section 5.2), as released: its recursion adds the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable

from topoplan.model.sharding import Signature
from topoplan_spmd_planning.planning import Stage
from topoplan_spmd_planning.prices import Prices
from topoplan_spmd_planning.program import Program

__all__ = ["objective"]

#: Time of the backward pass over that of the forward pass.
_BACKWARD = 2


def objective(stages: Iterable[Stage[Signature]], program: Program[Signature], prices: Prices) -> float:
    """Return HiDup's objective in seconds; under the prices of the search, that of its outcome.

    Args:
        stages: of a plan of ``program``.
        program: instructions and values.
        prices: of both; they may be others than those that the plan was made with.
    """
    seconds, due = 0.0, 0.0
    for stage in stages:
        compute = sum(prices.compute(program.instructions[i], signature) for i, signature in stage.computations)
        conversions = [prices.conversion(program.values[v].nbytes, a, b) for v, a, b in stage.conversions]
        forward = sum(price[0] for price in conversions if price is not None)
        backward = sum(price[1] for price in conversions if price is not None)
        seconds += max(due, forward) + max(compute, forward)
        seconds += _BACKWARD * due + backward + _BACKWARD * compute + backward
        due = compute
    return seconds + due
