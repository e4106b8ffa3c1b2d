"""What a notebook sees: options by name, values in a line, tables in HTML, data frames and figures."""

from __future__ import annotations

import sys
import types
import typing

import attrs
import pytest

import topoplan
from topoplan import Fabric, Host, OperatorGraph, TopoplanError, optimize
from topoplan_engine import ClusterOptions, Experiment, RunOptions, export, simulate_file
from topoplan_engine.keywords import Keywords
from topoplan_studies import compare


@pytest.fixture(scope="module")
def outcome():
    return optimize("alexnet", servers=4, batch_size=64, searchers="mcmc", budget=10)


def test_keywords_are_the_options_of_a_run_with_their_types():
    hints = typing.get_type_hints(Keywords)
    for cls in (ClusterOptions, RunOptions):
        for name, hint in typing.get_type_hints(cls).items():
            assert hints[name] == hint, name
    fields = {field.name for cls in (ClusterOptions, RunOptions) for field in attrs.fields(cls)}
    assert hints.keys() - fields == {"topology", "searchers", "estimator", "simulator"}


def test_an_option_that_is_misspelt_is_named():
    with pytest.raises(TopoplanError, match=r"no option 'server'.*'servers'"):
        optimize("alexnet", server=4)
    with pytest.raises(TopoplanError, match="'budget' beside an Experiment"):
        optimize(Experiment(model="alexnet"), budget=4)


def test_an_operator_graph_is_a_model(outcome):
    graph = outcome.plan.graph
    assert isinstance(graph, OperatorGraph)
    again = optimize(graph, servers=4, searchers="mcmc", budget=10)
    assert again.seconds == outcome.seconds
    host = Host.discover()
    of_a_host = [optimize(graph, host=host, servers=4, searchers="mcmc", budget=10).seconds for _ in range(2)]
    assert of_a_host == [outcome.seconds] * 2
    with pytest.raises(TopoplanError, match="built for a batch of 64, not 32"):
        optimize(graph, batch_size=32)


def test_values_print_in_a_line(outcome):
    plan = outcome.plan
    values = [plan, outcome, plan.taskgraph, plan.timeline, plan.fabric, plan.graph, plan.cluster, plan.strategy]
    for value in [*values, plan.memory]:
        assert len(repr(value)) <= 120
        assert "\n" not in repr(value)
    assert repr(plan).startswith("<Plan: alexnet on bigswitch, 4 devices, ")
    assert repr(plan.fabric).startswith("Fabric(name='bigswitch', n_hosts=4, n_switches=1")


def test_tables_are_html_and_names_are_escaped(outcome):
    assert "<th>iteration time</th>" in outcome._repr_html_()
    fabric = attrs.evolve(outcome.plan.fabric, name="<script>")
    assert isinstance(fabric, Fabric)
    text = attrs.evolve(outcome.plan, fabric=fabric)._repr_html_()
    assert "&lt;script&gt;" in text
    assert "<script>" not in text


def test_a_study_is_a_table(tmp_path):
    study = {
        "title": "<b> & co",
        "model": [{"use": "alexnet", "batch-size": 64}],
        "network": [{"name": "tree", "use": "fattree"}, {"name": "switch", "use": "bigswitch"}],
        "cluster": {"servers": 2},
        "searcher": ["mcmc"],
        "budget": 0,
    }
    report = compare(study, runs=tmp_path)
    assert repr(report) == "<StudyReport: <b> & co, 2 results>"
    text = report._repr_html_()
    assert text.startswith("<table><caption>&lt;b&gt; &amp; co</caption><tr><th>model</th>")
    assert text.count("<tr>") == 3


def test_a_data_frame_has_a_row_for_each_task_and_link(outcome, monkeypatch):
    monkeypatch.setitem(sys.modules, "polars", types.SimpleNamespace(DataFrame=dict))
    plan = outcome.plan
    tasks = plan.to_polars()
    assert {len(column) for column in tasks.values()} == {plan.taskgraph.n_tasks}
    assert tasks["operator"][0] == plan.taskgraph.op_names[plan.taskgraph.op[0]]
    assert {"forward", "backward", "all-reduce"} <= set(tasks["kind"])
    assert {len(column) for column in plan.to_polars("links").values()} == {plan.fabric.n_links}
    with pytest.raises(TopoplanError, match="no history of its search"):
        plan.to_polars("history")
    with pytest.raises(TopoplanError, match="must be one of tasks, links, history"):
        plan.to_polars("devices")


@pytest.mark.parametrize("package", ["pandas", "polars"])
def test_a_data_frame_of_the_real_package(outcome, package):
    pytest.importorskip(package)
    frame = getattr(outcome.plan, f"to_{package}")()
    assert len(frame) == outcome.plan.taskgraph.n_tasks
    assert frame["finish"].max() == outcome.plan.timeline.makespan


def test_a_missing_package_is_one_line(outcome, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(TopoplanError, match="pandas is not installed"):
        outcome.plan.to_pandas()


def test_a_plan_is_drawn(outcome, tmp_path):
    figure = outcome.plan.plot()
    devices, links, memory = figure.axes
    drawn = sum(len(bars.get_paths()) for bars in devices.collections)
    assert drawn == (outcome.plan.taskgraph.device >= 0).sum()
    assert len(links.patches) == outcome.plan.fabric.n_links
    assert memory.get_ylabel() == "GiB"
    figure.canvas.draw()
    for ticks in (devices.get_yticks(), links.get_xticks(), memory.get_xticks()):
        assert (ticks == ticks.round()).all()
    for panel in (devices, memory):
        assert panel.get_legend().get_window_extent().x0 >= panel.get_window_extent().x1
    with pytest.raises(TopoplanError, match="was not simulated"):
        attrs.evolve(outcome.plan, timeline=None).plot()


def test_a_plan_is_exported_and_simulated_again(outcome, tmp_path):
    export(outcome.plan, "json", tmp_path / "plan.json")
    assert simulate_file(tmp_path / "plan.json").timeline.makespan == outcome.plan.timeline.makespan


def test_public_functions_are_reached_from_topoplan():
    assert topoplan.optimize is optimize
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        topoplan.optimise  # noqa: B018


def test_bars_of_many_devices_touch_each_other():
    """Gaps thinner than a pixel made stripes of a few rows."""
    from topoplan import optimize

    outcome = optimize("alexnet", servers=8, gpus_per_server=8, budget=0)
    devices, _, memory = outcome.plan.plot().axes
    bars = [path.get_extents() for bars in devices.collections for path in bars.get_paths()]
    assert {round(bar.height, 9) for bar in bars} == {1.0}
    assert {round(bar.get_width(), 9) for bar in memory.patches} == {1.0}
