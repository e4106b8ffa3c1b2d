"""The search: decides when the topology builds a new fabric, and proposes it."""

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

    It proposes if the best state has changed and it was asked at least ``every`` times since its last proposal.  The
    first time it proposes at once.
    """

    def __init__(self, options: Rewire, problem: Problem, rng: np.random.Generator) -> None:
        self._every, self._build, self._rng = options.every, problem.build_fabric, rng
        self._trial: Trial | None = None
        self._turns = options.every

    def ask(self) -> Sequence[Candidate]:
        """Propose the best state on a new fabric, or nothing if it is too early."""
        self._turns += 1
        if self._trial is None or self._turns < self._every:
            return []
        self._turns = 0
        trial, self._trial = self._trial, None
        fabric = self._build(trial.demand(), self._rng)
        if fabric == trial.state.fabric:
            return []
        return [Candidate(base=trial.state, fabric=fabric, cutoff_seconds=trial.cost)]

    def adopt(self, trial: Trial) -> None:
        """Continue from another state."""
        self._trial = trial
