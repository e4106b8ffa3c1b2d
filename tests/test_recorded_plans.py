"""What is recorded when somebody asks: in Python, by the commands, by an exporter that shows it; and never else."""

from __future__ import annotations

import json

import attrs
import numpy as np
import pytest

from topoplan import Exporter, Host, Simulate, Simulator
from topoplan.model.recording import MemoryKind
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize, simulate_file
from topoplan_engine.exporting import read_plan
from topoplan_engine.search.recorder import MOST_ROWS, NoRecorder, Row, SearchRecorder, history_of

SMALL = Experiment(
    model="alexnet",
    cluster=ClusterOptions(servers=4, degree=2),
    topology="topoopt",
    searchers=["mcmc", "rewire"],
    run=RunOptions(batch_size=64, budget=60, seed=2),
)


def recorded(experiment, **run):
    return attrs.evolve(experiment, run=attrs.evolve(experiment.run, record=True, **run))


@attrs.frozen
class Watching(Exporter):
    """Shows what is recorded."""

    name = "watching"
    suffix = ".watched"
    records = True

    def write(self, plan):
        return b"recorded" if plan.recording is not None else b"nothing"


@pytest.fixture(scope="module")
def plan():
    return optimize(recorded(SMALL)).plan


def test_a_search_that_does_not_ask_is_the_same_and_has_nothing(plan):
    alone = optimize(SMALL).plan
    assert alone.recording is None
    assert alone.history is None
    assert attrs.evolve(plan, recording=None, history=None) == alone


def test_bytes_and_path_are_those_of_the_timeline(plan):
    links, path, timeline = plan.recording.links, plan.recording.critical, plan.timeline
    assert (np.bincount(links.link, links.nbytes, plan.fabric.n_links) == timeline.link_bytes).all()
    assert timeline.finish[path.task[-1]] == timeline.makespan
    assert timeline.start[path.task[0]] == 0.0


def test_memory_is_what_tables_say(plan):
    levels, use = plan.recording.memory, plan.memory
    for kind in MemoryKind:
        most = np.zeros(plan.cluster.n_devices)
        mine = levels.kind == kind
        np.maximum.at(most, levels.device[mine], levels.nbytes[mine])
        assert most == pytest.approx(getattr(use, kind.name.lower()), abs=2.0)


def test_the_history_is_that_of_the_search(plan):
    history = plan.history
    assert history.evaluation.tolist() == list(range(1, len(history.evaluation) + 1))
    assert len(history.evaluation) >= 61
    assert set(history.chain.tolist()) == {0}
    assert (np.diff(history.best) <= 0).all()
    assert (np.diff(history.seconds) >= 0).all()
    assert (history.current >= history.best).all()
    assert history.accepted[0] == 1
    better = np.flatnonzero(np.diff(history.best) < 0) + 1
    assert len(better)
    assert history.accepted[better].all()
    assert (history.current[better] == history.best[better]).all()
    moved = np.flatnonzero(np.diff(history.current) != 0) + 1
    assert history.accepted[moved].all()


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_every_chain_has_a_history(workers):
    chains = optimize(recorded(SMALL, chains=2, workers=workers)).plan
    assert set(chains.history.chain.tolist()) == {0, 1}
    for chain in (0, 1):
        mine = chains.history.chain == chain
        assert (np.diff(chains.history.evaluation[mine]) >= 0).all()
        assert (np.diff(chains.history.best[mine]) <= 0).all()
    best = [chains.history.best[chains.history.chain == chain].min() for chain in (0, 1)]
    assert min(best) == pytest.approx(chains.history.best.min())


def walk(recorder, count):
    """Note a search that improves less and less often."""
    best, bests = 1e9, []
    for number in range(1, count + 1):
        new_best = number in (1, 2) or number % max(1, number.bit_length() ** 3) == 0
        best -= new_best
        bests += [number] * new_best
        recorder.note(Row(number, number * 1e-3, best + number % 7, best, bool(number % 2)), new_best=new_best)
    return bests


