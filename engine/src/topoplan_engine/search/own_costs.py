"""Planners that price plans by their own cost model, without a simulation.

The costs of one search for the plan of another one tell what a plan costs that was made under a wrong profile:

    right profile ─► search ─────────────► own_cost(plan) ─► what the plan really costs, as the planner counts
    wrong profile ─► search ─► own_plan ───────┘
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

__all__ = ["OwnCosts"]


@runtime_checkable
class OwnCosts(Protocol):
    """What a `topoplan.Search` has if it prices plans itself."""

    def own_plan(self) -> Any:
        """Return the plan that it constructs, in its own form."""

    def own_cost(self, plan: Any) -> float:
        """Return the objective of a plan that another search for the same model and cluster constructed."""
