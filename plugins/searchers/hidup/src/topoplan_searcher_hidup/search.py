"""The plan as a searcher: it plans when it is built, and asks for its plan to be simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from topoplan import Candidate, Problem, Search, State, Strategy, Trial
from topoplan_engine.sharding.resharding import convert
from topoplan_searcher_hidup import Hidup
from topoplan_spmd_planning.proposing import candidate_of, plan_of

__all__ = ["HidupSearch"]


class HidupSearch(Search):
    """Proposes the plan, once; learns nothing from its price."""

    def __init__(self, options: Hidup, problem: Problem) -> None:
        self._problem = problem
        self._program, self._plan = plan_of(problem, options.signatures, options.max_states)
        self._state: State | None = None
        self._asked = False

    def adopt(self, trial: Trial) -> None:
        """Propose the plan on the fabric of ``trial``."""
        self._state = trial.state

    def ask(self) -> Sequence[Candidate]:
        """Propose the plan, with both micro-batches; then nothing."""
        if self._state is None or self._asked:
            return []
        self._asked = True
        return [candidate_of(self._plan, self._program, self._problem, self._state)]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take the plan's price, which changes nothing."""

    def report(self, strategy: Strategy | None) -> Mapping[str, Any]:
        """Return the objective, what it is made of, and the plan: stages of conversions, then of computations."""
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
