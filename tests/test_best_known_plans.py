"""Best known plans are plans: they are read, simulated and written again, though their files have no tasks."""

from __future__ import annotations

import gzip
import json

import pytest

from topoplan import Host, TopoplanError
from topoplan_engine.exporting import export, read_plan
from topoplan_engine.replay import simulate_file
from topoplan_studies.problems.best import FOLDER, best_known

HOST = Host.discover()


def path_of(name):
    return FOLDER / "plans" / f"{name}.json.gz"


@pytest.mark.parametrize("name", ["alexnet-switch", "candle-uno-topoopt", "vgg-19-pipeline", "vit-switch-8"])
def test_a_best_known_plan_is_simulated_and_takes_what_the_table_says(name):
    """The table's time is a mean over draws of equal paths; of these plans all draws are within 5 %."""
    plan = simulate_file(path_of(name), host=HOST)
    assert plan.taskgraph.n_tasks > 50
    assert plan.timeline.makespan == pytest.approx(best_known()[name].seconds, rel=0.05)
    assert plan.memory is not None


def test_what_is_written_of_it_is_read_again_packed_or_not(tmp_path):
    plan = simulate_file(path_of("candle-uno-topoopt"), host=HOST)
    for name in ("p.json", "p.json.gz"):
        export(plan, "json", tmp_path / name, host=HOST)
        again = simulate_file(tmp_path / name, host=HOST)
        assert again.timeline.makespan == plan.timeline.makespan
    assert gzip.decompress((tmp_path / "p.json.gz").read_bytes()) == (tmp_path / "p.json").read_bytes()
    export(plan, "flatbuffer", tmp_path / "p.fbuf.gz", host=HOST)
    assert read_plan(HOST, tmp_path / "p.fbuf.gz").taskgraph.n_tasks >= plan.taskgraph.n_tasks


def test_a_plan_without_tasks_that_names_no_estimator_is_refused(tmp_path):
    """It must not be a plan of 0.0000 ms."""
    document = json.loads(gzip.decompress(path_of("alexnet-switch").read_bytes()))
    document["provenance"] = {}
    path = tmp_path / "bare.json"
    path.write_text(json.dumps(document))
    with pytest.raises(TopoplanError, match=r"bare\.json: has a strategy, but no tasks, and names no estimator"):
        read_plan(HOST, path)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(best_known()))
def test_all_of_them_have_tasks(name):
    plan = read_plan(HOST, path_of(name))
    assert plan.taskgraph.n_tasks > 50
    assert float(plan.taskgraph.seconds.sum()) > 0
