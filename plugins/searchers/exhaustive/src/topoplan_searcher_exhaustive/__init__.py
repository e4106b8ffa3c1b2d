"""Prices every strategy of a small space, in a fixed order, to test other searchers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from topoplan import Candidate, Placement, Search, Searcher, TopoplanError, hookimpl, option

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem

__all__ = ["Exhaustive", "topoplan_searchers"]

#: Placements of some operators that are chosen together.
Choice = dict[int, Placement]

#: Candidates priced between two turns of a network searcher.
_BATCH = 16


class ExhaustiveSearch(Search):
    """Enumerates the product of all choices; a choice has the placements of one or more operators."""

    def __init__(self, options: Exhaustive, problem: Problem) -> None:
        choices = _tied_choices(problem) if options.tied else _free_choices(problem)
        size = math.prod(len(choice) for choice in choices)
        if size > options.largest:
            raise TopoplanError(
                f"searcher exhaustive: the space has {size:.3g} strategies, more than largest={options.largest} "
                "(use fewer devices, tied=true, or another searcher)"
            )
        self._combinations = itertools.product(*choices)

    def ask(self) -> Sequence[Candidate]:
        """Propose the next strategies; nothing once all were proposed."""
        if self.state is None:
            return []
        batch = itertools.islice(self._combinations, _BATCH)
        return [
            Candidate(base=self.state, placements={op: p for group in combination for op, p in group.items()})
            for combination in batch
        ]


def _free_choices(problem: Problem) -> list[list[Choice]]:
    """Every operator has every placement of the space."""
    return [[{op: p} for p in problem.space.placements(op)] for op in range(len(problem.graph.operators))]


def _tied_choices(problem: Problem) -> list[list[Choice]]:
    """Operators of one structure and iteration space share their degrees; embeddings keep their placements."""
    groups: dict[Any, list[int]] = {}
    for index, op in enumerate(problem.graph.operators):
        if op.kind != "embedding":
            groups.setdefault((op.tags, op.dims), []).append(index)
    space = problem.space
    return [
        [{op: space.place(degrees, 0) for op in members} for degrees in space.degrees(members[0])]
        for members in groups.values()
    ]


@attrs.frozen(kw_only=True)
class Exhaustive(Searcher):
    """Prices every strategy of a small space, to test other searchers."""

    name = "exhaustive"
    axis = "strategy"
    whole_batch = True

    largest: int = option(1_000_000, help="refuse a space of more strategies than this", minimum=1)
    tied: bool = option(
        False,
        help="reduced space: operators of one structure have equal cuts on the first device set; tables keep theirs",
    )

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search."""
        return ExhaustiveSearch(self, problem)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return Exhaustive
