"""Strategy, fabric and routes searched together: saved plans, clusters of every shape, chains, bounds."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

from topoplan import Candidate, Host, TopoplanError
from topoplan.model.placement import Placement
from topoplan.search.protocol import Run
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.executors import Processes
from topoplan_engine.interrupt import Stop
from topoplan_engine.options import HostGroup
from topoplan_engine.search import islands as chains
from topoplan_engine.search.driver import SearchRun
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.limits import Limits
from topoplan_engine.search.setup import set_up_search
from topoplan_engine.search.starting import first_state
from topoplan_engine.search.whole_run import drive
from topoplan_samples.long_tail import at_night

#: Small tables and layers; most of the time is communication.
MODEL = (
    "dlrm:arch-sparse-feature-size=64,arch-embedding-size=5000-5000-5000,arch-mlp-bot=64-512-64,arch-mlp-top=512-512-1"
)
ALL = ["mcmc", "totientperm:every=5", "relink"]
TOGETHER = [word for name in ALL for word in ("-s", name)]


@pytest.fixture(scope="module")
def host():
    return Host.discover()


def job(batch=None, searchers=ALL, topology="topoopt", seed=1, budget=60, run=None, **cluster):
    cluster = {"servers": 8, "interface_bandwidth_gbps": 5.0, **cluster}
    options = ClusterOptions(**cluster)
    run = RunOptions(budget=budget, seed=seed, batch_size=batch or 16 * options.servers, **(run or {}))
    return Experiment(model=MODEL, cluster=options, topology=topology, searchers=searchers, run=run)


def check_outcome(outcome):
    fabric, cluster = outcome.plan.fabric, outcome.plan.cluster
    for side in (fabric.link_src, fabric.link_dst):
        assert (np.bincount(side, fabric.link_count, cluster.n_hosts) <= cluster.interfaces).all()
    if outcome.draws.seeds:  # the one that is nearest to the mean
        written = outcome.draws.seconds[outcome.draws.seeds.index(outcome.draws.nearest)]
        assert outcome.plan.timeline.makespan == written
        assert abs(written - outcome.seconds) <= np.abs(outcome.draws.seconds - outcome.seconds).min()
    else:
        assert outcome.plan.timeline.makespan + outcome.penalty == outcome.result.best_cost
        assert outcome.seconds == outcome.plan.timeline.makespan
    assert outcome.seconds <= outcome.initial_seconds
    assert outcome.fabric_bound <= outcome.plan.timeline.makespan * (1 + 1e-12)


CLUSTERS = {
    "eight hosts": {},
    "a prime number": {"servers": 7},
    "another prime": {"servers": 13, "degree": 6},
    "odd degree": {"degree": 3},
    "odd degree, odd number": {"servers": 5, "degree": 3},
    "one interface": {"degree": 1},
    "one interface, two hosts": {"servers": 2, "degree": 1},
    "one host": {"servers": 1},
    "several devices a host": {"servers": 4, "gpus_per_server": 2, "degree": 2},
    "hosts of unequal devices": {"hosts": (HostGroup(servers=3), HostGroup(gpus_per_server=3)), "degree": 3},
    "unequal degrees": {"hosts": (HostGroup(servers=3, degree=2), HostGroup(servers=3, degree=5))},
    "some with one interface": {"hosts": (HostGroup(servers=2, degree=1), HostGroup(servers=4, degree=4))},
}


@pytest.mark.by_day(3)
@pytest.mark.parametrize("cluster", CLUSTERS.values(), ids=CLUSTERS)
@pytest.mark.parametrize("rules", at_night(["paper", "greedy"], "paper"))
def test_every_cluster_can_be_searched(host, cluster, rules):
    searchers = ["mcmc", f"totientperm:every=5,rules={rules}", "relink"]
    batch = 16 * (6 if "hosts" in cluster else cluster.get("servers", 8) * cluster.get("gpus_per_server", 1))
    check_outcome(optimize(job(batch, searchers, f"topoopt:rules={rules}", budget=30, **cluster), host=host))


def test_the_released_rules_say_what_they_cannot_wire(host):
    for cluster in ({"degree": 3}, {"degree": 1}, {"hosts": CLUSTERS["unequal degrees"]["hosts"]}):
        experiment = job(96, ["totientperm:rules=released"], "topoopt:rules=released", **cluster)
        with pytest.raises(TopoplanError, match="the same even number of interfaces at every host"):
            optimize(experiment, host=host)


@pytest.mark.slow
def test_groups_that_are_not_evenly_spaced_are_wired_for(host):
    assembly = set_up_search(host, job(48))
    graph = assembly.problem.graph
    dense = [op for op, operator in enumerate(graph.operators) if operator.kind == "linear"]
    strategy = assembly.strategy.with_changes(
        {op: Placement(graph.operators[op].sample_cut(3), [0, 1, 3]) for op in dense}
    )
    demand = assembly.evaluator.demand(strategy)
    groups = [demand.members(group).tolist() for group in range(demand.n_groups)]
    assert [0, 1, 3] in groups
    rng, searches = assembly.searches()
    run = Run(problem=assembly.problem, budget=60, seed=1, searchers=())
    network = drive(run, assembly.evaluator, strategy, searches[1:], rng)  # the strategy stays
    assert network.best.strategy is strategy
    assert network.best_cost <= network.initial_cost


@pytest.mark.slow  # plans that are stored are simulated by every run: tests/test_best_known_plans.py
@pytest.mark.parametrize("more", [[], ["--chains", "2"], ["-s", "totientperm:after=accepted"]], ids=str)
def test_a_saved_plan_takes_as_long_in_a_new_process(run, more):
    words = [
        "--servers",
        "8",
        "--interface-bandwidth-gbps",
        "5",
        "--budget",
        "80",
        "--seed",
        "3",
        "--batch-size",
        "128",
    ]
    name, _, options = MODEL.partition(":")
    words += [word for pair in options.split(",") for word in ("-o", pair)]
    searchers = ["-s", "mcmc", *more, "-s", "relink"] if more[:1] == ["-s"] else [*TOGETHER, *more]
    status, out, err = run("optimize", name, *words, "-t", "topoopt", *searchers, "-x", "json=plan.json", "--json")
    assert status == 0, err
    report = json.loads(out)
    assert report["iteration_time_s"] < report["initial_iteration_time_s"]
    assert report["fabric_lower_bound_s"] <= report["iteration_time_s"]
    above = report["iteration_time_s"] / report["fabric_lower_bound_s"] - 1
    assert report["above_fabric_lower_bound"] == pytest.approx(above)
    script = "from topoplan.cli import main; main(['simulate', 'plan.json', '--json'])"
    replay = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    draws = report["draws"] or {"written_iteration_time_s": report["iteration_time_s"], "standard_deviation_s": 0.0}
    seconds = draws["written_iteration_time_s"]
    assert json.loads(replay)["iteration_time_s"] == seconds  # to the last bit
    assert abs(seconds - report["iteration_time_s"]) <= draws["standard_deviation_s"]


@pytest.mark.slow
def test_the_table_tells_how_far_the_bound_is(run):
    words = ["dlrm", "-o", "preset=dlrm16", "--budget", "0", "--details"]
    assert "on any wiring" in run("optimize", *words, "-t", "topoopt")[1]
    assert "on any wiring" not in run("optimize", *words, "-t", "bigswitch")[1]
    assert "on any wiring" not in run("optimize", *words, "-t", "ocs")[1]  # rebuilt, it is no one wiring


@pytest.mark.slow
def test_a_local_search_goes_on_from_a_state(host):
    assembly = set_up_search(host, job())
    rng, searches = assembly.searches()
    search_run = SearchRun(assembly.evaluator, first_state(assembly.evaluator, assembly.strategy, rng), searches[:2])
    search_run.advance(60, Stop())
    run = Run(problem=assembly.problem, budget=60, seed=1, searchers=())
    after = drive(run, assembly.evaluator, search_run.best.state, assembly.searches(1)[1], np.random.default_rng(0))
    assert after.initial_cost == search_run.best.cost
    assert after.best_cost < search_run.best.cost


def summary(result):
    return (
        result.best_cost,
        result.initial_cost,
        result.evaluations,
        result.acceptance,
        result.history[:, ::2].tolist(),  # but for seconds
        result.best.strategy,
        result.best.fabric,
    )


@pytest.mark.slow
def test_chains_in_processes_find_what_chains_in_one_find(host):
    here, parallel = (chains.search(host, job(budget=100, run={"chains": 3, "workers": workers})) for workers in (1, 2))
    assert summary(here) == summary(parallel)
    assert here.evaluations == 100 + 3
    assert here.best_cost == here.history[-1][2] < here.initial_cost
    single = optimize(job(budget=34), host=host).result
    assert here.best_cost <= single.best_cost  # the first chain is that search, and takes over what is better


def test_chains_give_an_outcome_like_any_other(host):
    told = []
    outcome = optimize(
        job(budget=40, run={"chains": 2}), host=host, on_progress=lambda event, progress: told.append((event, progress))
    )
    check_outcome(outcome)
    assert outcome.plan.provenance["chains"] == 2
    assert told[-1][0] == "evaluated"
    assert told[-1][1].evaluations == outcome.result.evaluations == 42
    assert [p.best for e, p in told if e == "new_best"] == [cost for _, _, cost in outcome.result.history[1:]]
    assert "chains" not in optimize(job(budget=0), host=host).plan.provenance


def one_session(host, experiment):
    """Start a process with the first chain, which only prices its initial state."""
    arguments = [(experiment, None, [0], chains.Part(limits=Limits(budget=0)))]
    return Processes().sessions(host, "chains", chains._server, 1, lambda count: arguments, Stop())


def test_a_process_that_ends_early_is_an_error(host):
    with one_session(host, job(run={"chains": 2})) as [session]:
        session._process.kill()
        with pytest.raises(TopoplanError, match="chains: a worker process ended early"):
            chains.RemoteWorkers(session, Stop()).finish()


@pytest.mark.slow
def test_errors_of_other_processes_are_this_ones(host):
    with one_session(host, job(searchers=["mcmc", "unheard"])) as [session]:
        group = chains.RemoteWorkers(session, Stop())
        group.start({0: (0, float("inf"), None)})
        with pytest.raises(TopoplanError, match="unheard"):
            group.finish()


@pytest.mark.slow
def test_an_interrupt_keeps_what_chains_found(interrupted):
    name, _, options = MODEL.partition(":")
    words = [name, *(word for pair in options.split(",") for word in ("-o", pair)), "--servers", "8", "-t", "topoopt"]
    words += [*TOGETHER, "--batch-size", "128", "--budget", "10000000", "--chains", "2", "--workers", "2", "--json"]
    status, out, err = interrupted("optimize", *words)
    assert status == 130, err
    assert "Traceback" not in err
    assert json.loads(out)["interrupted"]


@pytest.mark.parametrize("count", [1, 2])
def test_patience_ends_a_search_that_finds_nothing(host, count):
    outcome = optimize(job(searchers=["random"], topology="bigswitch", budget=400, run={"patience": 0.05}), host=host)
    last = outcome.result.history[-1][0]
    assert outcome.result.evaluations == last + 20 < 400
    several = {"patience": 0.05, "chains": count}
    assert optimize(job(searchers=["random"], budget=400, run=several), host=host).result.evaluations < 400


def test_patience_is_a_share(run):
    for value in ("0", "1.5", "-1"):
        status, _, err = run("optimize", "dlrm", "--patience", value)
        assert status == 2
        assert "patience" in err
    assert run("optimize", "dlrm", "--chains", "0")[0] == 2


def test_a_state_that_was_passed_on_has_the_placements_of_its_new_problem(host):
    assembly = set_up_search(host, job())
    state = first_state(assembly.evaluator, assembly.strategy, assembly.searches()[0])
    copied = chains._interned(assembly.problem.space, pickle.loads(pickle.dumps(state)))
    assert copied.strategy == state.strategy
    assert copied.fabric == state.fabric
    assert all(a is b for a, b in zip(copied.strategy.placements, state.strategy.placements, strict=True))


@pytest.mark.slow
def test_no_chain_works_on_a_state_that_costs_other_than_was_said(host, monkeypatch):
    said = []
    adopt = SearchRun.adopt

    def watched(search_run, state, cost, origin):
        placed = not (state.strategy.program is not None)
        said.append((cost, search_run._evaluator.price(Candidate(base=state)).cost, placed))
        adopt(search_run, state, cost, origin)

    monkeypatch.setattr(SearchRun, "adopt", watched)
    programs = Experiment(
        model="vit-switch:world-size=8,layers=2",
        cluster=ClusterOptions(servers=8, interface_bandwidth_gbps=10.0),
        topology="topoopt",
        searchers=["hidup:signatures=derived", "relink"],
        run=RunOptions(budget=30, chains=2),
    )
    for experiment in (programs, job(budget=40, run={"chains": 2})):
        chains.search(host, experiment)
    assert {plain for _, _, plain in said} == {True, False}
    for cost, paid, _ in said:
        assert paid == cost


def test_a_network_that_follows_no_demand_asks_for_none(host, monkeypatch):
    # It is a matrix of all pairs of hosts: 64 GB for 65,536 of them.
    def demand(*_):
        raise AssertionError("asked")

    monkeypatch.setattr(Evaluator, "demand", demand)
    assert optimize(job(searchers=["mcmc"], topology="bigswitch", budget=3), host=host).fabric_bound is None
    with pytest.raises(AssertionError, match="asked"):
        optimize(job(searchers=["mcmc"], budget=3), host=host)
