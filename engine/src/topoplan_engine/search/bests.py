"""The shortlist of a search: its last best states, with their origins.

A searcher that constructs its answer stands for the strategies that it proposes.  States of another searcher count by
their time alone.  So a search has two bests, the fastest of all and the fastest constructed one, and the user says
which one is the result.  Of either, the last few are stored: if messages draw one of several paths, a time is one draw
of many, and it takes more draws to decide which state is the best (`topoplan_engine.search.draws`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from topoplan.model.strategy import Strategy
from topoplan.search.protocol import Candidate, State, Trial

__all__ = ["LAST", "Bests", "Found", "Keep", "Origin", "ShortlistEntry", "almost_best"]

#: Best states that are stored.
LAST = 8

#: Cost of a constructed state, as a multiple of the best, up to which other draws of paths may decide between them.
_ALMOST = 1.05


@attrs.frozen(kw_only=True)
class Keep:
    """Which of the two bests is the result of a search.

    Attributes:
        constructing: names of the searchers that construct their answers, by their numbers in the order of turns.
        others: names of the other searchers of strategies, likewise.
        constructed: the result is the best that they constructed, if there is one; else the fastest of all.
        stated: users have stated the one plan that is constructed: it is the result, though it may not fit.
    """

    constructing: Mapping[int, str] = attrs.field(factory=dict)
    others: Mapping[int, str] = attrs.field(factory=dict)
    constructed: bool = False
    stated: bool = False

    def prefers(self, constructed: Trial | None, fastest: Trial) -> bool:
        """Say whether the best that was constructed, if anything was, is the result in place of the fastest of all."""
        if not self.constructed or constructed is None:
            return False
        return self.stated or constructed.fits or not fastest.fits


@attrs.frozen
class Origin:
    """Where a strategy comes from.

    Attributes:
        name: a few words: ``initial strategy``, ``constructed by hpgo``, ``found by mcmc``.
        searcher: the searcher that constructed it and stands for it; empty if none does.
        report: the report of that searcher, once it has been asked.
    """

    name: str
    searcher: str = ""
    report: Mapping[str, Any] | None = None

    @property
    def constructed(self) -> bool:
        """Whether a searcher stands for it."""
        return bool(self.searcher)


@attrs.frozen(kw_only=True, eq=False)
class ShortlistEntry:
    """A state that was the best of its kind when it was priced, and its cost in seconds, as the search priced it."""

    state: State
    cost: float
    origin: Origin


class Bests:
    """The last states, each better than all before it."""

    def __init__(self) -> None:
        self._last: deque[Trial] = deque(maxlen=LAST)

    @property
    def best(self) -> Trial | None:
        """The best one; None before the first."""
        return self._last[-1] if self._last else None

    @property
    def last(self) -> tuple[Trial, ...]:
        """The last ones, the best one at the end."""
        return tuple(self._last)

    def take(self, trial: Trial) -> bool:
        """Store a trial if it is feasible and better than all before it; say whether it is."""
        if trial.cost == float("inf") or (self._last and trial.rank >= self._last[-1].rank):
            return False
        self._last.append(trial)
        return True


def almost_best(kinds: Iterable[Bests], last: Sequence[Trial]) -> list[Trial]:
    """Return the fastest state of each kind, of those not in ``last``, if it is almost as fast as the last of these."""
    fastest = [bests.best for bests in kinds]
    return [
        trial
        for trial in fastest
        if trial is not None
        and trial.cost <= _ALMOST * last[-1].cost
        and all(trial.state is not shortlisted.state for shortlisted in last)
    ]


class Found:
    """What a search has found: the fastest state, the fastest constructed one, and where strategies come from.

    Attributes:
        initial: the state at the start.
    """

    def __init__(self, keep: Keep, initial: Trial) -> None:
        self._keep, self.initial = keep, initial
        self._fastest, self._constructed = Bests(), Bests()
        #: The fastest that each searcher constructed, by its name.
        self._constructed_by: dict[str, Bests] = {}
        self._fastest.take(initial)
        #: Where strategies come from that a searcher constructed, and those that were the fastest when another searcher
        #: found them; by their keys.
        self._origins: dict[bytes, Origin] = {}
        self._finders: dict[bytes, Origin] = {}

    @property
    def best(self) -> Trial:
        """The best state; if constructed states are preferred, the best of these (`Keep.prefers`)."""
        fastest, constructed = self._fastest.best or self.initial, self._constructed.best
        return constructed if constructed is not None and self._keep.prefers(constructed, fastest) else fastest

    @property
    def has_constructed(self) -> bool:
        """Whether a state is known that a searcher constructed."""
        return self._constructed.best is not None

    @property
    def is_constructed(self) -> bool:
        """Whether the best state is one that a searcher constructed."""
        return self.best is self._constructed.best

    def take(self, trial: Trial, finder: str = "") -> None:
        """Store a trial if it is one of the bests; ``finder`` is the searcher that found its strategy, if one did."""
        if self._fastest.take(trial) and finder:
            self._finders.setdefault(trial.state.strategy.key, Origin(f"found by {finder}"))
        if (origin := self.origin(trial.state.strategy)).constructed:
            self._constructed.take(trial)
            self._constructed_by.setdefault(origin.searcher, Bests()).take(trial)

    def note(self, number: int, candidate: Candidate, trial: Trial) -> None:
        """Remember a strategy that a searcher constructed, or that is there for comparison with such ones."""
        name, strategy = self._keep.constructing.get(number), trial.state.strategy
        if name is not None and strategy.key not in self._origins:
            comparison = candidate.comparison
            self._origins[strategy.key] = Origin(comparison) if comparison else Origin(f"constructed by {name}", name)

    def know(self, strategy: Strategy, origin: Origin) -> None:
        """Remember where a strategy of another search run comes from."""
        (self._origins if origin.constructed else self._finders)[strategy.key] = origin

    def origin(self, strategy: Strategy) -> Origin:
        """Say where a strategy comes from."""
        if strategy is self.initial.state.strategy:
            return Origin("initial strategy")
        return self._origins.get(strategy.key) or self._finders.get(strategy.key) or Origin("found by search")

    def shortlist(self) -> tuple[tuple[Trial, ...], Trial | None]:
        """Return the last best states, the best at the end, and the best of the other kind if that is another state.

        Unless constructed states are preferred, the fastest one that each searcher constructed comes first, if it is
        almost as fast.
        """
        prefers = self._keep.constructed and self.is_constructed
        bests, other_bests = (self._constructed, self._fastest)[:: 1 if prefers else -1]
        last = bests.last or (self.initial,)
        if not prefers:
            last = (*almost_best(self._constructed_by.values(), last), *last)
        second = other_bests.best
        return last, None if second is None or second.state is last[-1].state else second
