"""One evaluation of DLRM on 128 servers behind one switch: lower a changed strategy, simulate it.

    .venv/bin/python -m pytest benchmarks/test_evaluation.py --benchmark-only

To beat: 30 ms with `fluid` and 60 ms with `flexnet`; the original C++ takes 260 to 400 ms.  One evaluation
changes one operator, as a search step does.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from topoplan import Candidate, ClusterOptions, Host, State
from topoplan.evaluate import Evaluator
from topoplan.experiment import build_cluster
from topoplan.problem import Problem
from topoplan.space import Space


def evaluator_of(preset, servers, simulator, estimator="roofline"):
    """Return an evaluator and the initial state on one switch."""
    host = Host.discover()
    frontend, options = host.make("frontend", "dlrm", {"preset": preset, "dialect": "flexnet"})
    graph = frontend.build(options, None)
    cluster = build_cluster(ClusterOptions(servers=servers, big_gpu=4, inter_gpu_bandwidth_gbps=200.0))
    component, options = host.make("estimator", estimator)
    costs = component.build(options, graph, cluster)
    topology, options = host.make("topology", "bigswitch")
    from topoplan import TopologyContext

    fabric = topology.build(options, TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
    problem = Problem(
        graph=graph, cluster=cluster, costs=costs, space=Space(graph, cluster, costs), topology="bigswitch",
        build_fabric=lambda demand, rng: fabric, reconfigurable=False,
    )  # fmt: skip
    component, options = host.make("simulator", simulator)
    return Evaluator(problem, component.build(options), "ignore"), State(problem.space.initial(), fabric)


@pytest.mark.parametrize("simulator", ["fluid", "flexnet"])
def test_one_evaluation_of_dlrm_on_128_servers(benchmark, simulator):
    evaluator, state = evaluator_of("dlrm128", 128, simulator)
    rng = np.random.default_rng(0)
    space, count = evaluator.problem.space, len(state.strategy.placements)
    dense = [op for op in range(count) if evaluator.problem.graph.operators[op].kind == "linear"]
    candidates = []
    for op in itertools.islice(itertools.cycle(dense), 64):
        candidates.append(Candidate(base=state, placements={op: space.random_placement(op, rng)}))
    following = itertools.cycle(candidates)
    evaluator.price(Candidate(base=state))
    benchmark.pedantic(lambda: evaluator.price(next(following)), rounds=40, warmup_rounds=4)


@pytest.mark.parametrize("simulator", ["fluid", "flexnet"])
def test_the_initial_strategy_of_dlrm_on_128_servers(benchmark, simulator):
    evaluator, state = evaluator_of("dlrm128", 128, simulator)
    benchmark.pedantic(lambda: evaluator.price(Candidate(base=state)), rounds=20, warmup_rounds=2)
