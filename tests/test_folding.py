"""Folding changes nothing: every task starts and ends when the whole simulation says, to the last bit.

Strategies are random walks over the placements of all models, and the states that a chain of proposals passes.
"""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Host, TopologyContext
from topoplan.model.placement import Placement
from topoplan.model.problem import Problem
from topoplan_engine import ClusterOptions
from topoplan_engine.experiment import build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.fold import parts_of
from topoplan_engine.lowering.refine import classes
from topoplan_engine.search.space import Space
from topoplan_reference.refine import part_classes
from topoplan_simulator_fluid import Fluid

MODELS = {
    "dlrm": {"preset": "dlrm16", "dialect": "flexnet"},
    "alexnet": {},
    "vgg16": {},
    "resnet50": {},
    "inception-v3": {},
    "transformer": {"num_layers": 2},
    "ncf": {},
    "candle-uno": {},
    "moe": {},
}
STEPS = {"resnet50": 60, "inception-v3": 40}


@pytest.fixture(scope="module")
def host():
    return Host.discover()


def problem_of(host, model, servers):
    frontend = host.make("frontend", model, MODELS[model])
    graph = frontend.build(None if model == "dlrm" else 64)
    cluster = build_cluster(ClusterOptions(servers=servers, gpus_per_device=2))
    component = host.make("estimator", "roofline")
    costs = component.build(graph, cluster)
    shape = host.make("topology", "bigswitch")

    def build(demand, rng):
        return shape.build(TopologyContext(cluster=cluster, demand=demand, rng=rng))

    return Problem(
        graph=graph, cluster=cluster, costs=costs, space=Space(graph, cluster, costs), topology="bigswitch",
        build_fabric=build, reconfigurable=False,
    )  # fmt: skip


def fluid():
    return Fluid().build()


#: Changes that are tried: a quarter of them, or all.
SHARES = [pytest.param(4, id="a quarter"), pytest.param(1, id="all", marks=pytest.mark.slow)]


def walk(problem, rng, steps):
    """Random changes, about a quarter of them kept, starting anew from the initial strategy at times."""
    strategy = problem.space.initial()
    for _ in range(steps):
        op = int(rng.integers(len(strategy.placements)))
        changed = strategy.with_changes({op: problem.space.random_placement(op, rng)})
        yield changed
        draw = rng.random()
        strategy = changed if draw < 0.25 else problem.space.initial() if draw > 0.9 else strategy


def class_of_task(alike, folded, n_tasks):
    """(T,) the task of the folded task graph that stands for each task."""
    joined, found = alike
    parts, groups = len(found.part), len(found.group)
    short, few = len(found.first_part), len(found.first_group)
    result = np.empty(n_tasks, dtype=np.int64)
    result[: 2 * parts : 2], result[1 : 2 * parts : 2] = 2 * found.part, 2 * found.part + 1
    result[2 * parts : 2 * parts + groups] = 2 * short + found.group
    number = np.cumsum(~joined.local[found.first_pair]) - 1
    there = 2 * short + few + 2 * number[found.pair[~joined.local]]
    result[2 * parts + groups :: 2], result[2 * parts + groups + 1 :: 2] = there, there + 1
    return result


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("servers", [4, 16])
@pytest.mark.parametrize("model", MODELS)
def test_every_task_runs_when_the_whole_simulation_says(host, model, servers, share):
    problem, simulate = problem_of(host, model, servers), fluid()
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    assert simulate.has_quotient(fabric, problem.cluster)
    shorter = 0
    for strategy in walk(problem, np.random.default_rng(servers), STEPS.get(model, 120) // share):
        alike = lowering.alike(strategy)
        folded, taskgraph = lowering.fold(alike), lowering.lower(strategy)
        outcome, whole = (
            simulate.folded_outcome(folded, fabric, problem.cluster),
            simulate(taskgraph, fabric, problem.cluster),
        )
        stands = class_of_task(alike, folded, taskgraph.n_tasks)
        np.testing.assert_array_equal(taskgraph.kind, folded.taskgraph.kind[stands])
        np.testing.assert_array_equal(outcome.finish[stands], whole.finish)
        np.testing.assert_array_equal(outcome.start[stands], whole.start)
        assert outcome.makespan == whole.makespan
        shorter += folded.taskgraph.n_tasks < taskgraph.n_tasks / 2
    assert shorter > 0 or model == "ncf"


@pytest.mark.parametrize("model", MODELS)
def test_classes_are_those_of_the_reference(host, model):
    problem = problem_of(host, model, 4)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    for strategy in walk(problem, np.random.default_rng(1), 6):
        joined = lowering.alike(strategy).joined
        columns = parts_of(joined, lowering._fragments.op_class, lowering._fragments.edge_class)
        assert classes(columns, problem.cluster.n_devices).part.tolist() == part_classes(columns, 4)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("model", MODELS)
def test_strategies_that_only_number_otherwise_share_their_price(host, model, share):
    """Renaming the devices of a strategy changes neither its key nor, but for rounding, its time."""
    problem, simulate = problem_of(host, model, 8), fluid()
    fabric, rng = problem.build_fabric(None, np.random.default_rng(0)), np.random.default_rng(2)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    for strategy in walk(problem, np.random.default_rng(3), STEPS.get(model, 120) // share):
        renamed = rng.permutation(8).astype(np.int32)
        other = strategy.with_changes(
            {op: Placement(p.degrees, renamed[p.devices]) for op, p in enumerate(strategy.placements)}
        )
        assert lowering.alike(strategy).classes.key == lowering.alike(other).classes.key
        times = [simulate.makespan(lowering.lower(each), fabric, problem.cluster) for each in (strategy, other)]
        assert times[0] == pytest.approx(times[1], rel=1e-12)


def test_networks_that_are_not_one_switch_are_not_folded(host):
    for topology in ("fattree", "fully-connected", "topoopt"):
        cluster = build_cluster(ClusterOptions(servers=8))
        shape = host.make("topology", topology)
        fabric = shape.build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
        assert not fluid().has_quotient(fabric, cluster)
