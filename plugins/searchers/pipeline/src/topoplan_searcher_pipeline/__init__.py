"""The planner that DAPPLE's paper describes (Fan et al., PPoPP 2021, section 4), as a searcher: options, registration.

Data flow: `columns` prices the model between cuts, and `machine` lists the ways to place stages.  `dynamic` builds the
best pipelines stage by stage, with the latency model of `latency`.  `planning` simulates them and the baselines stage
by stage under their schedules (`plans`, `stage_simulation`).  `search` has the best simulated task by task and
continues with their `neighbours`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Searcher, StagedStrategy, hookimpl, option

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem, Search

__all__ = ["DapplePipeline", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class DapplePipeline(Searcher):
    """Pipelines of data-parallel stages: planned as in DAPPLE's paper, then simulated under their schedules.

    The options restrict the plans.
    """

    name = "pipeline"
    axis = "strategy"
    constructs = True
    proposes = (StagedStrategy,)
    restrictable = True

    schedule: Literal["any", "1f1b", "1f1b-deep", "gpipe", "zero-bubble"] = option(
        "any", help="the order of passes; any: whichever is fastest"
    )
    micro_batch: int = option(1, help="samples of the smallest micro-batch", minimum=1)
    cuts: Literal["operators", "layers"] = option(
        "operators", help="where stages may end; layers: as trainers want it, with layers by the names of operators"
    )
    recompute: bool = option(True, help="stages that do not fit into memory may run their forward passes twice")
    shortlist: int = option(
        32, help="plans to simulate before the best ones are refined", minimum=1, formerly="finalists"
    )
    max_states: int = option(
        2000, help="cut models of more antichain states than this in the order of their operators", minimum=1
    )

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search."""
        from topoplan_searcher_pipeline.search import PipelineSearch

        return PipelineSearch(self, problem)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return DapplePipeline
