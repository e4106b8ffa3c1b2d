"""The bound of paths: below every strategy of small problems whose messages take long, and what it says in numbers."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Cluster, CostFunction, PartCosts, TopoplanError
from topoplan.model.placement import Placement
from topoplan.model.strategy import PlacedStrategy
from topoplan.plugin.host import Host
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.setup import set_up_search
from topoplan_engine.sharding.programs import why_invalid
from topoplan_pipeline_planning.stages import staged_strategy
from topoplan_samples.graphs import layer_graph
from topoplan_samples.long_tail import at_night
from topoplan_samples.problems import star_problem, state_of
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid
from topoplan_studies.problems import named_problems
from topoplan_studies.problems.bounds import lower_bound
from topoplan_studies.problems.paths import least_message_seconds, path_bound

HOSTS, BATCH, LATENCY = 3, 12, 1e-4
KINDS = ("gpipe", "1f1b", "1f1b-deep", "zero-bubble", "interleaved")


class Overheads(CostFunction):
    """Seconds of an operator: nearly all of them for each part, however small it is."""

    def __init__(self, rng, count):
        self.fixed, self.shared = rng.uniform(1e-4, 1e-3, count), rng.uniform(0, 1e-4, count)
        self.weights, self.forward = rng.uniform(0, 0.5), rng.uniform(0.3, 0.5)

    def supports(self, op, degrees):
        return True

    def price(self, op, degrees, devices):
        seconds = np.full(len(devices), self.fixed[op] + self.shared[op] / len(devices))
        return PartCosts(
            forward=seconds * self.forward,
            backward=seconds * (1 - self.forward),
            memory=np.zeros(len(devices)),
            weight_gradient=seconds * self.weights if op % 2 else None,
        )


def small_problem(seed, count, edges=None, hosts=HOSTS):
    """Return a chain of operators, or another model, on hosts of one device, with small tensors."""
    rng = np.random.default_rng(seed)
    edges = edges or [(op, op + 1) for op in range(count - 1)]
    graph = layer_graph(edges, rng.integers(0, 3, count) * 20, rng.integers(1, 40, count), BATCH)
    cluster = Cluster.uniform(n_hosts=hosts, latency=LATENCY, interfaces=1, interface_bandwidth=1e10)
    return star_problem(graph, cluster, Overheads(rng, count), 1e10, LATENCY)


def placements(hosts):
    groups = (group for size in range(1, hosts + 1) for group in itertools.combinations(range(hosts), size))
    return [Placement((len(group),), np.array(group, dtype=np.int32)) for group in groups]


def pipelines(graph, hosts):
    """Go through pipelines of all kinds whose stages are operators in a row; interleaved ones have groups in turn."""
    count = len(graph.operators)
    for stages in range(1, count + 1):
        for ends in itertools.combinations(range(1, count), stages - 1):
            members = np.split(np.arange(count), ends)
            for depth in range(1, min(stages, hosts) + 1):
                for cuts in itertools.combinations(range(1, hosts), depth - 1):
                    groups = np.split(np.arange(hosts), cuts)
                    staged = [(ops, groups[number % depth]) for number, ops in enumerate(members)]
                    for kind, micro_batches in itertools.product(KINDS, (1, 2, 4, 6, 12)):
                        try:
                            strategy = staged_strategy(graph, staged, micro_batches, kind)
                        except TopoplanError:
                            continue
                        if why_invalid(strategy, graph, hosts) is None:
                            yield strategy


def least_and_message(problem, strategies):
    simulate = Fluid().build()
    evaluator = Evaluator(problem, simulate, "ignore")
    prices = (evaluator.price(Candidate(base=state_of(problem, strategy))).cost for strategy in strategies)
    return min(prices), least_message_seconds(problem, simulate)


#: A model that branches and joins.
BRANCHES = ((0, 1), (1, 2), (0, 3), (2, 3), (3, 4))


@pytest.mark.parametrize("seed", at_night(range(3), 0))
def test_no_placement_is_below_the_bound(seed):
    problem = small_problem(seed, 4)
    strategies = map(PlacedStrategy, itertools.product(placements(HOSTS), repeat=4))
    least, message = least_and_message(problem, strategies)
    bound = lower_bound(problem, message)
    assert bound.path < bound.seconds * (1 + 1e-6) <= least * (1 + 1e-6)
    assert bound.seconds > lower_bound(problem).seconds * 1.1


@pytest.mark.slow
@pytest.mark.parametrize("seed", at_night(range(4), 0))
@pytest.mark.parametrize("edges", at_night([None, BRANCHES], BRANCHES))
def test_no_pipeline_is_below_the_bound(seed, edges):
    problem = small_problem(seed, 5, edges)
    least, message = least_and_message(problem, pipelines(problem.graph, HOSTS))
    bound = lower_bound(problem, message)
    assert bound.seconds <= least
    assert bound.seconds == pytest.approx(bound.path, rel=1e-6)


@pytest.mark.slow
def test_interleaved_pipelines_are_among_those_that_are_tried():
    kinds = {strategy.order_name for strategy in pipelines(small_problem(0, 5).graph, HOSTS)}
    assert kinds == set(KINDS)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        # Without gradients of weights 25 ms: 12.5 + 2 on two hosts, 8.33 + 4, 6.25 + 6.  All: 30, 15 + 1, 10 + 2.
        # One way 15 ms: 7.5 + 4 on two, 5 + 8 on three, 3.75 + 12 on four.
        (2e-3, 13e-3),
        # On two hosts 12.5 + 6 ms, 15 + 3, and 7.5 + 12 one way.
        (6e-3, 19.5e-3),
        # All passes on one host.
        (20e-3, 30e-3),
        (0.0, 0.0),
    ],
)
def test_hosts_share_what_they_compute_and_wait_for_each_other(message, expected):
    """Ten operators of 1.5 ms forward and 1.5 ms back, of which every second one has 1 ms for gradients of weights."""
    problem = small_problem(0, 10, hosts=8)
    costs = problem.costs
    costs.fixed, costs.shared, costs.weights, costs.forward = np.full(10, 3e-3), np.zeros(10), 1 / 3, 1 / 2
    graph = layer_graph([(op, op + 1) for op in range(9)], [0] * 10, [1] * 10, BATCH)
    problem = star_problem(graph, problem.cluster, costs, 1e10, LATENCY)
    assert path_bound(problem, message) == pytest.approx(expected)


def test_the_smallest_message_takes_what_the_simulator_says():
    host = Host.discover()
    for name, links, gigabytes in (("transformer-torch", 2, 12.5), ("ncf-topoopt", 1, 50.0)):
        (problem,) = named_problems([name])
        setup = set_up_search(host, problem.experiment(["random"], budget=0, seed=0))
        # The way over every link, and one byte; FlexNetPacket goes there and back with the packet before the first
        # one, and then stores and forwards one packet.
        expected = links * 1e-6 + 1 / (gigabytes * 1e9)
        assert least_message_seconds(setup.problem, setup.simulate) == pytest.approx(expected, rel=1e-12)
        expected = 2 * links * 1e-6 + links * 8937 / (gigabytes * 1e9)
        packets = Fluid(transport="flexnetpacket").build()
        assert least_message_seconds(setup.problem, packets) == pytest.approx(expected)


@pytest.mark.parametrize("simulator", [Fluid(), Fluid(level="stepped"), Flexnet()])
def test_a_cable_is_the_fastest_network_that_can_be_wired(simulator):
    problem = attrs.evolve(small_problem(0, 3), reconfigurable=True)
    wired = least_message_seconds(problem, simulator.build())
    assert LATENCY <= wired < least_message_seconds(small_problem(0, 3), simulator.build())


def test_one_host_sends_nothing():
    problem = small_problem(0, 3, hosts=1)
    assert least_message_seconds(problem, Fluid().build()) == 0.0
    with pytest.raises(TopoplanError, match="no bound where devices or hosts differ"):
        lower_bound(star_problem(problem.graph, _uneven(), problem.costs))


def _uneven():
    return Cluster(
        device_host=[0, 0, 1],
        device_preset=("A100-40",) * 3,
        device_speed=np.ones(3),
        device_memory=np.full(3, 4e10),
        inside_bandwidth=np.full(2, 3e11),
        interfaces=[1, 1],
        interface_bandwidth=np.full(2, 1e9),
    )
