"""One evaluation of DLRM on 128 servers behind one switch: lower a changed strategy, simulate it.

    .venv/bin/python -m pytest benchmarks/test_evaluation.py --benchmark-only --benchmark-timer=time.process_time

To beat: 30 ms with `fluid` and 60 ms with `flexnet`; `search_speed.py` compares with FlexNet itself.  One evaluation
changes one operator, as a search step does; nothing is remembered of costs, so every round lowers and simulates.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from topoplan import Host, TopologyContext
from topoplan_engine import ClusterOptions
from topoplan_engine.experiment import build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.search.space import Space


def evaluation_of(preset, servers, simulator):
    """Return a function that lowers and simulates a strategy, its space, and the initial strategy."""
    host = Host.discover()
    frontend = host.make("frontend", "dlrm", {"preset": preset, "dialect": "flexnet"})
    graph = frontend.build(None)
    cluster = build_cluster(
        ClusterOptions(servers=servers, degree=1, gpus_per_device=4, inter_gpu_bandwidth_gbps=200.0)
    )
    component = host.make("estimator", "roofline")
    costs = component.build(graph, cluster)
    topology = host.make("topology", "bigswitch")
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    fabric = topology.build(context)
    component = host.make("simulator", simulator)
    simulate, lowering, space = component.build(), Lowering(graph, cluster, costs), Space(graph, cluster, costs)

    def evaluate(strategy):
        return simulate.makespan(lowering.lower(strategy), fabric, cluster)

    return evaluate, space, space.initial()


@pytest.mark.parametrize("simulator", ["fluid", "flexnet"])
def test_one_evaluation_of_dlrm_on_128_servers(benchmark, simulator):
    evaluate, space, initial = evaluation_of("dlrm128", 128, simulator)
    rng = np.random.default_rng(0)
    dense = [op for op, operator in enumerate(space.graph.operators) if operator.kind == "linear"]
    changed = itertools.cycle([initial.with_changes({op: space.random_placement(op, rng)}) for op in dense])
    benchmark.pedantic(lambda: evaluate(next(changed)), rounds=40, warmup_rounds=4)


@pytest.mark.parametrize("simulator", ["fluid", "flexnet"])
def test_the_initial_strategy_of_dlrm_on_128_servers(benchmark, simulator):
    evaluate, _, initial = evaluation_of("dlrm128", 128, simulator)
    benchmark.pedantic(lambda: evaluate(initial), rounds=20, warmup_rounds=2)
