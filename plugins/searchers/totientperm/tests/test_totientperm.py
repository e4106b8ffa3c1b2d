"""Turns, proposals and memory of the searcher, with prices made up by the test."""

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Demand, PlacedStrategy, Placement, State, TopoplanError, Trial
from topoplan.options import structure
from topoplan.testing import reference
from topoplan_directconnect.construct import construct
from topoplan_engine import problem_on
from topoplan_engine.simulation.phases import same_wires
from topoplan_searcher_totientperm import TotientPerm
from topoplan_searcher_totientperm.rewire import splits_around
from topoplan_topology_fattree import FatTree
from topoplan_topology_topoopt import TopoOpt

N = 16
CLUSTER = Cluster.uniform(n_hosts=N, interfaces=8)


def demand(ring_bytes, pair_bytes):
    matrix = np.full((N, N), pair_bytes / (N * (N - 1)))
    np.fill_diagonal(matrix, 0)
    return Demand(group_ptr=[0, N], group_members=range(N), group_bytes=[ring_bytes / (2 * (N - 1))], matrix=matrix)


def problem(topology=None):
    return problem_on(reference.graph(), CLUSTER, reference.Costs(), topology or TopoOpt())


def start(seed=0, **options):
    search = structure(TotientPerm, options, "searcher totientperm").build(problem(), np.random.default_rng(seed))
    fabric = construct(CLUSTER, None, rules="paper", paths=2, rng=np.random.default_rng(9))
    return search, fabric


def trial(fabric, cost, wanted, device=0):
    strategy = PlacedStrategy((Placement((1,), [device]),))
    return Trial(state=State(strategy, fabric), cost=cost, demand=lambda: wanted)


def priced(candidates, costs, wanted):
    return [Trial(state=c.state(), cost=t, demand=lambda: wanted) for c, t in zip(candidates, costs, strict=True)]


def ring_pairs(fabric):
    return len(fabric.rings[N]) // 2


def test_needs_a_fabric_that_can_be_rewired():
    with pytest.raises(TopoplanError, match="'fattree' cannot be rewired"):
        TotientPerm().build(problem(FatTree()), np.random.default_rng(0))


def test_proposes_the_rule_first_then_its_neighbours():
    search, fabric = start(splits=3)
    traffic = demand(1e9, 1e9)
    initial = trial(fabric, 1.0, traffic)
    search.adopt(initial)
    candidates = search.ask()
    assert [ring_pairs(c.fabric) for c in candidates] == [2, 2, 1, 1, 3, 3]
    assert all(c.base is initial.state and not c.placements and c.cutoff_seconds == 1.0 for c in candidates)
    assert all(c.fabric.max_paths == 2 for c in candidates)


def test_nothing_before_it_was_given_a_state():
    search, _ = start()
    assert search.ask() == []


def test_waits_for_its_turn_and_for_a_change():
    search, fabric = start(every=3, routes="even")
    traffic = demand(1e9, 1e9)
    search.adopt(trial(fabric, 1.0, traffic))
    candidates = search.ask()
    search.tell(priced(candidates, [2.0] * len(candidates), traffic))
    assert [len(search.ask()) for _ in range(5)] == [0] * 5  # no change
    search.adopt(trial(fabric, 0.9, demand(1e9, 3e9), device=1))
    assert next(ring_pairs(c.fabric) for c in search.ask()) == 1
    search.adopt(trial(fabric, 0.8, demand(3e9, 1e9), device=2))
    assert [len(search.ask()) for _ in range(2)] == [0, 0]  # too early
    last = search.ask()
    assert last
    assert last[0].base.strategy.placements[0].devices.tolist() == [2]


def test_goes_on_from_the_best_fabric():
    search, fabric = start(every=1)
    traffic = demand(1e9, 1e9)
    search.adopt(trial(fabric, 1.0, traffic))
    candidates = search.ask()
    trials = priced(candidates, [0.9, 0.7, 0.8, 0.9, 0.9, 0.9], traffic)
    search.tell(trials[:2])  # the budget ended early
    search.adopt(trial(trials[1].state.fabric, 0.6, traffic, device=3))
    second = search.ask()
    assert second
    assert all(c.cutoff_seconds == 0.6 and c.base.fabric is trials[1].state.fabric for c in second)


def test_does_not_propose_what_it_has():
    search, fabric = start(splits=2)
    search.adopt(trial(fabric, 1.0, demand(1e9, 0)))  # the rule is four pairs for rings, as in ``fabric``
    assert {ring_pairs(c.fabric) for c in search.ask()} == {3}


def test_worse_prices_change_nothing():
    search, fabric = start(every=1)
    traffic = demand(1e9, 1e9)
    first = trial(fabric, 1.0, traffic)
    search.adopt(first)
    search.tell(priced(search.ask(), [1.0, float("inf"), 1.5, 2.0, 2.0, 2.0], traffic))
    assert search._best is first


