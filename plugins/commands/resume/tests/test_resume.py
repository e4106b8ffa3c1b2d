"""The command goes on with a run, and prints a finished one again; what is no run is one line."""

from __future__ import annotations

import os

import pytest

from topoplan.cli import main

WORDS = ["optimize", "alexnet", "--servers", "4", "--batch-size", "64", "--budget", "9"]


def run(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return ended.value.code or 0, said.out, said.err


def test_a_run_goes_on_and_is_printed_again(tmp_path, capsys):
    first = run(capsys, *WORDS, "--run", tmp_path / "a")
    assert first[0] == 0
    assert run(capsys, "resume", tmp_path / "a") == first
    (tmp_path / "a" / "result.json").unlink()
    os.truncate(tmp_path / "a" / "prices-0-0.csv", 300)
    status, out, _ = run(capsys, "resume", tmp_path / "a")
    assert status == 0
    rates = ("evaluations", "planned in")
    assert [line for line in out.splitlines() if not any(word in line for word in rates)] == [
        line for line in first[1].splitlines() if not any(word in line for word in rates)
    ]


@pytest.mark.parametrize("path", ["nowhere", "file", "empty"])
def test_what_is_no_run_is_not_resumed(tmp_path, capsys, path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    status, out, err = run(capsys, "resume", tmp_path / path)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"error: {tmp_path / path}: ")
