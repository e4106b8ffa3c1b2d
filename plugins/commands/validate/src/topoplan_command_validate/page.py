"""The page: constants of stacks, errors by group, and every row."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

import attrs

from topoplan_engine.files import write_file
from topoplan_engine.reporting.tables import markdown_table
from topoplan_llm_measurements.by_device import device_errors
from topoplan_llm_measurements.groups import GROUPS
from topoplan_llm_measurements.judging import Judged
from topoplan_llm_measurements.scoring import Score, score
from topoplan_llm_measurements.stacks import Constants, Stack, stack_of
from topoplan_llm_measurements.tables import source_of

__all__ = ["write_page"]


def write_page(
    path: Path, judged: Sequence[Judged], left_out: Mapping[int, float], by_name: Mapping[str, Stack]
) -> None:
    """Write the page.

    Args:
        path: of the page.
        judged: tables.
        left_out: predictions of rows by constants fitted without their model, by the identity of the row.
        by_name: stacks.
    """
    head = files(__package__).joinpath("head.md").read_text("utf-8")
    parts = [
        head,
        "## Errors by group\n",
        _summary(judged, left_out),
        _not_run(judged),
        "\n## Errors by device\n",
        _by_device(judged, by_name, left_out),
        "\n## Constants\n",
        _constants(judged, by_name),
    ]
    for each in judged:
        parts.append(_rows(each, left_out))
    write_file(path, ("\n".join(parts).rstrip("\n") + "\n").encode())


def _not_run(judged: Sequence[Judged]) -> str:
    """Return a sentence that names the groups that are not on the page, if there are such."""
    judged_names = {each.table.group.name for each in judged}
    names = [group.name for group in GROUPS if group.name not in judged_names]
    return f"\nNot run for this page: {', '.join(names)}." if names else ""


def _summary(judged: Sequence[Judged], left_out: Mapping[int, float]) -> str:
    head = ["group", "rows", "MAPE, %", "left out, %", "bias, %", "tau", "within", "in order, %", "best within, %"]
    lines = []
    for each in judged:
        own_score, left_out_score = each.score, _score_left_out(each, left_out)
        cells = (own_score.mape_percent, left_out_score.mape_percent, own_score.bias_percent)
        order = (own_score.pairs_in_order_percent, own_score.best_within_percent)
        taus = (own_score.kendall_tau, own_score.kendall_tau_within)
        lines.append(
            [
                each.table.group.name,
                str(own_score.rows),
                *(_text(value, ".1f") for value in cells),
                *(_text(value, ".3f") for value in taus),
                *(_text(value, ".1f") for value in order),
            ]
        )
    return markdown_table(head, lines)


def _by_device(judged: Sequence[Judged], by_name: Mapping[str, Stack], left_out: Mapping[int, float]) -> str:
    """Return the errors that plans quote; of rates those of the time."""
    head = ["device", "of", "group", "stack", "rows", "GPUs", "MAPE, %", "left out, %", "bias, %"]
    head += ["too low, %", "too high, %"]
    lines = []
    for each in device_errors(judged, by_name, left_out):
        sizes = f"{each.fewest:,}" if each.fewest == each.most else f"{each.fewest:,} to {each.most:,}"
        percents = [each.mape_percent, each.left_out_percent, each.bias_percent]
        percents += [each.too_low_percent, each.too_high_percent]
        words = [each.device, each.quantity, each.group, each.stack or "-"]
        lines.append([*words, str(each.rows), sizes, *(_text(percent, ".1f") for percent in percents)])
    return markdown_table(head, lines)


def _score_left_out(judged: Judged, left_out: Mapping[int, float]) -> Score:
    rows = [each.row for each in judged.rows if id(each.row) in left_out]
    return score([row.measured for row in rows], [left_out[id(row)] for row in rows], [row.workload for row in rows])


def _text(value: float, how: str) -> str:
    return "-" if math.isnan(value) else format(value, how)


def _constants(judged: Sequence[Judged], by_name: Mapping[str, Stack]) -> str:
    used = dict.fromkeys(each.row.stack for table in judged for each in table.rows)
    meanings = {field.name: field.metadata["meaning"] for field in attrs.fields(Constants)}
    default = Constants()
    lines = []
    for name in used:
        stack = stack_of(by_name, name)
        for word, meaning in meanings.items():
            value = getattr(stack.constants, word)
            if word in stack.fitted or value != getattr(default, word):
                how = "free" if word in stack.fitted else "stated"
                lines.append([name, f"`{word}`", f"{value:.4g}", how, meaning])
    return markdown_table(["stack", "constant", "value", "", "meaning"], lines)


def _rows(judged: Judged, left_out: Mapping[int, float]) -> str:
    group, source = judged.table.group, source_of(judged.table.group)
    commit = f" at {source['commit']}" if "commit" in source else ""
    parts = [f"\n## {group.name}: {group.title}\n", f"Source: {source['source']}{commit}.\n"]
    lines = []
    for each in judged.rows:
        value = left_out.get(id(each.row))
        off = "-" if value is None else f"{100 * (value / each.row.measured - 1):+.1f}"
        values = [f"{each.row.measured:.4g}", f"{each.predicted:.4g}", f"{each.error_percent:+.1f}", off]
        lines.append([each.row.name, each.row.workload, *values])
    quantity = judged.rows[0].row.quantity.name if judged.rows else "measured"
    parts.append(markdown_table(["row", "workload", quantity, "predicted", "error, %", "left out, %"], lines))
    parts += [f"\n- {each.name}: not predicted: {each.reason}" for each in judged.refused]
    return "\n".join(parts)
