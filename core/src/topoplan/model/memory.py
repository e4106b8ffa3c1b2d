"""What every device keeps in memory during an iteration, told by what it is for.

`topoplan_engine.lowering` makes it of a strategy; plans, tables and JSON show it.  Bytes are whole numbers, so that
the parts add up to the total exactly.
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan.arrays import ARRAY_EQ, F64, f64

__all__ = ["MemoryUse"]


@attrs.frozen(kw_only=True)
class MemoryUse:
    """Bytes on every device at the time when it holds the most, (D,) each, whole numbers.

    Attributes:
        weights: parameters, and what is put together of parameters that are stored in slices.
        gradients: of the weights.
        optimizer: what the optimizer keeps: its state, and in mixed precision the weights in fp32.
        activations: what forward passes leave for backward ones, of all micro-batches that are under way at that time.
        undivided: what the estimator counts without saying for what, as measured profiles do.
        at_once: the activations over those of the whole batch: 1 where all are held at the same time, less where
            micro-batches come and go.
    """

    weights: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    gradients: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    optimizer: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    activations: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    undivided: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    at_once: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)

    @classmethod
    def of(cls, total: F64, states: F64, undivided: F64, at_once: F64 | None = None) -> MemoryUse:
        """Divide what devices hold; activations are what nothing else is.

        Args:
            total: (D,) bytes.
            states: (3, D) bytes of weights, gradients and optimizer state.
            undivided: (D,) bytes that stay throughout, of which no more is known.
            at_once: (D,) share of the batch; 1 unless given.
        """
        weights, gradients, optimizer = np.rint(states)
        unknown = np.rint(undivided)
        rest = np.rint(total) - weights - gradients - optimizer - unknown
        return cls(
            weights=weights,
            gradients=gradients,
            optimizer=optimizer,
            # Less than nothing is left by rounding only, and belongs to what was rounded.
            activations=np.maximum(rest, 0.0),
            undivided=unknown,
            at_once=np.ones(len(total)) if at_once is None else at_once,
        )

    @property
    def total(self) -> F64:
        """(D,) bytes: the sum of all."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.undivided

    def fits(self, capacity: F64) -> bool:
        """Say whether no device holds more than its (D,) ``capacity`` in bytes."""
        return bool((self.total <= capacity).all())

    def fullest(self, capacity: F64) -> int:
        """Return the device that lacks the most bytes, or has the fewest left."""
        return int(np.argmax(self.total - capacity))

    def on(self, device: int) -> dict[str, float]:
        """Return the bytes on one device by what they are for, without what there is none of, in a fixed order."""
        columns = {
            "weights": self.weights,
            "gradients": self.gradients,
            "optimizer": self.optimizer,
            "activations": self.activations,
            "undivided": self.undivided,
        }
        return {name: float(column[device]) for name, column in columns.items() if name != "undivided" or column.any()}
