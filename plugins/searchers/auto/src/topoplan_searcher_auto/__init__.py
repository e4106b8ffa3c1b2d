"""The searcher for every problem: plans by estimates, a chain that improves them, and companions.

estimates of cuts ─► plans (both in `topoplan_placement_moves`) ─► chain (`search`)

Companions take turns with it: planners of other kinds of strategy, whose plans are the best for some models, and
searchers of the network where it can be wired.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from topoplan import Searcher, StagedStrategy, Topology, hookimpl, option
from topoplan_engine import Choice

if TYPE_CHECKING:
    import numpy as np

    from topoplan import Problem, Search, Strategy

__all__ = ["Auto", "topoplan_searchers"]

#: Devices up to which `hybrid` plans stages of unequal size in a default search (decision 0306).
_FEW_DEVICES = 16


@attrs.frozen(kw_only=True)
class Auto(Searcher):
    """Plans by estimates, a chain that improves them, planners, and the network where it can be wired."""

    name = "auto"
    axis = "strategy"
    whole_batch = True

    alpha: float = option(
        100.0, help="a slowdown, as a share of the best time, is accepted with exp(-alpha * slowdown)", above=0
    )
    plans: bool = option(True, help="begin with plans that are the best by estimates")
    programs: bool = option(True, help="a planner of SPMD programs takes turns")
    pipelines: bool = option(True, help="a planner of pipelines takes turns")
    hybrids: bool = option(
        True,
        help="a planner of pipelines of sharded programs takes turns, where layers have numbers or a pipeline leads",
    )
    unequal_layers: bool = option(
        False, help="programs may plan equal layers unequally, where that is more than 1 % faster"
    )
    network: bool = option(True, help="searchers of the network take turns, where it can be wired")

    joint: bool = option(
        True, help="at the end, move collective algorithms, layout and wiring of the best plan, for models of language"
    )

    @property
    def finisher(self) -> Choice | None:
        """Who improves its best plan at the end."""
        return Choice("joint") if self.joint else None

    def companions(self, topology: Topology, n_devices: int) -> Sequence[Choice]:
        """Return who takes turns with it; see `topoplan_engine.search.companions`."""
        # Hybrid plans are estimated in columns, so that models with layers soon have a plan that fits.
        kinds = (("hybrid", self.hybrids), ("spmd", self.programs), ("pipeline", self.pipelines))
        planners = [name for name, takes_part in kinds if takes_part]
        options: dict[str, dict[str, Any]] = {
            "hybrid": {"without-layers": False, "divided": n_devices <= _FEW_DEVICES, "placed": False}
        }
        if self.unequal_layers:
            options["spmd"] = {"unequal-layers": True}
        companions = [Choice(name, options.get(name, {})) for name in planners]
        if self.network and topology.rebuilds:
            companions.append(Choice("rewire"))
        elif self.network and topology.follows_demand:
            companions += [Choice("totientperm"), Choice("relink", {"every": 4})]
        return companions

    def without(self, kinds: Sequence[type[Strategy]]) -> Auto:
        """Return it without the planners of strategies of these kinds."""
        return attrs.evolve(
            self,
            programs=self.programs and StagedStrategy not in kinds,
            pipelines=self.pipelines and StagedStrategy not in kinds,
            hybrids=self.hybrids and StagedStrategy not in kinds,
        )

    def build(self, problem: Problem, rng: np.random.Generator) -> Search:
        """Start the search."""
        from topoplan_searcher_auto.search import AutoSearch

        return AutoSearch(self, problem, rng)


@hookimpl
def topoplan_searchers() -> type[Searcher]:
    """Register the searcher."""
    return Auto
