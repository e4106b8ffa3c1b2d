"""Local search over a fabric's links, which finds fabrics that TopoOpt's construction rules cannot build.

The search starts from the fabric of the best state.  One move changes the ends of two links, one end of a link, a link
between free interfaces, or the steps of rings (and so the split of interfaces between rings and direct links).  Each
new fabric is priced with the strategy and accepted unless it is slower.

Data flow: `moves` has the moves, as functions on a matrix of links and on the steps of rings.  `search` draws one move
per turn and builds the fabric.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from topoplan import Searcher, TopoplanError, hookimpl, option

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem, Search

__all__ = ["Relink", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class Relink(Searcher):
    """Local search over the links and rings of the best state's fabric; alternates with other searchers."""

    name = "relink"
    axis = "network"
    partner = "mcmc"

    every: int = option(1, help="turns from one proposal to the next", minimum=1)
    rings: float = option(0.4, help="chance that a proposal changes rings, if there are any", minimum=0, maximum=1)

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search.

        Raises:
            TopoplanError: the topology cannot be rewired.
        """
        if not problem.reconfigurable:
            raise TopoplanError(f"searcher relink: topology {problem.topology!r} cannot be rewired (use topoopt)")
        from topoplan_searcher_relink.search import RelinkSearch

        return RelinkSearch(self, problem, rng)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return Relink
