"""Monte Carlo search over strategies: the plugin's registration and options."""

from __future__ import annotations

from typing import Any, Literal

import attrs

from topoplan import Searcher, hookimpl, option

__all__ = ["MCMC", "McmcOptions", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class McmcOptions:
    """Options of `mcmc`."""

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
    spread: float = option(0.75, help="chance that spreading goes on by one operator", minimum=0, maximum=0.99)
    reset_every: int = option(40, help="proposals after which the chain returns to the best state", minimum=1)


def _build(options: McmcOptions, problem: Any, rng: Any) -> Any:
    from topoplan_searcher_mcmc.chain import Chain

    return Chain(options, problem, rng)


MCMC = Searcher(
    name="mcmc",
    summary="Monte Carlo search over strategies (FlexFlow, MLSys 2019; FlexNet's proposals and resets)",
    options=McmcOptions,
    build=_build,
    axis="strategy",
    whole_batch=True,
)


@hookimpl
def topoplan_searchers() -> list[Searcher]:
    """Register the searcher."""
    return [MCMC]
