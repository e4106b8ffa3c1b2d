"""What the table of a plan says, in eighty columns."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from topoplan import Host
from topoplan.testing import reference
from topoplan_command_show import Show
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import outputs_from
from topoplan_engine.exporting import write_outputs
from topoplan_engine.reporting.explanations import explanation


@pytest.fixture(scope="module")
def host():
    return Host.discover()


def shown(host, plan, tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    file = tmp_path / "plan.json"
    assert not write_outputs(host, plan, outputs_from([f"json={file}"])).refused
    found = CliRunner().invoke(Show().app(), [str(file)])
    assert found.exit_code == 0, found.output
    return found.stdout


def test_a_plan_in_eighty_columns(host, tmp_path, monkeypatch):
    outcome = optimize(
        Experiment(model="alexnet", cluster=ClusterOptions(servers=4), run=RunOptions(batch_size=64, budget=0)),
        host=host,
    )
    text = shown(host, outcome.plan, tmp_path, monkeypatch)
    assert max(map(len, (line.rstrip() for line in text.splitlines()))) <= 80
    assert f"{outcome.seconds * 1e3:.4f} ms" in text
    assert f"{outcome.throughput.mfu:.1%}" in text  # peaks of devices are no part of a file
    assert "4 hosts, 4 x A100-40" in text
    assert "5 conv2d" in text
    parts = [float(line.split()[-2].rstrip("%")) for line in text.splitlines() if "tes for  " in line]
    assert len(parts) == 2  # the file has no recording: it was simulated again
    assert sum(parts) == pytest.approx(100, abs=0.11)


def test_a_pipeline_shows_its_stages(host, tmp_path, monkeypatch):
    text = shown(host, reference.pipelined(), tmp_path, monkeypatch)
    assert "micro-batches" in text
    assert "stage" in text


def test_rows_are_explained(host, tmp_path, monkeypatch):
    text = shown(host, reference.plan(), tmp_path, monkeypatch).partition("\nstrategy")[0]
    labels = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│") and line.count("│") == 3]
    assert len(labels) > 10
    assert [label for label in labels if label and explanation(label) is None] == []
