"""Shows that rounds of messages are a collective: which members' data each chunk at each member is the sum of.

Sums are sets of members, one bit each.  All messages of a round carry what was there before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from topoplan import CollectiveGroup, CollectiveRounds, TopoplanError
from topoplan.model.taskgraph import Collective

__all__ = ["check_rounds"]


class _Message(NamedTuple):
    source: int
    target: int
    chunks: list[int]
    add: bool


def check_rounds(rounds: CollectiveRounds, collective: Collective, group: CollectiveGroup) -> None:
    """Raise `TopoplanError` unless each member ends with what a collective promises.

    All-reduce: the sum of all members' data, each counted once.  Reduce-scatter: that of the chunks that it owns.
    All-gather and broadcast: all chunks.  All-to-all: what every member had for it.

    Example:
        >>> from topoplan import CollectiveGroup
        >>> swap = CollectiveRounds(chunks=1, source=[0, 1], target=[1, 0], chunk=0, add=1)
        >>> check_rounds(swap, Collective.ALL_REDUCE, CollectiveGroup((2,)))
    """
    n = group.n_members
    total = rounds.chunks * n if collective is Collective.ALL_TO_ALL else rounds.chunks
    has = _at_first(rounds, collective, n, total)
    name = f"{collective.label} of {n} members"
    for number, messages in enumerate(_rounds(rounds, n)):
        _send(has, messages, total, f"{name}, round {number}")
    for member in range(n):
        for chunk in range(total):
            promised = _promised(rounds, collective, n, member, chunk)
            if missing := promised & ~has[member][chunk]:
                what = f"{name}: at the end, chunk {chunk} of member {member} lacks"
                from_ = (missing & -missing).bit_length() - 1
                raise TopoplanError(f"{what} the data of member {from_}")


def _owner(rounds: CollectiveRounds, chunk: int) -> int:
    return chunk if rounds.owner is None else int(rounds.owner[chunk])


def _at_first(rounds: CollectiveRounds, collective: Collective, n: int, total: int) -> list[list[int]]:
    """Return for each member, and the switches, which members' data its chunks are the sum of."""
    if collective in (Collective.ALL_REDUCE, Collective.REDUCE_SCATTER):
        return [[1 << member] * total for member in range(n)] + [[0] * total]
    has = [[0] * total for _ in range(n + 1)]
    for chunk in range(total):
        owner = {Collective.BROADCAST: 0, Collective.ALL_TO_ALL: chunk // n}.get(collective)
        owner = _owner(rounds, chunk) if owner is None else owner
        has[owner][chunk] = 1 << owner
    return has


def _promised(rounds: CollectiveRounds, collective: Collective, n: int, member: int, chunk: int) -> int:
    """Return the members whose data a chunk of a member must be the sum of at the end."""
    if collective is Collective.BROADCAST:
        return 1
    if collective is Collective.ALL_GATHER:
        return 1 << _owner(rounds, chunk)
    if collective is Collective.ALL_TO_ALL:
        return 1 << chunk // n if chunk % n == member else 0
    if collective is Collective.REDUCE_SCATTER and _owner(rounds, chunk) != member:
        return 0
    return (1 << n) - 1


def _rounds(rounds: CollectiveRounds, n: int) -> Iterator[list[_Message]]:
    """Yield the messages of each round."""
    period = np.where(rounds.period > 0, rounds.period, rounds.chunks)
    for step in np.unique(rounds.step):
        rows = np.flatnonzero(rounds.step == step)
        for repeat in range(int(rounds.repeats[rows].max())):
            yield [
                _message(rounds, int(row), repeat, int(period[row]), n) for row in rows if rounds.repeats[row] > repeat
            ]


def _message(rounds: CollectiveRounds, row: int, repeat: int, period: int, n: int) -> _Message:
    block, within = divmod(int(rounds.chunk[row]), period)
    first = block * period + (within + repeat * int(rounds.shift[row])) % period
    turn, target = repeat * int(rounds.turn[row]), int(rounds.target[row])
    chunks = [first + i * int(rounds.stride[row]) for i in range(int(rounds.count[row]))]
    return _Message(int(rounds.source[row]), (target + turn) % n if turn else target, chunks, bool(rounds.add[row]))


def _send(has: list[list[int]], messages: list[_Message], total: int, where: str) -> None:
    """Let the messages of a round arrive."""
    n = len(has) - 1
    for source, target, chunks, _ in messages:
        if not (0 <= source <= n and 0 <= target <= n and source != target):
            raise TopoplanError(f"{where}: a message from member {source} to {target} (must be two of 0..{n - 1})")
        if not chunks or min(chunks) < 0 or max(chunks) >= total:
            raise TopoplanError(f"{where}: member {source} sends chunks {chunks} (must be of 0..{total - 1})")
    carried = [[has[m.source][chunk] for chunk in m.chunks] for m in messages]
    replaced = set[tuple[int, int]]()
    arrived = set[tuple[int, int]]()
    for message, sums in zip(messages, carried, strict=True):
        for chunk, of in zip(message.chunks, sums, strict=True):
            place, what = (message.target, chunk), f"{where}: chunk {chunk} from member {message.source}"
            if not of:
                raise TopoplanError(f"{what}, which does not have it")
            if place in replaced or (place in arrived and not message.add):
                raise TopoplanError(f"{what} to {message.target}: another message of the round replaces it")
            mine = has[message.target][chunk]
            if message.add and mine & of:
                twice = (mine & of).bit_length() - 1
                raise TopoplanError(f"{what} to {message.target}: the data of member {twice} would be added twice")
            has[message.target][chunk] = mine | of if message.add else of
            arrived.add(place)
            if not message.add:
                replaced.add(place)