@pytest.mark.parametrize("count", [1, 100, 1999, 2000, 2001, 100_000])
def test_a_long_history_is_thinned_and_keeps_new_bests(count):
    recorder = SearchRecorder()
    bests = walk(recorder, count)
    numbers = [row.evaluation for row in recorder.rows()]
    assert len(numbers) <= MOST_ROWS
    assert len(numbers) >= min(count, MOST_ROWS // 4)
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == count
    assert set(bests) <= set(numbers)
    again = SearchRecorder()
    walk(again, count)
    assert recorder.rows() == again.rows()


def test_more_new_bests_than_rows_keep_the_last_one():
    recorder = SearchRecorder(chains=100)
    for number in range(1, 5001):
        recorder.note(Row(number, 0.0, -number, -number, True), new_best=True)
    rows = recorder.rows()
    assert 2 <= len(rows) <= MOST_ROWS // 100
    assert rows[-1].evaluation == 5000


def test_no_recorder_has_no_rows():
    NoRecorder().note(Row(1, 0.0, 1.0, 1.0, True), new_best=True)
    assert NoRecorder().rows() == []
    assert len(history_of([[], []]).chain) == 0


def test_an_exporter_that_records_is_enough(tmp_path):
    host = Host.discover()
    host.add(Watching)
    experiment = attrs.evolve(SMALL, outputs=((type(SMALL.topology)("watching"), str(tmp_path / "x.watched")),))
    assert optimize(experiment, host=host).plan.recording is not None


@attrs.frozen
class Plain(Simulator):
    """A simulator that writes nothing down."""

    name = "plain"

    def build(self):
        fluid = Host.discover().make("simulator", "fluid").build()

        class PlainSimulate(Simulate):
            def __call__(self, taskgraph, fabric, cluster):
                return fluid(taskgraph, fabric, cluster)

        return PlainSimulate()


def test_a_simulator_that_writes_nothing_down_says_so():
    with pytest.warns(UserWarning, match="record: the simulator writes nothing down"):
        plan = optimize(recorded(attrs.evolve(SMALL, simulator=Plain()), budget=2)).plan
    assert plan.recording is None
    assert plan.history is not None


@pytest.mark.slow
def test_commands_record_into_json(run, tmp_path):
    optimized, replayed, plain = (tmp_path / f"{name}.json" for name in ("optimized", "replayed", "plain"))
    common = ["alexnet", "--servers", "2", "--batch-size", "32", "--budget", "10", "--json"]
    run("optimize", *common, "--record", "-x", f"json={optimized}")
    run("optimize", *common, "-x", f"json={plain}")
    assert not {"recording", "history"} & json.loads(plain.read_text()).keys()
    run("simulate", str(plain), "--record", "--json", "-x", f"json={replayed}")
    host = Host.discover()
    first, second = (read_plan(host, path) for path in (optimized, replayed))
    assert first.history is not None
    assert second.history is None
    assert second.recording.links == first.recording.links
    assert second.recording.critical == first.recording.critical
    assert second.recording.memory == first.recording.memory
    experiment = tmp_path / "run.toml"
    experiment.write_text('[model]\nuse = "alexnet"\n[cluster]\nservers = 2\n[run]\nbudget = 5\nbatch-size = 32\n')
    written = tmp_path / "run.json"
    run("run", str(experiment), "--set", "run.record=true", "--set", f"outputs.json={written}", "--json")
    assert read_plan(host, written).recording is not None
    run("run", str(experiment), "--record", "--set", f"outputs.json={written}", "--json")
    assert read_plan(host, written).history is not None


def test_replaying_without_asking_leaves_no_recording(tmp_path, plan):
    path = tmp_path / "plan.json"
    path.write_bytes(Host.discover().make("exporter", "json").write(plan))
    assert simulate_file(path).recording is None
