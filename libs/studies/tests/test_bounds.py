"""The bound of a problem: below every strategy of small ones, and equal to slow sums over all choices."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from topoplan import Candidate, Cluster, CostFunction, PartCosts
from topoplan.model.placement import Placement
from topoplan.model.sharding import PARTIAL, PENDING_GRADIENT, REPLICATED, arguments, shard
from topoplan.model.spmd import SpmdProgram
from topoplan.model.strategy import PlacedStrategy
from topoplan.plugin.host import Host
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.program_strategies import overlapped_strategy, program_strategy
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.setup import set_up_search
from topoplan_engine.sharding.programs import why_invalid
from topoplan_engine.sharding.signatures import signatures
from topoplan_pipeline_planning.stages import staged_strategy
from topoplan_samples.graphs import layer_graph, linear_chain
from topoplan_samples.long_tail import at_night
from topoplan_samples.problems import star_problem, state_of
from topoplan_simulator_fluid import Fluid
from topoplan_studies.problems import standard_problems
from topoplan_studies.problems.best import best_known
from topoplan_studies.problems.bounds import (
    _SHARES,
    _busiest_hosts,
    _cuts_of,
    _forest,
    _weight_bytes_sent,
    lower_bound,
)

HOSTS, BATCH, BANDWIDTH = 3, 12, 1e9


class Layers(CostFunction):
    """Seconds of an operator: some for each part, and some that its parts share."""

    def __init__(self, rng, count):
        self.fixed, self.shared = rng.uniform(0, 1e-3, count), rng.uniform(1e-4, 2e-2, count)

    def supports(self, op, degrees):
        return True

    def price(self, op, degrees, devices):
        seconds = np.full(len(devices), self.fixed[op] + self.shared[op] / len(devices))
        return PartCosts(forward=seconds / 3, backward=seconds * 2 / 3, memory=np.zeros(len(devices)))


def small_problem(seed, edges=((0, 1), (1, 2))):
    """Return a chain of three operators, or another model, on three hosts of one device."""
    rng = np.random.default_rng(seed)
    count = 1 + max(v for _, v in edges)
    weights, outputs = rng.uniform(0, 2e7, count).astype(int), rng.uniform(1e3, 2e6, count).astype(int)
    weights[rng.random(count) < 0.3] = 0
    cluster = Cluster.uniform(n_hosts=HOSTS, latency=0.0, interfaces=1, interface_bandwidth=BANDWIDTH)
    return star_problem(layer_graph(list(edges), weights, outputs, BATCH), cluster, Layers(rng, count), BANDWIDTH)


def placements():
    """Return all ways to place an operator, up to the order of its parts."""
    groups = (group for size in range(1, HOSTS + 1) for group in itertools.combinations(range(HOSTS), size))
    return [Placement((len(group),), np.array(group, dtype=np.int32)) for group in groups]


def strategies(graph):
    """Go through all placements of three operators, and all pipelines of stages in a row."""
    yield from map(PlacedStrategy, itertools.product(placements(), repeat=3))
    for ends in ((1,), (2,), (1, 2)):
        members = np.split(np.arange(3), ends)
        for order in itertools.permutations(range(HOSTS)):
            for cuts in itertools.combinations(range(1, HOSTS), len(ends)):
                stages = list(zip(members, np.split(np.array(order), cuts), strict=True))
                for kind, micro_batches in itertools.product(("gpipe", "1f1b-deep"), (2, 6)):
                    yield staged_strategy(graph, stages, micro_batches, kind)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("seed", at_night(range(4), 0, 1))
def test_no_strategy_of_a_small_problem_is_below_its_bound(seed):
    problem = small_problem(seed)
    evaluator = Evaluator(problem, Fluid().build(), "ignore")
    least = min(
        evaluator.price(Candidate(base=state_of(problem, strategy))).cost for strategy in strategies(problem.graph)
    )
    bound = lower_bound(problem)
    assert max(bound.work, bound.part) * (1 - 1e-6) <= bound.seconds <= least


@pytest.mark.parametrize("edges", [((0, 1), (1, 2)), ((0, 2), (1, 2), (2, 3)), ((0, 1), (0, 2), (1, 3))])
@pytest.mark.parametrize("seed", range(3))
def test_the_busiest_hosts_are_those_of_all_choices(seed, edges):
    problem = small_problem(seed, edges)
    graph = problem.graph
    cuts = [_cuts_of(problem, op, 1) for op in range(len(graph.operators))]
    forest = _forest(problem)
    degrees = range(1, HOSTS + 1)

    def part(op, degree):
        return float(problem.costs.price(op, (degree,), np.arange(degree)).forward.sum()) * 3 / degree

    def received(choice):
        total = 0.0
        for edge in forest:
            whole = graph.operators[edge.producer].outputs[0].nbytes
            need, made = (whole / choice[op] if choice[op] else 0.0 for op in (edge.consumer, edge.producer))
            total += edge.share * max(0.0, need - made)
        return total

    greatest = 0.0
    for op, operator in enumerate(graph.operators):
        of_degree = []
        for degree in degrees:
            equal = sum(2 * (degree - 1) / degree * (weight.nbytes - HOSTS) for weight in operator.weights)
            others = [(0, *degrees) if other != op else (degree,) for other in range(len(graph.operators))]
            choices = list(itertools.product(*others))
            work = [sum(part(k, d) for k, d in enumerate(choice) if d) for choice in choices]
            nbytes = [equal + received(choice) for choice in choices]
            of_degree.append(
                max(min(s * w + (1 - s) * b / BANDWIDTH for w, b in zip(work, nbytes, strict=True)) for s in _SHARES)
            )
        greatest = max(greatest, min(of_degree))
    assert _busiest_hosts(cuts, forest, BANDWIDTH) == pytest.approx(greatest, rel=1e-9)


def test_weights_that_must_be_kept_equal_bound_a_problem_with_little_work():
    """A layer with 10 GB of weights reads 120 GB, which 60 s of work make; five hosts, 1 GB/s each.

    On d hosts, each receives 20 (d - 1) / d GB for the weights, and has made its share in 60 / d s, or receives it in
    120 / d s.  So with a share s of work, one takes min(60 s, 120 (1 - s)), up to 40 s; four take 15 (1 - s) and
    min(15 s, 30 (1 - s)), which is 15 s for any s up to 2/3; two 10 (1 - s) + min(30 s, 60 (1 - s)), up to 23 s; three
    13.3 (1 - s) + min(20 s, 40 (1 - s)), up to 17 s; and five 16 (1 - s) + min(12 s, 24 (1 - s)), up to 16 s.  Programs
    use all five.
    """
    graph = layer_graph([(0, 1)], [0, 10_000_000_000], [2_000_000_000, 1], 60)
    costs = Layers(np.random.default_rng(0), 2)
    costs.fixed, costs.shared = np.zeros(2), np.array([60.0, 0.0])
    cluster = Cluster.uniform(n_hosts=5, latency=0.0, interfaces=1, interface_bandwidth=1e9)
    bound = lower_bound(star_problem(graph, cluster, costs, 1e9))
    assert bound.work == pytest.approx(12.0)
    assert bound.seconds == pytest.approx(15.0, rel=1e-3)


def test_copies_of_a_part_receive_the_sum_once():
    nbytes, devices = 10**6, 8
    operator = layer_graph([(0, 1)], [0, nbytes], [4, 4], 8).operators[1]
    rounded = nbytes - devices
    assert _weight_bytes_sent(operator, (1,), 1, 4, devices) == 0.0
    assert _weight_bytes_sent(operator, (4,), 1, 1, devices) == 2 * 3 * rounded
    # Two messages of three shares make the first sum, and five hosts more get it by one message each.
    assert _weight_bytes_sent(operator, (3,), 1, 2, devices) == (2 + 5) * rounded
    assert _weight_bytes_sent(operator, (4,), 2, 1, devices) == 2 * rounded
    assert _weight_bytes_sent(operator, (4,), 1, 1, nbytes // 18_000 + 1, 18_000) == 0.0


class Thirds(Layers):
    """Prices of operators in three parts alone."""

    def supports(self, op, degrees):
        return degrees == (3,)


def test_weights_that_are_sent_in_one_round_do_not_bound():
    """Copies of 26 kB on three hosts put 104 kB on the wire; FlexNetPacket's transport sends two packets each."""
    graph = layer_graph([(0, 1)], [26_000, 26_000], [1, 1], 3)
    costs = Thirds(np.random.default_rng(0), 2)
    cluster = Cluster.uniform(n_hosts=3, latency=0.0, interfaces=1, interface_bandwidth=1e6)
    problem = star_problem(graph, cluster, costs, 1e6)
    wire, packets = (
        Evaluator(problem, Fluid(transport=transport).build(), "ignore").price(Candidate(base=state_of(problem))).cost
        for transport in ("wire", "flexnetpacket")
    )
    assert lower_bound(problem, on_the_wire=False).seconds <= packets < 2 * 104_000 / 3e6 <= wire
    # Of each of the two weights, 2 (n - 1) S = 104 kB leave three interfaces of 1 MB/s, but for a byte a device.
    assert lower_bound(problem).seconds == pytest.approx(2 * 4 * (26_000 - 3) / 3e6, rel=1e-3)
    assert lower_bound(problem).seconds <= wire


