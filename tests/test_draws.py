"""A plan's time is the mean over draws of equal paths: of problems, of what chooses, and of what is reported."""

from __future__ import annotations

import json

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Host, PlacedStrategy, State
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.interrupt import Stop
from topoplan_engine.search.bests import Origin, ShortlistEntry
from topoplan_engine.search.draws import Draws, judge, mean_trial
from topoplan_engine.search.setup import set_up_search
from topoplan_engine.search.starting import first_state
from topoplan_engine.simulation.base import Simulation
from topoplan_samples.long_tail import at_night
from topoplan_studies.measure import measure
from topoplan_studies.notes import notes
from topoplan_studies.prices import default_prices
from topoplan_studies.results import network_results
from topoplan_studies.runspecs import RunSpec

#: Seeds that neither a search nor the choice of a plan has seen.
FRESH = range(90_000, 90_040)


@pytest.fixture(scope="module")
def host():
    return Host.discover()


def job(model, topology, servers, gbps, batch, *searchers, degree=4, **run):
    return Experiment(
        model=model,
        topology=topology,
        cluster=ClusterOptions(servers=servers, degree=degree, interface_bandwidth_gbps=gbps),
        searchers=searchers or ("mcmc",),
        run=RunOptions(**{"batch_size": batch, "budget": 60, "seed": 1, **run}),
    )


PROBLEMS = {
    "alexnet on topoopt": job("alexnet", "topoopt", 8, 25.0, 512, "mcmc", "totientperm"),
    "ncf on topoopt": job("ncf", "topoopt", 8, 25.0, 4096),
    "ncf on fattree": job("ncf", "fattree", 16, 25.0, 4096),
    "candle-uno on topoopt": job("candle-uno", "topoopt", 8, 25.0, 512),
    "vgg16 on topoopt": job("vgg16", "topoopt", 6, 10.0, 96),
    "moe on topoopt": job("moe", "topoopt", 8, 25.0, 512, degree=3),
    "moe on random": job("moe", "random", 8, 25.0, 512, degree=3),
    "a program on topoopt": job(
        "vit-switch:world-size=8,layers=2", "topoopt", 8, 25.0, None, "hidup:signatures=derived", degree=3
    ),
}

#: Problems that run on each save: one for each way to propose what is drawn, and a network without a topology's rings.
QUICK = ("alexnet on topoopt", "ncf on topoopt", "moe on random", "a program on topoopt")

SIXTEEN = {
    f"{name} on 16 hosts": job(model, "topoopt", 16, 25.0, batch, "mcmc", "totientperm", budget=500)
    for name, model, batch in (
        ("dlrm16", "dlrm:preset=dlrm16", 1024),
        ("candle-uno", "candle-uno", 4096),
        ("ncf", "ncf", 16384),
        ("alexnet", "alexnet", 1024),
    )
}


def means(host, experiment, *plans):
    evaluator = set_up_search(host, experiment).evaluator
    return [evaluator.makespans(State(plan.strategy, plan.fabric), FRESH).mean() for plan in plans]


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    "experiment",
    at_night([*PROBLEMS.values(), *SIXTEEN.values()], *(PROBLEMS[name] for name in QUICK)),
    ids=[*PROBLEMS, *SIXTEEN],
)
def test_the_reported_time_is_that_of_fresh_draws_and_no_plan_is_slower_than_its_start(host, experiment):
    outcome = optimize(experiment, host=host)
    draws = set_up_search(host, experiment).evaluator.draws(State(outcome.plan.strategy, outcome.plan.fabric))
    assert len(outcome.draws.seeds) >= 8 if draws else not outcome.draws.seeds
    plan, start = means(host, experiment, outcome.plan, outcome.initial)
    assert outcome.seconds == pytest.approx(plan, rel=0.01)
    assert outcome.seconds <= outcome.initial_seconds
    assert plan <= start * 1.005


