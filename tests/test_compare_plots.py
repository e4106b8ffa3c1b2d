"""What ``topoplan compare`` draws."""

from __future__ import annotations

import re
import tomllib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from topoplan import Host
from topoplan_engine.executors import Processes
from topoplan_samples.long_tail import at_night
from topoplan_studies.command import run_study
from topoplan_studies.plot import pareto_front, plot
from topoplan_studies.study import study_from

BARS = """
budget = 0
[cluster]
servers = 4
[[model]]
use = "dlrm"
arch-embedding-size = "1000-1000"
batch-size = 64
[[network]]
use = "topoopt"
[[network]]
use = "fattree"
[[network]]
use = "bigswitch"
"""


def report_of(text, runs):
    study = study_from(tomllib.loads(text), "small", "small.toml")
    return run_study(
        study, Host.discover(), prices=None, catalogue=False, measures=None, runs=runs, executor=Processes()
    )


@pytest.mark.slow
def test_the_plot_has_a_point_for_every_result(finished, tmp_path):
    report = report_of((tmp_path / "small.toml").read_text(), tmp_path / ".topoplan-runs")
    (axes,) = plot(report).axes
    assert axes.get_title() == "D"
    assert axes.get_yscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["10", "100"]
    lines = {line.get_label(): line.get_ydata().tolist() for line in axes.lines}
    assert set(lines) == {"panel", "tree"}
    for network, times in lines.items():
        assert times == [result.time.median * 1e3 for result in report.results if result.network == network]


def test_networks_at_one_place_have_bars_and_stand_beside_their_costs(tmp_path):
    report = report_of(BARS, tmp_path / "runs")
    bars, costs = plot(report).axes
    assert (costs.get_title(), costs.get_xlabel()) == ("dlrm: over cost", "network and hosts (USD)")
    results = {result.network: result for result in report.results}
    heights = {container.get_label(): container.patches[0].get_height() for container in bars.containers}
    assert heights == {name: result.time.median * 1e3 for name, result in results.items()}
    points = [tuple(dots.get_offsets().tolist()[0]) for dots in costs.collections]
    assert points == [(result.total_cost, result.time.median * 1e3) for result in results.values()]
    (front,) = costs.lines
    assert front.get_xdata().tolist() == [result.total_cost for result in pareto_front(report.results)]


def drawn(values):
    """Draw two networks over a setting; return the axes, with everything in its place."""

    def result(network, value):
        time = SimpleNamespace(median=2.0 / value, least=1.0 / value, most=3.0 / value)
        return SimpleNamespace(model="D", label=network, settings={"batch-size": value}, time=time, cost=0.0)

    study = SimpleNamespace(title="Many", vary={"batch-size": values}, labels=["panel", "tree"])
    results = [result(network, value) for value in values for network in study.labels]
    figure = plot(SimpleNamespace(study=study, results=results))
    figure.draw_without_rendering()
    (axes,) = figure.axes
    return axes


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("values", "least"),
    [
        ([32, 64, 128, 256, 512], 5),
        ([2**k for k in range(5, 13)], 4),
        (range(1000, 3500, 10), 4),
        (range(1, 10_001), 4),
    ],
)
def test_labels_of_many_values_do_not_overlap(values, least):
    axes = drawn([float(value) for value in values])
    ticks = axes.get_xticks().tolist()
    texts = [label.get_text() for label in axes.get_xticklabels()]
    assert texts == [str(values[place]) for place in ticks]
    assert len(texts) >= least
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_seeds_at_many_values_are_a_band():
    few, many = drawn([1.0, 2.0]), drawn([float(value) for value in range(1, 251)])
    assert [type(each).__name__ for each in few.collections] == ["LineCollection"] * 2
    assert {line.get_marker() for line in few.lines} == {"o"}
    assert {line.get_marker() for line in many.lines} == {""}
    assert [len(line.get_xdata()) for line in many.lines] == [250, 250]
    (band, _) = many.collections
    edges = {(x, round(y, 9)) for x, y in band.get_paths()[0].vertices.tolist()}
    assert edges >= {(place, round(1e3 * size / (place + 1), 9)) for place in range(250) for size in (1.0, 3.0)}


@pytest.mark.parametrize("suffix", at_night(["svg", "pdf", "png"], "svg", "png"))
def test_a_plot_has_the_format_of_its_name_and_the_same_bytes_twice(run, finished, suffix):
    words = ("compare", "small.toml", "--json", "--plot")
    first, second = (run(*words, f"{name}.{suffix}") for name in "ab")
    assert first == second
    content = Path(f"a.{suffix}").read_bytes()
    assert content.startswith({"svg": b"<?xml", "pdf": b"%PDF", "png": b"\x89PNG"}[suffix])
    assert content == Path(f"b.{suffix}").read_bytes()
    if suffix == "svg":
        texts = set(re.findall(r">([^<>]+)</text>", content.decode()))
        assert {"panel", "tree", "D", "interface-bandwidth-gbps"} <= texts


def test_without_matplotlib_a_plot_is_refused_before_anything_runs(run, comparison, monkeypatch, tmp_path):
    monkeypatch.setattr("topoplan_engine.reporting.figures.find_spec", lambda name: None)
    status, out, err = run("compare", "small.toml", "--plot", "a.svg")
    assert (status, out) == (2, "")
    assert err == 'error: --plot a.svg: needs matplotlib (pip install "topoplan-command-compare[plot]")\n'
    assert not (tmp_path / ".topoplan-runs").exists()


def test_the_front_holds_what_nothing_beats_in_time_and_cost():
    def result(name, cost, seconds):
        return SimpleNamespace(network=name, total_cost=cost, time=SimpleNamespace(median=seconds))

    results = [
        *(result("dear", 9, 1.0), result("slow", 3, 5.0)),
        *(result("cheap", 1, 4.0), result("even", 9, 1.0), result("fast", 5, 2.0)),
    ]
    assert [one.network for one in pareto_front(results)] == ["cheap", "fast", "dear"]
