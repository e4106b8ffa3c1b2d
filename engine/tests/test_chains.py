"""What one chain hands to another: strategies of every kind arrive as they left, and cost what they cost."""

from __future__ import annotations

import pickle

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Candidate, Cluster, CostFunction, PartCosts, PlacedStrategy, State
from topoplan.model.placement import Placement
from topoplan.model.sharding import PARTIAL, REPLICATED, arguments
from topoplan.model.spmd import SpmdProgram
from topoplan_engine.program_strategies import overlapped_strategy, program_strategy
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.islands import _interned
from topoplan_engine.sharding.programs import reshards_of, why_invalid
from topoplan_engine.sharding.signatures import signatures
from topoplan_operators import GraphBuilder
from topoplan_pipeline_planning.stages import staged_strategy
from topoplan_samples.problems import star_problem
from topoplan_simulator_fluid import Fluid


class Costs(CostFunction):
    """A second for every operator, shared by its parts."""

    def supports(self, op, degrees):
        return True

    def price(self, op, degrees, devices):
        seconds = np.full(len(devices), 1.0 / len(devices))
        return PartCosts(forward=seconds, backward=2 * seconds, memory=np.ones(len(devices)))


def problem():
    """Return what a chain makes for itself: equal to what others have, but not the same objects."""
    b = GraphBuilder("small", 16)
    x = b.input((16,))
    for _ in range(3):
        x = b.relu(b.linear(x, 16, bias=False))
    cluster = Cluster.uniform(n_hosts=4, latency=1e-6)
    return star_problem(b.build(), cluster, Costs(), bandwidth=1e5, latency=1e-6)


HERE, THERE = problem(), problem()
GRAPH = HERE.graph
N_OPS = len(GRAPH.operators)


@st.composite
def placed(draw):
    space, placements = HERE.space, []
    for op in range(N_OPS):
        degrees = draw(st.sampled_from(space.degrees(op)))
        placements.append(space.place(degrees, draw(st.integers(0, space.starts(degrees) - 1))))
    return PlacedStrategy(tuple(placements))


@st.composite
def scheduled(draw):
    cut = draw(st.integers(1, N_OPS - 1))
    kind, recompute = draw(st.sampled_from(["gpipe", "1f1b", "1f1b-deep", "zero-bubble"])), draw(st.booleans())
    stages = [(range(cut), [0, 1]), (range(cut, N_OPS), [2, 3])]
    return staged_strategy(GRAPH, stages, draw(st.sampled_from([1, 2, 4, 8])), kind, (recompute, False))


@st.composite
def spmd(draw, overlapped):
    mesh = draw(st.sampled_from([(4,), (2, 2)]))
    rules = tuple(
        tuple(draw(st.sampled_from([s for s in signatures(op) if PARTIAL not in s.inputs])) for _ in mesh)
        for op in GRAPH.operators
    )
    edge_inputs = {(op, argument) for _, _, op, argument in GRAPH.edges.tolist()}
    stored = tuple(
        tuple(() if (index, k) in edge_inputs else (REPLICATED,) * len(mesh) for k in range(len(arguments(op))))
        for index, op in enumerate(GRAPH.operators)
    )
    program = SpmdProgram(mesh=mesh, rules=rules, stored=stored, sharded_state=draw(st.booleans()))
    strategy = program_strategy(program, GRAPH)
    if not overlapped or why_invalid(strategy, GRAPH, 4):
        return strategy
    begins = {move.users[0] for move in reshards_of(program, GRAPH) if move.output >= 0}
    stage = np.cumsum([op in begins and op > 0 for op in range(N_OPS)])
    return overlapped_strategy(program, GRAPH, stage, 2)


KINDS = {"placed": placed(), "scheduled": scheduled(), "spmd": spmd(False), "two-microbatch": spmd(True)}


def price(of, state):
    return Evaluator(of, Fluid().build(), "ignore").price(Candidate(base=state)).cost


@given(st.data(), st.sampled_from(sorted(KINDS)))
@settings(max_examples=40)
def test_every_kind_of_strategy_arrives_as_it_left(data, kind):
    strategy = data.draw(KINDS[kind].filter(lambda s: why_invalid(s, GRAPH, 4) is None))
    original = State(strategy, HERE.build_fabric(None, None))
    copied = pickle.loads(pickle.dumps(original))
    arrival = _interned(THERE.space, copied)
    for other in (copied, arrival):
        assert other.strategy == strategy
        assert other.fabric == original.fabric
    cost = price(HERE, original)
    assert 0 < cost < float("inf")
    assert price(THERE, copied) == price(THERE, arrival) == cost
    assert all(a is THERE.space.intern(a) for a in arrival.strategy.placements)
    homecoming = _interned(HERE.space, pickle.loads(pickle.dumps(arrival)))  # and back
    assert homecoming.strategy == strategy
    assert price(HERE, homecoming) == cost


def test_placements_are_not_bounded_by_the_sums_of_a_program():
    """A change to a program leaves placements, whose bound must not be told from the program's sums."""
    rules = tuple((signatures(op)[-1],) for op in GRAPH.operators)  # every device computes everything
    edge_inputs = {(op, argument) for _, _, op, argument in GRAPH.edges.tolist()}
    stored = tuple(
        tuple(() if (op, k) in edge_inputs else (REPLICATED,) for k in range(len(arguments(operator))))
        for op, operator in enumerate(GRAPH.operators)
    )
    program = program_strategy(SpmdProgram(mesh=(4,), rules=rules, stored=stored), GRAPH)
    assert why_invalid(program, GRAPH, 4) is None
    base = State(program, HERE.build_fabric(None, None))
    changes = {op: Placement((1,) * len(GRAPH.operators[op].dims), [op % 4]) for op in range(N_OPS)}
    costs = Evaluator(HERE, Fluid().build(), "ignore")
    true = costs.price(Candidate(base=base, placements=changes)).cost
    bounded = Evaluator(HERE, Fluid().build(), "ignore")
    assert bounded.price(Candidate(base=base, placements=changes, cutoff_seconds=true * 1.01)).cost == true