class Drawn:
    """An evaluator of states with known times: the search's draw, the mean and the deviation of others."""

    first_draw = 0

    def __init__(self, times, tasks):
        self.times, self.tasks, self.asked = times, tasks, []

    def n_tasks(self, state):
        return self.tasks

    def draws(self, state):
        return self.times[state][1] is not None

    def makespans(self, state, seeds):
        self.asked.append((state, tuple(seeds)))
        _, mean, deviation = self.times[state]
        noise = np.array([np.random.default_rng(seed).standard_normal() for seed in seeds])
        return mean + deviation * noise

    def penalty(self, strategy):
        return 0.0

    def fits(self, strategy):
        return True


def judged_plans(times, *, constructed=False, aside=None, stop=None, tasks=1000, evaluations=1000):
    """Judge states, the first of which is the initial one and the last the best of the search."""
    states = [State(PlacedStrategy(()), None) for _ in times]
    evaluator = Drawn(dict(zip(states, times, strict=True)), tasks)
    origin = Origin("constructed by x", "x") if constructed else Origin("found by search")
    shortlist = [ShortlistEntry(state=s, cost=t[0], origin=origin) for s, t in zip(states, times, strict=True)]
    initial = attrs.evolve(shortlist[0], origin=Origin("initial strategy"))
    arguments = (evaluator, shortlist[1:] or [initial], initial, initial if aside else None)
    choice = judge(*arguments, constructed=constructed, stop=stop or Stop(), evaluations=evaluations)
    return choice, states, evaluator


def test_a_lucky_draw_does_not_win():
    choice, states, evaluator = judged_plans([(1.0, 1.0, 0.01), (0.95, 0.98, 0.01), (0.90, 1.02, 0.02)])
    assert choice.plan.entry.state is states[1]
    assert choice.plan.draws.mean == pytest.approx(0.98, rel=0.01)
    choosing = {seed for _, seeds in evaluator.asked[:3] for seed in seeds}
    assert len(choosing) == 8
    assert not choosing & set(choice.plan.draws.seeds)  # what is reported did not choose
    assert choice.initial.draws.seeds[:8] == choice.plan.draws.seeds[:8]


def test_the_start_wins_where_nothing_is_better_in_the_mean():
    choice, states, _ = judged_plans([(1.0, 1.0, 0.01), (0.95, 1.03, 0.03), (0.90, 1.05, 0.05)])
    assert choice.plan.entry.state is states[0]
    assert choice.initial is choice.plan


def test_a_constructed_plan_is_kept_and_the_faster_start_said():
    times = [(1.0, 1.0, 0.01), (1.2, 1.30, 0.03), (1.1, 1.4, 0.05)]
    choice, states, _ = judged_plans(times, constructed=True, aside=True)
    assert choice.plan.entry.state is states[1]
    assert choice.aside is choice.initial
    assert choice.aside.entry.origin.name == "initial strategy"


def test_as_many_draws_are_taken_as_the_mean_needs():
    def count(deviation):
        draws = judged_plans([(1.0, 1.0, deviation)])[0].plan.draws
        assert draws.error <= 0.0025 * draws.mean or len(draws.seeds) == 256
        return len(draws.seeds)

    counts = [count(deviation) for deviation in (0.0, 0.01, 0.02, 0.5)]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (8, 256)


@pytest.mark.parametrize(
    ("tasks", "evaluations", "choosing", "reported"),
    [
        (1000, 1000, 8, 256),
        (1000, 6, 8, 136),
        (30_000, 1000, 5, 24),
        (30_000, 6, 2, 6),
        (1 << 22, 1000, 2, 2),
    ],
)
def test_large_task_graphs_are_simulated_under_fewer_draws(tasks, evaluations, choosing, reported):
    times = [(1.0, 1.0, 0.5), (0.95, 0.9, 0.5), (0.9, 0.95, 0.5)]
    choice, _, evaluator = judged_plans(times, tasks=tasks, evaluations=evaluations)
    assert {len(seeds) for _, seeds in evaluator.asked[:3]} == {choosing}
    assert len(choice.plan.draws.seeds) == len(choice.initial.draws.seeds) == reported
    assert choice.plan.draws.error > 0.0025 * choice.plan.draws.mean  # and the plan says so


