"""What plans made under wrong costs cost under true ones: as simulated, or as their planner counts.

Both kinds make plans and price them: `SimulatedCosts` runs whole searches and simulates their plans, `PlannersCosts`
lets a planner that has costs of its own (`topoplan_engine.search.own_costs`) construct plans, and never simulates.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from topoplan.errors import TopoplanError
from topoplan.model.plan import Plan
from topoplan.plugin.host import Host
from topoplan.search.protocol import State
from topoplan_engine.experiment import Experiment
from topoplan_engine.perturbation import Perturbation
from topoplan_engine.search.draws import mean_trial
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.optimize import optimize
from topoplan_engine.search.own_costs import OwnCosts
from topoplan_engine.search.perturbed import at_bandwidth
from topoplan_engine.search.setup import SearchSetup, set_up_search
from topoplan_engine.sharding.programs import check_strategy

__all__ = ["PlanCost", "PlannersCosts", "SimulatedCosts", "TrueCosts"]


class PlanCost(NamedTuple):
    """Seconds of a plan under true costs, whether it fits into memory, and whether its search was interrupted."""

    seconds: float
    fits: bool = True
    interrupted: bool = False


class TrueCosts(Protocol):
    """Makes plans, and prices them under true costs."""

    def right(self) -> PlanCost:
        """Return the cost of the plan made under true costs."""

    def wrong(self, experiment: Experiment, perturbation: Perturbation) -> PlanCost:
        """Return the true cost of the plan made under a perturbation."""


class SimulatedCosts:
    """Plans of whole searches, simulated: means over draws of equal paths, a memory penalty included."""

    def __init__(self, host: Host, experiment: Experiment, plan: Plan | None) -> None:
        self._host, self._experiment, self._plan = host, experiment, plan
        self._evaluator = set_up_search(host, experiment).evaluator

    def right(self) -> PlanCost:
        """Price the plan that was given, or that a search under true costs finds."""
        if self._plan is not None:
            return _simulated(self._evaluator, self._plan, 1.0)
        outcome = optimize(self._experiment, host=self._host)
        return _simulated(self._evaluator, outcome.plan, 1.0)._replace(interrupted=outcome.result.interrupted)

    def wrong(self, experiment: Experiment, perturbation: Perturbation) -> PlanCost:
        """Search under the perturbation; an interrupted search gives no price."""
        outcome = optimize(experiment, host=self._host, perturbation=perturbation)
        if outcome.result.interrupted:
            return PlanCost(float("nan"), interrupted=True)
        return _simulated(self._evaluator, outcome.plan, 1 / perturbation.communication_scale)


class PlannersCosts:
    """Plans that a planner constructs, by its own objective."""

    def __init__(self, host: Host, experiment: Experiment) -> None:
        self._host = host
        self._truth = _planner_of(set_up_search(host, experiment))

    def right(self) -> PlanCost:
        """Return the objective under true costs of the plan made under them."""
        return PlanCost(self._truth.own_cost(self._truth.own_plan()))

    def wrong(self, experiment: Experiment, perturbation: Perturbation) -> PlanCost:
        """Return the objective under true costs of the plan made under the perturbation."""
        planner = _planner_of(set_up_search(self._host, experiment, perturbation))
        return PlanCost(self._truth.own_cost(planner.own_plan()))


def _planner_of(setup: SearchSetup) -> OwnCosts:
    searchers = [searcher for searcher in setup.searchers if searcher.axis == "strategy"]
    if len(searchers) > 1:
        raise TopoplanError("priced-by: planner: the experiment has several searchers of strategies (leave one)")
    planner = searchers[0].build(setup.problem, setup.rng())
    if not isinstance(planner, OwnCosts):
        raise TopoplanError(
            f"priced-by: planner: searcher {searchers[0].name} has no costs of its own for plans (hidup has; "
            "or priced-by simulator)"
        )
    return planner


def _simulated(evaluator: Evaluator, plan: Plan, scale: float) -> PlanCost:
    """Simulate a plan under true costs; ``scale`` makes its links as fast as they are."""
    assert plan.strategy is not None
    problem = evaluator.problem
    check_strategy(plan.strategy, problem.graph, problem.cluster.n_devices)
    if plan.fabric.n_hosts != problem.cluster.n_hosts:
        raise TopoplanError(
            f"the plan's network has {plan.fabric.n_hosts} hosts, the cluster {problem.cluster.n_hosts} "
            "(the plan is of another experiment)"
        )
    trial = mean_trial(evaluator, State(plan.strategy, at_bandwidth(plan.fabric, scale)))
    return PlanCost(trial.cost, trial.fits)
