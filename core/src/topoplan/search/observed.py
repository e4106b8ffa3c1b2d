"""What observer hooks are told of a search: how it was started, and how far it is."""

from __future__ import annotations

import attrs

from topoplan.model.problem import Problem

__all__ = ["Progress", "Run"]


@attrs.frozen(kw_only=True)
class Run:
    """A search about to start: what observers are told about it.

    Attributes:
        budget: candidates to price after the initial state.
        patience: share of the budget after which the search ends if nothing was better; None to spend all.
    """

    problem: Problem
    budget: int
    seed: int
    searchers: tuple[str, ...]
    patience: float | None = None


@attrs.frozen(kw_only=True)
class Progress:
    """How far a search is.

    Attributes:
        evaluations: candidates priced so far, the initial state included.
        best, initial: seconds per iteration.
        acceptance: share of its proposals that the strategy searcher accepted; None if it does not say.
        elapsed: seconds since the start, without those that kernels took to compile.
    """

    evaluations: int
    best: float
    initial: float
    acceptance: float | None
    elapsed: float
