"""``topoplan validate llm``, as users type it."""

from __future__ import annotations

import json

import pytest

HEAD = "gpus,global_batch,micro_batch,hidden,heads,layers,seq_len,tp,dp,pp,iteration_ms"
#: One row of each kind: two plans of a small GPT, which are predicted in a second.
ROWS = ("16,64,4,512,8,4,512,2,8,1,100", "16,64,4,512,8,4,512,16,1,1,200", "16,64,4,512,8,4,512,2,4,2,110")


def write(folder, *lines):
    (folder / "rows.csv").write_text("\n".join([HEAD, *lines]) + "\n", encoding="utf-8")


def test_rows_of_a_file_are_judged(run, tmp_path):
    refused = "16,64,4,512,8,4,512,3,8,1,100"
    write(tmp_path, *ROWS[:2], refused, ROWS[2], "16,64,4,512,8,4,512,2,8,1,")
    status, out, _ = run("validate", "llm", "--rows", "rows.csv", "--json")
    found = json.loads(out)
    assert status == 0
    # 8 heads are not cut by 16; 3 x 8 are not 16 devices; the last row was not measured.
    assert found["rows"] == 2
    assert [each["row"] for each in found["refused"]] == ["line 3", "line 4", "line 6"]
    assert {"mape_percent", "bias_percent", "kendall_tau", "kendall_tau_within", "pairs_in_order_percent"} <= set(found)
    row = found["each"][0]
    assert row["measured"] == pytest.approx(0.1)
    assert row["error_percent"] == pytest.approx(100 * (row["predicted"] / 0.1 - 1))
    assert found["mape_percent"] == pytest.approx(sum(abs(each["error_percent"]) for each in found["each"]) / 2)


def test_rows_are_shown_with_their_reasons(run, tmp_path):
    write(tmp_path, ROWS[0], ROWS[1])
    status, out, _ = run("validate", "llm", "--rows", "rows.csv")
    assert status == 0
    assert "rows.csv, line 3: not predicted: plan: tp=16 does not divide the 8 heads" in " ".join(out.split())
    assert "1 rows" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rows", "missing.csv"), "missing.csv"),
        (("vtrian",), "did you mean 'vtrain'"),
        (("vtrain", "--rows", "rows.csv"), "--rows: beside groups"),
        (("--rows", "rows.csv", "--constants", "rows.csv"), "rows.csv: is no TOML"),
        (("--rows", "rows.csv", "--leave-out"), "--leave-out: without --write"),
        (("--rows", "rows.csv", "--memory"), "--memory: bytes were measured of none"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_a_line(run, tmp_path, words, message):
    write(tmp_path, ROWS[0])
    status, _, err = run("validate", "llm", *words)
    assert status == 2
    assert message in err
    assert "Traceback" not in err


def test_a_file_without_a_row_that_can_be_predicted_is_refused(run, tmp_path):
    write(tmp_path, "12,64,4,512,8,4,512,2,6,1,100", "16,64,4,510,8,4,512,2,8,1,100")
    status, out, err = run("validate", "llm", "--rows", "rows.csv")
    assert status == 2
    assert (
        "rows.csv, line 2: not predicted, nor any of 1 others: gpus: 12 do not fill hosts of 8 (nearest: 8 or 16)"
        in err
    )
    assert "line 3: not predicted: model: n_head: 8 does not divide n_embd 510" in " ".join(out.split())


@pytest.mark.slow
def test_constants_are_fitted_and_rows_left_out(run, tmp_path):
    rows = [ROWS[0], ROWS[2], "16,64,4,768,8,4,512,2,8,1,180"]
    write(tmp_path, *rows)
    toml = """["A100, Megatron-DeepSpeed"]
device = "a100-80"
fitted = ["products", "inside"]
"""
    (tmp_path / "stacks.toml").write_text(toml)
    words = ("--rows", "rows.csv", "--constants", "stacks.toml")
    predicted = [each["predicted"] for each in json.loads(run("validate", "llm", *words, "--json")[1])["each"]]
    # What was measured is 30 % longer, all products and passes.
    measured = [f"{row.rpartition(',')[0]},{1300 * value}" for row, value in zip(rows, predicted, strict=True)]
    write(tmp_path, *measured)
    before = json.loads(run("validate", "llm", *words, "--json")[1])["mape_percent"]
    status, out, _ = run(
        "validate", "llm", *words, "--fit", "fitted.toml", "--write", "page.md", "--leave-out", "--json"
    )
    assert status == 0
    assert json.loads(out)["mape_percent"] < before / 4
    again = json.loads(run("validate", "llm", "--rows", "rows.csv", "--constants", "fitted.toml", "--json")[1])
    assert again["mape_percent"] == pytest.approx(json.loads(out)["mape_percent"], rel=0.01)
    page = (tmp_path / "page.md").read_text()
    assert "| A100, Megatron-DeepSpeed | `products` |" in page
    lines = [line.split("|") for line in page.splitlines() if line.startswith("| line")]
    assert len(lines) == 3
    assert all(cells[6].strip()[0] in "+-" and len(cells[6].strip()) > 1 for cells in lines)
