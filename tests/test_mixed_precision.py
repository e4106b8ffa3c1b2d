"""Mixed precision in whole runs: every searcher, the command line, and experiments in TOML."""

from __future__ import annotations

import json

import numpy as np
import pytest

from topoplan import TopoplanError
from topoplan.plugin.host import Host
from topoplan_engine import Choice, ClusterOptions, Experiment, RunOptions, optimize
from topoplan_samples.long_tail import at_night

MODEL = Choice("dlrm", {"arch-embedding-size": "1000-1000", "arch-mlp-bot": "64-64-64", "arch-mlp-top": "192-64-1"})
CLUSTER = ClusterOptions(servers=4, interface_bandwidth_gbps=1.0)


def experiment(searcher="mcmc", precision=None, *, budget=0, **given):
    """The small recommendation model on four servers."""
    run = {"precision_speedup": given.pop("speedup", None), **given.pop("run", {})}
    return Experiment(
        model=MODEL,
        cluster=CLUSTER,
        topology="topoopt",
        searchers=[searcher],
        run=RunOptions(batch_size=64, budget=budget, precision=precision, **run),
        **given,
    )


def test_one_strategy_sends_half_the_bytes_in_less_time():
    single, mixed = (optimize(experiment(precision=precision)).plan for precision in ("fp32", "bf16"))
    assert single.graph.precision == "fp32"
    assert mixed.graph.precision == "bf16"
    assert single.strategy == mixed.strategy
    assert single.taskgraph.size.sum() > 0
    assert (2 * mixed.taskgraph.size == single.taskgraph.size).all()
    compute = single.taskgraph.device >= 0
    assert (mixed.taskgraph.seconds[compute] <= single.taskgraph.seconds[compute]).all()
    assert mixed.timeline.makespan < single.timeline.makespan


@pytest.mark.parametrize(
    "searcher",
    at_night([component.name for component in Host.discover().components("searcher")], "auto", "pipeline", "spmd"),
)
def test_every_searcher_plans_in_it(searcher):
    if searcher == "exhaustive":
        searcher = "exhaustive:tied=true"  # the whole space is too large
    outcome = optimize(experiment(searcher, "bf16", budget=12, run={"keep": "fastest"}))
    assert outcome.plan.graph.precision == "bf16"
    assert outcome.plan.provenance["precision"] == "bf16"
    assert outcome.seconds <= outcome.initial_seconds


def test_provenance_says_nothing_of_a_precision_that_no_user_said():
    assert "precision" not in optimize(experiment()).plan.provenance


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_roofline_takes_the_rate_of_the_precision(precision):
    """The same as the estimator's own option for rates, and half the bytes: bound by either."""
    options = {"kernel-overhead-us": 0.0, "memory-efficiency": 1.0, "compute-efficiency": 1e-6}
    by_rate = [
        optimize(experiment(precision=p, estimator=Choice("roofline", options))).plan for p in ("fp32", precision)
    ]
    compute = by_rate[0].taskgraph.seconds > 0
    ratio = by_rate[0].taskgraph.seconds[compute] / by_rate[1].taskgraph.seconds[compute]
    layers = ratio[ratio > 2.1]
    assert len(layers)
    assert np.allclose(layers, 312 / 19.5)


def test_times_of_an_estimator_without_rates_are_divided_by_the_stated_factor():
    plans = [
        optimize(experiment(precision=p, estimator="hidup", speedup=s)).plan for p, s in (("fp32", None), ("fp16", 4.0))
    ]
    single, mixed = (plan.taskgraph.seconds for plan in plans)
    assert np.allclose(single, 4 * mixed)


def test_a_missing_factor_is_that_of_the_device_and_said(run):
    words = ("optimize", "vit-switch", "-o", "world-size=4", "-o", "layers=2", "--devices", "[4]", "--device", "v100")
    words += ("-e", "hidup", "-s", "hidup")
    single = json.loads(run(*words, "--json")[1])
    mixed = json.loads(run(*words, "--precision", "fp16", "--json")[1])
    assert 2 < single["iteration_time_s"] / mixed["iteration_time_s"] < 125 / 15.7
    assert "8.0 times as fast as in fp32" in mixed["assumptions"]["notes"]["fp16"]
    assert "fp16" not in single["assumptions"]["notes"]
    code, out, _ = run(*words, "--precision", "fp16", "--details")
    assert code == 0
    assert "assumed fp16" in out


