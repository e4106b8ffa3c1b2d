"""Folding changes nothing: every task starts and ends when the whole simulation says, but for rounding.

What folds into one quotient takes equally long to the last bit, however devices, parts and tables are numbered.
Where two messages within one window go from one host to the same other one, the second waits, and so do those that
it represents.

Strategies are random walks over the placements of all models, and the states that a chain of proposals passes.
"""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Host, State, TopologyContext
from topoplan.model.placement import Placement
from topoplan_engine import ClusterOptions
from topoplan_engine.experiment import build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.symmetry.automorphism import automorphic_operators
from topoplan_engine.lowering.symmetry.channels import channel_place, channel_table
from topoplan_engine.lowering.symmetry.class_key import ClassKeys
from topoplan_engine.lowering.symmetry.classes import equitable_partition
from topoplan_engine.lowering.symmetry.refinement import initial_colors
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.simulation.base import Simulation
from topoplan_reference.refine import part_classes
from topoplan_samples.long_tail import at_night
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


#: Simulations of renumbered strategies add the same numbers in another order.
ROUNDING = 1e-12
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


def class_of_task(lowering, strategy, symmetry, in_turn_bytes, n_tasks):
    """(T,) the task of the quotient that represents each task."""
    table, fragments = symmetry.table, lowering._fragments
    colors = ClassKeys(fragments, lowering.pieces).device_colors(lowering.pieces.numbers(strategy), in_turn_bytes)
    classes = equitable_partition(table, fragments.op_class, fragments.edge_class, colors, in_turn_bytes)
    parts, groups = len(classes.part), len(classes.group)
    short, few = len(classes.first_part), len(classes.first_group)
    result = np.empty(n_tasks, dtype=np.int64)
    result[: 2 * parts : 2], result[1 : 2 * parts : 2] = 2 * classes.part, 2 * classes.part + 1
    result[2 * parts : 2 * parts + groups] = 2 * short + classes.group
    number = np.cumsum(~table.local[classes.first_pair]) - 1
    transfer = 2 * short + few + 2 * number[classes.pair[~table.local]]
    result[2 * parts + groups :: 2], result[2 * parts + groups + 1 :: 2] = transfer, transfer + 1
    return result


@pytest.mark.by_day(3)
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize(
    ("model", "servers"),
    at_night(itertools.product(MODELS, [4, 16]), *((model, 4) for model in MODELS), ("alexnet", 16)),
)
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
        whole_classes = (lowering, strategy, symmetry, simulate.in_turn_bytes)
        representative = class_of_task(*whole_classes, taskgraph.n_tasks)
        np.testing.assert_array_equal(taskgraph.kind, quotient.taskgraph.kind[representative])
        np.testing.assert_allclose(outcome.finish[representative], whole.finish, rtol=ROUNDING)
        np.testing.assert_allclose(outcome.start[representative], whole.start, rtol=ROUNDING)
        assert outcome.makespan == pytest.approx(whole.makespan, rel=ROUNDING)
        shorter += quotient.taskgraph.n_tasks < taskgraph.n_tasks / 2
    assert shorter > 0 or model == "ncf"  # whose parts nearly all differ
    assert len(kernel._run.signatures) == 1  # a quotient needs no kernel of its own


@pytest.mark.by_day(3)
@pytest.mark.parametrize("model", MODELS)
def test_classes_are_those_of_the_reference(host, model):
    problem = model_problem(host, model, servers=4)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    fragments = lowering._fragments
    keys = ClassKeys(fragments, lowering.pieces)
    for strategy in walk(problem, np.random.default_rng(1), 6):
        table = lowering.symmetry(strategy).table
        for in_turn_bytes in (0, 100_000):
            model_classes = (fragments.op_class, fragments.edge_class)
            reference = part_classes(initial_colors(table, *model_classes, 4, in_turn_bytes), 4)
            numbers = lowering.pieces.numbers(strategy)
            for colors in (np.zeros(4, np.uint64), keys.device_colors(numbers, in_turn_bytes)):
                found = equitable_partition(table, *model_classes, colors, in_turn_bytes)
                assert by_first_member(found.part) == reference


def by_first_member(classes):
    """The same classes, numbered by their first members."""
    number = {}
    return [number.setdefault(one, len(number)) for one in classes.tolist()]


