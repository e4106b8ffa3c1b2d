"""What the table of a plan says, in eighty columns."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from topoplan import Host
from topoplan.testing import reference
from topoplan_command_show import Show
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import outputs_from
from topoplan_engine.exporting import write_outputs
from topoplan_engine.reporting.explanations import explanation
from topoplan_engine.reporting.report import run_and_report


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


def test_json_has_the_fields_of_the_run_that_made_the_plan(host, tmp_path, capsys):
    file = tmp_path / "plan.json"
    experiment = Experiment(
        model="alexnet",
        cluster=ClusterOptions(servers=4),
        run=RunOptions(batch_size=64, budget=0),
        outputs=outputs_from([f"json={file}"]),
    )
    run_and_report(experiment, as_json=True)
    said = json.loads(capsys.readouterr().out)
    found = CliRunner().invoke(Show().app(), [str(file), "--json"])
    assert found.exit_code == 0, found.output
    fields = json.loads(found.stdout)
    assert {*fields} <= {*said}
    assert {*said} - {*fields} == {  # what the search did is not the plan's
        *("initial_iteration_time_s", "speedup", "plan", "aside", "free_plan", "draws", "lower_bound_of_all_plans_s"),
        *("memory_penalty_s", "lacks", "initial_fits", "evaluations", "evaluations_per_s", "planning_seconds"),
        *("acceptance", "ended_by", "interrupted", "left_out", "history", "outputs", "speedup_over_one_device"),
        *("planners", "planners_figures_are_of", "typical_error", "against_packets", "to_launch"),
    }
    times = ("iteration_time_s", "lower_bound_s", "memory_bytes", "samples_per_s", "mfu")
    assert [fields[key] for key in times] == pytest.approx([said[key] for key in times], rel=1e-12)
    same = {*fields} - {*times, "bounds", "parts", "time_breakdown", "exposed_communication_s", "busiest_link"}
    assert {key: fields[key] for key in same} == {key: said[key] for key in same}


def test_a_pipeline_shows_its_stages(host, tmp_path, monkeypatch):
    text = shown(host, reference.pipelined(), tmp_path, monkeypatch)
    assert "micro-batches" in text
    assert "stage" in text


def test_rows_are_explained(host, tmp_path, monkeypatch):
    text = shown(host, reference.plan(), tmp_path, monkeypatch).partition("\nstrategy")[0]
    labels = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│") and line.count("│") == 3]
    assert len(labels) > 10
    assert [label for label in labels if label and explanation(label) is None] == []
