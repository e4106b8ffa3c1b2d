"""What reports say of a simulated iteration."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from topoplan.model.plan import Plan
from topoplan.model.taskgraph import TaskGraph
from topoplan_engine.network.ring_use import collective_links
from topoplan_engine.reporting.printing import spelled_time
from topoplan_engine.simulation.breakdown import time_breakdown
from topoplan_engine.simulation.deferred import of_first, simulated_words
from topoplan_engine.simulation.draws import reported_of
from topoplan_engine.simulation.idle import bubble_fraction, exposed_communication

__all__ = ["breakdown_json", "busiest_link", "collective_links_json", "simulation_rows"]


def simulation_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows that tables of simulated plans share."""
    timeline = plan.timeline
    assert timeline is not None
    link = busiest_link(plan)
    pipeline = []
    if plan.strategy is not None and not plan.strategy.whole_batch:
        strategy = plan.strategy
        pipeline = [
            ("schedule", f"{strategy.order_name}, {strategy.n_stages} stages, {strategy.micro_batches} micro-batches"),
            ("bubbles", f"{bubble_fraction(timeline):.1%} of the time of its devices"),
        ]
    return [
        ("iteration time", _time_text(plan, timeline.makespan)),
        *([("simulated", words)] if (words := simulated_words(timeline)) else []),
        *pipeline,
        ("exposed communication", spelled_time(exposed_communication(timeline))),
        *_breakdown_rows(plan),
        ("busiest link", _busiest_link_text(link, timeline.bounds.link)),
        *(
            []
            if (links := collective_links(plan, _simulated_tasks(plan))) is None
            else [("links of a collective", links.text)]
        ),
        ("lower bound", f"{spelled_time(timeline.bounds.best)} ({_tightest(plan)})"),
        ("busiest device", f"at least {spelled_time(timeline.bounds.device)}"),
        ("longest chain", f"at least {spelled_time(timeline.bounds.chain)}"),
        ("collectives", f"at least {spelled_time(timeline.bounds.collective)}"),
    ]


def _time_text(plan: Plan, seconds: float) -> str:
    """Return the time of a plan: the mean that its search has reported, where that was of draws, beside this one."""
    reported = reported_of(plan.provenance)
    if reported is None:
        return spelled_time(seconds)
    mean, spread = spelled_time(reported.mean), reported.deviation / reported.mean
    shown = f"{spelled_time(seconds)} in the draw that is shown"
    return f"{mean}, +- {spread:.2%} over {reported.taken} draws of equal paths; {shown}"


def collective_links_json(plan: Plan) -> dict[str, Any]:
    """Return what the JSON object of a simulated plan says of links that collectives leave idle; nothing if none."""
    links = collective_links(plan, _simulated_tasks(plan))
    return {} if links is None else {"collective_links": attrs.asdict(links)}


def breakdown_json(plan: Plan) -> dict[str, Any]:
    """Return what the JSON object of a simulated plan says about where the time of one device goes."""
    assert plan.timeline is not None
    breakdown = time_breakdown(plan.taskgraph, plan.timeline)
    return {
        "time_breakdown": {
            "device": breakdown.device,
            "wall_s": breakdown.wall,
            "computation_s": breakdown.computation,
            "communication_s": breakdown.communication,
            "overlapped_s": breakdown.overlapped,
            "idle_s": breakdown.idle,
            "overlap_ratio": breakdown.overlap_ratio,
        }
    }


def _breakdown_rows(plan: Plan) -> list[tuple[str, str]]:
    assert plan.timeline is not None
    breakdown = time_breakdown(plan.taskgraph, plan.timeline)
    return [
        (f"wall time of device {breakdown.device}", spelled_time(breakdown.wall)),
        ("  computation", spelled_time(breakdown.computation)),
        ("  communication", spelled_time(breakdown.communication)),
        ("  overlap", f"{spelled_time(breakdown.overlapped)}, {breakdown.overlap_ratio:.1%} of the smaller"),
        ("  idle", spelled_time(breakdown.idle)),
    ]


def busiest_link(plan: Plan) -> dict[str, Any] | None:
    """Return the link that is busy longest, as JSON says it; None where none is."""
    timeline = plan.timeline
    if timeline is None or not len(timeline.link_busy) or timeline.link_busy.max() <= 0:
        return None
    links = plan.fabric.links
    link = int(np.argmax(timeline.link_busy[: links.n_links]))
    return {
        "from": links.node_name(int(links.link_src[link])),
        "to": links.node_name(int(links.link_dst[link])),
        "busy_s": float(timeline.link_busy[link]),
        "bytes": float(timeline.link_bytes[link]),
    }


def _busiest_link_text(link: dict[str, Any] | None, bound: float) -> str:
    """Return the row of the busiest link: that of the network, unless one inside of a host needs longer."""
    text = "none" if link is None else f"{link['from']} to {link['to']}, {spelled_time(link['busy_s'])}"
    if bound <= (0.0 if link is None else link["busy_s"] * (1 + 1e-6)):
        return text
    inside = f"inside a host, {spelled_time(bound)}"
    return inside if link is None else f"{inside}; of the network {text}"


def _tightest(plan: Plan) -> str:
    assert plan.timeline is not None
    bounds = plan.timeline.bounds
    names = {
        "busiest device": bounds.device,
        "busiest link": bounds.link,
        "longest chain": bounds.chain,
        "collectives": bounds.collective,
    }
    return max(names, key=names.__getitem__)  # of equal ones the first


def _simulated_tasks(plan: Plan) -> TaskGraph:
    """Return the tasks that were simulated: those of the busiest device, where some stand for all."""
    return plan.taskgraph if plan.timeline is None else of_first(plan.taskgraph, plan.timeline)[0]
