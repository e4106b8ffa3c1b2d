"""What instructions and conversions cost, as HiDup estimates it.

Devices share an instruction's work as soon as one of its tensors is sliced; otherwise each does all of it.  A
conversion takes its collectives one after the other, for the bytes of the whole tensor, forward and backward.
"""

from __future__ import annotations

import numpy as np

from topoplan import Problem
from topoplan.model.sharding import Sharding, Signature
from topoplan_engine.sharding.resharding import CollectiveCosts, Rings, convert, seconds
from topoplan_spmd_planning.program import Instruction

__all__ = ["Prices"]

#: Where whole operators are priced.
_FIRST_DEVICE = np.zeros(1, dtype=np.int32)


class Prices:
    """Prices of one problem, from its estimator; collectives are rings where the estimator does not price them."""

    def __init__(self, problem: Problem) -> None:
        costs, graph = problem.costs, problem.graph
        self._collectives: CollectiveCosts = Rings.of(problem.cluster)
        if isinstance(costs, CollectiveCosts):
            self._collectives = costs
        whole = (costs.price(op, (1,) * len(o.dims), _FIRST_DEVICE) for op, o in enumerate(graph.operators))
        self._alone = [float(price.forward[0]) for price in whole]

    def compute(self, instruction: Instruction[Signature], signature: Signature) -> float:
        """Return the seconds of an instruction's forward pass."""
        if instruction.op < 0:
            return 0.0
        seconds = self._alone[instruction.op]
        return seconds / self._collectives.n_devices if signature.sliced else seconds

    def conversion(self, nbytes: int, source: Sharding, target: Sharding) -> tuple[float, float] | None:
        """Return the seconds of converting a value, forward and backward; None where it cannot be done."""
        steps = convert(source, target)
        if steps is None:
            return None
        return (
            seconds(steps.forward, nbytes, self._collectives),
            seconds(steps.backward, nbytes, self._collectives),
        )
