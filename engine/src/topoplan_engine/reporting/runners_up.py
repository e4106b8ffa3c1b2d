"""What tables and JSON say of the plans that a search did not take: why each lost, and time against memory.

A searcher says them in its report (`topoplan.Search.report`), which a plan keeps in its provenance.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from topoplan.model.plan import Plan
from topoplan_engine.reporting.printing import spelled_time
from topoplan_engine.reporting.tables import print_line

__all__ = ["plans_json", "print_plans", "runners_up_rows"]

#: Lists of plans, and the texts and numbers that each plan of them has.
_TEXTS = {"best_plans": ["plan", "lost_by"], "front": ["plan"]}
_NUMBERS = ["seconds", "memory_gib"]
_Row = Mapping[str, Any]


def plans_json(plan: Plan) -> dict[str, Any]:
    """Return ``best_plans`` and ``front`` as the plan's searcher said them; nothing where it did not."""
    return {name: rows for name in _TEXTS if (rows := _rows(plan, name))}


def print_plans(plan: Plan) -> None:
    """Print the best plans with why each lost, and the front of time against memory; nothing where none are known.

    Plans are in lines of their own, to be copied.
    """
    if best := _rows(plan, "best_plans"):
        print_line("best plans, as --plan takes them; below each why it lost, by estimates")
        for number, row in enumerate(best, 1):
            print_line(f"{number:>3} {_numbers(row)}  {row['plan']}")
            if row["lost_by"]:
                print_line(f"{'':>6}{row['lost_by']}")
    if points := _rows(plan, "front"):
        print_line("less memory for more time")
        for row in points:
            print_line(f"{'':>3} {_numbers(row)}  {row['plan']}")


def _numbers(row: _Row) -> str:
    seconds = spelled_time(row["seconds"]) + ("" if row.get("simulated", True) else " (estimated)")
    return f"{seconds}, {row['memory_gib']:.1f} GiB"


def runners_up_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the row of the first table: the next best plan and why it lost."""
    best = _rows(plan, "best_plans")
    second = next((row for row in best[1:] if row.get("simulated")), None)
    if second is None:
        return []
    return [("next best", f"{second['plan']}: {spelled_time(second['seconds'])}; {second['lost_by']}")]


def _rows(plan: Plan, name: str) -> list[_Row]:
    """Return the rows of a list in the provenance; a file may have anything there, which is left out."""
    reports = plan.provenance.get("reports")
    for report in reports.values() if isinstance(reports, Mapping) else ():
        rows = report.get(name) if isinstance(report, Mapping) else None
        if isinstance(rows, Sequence) and not isinstance(rows, str):
            return [row for row in rows if _is_row(row, name)]
    return []


def _is_row(row: Any, name: str) -> bool:
    return (
        isinstance(row, Mapping)
        and all(isinstance(row.get(key), int | float) for key in _NUMBERS)
        and all(isinstance(row.get(key), str) for key in _TEXTS[name])
    )
