"""What tables and JSON say of which plan they speak of, how its time varies, and which other one there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from topoplan_engine.experiment import Experiment
from topoplan_engine.search.draws import Draws
from topoplan_engine.search.optimize import FreePlan, Outcome

__all__ = ["iteration_time", "kept_json", "kept_rows", "planner_json", "planner_rows"]


def iteration_time(draws: Draws, say: Callable[[float], str]) -> str:
    """Return a time as text, with its standard deviation where it is the mean of several draws."""
    if not draws.seeds:
        return say(draws.mean)
    return f"{say(draws.mean)}, +- {draws.deviation / draws.mean:.2%} over {len(draws.seeds)} draws of equal paths"


def kept_rows(outcome: Outcome, experiment: Experiment, say: Callable[[float], str]) -> list[tuple[str, str]]:
    """Return the rows of a table that say which plan it is of, and which other one to know of."""
    aside, rows = outcome.aside, [("plan", outcome.origin.name)]
    if aside is not None:
        name = aside.entry.origin.name
        times = iteration_time(aside.draws, say) + ("" if aside.fits else " (does not fit)")
        choose = _choose(outcome, experiment)
        rows.append((f"beside it: {name}", times + (f"; {choose} takes it" if choose else "")))
    if (free := outcome.free) is not None:
        rows.append(_beside(outcome, free, say))
    if outcome.draws.seeds and outcome.plan.timeline is not None:
        seconds = f"{say(outcome.plan.timeline.makespan)} (seed {outcome.draws.nearest}), as what is below"
        rows.append(("the draw that is written", seconds))
    return rows


def _beside(outcome: Outcome, free: FreePlan, say: Callable[[float], str]) -> tuple[str, str]:
    """Return the row of what the plan for a trainer costs against the one that none limits.

    Where the search without limits found nothing faster, its plan says nothing of the trainer.
    """
    candidates = f"{free.evaluations:,} candidate{'' if free.evaluations == 1 else 's'}"
    if not free.refusal or (outcome.fits and not (free.fits and free.seconds < outcome.seconds)):
        return "free plan", f"none faster than this one for {free.trainers} among {candidates}"
    times = f"{say(free.seconds)}{'' if free.fits else ' (does not fit)'}, best of {candidates}"
    more = outcome.seconds / free.seconds - 1 if free.seconds else 0.0
    return "free plan (not launchable)", f"{times}; the plan for {free.trainers} takes {more:+.1%}"


def kept_json(outcome: Outcome, experiment: Experiment) -> dict[str, Any]:
    """Return what the JSON object of a run says about the same."""
    aside, draws, timeline = outcome.aside, outcome.draws, outcome.plan.timeline
    assert timeline is not None
    return {
        "plan": outcome.origin.name,
        "aside": None
        if aside is None
        else {
            "plan": aside.entry.origin.name,
            "iteration_time_s": aside.draws.mean,
            "standard_deviation_s": aside.draws.deviation,
            "fits": aside.fits,
            "choose": _choose(outcome, experiment),
        },
        "free_plan": None
        if outcome.free is None
        else {
            "trainers": outcome.free.trainers,
            "iteration_time_s": outcome.free.seconds,
            "fits": outcome.free.fits,
            "refusal": outcome.free.refusal or None,
            "evaluations": outcome.free.evaluations,
        },
        "draws": None
        if not draws.seeds
        else {
            "count": len(draws.seeds),
            "standard_deviation_s": draws.deviation,
            "standard_error_s": draws.error,
            "initial_standard_deviation_s": outcome.initial_draws.deviation,
            "searched_iteration_time_s": outcome.result.best_cost - outcome.penalty,
            "written_seed": draws.nearest,
            "written_iteration_time_s": timeline.makespan,
        },
    }


def _choose(outcome: Outcome, experiment: Experiment) -> str | None:
    """Return the option that takes the other plan, where one does."""
    if outcome.aside is None or (outcome.fits and not outcome.aside.fits):
        return None
    if outcome.origin.constructed and experiment.run.keep == "constructed":
        return "--keep fastest"
    return "--keep constructed" if experiment.run.keep == "fastest" else None


def planner_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the rows with the figures that planners estimated themselves: numbers and short texts of their reports."""
    provenance = outcome.plan.provenance
    rows = []
    for name, report in provenance.get("reports", {}).items():
        if "reports_are_of" in provenance:
            rows.append((f"figures of {name}", f"of another plan: {provenance['reports_are_of']}"))
        figures = {key: v for key, v in report.items() if isinstance(v, str | int | float) and key != "short"}
        rows += [(f"{name}'s own: {key}", f"{v:.6g}" if isinstance(v, float) else str(v)) for key, v in figures.items()]
    proposals = "" if outcome.origin.constructed else " (proposals; evaluations are simulated)"
    rows.append(("planned in", f"{outcome.result.planning:.2f} s{proposals}"))
    if (times := _over_one_device(outcome)) is not None:
        rows.append(("simulated speedup over one device", f"{times:.3f}x"))
    return rows


def planner_json(outcome: Outcome) -> dict[str, Any]:
    """Return what the JSON object of a run says of planners: their own figures by their names, and of which plan."""
    provenance = outcome.plan.provenance
    return {
        "speedup_over_one_device": _over_one_device(outcome),
        "planners": provenance.get("reports", {}),
        "planners_figures_are_of": provenance.get("reports_are_of", "this plan") if "reports" in provenance else None,
    }


def _over_one_device(outcome: Outcome) -> float | None:
    """Return what one device takes, if a planner says, over what the plan takes as simulated."""
    reports = outcome.plan.provenance.get("reports", {})
    one_device = [report["one_device_s"] for report in reports.values() if "one_device_s" in report]
    return float(one_device[0]) / outcome.seconds if one_device and outcome.seconds else None
