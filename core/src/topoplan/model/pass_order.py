"""The order in which the ranks of a pipeline run the passes of micro-batches.

A model is cut into *chunks*, each on the devices of one *rank* of the pipeline, and a batch into micro-batches.  A
`PassOrder` lists, rank by rank, which pass (`Pass`) of which chunk and micro-batch comes next.  A schedule is a
function that fills these columns; whoever lowers, simulates or exports a pipeline reads them and needs to know no
schedule by name.
"""

from __future__ import annotations

import functools
from enum import IntEnum

import attrs
import numpy as np

from topoplan.arrays import ARRAY_EQ, I8, I32, i8, i32
from topoplan.errors import TopoplanError

__all__ = ["Pass", "PassOrder"]


class Pass(IntEnum):
    """What a device does with a micro-batch."""

    FORWARD = 0
    RECOMPUTE = 1
    """The forward pass once more, for activations that were not stored."""
    BACKWARD = 2
    """The gradients of inputs, and those of weights unless they have a pass of their own."""
    WEIGHTS = 3
    """The gradients of weights alone."""


@attrs.frozen(kw_only=True, hash=False)
class PassOrder:
    """Which pass of which chunk and micro-batch each rank runs, in order; one row for each pass.

    A micro-batch goes through its chunks in ascending order, and back.  All go through all chunks, or they are dealt
    to disjoint sets of chunks, each a copy of the model (as in DualPipe).  Every pass runs once, after what it needs;
    a recomputation runs between the forward and the backward pass, and gradients of weights after the latter.

    Example:
        One micro-batch after the other on two ranks:

        >>> order = PassOrder(name="in turn", rank_ptr=[0, 4, 8], kind=[0, 2, 0, 2] * 2, chunk=[0] * 4 + [1] * 4,
        ...                   micro_batch=[0, 0, 1, 1] * 2)
        >>> print(order)
        rank 0: F0 B0 F1 B1
        rank 1: F0 B0 F1 B1

    Attributes:
        name: of the schedule that made it, for reports and exporters.
        rank_ptr: (n_ranks+1,) rows of each rank.
        kind: (n_passes,) `Pass` of each row.
        chunk, micro_batch: (n_passes,) of each row, both numbered from 0 without gaps.
    """

    name: str
    rank_ptr: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    kind: I8 = attrs.field(converter=i8, eq=ARRAY_EQ)
    chunk: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    micro_batch: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)

    def __attrs_post_init__(self) -> None:
        if reason := self._why_malformed() or self._why_incomplete() or self._why_stuck():
            raise TopoplanError(f"pass order {self.name!r}: {reason}")

    def __hash__(self) -> int:
        return hash((self.name, self.kind.tobytes(), self.chunk.tobytes(), self.micro_batch.tobytes()))

    def __str__(self) -> str:
        lines = []
        for rank, (first, end) in enumerate(zip(self.rank_ptr[:-1], self.rank_ptr[1:], strict=True)):
            chunks = map(("/{}" if len(np.unique(self.chunk[first:end])) > 1 else "").format, self.chunk[first:end])
            rows = zip(self.kind[first:end], self.micro_batch[first:end], chunks, strict=True)
            lines.append(" ".join([f"rank {rank}:", *(f"{'FRBW'[kind]}{batch}{chunk}" for kind, batch, chunk in rows)]))
        return "\n".join(lines)

    @property
    def n_ranks(self) -> int:
        """Ranks of the pipeline."""
        return len(self.rank_ptr) - 1

    @property
    def n_chunks(self) -> int:
        """Chunks of the model, copies counted."""
        return int(self.chunk.max()) + 1

    @property
    def n_micro_batches(self) -> int:
        """Micro-batches of the batch."""
        return int(self.micro_batch.max()) + 1

    @functools.cached_property
    def rank_of(self) -> I32:
        """(n_chunks,) the rank that has each chunk."""
        ranks = np.zeros(self.n_chunks, dtype=np.int32)
        ranks[self.chunk] = np.repeat(np.arange(self.n_ranks), np.diff(self.rank_ptr))
        return ranks

    @functools.cached_property
    def row_of(self) -> I32:
        """(4, n_chunks, n_micro_batches) the row of each pass; -1 for one that is not run."""
        rows = np.full((4, self.n_chunks, self.n_micro_batches), -1, dtype=np.int32)
        rows[self.kind, self.chunk, self.micro_batch] = np.arange(len(self.kind))
        return rows

    @functools.cached_property
    def needs(self) -> tuple[I32, I32]:
        """Tails and heads of the edges along which data goes: from chunk to chunk, and back."""
        forward, backward = self.row_of[Pass.FORWARD], self.row_of[Pass.BACKWARD]
        micro_batch, chunk = np.nonzero(forward.T >= 0)
        same = micro_batch[1:] == micro_batch[:-1]
        source, target = (micro_batch[:-1][same], chunk[:-1][same]), (micro_batch[1:][same], chunk[1:][same])
        last = np.append(~same, True)
        end = micro_batch[last], chunk[last]
        tails = forward.T[source], backward.T[target], forward.T[end]
        heads = forward.T[target], backward.T[source], backward.T[end]
        return i32(np.concatenate(tails)), i32(np.concatenate(heads))

    @functools.cached_property
    def edges(self) -> tuple[I32, I32]:
        """Tails and heads of all edges between rows: the order of each rank, and `needs`."""
        in_turn = np.setdiff1d(np.arange(1, len(self.kind)), self.rank_ptr)
        tails, heads = self.needs
        return i32(np.append(in_turn - 1, tails)), i32(np.append(in_turn, heads))

    def _why_malformed(self) -> str | None:
        """Return which column is none, or None."""
        count = len(self.kind)
        if not count or len(self.chunk) != count or len(self.micro_batch) != count:
            return f"columns of {count}, {len(self.chunk)} and {len(self.micro_batch)} passes (must be equally many)"
        if len(self.rank_ptr) < 2 or self.rank_ptr[0] or self.rank_ptr[-1] != count or np.diff(self.rank_ptr).min() < 1:
            return f"rank_ptr must rise from 0 to the number of passes, {count}"
        if not np.isin(self.kind, list(Pass)).all():
            return f"kind has {np.setdiff1d(self.kind, list(Pass))[0]} (must be 0 to 3)"
        for name, column in (("chunk", self.chunk), ("micro-batch", self.micro_batch)):
            missing = np.flatnonzero(~np.isin(np.arange(column.max() + 1), column))
            if column.min() < 0 or len(missing):
                what = f"{missing[0]} is in no row" if len(missing) else f"{column.min()} is in a row"
                return f"{name} {what} (numbers begin at 0)"
        return None

    def _why_incomplete(self) -> str | None:
        """Return which pass is missing, is there twice or is on another rank than its chunk, or None."""
        number = (self.kind.astype(np.int64) * self.n_chunks + self.chunk) * self.n_micro_batches + self.micro_batch
        times = np.bincount(number, minlength=4 * self.n_chunks * self.n_micro_batches).reshape(self.row_of.shape)
        twice = np.argwhere(times > 1)
        if len(twice):
            return f"{self._pass_text(*twice[0])} runs {times[tuple(twice[0])]} times"
        for kind in Pass:
            odd = np.argwhere((times[kind] > 0) & (times[Pass.FORWARD] == 0))
            if len(odd):
                return f"{self._pass_text(Pass.FORWARD, *odd[0])} is missing"
        unfinished = np.argwhere((times[Pass.FORWARD] > 0) & (times[Pass.BACKWARD] == 0))
        if len(unfinished):
            return f"{self._pass_text(Pass.BACKWARD, *unfinished[0])} is missing"
        rank = np.repeat(np.arange(self.n_ranks), np.diff(self.rank_ptr))
        elsewhere = np.flatnonzero(rank != self.rank_of[self.chunk])
        if len(elsewhere):
            chunk = self.chunk[elsewhere[0]]
            return f"chunk {chunk} is on ranks {rank[elsewhere[0]]} and {self.rank_of[chunk]}"
        users = (times[Pass.FORWARD] > 0).astype(np.int64)
        shared = users @ users.T
        halved = np.argwhere((shared > 0) & (shared != np.diag(shared)[:, None]))
        if len(halved):
            return f"chunks {halved[0][0]} and {halved[0][1]} share some micro-batches, not all"
        return None

    def _pass_text(self, kind: int, chunk: int, micro_batch: int) -> str:
        return f"the {Pass(kind).name.lower()} pass of micro-batch {micro_batch} in chunk {chunk}"

    def _why_stuck(self) -> str | None:
        """Return which pass comes before what it needs, or None."""
        rows = self.row_of.astype(np.int64)
        for before, after in ((0, 1), (1, 2), (0, 2), (2, 3)):
            early = np.argwhere((rows[after] >= 0) & (rows[after] < rows[before]))
            if len(early):
                return f"{self._pass_text(after, *early[0])} comes before its {Pass(before).name.lower()} pass"
        # Ranks take turns; each goes on until a pass needs one that another rank has not run yet.
        need = np.full(len(self.kind), -1)
        tails, heads = self.needs
        need[heads] = tails
        needs, is_done = need.tolist(), bytearray(len(need) + 1)
        is_done[-1] = True  # what needs nothing
        next_rows, ends = self.rank_ptr[:-1].tolist(), self.rank_ptr[1:].tolist()
        waiting, moved = list(range(self.n_ranks)), True
        while moved:
            moved = False
            for rank in waiting:
                row = next_rows[rank]
                while row < ends[rank] and is_done[needs[row]]:
                    is_done[row] = True
                    row += 1
                moved |= row > next_rows[rank]
                next_rows[rank] = row
            waiting = [rank for rank in waiting if next_rows[rank] < ends[rank]]
        stuck = [next_rows[rank] for rank in waiting]
        if stuck:
            kind, chunk, micro_batch = (int(column[stuck[0]]) for column in (self.kind, self.chunk, self.micro_batch))
            return f"ranks wait for each other, the first for {self._pass_text(kind, chunk, micro_batch)}"
        return None
