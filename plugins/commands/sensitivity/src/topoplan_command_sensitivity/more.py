"""What a little more bandwidth, compute or memory would bring: to the plan as it is, and to one that is planned for it.

    plan, its experiment ─► one change at a time ─► the same plan, priced ─► and the best plan of a new search

Bandwidth is that of all links and inside hosts, compute the speed of all devices; their prices change as the estimator
says them, so that a plan of thousands of devices is folded as it was.  Memory changes nothing but what fits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.plan import Plan
from topoplan.plugin.host import Host
from topoplan.search.protocol import State
from topoplan_engine.experiment import Experiment
from topoplan_engine.perturbation import Perturbation
from topoplan_engine.reporting.printing import spelled_time
from topoplan_engine.reporting.summary import stated_text
from topoplan_engine.reporting.tables import Column, RowTable
from topoplan_engine.search.draws import mean_trial
from topoplan_engine.search.optimize import optimize
from topoplan_engine.search.perturbed import at_bandwidth
from topoplan_engine.search.setup import set_up_search

__all__ = ["RESOURCES", "MoreOf", "more_json", "more_of_each", "more_table"]

#: Bandwidth, compute and memory.
RESOURCES = 3

#: The first row: nothing is changed.
_TODAY = "as it is"


@attrs.frozen(kw_only=True)
class MoreOf:
    """What more of one thing brings.

    Attributes:
        name: what there is more of.
        same: seconds of the plan as it is; None where none was given.
        anew: seconds of the plan that is searched for it; infinite if none fits.
        plan: the words of that, as ``--plan`` takes them, or where it comes from.
    """

    name: str
    same: float | None
    anew: float
    plan: str


def more_of_each(
    experiment: Experiment, plan: Plan | None, share: float, host: Host, on_progress: Callable[[int, str], None]
) -> list[MoreOf]:
    """Return what more of each brings, after a row without any change; an interrupted search ends the list.

    Args:
        experiment: that the plan is of.
        plan: to price; only searches where none is given.
        share: how much more, such as 0.1.
        host: where components come from.
        on_progress: called before every search, with the number of those that are finished and what comes next.
    """
    rows: list[MoreOf] = []
    for name, changed, perturbation in _changes(experiment, share, host):
        on_progress(len(rows), name)
        outcome = optimize(changed, host=host, perturbation=perturbation)
        if outcome.result.interrupted:
            break
        same = None if plan is None else _seconds(changed, plan, perturbation, host)
        words = stated_text(outcome.plan) or outcome.origin.name
        rows.append(MoreOf(name=name, same=same, anew=outcome.seconds if outcome.fits else float("inf"), plan=words))
    return rows


def _changes(experiment: Experiment, share: float, host: Host) -> Iterator[tuple[str, Experiment, Perturbation]]:
    more = f"{100 * share:.3g}% more"
    yield _TODAY, experiment, Perturbation()
    yield f"{more} bandwidth", experiment, Perturbation(communication_scale=1 + share)
    yield f"{more} compute", experiment, Perturbation(compute_scale=1 + share)
    gigabytes = {float(each) for each in set_up_search(host, experiment).problem.cluster.device_memory / 1e9}
    if len(gigabytes) == 1:  # devices of several kinds have no common option
        cluster = attrs.evolve(experiment.cluster, memory_gb=gigabytes.pop() * (1 + share))
        yield f"{more} memory", attrs.evolve(experiment, cluster=cluster), Perturbation()


def _seconds(experiment: Experiment, plan: Plan, perturbation: Perturbation, host: Host) -> float:
    """Return what a plan takes where costs are as the perturbation says."""
    if plan.strategy is None:
        raise TopoplanError("the plan has no strategy (needs one that topoplan optimize -x json wrote)")
    evaluator = set_up_search(host, experiment, perturbation).evaluator
    fabric = at_bandwidth(plan.fabric, perturbation.communication_scale)
    trial = mean_trial(evaluator, State(plan.strategy, fabric))
    return trial.cost if trial.fits else float("inf")


def more_table(rows: list[MoreOf]) -> RowTable[MoreOf]:
    """Return the table of all rows, with differences to the first one."""

    def text(seconds: float | None, today: float | None) -> str:
        if seconds is None or today is None:
            return "-"
        if seconds == float("inf"):
            return "DOES NOT FIT"
        return f"{spelled_time(seconds)}, {seconds / today - 1:+.1%}"

    return RowTable(
        [
            Column("with", lambda row: row.name, names_rows=True),
            Column("this plan", lambda row: text(row.same, rows[0].same), align="right"),
            Column("planned anew", lambda row: text(row.anew, rows[0].anew), align="right"),
            Column("plan", lambda row: row.plan, align="left"),
        ],
        rows,
    )


def more_json(rows: list[MoreOf]) -> list[Mapping[str, Any]]:
    """Return the rows as JSON says them."""
    return [{"with": row.name, "same_plan_s": row.same, "planned_anew_s": row.anew, "plan": row.plan} for row in rows]
