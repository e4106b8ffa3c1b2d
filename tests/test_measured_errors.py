"""What plans quote of measured runs: the table of the estimator ``kernels`` is of the rows on docs/validation.md."""

from __future__ import annotations

import csv
import re
from importlib.resources import files
from pathlib import Path

import attrs
import pytest

from topoplan import optimize
from topoplan_engine.reporting.throughput import plan_throughput_rows
from topoplan_estimator_kernels.measured import measured_errors
from topoplan_llm_measurements.by_device import DeviceErrors, device_errors, table_of
from topoplan_llm_measurements.groups import GROUPS
from topoplan_llm_measurements.judging import Judged, JudgedRow
from topoplan_llm_measurements.rows import Predicted
from topoplan_llm_measurements.stacks import stacks
from topoplan_llm_measurements.tables import own_table

ROOT = Path(__file__).parents[1]
#: Predictions have four digits on the page: points of a percentage for each 100 % that it says of what is measured.
ROUNDING = 0.06
CURED = "write both: topoplan validate llm --write docs/validation.md --by-device .../kernels/measured.csv --leave-out"


def on_page() -> tuple[list[Judged], dict[int, float]]:
    """The groups on the page, with its predictions, and those by constants fitted without the row's model."""
    page = (ROOT / "docs/validation.md").read_text()
    judged, left_out = [], {}
    for group in GROUPS:
        section = re.search(rf"^## {group.name}: .*\n((?:(?!## ).*\n)*)", page, flags=re.MULTILINE)
        if section is None:
            continue
        lines = [line.strip("| ").split(" | ") for line in section[1].splitlines() if line.startswith("| ")]
        cells = {line[0]: (float(line[3]), line[5]) for line in lines[1:]}
        table = own_table(group)
        rows = [row for row in table.rows if row.name in cells]
        assert len(rows) == len(cells), group.name
        left_out |= {
            id(row): row.measured * (1 + float(cells[row.name][1]) / 100) for row in rows if cells[row.name][1] != "-"
        }
        none = Predicted(seconds=0.0, memory=0.0)
        predicted = (JudgedRow(row=row, prediction=none, predicted=cells[row.name][0]) for row in rows)
        judged.append(Judged(table=table, rows=tuple(predicted), refused=()))
    return judged, left_out


def test_the_table_is_of_the_runs_on_the_page():
    text = files("topoplan_estimator_kernels").joinpath("measured.csv").read_text()
    in_table = list(csv.DictReader(text.splitlines()))
    judged, left_out = on_page()  # errors left out are known by the identity of the page's rows
    of_page = list(csv.DictReader(table_of(device_errors(judged, stacks(), left_out)).splitlines()))
    assert [list(row) for row in in_table[:1]] == [[field.name for field in attrs.fields(DeviceErrors)]]
    for known, expected in zip(in_table, of_page, strict=True):
        for name, value in expected.items():
            if name.endswith("_percent") and value:
                rounding = ROUNDING * (1 + abs(float(value)) / 100)
                assert float(known[name]) == pytest.approx(float(value), abs=rounding), (known, CURED)
            else:
                assert known[name] == value, (known, CURED)


def test_what_no_run_had_is_said():
    known = measured_errors("h100", 64, "bf16", 1.0)
    assert known["time"]["rows"] > 0
    assert known["memory"]["rows"] > 0
    assert "none of" not in known["text"]
    assert "none of 2 or in fp32" in measured_errors("h100", 2, "fp32", 1.0)["text"]
    assert "by constants fitted to them (products" in known["text"]
    assert "here 1.3)" in measured_errors("h100", 64, "bf16", 1.3)["text"]
    assert "by constants from elsewhere (products 1.54; here 1)" in measured_errors("h800", 2048, "fp8", 1.0)["text"]
    assert measured_errors("mi300x", 64, "bf16", 1.0)["text"].startswith("no measured run on MI300X")


def test_a_rate_that_is_too_high_is_a_time_that_is_too_short():
    table = own_table(next(group for group in GROUPS if group.name == "zero-bubble"))
    row = table.rows[0]
    judged = JudgedRow(row=row, prediction=Predicted(seconds=0.0, memory=0.0), predicted=1.25 * row.measured)
    (found,) = device_errors([Judged(table=table, rows=(judged,), refused=())], stacks(), {})
    assert (found.too_low_percent, found.too_high_percent) == (pytest.approx(20), 0)


def test_details_say_what_the_constants_were_measured_on_and_which_differ():
    options = {"servers": 2, "batch_size": 16, "device": "h100", "estimator": "kernels:products=1.2", "budget": 0}
    source = dict(plan_throughput_rows(optimize("alexnet", **options).plan))["kernels measured on"]
    assert source.startswith("NVIDIA H100 80GB HBM3, torch ")
    assert source.endswith(", products 1.2")
