"""The network half of TopoOpt's alternating optimization (NSDI'23, section 4.1).

The searcher alternates with a searcher of strategies.  From time to time it takes the demand of the best strategy,
builds a new fabric for it, and proposes strategy and fabric as one state.  The construction is that of the topology
``topoopt``.  Its rule divides the interfaces between rings and direct links by bytes alone and ignores what overlaps in
time.  Therefore some other splits are proposed as well, each in two variants: direct links for the most bytes, and for
the most bytes times detour.  For the best of these fabrics, traffic is then split by load over the k shortest paths.
The cost decides each time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Searcher, TopoplanError, hookimpl, option

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem, Search

__all__ = ["TotientPerm", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class TotientPerm(Searcher):
    """Rewires the fabric for the demand of the best strategy; alternates with a strategy searcher."""

    name = "totientperm"
    axis = "network"
    partner = "mcmc"

    rules: Literal["paper", "released", "greedy"] = option(
        "paper", help="as published; as FlexNet does it, all to the rings of one group size; or heaviest demands first"
    )
    after: Literal["best", "accepted"] = option(
        "best", help="wire anew for new best strategies, or one fabric for each move that the other searcher accepts"
    )
    every: int = option(50, help="turns between two times that the fabric is wired anew for a best", minimum=1)
    splits: int = option(
        3, help="splits of the interfaces to propose, the rule's first; paper alone has more", minimum=1
    )
    routes: Literal["even", "balanced"] = option(
        "balanced", help="even shares of shortest paths; or propose shares by load, too, for the best of the fabrics"
    )

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search.

        Raises:
            TopoplanError: the topology cannot be rewired.
        """
        if not problem.reconfigurable:
            raise TopoplanError(f"searcher totientperm: topology {problem.topology!r} cannot be rewired (use topoopt)")
        from topoplan_searcher_totientperm.rewire import Rewire

        return Rewire(self, problem, rng)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return TotientPerm
