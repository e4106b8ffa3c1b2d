"""Rows as text: columns for the terminal and for Markdown, and as plain values for JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from topoplan_studies.claims import Verdict
from topoplan_studies.notes import differs, mark, notes
from topoplan_studies.prices import Prices
from topoplan_studies.rows import Row, Spread
from topoplan_studies.study import Study, number

__all__ = ["as_json", "cells_of", "cost_of", "headers", "milliseconds", "money", "spread"]

#: Spreads narrower than this share of the median are not shown.
_NARROW = 0.002


def headers(study: Study, prices: Prices) -> list[str]:
    """Return the titles of the columns of `cells_of`."""
    return [
        "model",
        *study.vary,
        "network",
        "Gbps a host",
        "iteration time",
        "exposed",
        "lower bound",
        "any wiring",
        "tax",
        f"cost ({prices.currency})",
        f"time x cost ({prices.currency} s)",
    ]


def cells_of(row: Row) -> list[str]:
    """Return a row as text."""
    return [
        row.model,
        *(number(value) for value in row.at.values()),
        row.network,
        row.links + mark(row),
        spread(row.time) + ("" if row.fits else " (DOES NOT FIT)"),
        milliseconds(row.exposed),
        milliseconds(row.bound),
        "-" if row.fabric_bound is None else milliseconds(row.fabric_bound),
        "-" if row.tax is None else f"{row.tax:.2f}",
        cost_of(row),
        _four(row.time_cost),
    ]


def cost_of(row: Row) -> str:
    """Return the cost, and how many times another network's it is, where the two should be equal and are not."""
    if row.target is None or not differs(row):
        return money(row.cost)
    return f"{money(row.cost)} ({row.cost / row.target.cost:.2f}x)"


def spread(time: Spread) -> str:
    """Return the median, and the extremes where they differ from it."""
    text = milliseconds(time.median)
    if time.most - time.least <= _NARROW * time.median:
        return text
    return f"{text} ({milliseconds(time.least, '')}..{milliseconds(time.most, '')})"


def milliseconds(seconds: float, unit: str = " ms") -> str:
    """Return a time in milliseconds with four digits."""
    return f"{_four(max(seconds * 1e3, 0.0))}{unit}"


def _four(value: float) -> str:
    """Return a number with four digits, of which at most four behind the point."""
    digits = max(0, 3 - math.floor(math.log10(value))) if value > 0 else 0
    return f"{value:,.{min(digits, 4)}f}"


def money(value: float) -> str:
    """Return a sum without cents."""
    return f"{value:,.0f}"


def as_json(
    study: Study, rows: Sequence[Row], judged: Sequence[Verdict], prices: Prices, measured: bool
) -> dict[str, Any]:
    """Return everything as plain values."""
    return {
        "figure": study.name,
        "title": study.title,
        "source": study.source,
        "budget": study.budget,
        "seeds": list(study.seeds),
        "precision": study.precision,
        "measured": measured,
        "prices": {
            "file": prices.name,
            "currency": prices.currency,
            "assumptions": prices.assumed(),
            "catalogue": prices.whole,
        },
        "notes": notes(rows, prices),
        "rows": [_row(row) for row in rows],
        "claims": [_verdict(verdict) for verdict in judged],
    }


def _row(row: Row) -> dict[str, Any]:
    return {
        "model": row.model,
        "network": row.network,
        "at": dict(row.at),
        "iteration_time_s": attrs.asdict(row.time),
        "exposed_communication_s": row.exposed,
        "lower_bound_s": row.bound,
        "fabric_lower_bound_s": row.fabric_bound,
        "bandwidth_tax": row.tax,
        "fits": row.fits,
        "lacks": row.lacks or None,
        "memory_bytes": row.memory,
        "memory_capacity_bytes": row.capacity,
        "interfaces": row.interfaces,
        "interfaces_used": row.used,
        "interface_bandwidth_gbps": row.gbps,
        "network_cost": row.cost,
        "priced": row.basis.name.lower(),
        "equal_cost": _equal_cost(row),
        "time_cost": row.time_cost,
        "runs": [dict(run) for run in row.runs],
    }


def _equal_cost(row: Row) -> dict[str, Any] | None:
    """Return what the cost stands beside, whether it is equal, and why if not."""
    if row.target is None:
        return None
    equal = not differs(row)
    return {
        "network": row.target.network,
        "cost": row.target.cost,
        "equal": equal,
        "reason": None if equal else row.target.reason,
    }


def _verdict(verdict: Verdict) -> Mapping[str, Any]:
    return {
        "claim": verdict.claim.says,
        "faster": verdict.claim.faster,
        "slower": verdict.claim.slower,
        "holds": verdict.count("holds"),
        "equal": verdict.count("equal"),
        "fails": verdict.count("fails"),
        "mean_ratio": verdict.mean,
        "places": [
            {
                "model": where.faster.model,
                "at": dict(where.faster.at),
                "ratio": where.ratio,
                "outcome": where.outcome,
                **({"causes": list(where.causes)} if where.outcome == "fails" else {}),
            }
            for where in verdict.places
        ],
    }
