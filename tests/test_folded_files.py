"""Files of large folded plans: without their tasks, which commands have again when they read one."""

from __future__ import annotations

import json

import pytest

from topoplan import Host, optimize
from topoplan_command_show.command import plan_rows
from topoplan_engine.exporting import read_plan
from topoplan_engine.reading import simulated_plan
from topoplan_engine.rebuilding import is_folded
from topoplan_engine.replay import simulate_file
from topoplan_exporter_json import Json
from topoplan_exporter_json.runs import packed, unpacked
from topoplan_frontend_huggingface import HuggingFace
from topoplan_html_report import NamedPlan, report
from topoplan_samples.stated import LLAMA
from topoplan_searcher_stated import Stated

CONFIG = {**LLAMA, "num_key_value_heads": 8, "vocab_size": 256, "max_position_embeddings": 256}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A folded plan of 512 devices, and what is written of it where its tasks are too many to be listed."""
    config = tmp_path_factory.mktemp("folded") / "config.json"
    config.write_text(json.dumps(CONFIG))
    options = {"servers": 64, "gpus_per_server": 8, "batch_size": 512, "device": "h100", "precision": "bf16"}
    model = HuggingFace(config=str(config), sequence_length=32)
    plan = optimize(model, searchers=[Stated(tp=4, pp=2, zero=1)], **options).plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("topoplan_engine.rebuilding._MOST_LISTED", 1000)
        return plan, Json().write(plan)


@pytest.fixture
def folded(written, tmp_path, monkeypatch):
    """That plan, too large for its tasks to be listed, and its file."""
    monkeypatch.setattr("topoplan_engine.rebuilding._MOST_LISTED", 1000)
    plan, content = written
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    return plan, path


@pytest.mark.slow
def test_a_file_without_tasks_is_the_plan_that_was_written(folded, monkeypatch):
    plan, path = folded
    assert is_folded(plan)
    again = read_plan(Host.discover(), path)
    assert again.strategy == plan.strategy
    assert again.cluster == plan.cluster
    assert again.taskgraph.n_tasks == plan.taskgraph.n_tasks
    assert again.timeline.makespan == plan.timeline.makespan
    assert again.timeline.bounds == plan.timeline.bounds
    assert again.memory == plan.memory
    assert json.loads(Json().write(again)) == json.loads(path.read_text())
    assert again.taskgraph == plan.taskgraph  # all tasks
    monkeypatch.setattr("topoplan_engine.rebuilding._MOST_LISTED", 1 << 20)
    assert len(path.read_bytes()) < len(Json().write(plan)) / 20


def test_commands_show_such_files(folded):
    plan, path = folded
    host = Host.discover()
    shown = simulated_plan(path, host)
    rows = dict(plan_rows(shown))
    assert rows["iteration time"] == f"{plan.timeline.makespan * 1e3:.4f} ms"
    assert "one for all that are equal" in rows["simulated"]
    page = report([NamedPlan("plan", shown)], host)
    assert b"Simulated and drawn are" in page
    assert b"10% more bandwidth" in page


@pytest.mark.slow
def test_such_files_are_simulated_on_other_networks(folded):
    plan, path = folded
    assert simulate_file(path).timeline.makespan == plan.timeline.makespan
    faster = simulate_file(path, interface_bandwidth_gbps=400).timeline
    assert faster.makespan < plan.timeline.makespan
    whole = simulate_file(path, topology="fattree", simulator="flexnet")  # simulates all tasks
    assert len(whole.timeline.finish) == plan.taskgraph.n_tasks


def test_a_file_of_another_time_is_warned_of(folded):
    _, path = folded
    document = json.loads(path.read_text())
    document["timeline"]["makespan"] *= 2
    path.write_text(json.dumps(document))
    with pytest.warns(UserWarning, match="which this version simulates as"):
        read_plan(Host.discover(), path)


@pytest.mark.parametrize(
    ("runs", "words"),
    [
        ([[0, 1]], "expected pairs of a count"),
        ([[1]], "expected pairs of a count"),
        (7, "expected pairs of a count"),
        ([[1 << 40, 1]], "more than 134,217,728 values"),
    ],
)
def test_bad_runs_are_refused_in_one_line(folded, runs, words):
    _, path = folded
    document = json.loads(path.read_text())
    document["cluster"]["device_speed"] = {"runs": runs}
    with pytest.raises(Exception, match=rf"\$\.cluster\.device_speed\.runs: {words}"):
        Json().read(json.dumps(document).encode(), "plan.json")


def test_a_strategy_without_operators_is_refused_in_one_line(folded):
    _, path = folded
    document = json.loads(path.read_text())
    operators = document["strategy"]["stages"][0]["operators"]
    operators[-1] += 1  # which is in another stage
    with pytest.raises(Exception, match=r"plan.json: \$\.strategy: strategy: "):
        Json().read(json.dumps(document).encode(), "plan.json")


def test_long_lists_of_equal_values_are_packed():
    document = {"a": [[1.0] * 2000, list(range(2000))], "b": {"c": ["H100"] * 4096}, "d": [1, 1], "e": []}
    short = packed(document)
    assert short["a"][0] == {"runs": [[2000, 1.0]]}
    assert short["b"]["c"] == {"runs": [[4096, "H100"]]}
    assert unpacked(short, "$") == document
