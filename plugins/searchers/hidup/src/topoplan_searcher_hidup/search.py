"""The search: it plans when it is built, then proposes its plan once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from topoplan import Candidate, Problem, Search, Strategy
from topoplan_engine.sharding.resharding import convert
from topoplan_searcher_hidup import Hidup
from topoplan_spmd_planning.hints import read_hints
from topoplan_spmd_planning.objective import objective
from topoplan_spmd_planning.planning import HidupPlan
from topoplan_spmd_planning.prices import Prices
from topoplan_spmd_planning.proposing import candidate_of, plan_of

__all__ = ["HidupSearch"]


class HidupSearch(Search):
    """Proposes the plan once and ignores its cost."""

    def __init__(self, options: Hidup, problem: Problem) -> None:
        self._problem = problem
        hints = read_hints(Path(options.hints))
        self._program, self._plan = plan_of(problem, options.signatures, options.max_states, hints)
        self._asked = False

    def ask(self) -> Sequence[Candidate]:
        """Propose the plan with both micro-batches in the first turn, then nothing."""
        if self.state is None or self._asked:
            return []
        self._asked = True
        return [candidate_of(self._plan, self._program, self._problem, self.state)]

    def own_plan(self) -> HidupPlan:
        """Return the plan; see `topoplan_engine.search.own_costs.OwnCosts`."""
        return self._plan

    def own_cost(self, plan: HidupPlan) -> float:
        """Return HiDup's objective of a plan for the same model and cluster."""
        return objective(plan.stages, self._program, Prices(self._problem))

    def report(self, strategy: Strategy | None) -> Mapping[str, Any]:
        """Return the objective, its components, and the plan: for each stage its reshardings and computations."""
        return {
            "objective": self._plan.outcome.objective,
            "forward_compute_s": self._plan.compute,
            "forward_communication_s": self._plan.forward,
            "backward_communication_s": self._plan.backward,
            "stages": len(self._plan.stages),
            "states": self._plan.outcome.states,
            "frontier_entries": self._plan.outcome.entries,
            "collectives": self._collectives(),
            "program": [
                {
                    "conversions": [
                        {"tensor": self._program.values[value].name, "from": str(source), "to": str(target)}
                        for value, source, target in stage.conversions
                    ],
                    "computations": [
                        {
                            "operator": self._program.instructions[index].name,
                            "inputs": [str(form) for form in signature.inputs],
                            "outputs": [str(form) for form in signature.outputs],
                        }
                        for index, signature in stage.computations
                    ],
                }
                for stage in self._plan.stages
            ],
        }

    def _collectives(self) -> Mapping[str, int]:
        """Count the collectives of the forward pass by kind."""
        counts: Counter[str] = Counter()
        for stage in self._plan.stages:
            for _, source, target in stage.conversions:
                conversion = convert(source, target)
                assert conversion is not None
                counts.update(step.name for step in conversion.forward)
        return dict(sorted(counts.items()))
