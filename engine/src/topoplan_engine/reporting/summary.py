"""The first table of a search: which plan, how long it takes, whether it fits, what limits it, and how sure that is.

Everything else is said on request: ``--details`` and ``--json`` of the commands that search, and `topoplan show` and
`topoplan report` of a plan that was written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from topoplan.model.plan import Plan
from topoplan.plugin.components import Exporter
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Experiment
from topoplan_engine.reporting.cautions import caution_rows
from topoplan_engine.reporting.joint import joint_rows
from topoplan_engine.reporting.kept import iteration_time, kept_rows
from topoplan_engine.reporting.memory import fits_text
from topoplan_engine.reporting.model import model_rows
from topoplan_engine.reporting.parts import iteration_parts, shares_text
from topoplan_engine.reporting.printing import spelled_time
from topoplan_engine.reporting.runners_up import runners_up_rows
from topoplan_engine.search.optimize import Outcome
from topoplan_engine.search.result import Result
from topoplan_engine.throughput import Throughput

__all__ = ["launch_text", "stated_text", "summary_rows"]

#: A row that says which draw of paths other rows are of; here there are none.
_WRITTEN = "the draw that is written"


def summary_rows(outcome: Outcome, experiment: Experiment, launch: str) -> list[tuple[str, str]]:
    """Return the rows of the first table; ``launch``: see `launch_text`."""
    plan, parts = outcome.plan, iteration_parts(outcome.plan)
    stated = stated_text(plan)
    beside = [(label, text) for label, text in kept_rows(outcome, experiment, spelled_time) if label != _WRITTEN]
    return [
        *(row for row in model_rows(plan) if row[0] != "FLOP a token"),
        ("plan", stated or beside[0][1]),
        *beside[1:],
        ("iteration time", iteration_time(outcome.draws, spelled_time)),
        *joint_rows(plan),
        *_throughput_rows(outcome.throughput),
        *([("memory per device", fits_text(plan))] if plan.memory is not None else []),
        *([("limited by", f"{shares_text(parts)} ({parts.where})")] if parts is not None and parts.total else []),
        *caution_rows(plan),
        *_bound_rows(outcome),
        *_speedup_rows(outcome),
        *runners_up_rows(plan),
        *_search_rows(outcome.result),
        *([("to launch", launch)] if launch else []),
    ]


def stated_text(plan: Plan) -> str:
    """Return the plan as ``--plan`` takes it, where its searcher says so; else nothing."""
    reports = plan.provenance.get("reports")
    if not isinstance(reports, Mapping) or "reports_are_of" in plan.provenance:
        return ""
    words = [report["short"] for report in reports.values() if isinstance(report, Mapping) and "short" in report]
    return str(words[0]) if words else ""


def launch_text(plan: Plan, host: Host) -> str:
    """Return the options that write the plan for the trainers that run it."""
    if plan.strategy is None or plan.graph is None:
        return ""
    able = []
    for exporter in host.components(Exporter):
        restriction = host.make(Exporter, exporter.name, {}).restriction() if exporter.trainer else None
        if restriction is not None and not restriction.refusal(plan.graph, plan.cluster, plan.strategy):
            able.append(f"-x {exporter.name}=FILE{exporter.suffix}")
    return ", ".join(able)


def _throughput_rows(throughput: Throughput | None) -> list[tuple[str, str]]:
    if throughput is None or throughput.mfu is None:
        return []
    rows = []
    if throughput.tokens_per_s is not None:
        each = throughput.tokens_per_s / throughput.devices
        rows.append(("tokens a second", f"{throughput.tokens_per_s:,.0f}, {each:,.1f} a device"))
    return [*rows, ("model FLOPs utilization", _mfu_text(throughput))]


def _mfu_text(throughput: Throughput) -> str:
    """Return the utilization with its convention, and what it is by others."""
    text = f"{throughput.mfu:.1%} {_peak(throughput)}"
    if throughput.mfu_full_attention is not None:
        text += f", causal attention counted half ({throughput.mfu_full_attention:.1%} in full)"
    if throughput.hfu is not None and throughput.hfu > (throughput.mfu or 0.0):
        text += f"; HFU {throughput.hfu:.1%}, with what runs again"
    return text


def _peak(throughput: Throughput) -> str:
    """Return ``of the bf16 peak`` from the assumption ``... over the bf16 peak of all H100``."""
    return f"of the {throughput.assumption.partition(' over the ')[2].replace('of all ', 'of ')}"


def _bound_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """Say how far the plan is from what no plan gets below."""
    bound = outcome.least_seconds
    if not bound or outcome.seconds < bound:
        return []
    return [("any plan", f"at least {spelled_time(bound)}; this one takes {outcome.seconds / bound:.2f} times as long")]


def _search_rows(result: Result) -> list[tuple[str, str]]:
    """Say what ended a search before it was done."""
    rows = [("search ended by", f"{result.ended_by}, while {result.unfinished}")] if result.unfinished else []
    too_large = [("too large to price", f"{result.too_large} candidates")] if result.too_large else []
    return rows + too_large


def _speedup_rows(outcome: Outcome) -> list[tuple[str, str]]:
    if outcome.initial_seconds == math.inf or outcome.initial is outcome.plan:
        return []
    first = spelled_time(outcome.initial_seconds)
    if outcome.speedup is None:
        unfit = f"the start of the search ({first})" if outcome.fits else "the plan"
        return [("speedup", f"not said: {unfit} does not fit")]
    return [("speedup", f"{outcome.speedup:.3f}x over the start of the search ({first})")]
