"""Numbered fragments: compiled joins and sums equal those of arrays one by one, also after all is forgotten."""

from __future__ import annotations

from functools import partial

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Host, State, optimize
from topoplan_engine.lowering import Lowering, edge_numbers, pieces
from topoplan_engine.lowering.fragments import messages
from topoplan_engine.lowering.parts import concatenate
from topoplan_engine.lowering.piece_loads import load_interfaces
from topoplan_engine.search import lower_bounds
from topoplan_engine.search.lower_bounds import IncrementalLowerBound
from topoplan_engine.training import frozen
from topoplan_estimator_roofline import Roofline
from topoplan_samples.models import model_problem
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid


@pytest.fixture(params=[20_000, 12, 0], ids=["all kept", "forgotten again and again", "partly frozen"])
def problem(request, monkeypatch):
    monkeypatch.setattr(pieces, "_FRAGMENTS", request.param or 20_000)
    monkeypatch.setattr(edge_numbers, "_SLOTS", 2)  # so that the table grows
    problem = model_problem(Host.discover(), "dlrm", servers=4)
    if request.param:
        return problem
    names = [op.name for op in problem.graph.operators if op.weights]
    graph = frozen(problem.graph, names[: len(names) // 2])
    return attrs.evolve(problem, graph=graph, costs=Roofline().build(graph, problem.cluster))


def walk(problem, steps=40):
    """Change after change to the initial strategy."""
    rng, strategy = np.random.default_rng(0), problem.space.initial()
    for _ in range(steps):
        ops = rng.integers(len(strategy.placements), size=2).tolist()
        changes = {op: problem.space.random_placement(op, rng) for op in ops}
        changed = strategy.with_changes(changes)
        yield strategy, changes, changed
        strategy = changed


def test_a_table_is_its_fragments_one_after_the_other(problem):
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    cache = lowering._fragments
    for _, _, strategy in walk(problem):
        placements = strategy.placements
        slow = concatenate(cache.operators(placements), cache.all_edges(placements), cache.edge_ops)
        for column, expected in zip(lowering.pieces.table(strategy), slow, strict=True):
            assert column.dtype == expected.dtype
            np.testing.assert_array_equal(column, expected)
    assert (lowering.pieces.generation > 0) == (pieces._FRAGMENTS == 12)


def test_a_strategy_of_many_bytes_is_not_written_anew_for_each_change(monkeypatch):
    """As on 65,536 hosts, where the fragments of one strategy take more than the bytes that are kept."""
    monkeypatch.setattr(pieces, "_BYTES", 1)
    problem = model_problem(Host.discover(), "dlrm", servers=4)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    add, written = lowering.pieces._add_operator, []

    def noting(op, placement):
        written.append(op)
        return add(op, placement)

    monkeypatch.setattr(lowering.pieces, "_add_operator", noting)
    for _, _, strategy in walk(problem, steps=20):
        lowering.pieces.table(strategy)
    # The operators of the first strategy, and two that each change places.
    assert len(written) <= len(problem.graph.operators) + 2 * 20


@pytest.mark.parametrize("share", [0.5, 2.0], ids=["memory exceeded", "memory enough"])
def test_bounds_are_sums_over_devices_and_links(problem, share):
    """After any number of differences, to 1e-9, less the slack."""
    simulate = Fluid().build()
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    capacity = share * lowering.resting_memory(problem.space.initial()).max()
    object.__setattr__(problem.cluster, "device_memory", np.full(4, capacity))
    capacity = problem.cluster.usable_memory[0]
    bound = IncrementalLowerBound(lowering, simulate.link_seconds, seconds_per_byte=1.0)
    for before, changes, after in walk(problem):
        base, state = State(before, fabric), State(after, fabric)
        found = bound.of(Candidate(base=base, placements=changes), state)
        taskgraph, memory = lowering.lower(after), lowering.resting_memory(after)
        devices = np.zeros(4)
        computes = taskgraph.device >= 0
        np.add.at(devices, taskgraph.device[computes], taskgraph.seconds[computes])
        links = simulate.link_seconds(taskgraph, fabric, problem.cluster).sum(axis=0)
        excess = np.maximum(memory * (1 - 1e-6) - capacity, 0).sum()
        expected = (max(devices.max(), links.max()) + excess) * (1 - 1e-6)
        assert found.seconds == pytest.approx(expected, rel=1e-9)
        assert not found.fits, "sums know nothing of gradients of activations"
        assert (memory <= lowering.memory(after)).all()
        assert found.seconds <= simulate.makespan(taskgraph, fabric, problem.cluster) + excess


@pytest.mark.by_day(4)
@pytest.mark.parametrize(
    "component", [Fluid, Flexnet, pytest.param(partial(Fluid, level="stepped"), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("per_part", [False, True], ids=["each device once", "each part once"])
def test_interfaces_carry_what_their_links_do(problem, component, per_part):
    """What a fragment loads on one switch is what it loads over routes and rings."""
    graph = attrs.evolve(problem.graph, reduces_per_part=per_part)
    simulate, cluster = component().build(), problem.cluster
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    lowering = Lowering(graph, cluster, problem.costs)
    interfaces = simulate.interfaces(fabric, cluster)
    loaded = 0
    for _, _, strategy in walk(problem, 5):
        lowering.pieces.make_room()
        for number in lowering.pieces.numbers(strategy):
            expected = simulate.link_seconds(messages([lowering.pieces.fragment(number)], 4), fabric, cluster).sum(0)
            rows = np.full((number + 1, len(expected)), np.nan)
            load_interfaces(lowering.pieces, np.array([number]), interfaces, rows)
            np.testing.assert_allclose(rows[number], expected, rtol=1e-12)
            loaded += rows[number].any()
    assert loaded > 50


@pytest.mark.parametrize("topology", ["bigswitch", "fattree:k=4"])
def test_a_search_finds_the_same_where_no_links_are_counted(monkeypatch, topology):
    """As on networks of more than a million links, where rows of all links of every fragment took 4 GiB."""

    def found():
        return optimize("dlrm", topology=topology, servers=8, batch_size=512, searchers=["mcmc"], budget=150)

    counted = found()
    monkeypatch.setattr(lower_bounds, "_MOST_LINKS", 4)
    uncounted = found()
    assert uncounted.seconds == counted.seconds
    assert uncounted.plan.strategy == counted.plan.strategy


def test_sums_of_very_many_links_are_kept_of_few_states(monkeypatch):
    monkeypatch.setattr(lower_bounds, "_BYTES_OF_SUMS", 8 * 40 * 8)
    problem = model_problem(Host.discover(), "dlrm", servers=4)
    fluid = Fluid().build()
    bounds = IncrementalLowerBound(
        Lowering(problem.graph, problem.cluster, problem.costs), fluid.link_seconds, 0.0, fluid.interfaces
    )
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    for strategy, changes, changed in walk(problem, 60):
        bounds.of(Candidate(base=State(strategy, fabric), placements=changes), State(changed, fabric))
    assert len(bounds._sums) + len(bounds._sums._old) <= 40
