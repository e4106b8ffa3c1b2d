"""What tables and JSON say about throughput, and about what times of operators assume."""

from __future__ import annotations

from typing import Any

from topoplan_engine.search.optimize import Outcome

__all__ = ["throughput_json", "throughput_rows"]


def throughput_rows(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the rows of a table."""
    made = outcome.throughput
    if made is None:
        return []
    rows = [("samples a second", f"{made.samples_per_s:,.{0 if made.samples_per_s >= 1000 else 2}f}")]
    if made.tokens_per_s is not None:
        rows.append(("tokens a second", f"{made.tokens_per_s:,.0f} ({made.sequence_length} a sample)"))
    if made.mfu is not None:
        rows.append(("model FLOPs utilization", f"{made.mfu:.1%}"))
        rows.append(("  (MFU)", made.assumption))
    reached = outcome.plan.provenance.get("assumptions", {}).get("compute_efficiency", {})
    if reached:
        rows.append(
            (
                "kernels reach at most",
                ", ".join(f"{share:.0%} of the peak of {name}" for name, share in reached.items()),
            )
        )
    return rows


def throughput_json(outcome: Outcome) -> dict[str, Any]:
    """Return what the JSON object of a run says."""
    made = outcome.throughput
    if made is None:
        return {}
    return {
        "samples_per_s": made.samples_per_s,
        "tokens_per_s": made.tokens_per_s,
        "sequence_length": made.sequence_length,
        "mfu": made.mfu,
        "mfu_assumption": made.assumption or None,
        "assumptions": outcome.plan.provenance.get("assumptions"),
    }
