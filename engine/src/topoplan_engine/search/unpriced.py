"""What is priced after a time limit, where nothing was priced within it: a search has a result all the same.

Data flow: the driver keeps the first state, and the first candidate of a planner that there was no time for; at the end
it prices the latter, which is in stages and may fit, or else the former.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

from topoplan.errors import TopoplanWarning
from topoplan.search.protocol import Candidate, Trial
from topoplan_engine.kernels.clock import clock
from topoplan_engine.search.evaluator import Evaluator

__all__ = ["Unpriced"]


class Unpriced:
    """A candidate that there was no time for.

    Attributes:
        candidate: of the first state, or of a planner.
        number: of the planner that proposed it; None of the first state.
    """

    def __init__(self, first: Candidate) -> None:
        self.candidate = first
        self.number: int | None = None

    def keep(self, number: int, candidate: Candidate, cost: float = math.inf) -> None:
        """Keep the first candidate of a planner that has no cost."""
        if self.number is None and cost == math.inf:
            self.candidate, self.number = candidate, number

    def price(self, evaluator: Evaluator, limit: float, name_of: Callable[[int], str]) -> Trial:
        """Price it in full, and warn of how long that took.

        Args:
            evaluator: of the search.
            limit: seconds of the search.
            name_of: names a planner.
        """
        began = clock()
        trial = evaluator.price_in_full(self.candidate)
        what = "initial strategy" if self.number is None else f"first plan of {name_of(self.number)}"
        warnings.warn(
            TopoplanWarning(
                f"time-limit: no plan could be priced in {limit:.3g} s; the {what} is the result, and took "
                f"{clock() - began:.3g} s more"
            ),
            stacklevel=3,
        )
        return trial
