"""Sensitivity analysis: plans made under perturbed costs, priced under the true ones.

    experiment ─┬─ search ─────────────► plan ─┐
                └─ perturb ─► search ─► plans ─┴─► true costs ─► slowdowns

True costs are those of the simulator, or of the planner's own cost model (`topoplan_command_sensitivity.pricing`).

The seed of a run is the seed of the noise and of the search.  A search that draws at random adds variation of its own
to the effect of a perturbation; the row without a perturbation shows that variation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import attrs
import numpy as np

from topoplan.model.plan import Plan
from topoplan.plugin.host import Host
from topoplan_command_sensitivity.pricing import PlanCost, PlannersCosts, SimulatedCosts, TrueCosts
from topoplan_engine.experiment import Experiment
from topoplan_engine.interrupt import interruptible
from topoplan_engine.perturbation import Perturbation

__all__ = ["ALIKE", "PerturbationResult", "PricedBy", "SensitivityAnalysis", "sensitivity"]

PricedBy = Literal["simulator", "planner"]
#: Slowdowns that are no further from 1 than this are none: tables round them to 1.0000.
ALIKE = 5e-5


@attrs.frozen(kw_only=True)
class PerturbationResult:
    """What planning under one perturbation gave.

    Attributes:
        perturbation: with the seed of the experiment.
        seeds: of the runs that are finished.
        seconds: of the plan found with each seed, priced under true costs: the mean over draws of equal paths, a memory
            penalty included, or the planner's objective.
        fits: whether each of these plans fits into memory; of those that do not slowdowns are infinite, unless the
            plan made with true costs does not fit either.
        reference: seconds of the plan made with true costs.
    """

    perturbation: Perturbation
    seeds: tuple[int, ...]
    seconds: tuple[float, ...]
    fits: tuple[bool, ...]
    reference: float

    @property
    def slowdowns(self) -> tuple[float, ...]:
        """Seconds over those of the plan made with true costs; below 1 if a run found a better plan by chance."""
        return tuple(
            seconds / self.reference if fits else float("inf")
            for seconds, fits in zip(self.seconds, self.fits, strict=True)
        )

    @property
    def mean(self) -> float:
        """Arithmetic mean of the slowdowns."""
        return float(np.mean(self.slowdowns))

    @property
    def worst(self) -> float:
        """The largest slowdown."""
        return max(self.slowdowns)


@attrs.frozen(kw_only=True)
class SensitivityAnalysis:
    """What `sensitivity` returns.

    Attributes:
        reference, fits: seconds of the plan made with true costs, and whether it fits into memory.
        results: of the perturbations for which a run is finished.
        interrupted: the user stopped it.
    """

    reference: float
    fits: bool
    results: tuple[PerturbationResult, ...]
    interrupted: bool

    @property
    def alike(self) -> bool:
        """Whether all plans cost the same, though some were made under perturbed costs: the study then says nothing."""
        perturbed = [result for result in self.results if str(result.perturbation) != str(Perturbation())]
        return bool(perturbed) and all(
            abs(slowdown - 1) < ALIKE for result in self.results for slowdown in result.slowdowns
        )


def sensitivity(
    experiment: Experiment,
    perturbations: Sequence[Perturbation],
    *,
    seeds: int = 3,
    plan: Plan | None = None,
    priced_by: PricedBy = "simulator",
    host: Host | None = None,
    on_progress: Callable[[int, str], None] = lambda finished, name: None,
) -> SensitivityAnalysis:
    """Plan under each perturbation with several seeds, and compare with the plan made with true costs.

    Args:
        experiment: what is searched, and from which seed on.
        perturbations: each is one row; their own seeds do not matter.
        seeds: how many runs each row has.
        plan: made with true costs; searched for, with the experiment's seed, unless given.
        priced_by: simulated times, or the planner's own objective, for which it plans anew.
        host: where components come from; all installed plugins unless given.
        on_progress: called before every search, with the number of those that are finished and what comes next.

    Raises:
        TopoplanError: something in the experiment is wrong, or the plan is of another one.
    """
    host = host or Host.discover()
    costs: TrueCosts = (
        PlannersCosts(host, experiment) if priced_by == "planner" else SimulatedCosts(host, experiment, plan)
    )
    finished, costs_of, truth = 0, dict[int, list[PlanCost]](), PlanCost(float("nan"))
    run_seeds = range(experiment.run.seed, experiment.run.seed + seeds)
    with interruptible() as stop:
        try:
            on_progress(finished, "true costs")
            truth = costs.right()
            stop.wanted = stop.wanted or truth.interrupted
            for index, perturbation in enumerate(perturbations):
                for seed in () if stop.wanted else run_seeds:
                    finished += 1
                    on_progress(finished, str(perturbation))
                    if stop.wanted:
                        break
                    seeded = attrs.evolve(experiment, run=attrs.evolve(experiment.run, seed=seed))
                    cost = costs.wrong(seeded, attrs.evolve(perturbation, seed=seed))
                    if cost.interrupted:
                        stop.wanted = True
                        break
                    costs_of.setdefault(index, []).append(cost)
        except KeyboardInterrupt:  # the second one, or one that came in between
            stop.wanted = True
        stopped = stop.wanted
    results = tuple(
        _result(perturbations[index], run_seeds, plan_costs, truth) for index, plan_costs in costs_of.items()
    )
    return SensitivityAnalysis(reference=truth.seconds, fits=truth.fits, results=results, interrupted=stopped)


def _result(
    perturbation: Perturbation, seeds: Sequence[int], plan_costs: Sequence[PlanCost], truth: PlanCost
) -> PerturbationResult:
    """Return the row of the first seeds; ``truth`` is of the plan made with true costs."""
    return PerturbationResult(
        perturbation=perturbation,
        seeds=tuple(seeds[: len(plan_costs)]),
        seconds=tuple(cost.seconds for cost in plan_costs),
        fits=tuple(cost.fits or not truth.fits for cost in plan_costs),
        reference=truth.seconds,
    )
