"""Stages that an earlier part of the program has had already.

Layers of a model are equal.  If the next instructions of two cuts are equal, and their states, so are the stages that
start there: their instructions, seconds and end states.  The kernel records the stages of the first such cut and reads
them at the others, instead of growing them and looking up their end states.  Entries differ, so each cut offers its
own, in the order in which it would without records; the result is the same to the last bit.

The recursion that overlaps the backward pass does without: whether it ends a stage depends on bounds at the cut.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I8, I32, I64
from topoplan_spmd_planning.columns import LONGEST, Columns

__all__ = ["Repeats", "empty_repeats", "enlarge", "equal_cuts", "equal_instructions", "forget_stages"]

#: Initial capacity in stages.  Pages that are never written take no memory.
_ROOM = 1 << 19


class Repeats(NamedTuple):
    """Recorded stages, (R,) with spare capacity, of some of the (S,) states.

    Attributes:
        earlier: (n+1,) the last earlier cut with equal next instructions, or -1; ``recorded``: (n+1,) 1 if there is
            a later one, else 0.
        root: (n+1,) the cut that has the stages of this cut, or -1.
        origin: (S,) the state that has the stages of this one; ``twin``: (S,) the state with the same key that was last
            found at an equal cut.  0, the first state of all, stands for none.
        begins, ends: (S,) first stage of each state, and the one after its last; ``complete``: (S,) 1 if the state has
            been recorded, else 0.
        end, path: (R,) end state of each stage and its signatures, as in `Tables`; ``compute``, ``forward``,
            ``backward``: its seconds.
        counts: (2,) number of stages, and of those of states that are complete.
    """

    earlier: I32
    recorded: I8
    root: I32
    origin: I32
    twin: I32
    begins: I64
    ends: I64
    complete: I8
    end: I32
    path: I64
    compute: F64
    forward: F64
    backward: F64
    counts: I64


def empty_repeats(columns: Columns, states: int) -> Repeats:
    """Return records without stages, for tables with room for ``states`` states."""
    earlier = equal_cuts(columns)
    recorded = np.zeros(len(earlier), dtype=np.int8)
    recorded[earlier[earlier >= 0]] = 1
    room = _ROOM if recorded.any() else 1
    return Repeats(
        earlier=earlier,
        recorded=recorded,
        root=np.full(len(earlier), -1, np.int32),
        origin=np.zeros(states, np.int32),
        twin=np.zeros(states, np.int32),
        begins=np.zeros(states, np.int64),
        ends=np.zeros(states, np.int64),
        complete=np.zeros(states, np.int8),
        end=np.empty(room, np.int32),
        path=np.empty(room, np.int64),
        compute=np.empty(room),
        forward=np.empty(room),
        backward=np.empty(room),
        counts=np.zeros(2, np.int64),
    )


def equal_cuts(columns: Columns) -> I32:
    """Return for each cut the last earlier one whose next `LONGEST` instructions are equal, or -1; (n+1,)."""
    n = len(columns.signature_at) - 1
    earlier = np.full(n + 1, -1, np.int32)
    if columns.overlapped:
        return earlier
    numbers = equal_instructions(columns)
    last: dict[Hashable, int] = {}
    for cut in range(n):
        window = tuple(numbers[cut : cut + LONGEST])
        earlier[cut] = last.get(window, -1)
        last[window] = cut
    return earlier


def equal_instructions(columns: Columns) -> list[int]:
    """Return a number for each instruction; equal ones have the same number.

    Instructions are equal if they can be in the same stages after states with the same key: their columns are equal,
    slots included, and their inputs are equally old, as far as a stage can tell.
    """
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(_look(columns, k), len(numbers)) for k in range(len(columns.signature_at) - 1)]


def _look(columns: Columns, position: int) -> Hashable:
    """Return what stages depend on of an instruction."""

    def part(values: np.ndarray, offsets: np.ndarray) -> bytes:
        return values[offsets[position] : offsets[position + 1]].tobytes()

    first, last = columns.signature_at[position], columns.signature_at[position + 1]
    inputs = columns.value[columns.input_at[position] : columns.input_at[position + 1]]
    n_inputs, n_outputs = len(inputs), columns.output_at[position + 1] - columns.output_at[position]
    needs, makes = columns.needs_at[first], columns.makes_at[first]
    return (
        part(columns.seconds, columns.signature_at),
        part(columns.place, columns.input_at),
        part(columns.output_place, columns.output_at),
        part(columns.freed, columns.freed_at),
        columns.needs[needs : needs + n_inputs * (last - first)].tobytes(),
        columns.makes[makes : makes + n_outputs * (last - first)].tobytes(),
        columns.like[inputs].tobytes(),
        np.minimum(position - columns.producer[inputs], LONGEST).tobytes(),
    )


def forget_stages(repeats: Repeats) -> None:
    """Remove all stages: the states have other numbers now."""
    repeats.root[:] = -1
    for column in (repeats.origin, repeats.twin, repeats.complete, repeats.counts):
        column[:] = 0


def enlarge(repeats: Repeats, states: int) -> Repeats:
    """Return the same records with room for ``states`` states, and for more stages if they are nearly full."""
    rows = len(repeats.end)
    if 2 * repeats.counts[0] >= rows > 1:
        rows *= 2

    def longer(name: str, size: int) -> np.ndarray:
        column: np.ndarray = getattr(repeats, name)
        if size == len(column):
            return column
        wide = np.zeros(size, column.dtype)
        wide[: len(column)] = column
        return wide

    return repeats._replace(
        **{name: longer(name, states) for name in ("origin", "twin", "begins", "ends", "complete")},
        **{name: longer(name, rows) for name in ("end", "path", "compute", "forward", "backward")},
    )
