"""The search itself: when to have a fabric built, and what to propose with it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from topoplan import Candidate, Problem, Search, Trial

if TYPE_CHECKING:
    from topoplan_searcher_rewire import Rewire

__all__ = ["RewireSearch"]


class RewireSearch(Search):
    """Search along the network axis; see `topoplan.search.protocol.Search`.

    It proposes when the state that it was last given has changed and it was asked at least ``every`` times since it
    last proposed; the first time it proposes at once.
    """

    def __init__(self, options: Rewire, problem: Problem, rng: np.random.Generator) -> None:
        self._every, self._build, self._rng = options.every, problem.build_fabric, rng
        self._given: Trial | None = None
        self._turns = options.every

    def ask(self) -> Sequence[Candidate]:
        """Propose the state last given on a fabric made for it; nothing while it is not yet time."""
        self._turns += 1
        if self._given is None or self._turns < self._every:
            return []
        self._turns = 0
        trial, self._given = self._given, None
        fabric = self._build(trial.demand(), self._rng)
        if fabric == trial.state.fabric:
            return []
        return [Candidate(base=trial.state, fabric=fabric, cutoff_seconds=trial.cost)]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Leave it to the driver to keep what is better."""

    def adopt(self, trial: Trial) -> None:
        """Go on from another strategy."""
        self._given = trial
