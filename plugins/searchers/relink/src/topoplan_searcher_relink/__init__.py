"""Local search over a fabric's links: what the rules of TopoOpt's construction leave to be found.

Starts from the fabric of the best state, whoever wired it, and changes it a little: the ends of two links, one
end of a link, a link between free interfaces, or the steps of rings and with them the split between rings and direct
links.  Every change is priced with the strategy, and kept unless it is slower.

How data passes through: `moves` has the changes, as functions on a matrix of links and on the steps of rings; `search`
draws one per turn and makes a fabric of it.
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
    """Local search over the links and rings of the best state's fabric, in turns with other searchers."""

    name = "relink"
    axis = "network"
    partner = "mcmc"

    every: int = option(1, help="turns from one proposal to the next", minimum=1)
    rings: float = option(0.4, help="chance that a proposal changes rings, where there are any", minimum=0, maximum=1)

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