def test_a_missing_factor_is_named_where_nothing_is_known():
    with pytest.raises(TopoplanError, match=r"estimator profile are those of fp32.*--precision-speedup"):
        optimize(
            Experiment(
                model=Choice("torchgraph", {"profile": "vgg-19"}),
                cluster=CLUSTER,
                topology="bigswitch",
                searchers=["random"],
                run=RunOptions(budget=0, precision="fp16"),
            )
        )


def test_a_device_without_the_precision_is_named(run):
    code, _, err = run("optimize", "alexnet", "--device", "V100", "--precision", "bf16", "--budget", "0")
    assert code == 2
    assert "V100 has no bf16 (it has fp32, fp16)" in err


def test_command_line_and_toml_say_the_same(run, tmp_path):
    (tmp_path / "run.toml").write_text(
        '[model]\nuse = "alexnet"\n[cluster]\nservers = 2\n[run]\nbudget = 0\nbatch-size = 64\nprecision = "fp16"\n'
    )
    words = ("--servers", "2", "--budget", "0", "--batch-size", "64", "--precision", "fp16")
    results = [json.loads(run(*args, "--json")[1]) for args in (("optimize", "alexnet", *words), ("run", "run.toml"))]
    assert results[0]["iteration_time_s"] == results[1]["iteration_time_s"]


def test_a_precision_that_does_not_exist_is_named(run):
    code, _, err = run("optimize", "alexnet", "--precision", "fp4")
    assert code == 2
    assert "precision: 'fp4' is none of fp32, fp16, bf16, fp8" in err


@pytest.mark.slow
def test_networks_are_compared_in_it(run, tmp_path):
    """From the command line and from a figure alike; the page and the JSON say in what."""
    words = ("--networks", "bigswitch", "--servers", "2", "--budget", "0", "--batch-size", "64", "--seeds", "0")
    (tmp_path / "figure.toml").write_text(
        'budget = 0\nprecision = "fp16"\nmodel = [{ use = "alexnet", batch-size = 64 }]\n'
        'network = [{ use = "bigswitch" }]\n[cluster]\nservers = 2\n'
    )
    reports = {}
    for name, given in {
        "fp32": ("alexnet", *words),
        "fp16": ("alexnet", *words, "--precision", "fp16", "--write", "page.md"),
        "figure": ("figure.toml",),
    }.items():
        code, out, err = run("compare", *given, "--json")
        assert code == 0, err
        document = json.loads(out)
        reports[name] = (document["precision"], document["rows"][0]["iteration_time_s"]["median"])
    assert reports["figure"] == reports["fp16"]
    assert (reports["fp32"][0], reports["fp16"][0]) == (None, "fp16")  # as each model's file says, or fp32
    assert reports["fp16"][1] < reports["fp32"][1]
    assert "Models are in fp16." in (tmp_path / "page.md").read_text()
    code, _, err = run("compare", "alexnet", *words, "--precision", "fp4")
    assert code == 2
    assert "precision: 'fp4' is none of fp32, fp16, bf16, fp8" in err


def test_batch_sizes_are_swept_in_it(run):
    words = ("alexnet", "--batch-sizes", "64", "--servers", "2", "-s", "mcmc", "--budget", "0", "--jobs", "1", "--json")
    rows = [json.loads(run("sweep", *words, "--precision", p)[1])["rows"][0] for p in ("fp32", "fp16")]
    assert rows[1]["seconds"] < rows[0]["seconds"]
    code, _, err = run("sweep", "alexnet", "--precision", "fp4")
    assert code == 2
    assert "precision: 'fp4' is none of fp32, fp16, bf16, fp8" in err
