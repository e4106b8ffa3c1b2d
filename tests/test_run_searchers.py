"""Searchers that run on a problem from Python find what an experiment finds."""

from __future__ import annotations

import pytest

from topoplan import Cluster, Host, TopoplanError
from topoplan_engine import ClusterOptions, Experiment, RunOptions, build_cluster, optimize, problem_on, run_searchers

SEARCHERS = ("mcmc", "totientperm")
OPTIONS = ClusterOptions(servers=4, degree=2)


def test_the_search_is_that_of_the_experiment():
    host = Host.discover()
    cluster = build_cluster(OPTIONS, host)
    graph = host.make("frontend", "alexnet").build(64)
    costs = host.make("estimator", "roofline").build(graph, cluster)
    problem = problem_on(graph, cluster, costs, host.make("topology", "topoopt"))
    searchers = [host.make("searcher", name) for name in SEARCHERS]
    result = run_searchers(problem, searchers, host.make("simulator", "fluid"), budget=60, seed=3)
    options = RunOptions(batch_size=64, budget=60, seed=3)
    experiment = Experiment(model="alexnet", cluster=OPTIONS, topology="topoopt", searchers=SEARCHERS, run=options)
    of_experiment = optimize(experiment, host=host).result
    assert result.best_cost < result.initial_cost
    assert result.history[:, ::2].tolist() == of_experiment.history[:, ::2].tolist()  # but for seconds


def test_a_cluster_without_machines_says_what_makes_one_with_them():
    host = Host.discover()
    graph = host.make("frontend", "alexnet").build(64)
    with pytest.raises(TopoplanError, match=r"'A100-40': no such machine here \(topoplan_engine.build_cluster "):
        host.make("estimator", "roofline").build(graph, Cluster.uniform(n_hosts=4))
