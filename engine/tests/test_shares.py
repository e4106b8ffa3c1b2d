"""Shares of a batch among devices of unequal speed, against every division there is."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Candidate, Host, PlacedStrategy, Placement, State, TopoplanError
from topoplan.model.graph import Slices
from topoplan_engine import ClusterOptions, build_cluster, problem_on, run_searchers
from topoplan_engine.layout import groups_of
from topoplan_engine.lowering import Lowering
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.shares import least_longest, resized
from topoplan_operators import GraphBuilder
from topoplan_reference.lowering import reference_lower
from topoplan_samples.long_tail import at_night


def divisions(total, count):
    """Every way to divide ``total`` samples among ``count`` devices."""
    for inner in itertools.combinations_with_replacement(range(total + 1), count - 1):
        edges = (0, *inner, total)
        yield [high - low for low, high in itertools.pairwise(edges)]


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 10), st.lists(st.lists(st.floats(0, 1), min_size=10, max_size=10), min_size=1, max_size=4))
def test_no_division_ends_earlier(total, steps):
    tables = [np.cumsum([0, *row]).tolist() for row in steps]  # times that do not fall

    def time_on(table, samples):
        return table[samples] if samples <= total else np.inf

    times = [functools.partial(time_on, table) for table in tables]
    shares = least_longest(times, total)
    assert sum(shares) == total
    assert min(shares) >= 0

    def longest(division):
        return max(table[count] for table, count in zip(tables, division, strict=True))

    assert longest(shares) == min(map(longest, divisions(total, len(tables))))


@given(st.lists(st.integers(0, 50), min_size=1, max_size=6).filter(any), st.integers(0, 100))
def test_resized_slices_are_in_proportion(sizes, more):
    total = len(sizes) + more
    slices = resized(sizes, total)
    assert sum(slices) == total
    assert min(slices) >= 1
    assert resized(slices, 3 * total) == [3 * size for size in slices]


@functools.cache
def host():
    return Host.discover()


def chain(batch, layers=3):
    """A chain of convolutions of large pictures, so that arithmetic counts even for one sample."""
    builder = GraphBuilder("chain", batch)
    tensor = builder.input((64, 56, 56))
    for _ in range(layers):
        tensor = builder.conv2d(tensor, 64, (3, 3), padding=(1, 1))
    return builder.build()


def problem_of(graph, devices, estimator="roofline", **cluster):
    options = ClusterOptions(servers=len(devices), device=",".join(devices), degree=1, **cluster)
    machine = build_cluster(options, host())
    costs = host().make("estimator", estimator).build(graph, machine)
    return problem_on(graph, machine, costs, host().make("topology", "bigswitch"))


def data_parallel(problem, division):
    """Return data parallelism in the given shares; devices without a sample take no part."""
    devices = np.flatnonzero(division)
    sizes = [count for count in division if count]
    placements = []
    for op in problem.graph.operators:
        degrees = [1] * len(op.dims)
        degrees[op.sample_dim] = Slices(sizes) if len(sizes) > 1 else 1
        placements.append(Placement(degrees, devices))
    return PlacedStrategy(tuple(placements))


def busiest(problem, strategy):
    """Seconds of the device that computes for the longest."""
    busy = np.zeros(problem.cluster.n_devices)
    for op, placement in enumerate(strategy.placements):
        price = problem.costs.price(op, placement.degrees, placement.devices)
        np.add.at(busy, placement.devices, price.forward + price.backward)
    return busy.max()


CLUSTERS = [("H100", "V100"), ("V100", "H100"), ("H100", "V100", "A100-80"), ("H100", "V100", "V100")]


@pytest.mark.by_day(3)
@pytest.mark.parametrize("devices", CLUSTERS, ids="+".join)
@pytest.mark.parametrize("batch", at_night([6, 16, 33], 6, 16))
def test_the_first_strategy_is_the_best_of_all_divisions(devices, batch):
    problem = problem_of(chain(batch), devices)
    every = [busiest(problem, data_parallel(problem, division)) for division in divisions(batch, len(devices))]
    assert busiest(problem, problem.space.initial()) == pytest.approx(min(every), rel=1e-12)


def simulated(problem, strategy):
    """Seconds of an iteration."""
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    evaluator = Evaluator(problem, host().make("simulator", "fluid").build(), "ignore")
    return evaluator.price(Candidate(base=State(strategy, fabric))).cost


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    "devices",
    [CLUSTERS[0], CLUSTERS[2], *(pytest.param(c, marks=pytest.mark.slow) for c in CLUSTERS[1::2])],
    ids="+".join,
)
@pytest.mark.parametrize("gbps", at_night([1, 10, 100, 400], 10))
def test_a_search_is_as_fast_as_the_best_of_all_divisions(devices, gbps):
    """Whichever devices are worth their gradients' way over the network: all, some or the fastest alone."""
    batch = 12
    problem = problem_of(chain(batch), devices, interface_bandwidth_gbps=gbps)
    best = min(simulated(problem, data_parallel(problem, division)) for division in divisions(batch, len(devices)))
    simulator = host().make("simulator", "fluid")
    result = run_searchers(problem, [host().make("searcher", "mcmc")], simulator, budget=50)
    assert result.best_cost <= best * 1.001


