"""Lists that a study compares, as people write them: seeds with ranges, and searchers that take turns.

``1..10`` are ten seeds.  ``mcmc+relink`` are two searchers that take turns in one search; a list has searches that are
compared, so ``["mcmc", "mcmc+relink"]`` are two of them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from topoplan.errors import TopoplanError, shown
from topoplan_engine.experiment import Choice, choice_from

__all__ = ["JOINED", "searcher_choices", "seeds_of"]

#: Between searchers that take turns: a plus sign before a name, which no number has (``1e+5``).
JOINED = re.compile(r"\s*\+\s*(?=[a-z])")
_RANGE = re.compile(r"\s*(\d{1,18})\s*\.\.\s*(\d{1,18})\s*")
_MOST_SEEDS = 10_000


def seeds_of(value: Any, where: str) -> Any:
    """Write the ranges of a list of seeds out; what is none stays as it is, for whoever checks seeds.

    Args:
        value: ``"1..10"``, or a list of integers and such texts.
        where: for messages.

    Raises:
        TopoplanError: a range that falls, or one of more than 10,000 seeds.
    """
    seeds: list[Any] = []
    for entry in value if isinstance(value, list | tuple) else [value]:
        ends = _RANGE.fullmatch(entry) if isinstance(entry, str) else None
        if ends is None:
            seeds.append(entry)
            continue
        first, last = int(ends[1]), int(ends[2])
        if last < first or last - first >= _MOST_SEEDS:
            raise TopoplanError(
                f"{where}: {shown(entry)} is no range (write FIRST..LAST, such as 1..10, of "
                f"{_MOST_SEEDS} seeds at most)"
            )
        seeds += range(first, last + 1)
    return seeds if isinstance(value, list | tuple) or len(seeds) != 1 or seeds[0] is not value else value


def searcher_choices(text: Any, where: str) -> tuple[Choice, ...]:
    """Return the searchers of ``NAME[:KEY=VALUE,...][+NAME...]``, which take turns.

    Raises:
        TopoplanError: it is no such text.
    """
    if not isinstance(text, str) or not text.strip():
        raise TopoplanError(f"{where}: expected a searcher, such as mcmc:alpha=40 or mcmc+relink, got {shown(text)}")
    words: Sequence[str] = [word.strip() for word in JOINED.split(text)]
    if any(not word or word.endswith("+") for word in words):
        raise TopoplanError(f"{where}: {shown(text)}: nothing stands before or behind a plus sign (write NAME+NAME)")
    return tuple(choice_from(word, where) for word in words)
