"""Pipelines through the command line, the evaluator and searches: what a schedule changes, and what it must not."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import numpy as np
import pytest

from topoplan import Candidate, PlacedStrategy, Plan, State
from topoplan.cli import main
from topoplan.plugin.host import Host
from topoplan_engine import problem_on
from topoplan_engine.experiment import build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.options import ClusterOptions
from topoplan_engine.search.evaluator import Evaluator
from topoplan_estimator_roofline import Roofline as RooflineOptions
from topoplan_exporter_json import Json
from topoplan_pipeline_planning.stages import staged_strategy
from topoplan_samples.pipelines import rescheduled
from topoplan_simulator_fluid import Fluid

SERVERS = 4
MODEL = ["optimize", "vgg16", "--servers", str(SERVERS), "--batch-size", "64"]


@pytest.fixture(scope="module")
def problem():
    host = Host.discover()
    frontend = host.make("frontend", "vgg16", {})
    graph, cluster = frontend.build(64), build_cluster(ClusterOptions(servers=SERVERS))
    costs = RooflineOptions().build(graph, cluster)
    return problem_on(graph, cluster, costs, host.make("topology", "bigswitch"))


def pipeline(problem, kind="1f1b", micro_batches=8, recompute=()):
    """Return two stages of two servers each, cut where each has half of the seconds."""
    graph = problem.graph
    seconds = np.cumsum(
        [
            problem.costs.price(op, (1,) * len(o.dims), np.zeros(1, np.int32)).forward[0]
            for op, o in enumerate(graph.operators)
        ]
    )
    cut = int(np.searchsorted(seconds, seconds[-1] / 2))
    stages = [(range(cut + 1), (0, 1)), (range(cut + 1, len(graph.operators)), (2, 3))]
    return staged_strategy(graph, stages, micro_batches, kind, recompute)


def evaluator_of(problem, memory="ignore"):
    return Evaluator(problem, Fluid().build(), memory)


def cost(evaluator, strategy, fabric, beat=float("inf")):
    return evaluator.price(Candidate(base=State(strategy, fabric), cutoff_seconds=beat)).cost


@pytest.fixture
def fabric(problem):
    return problem.build_fabric(None, np.random.default_rng(0))


@pytest.fixture
def saved(problem, fabric, tmp_path):
    """Write a plan with a schedule; return its file."""
    strategy = pipeline(problem, recompute=(True, False))
    taskgraph = Lowering(problem.graph, problem.cluster, problem.costs).lower(strategy)
    plan = Plan(cluster=problem.cluster, fabric=fabric, taskgraph=taskgraph, graph=problem.graph, strategy=strategy)
    file = tmp_path / "pipeline.json"
    file.write_bytes(Json().write(plan))
    return str(file)


def run(capsys, *args):
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        main(args)
    out, err = capsys.readouterr()
    return ended.value.code or 0, out, err


@pytest.mark.slow
def test_a_plan_with_a_schedule_is_optimized_and_reported(saved, capsys, tmp_path):
    copy = str(tmp_path / "again.json")
    arguments = [*MODEL, "--strategy", saved, "-x", f"json={copy}"]
    status, out, _ = run(capsys, *arguments, "--budget", "0", "--json")
    report = json.loads(out)
    assert status == 0
    schedule = report["schedule"]
    assert schedule.pop("bubble_fraction") == pytest.approx(found_bubbles(copy), abs=1e-12)
    assert schedule == {"kind": "1f1b", "micro_batches": 8, "stages": 2, "recompute": [True, False]}
    first = json.loads((tmp_path / "pipeline.json").read_text())["strategy"]
    assert json.loads((tmp_path / "again.json").read_text())["strategy"] == first
    status, out, _ = run(capsys, *MODEL, "--strategy", saved, "--budget", "0", "--details")
    assert "1f1b, 2 stages, 8 micro-batches" in out
    assert "bubbles" in out


def found_bubbles(file):
    document = json.loads(Path(file).read_text())
    timeline, tasks = document["timeline"], document["taskgraph"]
    busy = np.zeros(SERVERS)
    for device, start, finish in zip(tasks["device"], timeline["start"], timeline["finish"], strict=True):
        if device >= 0:
            busy[device] += finish - start
    return 1 - busy.sum() / (SERVERS * timeline["makespan"])


def test_a_strategy_without_a_schedule_says_nothing_of_one(capsys):
    status, out, _ = run(capsys, *MODEL, "--budget", "0", "--json")
    assert status == 0
    assert "schedule" not in json.loads(out)


def test_a_saved_pipeline_can_be_simulated(saved, capsys):
    status, out, _ = run(capsys, "simulate", saved)
    assert status == 0
    assert "1f1b, 2 stages, 8 micro-batches" in out


@pytest.mark.parametrize("format_", ["dot", "flatbuffer"])
def test_a_pipeline_is_exported(saved, capsys, tmp_path, format_):
    file = tmp_path / "out"
    status, _, err = run(capsys, *MODEL, "--strategy", saved, "--budget", "0", "-x", f"{format_}={file}")
    assert (status, err) == (0, "")
    assert file.stat().st_size > 10_000


def test_a_format_that_cannot_say_it_says_so(saved, capsys, tmp_path):
    file = tmp_path / "out.strategy"
    status, _, err = run(capsys, *MODEL, "--strategy", saved, "--budget", "0", "-x", f"strategy={file}")
    assert status == 2
    assert "which this format cannot say (json can)" in err
    assert not file.exists()


def test_a_schedule_that_does_not_fit_the_batch_is_refused(saved, capsys):
    status, _, err = run(capsys, *MODEL[:-1], "60", "--strategy", saved, "--budget", "0")
    assert status == 2
    assert "8 micro-batches do not divide a batch of 60" in err
    status, _, err = run(capsys, *MODEL[:-1], "8", "--strategy", saved, "--budget", "0")
    assert status == 2
    assert "a micro-batch has 1 samples (use at most 4 micro-batches)" in err


@pytest.mark.slow
def test_a_search_keeps_the_kind_of_schedule_and_leaves_out_what_does_not_fit(saved, capsys, tmp_path):
    file = tmp_path / "found.json"
    status, out, _ = run(
        capsys,
        *MODEL,
        "-s",
        "mcmc",
        "--strategy",
        saved,
        "--budget",
        "200",
        "--seed",
        "1",
        "-x",
        f"json={file}",
        "--json",
    )
    report = json.loads(out)
    assert status == 0
    assert report["iteration_time_s"] <= report["initial_iteration_time_s"]
    assert report["schedule"]["kind"] == "1f1b"
    assert int(MODEL[-1]) % report["schedule"]["micro_batches"] == 0  # chains halve and double them


def test_costs_are_those_of_the_schedule(problem, fabric):
    evaluator = evaluator_of(problem)
    strategy = pipeline(problem)
    whole = PlacedStrategy(strategy.placements)
    seconds = {kind: cost(evaluator, pipeline(problem, kind), fabric) for kind in ("gpipe", "1f1b", "zero-bubble")}
    # The same placements, priced one after the other by one evaluator.
    assert cost(evaluator, whole, fabric) > seconds["1f1b"]
    for kind, known in seconds.items():
        variant = rescheduled(strategy, schedule=kind)
        assert cost(evaluator, variant, fabric) == known
        assert evaluator.plan(State(variant, fabric), {}).timeline.makespan == known
    assert len(set(seconds.values())) == len(seconds)


def test_a_time_to_beat_changes_no_answer(problem, fabric):
    strategy = pipeline(problem, micro_batches=4)
    seconds = cost(evaluator_of(problem), strategy, fabric)
    for cutoff, answer in ((seconds * 1.001, seconds), (seconds * 0.999, float("inf")), (seconds / 2, float("inf"))):
        assert cost(evaluator_of(problem), strategy, fabric, cutoff) == answer


def test_a_candidate_that_breaks_its_schedule_is_infeasible(problem, fabric):
    evaluator, strategy = evaluator_of(problem), pipeline(problem)
    state = State(strategy, fabric)
    stray = Candidate(base=state, placements={0: problem.space.place(strategy.placements[0].degrees, 1)})
    assert evaluator.price(stray).cost == float("inf")
    assert evaluator.price(Candidate(base=state)).cost < float("inf")


def test_memory_is_what_the_schedule_keeps(problem, fabric):
    gpipe, early = (pipeline(problem, kind) for kind in ("gpipe", "1f1b"))
    frugal = pipeline(problem, recompute=(True, True))
    evaluator = evaluator_of(problem)
    peaks = [evaluator.memory(strategy) for strategy in (PlacedStrategy(gpipe.placements), gpipe, early, frugal)]
    # Every activation is kept until the last forward pass; gradients of activations are those of a micro-batch.
    assert (peaks[1] <= peaks[0]).all()
    assert (peaks[1] > 0.8 * peaks[0]).all()
    assert (peaks[2] < peaks[1]).all()
    assert (peaks[3] < peaks[2]).any()
    # A device that holds what 1F1B needs, and not what GPipe does.
    between = (peaks[1].max() + peaks[2].max()) / 2
    small = attrs.evolve(
        problem, cluster=attrs.evolve(problem.cluster, device_memory=np.full(SERVERS, between), memory_reserve=0.0)
    )
    assert cost(evaluator_of(small, "limit"), gpipe, fabric) == float("inf")
    assert cost(evaluator_of(small, "limit"), early, fabric) < float("inf")
    assert cost(evaluator_of(small, "penalty"), early, fabric) == cost(evaluator, early, fabric)
