"""Random models, clusters and prices that tests plan for."""

from __future__ import annotations

import numpy as np

from topoplan import (
    Cluster,
    CostFunction,
    PartCosts,
)
from topoplan.search.protocol import Run
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.whole_run import drive
from topoplan_samples.graphs import layer_graph
from topoplan_samples.problems import star_problem
from topoplan_searcher_pipeline import DapplePipeline
from topoplan_searcher_pipeline.search import PipelineSearch
from topoplan_simulator_fluid import Fluid


class Costs(CostFunction):
    """Seconds and bytes of whole operators, shared evenly by their parts and by micro-batches."""

    linear_in_samples = True

    def __init__(self, forward, backward, activations, kept):
        self.columns = forward, backward, activations, kept

    def supports(self, op, degrees):
        return True

    def price(self, op, degrees, devices):
        forward, backward, activations, kept = (float(column[op]) for column in self.columns)
        share = np.full(len(devices), 1.0 / len(devices))
        return PartCosts(
            forward=forward * share,
            backward=backward * share,
            memory=activations * share + kept,
            kept=np.full(len(devices), kept),
        )


def evaluator_of(problem):
    """Return what simulates strategies, and finds those infinitely slow that do not fit."""
    return Evaluator(problem, Fluid().build(), "limit")


def random_case(seed, layers=6, hosts=2, devices_per_host=2, batch=8, memory=None):
    """Return a problem: a chain, now and then with a jump, of uneven layers."""
    rng = np.random.default_rng(seed)
    edges = [(k, k + 1) for k in range(layers - 1)]
    if layers > 3 and rng.random() < 0.4:
        edges.append((int(rng.integers(0, layers - 3)), int(rng.integers(layers - 2, layers))))
    weights = (rng.random(layers) ** 3 * 4e6).astype(int)
    outputs = (rng.random(layers) ** 2 * 3e5).astype(int) + 1
    forward = rng.uniform(0.2, 2.0, layers) * 1e-3
    costs = Costs(forward, forward * rng.uniform(1.0, 3.0), batch * outputs * 1.0, 3.0 * weights)
    cluster = Cluster.uniform(
        n_hosts=hosts,
        devices_per_host=devices_per_host,
        interfaces=1,
        interface_bandwidth=1e9 * rng.uniform(0.2, 4.0),
        inside_bandwidth=2e10,
        latency=0.0,
        device_memory=memory or 1e12,
    )
    edges = sorted(edges, key=lambda edge: (edge[1], edge[0]))
    return switch_problem(layer_graph(edges, weights, outputs, batch), cluster, costs)


def switch_problem(graph, cluster, costs):
    """Return the problem on hosts around a switch, which they join with all interfaces as one link."""
    bandwidth = float((cluster.interfaces * cluster.interface_bandwidth)[0])
    return star_problem(graph, cluster, costs, bandwidth)


def solve(problem, **options):
    """Search as the driver does; return the result, the evaluator and the search."""
    evaluator, search = evaluator_of(problem), PipelineSearch(DapplePipeline(**options), problem)
    run = Run(problem=problem, budget=1000, seed=0, searchers=("pipeline",))
    result = drive(run, evaluator, problem.space.initial(), [("strategy", search)], np.random.default_rng(0))
    return result, evaluator, search
