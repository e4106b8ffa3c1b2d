"""A planner of SPMD programs that minimizes seconds: options and registration.

Data flow: for each mesh of devices `topoplan_spmd_planning.space` builds the program, instructions with signatures,
`topoplan_spmd_planning.mesh_prices` prices them, and `topoplan_spmd_planning.mesh_planning` searches the program with a
recursion that overlaps both passes, and converts the result into a strategy.  `search` proposes the best plans of all
meshes, HiDup's plan and data parallelism, and the simulator decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Searcher, StagedStrategy, hookimpl, option

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem, Search

__all__ = ["Spmd", "topoplan_searchers"]


@attrs.frozen(kw_only=True)
class Spmd(Searcher):
    """SPMD programs on a mesh: shardings and collectives that take the least time."""

    name = "spmd"
    axis = "strategy"
    whole_batch = True
    constructs = True
    proposes = (StagedStrategy,)
    restrictable = True

    meshes: Literal["all", "flat"] = option(
        "all",
        help="all: every mesh of (data x model) and, for models with experts, (data x model x expert) in either order; "
        "flat: one axis of all devices",
    )
    state: Literal["auto", "whole", "sharded"] = option(
        "auto",
        help="gradients and optimizer state: sharded over equal parameters (ZeRO), whole, or sharded if they must be",
    )
    gathered: Literal["again", "kept"] = option(
        "again",
        help="parameters that are stored in slices: gathered for the forward pass, given back, and gathered again for "
        "the backward one, as FSDP2 and DeepSpeed do (ZeRO's third stage); or gathered once and kept",
    )
    schedule: Literal["any", "whole-batch"] = option(
        "any",
        help="any: two micro-batches take turns where that is faster; whole-batch: never, as trainers other than HiDup "
        "run programs",
    )
    unequal_layers: bool = option(
        False, help="operators of equal layers may be cut and stored unequally, where that is more than 1 % faster"
    )
    shortlist: int = option(
        3,
        help="drop a mesh if so many are estimated to be faster; for so many, also plan with compute counted for less",
        minimum=1,
        formerly="finalists",
    )
    beam: int = option(
        2000, help="if an operator has more states, only the fastest quarter of so many continue", minimum=4
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
