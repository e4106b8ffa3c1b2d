"""Moves algorithms of collectives, the layout of ranks, and the wiring of a network that follows demand.

    the best state ─► algorithms: all kinds, then without each kind, then without each shape of group
          ▲       └─► wiring: that of the topology for its demand
          └────────── layouts: each on the wiring that its demand asks for; again, until nothing is faster

What devices compute stays as it is.  Every move is simulated, and kept only if it is faster.  Data flow:
`topoplan_joint_moves` says which moves there are, `search` proposes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import attrs

from topoplan import Searcher, Topology, hookimpl, option
from topoplan_engine import Choice

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem, Search, Strategy

__all__ = ["Joint", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class Joint(Searcher):
    """Moves collective algorithms, layout and, where the network follows demand, the wiring of the best state."""

    name = "joint"
    axis = "joint"
    restrictable = True

    algorithms: bool = option(True, help="choose algorithms of collectives that --collective does not name")
    layouts: bool = option(True, help="try other orders of ranks of pipelines and programs on meshes")
    wiring: bool = option(True, help="wire a network that follows demand for the demand of the best state")

    def companions(self, topology: Topology, n_devices: int) -> Sequence[Choice]:
        """Return who takes turns with it: where links can be wired one by one, who tries several splits of them."""
        if not self.wiring or topology.rebuilds or not topology.follows_demand:
            return []
        return [Choice("totientperm", {"every": 1})]

    def without(self, kinds: Sequence[type[Strategy]]) -> Self:
        """Return it as it is: it changes no kind of strategy."""
        return self

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search."""
        from topoplan_searcher_joint.search import JointSearch

        return JointSearch(self, problem, rng)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return Joint
