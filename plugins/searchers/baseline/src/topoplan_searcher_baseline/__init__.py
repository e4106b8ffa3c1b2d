"""The strategies of named systems that other planners are compared with: options and registration.

`rules` says what each system does, with its source, and converts it into an SPMD program; `search` proposes it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import PlacedStrategy, Searcher, hookimpl, option

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem, Search

__all__ = ["Baseline", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class Baseline(Searcher):
    """The strategy of a named system: PyTorch DDP, Horovod, DeepSpeed-MoE or FastMoE."""

    name = "baseline"
    axis = "strategy"
    whole_batch = True
    constructs = True
    proposes = (PlacedStrategy,)

    rule: Literal["ddp", "horovod", "deepspeed-moe", "fastmoe"] = option("ddp", help="the system")

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search."""
        from topoplan_searcher_baseline.search import BaselineSearch

        return BaselineSearch(self, problem)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return Baseline
