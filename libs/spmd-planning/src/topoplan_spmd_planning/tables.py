"""The tables of states and entries of the kernel, and their maintenance between its runs.

The kernel runs until the tables are full or a cut has too many states.  Then states at earlier cuts are removed
(`forget`), the tables are enlarged (`grow`), or the slowest states are dropped (`thin`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan_spmd_planning.columns import Columns

__all__ = [
    "CUT",
    "EACH",
    "ENTRIES",
    "FILLED",
    "FORGOTTEN",
    "GONE_ON",
    "STATE",
    "STATES",
    "TAKEN_OUT",
    "Tables",
    "empty_tables",
    "forget",
    "grow",
    "thin",
]

#: Indices of `Tables.counts`.
STATES, ENTRIES, TAKEN_OUT, CUT, STATE, GONE_ON, FILLED, FORGOTTEN = range(8)

#: States for which the first buckets have room.
_HASHED = 1 << 14
#: Entries of each state that remain if a cut has too many states.
EACH = 32


class Tables(NamedTuple):
    """States and entries so far, with spare capacity.  Rows not yet in use have no values.

    Attributes:
        key: (S, W) slots of each state; ``cut``: (S,) its cut; ``after``: (S,) the next state at that cut, or -1;
            ``head``: (S,) its first entry, or -1.
        first, last: (n+1,) first and last state at each cut, or -1.
        buckets: states by hash, or -1; their number is a power of two.  States at earlier cuts are not looked up again,
            so the number of buckets does not depend on the length of the program.
        time, debt: (E,) seconds of each entry; ``due``, ``nbytes``: its debt of the backward pass and its bytes, where
            the recursion has them; ``before``: (E,) its predecessor; ``path``: (E,) the numbers of the signatures of
            its stage, lowest bits first, and above them how many; ``following``: (E,) the next entry of its state, or
            of the free list.
        counts: number of states, entries in use, head of the free list (or -1), next cut and state, expanded entries,
            buckets in use, removed states.
    """

    key: I64
    cut: I32
    after: I32
    head: I32
    first: I32
    last: I32
    buckets: I32
    time: F64
    debt: F64
    due: F64
    nbytes: F64
    before: I32
    path: I64
    following: I32
    counts: I64


def empty_tables(columns: Columns, states: int, entries: int) -> Tables:
    """Return tables with the initial state: one state without live values, with one entry of zero seconds."""
    cuts = len(columns.signature_at)
    tables = Tables(
        key=np.empty((states, columns.words), np.int64),
        cut=np.empty(states, np.int32),
        after=np.empty(states, np.int32),
        head=np.empty(states, np.int32),
        first=np.full(cuts, -1, np.int32),
        last=np.full(cuts, -1, np.int32),
        buckets=_buckets(1 << (4 * min(states, _HASHED) - 1).bit_length()),
        time=np.empty(entries),
        debt=np.empty(entries),
        due=np.empty(entries),
        nbytes=np.empty(entries),
        before=np.empty(entries, np.int32),
        path=np.empty(entries, np.int64),
        following=np.empty(entries, np.int32),
        counts=np.array([1, 1, -1, 0, 0, 0, 0, 0], np.int64),
    )
    for column in (tables.key, tables.cut, tables.time, tables.debt, tables.due, tables.nbytes, tables.path):
        column[0] = 0
    tables.after[0] = tables.before[0] = tables.following[0] = -1
    tables.first[0] = tables.last[0] = tables.head[0] = 0
    return tables


def forget(tables: Tables) -> None:
    """Remove the states at earlier cuts; the buckets must be filled again.  The entries keep the choices."""
    cut, n_states = int(tables.counts[CUT]), int(tables.counts[STATES])
    remaining = np.flatnonzero(tables.cut[:n_states] >= cut)
    number = np.full(n_states + 1, -1)
    number[remaining] = np.arange(len(remaining))
    for column in (tables.key, tables.cut, tables.head):
        column[: len(remaining)] = column[remaining]
    tables.after[: len(remaining)] = number[tables.after[remaining]]
    for ends in (tables.first, tables.last):
        ends[:cut] = -1
        ends[:] = number[ends]
    tables.counts[STATE] = number[tables.counts[STATE]]
    tables.counts[FORGOTTEN] += n_states - len(remaining)
    tables.counts[STATES] = len(remaining)


def thin(tables: Tables, states: int, entries: int = 1 << 50) -> None:
    """Keep the fastest states of the next cut, and the fastest entries of each: `EACH`, and about ``entries`` in all.

    Of equal states and entries the first ones stay.
    """
    live = np.flatnonzero(tables.cut[: tables.counts[STATES]] == tables.counts[CUT])
    heads, owner = [tables.head[live].astype(np.int64)], [live]
    while len(heads[-1]):
        more = tables.following[heads[-1]]
        heads.append(more[more >= 0].astype(np.int64))
        owner.append(owner[-1][more >= 0])
    entry, state = np.concatenate(heads), np.concatenate(owner)
    total = tables.time[entry] + tables.debt[entry] + tables.due[entry]
    order = np.lexsort((entry, total, state))
    entry, state, total = entry[order], state[order], total[order]
    begins = np.flatnonzero(np.diff(state, prepend=-1))
    lengths = np.diff(begins, append=len(state))
    fastest = np.zeros(len(begins), dtype=bool)
    fastest[np.argsort(total[begins], kind="stable")[:states]] = True
    place = np.arange(len(state)) - np.repeat(begins, lengths)
    each = min(EACH, max(1, entries // int(fastest.sum())))
    mask = np.repeat(fastest, lengths) & (place < each)
    ends = mask & ((place == each - 1) | (place == np.repeat(lengths, lengths) - 1))
    tables.following[entry[mask]] = np.where(ends, -1, np.roll(entry, -1))[mask]
    tables.head[live] = -1
    tables.head[state[begins[fastest]]] = entry[begins[fastest]]


def grow(tables: Tables, max_states: int) -> Tables:
    """Return tables with the same contents and twice the capacity of those that are nearly full.

    Columns with enough capacity are shared.  The buckets are empty and must be filled again.
    """
    room = len(tables.cut), len(tables.time), len(tables.buckets)
    counts = 2 * int(tables.counts[STATES]), int(tables.counts[ENTRIES]), 2 * int(tables.counts[FILLED])
    states, entries, buckets = (2 * size if count >= size else size for size, count in zip(room, counts, strict=True))
    states = min(states, max_states)

    def longer(name: str, rows: int) -> np.ndarray:
        column: np.ndarray = getattr(tables, name)
        if rows == len(column):
            return column
        wide = np.empty((rows, *column.shape[1:]), column.dtype)
        wide[: len(column)] = column
        return wide

    return tables._replace(
        **{name: longer(name, states) for name in ("key", "cut", "after", "head")},
        **{name: longer(name, entries) for name in ("time", "debt", "due", "nbytes", "before", "path", "following")},
        buckets=_buckets(buckets),
    )


def _buckets(count: int) -> I32:
    return np.full(count, -1, np.int32)
