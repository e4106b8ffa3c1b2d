"""What tables and JSON say about throughput, and about what times of operators assume."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topoplan.model.plan import Plan
from topoplan_engine.reporting.accuracy import measured_errors_text
from topoplan_engine.search.optimize import Outcome
from topoplan_engine.throughput import Throughput, priced_precision, throughput

__all__ = ["iteration_seconds", "plan_throughput", "plan_throughput_rows", "throughput_json", "throughput_rows"]

#: Constants that a run may have in place of those of kernels alone.
_FACTORS = ("products", "passes", "accumulation", "host")


def throughput_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the rows of a table."""
    return _rows(outcome.throughput, outcome.plan)


def plan_throughput_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the same rows of a plan that was read; see `plan_throughput`."""
    return [] if plan.graph is None or plan.timeline is None else _rows(plan_throughput(plan), plan)


def plan_throughput(plan: Plan) -> Throughput | None:
    """Return the throughput of a plan that was read: by `iteration_seconds`; None if its model is not known."""
    if plan.graph is None or plan.timeline is None:
        return None
    costs = _mapping(plan.provenance.get("assumptions"))
    return throughput(
        plan.graph,
        plan.cluster,
        iteration_seconds(plan),
        precision=priced_precision(costs),
        device=str(costs.get("device", "")),
        strategy=plan.strategy,
    )


def iteration_seconds(plan: Plan) -> float:
    """Return how long an iteration of a simulated plan takes: the mean over draws that its provenance has, if any."""
    assert plan.timeline is not None
    seconds = _mapping(plan.provenance.get("iteration_time")).get("mean_s")
    return seconds if isinstance(seconds, float) and seconds > 0 else plan.timeline.makespan


def _rows(throughput: Throughput | None, plan: Plan) -> list[tuple[str, str]]:
    if throughput is None:
        return []
    rows = [("samples a second", f"{throughput.samples_per_s:,.{0 if throughput.samples_per_s >= 1000 else 2}f}")]
    if throughput.tokens_per_s is not None:
        rows.append(("tokens a second", f"{throughput.tokens_per_s:,.0f} ({throughput.sequence_length} a sample)"))
        rows.append(("  a device", f"{throughput.tokens_per_s / throughput.devices:,.1f}"))
    if throughput.mfu is not None:
        rows.append(("model FLOPs utilization", f"{throughput.mfu:.1%}"))
        rows.append(("  (MFU)", throughput.assumption))
        if throughput.mfu_full_attention is not None:
            rows.append(("  with attention in full", f"{throughput.mfu_full_attention:.1%} (Megatron's papers)"))
        if throughput.hfu is not None:
            rows.append(("hardware FLOPs utilization", f"{throughput.hfu:.1%}"))
    elif throughput.assumption:
        rows.append(("model FLOPs utilization", f"not said: {throughput.assumption}"))
    assumptions = _mapping(plan.provenance.get("assumptions"))
    efficiencies = _mapping(assumptions.get("compute_efficiency")).items()
    shares = [f"{share:.0%} of the peak of {name}" for name, share in efficiencies if isinstance(share, float | int)]
    if shares:
        rows.append(("kernels reach at most", ", ".join(shares)))
    if source := _source_of_kernels(assumptions):
        rows.append(("kernels measured on", source))
    if errors := measured_errors_text(plan):
        rows.append(("typical error", errors))
    rows += [(f"assumed {what}", str(text)) for what, text in _mapping(assumptions.get("notes")).items()]
    return rows


def _source_of_kernels(assumptions: Mapping[str, Any]) -> str:
    """Return where the constants of kernels are from, and those that differ from what was measured."""
    if not assumptions.get("kernels"):
        return ""
    parts = [f"{assumptions['kernels']} (docs/kernels.md)"]
    parts += [f"{name} {assumptions[name]}" for name in ("launch", "optimizer") if name in assumptions]
    parts += [f"{name} {assumptions[name]:g}" for name in _FACTORS if isinstance(assumptions.get(name), float | int)]
    return ", ".join(parts)


def _mapping(value: Any) -> Mapping[str, Any]:
    """Return a part of a provenance that should be a mapping; an empty one where a file has something else there."""
    return value if isinstance(value, Mapping) else {}


def throughput_json(throughput: Throughput | None, plan: Plan) -> dict[str, Any]:
    """Return what the JSON object of a run says."""
    if throughput is None:
        return {}
    return {
        "samples_per_s": throughput.samples_per_s,
        "tokens_per_s": throughput.tokens_per_s,
        "sequence_length": throughput.sequence_length,
        "tokens_per_s_per_device": None
        if throughput.tokens_per_s is None
        else throughput.tokens_per_s / throughput.devices,
        "mfu": throughput.mfu,
        "mfu_full_attention": throughput.mfu_full_attention,
        "hfu": throughput.hfu,
        "mfu_assumption": throughput.assumption or None,
        "assumptions": plan.provenance.get("assumptions"),
    }
