"""Pipelines whose stages differ in layers, devices and programs: how they are divided, priced, built and found."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from topoplan import Host, optimize
from topoplan_engine import ClusterOptions, build_cluster, problem_on
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.stage_ties import tied_groups
from topoplan_estimator_roofline import Roofline
from topoplan_operators import GraphBuilder
from topoplan_pipeline_planning.stages import staged_strategy
from topoplan_searcher_stated.divided import DividedPlan, DividedPlans
from topoplan_searcher_stated.divided_search import divided_plans
from topoplan_searcher_stated.division import DeviceRow, MeshColumns, StageOfLayers, divisions
from topoplan_topology_bigswitch import BigSwitch

CLUSTER = build_cluster(ClusterOptions(servers=2, gpus_per_server=4, interface_bandwidth_gbps=100.0), Host.discover())


def uneven_chain(batch=64):
    """Eight matrices with activations, of which the last one is as much work as all others."""
    b = GraphBuilder("uneven", batch)
    x = b.input((512,))
    for _ in range(7):
        x = b.relu(b.linear(x, 512))
    b.linear(x, 7 * 512)
    return b.build()


def problem_of(graph):
    return problem_on(graph, CLUSTER, Roofline().build(graph, CLUSTER), BigSwitch())


def plans_of(graph):
    problem = problem_of(graph)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    return problem, fabric, DividedPlans(problem, fabric, "weights")


def by_samples(plans, layers, sizes):
    """Return stages of some layers on so many devices each, whose programs cut samples alone."""
    stages, place, device = [], 0, 0
    for count, size in zip(layers, sizes, strict=True):
        number = plans._mesh_number(plans._programs.on(np.arange(device, device + size))[0])
        stages.append(StageOfLayers(place, place + count, device, number))
        place, device = place + count, device + size
    return tuple(stages)


def whole_search(seconds, n_devices, sizes, micro_batches, memory, kept):
    """Return the least seconds of all ways to divide layers and devices, by trying each."""
    layers, best = len(seconds), math.inf
    for stages in range(1, min(layers, n_devices) + 1):
        for cuts in itertools.combinations(range(1, layers), stages - 1):
            bounds = [*itertools.pairwise([0, *cuts, layers])]
            for devices in itertools.product(sizes, repeat=stages):
                if sum(devices) != n_devices:
                    continue
                took = [sum(seconds[a:b]) / size for (a, b), size in zip(bounds, devices, strict=True)]
                full = [
                    (b - a) * kept / size * min(stages - k, micro_batches)
                    for k, ((a, b), size) in enumerate(zip(bounds, devices, strict=True))
                ]
                if max(full) <= memory:
                    best = min(best, sum(took) + (micro_batches - 1) * max(took))
    return best


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("memory", [math.inf, 3.0])
def test_the_dynamic_program_finds_what_a_search_of_all_divisions_finds(seed, memory):
    """Limits of the slowest stage are some percent apart, and so are the results."""
    rng = np.random.default_rng(seed)
    seconds, sizes, micro_batches, n_devices = rng.uniform(0.5, 3.0, 6), (1, 2, 4), 8, 4
    nothing = np.zeros(6)
    meshes = [
        MeshColumns(
            size, frozenset(range(0, n_devices, size)), seconds / size, nothing, nothing, np.full(6, 0.5 / size)
        )
        for size in sizes
    ]
    row = DeviceRow(n_devices, np.zeros(n_devices + 1), memory)
    found = divisions(meshes, row, micro_batches, nothing)[0]
    anywhere = [mesh._replace(starts=frozenset(range(n_devices))) for mesh in meshes]
    best = whole_search(seconds.tolist(), n_devices, sizes, micro_batches, memory, 0.5)
    assert best * (1 - 1e-9) <= found.seconds
    assert divisions(anywhere, row, micro_batches, nothing)[0].seconds <= 1.05 * best


def test_stages_of_unequal_size_are_what_placed_stages_are():
    """Programs that cut samples alone, and operators placed one by one, compute and send the same."""
    graph = uneven_chain()
    problem, fabric, plans = plans_of(graph)
    stages = by_samples(plans, (8, 6, 1), (2, 2, 4))
    strategy = plans.strategy(DividedPlan(stages, "1f1b", 8))
    members = [
        (np.arange(stage.first, stage.end).tolist(), range(stage.device, stage.device + size))
        for stage, size in zip(stages, (2, 2, 4), strict=True)
    ]
    placed = staged_strategy(graph, members, 8, "1f1b")
    lowering = Lowering(graph, CLUSTER, problem.costs)
    simulate = Host.discover().make("simulator", "fluid").build()
    seconds = [simulate.makespan(lowering.lower(each), fabric, CLUSTER, math.inf) for each in (strategy, placed)]
    assert [stage.mesh.n_devices for stage in strategy.stages] == [2, 2, 4]
    assert seconds[0] == pytest.approx(seconds[1], rel=0.02)


@pytest.mark.parametrize("schedule", ["1f1b", "1f1b-deep", "zb-h1"])
@pytest.mark.parametrize(("layers", "sizes"), [((8, 6, 1), (2, 2, 4)), ((10, 5), (4, 4)), ((6, 6, 2, 1), (1, 1, 2, 4))])
def test_estimates_are_near_the_simulator(schedule, layers, sizes):
    graph = uneven_chain()
    problem, fabric, plans = plans_of(graph)
    plan = DividedPlan(by_samples(plans, layers, sizes), schedule, 8)
    strategy = plans.strategy(plan)
    lowering = Lowering(graph, CLUSTER, problem.costs)
    simulate = Host.discover().make("simulator", "fluid").build()
    makespan = simulate.makespan(lowering.lower(strategy), fabric, CLUSTER, math.inf)
    assert 0.8 * makespan < plans.seconds([plan])[0] < 1.1 * makespan
    assert plans._known[plan][1] == pytest.approx(float(lowering.memory(strategy).max()), rel=0.02)


def test_programs_of_the_planning_kernel_are_among_those_of_stages():
    """A matrix of many outputs for few samples is cut by them, not by samples, whose gradients would be summed."""
    b = GraphBuilder("wide", 8)
    b.linear(b.linear(b.input((64,)), 65536), 64)
    _, _, plans = plans_of(b.build())
    cut = {rule.dim for mesh in plans._programs.on(np.arange(4)) for row in mesh.rules.rules for rule in row}
    samples = {mesh.rules.rules[0][0].dim for mesh in plans._programs.on(np.arange(4))[:1]}
    assert cut - samples


@pytest.mark.parametrize(("layers", "sizes", "said"), [((8, 7), (1, 1), False), ((8, 7), (1, 2), True)])
def test_stages_say_zero_where_one_of_them_shares(layers, sizes, said):
    _, _, plans = plans_of(uneven_chain())
    plan = DividedPlan(by_samples(plans, layers, sizes), "1f1b", 8, zero=1)
    assert ("zero=1" in plans.words(plan)) == said


def test_machines_of_unequal_hosts_have_no_such_plans():
    cluster = build_cluster(ClusterOptions(devices=(2, 6)), Host.discover())
    graph = uneven_chain()
    problem = problem_on(graph, cluster, Roofline().build(graph, cluster), BigSwitch())
    assert divided_plans(problem, problem.build_fabric(None, np.random.default_rng(0)), "weights") is None


def test_the_search_finds_stages_of_unequal_size():
    """One matrix is as much work as all seven before it: in stages of one device it leaves the others idle."""
    b = GraphBuilder("uneven", 3072)
    x = b.input((512,))
    for width in (*[2048] * 6, 512):
        x = b.relu(b.linear(x, width))
    graph = [b.linear(x, 55 * 1024), b.build()][1]
    machine = {"servers": 4, "gpus_per_server": 1, "interface_bandwidth_gbps": 25.0}
    equal, unequal = (
        optimize(graph, searchers=f"hybrid:planners=no,placed=no,divided={text}", budget=400, workers=1, **machine)
        for text in ("no", "yes")
    )
    assert unequal.origin.name == "constructed by hybrid"
    assert len({stage.mesh.n_devices for stage in unequal.plan.strategy.stages}) > 1
    assert unequal.seconds < 0.6 * equal.seconds
    assert unequal.origin.report["stages"].startswith("stages=")


def test_a_weight_that_stages_share_lies_in_slices_that_can_be_summed():
    """GPT-2 shares its table of 50,257 rows: stages of seven times four and of four devices had it in other slices.

    Such a plan ended the whole search; it is none.
    """
    outcome = optimize(
        "huggingface:preset=gpt2,layers=2",
        searchers=["hybrid:joint=no"],
        topology="topoopt",
        servers=28,
        batch_size=28,
        budget=200,
    )
    assert outcome.plan.timeline.bounds.best <= outcome.plan.timeline.makespan < math.inf
    tied_groups(outcome.plan.strategy, outcome.plan.graph)
