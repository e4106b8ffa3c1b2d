"""Errors of predictions by device, quantity, group and stack: what plans quote of runs that were measured.

``topoplan validate llm --by-device FILE.csv`` writes the table.  The estimator ``kernels`` has one of all public rows,
and says beside a plan how far predictions for its kind of device were off.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence

import attrs

from topoplan_llm_measurements.judging import Judged, JudgedRow
from topoplan_llm_measurements.rows import MeasuredRow
from topoplan_llm_measurements.scoring import score
from topoplan_llm_measurements.stacks import Stack, stack_of

__all__ = ["DeviceErrors", "device_errors", "table_of"]


@attrs.frozen(kw_only=True)
class DeviceErrors:
    """How far the predictions of some measured runs were off: of one device, quantity, group and stack.

    Attributes:
        device: kind of device, as the stack names it.
        quantity: ``time``, of rates too, or ``memory``.
        group: name of the group that has the rows.
        stack: whose constants priced times; empty for memory, which no constant changes.
        rows: how many were predicted.
        mape_percent, bias_percent: see `topoplan_llm_measurements.scoring.Score`; above 0, predictions were too large.
        left_out_percent: mean error by constants fitted without the rows of the row's model; NaN if not known.
        too_low_percent, too_high_percent: of the predictions farthest off to either side; 0 if none is off to a side.
        fewest, most: devices of the smallest and of the largest run.
        precisions: of the runs, in the order of their names, with a blank between.
        products: the stack's constant of this name; 1 for memory.
    """

    device: str
    quantity: str
    group: str
    stack: str
    rows: int
    mape_percent: float
    bias_percent: float
    left_out_percent: float
    too_low_percent: float
    too_high_percent: float
    fewest: int
    most: int
    precisions: str
    products: float


def device_errors(
    judged: Sequence[Judged], by_name: Mapping[str, Stack], left_out: Mapping[int, float]
) -> list[DeviceErrors]:
    """Return the errors of judged tables, times first, devices in the order of their names.

    Args:
        judged: tables.
        by_name: stacks, which say the device of a row.
        left_out: predictions of rows by constants fitted without their model, by the identity of the row.
    """
    parts: dict[tuple[bool, str, str, str], list[JudgedRow]] = {}
    for table in judged:
        of_memory = table.table.group.of_memory
        for each in table.rows:
            device = stack_of(by_name, each.row.stack).device
            key = of_memory, device, table.table.group.name, "" if of_memory else each.row.stack
            parts.setdefault(key, []).append(each)
    return [
        _errors(
            rows,
            left_out,
            device=device,
            quantity="memory" if of_memory else "time",
            group=group,
            stack=stack,
            products=stack_of(by_name, stack).constants.products if stack else 1.0,
        )
        for (of_memory, device, group, stack), rows in sorted(parts.items())
    ]


def table_of(errors: Sequence[DeviceErrors]) -> str:
    """Return errors as a table (CSV): a column for each attribute; four digits, NaN is empty."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([field.name for field in attrs.fields(DeviceErrors)])
    for each in errors:
        writer.writerow([_cell(value) for value in attrs.astuple(each)])
    return out.getvalue()


def _cell(value: str | float) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if math.isnan(value) else f"{value:.4g}"


def _ratio(row: MeasuredRow, predicted: float) -> float:
    """Return a predicted over a measured time, or bytes: a rate that is too high is a time that is too short."""
    return row.measured / predicted if row.quantity.larger_is_better else predicted / row.measured


def _errors(
    rows: Sequence[JudgedRow],
    left_out: Mapping[int, float],
    *,
    device: str,
    quantity: str,
    group: str,
    stack: str,
    products: float,
) -> DeviceErrors:
    ratios = [_ratio(each.row, each.predicted) for each in rows]
    other_ratios = [_ratio(each.row, left_out[id(each.row)]) for each in rows if id(each.row) in left_out]
    own_score, left_out_score = (score([1.0] * len(each), each, [""] * len(each)) for each in (ratios, other_ratios))
    sizes = [each.row.run.devices for each in rows]
    return DeviceErrors(
        device=device,
        quantity=quantity,
        group=group,
        stack=stack,
        rows=own_score.rows,
        mape_percent=own_score.mape_percent,
        bias_percent=own_score.bias_percent,
        left_out_percent=left_out_score.mape_percent,
        too_low_percent=max(0.0, 100 * (1 - min(ratios))),
        too_high_percent=max(0.0, 100 * (max(ratios) - 1)),
        fewest=min(sizes),
        most=max(sizes),
        precisions=" ".join(sorted({each.row.run.precision for each in rows})),
        products=products,
    )
