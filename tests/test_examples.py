"""The example experiments run as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from topoplan.cli import main
from topoplan_samples.long_tail import at_night

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.toml"))


@pytest.mark.parametrize(
    "path",
    at_night(EXAMPLES, *(path for path in EXAMPLES if path.name != "mixed-hosts.toml")),
    ids=lambda path: path.name,
)
def test_example_runs(path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", str(path), "--set", "run.budget=20", "--json"])
    out, err = capsys.readouterr()
    assert (ended.value.code or 0) == 0, err
    report = json.loads(out)
    assert 0 < report["lower_bound_s"] <= report["iteration_time_s"] <= report["initial_iteration_time_s"]


@pytest.mark.parametrize(
    ("command", "file", "reader"),
    [
        ("run", "experiments/dedicated-d4.toml", "compare"),
        ("run", "experiments/shared-cluster.toml", "share"),
        ("compare", "examples/dlrm.toml", "run"),
        ("share", "examples/dlrm.toml", "run"),
    ],
)
def test_a_file_of_another_command_names_that_command(capsys, command, file, reader):
    with pytest.raises(SystemExit) as ended:
        main([command, str(EXAMPLES[0].parents[1] / file)])
    assert ended.value.code == 2
    assert f"{file}` reads it" in (err := capsys.readouterr().err)
    assert f"`topoplan {reader} " in err


def test_there_are_examples():
    assert len(EXAMPLES) >= 2
