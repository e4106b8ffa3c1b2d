"""``topoplan sweep``: rows, what is printed and drawn, what is refused, and what an interruption keeps."""

from __future__ import annotations

import json
import os
import signal
import xml.etree.ElementTree as ET
from concurrent.futures import Future

import pytest

from topoplan import Host, TopoplanError
from topoplan.cli import main
from topoplan_command_sweep import command
from topoplan_command_sweep.plot import plot
from topoplan_command_sweep.results import BatchSizeResult, SweepResult, plan_batch_size, sweep
from topoplan_command_sweep.table import as_json, baselines_of, sweep_table
from topoplan_engine import ClusterOptions, Experiment, RunOptions, workers
from topoplan_engine.executors import Processes
from topoplan_engine.keywords import experiment_of

ROWS = [
    BatchSizeResult(
        batch_size=32, seconds=0.016, speedup=5.5, split="8|8 @21", baselines={"data_parallel": 0.4, "p3": None}
    ),
    BatchSizeResult(batch_size=64, problem="too large"),
    BatchSizeResult(
        batch_size=128, seconds=0.05, speedup=7.25, split="14|2 @16", baselines={"data_parallel": 1.5, "hpgo": 7.0}
    ),
]


def experiment(batch_size, searcher="random"):
    return Experiment(
        model="alexnet",
        cluster=ClusterOptions(servers=2),
        searchers=[searcher],
        run=RunOptions(batch_size=batch_size, budget=5),
    )


#: A model with measured times of its operators, which there are for 16384 samples alone.
MEASURED = ("dlrm", "-o", "preset=dlrm16", "--servers", 16, "-e", "measured:profile=dlrm16")
NOT_MEASURED = "profile dlrm16: batch_size 16384 is not that of model 'dlrm', 63"


def measured(batch_size):
    return Experiment(
        model="dlrm:preset=dlrm16",
        cluster=ClusterOptions(servers=16),
        estimator="measured:profile=dlrm16",
        searchers=["random"],
        run=RunOptions(batch_size=batch_size, budget=0),
    )


@pytest.fixture
def run(capsys):
    def run(*args):
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["sweep", *map(str, args)])
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


@pytest.fixture
def here(monkeypatch):
    """Run rows in this process, one after the other."""

    class Pool:
        def __init__(self, *given, **more):
            pass

        def submit(self, function, *given):
            future = Future()
            future.set_result(function(*given))
            return future

        def shutdown(self, cancel_futures):
            pass

    monkeypatch.setattr(workers, "ProcessPoolExecutor", Pool)


def test_cells_stand_under_their_headers():
    names = baselines_of(ROWS)
    assert names == ["data_parallel", "p3", "hpgo"]
    assert sweep_table(ROWS).headers == [
        "global batch",
        "data parallel",
        "p3",
        "hpgo",
        "best hybrid",
        "plan",
        "iteration",
    ]
    assert sweep_table(ROWS).cells(ROWS[0]) == ["32", "0.400", "-", "-", "5.500", "8|8 @21", "16.00 ms"]
    assert sweep_table(ROWS).cells(ROWS[1]) == ["64", "-", "-", "-", "-", "too large", "-"]
    assert [row["batch_size"] for row in as_json(ROWS, False)["rows"]] == [32, 64, 128]


@pytest.mark.slow
def test_the_plot_has_a_line_for_each_baseline():
    (axes,) = plot(ROWS).axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert lines == {
        "best hybrid": [[32, 5.5], [128, 7.25]],
        "data parallel": [[32, 0.4], [128, 1.5]],
        "p3": [],
        "hpgo": [[128, 7.0]],
    }
    assert [label.get_text() for label in axes.get_xticklabels()] == ["32", "64", "128"]
    assert plot(ROWS[1:2]).axes


def test_a_row_is_what_one_run_says():
    row = plan_batch_size(Host.discover(), experiment(64))
    assert row.seconds > 0
    assert (row.speedup, row.split, row.baselines) == (None, None, {})
    assert plan_batch_size(Host.discover(), experiment(63)).seconds > 0  # 2 devices do not divide it
    row = plan_batch_size(Host.discover(), measured(63))
    assert (row.seconds, row.fits) == (None, None)
    assert row.problem.startswith(NOT_MEASURED)


@pytest.mark.slow
def test_processes_give_the_same_rows_as_one():
    seen = []
    result = sweep(measured(63), (16384, 63), jobs_on=Processes(workers=2), on_progress=seen.append)
    assert result.rows == tuple(plan_batch_size(Host.discover(), measured(size)) for size in (16384, 63))
    assert [row.seconds is None for row in result.rows] == [False, True]
    assert not result.interrupted
    assert "<th>global batch</th>" in result._repr_html_()
    assert sorted(row.batch_size for row in seen) == [63, 16384]


