"""What an iteration leaves behind: memory always; links, the critical path and the search where somebody asks.

The engine makes these values, plans hold them, exporters show them.  Tables have a row for each event: seconds, bytes,
and indices of links, tasks and devices.
"""

from __future__ import annotations

from enum import IntEnum

import attrs

from topoplan.arrays import ARRAY_EQ, F64, I8, I32, OneLine, f64, i8, i32

__all__ = ["Cause", "CriticalPath", "LinkUse", "MemoryKind", "MemoryLevels", "MemoryUse", "Recording", "SearchHistory"]

#: What a task waited for last: nothing, a task, its device, a link that others used, a fabric that was being rebuilt.
Cause = IntEnum("Cause", "START PREDECESSOR DEVICE LINK REBUILD", start=0)
#: What memory is used for: the fields of `MemoryUse`, in their order.
MemoryKind = IntEnum("MemoryKind", "WEIGHTS GRADIENTS OPTIMIZER ACTIVATIONS UNDIVIDED", start=0)


@attrs.frozen(kw_only=True, repr=False)
class MemoryUse(OneLine):
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


@attrs.frozen(kw_only=True, repr=False)
class LinkUse(OneLine):
    """When links were busy, and for which task; ``nbytes`` of a link, summed in order, are exactly the timeline's."""

    link: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    task: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    start: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    finish: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    nbytes: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)


@attrs.frozen(kw_only=True, repr=False)
class CriticalPath(OneLine):
    """Tasks that nothing lies between, in time; ``by``: the predecessor, device or link of the `Cause`, or -1."""

    task: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    cause: I8 = attrs.field(converter=i8, eq=ARRAY_EQ)
    by: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)


@attrs.frozen(kw_only=True, repr=False)
class MemoryLevels(OneLine):
    """Bytes of each `MemoryKind` that a device holds from a time on; no rows where that is not known."""

    time: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    device: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    kind: I8 = attrs.field(converter=i8, eq=ARRAY_EQ)
    nbytes: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)


@attrs.frozen(kw_only=True)
class Recording:
    """What happened in a simulated iteration."""

    links: LinkUse
    critical: CriticalPath
    memory: MemoryLevels


@attrs.frozen(kw_only=True, repr=False)
class SearchHistory(OneLine):
    """Evaluations of each chain, 2,000 at most, with all new bests: costs of its state and its best, seconds so far."""

    chain: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    evaluation: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    seconds: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    current: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    best: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    accepted: I8 = attrs.field(converter=i8, eq=ARRAY_EQ)
