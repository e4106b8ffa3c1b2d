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
    assert [each["row"] for each in found["refused"]] == ["line 4", "line 6", "line 3"]
    assert {"mape_percent", "bias_percent", "kendall_tau", "kendall_tau_within", "pairs_in_order_percent"} <= set(found)
    row = found["each"][0]
    assert row["measured"] == pytest.approx(0.1)
    assert row["error_percent"] == pytest.approx(100 * (row["predicted"] / 0.1 - 1))
    assert found["mape_percent"] == pytest.approx(sum(abs(each["error_percent"]) for each in found["each"]) / 2)


def test_rows_are_shown_with_their_reasons(run, tmp_path):
    write(tmp_path, ROWS[0], ROWS[1])
    status, out, _ = run("validate", "llm", "--rows", "rows.csv")
    assert status == 0
    assert "line 3: not predicted: plan: tp=16 does not divide the 8 heads" in " ".join(out.split())
    assert "1 rows" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--rows", "missing.csv"), "missing.csv"),
        (("vtrian",), "did you mean 'vtrain'"),
        (("vtrain", "--rows", "rows.csv"), "--rows: beside groups"),
        (("--rows", "rows.csv", "--constants", "rows.csv"), "rows.csv: is no TOML"),
    ],
)
def test_what_cannot_be_judged_is_refused_in_a_line(run, tmp_path, words, message):
    write(tmp_path, ROWS[0])
    status, _, err = run("validate", "llm", *words)
    assert status == 2
    assert message in err
    assert "Traceback" not in err
