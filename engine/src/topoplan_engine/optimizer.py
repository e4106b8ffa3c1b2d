"""What an estimator may say of optimizer steps, beside the costs of parts."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from topoplan.arrays import F64, I32

__all__ = ["OptimizerCosts"]


@runtime_checkable
class OptimizerCosts(Protocol):
    """A cost function that may price optimizer steps."""

    def optimizer_seconds(self, op: int, degrees: tuple[int, ...], devices: I32) -> F64 | None:
        """(weights, P) seconds in which each part updates its slice of each weight; None where they are not priced."""
