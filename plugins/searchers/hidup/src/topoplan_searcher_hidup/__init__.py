"""HiDup's search, as a searcher that constructs its answer: options and registration.

`topoplan_spmd_planning` builds the program of the model, prices it and searches.  `search` converts the plan into a
candidate and a report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import PlacedStrategy, Searcher, StagedStrategy, hookimpl, option

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem, Search

__all__ = ["Hidup", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class Hidup(Searcher):
    """HiDup: one SPMD program, its collectives hidden behind a second copy of the model."""

    name = "hidup"
    axis = "strategy"
    whole_batch = True
    constructs = True
    proposes = (StagedStrategy, PlacedStrategy)

    signatures: Literal["released", "derived"] = option(
        "released", help="released: HiDup's table, with its wrong rules; derived: all sound signatures"
    )
    hints: str = option(
        "", help="TOML file with the shardings that named operators and tensors may have (HiDup's use_hints)"
    )
    max_states: int = option(4_000_000, help="refuse models that need more states than this at a time", minimum=1)

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search."""
        from topoplan_searcher_hidup.search import HidupSearch

        return HidupSearch(self, problem)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return Hidup
