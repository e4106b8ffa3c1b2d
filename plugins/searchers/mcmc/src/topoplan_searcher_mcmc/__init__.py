"""Monte Carlo search over strategies: the plugin's registration and options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Searcher, hookimpl, option

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem, Search

__all__ = ["Mcmc", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class Mcmc(Searcher):
    """Monte Carlo search over strategies (FlexFlow, MLSys 2019; FlexNet's proposals and resets)."""

    name = "mcmc"
    axis = "strategy"
    whole_batch = True

    temperature: Literal["relative", "absolute"] = option(
        "relative",
        help="relative: a slowdown counts as a share of the best time; absolute: in milliseconds, as in FlexNet",
    )
    alpha: float | None = option(
        None, help="acceptance is exp(-alpha * slowdown); unset: 20 relative, 1 per ms absolute", above=0
    )
    propagation: float = option(
        0.25, help="chance that a proposal spreads a placement to neighbours", minimum=0, maximum=1
    )
    block: float = option(
        0.25,
        help="chance that a proposal gives one new placement to a whole block; 0 as in FlexNet",
        minimum=0,
        maximum=1,
    )
    hosts: Literal["strided", "neighbouring"] = option(
        "strided", help="hosts of a placement: at equal strides; neighbouring: in a row, as FlexNet without --net-opt"
    )
    spread: float = option(0.75, help="chance that spreading continues by one operator", minimum=0, maximum=0.99)
    reset_every: int = option(40, help="proposals after which the chain returns to the best state", minimum=1)

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search."""
        from topoplan_searcher_mcmc.chain import Chain

        return Chain(self, problem, rng)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return Mcmc
