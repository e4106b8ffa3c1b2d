"""Every strategy of a small space, in a fixed order: proves other searchers right."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import attrs

from topoplan import Candidate, Placement, Searcher, State, Strategy, TopoplanError, Trial, hookimpl, option

__all__ = ["EXHAUSTIVE", "ExhaustiveOptions", "topoplan_searchers"]

#: Candidates priced between two turns of a network searcher.
_BATCH = 16


@attrs.frozen(kw_only=True)
class ExhaustiveOptions:
    """Options of `exhaustive`."""

    largest: int = option(1_000_000, help="refuse a space of more strategies than this", minimum=1)
    vary: int = option(
        0, help="vary only the first so many operators, the others keep their placement; 0: all", minimum=0
    )


class ExhaustiveSearch:
    """Goes through the product of all operators' placements."""

    def __init__(self, options: ExhaustiveOptions, problem: Any) -> None:
        ops = range(len(problem.graph.operators))
        varied = ops[: options.vary] if options.vary else ops
        self._choices: list[tuple[Placement, ...]] = [tuple(problem.space.placements(op)) for op in varied]
        size = math.prod(len(choice) for choice in self._choices)
        if size > options.largest:
            raise TopoplanError(
                f"searcher exhaustive: the space has {size:.3g} strategies, more than largest={options.largest} "
                "(use fewer devices, vary fewer operators, or another searcher)"
            )
        self._state: State | None = None
        self._left: Iterator[tuple[Placement, ...]] = itertools.product(*self._choices)

    def adopt(self, trial: Trial) -> None:
        """Price what is left on the fabric of ``trial``."""
        self._state = trial.state

    def ask(self) -> Sequence[Candidate]:
        """Propose the next strategies; nothing once all were proposed."""
        if self._state is None:
            return []
        rest = self._state.strategy.placements[len(self._choices) :]
        return [
            Candidate(base=State(Strategy(chosen + rest), self._state.fabric))
            for chosen in itertools.islice(self._left, _BATCH)
        ]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Learn nothing: the driver keeps the best."""


def _build(options: ExhaustiveOptions, problem: Any, rng: Any) -> ExhaustiveSearch:
    return ExhaustiveSearch(options, problem)


EXHAUSTIVE = Searcher(
    name="exhaustive",
    summary="Every strategy of a small space: proves other searchers right",
    options=ExhaustiveOptions,
    build=_build,
    axis="strategy",
)


@hookimpl
def topoplan_searchers() -> list[Searcher]:
    """Register the searcher."""
    return [EXHAUSTIVE]
