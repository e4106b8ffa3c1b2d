"""Tables are known by their columns; what cannot be judged is refused in one line."""

from __future__ import annotations

import csv
import hashlib
import io
from importlib.resources import files

import pytest

from topoplan import TopoplanError
from topoplan_llm_measurements.groups import GROUPS
from topoplan_llm_measurements.stacks import stack_of, stacks, stacks_of_text, text_of
from topoplan_llm_measurements.tables import group_of, own_table, source_of, tables_of_file

HEAD = "gpus,global_batch,micro_batch,hidden,heads,layers,seq_len,tp,dp,pp,iteration_ms"
ROW = "64,512,4,3072,32,30,2048,4,16,1,4764"


def written(folder, *lines):
    path = folder / "rows.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.name)
def test_public_rows_are_read_and_have_a_source(group):
    table, source = own_table(group), source_of(group)
    assert table.rows
    assert source["source"]
    content = files("topoplan_llm_measurements").joinpath("data", f"{group.table}.csv").read_bytes()
    assert source["sha256"] == hashlib.sha256(content).hexdigest()


def test_a_file_is_known_by_its_columns(tmp_path):
    (table,) = tables_of_file(written(tmp_path, f"colour,{HEAD},note", f"red,{ROW},"))
    assert table.group.name == "vtrain"
    (row,) = table.rows
    assert (row.name, row.measured) == ("line 2", pytest.approx(4.764))
    assert row.run.plan["tp"] == 4


@pytest.mark.parametrize(
    ("head", "row", "message"),
    [
        ("a,b", "1,2", "has the columns of no table of measured rows"),
        (HEAD.replace(",layers", ""), ROW, "layers missing"),
        (f"{HEAD},part", f"{ROW},single", "a simulator's output"),
        (HEAD, "", "has no rows"),
    ],
)
def test_files_that_are_no_such_table_are_refused(tmp_path, head, row, message):
    with pytest.raises(TopoplanError, match=message):
        tables_of_file(written(tmp_path, head, row))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (ROW.replace("3072", "many"), "hidden: 'many' is no number"),
        (ROW.replace("3072", ""), "hidden: is empty"),
        (ROW.replace("3072", "3072.5"), "hidden: '3072.5' is no whole number"),
        (ROW.replace("3072", "-1"), "hidden: '-1' is no number above 0"),
        (ROW.replace("3072", "nan"), "hidden: 'nan' is no number above 0"),
        (ROW.replace("16,1,4764", "16,2,4764"), "tp 4 x dp 16 x pp 2 = 128, not the 64 of gpus"),
        ("64,512", "hidden: is empty"),
    ],
)
def test_rows_that_say_no_run_are_named_with_the_reason(tmp_path, row, reason):
    (table,) = tables_of_file(written(tmp_path, HEAD, ROW, row))
    assert len(table.rows) == 1
    ((name, line, found),) = [(each.name, each.line, each.reason) for each in table.refused]
    assert (name, line) == ("line 3", 3)
    assert reason in found


def test_columns_that_follow_from_others_may_be_missing(tmp_path):
    """Data-parallel devices are what other degrees leave; 40 layers on 16 stages are dealt unevenly."""
    head, row = HEAD.replace("tp,dp,pp", "tp,pp"), "256,1024,4,6144,48,40,2048,8,16,9000"
    (table,) = tables_of_file(written(tmp_path, head, row))
    assert (table.rows[0].run.plan["dp"], table.rows[0].run.plan["layers"]) == (2, "2*8+3*8")


def test_a_stack_without_rows_takes_constants_of_the_nearest_hardware():
    by_name = stacks()
    stack = stack_of(by_name, "H200, NeMo in MLPerf")
    assert (stack.device, stack.constants_of) == ("h200", "H100, NeMo in MLPerf")
    assert stack.constants == by_name["H100, NeMo in MLPerf"].constants
    eager = stack_of(by_name, "A100, torchtitan eager")
    assert (eager.constants_of, eager.fused) == ("A100, torchtitan", False)
    with pytest.raises(TopoplanError, match="stack 'TPU, MaxText': has no constants"):
        stack_of(by_name, "TPU, MaxText")


