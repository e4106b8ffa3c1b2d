"""Things that are alike: numbered rows of equal keys become one class, shown once with the numbers of its members."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from topoplan_engine.reporting.strategy import ranges

__all__ = ["classes_of", "named"]


def classes_of(keys: Sequence[Hashable]) -> list[list[int]]:
    """Return the numbers that have equal keys, ascending; classes are in the order of their first members."""
    members: dict[Hashable, list[int]] = {}
    for number, key in enumerate(keys):
        members.setdefault(key, []).append(number)
    return list(members.values())


def named(what: str, members: Sequence[int], how: str = "equal") -> str:
    """Return a label of a class: ``device 3``, or ``devices 0-127 (128 equal)``."""
    if len(members) == 1:
        return f"{what} {members[0]}"
    numbers = ranges(members)
    if len(numbers) > 12:
        numbers = f"{members[0]} … {members[-1]}"
    return f"{what}s {numbers} ({len(members)} {how})"
