"""What a search starts with: a strategy, the fabric that the topology builds for it, and searchers that could be built.

`topoplan_engine.search.setup` builds searchers, and `topoplan_engine.search.driver` lets them search from here.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np

from topoplan.errors import TopoplanError, TopoplanWarning
from topoplan.model.strategy import Strategy
from topoplan.search.protocol import Candidate, Search, State
from topoplan_engine.search.companions import PortfolioMember
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.space import Space

__all__ = ["NoSearch", "first_state", "go_on_without", "initial_strategy"]


class NoSearch(Search):
    """In the place of a searcher that could not be built.

    Attributes:
        unfinished: name of the searcher, if there was no time to build it.
    """

    def __init__(self, unfinished: str = "") -> None:
        self.unfinished = unfinished

    def ask(self) -> list[Candidate]:
        """Propose nothing."""
        return []


def go_on_without(error: TopoplanError, axis: str, search: Search, axes: Sequence[str]) -> None:
    """Warn of a searcher's error, or raise it where no searcher of its axis and none that moves strategies is left.

    Args:
        error: what its code raised.
        axis: of the searcher.
        search: it, which gets no further turn; planners do not wait for it.
        axes: of the searchers that raised none.
    """
    if axis not in axes and not {"strategy", "joint"} & {*axes}:
        raise error
    if isinstance(search, PortfolioMember):
        search.leave()
    warnings.warn(TopoplanWarning(f"{error}; the other searchers continue"), stacklevel=3)


def initial_strategy(evaluator: Evaluator, seed: int) -> Strategy:
    """Return the strategy to start from: where devices of several kinds give a choice, the fastest one.

    ``seed`` draws what the topology draws.
    """
    space = evaluator.problem.space
    choices = space.initial_choices() if isinstance(space, Space) else [space.initial()]

    def rank(strategy: Strategy) -> tuple[bool, float]:
        state = first_state(evaluator, strategy, np.random.default_rng(seed).spawn(1)[0])
        trial = evaluator.price(Candidate(base=state))
        return not trial.fits, trial.cost

    return min(choices, key=rank) if len(choices) > 1 else choices[0]


def first_state(evaluator: Evaluator, strategy: Strategy, rng: np.random.Generator) -> State:
    """Return a strategy on the fabric that the topology builds for it; ``rng`` draws what the topology draws."""
    problem = evaluator.problem
    demand = evaluator.demand(strategy) if problem.reconfigurable else None
    return State(strategy, problem.build_fabric(demand, rng))
