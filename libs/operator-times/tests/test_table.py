"""Our own table and FlexNet's file: what is written is read again, and what is wrong is named."""

from __future__ import annotations

import json

import pytest

from topoplan import TopoplanError
from topoplan_operator_times.flexnet import Measurement, cut_of, document
from topoplan_operator_times.parts import part_shape
from topoplan_operator_times.table import Bench, PartTimes, Table, Times, Work, is_table, read, write
from topoplan_operators import GraphBuilder

BENCH = Bench("some processor", "2.9", 2, "fp32")


def linear():
    builder = GraphBuilder("test", 8)
    builder.linear(builder.input((64,)), 32)
    return builder.build().operators[0]


@pytest.fixture
def table():
    times = Times(0.001, 0.002, 0.004)
    rows = {}
    for degrees, measured in (((1, 1, 1), None), ((2, 1, 1), times)):
        shape = part_shape(linear(), degrees, (True,))
        work = Work(flops=100.0, traffic=10.0, backward=(1.25, 2, 2))
        rows[shape] = PartTimes(
            operator="test/linear1", shape=shape, work=work, repeats=3, forward=measured, backward=measured
        )
    return Table(BENCH, rows)


def test_a_table_is_read_as_it_was_written(table, tmp_path):
    path = tmp_path / "times.json"
    write(path, table)
    assert read(path) == table
    assert len(path.read_text().splitlines()) == len(table.rows) + 2
    assert is_table(json.loads(path.read_text()))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "format: is no table of operator times"),
        ({"version": 2}, "version: 2 cannot be read (expected 1)"),
        ({"device": 3}, "device: expected text, got 3"),
        ({"threads": -1}, "threads: expected a whole number"),
        ({"parts": {}}, "parts: expected a list of rows"),
        ({"parts": [3]}, "parts[0]: expected an object, got 3"),
        ({"kind": ""}, "parts[0]: kind: expected text"),
        ({"sizes": [1.5]}, "parts[0]: sizes: expected whole numbers, 0 or more"),
        ({"inputs": [[1]]}, "parts[0]: inputs: expected [shape, dimensions, bytes of an element]s"),
        ({"gradients": [1]}, "parts[0]: gradients: expected true or false for each input"),
        ({"constants": {"a": "b"}}, "parts[0]: constants: expected whole numbers by name"),
        ({"backward_work": [1]}, "parts[0]: backward_work: expected FLOPs, bytes and kernels"),
        ({"backward_work": [2, 1.5, 2]}, "parts[0]: backward_work: expected whole numbers, 0 or more"),
        ({"flops": -1}, "parts[0]: flops: expected a number, 0 or more"),
        ({"forward_s": [1, 2]}, "parts[0]: forward_s: expected three quartiles in seconds, or null"),
        ({"forward_s": [1, 2, float("inf")]}, "parts[0]: forward_s: expected a number, 0 or more"),
    ],
)
def test_what_is_wrong_is_named(table, tmp_path, change, message):
    path = tmp_path / "times.json"
    write(path, table)
    content = json.loads(path.read_text())
    (key,) = change
    (content if key in content else content["parts"][0]).update(change)
    path.write_text(json.dumps(content))
    with pytest.raises(TopoplanError) as error:
        read(path)
    assert str(error.value).startswith(f"{path}: {message}")


def test_what_is_not_json_is_named(tmp_path):
    path = tmp_path / "times.json"
    path.write_text("{")
    with pytest.raises(TopoplanError, match=r"times\.json: is not JSON"):
        read(path)


def test_flexnets_file_has_six_digits_and_minus_one_for_what_did_not_fit():
    entries = [
        Measurement("Dense_64_32", (2, 1), 0.00123456789, 0.002, 4096),
        Measurement("Dense_64_32", (1, 1), None, None, 8192),
    ]
    content = json.loads(document(8, 2, entries))
    assert (content["batch_size"], content["ngpus"]) == (8, 2)
    first, second = content["measurements"]
    assert first == {"name": "Dense_64_32", "pc_str": "2-1-2", "fw_time": 1.23457, "bw_time": 2.0, "mem_req": 4096}
    assert (second["pc_str"], second["fw_time"], second["bw_time"]) == ("2-1-1", -1, -1)


def test_flexnet_measures_cuts_of_outputs_into_equal_parts():
    op = linear()
    assert cut_of(op, (2, 4, 1)) == (2, 4)
    assert "no axis of the output" in cut_of(op, (1, 1, 2))
    assert "not divisible by 3" in cut_of(op, (3, 1, 1))
