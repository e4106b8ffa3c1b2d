"""HPGO, the planner of DAPPLE, as a searcher that constructs its answer: options and registration.

`topoplan_pipeline_planning` cuts the model into layers and plans.  `baselines` estimates data-parallel training in the
same way.  `search` converts plans into candidates.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Searcher, hookimpl, option

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem, Search

__all__ = ["Hpgo", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class Hpgo(Searcher):
    """HPGO, DAPPLE's planner: pipelines of data-parallel stages.

    The options are assumptions of the planner.  Their defaults are HPGO's.
    """

    name = "hpgo"
    axis = "strategy"
    constructs = True

    micro_batch: int = option(1, help="samples of the smallest micro-batch", minimum=1)
    bandwidths: Literal["released", "cluster"] = option(
        "released", help="released: built in, as in HPGO; cluster: of the slowest host, all its interfaces together"
    )
    baselines: Literal["corrected", "released"] = option(
        "corrected", help="baselines of data-parallel training: with corrected formulas, or with those of HPGO"
    )
    weight_copies: float | None = option(
        None, help="memory for each byte of weights, for the baselines; unset: 3 if corrected, else HPGO's 1", above=0
    )
    sample_mb: float | None = option(
        None, help="memory for one sample, for the baselines; unset: all its activations", unit="MB", above=0
    )
    max_states: int = option(4000, help="refuse models of more layers than this", minimum=1)
    simplify: bool = option(False, help="one layer per operator, cut in the order of the graph, not antichain states")

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search."""
        from topoplan_searcher_hpgo.search import HpgoSearch

        return HpgoSearch(self, problem)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return Hpgo
