"""What every device keeps in memory during an iteration, told by what it is for.

`topoplan_engine.lowering` makes it of a strategy; plans, tables and JSON show it.  Bytes are whole numbers, so that
the parts add up to the total exactly.
"""

from __future__ import annotations

import attrs

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

    @property
    def total(self) -> F64:
        """(D,) bytes: the sum of all."""
        return self.weights + self.gradients + self.optimizer + self.activations + self.undivided

    def fits(self, capacity: F64) -> bool:
        """Say whether no device holds more than its (D,) ``capacity`` in bytes."""
        return bool((self.total <= capacity).all())