def test_a_state_that_is_clearly_slower_does_not_choose_and_is_simulated_under_few_draws():
    times = [(9.0, 9.0, 0.5), (0.95, 0.9, 0.5), (0.9, 0.95, 0.5)]
    choice, states, evaluator = judged_plans(times, tasks=30_000)
    assert [state for state, _ in evaluator.asked[:3]] == [states[2], states[1], choice.plan.entry.state]
    assert (len(choice.plan.draws.seeds), len(choice.initial.draws.seeds)) == (24, 4)


def test_nothing_is_priced_again_where_nothing_is_drawn():
    choice, states, evaluator = judged_plans([(1.0, None, None), (0.9, None, None), (0.8, None, None)])
    assert choice.plan.entry.state is states[2]
    assert (choice.plan.draws.mean, choice.plan.draws.seeds, choice.plan.draws.nearest) == (0.8, (), None)
    assert evaluator.asked == []


def test_one_who_wants_to_stop_waits_for_no_more_draws_than_there_must_be():
    stop = Stop()
    stop.wanted = True
    choice, states, evaluator = judged_plans([(1.0, 1.0, 0.5), (0.9, 0.9, 0.5), (0.8, 0.8, 0.5)], stop=stop)
    assert choice.plan.entry.state in (states[0], states[2])
    assert [len(seeds) for _, seeds in evaluator.asked] == [8, 8, 8]


def test_the_draw_that_is_written_is_nearest_to_the_mean():
    draws = Draws(seconds=[1.0, 2.0, 4.0], seeds=(5, 6, 7))
    assert (draws.mean, draws.nearest) == (pytest.approx(7 / 3), 6)
    assert draws.error == pytest.approx(draws.deviation / np.sqrt(3))


@pytest.mark.slow
def test_a_candidate_may_cost_the_mean_of_several_draws(host):
    one, mean_of_four = (job("ncf", "topoopt", 8, 25.0, 4096, draws=draws, budget=10) for draws in (1, 4))
    assembly = set_up_search(host, mean_of_four)
    state = first_state(assembly.evaluator, assembly.strategy, assembly.rng())
    mean = assembly.evaluator.makespans(state, range(4)).mean()
    assert assembly.evaluator.price(Candidate(base=state)).cost == pytest.approx(mean, rel=1e-12)
    single = set_up_search(host, one).evaluator.price(Candidate(base=state)).cost
    assert single == assembly.evaluator.makespans(state, [0])[0] != mean
    for factor, cost in ((0.99, float("inf")), (1.01, mean)):
        evaluator = set_up_search(host, mean_of_four).evaluator
        assert evaluator.price(Candidate(base=state, cutoff_seconds=mean * factor)).cost == pytest.approx(
            cost, rel=1e-12
        )
    outcome = optimize(mean_of_four, host=host)
    assert outcome.plan.provenance["draws"] == 4
    costs = set_up_search(host, mean_of_four).evaluator.makespans(outcome.result.best, range(4))
    assert outcome.result.best_cost == pytest.approx(costs.mean(), rel=1e-12)


def test_a_switch_draws_nothing(host, monkeypatch):
    def never(*given):
        raise AssertionError("asked for draws")

    monkeypatch.setattr(Simulation, "makespans", never)
    monkeypatch.setattr(Simulation, "draws", never)
    outcome = optimize(job("alexnet", "bigswitch", 4, 25.0, 64, draws=4), host=host)
    assert outcome.seconds == outcome.plan.timeline.makespan
    assert "iteration_time" not in outcome.plan.provenance


@pytest.mark.slow
@pytest.mark.parametrize("more", at_night([{}, {"chains": 2}], {}), ids=["one chain", "two chains"])
def test_what_is_written_is_one_of_the_draws(host, more):
    experiment = job("ncf", "topoopt", 8, 25.0, 4096, **{"budget": 10, **more})
    outcome = optimize(experiment, host=host)
    times = outcome.plan.provenance["iteration_time"]
    assert times["mean_s"] == outcome.seconds == outcome.draws.seconds.mean()
    assert times["draws"] == len(outcome.draws.seeds)
    evaluator = set_up_search(host, experiment).evaluator
    seconds = evaluator.makespans(State(outcome.plan.strategy, outcome.plan.fabric), [times["timeline_seed"]])[0]
    assert outcome.plan.timeline.makespan == seconds
    assert abs(seconds - outcome.seconds) == np.abs(outcome.draws.seconds - outcome.seconds).min()
    repeat = optimize(experiment, host=host)
    assert (repeat.draws, repeat.plan.provenance) == (outcome.draws, outcome.plan.provenance)


