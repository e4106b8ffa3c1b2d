"""Costs with other prices: the same estimator, for devices or links that are faster or slower than it says.

Mixed precision (`topoplan_engine.precision`), studies of wrong profiles (`topoplan_engine.perturbation`) and models of
which a part is trained (`topoplan_engine.training_costs`) wrap cost functions so.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from topoplan.arrays import F64, I32, f64
from topoplan.model.costs import CostFunction, MicroBatch, PartCosts
from topoplan.model.taskgraph import Collective
from topoplan_engine.optimizer import OptimizerCosts
from topoplan_engine.sharding.resharding import CollectiveCosts

__all__ = ["rewritten_costs", "scaled_costs"]


class _Rewritten(CostFunction):
    """A `CostFunction` whose prices are another one's, changed operator by operator."""

    def __init__(self, costs: CostFunction, rewrite: Callable[[int, PartCosts], PartCosts]) -> None:
        self._costs = costs
        self._rewrite = rewrite
        self.assumptions = costs.assumptions
        self.linear_in_samples = costs.linear_in_samples
        self.knows_training = costs.knows_training

    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say whether the other one can price it."""
        return self._costs.supports(op, degrees)

    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        """Change the price of the other one."""
        return self._rewrite(op, self._costs.price(op, degrees, devices))

    def supports_micro_batch(self, op: int, degrees: tuple[int, ...], batch: MicroBatch) -> bool:
        """Say whether the other one can price it."""
        return self._costs.supports_micro_batch(op, degrees, batch)

    def price_micro_batch(self, op: int, degrees: tuple[int, ...], devices: I32, batch: MicroBatch) -> PartCosts:
        """Change the price of the other one."""
        return self._rewrite(op, self._costs.price_micro_batch(op, degrees, devices, batch))

    def optimizer_seconds(self, op: int, degrees: tuple[int, ...], devices: I32) -> F64 | None:
        """Return what the other one says of optimizer steps."""
        if not isinstance(self._costs, OptimizerCosts):
            return None
        return self._costs.optimizer_seconds(op, degrees, devices)


class _RewrittenWithCollectives(_Rewritten):
    """One that prices collectives, too."""

    def __init__(
        self,
        costs: CostFunction,
        collectives: CollectiveCosts,
        rewrite: Callable[[int, PartCosts], PartCosts],
        bandwidth: float,
    ) -> None:
        super().__init__(costs, rewrite)
        self._collectives = collectives
        self._bandwidth = bandwidth
        self.n_devices = collectives.n_devices

    def collective(self, kind: Collective, nbytes: int) -> float:
        """Return the seconds of one collective over links of ``bandwidth`` times theirs; latency stays."""
        at_once = self._collectives.collective(kind, 0)
        return at_once + (self._collectives.collective(kind, nbytes) - at_once) / self._bandwidth


def rewritten_costs(
    costs: CostFunction, rewrite: Callable[[int, PartCosts], PartCosts], bandwidth: float = 1.0
) -> CostFunction:
    """Return ``costs`` with other prices.

    Args:
        costs: prices parts, and perhaps collectives and optimizer steps, which the result then prices as well.
        rewrite: the number of an operator and the prices of its parts -> other prices.
        bandwidth: factor on the bandwidths of collectives.
    """
    if isinstance(costs, CollectiveCosts):
        return _RewrittenWithCollectives(costs, costs, rewrite, bandwidth)
    return _Rewritten(costs, rewrite)


def scaled_costs(costs: CostFunction, factors: F64, bandwidth: float = 1.0) -> CostFunction:
    """Return ``costs`` with other seconds of compute; those of optimizer steps stay, which move bytes.

    Args:
        costs: prices parts, and perhaps collectives, which the result then prices as well.
        factors: (n,) on the compute times of each operator.
        bandwidth: on the bandwidths of collectives.
    """
    factors = f64(factors)

    def scaled(op: int, price: PartCosts) -> PartCosts:
        factor, gradient = factors[op], price.weight_gradient
        if factor == 1.0:
            return price
        return attrs.evolve(
            price,
            forward=f64(price.forward * factor),
            backward=f64(price.backward * factor),
            weight_gradient=None if gradient is None else f64(gradient * factor),
        )

    return rewritten_costs(costs, scaled, bandwidth)