def test_a_small_all_reduce_is_bound_by_twice_its_bytes_at_any_size():
    """2 (n - 1) S bytes of S = 4 kB, in a sum that one packet of each of eight hosts could carry."""
    operator = layer_graph([(0, 1)], [0, 4_000], [8, 8], 8).operators[1]
    assert _weight_bytes_sent(operator, (8,), 1, 1, 8) == 2 * 7 * (4_000 - 8)
    assert _weight_bytes_sent(operator, (8,), 1, 1, 8, 18_000) == 0.0


@pytest.mark.slow
def test_no_program_is_below_the_bound():
    host = Host.discover()
    for gbps in (1.0, 100.0):
        cluster = ClusterOptions(servers=4, degree=1, interface_bandwidth_gbps=gbps)
        run = RunOptions(batch_size=64, budget=20)
        experiment = Experiment(model="alexnet", cluster=cluster, searchers=("spmd",), run=run)
        bound = lower_bound(set_up_search(host, experiment).problem)
        assert bound.seconds <= optimize(experiment, host=host).seconds


def programs(graph, rng, count):
    """Draw programs on four devices that sum all gradients, whole or in micro-batches."""
    fed = {(v, argument) for _, _, v, argument in graph.edges.tolist()}
    for mesh in ((4,), (2, 2)):
        for _ in range(count):
            rules, stored = [], []
            for index, op in enumerate(graph.operators):
                usable = [rule for rule in signatures(op) if PARTIAL not in rule.inputs]
                rules.append(tuple(usable[rng.integers(len(usable))] for _ in mesh))
                forms = [[rule.inputs[k] for rule in rules[-1]] for k in range(len(arguments(op)))]
                for k in range(len(op.inputs), len(forms)):
                    for axis, wanted in enumerate(forms[k]):
                        choices = [PENDING_GRADIENT, shard(0), shard(1)] if wanted == REPLICATED else [wanted]
                        forms[k][axis] = choices[rng.integers(len(choices))]
                stored.append(tuple(() if (index, k) in fed else tuple(form) for k, form in enumerate(forms)))
            strategy = program_strategy(SpmdProgram(mesh=mesh, rules=tuple(rules), stored=tuple(stored)), graph)
            if why_invalid(strategy, graph, 4) is None:
                yield strategy
                yield overlapped_strategy(strategy.program, graph, range(len(graph.operators)), 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "count"), at_night([(1e-3, 300), (1e-2, 300), (1e-1, 300), (1e-2, 50)], (1e-2, 50))
)
def test_no_program_of_a_chain_is_below_the_bound(seconds, count):
    """Weights of 4 MB on hosts of 1 GB/s: sums of gradients, activations, or work take longest."""
    rng = np.random.default_rng(1)
    graph = linear_chain(2, 1024, 16, relu=False)
    costs = Layers(rng, len(graph.operators))
    costs.fixed, costs.shared = rng.uniform(0, 0.1, 3) * seconds, rng.uniform(0.1, 1, 3) * seconds
    cluster = Cluster.uniform(n_hosts=4, latency=0.0, interfaces=1, interface_bandwidth=1e9)
    problem = star_problem(graph, cluster, costs, 1e9)
    evaluator = Evaluator(problem, Fluid().build(), "ignore")
    times = [evaluator.price(Candidate(base=state_of(problem, s))).cost for s in programs(graph, rng, count)]
    assert len(times) > count * 2 / 3
    assert lower_bound(problem).seconds <= min(times)


def test_stored_plans_are_above_their_bounds():
    rows = best_known()
    assert rows.keys() == {problem.name for problem in standard_problems()}
    assert all(row.bound <= row.seconds for row in rows.values())
