"""Sensitivity analysis: plans made under perturbed costs, priced under the true ones.

    experiment ─┬─ optimize ─────────────► plan ─┐
                └─ perturb ─► optimize ─► plans ─┴─► evaluator of the true problem ─► slowdowns

The seed of a run is the seed of the noise and of the search.  A search that draws at random adds variation of its own
to the effect of a perturbation; the row without a perturbation shows that variation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.plan import Plan
from topoplan.plugin.host import Host
from topoplan.search.protocol import State, Trial
from topoplan_engine.experiment import Experiment
from topoplan_engine.interrupt import interruptible
from topoplan_engine.perturbation import Perturbation
from topoplan_engine.search.draws import mean_trial
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.optimize import optimize
from topoplan_engine.search.perturbed import at_bandwidth
from topoplan_engine.search.setup import set_up_search

__all__ = ["PerturbationResult", "SensitivityAnalysis", "sensitivity"]


@attrs.frozen(kw_only=True)
class PerturbationResult:
    """What planning under one perturbation gave.

    Attributes:
        perturbation: with the seed of the experiment.
        seeds: of the runs that are finished.
        seconds: of the plan found with each seed, priced under true costs, the mean over draws of equal paths; a memory
            penalty included.
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


def sensitivity(
    experiment: Experiment,
    perturbations: Sequence[Perturbation],
    *,
    seeds: int = 3,
    plan: Plan | None = None,
    host: Host | None = None,
    on_progress: Callable[[int, str], None] = lambda finished, name: None,
) -> SensitivityAnalysis:
    """Plan under each perturbation with several seeds, and compare with the plan made with true costs.

    Args:
        experiment: what is searched, and from which seed on.
        perturbations: each is one row; their own seeds do not matter.
        seeds: how many runs each row has.
        plan: made with true costs; searched for, with the experiment's seed, unless given.
        host: where components come from; all installed plugins unless given.
        on_progress: called before every search, with the number of those that are finished and what comes next.

    Raises:
        TopoplanError: something in the experiment is wrong, or the plan is of another one.
    """
    host = host or Host.discover()
    evaluator = set_up_search(host, experiment).evaluator
    finished, trials_of, reference, fits = 0, dict[int, list[Trial]](), float("nan"), True
    run_seeds = range(experiment.run.seed, experiment.run.seed + seeds)
    with interruptible() as stop:
        try:
            on_progress(finished, "true costs")
            if plan is None:
                outcome = optimize(experiment, host=host)
                plan, stop.wanted = outcome.plan, stop.wanted or outcome.result.interrupted
            truth = _true_price(evaluator, plan, 1.0)
            reference, fits = truth.cost, truth.fits
            for index, perturbation in enumerate(perturbations):
                for seed in () if stop.wanted else run_seeds:
                    finished += 1
                    on_progress(finished, str(perturbation))
                    if stop.wanted:
                        break
                    seeded = attrs.evolve(experiment, run=attrs.evolve(experiment.run, seed=seed))
                    outcome = optimize(seeded, host=host, perturbation=attrs.evolve(perturbation, seed=seed))
                    if outcome.result.interrupted:
                        stop.wanted = True
                        break
                    price = _true_price(evaluator, outcome.plan, 1 / perturbation.communication_scale)
                    trials_of.setdefault(index, []).append(price)
        except KeyboardInterrupt:  # the second one, or one that came in between
            stop.wanted = True
        stopped = stop.wanted
    results = tuple(
        _result(perturbations[index], run_seeds, trials, reference, fits) for index, trials in trials_of.items()
    )
    return SensitivityAnalysis(reference=reference, fits=fits, results=results, interrupted=stopped)


def _result(
    perturbation: Perturbation, seeds: Sequence[int], trials: Sequence[Trial], reference: float, fits: bool
) -> PerturbationResult:
    """Return what came of the first seeds; ``fits`` says whether the plan made with true costs does."""
    return PerturbationResult(
        perturbation=perturbation,
        seeds=tuple(seeds[: len(trials)]),
        seconds=tuple(trial.cost for trial in trials),
        fits=tuple(trial.fits or not fits for trial in trials),
        reference=reference,
    )


def _true_price(evaluator: Evaluator, plan: Plan, scale: float) -> Trial:
    """Price a plan under true costs; ``scale`` makes its links as fast as they are."""
    assert plan.strategy is not None
    problem = evaluator.problem
    plan.strategy.check(problem.graph, problem.cluster.n_devices)
    if plan.fabric.n_hosts != problem.cluster.n_hosts:
        raise TopoplanError(
            f"the plan's network has {plan.fabric.n_hosts} hosts, the cluster {problem.cluster.n_hosts} "
            "(the plan is of another experiment)"
        )
    return mean_trial(evaluator, State(plan.strategy, at_bandwidth(plan.fabric, scale)))
