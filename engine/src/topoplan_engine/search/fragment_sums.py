"""Sums over the fragments of a state, and the pass that shifts them by a change: the kernels behind lower bounds.

What every fragment adds is a row under its number (`Rows`).  Of a state there are sums over its fragments (`Sums`):
seconds of compute and bytes of memory of every device, seconds of every link.  Those after a change follow by the
differences of the rows that change.

Data flow: `topoplan_engine.search.lower_bounds` sees to the rows; `shift` writes the sums after a change, and says how
far it came and what lower bound on the cost they give.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I8, I32, I64, U64
from topoplan_engine.kernels.jit import inline_kernel, kernel
from topoplan_engine.lowering.edge_numbers import EdgeColumns, edge_number

__all__ = ["COMPLETE", "DEVICES_MISSING", "LINKS_MISSING", "Memory", "RowColumns", "Rows", "Sums", "shift"]

#: Relative slack: sums are taken in another order than a simulator takes them, which may also round run times.
_SLACK = 1e-6
#: How far a pass over a change went: to a fragment without a row for devices, to devices that reach the cutoff, to a
#: fragment without a row for links, to the end.
DEVICES_MISSING, _DEVICES_ALONE, LINKS_MISSING, COMPLETE = range(4)


class RowColumns(NamedTuple):
    """Rows of numbers of all fragments, and whether each has one (0 or 1)."""

    rows: F64
    known: I8


class Rows:
    """Rows of numbered fragments, each of which is computed when it is asked for the first time.

    Attributes:
        columns: to be read by kernels.
    """

    def __init__(self, width: int) -> None:
        self.columns = RowColumns(np.empty((256, width)), np.zeros(256, np.int8))
        self._known: set[int] = set()

    def missing(self, numbers: Iterable[int]) -> I64:
        """Return the numbers that have no row yet, each once; there is room for all, in which anything may stand."""
        known_rows = self._known
        fragments = [number for number in dict.fromkeys(numbers) if number not in known_rows]
        rows, flags = self.columns
        largest = max(fragments, default=0)
        if largest >= len(flags):
            length = max(largest + 1, 2 * len(flags))
            self.columns = RowColumns(np.empty((length, rows.shape[1])), np.zeros(length, np.int8))
            places = np.flatnonzero(flags)
            self.columns.rows[places], self.columns.known[places] = rows[places], 1
        return np.array(fragments, dtype=np.int64)

    def complete(self, numbers: I64) -> None:
        """Take note that the rows of numbers, for which there is room, have been written."""
        self.columns.known[numbers] = 1
        self._known.update(numbers.tolist())


class Sums(NamedTuple):
    """Sums over all fragments of a state.

    Attributes:
        numbers: of all fragments (`Pieces.numbers`).
        devices: (2 * D,) seconds of compute on every device, then bytes of memory.
        links: (E,) seconds of every link.
    """

    numbers: I64
    devices: F64
    links: F64

    def copy(self) -> Sums:
        """Return sums of their own."""
        return Sums(self.numbers.copy(), self.devices.copy(), self.links.copy())


class Memory(NamedTuple):
    """(D,) bytes of the devices, and what each byte more costs, in seconds."""

    capacity: F64
    seconds_per_byte: float


@kernel
def shift(
    numbers: I64,
    devices: F64,
    links: F64,
    change: I64,
    ptr: I32,
    edge: I32,
    source: I32,
    target: I32,
    keys: U64,
    edge_numbers: I32,
    device_rows: F64,
    device_known: I8,
    link_rows: F64,
    link_known: I8,
    capacity: F64,
    seconds_per_byte: float,
    cutoff: float,
    new_numbers: I64,
    new_devices: F64,
    new_links: F64,
) -> tuple[int, float, bool]:
    """Write the sums after a change; return how far that went, a lower bound, and whether memory certainly suffices.

    Arrays are given one by one, for a tuple of them takes ten times as long to hand over.

    Args:
        numbers, devices, links: `Sums` of the base.
        change: (2, n) operators, and the numbers of their new fragments.
        ptr, edge, source, target, keys, edge_numbers: `EdgeColumns` of the graph.
        device_rows, device_known, link_rows, link_known: `RowColumns` of fragments.
        capacity, seconds_per_byte: `Memory` of the devices.
        cutoff: links are counted only if devices and memory cost less, in seconds.
        new_numbers, new_devices, new_links: `Sums` to be written.
    """
    after = Sums(new_numbers, new_devices, new_links)
    if not _count_devices(numbers, change, RowColumns(device_rows, device_known), devices, after.devices):
        return DEVICES_MISSING, 0.0, False
    longest, penalty, fits = _busiest_device(after.devices, Memory(capacity, seconds_per_byte))
    bound = (longest + penalty) * (1 - _SLACK)
    if bound >= cutoff:
        return _DEVICES_ALONE, bound, fits
    for place in range(len(numbers)):
        after.numbers[place] = numbers[place]
    for link in range(len(links)):
        after.links[link] = links[link]
    edges = EdgeColumns(ptr, edge, source, target, keys, edge_numbers)
    if not _count_links(change, edges, RowColumns(link_rows, link_known), after):
        return LINKS_MISSING, 0.0, False
    busiest = 0.0
    for link in range(len(links)):
        busiest = max(busiest, after.links[link])
    return COMPLETE, max(bound, (busiest + penalty) * (1 - _SLACK)), fits


@inline_kernel
def _count_devices(numbers: I64, change: I64, rows: RowColumns, before: F64, after: F64) -> bool:
    """Write the sums of devices after a change; say whether all fragments have rows."""
    for k in range(len(before)):
        after[k] = before[k]
    for c in range(change.shape[1]):
        old, new = numbers[change[0, c]], change[1, c]
        if not (_is_known(rows, old) and _is_known(rows, new)):
            return False
        _replace(rows.rows, old, new, after)
    return True


@inline_kernel
def _busiest_device(devices: F64, memory: Memory) -> tuple[float, float, bool]:
    """Return the most seconds of a device, what exceeded memory costs at least, and whether memory surely suffices."""
    longest, excess, fits, count = 0.0, 0.0, True, len(memory.capacity)
    for device in range(count):
        longest = max(longest, devices[device])
        used = devices[count + device]
        fits &= used * (1 + _SLACK) <= memory.capacity[device]
        excess += max(0.0, used * (1 - _SLACK) - memory.capacity[device])
    return longest, excess * memory.seconds_per_byte if excess > 0.0 else 0.0, fits


@inline_kernel
def _count_links(change: I64, edges: EdgeColumns, rows: RowColumns, after: Sums) -> bool:
    """Put the fragments of a change, and those of the edges at it; say whether all have rows."""
    for c in range(change.shape[1]):
        if not _put(rows, change[0, c], change[1, c], after):
            return False
    for c in range(change.shape[1]):
        for k in range(edges.ptr[change[0, c]], edges.ptr[change[0, c] + 1]):
            edge = edges.edge[k]
            number = edge_number(edges, edge, after.numbers[edges.source[edge]], after.numbers[edges.target[edge]])
            if number < 0 or not _put(rows, len(edges.ptr) - 1 + edge, number, after):
                return False
    return True


@inline_kernel
def _is_known(rows: RowColumns, number: int) -> bool:
    return number < len(rows.known) and rows.known[number] == 1


@inline_kernel
def _replace(rows: F64, old: int, new: int, sums: F64) -> None:
    """Count the row of another fragment."""
    if old != new:
        for k in range(len(sums)):
            sums[k] += rows[new, k] - rows[old, k]


@inline_kernel
def _put(rows: RowColumns, place: int, number: int, after: Sums) -> bool:
    """Put the fragment at a place, and count its links; say whether they are known."""
    old = after.numbers[place]
    if not (_is_known(rows, old) and _is_known(rows, number)):
        return False
    _replace(rows.rows, old, number, after.links)
    after.numbers[place] = number
    return True
