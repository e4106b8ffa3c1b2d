"""What JSON says of a plan, whoever made it: a search that has just ended, or a file.

plan ─► plan_json: bounds, times by part, memory, model, machine, strategy ─┬► a search adds what it did
└► planned_json: what a file knows of it
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from topoplan.model.plan import Plan
from topoplan_engine.network.building import used_interfaces
from topoplan_engine.reporting.cautions import caution_rows
from topoplan_engine.reporting.joint import joint_json
from topoplan_engine.reporting.memory import memory_json
from topoplan_engine.reporting.model import model_json
from topoplan_engine.reporting.parts import parts_json
from topoplan_engine.reporting.runners_up import plans_json
from topoplan_engine.reporting.strategy import strategy_json
from topoplan_engine.reporting.summary import stated_text
from topoplan_engine.reporting.throughput import iteration_seconds, plan_throughput, throughput_json
from topoplan_engine.reporting.timeline import breakdown_json, busiest_link, collective_links_json
from topoplan_engine.simulation.idle import bubble_fraction, exposed_communication

__all__ = ["plan_json", "planned_json"]

#: Kinds of components that a plan is made with, as the JSON object names them.
_KINDS = ("topology", "estimator", "searcher", "simulator")


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return what the JSON object of a run says of its plan alone."""
    assert plan.timeline is not None
    return {
        "stated": stated_text(plan) or None,
        "lower_bound_s": plan.timeline.bounds.best,
        "bounds": attrs.asdict(plan.timeline.bounds),
        "exposed_communication_s": exposed_communication(plan.timeline),
        **breakdown_json(plan),
        **parts_json(plan),
        **plans_json(plan),
        **joint_json(plan),
        **collective_links_json(plan),
        **memory_json(plan),
        **(model_json(plan.graph) if plan.graph else {}),
        **({"cautions": dict(cautions)} if (cautions := caution_rows(plan)) else {}),
        "tasks": plan.taskgraph.n_tasks,
        "interfaces": int(plan.cluster.interfaces.min()),
        "interfaces_used": int(used_interfaces(plan.fabric, plan.cluster).max()),
        "interface_bandwidth_gbps": float(plan.cluster.interface_bandwidth.min()) * 8e-9,
        "busiest_link": busiest_link(plan),
        **_scheduling(plan),
        **strategy_json(plan),
    }


def planned_json(plan: Plan, name: str) -> dict[str, Any]:
    """Return the same fields as of a run, as far as the plan's file knows them.

    Args:
        plan: simulated.
        name: of the model, where the plan has none.
    """
    assert plan.timeline is not None
    provenance = plan.provenance
    components = provenance.get("components")
    chosen = [each for each in components if isinstance(each, Mapping)] if isinstance(components, list) else []
    names = {
        kind: "+".join(str(each["name"]) for each in chosen if each.get("kind") == kind and not each.get("companion"))
        for kind in _KINDS
    }
    frontend = next((str(each["name"]) for each in chosen if each.get("kind") == "frontend"), "")
    return {
        "iteration_time_s": iteration_seconds(plan),
        **plan_json(plan),
        **throughput_json(plan_throughput(plan), plan),
        "model": frontend or (plan.graph.name if plan.graph else name),
        **{kind: text or None for kind, text in names.items()},
        **{key: provenance.get(key) for key in ("seed", "budget", "time_limit_s")},
    }


def _scheduling(plan: Plan) -> dict[str, Any]:
    """Return what the JSON object of a run says about the schedule of its strategy."""
    if plan.strategy is None or plan.strategy.whole_batch or plan.timeline is None:
        return {}
    strategy = plan.strategy
    return {
        "schedule": {
            "kind": strategy.order_name,
            "micro_batches": strategy.micro_batches,
            "stages": strategy.n_stages,
            "recompute": list(strategy.recomputes) or [False] * strategy.n_stages,
            "bubble_fraction": bubble_fraction(plan.timeline),
        }
    }
