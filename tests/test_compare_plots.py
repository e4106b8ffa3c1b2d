"""What ``topoplan compare`` draws."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from topoplan import Host
from topoplan_engine.executors import Processes
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
    assert (costs.get_title(), costs.get_xlabel()) == ("dlrm: over cost", "cost (USD)")
    results = {result.network: result for result in report.results}
    heights = {container.get_label(): container.patches[0].get_height() for container in bars.containers}
    assert heights == {name: result.time.median * 1e3 for name, result in results.items()}
    points = [tuple(dots.get_offsets().tolist()[0]) for dots in costs.collections]
    assert points == [(result.cost, result.time.median * 1e3) for result in results.values()]
    (front,) = costs.lines
    assert front.get_xdata().tolist() == [result.cost for result in pareto_front(report.results)]


@pytest.mark.parametrize("suffix", ["svg", "pdf", "png"])
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
        return SimpleNamespace(network=name, cost=cost, time=SimpleNamespace(median=seconds))

    results = [
        *(result("dear", 9, 1.0), result("slow", 3, 5.0)),
        *(result("cheap", 1, 4.0), result("even", 9, 1.0), result("fast", 5, 2.0)),
    ]
    assert [one.network for one in pareto_front(results)] == ["cheap", "fast", "dear"]
