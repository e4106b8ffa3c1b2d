"""Judged tables on a terminal."""

from __future__ import annotations

import math

from topoplan_engine.reporting.tables import Column, RowTable, print_line
from topoplan_llm_measurements.judging import Judged, JudgedRow
from topoplan_llm_measurements.scoring import Score

__all__ = ["print_judged", "score_text"]


def print_judged(judged: Judged) -> None:
    """Print the rows of a table, those that were refused, and the scores."""
    group = judged.table.group
    print_line(f"{group.name}: {group.title}")
    if judged.rows:
        _table(judged).print()
    for stack, source in dict.fromkeys((each.row.stack, each.constants_of) for each in judged.rows):
        if source:
            print_line(f"{stack}: constants of {source}")
    for each in judged.refused:
        name = "" if each.name == f"line {each.line}" else f" ({each.name})"
        print_line(f"{judged.table.file}, line {each.line}{name}: not predicted: {each.reason}")
    print_line(score_text(judged.score, len(judged.refused)))
    print_line("")


def _table(judged: Judged) -> RowTable[JudgedRow]:
    columns: list[Column[JudgedRow]] = [
        Column("row", lambda each: each.row.name, names_rows=True),
        Column("workload", lambda each: each.row.workload),
        Column("quantity", lambda each: each.row.quantity.name, said_once=True),
        Column("measured", lambda each: f"{each.row.measured:.4g}"),
        Column("predicted", lambda each: f"{each.predicted:.4g}"),
        Column("error, %", lambda each: f"{each.error_percent:+.1f}"),
    ]
    return RowTable(columns, judged.rows)


def score_text(score: Score, refused: int) -> str:
    """Return scores in a line."""
    if not score.rows:
        return f"none of {refused} rows was predicted"
    parts = [
        f"{score.rows} rows",
        f"MAPE {score.mape_percent:.1f} %",
        f"bias {score.bias_percent:+.1f} %",
        f"tau {score.kendall_tau:.3f}",
    ]
    if score.pairs:
        parts.append(f"within workloads {score.kendall_tau_within:.3f}")
        repeats = f" ({score.repeated_pairs} are one plan, measured twice)" if score.repeated_pairs else ""
        far = f"{score.pairs_in_order_percent:.0f} % of {score.pairs} pairs more than 5 % apart{repeats}"
        parts.append(f"in order {far} and {score.all_pairs_in_order_percent:.0f} % of all {score.all_pairs}")
    if not math.isnan(score.best_within_percent):
        parts.append(f"best plan within {score.best_within_percent:.1f} %")
    if refused:
        parts.append(f"{refused} not predicted")
    return ", ".join(parts)
