"""Bytes on every device over time, by what they are for: what stays throughout, and activations that come and go."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I32, I64
from topoplan.model.recording import MemoryKind, MemoryLevels, MemoryUse

__all__ = ["Activations", "Changes", "activations_of", "memory_levels"]

_STAY = (MemoryKind.WEIGHTS, MemoryKind.GRADIENTS, MemoryKind.OPTIMIZER, MemoryKind.UNDIVIDED)


class Activations(NamedTuple):
    """(n,) bytes of activations that each ``device`` holds from each ``time`` (seconds) on; in any order of devices."""

    device: I32 | I64
    time: F64
    nbytes: F64


class Changes(NamedTuple):
    """(n,) bytes that a ``device`` has from each ``time`` (seconds) on and had not before.

    At equal times growth counts before shrinking, but for changes that come ``first``: the end of a backward pass,
    when the next one begins.
    """

    device: I32 | I64
    time: F64
    nbytes: F64
    first: NDArray[np.bool_]

    @classmethod
    def of_gradients(cls, device: I32 | I64, arrival: F64, start: F64, end: F64, outputs: F64, extras: F64) -> Changes:
        """Return the changes of backward passes: gradients of outputs arrive, others come with the pass; all end."""
        ends = np.repeat([False, False, True], len(device))
        nbytes = np.concatenate([outputs, extras, -outputs - extras])
        return cls(np.concatenate([device] * 3), np.concatenate([arrival, start, end]), nbytes, ends)


def activations_of(changes: Sequence[Changes], resting: F64 | None = None) -> Activations:
    """Return the levels of changes; ``resting`` are (D,) bytes that are there from the beginning, none unless given."""
    device, time, change, first = (np.concatenate(column) for column in zip(*changes, strict=True))
    order = np.lexsort((-change, ~first, time, device))
    device, time, level = device[order], time[order], np.cumsum(change[order])
    before = np.searchsorted(device, device)
    level = level - np.where(before > 0, level[before - 1], 0.0)
    if resting is not None:
        level = np.append(resting, resting[device] + level)
        device, time = np.append(np.arange(len(resting)), device), np.append(np.zeros(len(resting)), time)
    return Activations(device, time, np.maximum(0.0, level))


def memory_levels(use: MemoryUse, activations: Activations) -> MemoryLevels:
    """Return the levels of an iteration, in the order of time.

    Bytes of activations are rounded, as those of ``use`` are, so that the most at any time is what ``use`` says where
    the order of passes is that of the strategy.  Of several changes at one time the last one counts.
    """
    devices = np.arange(len(use.total), dtype=np.int32)
    stays = [np.column_stack([devices, np.full(len(devices), kind)]) for kind in _STAY]
    levels = [getattr(use, kind.name.lower()) for kind in _STAY]
    device, kind = np.concatenate(stays).T
    nbytes = np.concatenate(levels)
    some = nbytes > 0
    order = np.lexsort((activations.time, activations.device))
    a_device, a_time, a_bytes = (column[order] for column in activations)
    before = np.concatenate([[0.0], a_bytes[:-1]])
    before[np.flatnonzero(np.diff(a_device, prepend=-1))] = 0.0
    changes = np.rint(a_bytes) != np.rint(before)
    device = np.concatenate([device[some], a_device[changes]])
    kind = np.concatenate([kind[some], np.full(int(changes.sum()), MemoryKind.ACTIVATIONS)])
    time = np.concatenate([np.zeros(int(some.sum())), a_time[changes]])
    level = np.concatenate([nbytes[some], np.rint(a_bytes[changes])])
    order = np.argsort(time, kind="stable")
    return MemoryLevels(time=time[order], device=device[order], kind=kind[order], nbytes=level[order])
