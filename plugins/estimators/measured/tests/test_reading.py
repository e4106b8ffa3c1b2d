"""Files that are right, and what is said about files that are not."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest

from topoplan import TopoplanError
from topoplan_estimator_measured.reading import read

GOOD = {"name": "Dense_8_4", "pc_str": "2-1-16", "fw_time": 0.281293, "bw_time": 0.522957, "mem_req": 25174016}


def write(tmp_path, content):
    path = tmp_path / "times.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def document(*rows, **fields):
    return {"batch_size": 64, "ngpus": 4, "measurements": [{**GOOD, **row} for row in rows or [{}]], **fields}


def test_times_pass_through_float32_milliseconds(tmp_path):
    table = read(write(tmp_path, document()))
    assert (table.batch_size, table.ngpus, table.names) == (64, 4, ["Dense_8_4"])
    entry = table.entries["Dense_8_4"][(16, 1)]
    assert entry.forward == float(np.float32(0.281293)) / 1000 != 0.281293 / 1000
    assert entry.backward == float(np.float32(0.522957)) / 1000
    assert entry.memory == 25174016


def test_degrees_are_turned_outermost_first(tmp_path):
    table = read(write(tmp_path, document({"pc_str": "4-1-2-3-8"})))
    assert list(table.entries["Dense_8_4"]) == [(8, 3, 2, 1)]


def test_of_two_equal_keys_the_later_counts(tmp_path):
    table = read(write(tmp_path, document({"fw_time": 1}, {"fw_time": 2})))
    assert table.entries["Dense_8_4"][(16, 1)].forward == 0.002
    table = read(write(tmp_path, document({"fw_time": 1}, {"fw_time": -1})))
    assert not table.entries
    table = read(write(tmp_path, document({"fw_time": -1}, {"fw_time": 1})))
    assert not table.failed


@pytest.mark.parametrize(
    ("time", "told"),
    [
        (-1, "measured as -1 (did not fit the workspace)"),
        (float("nan"), "measured as nan (not a time)"),
        (float("inf"), "measured as inf (not a time)"),
        (10**400, "measured as inf (not a time)"),
    ],
)
@pytest.mark.parametrize("field", ["fw_time", "bw_time"])
def test_what_is_no_time_is_set_aside_with_its_reason(tmp_path, field, time, told):
    table = read(write(tmp_path, document({field: time}, {"pc_str": "2-1-8"})))
    assert list(table.entries["Dense_8_4"]) == [(8, 1)]
    assert table.failed == {"Dense_8_4": {(16, 1): told}}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not JSON"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin-1"), "is not JSON"),
        ("[]", "expected an object with batch_size, ngpus and measurements, got []"),
        ({"batch_size": 1, "ngpus": 1}, "measurements is missing (has: batch_size, ngpus)"),
        ({"batch_size": 1, "ngpus": 1, "measurements": []}, "measurements: expected a list of entries, got []"),
        ({"batch_size": 1, "ngpus": 1, "measurements": [7]}, "measurements[0]: expected an object, got 7"),
        (document(batch_size=0), "batch_size: expected a whole number, 1 to 2147483647, got 0"),
        (document(batch_size="64"), "batch_size: expected a whole number, 1 to 2147483647, got '64'"),
        (document(ngpus=True), "ngpus: expected a whole number, 1 to 2147483647, got True"),
        (document({}, {"name": ""}), "measurements[1]: name: expected text, got ''"),
        (document({"pc_str": "3-1-16"}), "pc_str: expected the number of axes and that many degrees"),
        (document({"pc_str": "2-1-0"}), "got '2-1-0'"),
        (document({"pc_str": "2-1-²"}), "got '2-1-²'"),
        (document({"pc_str": ""}), "got ''"),
        (document({"pc_str": 2}), "got 2"),
        (document({"fw_time": "fast"}), "measurements[0]: fw_time: expected a number, got 'fast'"),
        (document({"bw_time": None}), "measurements[0]: bw_time: expected a number, got None"),
        (document({"mem_req": -5}), "measurements[0]: mem_req: expected bytes, 0 to 1.1259e+15, got -5"),
    ],
)
def test_malformed_files_are_told_by_file_and_field(tmp_path, content, told):
    path = write(tmp_path, content)
    with pytest.raises(TopoplanError, match=re.escape(told)) as error:
        read(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("key", ["name", "pc_str", "fw_time", "bw_time", "mem_req"])
def test_missing_keys_are_named(tmp_path, key):
    content = document()
    del content["measurements"][0][key]
    with pytest.raises(TopoplanError, match=rf"measurements\[0\]: {key} is missing"):
        read(write(tmp_path, content))


def test_unreadable_file_is_named(tmp_path):
    with pytest.raises(TopoplanError, match=r"nowhere\.json: cannot be read"):
        read(tmp_path / "nowhere.json")