def test_released_rules_have_one_answer():
    search, fabric = start(rules="released")
    search.adopt(trial(fabric, 1.0, demand(1e9, 1e9)))
    candidates = search.ask()
    assert [c.fabric.rings[N] for c in candidates] == [((1,), (15,), (3,), (13,), (5,), (11,), (9,), (7,))]


def test_same_seed_same_proposals():
    def fabrics(seed):
        search, fabric = start(seed)
        search.adopt(trial(fabric, 1.0, demand(1e9, 1e9)))
        return [c.fabric for c in search.ask()]

    assert fabrics(4) == fabrics(4)


def test_splits_around():
    assert splits_around(2, 4, 3) == [2, 1, 3]
    assert splits_around(4, 4, 3) == [4, 3, 2]
    assert splits_around(1, 1, 3) == [1]
    assert splits_around(0, 0, 3) == [0]


def test_traffic_is_then_split_by_load_on_the_best_fabric():
    search, fabric = start()
    traffic = demand(1e9, 3e9)
    search.adopt(trial(fabric, 1.0, traffic))
    candidates = search.ask()
    search.tell(priced(candidates, [0.8, 0.6, *[0.9] * (len(candidates) - 2)], traffic))
    (shared,) = search.ask()
    assert shared.cutoff_seconds == 0.6
    assert same_wires(shared.fabric, candidates[1].fabric)
    assert candidates[1].fabric.routes is None
    assert len(shared.fabric.routes.pairs) == N * (N - 1)
    assert search.ask() == []


def test_without_point_to_point_traffic_there_is_nothing_to_split():
    search, fabric = start()
    search.adopt(trial(fabric, 1.0, demand(1e9, 0)))
    assert search.ask()
    assert search.ask() == []


def test_after_accepted_moves_it_takes_its_fabrics_in_turn():
    search, fabric = start(after="accepted", splits=2, every=50)
    traffic = demand(1e9, 1e9)
    pairs = []
    for device in range(4):
        search.adopt(trial(fabric, 1.0, traffic, device))
        (candidate,) = search.ask()
        pairs.append(ring_pairs(candidate.fabric))
        assert search.ask() == []
        search.tell(priced([candidate], [1.0], traffic))
        assert search.reached is None
    assert pairs == [2, 2, 1, 1]
    search.adopt(trial(fabric, 1.0, traffic))
    trials = priced(search.ask(), [0.9], traffic)
    search.tell(trials)
    assert search.reached is trials[0]


def test_it_offers_nothing_else_where_it_waits_for_new_bests():
    search, fabric = start()
    traffic = demand(1e9, 1e9)
    search.adopt(trial(fabric, 1.0, traffic))
    search.tell(priced(search.ask()[:1], [0.5], traffic))
    assert search.reached is None
    assert not search.follows


def test_equal_demands_get_the_same_fabric_objects():
    search, fabric = start(every=1, routes="even")
    for traffic in (demand(1e9, 1e9), demand(1e9, 2e9)):
        search.adopt(trial(fabric, 1.0, traffic))
        search.ask()
        search.adopt(trial(fabric, 1.0, attrs.evolve(traffic, matrix=traffic.matrix.copy()), device=1))
        first = search.ask()
        search.adopt(trial(fabric, 1.0, traffic, device=2))
        assert all(c.fabric is candidate.fabric for c, candidate in zip(search.ask(), first, strict=True))


def test_wires_that_it_has_are_not_proposed_whatever_their_name():
    traffic = demand(1e9, 1e9)
    search, fabric = start(every=1, routes="even")
    search.adopt(trial(fabric, 1.0, traffic))
    first = search.ask()
    fabric_copy = attrs.evolve(first[0].fabric, name="mine")
    search.adopt(trial(fabric_copy, 1.0, traffic, device=1))
    assert [c.fabric for c in search.ask()] == [c.fabric for c in first if not same_wires(c.fabric, fabric_copy)]


def test_its_fabrics_are_switched_as_those_of_the_topology():
    search, fabric = start()
    search.adopt(trial(attrs.evolve(fabric, switching="ocs"), 1.0, demand(1e9, 1e9)))
    assert {c.fabric.switching for c in search.ask()} == {"ocs"}


def test_the_greedy_rules_have_no_rings():
    search, fabric = start(rules="greedy")
    search.adopt(trial(fabric, 1.0, demand(1e9, 1e9)))
    assert [dict(c.fabric.rings) for c in search.ask()] == [{}]


def test_another_fabric_for_its_strategy_is_no_reason_to_wire_anew():
    search, fabric = start(every=1, routes="even")
    first = trial(fabric, 1.0, demand(1e9, 1e9))
    search.adopt(first)
    search.ask()
    search.adopt(Trial(state=State(first.state.strategy, fabric), cost=0.9, demand=first.demand))
    assert search.ask() == []
    search.adopt(trial(fabric, 0.8, demand(1e9, 1e9)))
    assert all(c.cutoff_seconds == 0.8 for c in search.ask())
