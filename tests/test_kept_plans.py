"""The plan that is written is the plan that is reported: what is constructed is kept, and what is faster stands beside.

A fast network makes data parallelism faster, as simulated, than what HPGO and HiDup construct; so these cases tell
whether their plans are kept.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from topoplan import Candidate, Host, PlacedStrategy, Placement, Search, State, TopoplanError, Trial
from topoplan.plugin.components import Kind
from topoplan_command_sensitivity.provenance import experiment_of
from topoplan_command_sweep.results import plan_batch_size
from topoplan_command_sweep.table import sweep_table
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import experiment_from_toml
from topoplan_engine.exporting import read_plan
from topoplan_engine.interrupt import Stop
from topoplan_engine.search.bests import Keep
from topoplan_engine.search.driver import SearchRun
from topoplan_engine.search.setup import set_up_search
from topoplan_studies.measure import measure
from topoplan_studies.notes import notes
from topoplan_studies.prices import default_prices
from topoplan_studies.results import network_results
from topoplan_studies.runspecs import RunSpec
from topoplan_studies.study import study_from

FAST = ("--servers", "4", "--interface-bandwidth-gbps", "400")
HPGO = ("alexnet", "--batch-size", "256", *FAST, "-s", "hpgo")
HIDUP = ("vit-switch", "-o", "world-size=4", "-o", "layers=2", *FAST, "-s", "hidup")


@pytest.fixture(scope="module")
def host():
    return Host.discover()


class Planner(Search):
    """Proposes strategies once."""

    def __init__(self, candidates):
        self.candidates = candidates

    def ask(self):
        asked, self.candidates = self.candidates, []
        return asked

    def report(self, strategy):
        return {"parts": [placement.parts for placement in strategy.placements]}


class Watching(Planner):
    """A network searcher that proposes nothing, and notes what it is given."""

    def __init__(self):
        super().__init__([])
        self.given = []

    def adopt(self, trial):
        self.given.append(trial)


class Prices:
    """Says what each strategy costs."""

    def __init__(self, costs):
        self.costs, self.evaluations = costs, 0

    def price(self, candidate, wanted=0.0):
        self.evaluations += 1
        state = candidate.state()
        return Trial(state=state, cost=self.costs[state.strategy.key], demand=lambda: None)


def searched(costs, *, keep, comparison=None):
    """Run a search from strategy 0 past the others, of these costs; return run, strategies and a network searcher."""
    strategies = [PlacedStrategy((Placement((1,), [device]),)) for device in range(len(costs))]
    candidates = [
        Candidate(base=State(one, None), comparison="something else" if number == comparison else "")
        for number, one in enumerate(strategies[1:], 1)
    ]
    prices = Prices({one.key: cost for one, cost in zip(strategies, costs, strict=True)})
    watching = Watching()
    searchers = [("strategy", Planner(candidates)), ("network", watching)]
    made = SearchRun(
        prices, State(strategies[0], None), searchers, keep=Keep(constructing={0: "planner"}, constructed=keep)
    )
    made.advance(100, Stop())
    return made, strategies, watching


def test_the_best_constructed_plan_is_kept_and_the_network_follows_it():
    made, strategies, watching = searched([1.0, 4.0, 2.0, 3.0], keep=True)
    assert made.best.state.strategy is strategies[2]
    assert [trial.cost for trial in watching.given] == [1.0, 2.0]
    shortlist, aside = made.shortlist()
    assert [one.cost for one in shortlist] == [4.0, 3.0, 2.0]
    assert {one.origin.name for one in shortlist} == {"constructed by planner"}
    assert shortlist[-1].origin.report == {"parts": [1]}
    assert (aside.cost, aside.origin.name) == (1.0, "initial strategy")
    assert [(evaluations, cost) for evaluations, _, cost in made.history] == [(1.0, 1.0), (4.0, 2.0)]


def test_the_fastest_is_kept_where_users_want_it():
    made, strategies, watching = searched([1.0, 4.0, 2.0, 3.0], keep=False)
    assert made.best.state.strategy is strategies[0]
    assert [trial.cost for trial in watching.given] == [1.0]
    shortlist, aside = made.shortlist()
    assert [one.origin.name for one in shortlist] == ["initial strategy"]
    assert (aside.cost, aside.origin.name) == (2.0, "constructed by planner")


def test_a_constructed_plan_that_is_almost_the_fastest_is_on_the_shortlist():
    made, _, _ = searched([1.0, 1.06, 1.04, 1.03], keep=False)
    assert [(one.cost, one.origin.name) for one in made.shortlist()[0]] == [
        (1.03, "constructed by planner"),
        (1.0, "initial strategy"),
    ]
    assert [one.cost for one in searched([1.0, 1.06], keep=False)[0].shortlist()[0]] == [1.0]


def test_what_is_there_for_comparison_is_not_kept():
    made, strategies, _ = searched([5.0, 4.0, 2.0, 3.0], keep=True, comparison=2)
    assert made.best.state.strategy is strategies[3]
    _, aside = made.shortlist()
    assert (aside.cost, aside.origin.name) == (2.0, "something else")


def test_what_cannot_be_simulated_is_not_kept():
    made, strategies, _ = searched([5.0, float("inf")], keep=True)
    assert made.best.state.strategy is strategies[0]
    assert made.shortlist()[1] is None


@pytest.mark.by_day(1)
@pytest.mark.parametrize("words", [HPGO, HIDUP], ids=["hpgo", "hidup"])
def test_what_is_written_is_what_is_reported(run, host, words):
    exports = ("-x", "json=p.json", "-x", "flatbuffer=p.fbuf")
    exports = (*exports, "-x", "dtensor=p.dtensor") if "hidup" in words else exports
    status, out, err = run("optimize", *words, *exports, "--json")
    assert status == 0, err
    found, name = json.loads(out), words[-1]
    assert found["plan"] == f"constructed by {name}"
    assert found["planners_figures_are_of"] == "this plan"
    beside = found["aside"]
    assert (beside["plan"], beside["choose"]) == ("initial strategy", "--keep fastest")
    assert beside["iteration_time_s"] == found["initial_iteration_time_s"] < found["iteration_time_s"]
    assert found["speedup"] == pytest.approx(found["initial_iteration_time_s"] / found["iteration_time_s"])
    for file, simulator in (("p.json", []), ("p.fbuf", ["--simulator", "fluid:transport=wire"])):
        again = json.loads(run("simulate", file, *simulator, "--json")[1])
        assert again["iteration_time_s"] == pytest.approx(found["iteration_time_s"], rel=1e-6), file
        assert again["tasks"] == found["tasks"]
    strategy = json.loads(run("optimize", *words, "--budget", "0", "--strategy", "p.json", "--json")[1])
    assert strategy["initial_iteration_time_s"] == pytest.approx(found["iteration_time_s"], rel=1e-9)
    if name == "hidup":
        exporter = host.make(Kind.EXPORTER, "dtensor", {})
        assert exporter.write(read_plan(host, Path("p.json"))) == Path("p.dtensor").read_bytes()

    status, out, _ = run("optimize", *words, "--keep", "fastest", "--json", "-x", "json=q.json")
    fastest = json.loads(out)
    assert fastest["plan"] == "initial strategy"
    assert fastest["iteration_time_s"] == beside["iteration_time_s"]
    assert (fastest["aside"]["plan"], fastest["aside"]["choose"]) == (found["plan"], "--keep constructed")
    assert fastest["aside"]["iteration_time_s"] == found["iteration_time_s"]
    assert fastest["planners_figures_are_of"] == found["plan"]
    assert fastest["planners"] == found["planners"]
    again = json.loads(run("simulate", "q.json", "--json")[1])
    assert again["iteration_time_s"] == pytest.approx(fastest["iteration_time_s"], rel=1e-6)


def test_the_table_names_the_plan_and_the_one_beside_it(run):
    out = run("optimize", *HPGO, "--details")[1]
    assert "constructed by hpgo" in out
    assert "beside it: initial strategy" in out
    assert "--keep fastest takes it" in out
    assert "hpgo's own: speedup" in out
    assert "figures of hpgo" not in out
    out = run("optimize", *HPGO, "--keep", "fastest", "--details")[1]
    assert "beside it: constructed by hpgo" in out
    assert "of another plan: constructed by hpgo" in out


def test_a_file_says_what_is_kept(tmp_path, host):
    (tmp_path / "e.toml").write_text(
        'searcher = "hpgo"\n[model]\nuse = "alexnet"\n[run]\nbatch-size = 256\nkeep = "fastest"\n'
        "[cluster]\nservers = 4\ninterface-bandwidth-gbps = 400\n"
    )
    experiment = experiment_from_toml(tmp_path / "e.toml")
    outcome = optimize(experiment, host=host)
    assert outcome.origin.name == "initial strategy"
    assert experiment_of(outcome.plan, "plan").run == experiment.run
    with pytest.raises(TopoplanError, match="run: keep"):
        experiment_from_toml(tmp_path / "e.toml", ['run.keep="best"'])


def test_a_local_search_beside_a_planner_keeps_the_fastest(host):
    cluster = ClusterOptions(servers=4, interface_bandwidth_gbps=400.0)
    run = RunOptions(batch_size=256, budget=20)
    both = Experiment(model="alexnet", cluster=cluster, searchers=["hpgo", "mcmc"], run=run)
    assert not set_up_search(host, both).keep.constructed
    outcome = optimize(both, host=host)
    assert outcome.seconds <= outcome.initial_seconds
    assert outcome.aside.entry.origin.name == "constructed by hpgo"
    assert outcome.plan.provenance["reports_are_of"] == "constructed by hpgo"


def two_chains(host, workers):
    return optimize(
        Experiment(
            model="vit-switch:world-size=8,layers=2",
            cluster=ClusterOptions(servers=8, interface_bandwidth_gbps=400.0),
            topology="topoopt",
            searchers=["hidup:signatures=derived", "relink"],
            run=RunOptions(budget=20, chains=2, workers=workers),
        ),
        host=host,
    )


@pytest.mark.slow
def test_chains_keep_what_is_constructed(host):
    one = two_chains(host, 1)
    assert one.origin.searcher == "hidup"
    assert one.plan.strategy.program is not None
    assert one.plan.provenance["reports"]["hidup"]["stages"] > 1
    assert one.aside is None or one.aside.draws.mean < one.seconds


@pytest.mark.slow
def test_chains_in_processes_keep_what_chains_in_one_keep(host):
    one, two = (two_chains(host, workers) for workers in (1, 2))
    assert (two.seconds, two.plan.strategy, two.plan.fabric) == (one.seconds, one.plan.strategy, one.plan.fabric)


def experiment(searcher="hpgo", **run):
    cluster = ClusterOptions(servers=4, interface_bandwidth_gbps=400.0)
    return Experiment(model="alexnet", cluster=cluster, searchers=[searcher], run=RunOptions(batch_size=256, **run))


def test_a_sweep_says_of_which_plan_its_rows_are(host):
    single = optimize(experiment(), host=host)
    own = single.plan.provenance["reports"]["hpgo"]
    row = plan_batch_size(host, experiment())
    assert (row.plan, row.seconds) == ("constructed by hpgo", single.seconds)
    assert (row.split, row.speedup) == (own["split"], own["speedup"])
    assert row.simulated_speedup == own["one_device_s"] / single.seconds
    assert (row.aside, row.aside_seconds) == ("initial strategy", single.aside.draws.mean)
    assert sweep_table([row]).headers[-5:] == [
        "best hybrid, as planned",
        "as simulated",
        "plan",
        "iteration",
        "beside it",
    ]
    cells = [own["split"], f"{row.seconds * 1e3:.2f} ms", f"initial strategy: {row.aside_seconds * 1e3:.2f} ms"]
    assert sweep_table([row]).cells(row)[-3:] == cells
    fastest = plan_batch_size(host, experiment(keep="fastest"))
    assert (fastest.plan, fastest.split, fastest.speedup) == ("initial strategy", None, None)
    assert (fastest.seconds, fastest.aside_seconds) == (row.aside_seconds, row.seconds)
    assert sweep_table([fastest]).cells(fastest)[-3] == "initial strategy"


def test_a_comparison_says_of_which_plan_its_rows_are(host):
    constructed, fastest = (measure(host, experiment(keep=keep)) for keep in ("constructed", "fastest"))
    assert (constructed["plan"], fastest["plan"]) == ("constructed by hpgo", "initial strategy")
    assert constructed["aside"] == {"plan": "initial strategy", "iteration_time_s": fastest["iteration_time_s"]}
    assert fastest["iteration_time_s"] == fastest["initial_iteration_time_s"] < constructed["iteration_time_s"]
    cell = RunSpec(model="A", network="switch", settings={}, experiment=experiment())
    (row,) = network_results([cell], [constructed], default_prices())
    told = f"A on switch, seed 0: constructed by hpgo; initial strategy: {fastest['iteration_time_s'] * 1e3:.4g} ms"
    assert told in notes([row], default_prices())
    document = {"model": [{"use": "alexnet"}], "network": [{"use": "bigswitch"}], "keep": "fastest", "draws": 3}
    study = study_from(document, "f", "f.toml")
    assert (study.run.keep, study.run.draws) == ("fastest", 3)
    with pytest.raises(TopoplanError, match=r"f.toml: keep"):
        study_from({**document, "keep": "best"}, "f", "f.toml")
