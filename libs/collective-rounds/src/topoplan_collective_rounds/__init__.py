"""Columns of a `topoplan.CollectiveRounds`, collected step by step, and the rings that most algorithms are made of."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from topoplan import CollectiveRounds
from topoplan.arrays import I64

__all__ = ["Ring", "Steps"]


class Ring(NamedTuple):
    """Rings of k members each, on which data goes round in pieces.

    Each ring passes ``k`` pieces of ``width`` chunks; piece p are the chunks ``base + p unit``, ``stride`` apart.

    Attributes:
        members: (r, k) members in the order of each ring.
        base: (r, 1) or a number: first chunk of piece 0; a multiple of ``k unit``, but for less than one unit.
        unit, width, stride: see above.
        between: latencies between hosts on the way once round, less one; None where all are equal.
        backward: members send to the one before them.
    """

    members: I64
    base: Any = 0
    unit: int = 1
    width: int = 1
    stride: int = 1
    between: int | None = None
    backward: bool = False


class Steps:
    """Collects the messages of a collective.

    Example:
        Two members that swap and add their halves:

        >>> import numpy as np
        >>> steps = Steps(chunks=2)
        >>> steps.scatter(Ring(np.array([[0, 1]])))
        >>> steps.gather(Ring(np.array([[0, 1]])))
        >>> rounds = steps.rounds()
        >>> rounds.source.tolist(), rounds.target.tolist(), rounds.chunk.tolist(), rounds.add.tolist()
        ([0, 1, 0, 1], [1, 0, 1, 0], [1, 0, 0, 1], [1, 1, 0, 0])
    """

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks
        self._parts: list[dict[str, Any]] = []
        self._step = -1

    def send(
        self, source: ArrayLike, target: ArrayLike, chunk: ArrayLike, *, together: bool = False, **more: Any
    ) -> None:
        """Add messages; all arguments are columns of `CollectiveRounds`, or numbers that hold for all messages.

        Args:
            source, target, chunk: of each message.
            together: they are of the step of the messages before them, rather than of a new one.
            more: other columns.
        """
        source, target, chunk = np.broadcast_arrays(source, target, chunk)
        if not together or self._step < 0:
            self._step += 1
        columns = {"source": source, "target": target, "chunk": chunk, "step": self._step, **more}
        self._parts.append({name: np.broadcast_to(value, source.shape).ravel() for name, value in columns.items()})

    def scatter(self, ring: Ring, *, together: bool = False) -> None:
        """Add a reduce-scatter on rings: member p of a ring ends with the sum of piece p."""
        self._pass(ring, 1, 1, together)

    def gather(self, ring: Ring, *, together: bool = False) -> None:
        """Add an all-gather on rings: member p of a ring begins with piece p."""
        self._pass(ring, 0, 0, together)

    def _pass(self, ring: Ring, add: int, offset: int, together: bool) -> None:
        k = ring.members.shape[1]
        if k < 2:
            return
        way = -1 if ring.backward else 1
        piece = (np.arange(k) - way * offset) % k
        self.send(
            ring.members,
            np.roll(ring.members, -way, axis=1),
            ring.base + piece * ring.unit,
            together=together,
            count=ring.width,
            stride=ring.stride,
            add=add,
            repeats=k - 1,
            shift=-way * ring.unit,
            period=k * ring.unit,
            between=-1 if ring.between is None else ring.between,
        )

    def rounds(self, *, overlaps: bool = False, owner: Any = None) -> CollectiveRounds:
        """Return all messages."""
        names = dict.fromkeys(name for part in self._parts for name in part)
        defaults = {"count": 1, "stride": 1, "repeats": 1, "latencies": -1, "between": -1}
        columns = {
            name: np.concatenate(
                [part.get(name, np.full(part["source"].shape, defaults.get(name, 0))) for part in self._parts]
            )
            for name in names
        }
        return CollectiveRounds(chunks=self._chunks, overlaps=overlaps, owner=owner, **columns)
