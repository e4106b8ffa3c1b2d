"""Tasks of micro-batches take what their size takes, by hand: overheads and the traffic of weights do not shrink."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster, MicroBatch
from topoplan.model.machine import HostModel
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.lowering import Lowering
from topoplan_engine.scaling import scaled_costs
from topoplan_estimator_roofline import Roofline
from topoplan_machine_nvidia import DEVICES
from topoplan_operators import GraphBuilder
from topoplan_pipeline_planning.stages import staged_strategy
from topoplan_samples.problems import star_problem
from topoplan_searcher_pipeline import DapplePipeline
from topoplan_searcher_pipeline.plans import Pipeline, strategy_of
from topoplan_searcher_pipeline.search import plan_pipelines

BATCH, WIDTH, BANDWIDTH, OVERHEAD = 256, 1024, 1555e9, 50e-6
OPTIONS = {"compute_efficiency": 1.0, "memory_efficiency": 1.0, "kernel_overhead_us": 50.0}


def hosts(count, bandwidth=1e15):
    machines = {device.name.lower(): HostModel(device=device) for device in DEVICES}
    cluster = Cluster.uniform(n_hosts=count, latency=0.0, interface_bandwidth=bandwidth, interfaces=1)
    return attrs.evolve(cluster, machines=machines)


def residual(blocks=4):
    """Return layers with residual connections: each is a product, an activation, and the sum with its input."""
    b = GraphBuilder("residual", BATCH)
    x = b.linear(b.input((WIDTH,)), WIDTH)
    for _ in range(blocks):
        x = b.add(b.linear(b.relu(x), WIDTH), x)
    return b.build()


def seconds_of(kind, samples):
    """Seconds of a forward pass on an A100 in fp32: each is bound by memory, and starts one kernel."""
    activations = samples * WIDTH * 4
    moved = {"linear": 2 * activations + WIDTH * WIDTH * 4 + WIDTH * 4, "relu": 2 * activations, "add": 3 * activations}
    flops = 2 * samples * WIDTH * WIDTH if kind == "linear" else 0
    return max(moved[kind] / BANDWIDTH, flops / 19.5e12) + OVERHEAD


def pipeline(graph, count, devices=((0,), (1,)), kind="1f1b"):
    half = len(graph.operators) // 2
    operators = [list(range(half)), list(range(half, len(graph.operators)))]
    return staged_strategy(graph, zip(operators, devices, strict=True), count, kind)


@pytest.mark.parametrize("count", [1, 4, 16, 256])
@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "zero-bubble"])
def test_tasks_of_pipelines(count, kind):
    graph, cluster = residual(), hosts(2)
    tasks = Lowering(graph, cluster, Roofline(**OPTIONS).build(graph, cluster)).lower(pipeline(graph, count, kind=kind))
    forward = np.flatnonzero(tasks.kind == TaskKind.FORWARD)
    wanted = [seconds_of(graph.operators[op].kind, BATCH // count) for op in tasks.op[forward].tolist()]
    np.testing.assert_allclose(tasks.seconds[forward], wanted, rtol=1e-3)  # but for the bytes of biases
    assert len(forward) == count * len(graph.operators)


def test_kernels_of_a_device_cannot_be_faster_than_their_overhead():
    """888 kernels of 50 us take 44.4 ms at least; the seconds of the batch, divided, were 0.99 ms."""
    graph, cluster = residual(36), hosts(2)
    tasks = Lowering(graph, cluster, Roofline(**OPTIONS).build(graph, cluster)).lower(pipeline(graph, 8))
    for device in (0, 1):
        own = tasks.device == device
        assert own.sum() >= 864
        assert tasks.seconds[own].min() >= OVERHEAD
        assert tasks.seconds[own].sum() >= own.sum() * OVERHEAD


def test_a_residual_add_of_one_sample_is_all_overhead():
    graph, cluster = residual(), hosts(1)
    costs = Roofline(**OPTIONS).build(graph, cluster)
    add = next(op for op, operator in enumerate(graph.operators) if operator.kind == "add")
    whole = costs.price(add, graph.operators[add].sample_cut(1), np.zeros(1, np.int32))
    one = costs.price_micro_batch(
        add, graph.operators[add].sample_cut(1), np.zeros(1, np.int32), MicroBatch.of(graph.operators[add], BATCH)
    )
    assert whole.forward[0] == pytest.approx(3 * BATCH * WIDTH * 4 / BANDWIDTH + OVERHEAD)
    assert one.forward[0] == pytest.approx(3 * WIDTH * 4 / BANDWIDTH + OVERHEAD)
    assert one.forward[0] * BATCH / whole.forward[0] > 200


def test_factors_scale_micro_batches_too():
    graph, cluster = residual(), hosts(2)
    costs = Roofline(**OPTIONS).build(graph, cluster)
    faster = Lowering(graph, cluster, scaled_costs(costs, np.full(len(graph.operators), 0.5))).lower(pipeline(graph, 4))
    plain = Lowering(graph, cluster, costs).lower(pipeline(graph, 4))
    np.testing.assert_allclose(faster.seconds, plain.seconds * 0.5)


@pytest.mark.parametrize("count", [1, 2, 8, 32])
def test_planned_seconds_are_those_of_the_tasks(count):
    graph = residual(2)
    cluster = hosts(4)
    problem = star_problem(graph, cluster, Roofline(**OPTIONS).build(graph, cluster))
    planner = plan_pipelines(DapplePipeline(), problem).planner
    cut = planner.columns.n_cuts // 2
    stages = Pipeline((0, cut), ((1, 1, 0, 0), (0, 0, 1, 1)))
    plan = planner.plan(stages, "gpipe", count)
    tasks = Lowering(graph, cluster, problem.costs).lower(strategy_of(plan, graph, planner.columns, planner.machine))
    costs = planner.costs_of(stages, count)
    for stage, device in ((0, 0), (1, 2)):
        for kind, planned in ((TaskKind.FORWARD, costs.forward), (TaskKind.BACKWARD, costs.backward)):
            own = (tasks.device == device) & (tasks.kind == kind)
            assert planned[stage] == pytest.approx(tasks.seconds[own].sum(), rel=1e-12)
    assert plan.seconds >= max(tasks.seconds[tasks.device == device].sum() for device in (0, 2))


def test_the_planner_chooses_how_many_micro_batches():
    """The most are not the best: 64 of them pay 64 overheads, so that pipelines of fewer are planned, too."""
    graph, cluster = residual(10), hosts(4, bandwidth=1e10)
    costs = Roofline().build(graph, cluster)
    shortlist = plan_pipelines(DapplePipeline(), star_problem(graph, cluster, costs, 1e10), stop=False)
    baselines = [plan for plans in shortlist.named.values() for plan in plans]
    assert shortlist.plans[0].seconds <= min(plan.seconds for plan in baselines)
    planner, best = shortlist.planner, shortlist.plans[0]
    others = [planner.plan(best.pipeline, best.kind, count) for count in planner.micro_batches]
    assert best.seconds == min(plan.seconds for plan in others if plan is not None)
    assert best.micro_batches < max(planner.micro_batches)
