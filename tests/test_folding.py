"""Folding changes nothing: every task starts and ends when the whole simulation says, to the last bit.

Where two messages within one window go from one host to the same other one, the second waits, and so do those that
it represents.

Strategies are random walks over the placements of all models, and the states that a chain of proposals passes.
"""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Host, TopologyContext
from topoplan.model.placement import Placement
from topoplan_engine import ClusterOptions
from topoplan_engine.experiment import build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.symmetry.refinement import equitable_partition, initial_colors
from topoplan_reference.refine import part_classes
from topoplan_samples.models import MODELS, model_problem
from topoplan_simulator_fluid import Fluid, kernel

#: Samples: enough for messages of more than a window.
BATCH = 4096
STEPS = {"resnet50": 60, "inception-v3": 40}


@pytest.fixture(scope="module")
def host():
    return Host.discover()


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


def class_of_task(symmetry, n_tasks):
    """(T,) the task of the quotient that represents each task."""
    table, classes = symmetry
    parts, groups = len(classes.part), len(classes.group)
    short, few = len(classes.first_part), len(classes.first_group)
    result = np.empty(n_tasks, dtype=np.int64)
    result[: 2 * parts : 2], result[1 : 2 * parts : 2] = 2 * classes.part, 2 * classes.part + 1
    result[2 * parts : 2 * parts + groups] = 2 * short + classes.group
    number = np.cumsum(~table.local[classes.first_pair]) - 1
    transfer = 2 * short + few + 2 * number[classes.pair[~table.local]]
    result[2 * parts + groups :: 2], result[2 * parts + groups + 1 :: 2] = transfer, transfer + 1
    return result


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("servers", [4, 16])
@pytest.mark.parametrize("model", MODELS)
def test_every_task_runs_when_the_whole_simulation_says(host, model, servers, share):
    problem, simulate = model_problem(host, model, batch=BATCH, servers=servers), fluid()
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    assert simulate.has_quotient(fabric, problem.cluster)
    shorter = 0
    for strategy in walk(problem, np.random.default_rng(servers), STEPS.get(model, 120) // share):
        symmetry = lowering.symmetry(strategy, simulate.in_turn_bytes)
        if symmetry is None:
            continue
        quotient, taskgraph = lowering.quotient(symmetry), lowering.lower(strategy)
        outcome, whole = (
            simulate.quotient_outcome(quotient, fabric, problem.cluster),
            simulate(taskgraph, fabric, problem.cluster),
        )
        representative = class_of_task(symmetry, taskgraph.n_tasks)
        np.testing.assert_array_equal(taskgraph.kind, quotient.taskgraph.kind[representative])
        np.testing.assert_array_equal(outcome.finish[representative], whole.finish)
        np.testing.assert_array_equal(outcome.start[representative], whole.start)
        assert outcome.makespan == whole.makespan
        shorter += quotient.taskgraph.n_tasks < taskgraph.n_tasks / 2
    assert shorter > 0 or model == "ncf"  # whose parts nearly all differ
    assert len(kernel._run.signatures) == 1  # a quotient needs no kernel of its own


@pytest.mark.parametrize("model", MODELS)
def test_classes_are_those_of_the_reference(host, model):
    problem = model_problem(host, model, servers=4)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    fragments = lowering._fragments
    for strategy in walk(problem, np.random.default_rng(1), 6):
        table = lowering.symmetry(strategy).table
        for in_turn_bytes in (0, 100_000):
            given = (table, fragments.op_class, fragments.edge_class, 4, in_turn_bytes)
            assert equitable_partition(*given).part.tolist() == part_classes(initial_colors(*given), 4)


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("model", MODELS)
def test_strategies_that_only_number_otherwise_share_their_price(host, model, share):
    """Renaming the devices of a strategy changes neither its key nor, but for rounding, its time."""
    problem, simulate = model_problem(host, model, servers=8), fluid()
    fabric, rng = problem.build_fabric(None, np.random.default_rng(0)), np.random.default_rng(2)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    for strategy in walk(problem, np.random.default_rng(3), STEPS.get(model, 120) // share):
        renamed = rng.permutation(8).astype(np.int32)
        other = strategy.with_changes(
            {op: Placement(p.degrees, renamed[p.devices]) for op, p in enumerate(strategy.placements)}
        )
        keys = [lowering.symmetry(each, simulate.in_turn_bytes).classes.key for each in (strategy, other)]
        assert keys[0] == keys[1]
        times = [simulate.makespan(lowering.lower(each), fabric, problem.cluster) for each in (strategy, other)]
        assert times[0] == pytest.approx(times[1], rel=1e-12)


def first_occurrences(strategy):
    """The cuts of a strategy, and its devices, numbered by their first occurrence."""
    label = {}
    return tuple(
        (p.degrees, tuple(label.setdefault(device, len(label)) for device in p.devices.tolist()))
        for p in strategy.placements
    )


def test_a_placement_key_tells_strategies_apart_but_for_the_numbers_of_their_devices(host):
    problem, rng = model_problem(host, "dlrm", servers=4), np.random.default_rng(5)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    keys = {}
    for strategy in walk(problem, np.random.default_rng(4), 300):
        renamed = rng.permutation(4).astype(np.int32)
        other = strategy.with_changes(
            {op: Placement(p.degrees, renamed[p.devices]) for op, p in enumerate(strategy.placements)}
        )
        key = lowering.placement_key(strategy)
        assert key == lowering.placement_key(other)
        assert keys.setdefault(first_occurrences(strategy), key) == key
    assert len(set(keys.values())) == len(keys) > 200


def test_networks_that_are_not_one_switch_are_not_folded(host):
    for topology in ("fattree", "fully-connected", "topoopt"):
        cluster = build_cluster(ClusterOptions(servers=8))
        shape = host.make("topology", topology)
        fabric = shape.build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
        assert not fluid().has_quotient(fabric, cluster)
        assert fluid().interfaces(fabric, cluster) is None
