"""The network half of an alternating optimization, for any topology that follows demand.

The searcher alternates with a searcher of strategies.  From time to time it takes the demand of the best strategy, lets
the topology build a fabric for it, and proposes strategy and fabric as one state.  The topology decides what to build,
so this works for fabrics of every kind.  A searcher for one kind of fabric may find better ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from topoplan import Searcher, TopoplanError, hookimpl, option

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem, Search

__all__ = ["Rewire", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class Rewire(Searcher):
    """Proposes the topology's own fabric for the best strategy; alternates with a strategy searcher."""

    name = "rewire"
    axis = "network"
    partner = "mcmc"

    every: int = option(50, help="turns between two times that the fabric is built anew", minimum=1)

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search.

        Raises:
            TopoplanError: the topology does not follow demand.
        """
        if not problem.reconfigurable:
            raise TopoplanError(
                f"searcher rewire: topology {problem.topology!r} cannot be rewired (use ocs or topoopt)"
            )
        from topoplan_searcher_rewire.turns import RewireSearch

        return RewireSearch(self, problem, rng)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return Rewire
