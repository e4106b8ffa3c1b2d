"""Costs times factors: the same estimator, for devices or links that are faster or slower than it says.

Mixed precision (`topoplan_engine.precision`) and studies of wrong profiles (`topoplan_engine.perturbation`) wrap cost
functions so.
"""

from __future__ import annotations

import attrs

from topoplan.arrays import F64, I32, f64
from topoplan.model.costs import CostFunction, MicroBatch, PartCosts
from topoplan.model.taskgraph import Collective
from topoplan_engine.optimizer import OptimizerCosts
from topoplan_engine.sharding.resharding import CollectiveCosts

__all__ = ["scaled_costs"]


class _Scaled(CostFunction):
    """A `CostFunction` whose seconds are another one's times a factor for each operator."""

    def __init__(self, costs: CostFunction, factors: F64) -> None:
        self._costs = costs
        self._factors = factors
        self.assumptions = costs.assumptions
        self.linear_in_samples = costs.linear_in_samples

    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say whether the other one can price it."""
        return self._costs.supports(op, degrees)

    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        """Scale the seconds; bytes stay."""
        return self._scaled(self._costs.price(op, degrees, devices), op)

    def supports_micro_batch(self, op: int, degrees: tuple[int, ...], batch: MicroBatch) -> bool:
        """Say whether the other one can price it."""
        return self._costs.supports_micro_batch(op, degrees, batch)

    def price_micro_batch(self, op: int, degrees: tuple[int, ...], devices: I32, batch: MicroBatch) -> PartCosts:
        """Scale the seconds; bytes stay."""
        return self._scaled(self._costs.price_micro_batch(op, degrees, devices, batch), op)

    def _scaled(self, priced: PartCosts, op: int) -> PartCosts:
        factor = self._factors[op]
        if factor == 1.0:
            return priced
        gradient = priced.weight_gradient
        return attrs.evolve(
            priced,
            forward=f64(priced.forward * factor),
            backward=f64(priced.backward * factor),
            weight_gradient=None if gradient is None else f64(gradient * factor),
        )

    def optimizer_seconds(self, op: int, degrees: tuple[int, ...], devices: I32) -> F64 | None:
        """Return what the other one says of optimizer steps; they move bytes, at the rate of the memory."""
        if not isinstance(self._costs, OptimizerCosts):
            return None
        return self._costs.optimizer_seconds(op, degrees, devices)


class _ScaledWithCollectives(_Scaled):
    """One that prices collectives, too."""

    def __init__(self, costs: CostFunction, collectives: CollectiveCosts, factors: F64, bandwidth: float) -> None:
        super().__init__(costs, factors)
        self._collectives = collectives
        self._bandwidth = bandwidth
        self.n_devices = collectives.n_devices

    def collective(self, kind: Collective, nbytes: int) -> float:
        """Return the seconds of one collective over links of ``bandwidth`` times theirs; latency stays."""
        at_once = self._collectives.collective(kind, 0)
        return at_once + (self._collectives.collective(kind, nbytes) - at_once) / self._bandwidth


def scaled_costs(costs: CostFunction, factors: F64, bandwidth: float = 1.0) -> CostFunction:
    """Return ``costs`` with other seconds.

    Args:
        costs: prices parts, and perhaps collectives, which the result then prices as well.
        factors: (n,) on the compute times of each operator.
        bandwidth: on the bandwidths of collectives.
    """
    factors = f64(factors)
    if isinstance(costs, CollectiveCosts):
        return _ScaledWithCollectives(costs, costs, factors, bandwidth)
    return _Scaled(costs, factors)