def renumbered(lowering, strategy, rng):
    """The same strategy with other numbers of devices, and with automorphic operators in each other's place.

    Those that share a device keep their order, in which it runs them.
    """
    devices = rng.permutation(lowering.cluster.n_devices).astype(np.int32)
    placements, op_class = list(strategy.placements), lowering._fragments.op_class
    for number in np.unique(op_class):
        members = np.flatnonzero(op_class == number).tolist()
        left = [strategy.placements[op] for op in members]
        for op in members:
            free = [k for k in range(len(left)) if not any(np.isin(left[k].devices, p.devices).any() for p in left[:k])]
            placements[op] = left.pop(int(rng.choice(free)))
    return strategy.with_changes({op: Placement(p.degrees, devices[p.devices]) for op, p in enumerate(placements)})


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("model", at_night(MODELS, "dlrm", "resnet50"))
def test_strategies_that_only_number_otherwise_share_their_price(host, model, share):
    """They have one class and, to the last bit, one quotient; simulated whole, they differ by rounding."""
    problem, simulate = model_problem(host, model, servers=8), fluid()
    fabric, rng = problem.build_fabric(None, np.random.default_rng(0)), np.random.default_rng(2)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    for strategy in walk(problem, np.random.default_rng(3), STEPS.get(model, 120) // share):
        both = strategy, renumbered(lowering, strategy, rng)
        keys = [lowering.class_key(each, simulate.in_turn_bytes) for each in both]
        assert keys[0] == keys[1]
        symmetries = [lowering.symmetry(each, simulate.in_turn_bytes) for each in both]
        if symmetries[0] is not None:
            folded = [
                simulate.quotient_makespan(lowering.quotient(each), fabric, problem.cluster) for each in symmetries
            ]
            assert folded[0] == folded[1]
        times = [simulate.makespan(lowering.lower(each), fabric, problem.cluster) for each in both]
        assert times[0] == pytest.approx(times[1], rel=ROUNDING)


def halves(problem, rng, steps):
    """Strategies that cut samples in two, for two of four devices: many send several messages between the same two."""
    degrees = [tuple(min(degree, 2) for degree in p.degrees) for p in problem.space.initial().placements]

    def placed(op, *devices):
        return Placement(degrees[op], devices[: max(degrees[op])])

    strategy = problem.space.initial().with_changes({op: placed(op, 0, 1) for op in range(len(degrees))})
    for _ in range(steps):
        ops = rng.choice(len(degrees), 3, replace=False).tolist()
        yield strategy.with_changes({op: placed(op, *rng.permutation([2, 3]).tolist()) for op in ops})


def same_as_the_partition(lowering, strategies, in_turn_bytes):
    """Assert that class keys and partitions tell the same strategies apart; return how many classes there are."""
    by_key, by_partition, of_model = {}, {}, (lowering._fragments.op_class, lowering._fragments.edge_class)
    for strategy in strategies:
        none = np.zeros(lowering.cluster.n_devices, np.uint64)
        classes = equitable_partition(lowering.pieces.table(strategy), *of_model, none, in_turn_bytes)
        if classes is not None:
            key, of_partition = lowering.class_key(strategy, in_turn_bytes), classes.key
            assert by_key.setdefault(key, of_partition) == of_partition
            assert by_partition.setdefault(of_partition, key) == key
    return len(by_key)


@pytest.mark.slow
@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("model", at_night(MODELS, "dlrm", "inception-v3"))
def test_a_class_key_tells_apart_what_the_partition_does(host, model, share):
    problem, steps = model_problem(host, model, servers=4), STEPS.get(model, 160) // share
    lowering, rng = Lowering(problem.graph, problem.cluster, problem.costs), np.random.default_rng(6)
    for strategies in (walk, halves):
        given = list(strategies(problem, np.random.default_rng(7), steps))
        given += [renumbered(lowering, strategy, rng) for strategy in given]
        counts = [same_as_the_partition(lowering, given, in_turn_bytes) for in_turn_bytes in (0, 1 << 40)]
        assert 1 < counts[0] <= counts[1] < len(given)
    assert counts[0] < counts[1] or model not in ("alexnet", "moe")  # which messages wait tells halves apart


def test_the_quotient_of_a_search_is_simulated_once_for_its_class(host, monkeypatch):
    """States of one class cost the same, though whole simulations differ in the last bit, and are simulated once."""
    problem = model_problem(host, "dlrm", servers=16)
    evaluator = Evaluator(problem, fluid(), "ignore")
    fabric, rng = problem.build_fabric(None, np.random.default_rng(0)), np.random.default_rng(1)
    simulated = []
    quotient_makespan = Simulation.quotient_makespan
    monkeypatch.setattr(
        Simulation, "quotient_makespan", lambda *given: simulated.append(1) or quotient_makespan(*given)
    )
    strategy = problem.space.initial()
    for op in range(2):
        strategy = strategy.with_changes({op: problem.space.random_placement(op, rng)})
    states = [State(renumbered(evaluator._lowering, strategy, rng), fabric) for _ in range(20)]
    costs = {evaluator.price(Candidate(base=state)).cost for state in states}
    assert len(costs) == len(simulated) == 1
    fresh = Evaluator(problem, fluid(), "ignore")
    assert {fresh.price(Candidate(base=states[-1])).cost} == costs


def test_automorphic_operators_stand_next_to_each_other(host):
    problem = model_problem(host, "dlrm", servers=4)
    graph = problem.graph
    kinds = Lowering(graph, problem.cluster, problem.costs)._fragments.edge_ends
    classes, _ = automorphic_operators(graph, [kind for kind, _, _ in kinds])
    tables = [op for op, operator in enumerate(graph.operators) if operator.kind == "embedding"]
    assert len(set(classes[tables].tolist())) == 1 < len(tables)
    swapped = graph.edges.copy()  # two tables are inputs in the other order
    rows = [int(np.flatnonzero(graph.edges[:, 0] == table)[0]) for table in tables[:2]]
    swapped[rows, 0] = swapped[rows[::-1], 0]
    other = attrs.evolve(graph, edges=swapped)
    classes, _ = automorphic_operators(other, [kind for kind, _, _ in kinds])
    assert classes[tables[0]] != classes[tables[1]]
    assert len(set(classes[tables[1:]].tolist())) == 1


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


@pytest.mark.parametrize("hashed", [False, True], ids=["numbers of pairs", "hash table"])
def test_channels_have_places_of_their_own(hashed):
    n_devices = 4096 if hashed else 16
    table = channel_table.py_func(n_devices, 200)
    ends = np.random.default_rng(0).integers(n_devices, size=(400, 2)).tolist()
    places = [channel_place(table, a, b) for a, b in ends]
    assert [channel_place(table, a, b) for a, b in ends] == places
    assert len(set(places)) == len(set(map(tuple, ends)))
    assert max(places) < table.places == (1024 if hashed else 16**2)


@pytest.mark.parametrize(("in_turn_bytes", "places"), [(0, 0), (5_000, 2048), (10_000, 128**2)])
def test_classes_depend_on_no_table_of_channels(host, in_turn_bytes, places):
    """Few messages on 128 devices have a hash table, many one of all pairs: classes are those of the reference."""
    problem = model_problem(host, "alexnet", servers=128)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    fragments = lowering._fragments
    rng = np.random.default_rng(2)
    strategy = problem.space.initial().with_changes({op: problem.space.random_placement(op, rng) for op in (1, 2, 4)})
    table = lowering.symmetry(strategy).table
    model_classes = (fragments.op_class, fragments.edge_class)
    graph = initial_colors(table, *model_classes, 128, in_turn_bytes)
    assert graph.places == places
    found = equitable_partition(table, *model_classes, np.zeros(128, np.uint64), in_turn_bytes)
    assert by_first_member(found.part) == part_classes(graph, 128)


def test_as_many_classes_as_parts_where_devices_differ(host):
    """Every part and every pair is a class of its own: tables of colors grow."""
    problem = model_problem(host, "alexnet", servers=128)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    fragments = lowering._fragments
    table = lowering.pieces.table(problem.space.initial())
    colors = np.arange(1, 129, dtype=np.uint64)
    found = equitable_partition(table, fragments.op_class, fragments.edge_class, colors)
    for classes, members in ((found.part, table.device), (found.pair, table.src)):
        assert len(members) > 512
        assert by_first_member(classes) == list(range(len(members)))


def test_colors_of_devices_are_those_of_the_strategy_that_is_asked_for(host):
    problem = model_problem(host, "alexnet", servers=4)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    keys = ClassKeys(lowering._fragments, lowering.pieces)
    for strategy in walk(problem, np.random.default_rng(3), 6):
        for in_turn_bytes in (0, 100_000):
            fresh, numbers = ClassKeys(lowering._fragments, lowering.pieces), lowering.pieces.numbers(strategy)
            assert keys.of(strategy, in_turn_bytes) == fresh.of(strategy, in_turn_bytes)
            colors = ClassKeys(lowering._fragments, lowering.pieces).device_colors(numbers, in_turn_bytes)
            np.testing.assert_array_equal(keys.device_colors(numbers, in_turn_bytes), colors)


def _second_on_half_of_the_devices(problem):
    op = problem.graph.operators[1]
    degrees = [1] * len(op.dims)
    degrees[op.sample_dim] = problem.cluster.n_devices // 2
    return problem.space.initial().with_changes({1: problem.space.place(tuple(degrees), 0)})


@pytest.mark.parametrize("servers", [64, 8192, 16384])
def test_as_many_tasks_are_simulated_on_any_number_of_servers(host, servers, monkeypatch):
    """What is simulated for a step of a search is a representative of each class, however many devices there are."""
    problem = model_problem(host, "alexnet", batch=16384, servers=servers)
    evaluator = Evaluator(problem, fluid(), "ignore")
    counts = []
    run = kernel.run

    def counted(tasks, *others):
        counts.append(len(tasks.kind))
        return run(tasks, *others)

    monkeypatch.setattr("topoplan_simulator_fluid.model.run", counted)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    for strategy in (problem.space.initial(), _second_on_half_of_the_devices(problem)):
        evaluator.price(Candidate(base=State(strategy, fabric)))
    assert len(counts) == 2
    assert max(counts) < 300
