"""The plan as a searcher: it plans when it is built, and asks for its plan to be simulated."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from topoplan import Candidate, Placement, Problem, State, Strategy, Trial
from topoplan.model.resharding import convert
from topoplan.model.sharding import Signature, signatures
from topoplan_searcher_hidup import HidupOptions
from topoplan_searcher_hidup.planning import HidupPlan, plan
from topoplan_searcher_hidup.prices import Prices
from topoplan_searcher_hidup.program import Program, write_down
from topoplan_searcher_hidup.released import released
from topoplan_searcher_hidup.strategy import strategy_of

__all__ = ["HidupSearch", "placements_of"]


class HidupSearch:
    """Proposes the plan, once; learns nothing from its price."""

    def __init__(self, options: HidupOptions, problem: Problem) -> None:
        self._problem = problem
        if options.signatures == "released":
            self._program = write_down(problem.graph, released)
        else:
            self._program = write_down(problem.graph, signatures, problem.cluster.n_devices)
        self._plan = plan(self._program, Prices(problem), max_states=options.max_states, model=problem.graph.name)
        self._state: State | None = None
        self._asked = False

    def adopt(self, trial: Trial) -> None:
        """Propose the plan on the fabric of ``trial``."""
        self._state = trial.state

    def ask(self) -> Sequence[Candidate]:
        """Propose the plan, with both micro-batches; then nothing.

        A plan with a rule that is not sound, or with slices that are not even, is proposed as placements alone.
        """
        if self._state is None or self._asked:
            return []
        self._asked = True
        strategy = strategy_of(self._plan, self._program, self._problem)
        if strategy is not None:
            return [Candidate(base=State(strategy, self._state.fabric))]
        return [Candidate(base=self._state, placements=placements_of(self._plan, self._program, self._problem))]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take the plan's price, which changes nothing."""

    def report(self, strategy: Strategy | None) -> Mapping[str, Any]:  # noqa: ARG002 - there is one plan
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
                        {"tensor": self._program.values[value].name, "from": str(given), "to": str(wanted)}
                        for value, given, wanted in stage.conversions
                    ],
                    "computations": [
                        {
                            "operator": self._program.instructions[at].name,
                            "inputs": [str(form) for form in signature.inputs],
                            "outputs": [str(form) for form in signature.outputs],
                        }
                        for at, signature in stage.computations
                    ],
                }
                for stage in self._plan.stages
            ],
        }

    def _collectives(self) -> Mapping[str, int]:
        """Count the collectives of the forward pass by kind."""
        found: Counter[str] = Counter()
        for stage in self._plan.stages:
            for _, given, wanted in stage.conversions:
                conversion = convert(given, wanted)
                assert conversion is not None
                found.update(str(step.collective) for step in conversion.forward)
        return dict(sorted(found.items()))


def placements_of(plan: HidupPlan, program: Program[Signature], problem: Problem) -> dict[int, Placement]:
    """Return placements that cut every operator as the plan does, over all devices.

    Placements say less than forms: an operator that every device runs whole keeps the placement it had, and so does
    one whose rule cuts no dimension of the algebra (`topoplan_searcher_hidup.released.unsound`).
    """
    placements = {}
    for stage in plan.stages:
        for at, signature in stage.computations:
            op = program.instructions[at].op
            degrees = _degrees(signature, op, problem)
            if degrees is not None:
                placements[op] = problem.space.intern(Placement(degrees, range(problem.cluster.n_devices)))
    return placements


def _degrees(signature: Signature, op: int, problem: Problem) -> tuple[int, ...] | None:
    """Return the cut of a signature, where there is one that can be priced."""
    if op < 0 or signature.dim < 0:
        return None
    operator, devices = problem.graph.operators[op], problem.cluster.n_devices
    degrees = tuple(devices if dim == signature.dim else 1 for dim in range(len(operator.dims)))
    fits = operator.dims[signature.dim].size >= devices and problem.costs.supports(op, degrees)
    return degrees if fits else None
