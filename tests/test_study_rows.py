"""``topoplan compare --table``: a row for each run, in CSV and Parquet, as the JSON has them."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from topoplan_studies import rows as study_rows


def test_csv_has_a_row_for_each_run(run, finished):
    status, out, err = run("compare", "small.toml", "--json", "--table", "runs.csv")
    assert status == 0, err
    with Path("runs.csv").open(newline="", encoding="utf-8") as stream:
        table = list(csv.DictReader(stream))
    runs = [(row, of_seed) for row in json.loads(out)["rows"] for of_seed in row["runs"]]
    assert len(table) == len(runs) == 8
    for row, (result, of_seed) in zip(table, runs, strict=True):
        assert row["model"] == result["model"]
        assert row["network"] == result["network"]
        assert float(row["interface_bandwidth_gbps"]) == result["interface_bandwidth_gbps"]
        assert float(row["setting_interface_bandwidth_gbps"]) == result["at"]["interface-bandwidth-gbps"]
        assert int(row["seed"]) == of_seed["seed"]
        assert float(row["iteration_time_s"]) == of_seed["iteration_time_s"]
        assert float(row["link_bound_s"]) == of_seed["bounds"]["link"]
        assert float(row["computation_s"]) == of_seed["time_breakdown"]["computation_s"]
        assert row["fits"] == str(of_seed["fits"])


@pytest.mark.slow
def test_parquet_has_the_same_with_types(run, finished):
    parquet = pytest.importorskip("pyarrow.parquet")
    assert run("compare", "small.toml", "--table", "runs.parquet")[0] == 0
    assert run("compare", "small.toml", "--table", "runs.csv")[0] == 0
    table = parquet.read_table("runs.parquet")
    types = {field.name: str(field.type) for field in table.schema}
    assert types["iteration_time_s"] == types["network_cost"] == "double"
    assert types["seed"] == types["evaluations"] == "int64"
    assert types["fits"] == "bool"
    assert set(types.values()) <= {"double", "int64", "bool", "string", "null"}  # no lists: CSV has none
    with Path("runs.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [
        {key: "" if value is None else str(value) for key, value in row.items()} for row in table.to_pylist()
    ] == rows


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "runs.xlsx",
            "runs.xlsx: is none of .csv, .parquet, .md, .tex (which of them is to be written?)\n",
        ),
        ("no/runs.csv", "/no does not exist\n"),
    ],
)
def test_what_cannot_be_written_is_told_before_anything_runs(run, comparison, name, message):
    status, _, err = run("compare", "small.toml", "--table", name)
    assert status == 2
    assert err.endswith(message)
    assert not Path(".topoplan-runs").exists()


def test_parquet_without_pyarrow_says_what_to_install(run, comparison, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    status, _, err = run("compare", "small.toml", "--table", "runs.parquet")
    assert status == 2
    assert "Parquet needs pyarrow: pip install 'topoplan-studies[parquet]'" in err


def test_a_cell_begins_no_formula_and_no_row():
    """Python 3.11 does not quote a carriage return where lines end otherwise; readers take it for the end of one."""
    written = study_rows._csv(["a", "b"], [{"a": "x\r+1", "b": "=1"}, {"a": "\r@", "b": 2.5}]).decode()
    assert list(csv.reader(io.StringIO(written, newline="")))[1:] == [[r"x\r+1", "'=1"], [r"\r@", "2.5"]]
