"""One stage of placed operators: priced as placements without stages, and found where no program is as fast."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from topoplan import Host, PlacedStrategy, optimize
from topoplan_engine import ClusterOptions, build_cluster, problem_on
from topoplan_engine.lowering import Lowering
from topoplan_estimator_roofline import Roofline
from topoplan_operators import GraphBuilder
from topoplan_searcher_stated.placed_bodies import PlacedBodies, PlacedBody, placed_steps
from topoplan_topology_bigswitch import BigSwitch

MACHINE = {"servers": 2, "gpus_per_server": 2, "interface_bandwidth_gbps": 25.0}
CLUSTER = build_cluster(ClusterOptions(**MACHINE), Host.discover())


def tables(count=4, rows=2_000_000, batch=64):
    """Tables that are much larger than what samples look up, and two matrices behind them."""
    b = GraphBuilder("tables", batch)
    x = b.concat([b.embedding(b.input((1,), itemsize=8), rows, 16) for _ in range(count)])
    b.linear(b.linear(x, 64, activation=True), 1)
    return b.build()


def matrices(batch=64):
    """Two matrices for few samples, with an activation that sums cannot pass."""
    b = GraphBuilder("matrices", batch)
    b.linear(b.linear(b.input((2048,)), 2048, activation=True), 512)
    return b.build()


class Simulated:
    """The bodies of a model, and their simulated seconds."""

    def __init__(self, graph):
        self.problem = problem_on(graph, CLUSTER, Roofline().build(graph, CLUSTER), BigSwitch())
        self.fabric = self.problem.build_fabric(None, np.random.default_rng(0))
        self.bodies = PlacedBodies(self.problem)
        self.planned = [body for body in self.bodies.planned() if body is not None]
        self.lowering = Lowering(graph, CLUSTER, self.problem.costs)
        self.simulator = Host.discover().make("simulator", "fluid").build()

    def seconds(self, strategy):
        return self.simulator.makespan(self.lowering.lower(strategy), self.fabric, CLUSTER, math.inf)

    def of(self, body):
        return self.seconds(self.bodies.strategy(body))

    def descend(self):
        costs = {body: self.of(body) for body in self.planned}
        proposed = 0
        for body in placed_steps(self.bodies, lambda: min(costs.values(), default=math.inf), costs):
            costs[body] = self.of(body)
            proposed += 1
        return costs, proposed


@pytest.mark.parametrize("graph", [tables(), matrices()], ids=lambda graph: graph.name)
def test_a_body_takes_what_its_placements_take_without_stages(graph):
    simulated = Simulated(graph)
    for body in (simulated.bodies.initial, *simulated.planned):
        staged = simulated.bodies.strategy(body)
        placed = PlacedStrategy(staged.placements)
        assert simulated.seconds(staged) == simulated.seconds(placed)
        assert (simulated.lowering.memory(staged) == simulated.lowering.memory(placed)).all()
    assert (
        simulated.bodies.strategy(simulated.bodies.initial).placements == simulated.problem.space.initial().placements
    )


def test_a_descent_finds_what_trying_all_cuts_finds():
    simulated = Simulated(matrices())
    costs, proposed = simulated.descend()
    numbers = [range(len(cuts)) for cuts in simulated.bodies._known.cuts]
    least = min(simulated.of(PlacedBody(cuts)) for cuts in itertools.product(*numbers))
    assert min(costs.values()) == least < simulated.of(simulated.bodies.initial)
    assert proposed < math.prod(map(len, numbers))


def test_estimates_are_the_sum_of_what_each_operator_and_edge_takes():
    """On one device nothing is sent, and seconds are those of operators alone."""
    simulated = Simulated(matrices())
    alone = [[cut.parts for cut in cuts].index(1) for cuts in simulated.bodies._known.cuts]
    body = PlacedBody(tuple(alone))
    assert simulated.bodies.seconds(body) == pytest.approx(simulated.of(body))


def test_a_descent_far_behind_does_not_begin():
    simulated = Simulated(matrices())
    costs = {body: simulated.of(body) for body in (simulated.bodies.initial, *simulated.planned)}
    best = min(costs.values())
    assert not list(placed_steps(simulated.bodies, lambda: best / 1.2, costs))


def test_tables_lie_whole_on_single_devices_where_no_program_is_as_fast():
    """Programs send gradients of tables, or what is looked up, to all devices; a whole table is never summed."""
    graph = tables()
    without, found = (
        optimize(graph, searchers=f"hybrid:planners=no,divided=no,placed={text}", budget=300, workers=1, **MACHINE)
        for text in ("no", "yes")
    )
    (stage,) = found.plan.strategy.stages
    whole = [p.parts for p, op in zip(stage.body, graph.operators, strict=True) if op.kind == "embedding"]
    assert whole == [1] * 4
    assert found.origin.name == "constructed by hybrid"
    assert found.seconds < found.initial_seconds < without.seconds
    assert found.origin.report["stages"] == "one, whose operators are placed one by one"
