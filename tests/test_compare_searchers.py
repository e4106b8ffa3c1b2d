"""``topoplan compare --searchers``: the same problems, seeds and budgets for each, and what is told of bad input."""

from __future__ import annotations

import csv
import json
import sys

import pytest

SMALL = ["compare", "alexnet", "--servers", "2", "--batch-size", "8", "--budget", "12"]
STUDY = """
title = "Two machines"
budget = 4
seeds = "1..2"
searchers = ["mcmc", "random+relink"]

[cluster]
servers = 4

[[machine]]
name = "one interface"
degree = 1

[[machine]]
name = "slow"
degree = 2
interface-bandwidth-gbps = 10

[[model]]
use = "alexnet"
batch-size = 64

[[network]]
use = "bigswitch"

[[network]]
use = "topoopt"
"""


def test_searchers_are_compared_with_what_may_be_said_of_them(run, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    words = [*SMALL, "--searchers", "mcmc,random,mcmc:alpha=40", "--seeds", "1..4,6,8"]
    status, out, err = run(*words)
    assert (status, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    for text in (
        "vs mcmc",
        "mcmc:alpha=40",
        "over all problems",
        "Wilcoxon's signed-rank test against mcmc",
        "Holm's correction",
    ):
        assert text in " ".join(out.split())
    document = json.loads(run(*words, "--json")[1])
    assert document["seeds"] == [1, 2, 3, 4, 6, 8]
    (problem,) = document["problems"]
    mcmc, random, hot = problem["searchers"]
    assert [one["searcher"] for one in (mcmc, random, hot)] == ["mcmc", "random", "mcmc:alpha=40"]
    for one in (mcmc, random, hot):
        times = sorted(run_["iteration_time_s"] for run_ in one["runs"])
        assert one["iteration_time_s"]["median"] == pytest.approx((times[2] + times[3]) / 2)
        assert one["interval"]["coverage"] == pytest.approx(1 - 2 / 64)
        curve = one["against_evaluations"]
        assert curve["evaluations"][0] == 1
        assert curve["median_s"] == sorted(curve["median_s"], reverse=True)
        assert all(run_["evaluations"] == 13 for run_ in one["runs"])
    assert [(pair["first"], pair["second"]) for pair in problem["pairs"]] == [
        ("mcmc", "random"),
        ("mcmc", "mcmc:alpha=40"),
        ("random", "mcmc:alpha=40"),
    ]
    kept = {path.name: path.read_bytes() for path in (tmp_path / ".topoplan-runs").glob("*.json")}
    assert len(kept) == 18  # and the second command took them from there


@pytest.mark.slow
def test_searchers_are_written_as_rows_as_tables_and_into_a_page(run, tmp_path):
    pytest.importorskip("matplotlib")
    words = [*SMALL, "--searchers", "mcmc,mcmc:alpha=40", "--seeds", "1..2"]
    assert run(*words, "--table", "runs.csv", "--write", "page.md")[0] == 0
    assert run(*words, "--table", "table.tex")[0] == 0
    assert run(*words, "--table", "table.md")[0] == 0
    with (tmp_path / "runs.csv").open(newline="", encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["searcher"], row["seed"]) for row in rows] == [
        (searcher, seed) for searcher in ("mcmc", "mcmc:alpha=40") for seed in "12"
    ]
    assert all(float(row["iteration_time_s"]) > 0 and row["problem"] == "alexnet" for row in rows)
    table, page = (tmp_path / "table.md").read_text(), (tmp_path / "page.md").read_text()
    assert table.startswith("| problem | searcher | median |")
    assert table.strip() in page
    assert "topoplan compare alexnet" in page
    assert "2 seeds cannot show a significant difference: the least p is 0.5; 6 seeds at least can" in page
    lines = (tmp_path / "table.tex").read_text().splitlines()
    assert lines[0] == r"\begin{tabular}{llrrrrr}"
    assert lines[-1] == r"\end{tabular}"
    assert all(line.count("&") == 6 for line in lines if line.endswith(r"\\"))


@pytest.mark.slow
def test_a_figure_has_both_axes(run, tmp_path):
    pytest.importorskip("matplotlib")
    assert run(*SMALL, "--searchers", "mcmc,random", "--seeds", "1..2", "--plot", "curves.svg")[0] == 0
    text = (tmp_path / "curves.svg").read_text()
    assert ">evaluations<" in text
    assert ">seconds<" in text


@pytest.mark.slow
def test_a_study_takes_networks_machines_and_searchers_that_take_turns(run, tmp_path):
    (tmp_path / "study.toml").write_text(STUDY)
    status, out, err = run("compare", "study.toml", "--json")
    assert (status, err) == (0, "")
    problems = json.loads(out)["problems"]
    assert [problem["problem"] for problem in problems] == [
        f"alexnet on {network}, machine {machine}"
        for machine in ("one interface", "slow")
        for network in ("bigswitch", "topoopt")
    ]
    kept = [json.loads(path.read_text())["inputs"] for path in (tmp_path / ".topoplan-runs").glob("*.json")]
    names = {tuple(c["name"] for c in one["components"] if c["kind"] == "searcher") for one in kept}
    assert names == {("mcmc",), ("random",), ("random", "relink")}
    assert {(one["cluster"]["degree"], one["cluster"]["interface_bandwidth_gbps"]) for one in kept} == {
        (1, 100),
        (2, 10),
    }


def test_benchmark_problems_are_compared_by_name(run):
    words = ["compare", "--problems", "vgg-19-pipeline,alexnet-switch", "--searchers", "random,mcmc", "--budget", "2"]
    status, out, err = run(*words, "--json")
    assert (status, err) == (0, "")
    assert [problem["problem"] for problem in json.loads(out)["problems"]] == ["vgg-19-pipeline", "alexnet-switch"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            [*SMALL, "--searchers", "mcmc", "-s", "relink"],
            "-s: searchers that take turns; with --searchers, join them: --searchers mcmc+relink",
        ),
        ([*SMALL, "--searchers", "mcmc,mcmc"], "searchers: 'mcmc' is there twice"),
        ([*SMALL, "--searchers", "mcmc++relink"], "nothing stands before or behind a plus sign"),
        ([*SMALL, "--searchers", "mcmcc"], "no searcher named 'mcmcc'; did you mean 'mcmc'"),
        ([*SMALL, "--searchers", "relink"], "cannot be rewired and needs a searcher of strategies"),
        ([*SMALL, "--searchers", "mcmc", "--seeds", "4..1"], "seeds: '4..1' is no range"),
        ([*SMALL, "--searchers", "mcmc", "--seeds", "1..3,2"], "seeds: [1, 2, 3, 2] must be one or more different"),
        (["compare"], "compare: needs a MODEL, a study FILE.toml, or --problems standard"),
        (["compare", "alexnet", "--problems", "standard"], "--problems: beside alexnet (give models, or problems)"),
        (["compare", "--problems", "alexnet-swich", "--searchers", "mcmc"], "no benchmark problem 'alexnet-swich'"),
        (["compare", "--problems", "standard", "-n", "ocs"], "--networks: beside --problems"),
        (["compare", "--problems", "standard", "--servers", "3"], "cluster: has no place beside problems"),
        (
            ["compare", "alexnet", "ncf", "-o", "classes=3", "-n", "ocs"],
            "-o: options of models (write alexnet:classes=3)",
        ),
        (["compare", "study.toml", "ncf"], "study.toml: a study is compared by itself"),
        ([*SMALL, "--searchers", "mcmc", "--table", "page.doc"], "page.doc: is none of .csv, .parquet, .md, .tex"),
        ([*SMALL, "--searchers", "mcmc", "--best", "nowhere"], "nowhere/best.csv: is not there"),
        (
            [*SMALL, "-n", "ocs", "--best", "nowhere"],
            "--best nowhere: is for searchers on benchmark problems (--problems)",
        ),
    ],
)
def test_what_is_wrong_is_one_line(run, words, message):
    status, out, err = run(*words)
    assert (status, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_without_scipy_no_run_starts(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy", None)
    status, out, err = run(*SMALL, "--searchers", "mcmc")
    assert (status, out) == (2, "")
    assert err == "error: comparing searchers needs scipy: pip install 'topoplan-studies[statistics]'\n"
