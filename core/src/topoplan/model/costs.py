"""What the parts of operators cost: the function that an estimator builds, and what it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import attrs

from topoplan.arrays import F64, I32

__all__ = ["CostFunction", "PartCosts"]


@attrs.frozen(kw_only=True)
class PartCosts:
    """Costs of the parts of one operator under one placement, (P,) each.

    Attributes:
        forward, backward: seconds.
        memory: bytes that the part keeps on its device during the iteration.
        states: (3, P) bytes of weights, gradients and optimizer state among them; None where nobody knows.
        kept: those of ``memory`` that do not come and go with a micro-batch: the sum of ``states`` unless given.  None
            says that it is all but the part's outputs.
        weight_gradient: seconds of the backward pass that the gradients of weights take, which nothing but their
            all-reduce waits for.  None says half of them, for an operator with weights.
    """

    forward: F64
    backward: F64
    memory: F64
    states: F64 | None = None
    kept: F64 | None = attrs.field()
    weight_gradient: F64 | None = None

    @kept.default
    def _stays(self) -> F64 | None:
        return None if self.states is None else self.states.sum(axis=0)


class CostFunction(ABC):
    """What an estimator builds: compiled once for a problem, called for many placements.

    Attributes:
        assumptions: JSON values, such as the share of a device's peak that it assumes: they stand in the
            provenance of plans and beside the figures of a run.
    """

    assumptions: Mapping[str, Any] = {}

    @abstractmethod
    def supports(self, op: int, degrees: tuple[int, ...]) -> bool:
        """Say whether operator ``op`` cut by ``degrees`` can be priced."""

    @abstractmethod
    def price(self, op: int, degrees: tuple[int, ...], devices: I32) -> PartCosts:
        """Price every part, ``devices`` (P,) naming the device of each.

        Raises:
            TopoplanError: it cannot be priced; the message names operator, cut and what would be right.
        """