def test_an_interruption_keeps_finished_rows(here):
    def stop(row):
        os.kill(os.getpid(), signal.SIGINT)

    result = sweep(experiment(64), (64, 128, 256), jobs_on=Processes(), on_progress=stop)
    assert result.interrupted
    assert [row.batch_size for row in result.rows] == [64]


@pytest.mark.slow
def test_a_sweep_takes_the_options_of_optimize():
    options = {"servers": 2, "searchers": "mcmc", "budget": 0}
    (row,) = sweep("alexnet", [64], jobs_on=Processes(), **options).rows
    assert row == plan_batch_size(Host.discover(), experiment_of("alexnet", batch_size=64, **options))
    with pytest.raises(TopoplanError, match="'servers' beside an Experiment"):
        sweep(experiment(64), [64], servers=2)
    with pytest.raises(TopoplanError, match="is given 2 times"):
        sweep("alexnet", [64], searchers=["mcmc", "random"])


@pytest.mark.slow
def test_the_command_prints_rows_and_draws_them(here, run, tmp_path):
    args = ("alexnet", "--servers", 2, "-s", "hpgo:bandwidths=cluster", "--batch-sizes", "64,63,128")
    status, out, _ = run(*args, "--plot", tmp_path / "sweep.svg")
    assert status == 0
    assert "best hybrid" in out
    assert [f" {size} │" in out for size in (64, 63, 128)] == [True] * 3
    ET.parse(tmp_path / "sweep.svg")
    status, out, _ = run(*args, "--json")
    found = json.loads(out)
    assert [row["batch_size"] for row in found["rows"]] == [64, 63, 128]
    assert all(row["speedup"] > 0 for row in found["rows"])  # 2 devices do not divide 63 samples
    assert set(found["rows"][0]["baselines"]) == {"no_overlap", "p3", "accumulated", "accumulated_p3"}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("alexnet", "--batch-sizes", "64,x"), "--batch-sizes: expected integer, got 'x'"),
        (("alexnet", "--batch-sizes", "0"), "batch-size"),
        ((*MEASURED, "--batch-sizes", "63"), NOT_MEASURED),
        (("alexnex", "--batch-sizes", "64"), "alexnex"),
        (("alexnet", "-o", "preset"), "expected KEY=VALUE"),
        (("alexnet", "--plot", "/nowhere/sweep.svg"), "does not exist"),
    ],
)
def test_bad_input_is_one_line_and_status_2(here, run, args, message):
    status, out, err = run(*args)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_what_does_not_fit_is_marked(here, run):
    words = ("alexnet", "--servers", 2, "-s", "mcmc", "--budget", 0, "--batch-sizes", "64,63,128", "--memory-gb", 0.8)
    status, out, err = run(*words)
    assert status == 0
    assert out.count("DOES NOT FIT") == 3
    assert "global batch 128: " in err
    assert "what would help" in err
    found = json.loads(run(*words, "--json")[1])["rows"]
    assert [row["fits"] for row in found] == [False, False, False]
    status, _, err = run(*words[:-1], 0.1, "--batch-sizes", "64,128")
    assert status == 2
    assert "no plan fits" in err


def test_a_row_without_a_plan_says_why(here, run):
    words = (*MEASURED, "-s", "mcmc", "--budget", 0, "--batch-sizes", "16384,63")
    status, out, _ = run(*words)
    assert status == 0
    assert " ".join(NOT_MEASURED.split()[:3]) in out
    found = json.loads(run(*words, "--json")[1])["rows"]
    assert [row["fits"] for row in found] == [True, None]
    assert found[1]["problem"].startswith(NOT_MEASURED)


@pytest.mark.parametrize(("given", "jobs"), [("3", 3), ("0", os.cpu_count()), ("", os.cpu_count())])
def test_rayons_variable_limits_processes_unless_jobs_are_given(run, monkeypatch, given, jobs):
    monkeypatch.setenv("RAYON_NUM_THREADS", given)
    used = []
    monkeypatch.setattr(
        command,
        "sweep_of",
        lambda *_, jobs_on, on_progress: used.append(jobs_on) or SweepResult(rows=(), interrupted=True),
    )
    run("alexnet", "--servers", 2)
    run("alexnet", "--servers", 2, "--jobs", 5)
    assert used == [Processes(workers=jobs), Processes(workers=5)]


def test_a_variable_without_a_number_is_refused(run, monkeypatch):
    monkeypatch.setenv("RAYON_NUM_THREADS", "many")
    status, _, err = run("alexnet", "--servers", 2)
    assert status == 2
    assert "RAYON_NUM_THREADS=many: is not a number" in err
