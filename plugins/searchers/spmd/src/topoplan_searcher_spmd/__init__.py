"""Plans for programs on all devices, in seconds: options and registration.

Data flow: for each mesh of devices `space` writes the model down as instructions with signatures, `machine` and
`prices` say what these take, HiDup's kernel (`topoplan_spmd_planning`) searches them by a recursion that overlaps
both passes, and `planning` makes a strategy of what it found; `search` proposes the best of all meshes, HiDup's own
plan and data parallelism, and the simulator decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Searcher, hookimpl, option

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem, Search

__all__ = ["Spmd", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class Spmd(Searcher):
    """SPMD programs on a mesh: forms and collectives that take the least time."""

    name = "spmd"
    axis = "strategy"
    whole_batch = True
    constructs = True

    meshes: Literal["all", "flat"] = option(
        "all",
        help="all: every mesh of (data x model) and, for models with experts, (data x model x expert) in either order; "
        "flat: one axis of all devices",
    )
    state: Literal["auto", "whole", "sharded"] = option(
        "auto",
        help="gradients and optimizer state: sharded over equal parameters (ZeRO), or only where memory is short",
    )
    finalists: int = option(
        3,
        help="meshes are given up once so many are estimated to be faster; of so many, plans that run ahead are tried",
        minimum=1,
    )
    beam: int = option(
        2000, help="where an operator has more states, a quarter of so many go on: the fastest", minimum=4
    )
    max_states: int = option(1_000_000, help="refuse models that need more states than this at a time", minimum=1)

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search."""
        from topoplan_searcher_spmd.search import SpmdSearch

        return SpmdSearch(self, problem)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return Spmd