def test_an_unknown_group_has_a_neighbour():
    with pytest.raises(TopoplanError, match="did you mean 'vtrain'"):
        group_of("vtrian")


def test_every_row_has_a_stack_and_every_stack_with_constants_of_its_own_has_rows():
    used = {row.stack for group in GROUPS for row in own_table(group).rows}
    assert used - set(stacks()) == set()
    assert {name for name, stack in stacks().items() if not stack.constants_of} - used == set()


def test_a_stack_takes_the_constants_of_another():
    text = '[a]\ndevice = "h100"\nproducts = 1.2\n[b]\ndevice = "h200"\nconstants_of = "a"\n'
    by_name = stacks_of_text(text, "file")
    assert (by_name["b"].device, by_name["b"].constants.products) == ("h200", 1.2)
    assert stacks_of_text(text_of(by_name), "file") == by_name


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('constants_of = "aa"', "no such stack"),
        ('constants_of = "a"\npasses = 1.1', "this one have none beside"),
        ("constants_of = 3", "wrong type"),
    ],
)
def test_another_stack_that_cannot_be_taken_is_named(lines, message):
    with pytest.raises(TopoplanError, match=message):
        stacks_of_text(f'[a]\ndevice = "h100"\n[b]\ndevice = "h200"\n{lines}\n', "file")


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace("\n", "\r"),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\N{ZERO WIDTH NO-BREAK SPACE}" + text,
        lambda text: text.replace(",", ";"),
        lambda text: text.replace(",", "\t"),
        lambda text: text.replace(",", '","').replace("\n", '"\n"')[:-1].join(('"', "")),
    ],
    ids=["old ends", "ends", "mark", "semicolons", "tabulators", "quoted"],
)
def test_the_same_row_however_it_is_written(tmp_path, change):
    path = tmp_path / "rows.csv"
    path.write_bytes(change(f"{HEAD}\n{ROW}\n").encode())
    (table,) = tables_of_file(path)
    assert [row.measured for row in table.rows] == [pytest.approx(4.764)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (f'{HEAD}\n"{"9" * 140_000},1\n', r"rows.csv, line 2: is no CSV .*is a quotation mark open"),
        (f"{HEAD},gpus\n{ROW},128\n", "rows.csv: column 'gpus' is there 2 times"),
    ],
)
def test_tables_that_are_not_one_are_refused(tmp_path, text, message):
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(TopoplanError, match=message):
        tables_of_file(path)


@pytest.mark.parametrize(
    ("group", "column", "value", "reason"),
    [
        ("llama3", "params_b", "70", "params_b: 70 is no model of table 4"),
        ("megascale", "dp", "3", "not the 256 of gpus"),
        ("korthikanti", "dp", "many", "dp: 'many' is no number"),
        ("mlperf", "dp", "3", "dp: 3 x tp"),
        ("torchtitan", "compiled", "perhaps", "compiled: 'perhaps' is none of compile, eager"),
        ("bridge", "fsdp", "no", "fsdp: 'no' is no number"),
        ("bridge", "ep", "7", "ep: 7 does not divide"),
        ("deepseek-v3", "unit", "s", "unit: 's' is none of"),
    ],
)
def test_a_column_that_says_another_run_is_not_passed_over(group, column, value, reason):
    """All rows are asked, for what is published of some is not enough to be predicted."""
    with_value = [{**cells, column: value} for cells in cells_of(group)]
    reasons = []
    for cells in with_value:
        with pytest.raises(TopoplanError) as caught:
            group_of(group).row(cells)
        reasons.append(str(caught.value))
    assert any(reason in each for each in reasons), reasons


def cells_of(group):
    """Return the public rows of a group that can be predicted, as text."""
    text = files("topoplan_llm_measurements").joinpath("data", f"{group_of(group).table}.csv").read_text("utf-8")
    lines = {row.line: row for row in own_table(group_of(group)).rows}
    every_row = enumerate(csv.DictReader(io.StringIO(text)), 2)
    return [
        cells for line, cells in every_row if line in lines and (group != "bridge" or cells["model"] == "DeepSeekV3")
    ]