@pytest.mark.slow
def test_tables_and_json_tell_the_spread(run):
    words = ("ncf", "--batch-size", "4096", "-t", "topoopt", "--servers", "8", "--budget", "10")
    words = (*words, "--interface-bandwidth-gbps", "25", "-s", "mcmc")
    report = json.loads(run("optimize", *words, "--json", "-x", "json=p.json", "-x", "flatbuffer=p.fbuf")[1])
    draws = report["draws"]
    assert draws["count"] >= 8
    assert draws["standard_error_s"] == pytest.approx(draws["standard_deviation_s"] / draws["count"] ** 0.5)
    assert report["iteration_time_s"] != draws["written_iteration_time_s"]
    replay = json.loads(run("simulate", "p.json", "--json")[1])
    assert replay["iteration_time_s"] == draws["written_iteration_time_s"]
    seed = f"fluid:transport=wire,seed={draws['written_seed']}"
    replay = json.loads(run("simulate", "p.fbuf", "--simulator", seed, "--json")[1])
    assert replay["iteration_time_s"] == pytest.approx(draws["written_iteration_time_s"], rel=1e-3)
    out = run("optimize", *words, "--details")[1]
    assert f"over {draws['count']} draws of equal paths" in out
    assert f"(seed {draws['written_seed']})" in out


@pytest.mark.slow
def test_comparisons_tell_means_and_other_networks_are_priced_by_means(host):
    experiment = job("ncf", "topoopt", 8, 25.0, 4096, budget=10)
    outcome, result = optimize(experiment, host=host), measure(host, experiment)
    assert result["iteration_time_s"] == outcome.seconds
    assert (result["draws"], result["standard_deviation_s"]) == (
        len(outcome.draws.seeds),
        outcome.draws.deviation,
    )
    cell = RunSpec(model="N", network="panel", settings={}, experiment=experiment)
    said = notes(network_results([cell], [result], default_prices()), default_prices())
    means = f"times are means over up to {result['draws']} draws of equal paths"
    assert sum(note.startswith(means) for note in said) == 1
    trial = mean_trial(set_up_search(host, experiment).evaluator, State(outcome.plan.strategy, outcome.plan.fabric))
    assert trial.cost == pytest.approx(outcome.seconds, rel=1e-12)


def test_commands_that_read_a_plan_report_the_draws_of_its_search(run):
    words = "moe --batch-size 64 -t random --servers 8 --degree 3 -s mcmc --budget 0 -x json=plan.json --json"
    report = json.loads(run("optimize", *words.split())[1])
    draws = json.loads(run("simulate", "plan.json", "--json")[1])["draws"]
    assert draws["count"] == report["draws"]["count"]
    assert draws["mean_iteration_time_s"] == report["iteration_time_s"]
    assert draws["standard_deviation_s"] == report["draws"]["standard_deviation_s"]
    for command in ("simulate", "show"):
        said = " ".join(run(command, "plan.json")[1].replace("│", " ").split())
        assert f"over {draws['count']} draws of equal paths" in said
        assert "in the draw that is shown" in said


def test_draws_that_a_search_has_taken_are_taken_again_however_large_the_task_graph_is(run, monkeypatch):
    """A task graph of 0.4 million tasks had the mean of two draws when it was planned, and one of them when read."""
    words = "moe --batch-size 64 -t random --servers 8 --degree 3 -s mcmc --budget 0 -x json=plan.json --json"
    report = json.loads(run("optimize", *words.split())[1])
    monkeypatch.setattr("topoplan_engine.simulation.draws.MOST_TASKS", 1)
    draws = json.loads(run("simulate", "plan.json", "--json")[1])["draws"]
    assert (draws["count"], draws["mean_iteration_time_s"]) == (report["draws"]["count"], report["iteration_time_s"])
