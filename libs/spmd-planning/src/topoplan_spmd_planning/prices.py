"""HiDup's estimates of the costs of instructions and conversions.

If one of an instruction's tensors is sliced, the devices divide its work evenly.  Otherwise each device does all of it.
The cost of a conversion is the sum of its collectives for the bytes of the whole tensor, forward and backward.
"""

from __future__ import annotations

import numpy as np

from topoplan import Problem
from topoplan.model.sharding import Sharding, Signature
from topoplan_engine.sharding.resharding import CollectiveCosts, Rings, convert, seconds
from topoplan_spmd_planning.program import Instruction

__all__ = ["Prices", "shares_work"]

#: Undivided operators are priced on this device.
_FIRST_DEVICE = np.zeros(1, dtype=np.int32)


class Prices:
    """Prices of one problem, from its estimator; if it does not price collectives, they are priced as rings."""

    def __init__(self, problem: Problem) -> None:
        costs, graph = problem.costs, problem.graph
        self._collectives: CollectiveCosts = Rings.of(problem.cluster)
        if isinstance(costs, CollectiveCosts):
            self._collectives = costs
        undivided = (costs.price(op, (1,) * len(o.dims), _FIRST_DEVICE) for op, o in enumerate(graph.operators))
        self._alone = [float(price.forward[0]) for price in undivided]

    def compute(self, instruction: Instruction[Signature], signature: Signature) -> float:
        """Return the seconds of an instruction's forward pass."""
        if instruction.op < 0:
            return 0.0
        seconds = self._alone[instruction.op]
        return seconds / self._collectives.n_devices if shares_work(signature) else seconds

    def conversion(self, nbytes: int, source: Sharding, target: Sharding) -> tuple[float, float] | None:
        """Return the seconds of converting a value, forward and backward; None if no conversion exists."""
        steps = convert(source, target)
        if steps is None:
            return None
        return (
            seconds(steps.forward, nbytes, self._collectives),
            seconds(steps.backward, nbytes, self._collectives),
        )


def shares_work(signature: Signature) -> bool:
    """Say whether any argument or output is sliced, so that the devices share the work."""
    return any(sharding.sliced for sharding in (*signature.inputs, *signature.outputs))
