"""The example experiments run as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from topoplan.cli import main

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.toml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(path, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["run", str(path), "--set", "run.budget=20", "--json"])
    out, err = capsys.readouterr()
    assert (ended.value.code or 0) == 0, err
    found = json.loads(out)
    assert 0 < found["lower_bound_s"] <= found["iteration_time_s"] <= found["initial_iteration_time_s"]


def test_there_are_examples():
    assert len(EXAMPLES) >= 2