def test_two_unequal_devices_are_faster_than_the_fast_one_alone():
    problem = problem_of(chain(48), ("H100", "V100"))
    first = problem.space.initial()
    assert [placement.degrees[0] for placement in first.placements] == [Slices((38, 10))] * 3
    alone, even = data_parallel(problem, (48, 0)), data_parallel(problem, (24, 24))
    assert simulated(problem, first) < 0.9 * simulated(problem, alone) < simulated(problem, even)


def test_every_cut_of_samples_is_there_in_both_kinds_of_slices():
    problem = problem_of(chain(48), ("H100", "H100", "V100", "V100"))
    space = problem.space
    degrees = space.degrees(0)
    assert len(set(degrees)) == len(degrees)
    assert {cut[0] for cut in degrees} == {1, 2, 4, Slices((38, 10)), Slices((19, 19, 5, 5))}
    sets = {(p.degrees[0], tuple(p.devices.tolist())) for p in space.placements(0) if p.degrees[1:] == (1, 1, 1, 1)}
    # The rule has every second host; the two fast ones are a set beside it.
    assert {devices for degree, devices in sets if degree == 2} == {(0, 2), (1, 3), (0, 1)}
    assert {devices for degree, devices in sets if degree == Slices((38, 10))} == {(0, 2), (1, 3)}
    for op in range(len(problem.graph.operators)):
        for placement in itertools.islice(space.placements(op), 500):
            assert problem.graph.operators[op].why_invalid(placement.degrees) is None


def test_devices_of_one_speed_are_cut_evenly():
    problem = problem_of(chain(8), ("A100-40", "A100-40"))
    assert {cut[0] for cut in problem.space.degrees(0)} == {1, 2}


@pytest.mark.parametrize(
    ("servers", "device", "message"),
    [(3, "H100,V100", "cluster.device: H100,V100: 2 kinds for 3 hosts"), (2, "H100,Z9", "cluster.device: ")],
)
def test_kinds_of_devices_that_do_not_fit(servers, device, message):
    with pytest.raises(TopoplanError, match=f"^{message}"):
        build_cluster(ClusterOptions(servers=servers, device=device), host())


def test_a_kind_for_each_host():
    options = ClusterOptions(device="H100, V100", devices=(2, 3))
    assert build_cluster(options, host()).device_preset == ("H100", "H100", "V100")


def test_lowering_of_unequal_slices_is_that_of_the_reference():
    problem = problem_of(chain(48), ("H100", "V100"))
    space = problem.space
    cuts = [space.place(cut, 0) for cut in space.degrees(1) if cut[1:] in ((1, 1, 1, 1), (1, 2, 1, 1))]
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    for middle in [*cuts, Placement((1, 1, Slices((50, 6)), 1, 1), [1, 0])]:
        strategy = problem.space.initial().with_changes({1: middle})
        expected = reference_lower(problem.graph, strategy, problem.costs, problem.cluster)
        assert lowering.lower(strategy) == expected


def test_a_strategy_is_told_with_its_slices():
    problem = problem_of(chain(48), ("H100", "V100"))
    (group,) = groups_of(problem.space.initial(), problem.graph)
    assert (group.cuts.data, group.cuts.slices) == (2, (38, 10))
