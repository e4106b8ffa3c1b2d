"""Plans come first, nothing is priced twice, and a fabric of another kind's strategy is tried with the own best."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import State
from topoplan.testing import landscape, reference
from topoplan_engine.equal_operators import layers_of
from topoplan_engine.pipelines import pipeline_strategy
from topoplan_placement_moves.planning import plans
from topoplan_searcher_auto import Auto


def started(**options):
    problem = landscape.problem()
    search = Auto(**options).build(problem, np.random.default_rng(0))
    first = landscape.trial(landscape.start(problem))
    search.adopt(first)
    return problem, search, first


def test_plans_are_proposed_first():
    problem, search, first = started()
    planned = [strategy.key for strategy in plans(problem) if strategy is not None]
    assert planned
    for key in planned:
        (candidate,) = search.ask()
        assert candidate.state().strategy.key == key
        search.tell([landscape.trial(candidate.state())])
    (candidate,) = search.ask()
    assert candidate.placements
    assert first.state.strategy.key not in planned


def test_no_strategy_is_priced_twice():
    _, search, _ = started()
    proposed_keys = []
    for _ in range(30):
        (candidate,) = search.ask()
        proposed_keys.append(candidate.state().strategy.key)
        search.tell([landscape.trial(candidate.state())])
    assert len(set(proposed_keys)) == len(proposed_keys)


def test_what_was_cut_off_is_proposed_again_for_a_higher_cutoff():
    _, search, first = started(plans=False)
    (candidate,) = search.ask()
    search.tell([attrs.evolve(landscape.trial(candidate.state()), cost=float("inf"))])
    search.adopt(attrs.evolve(first, cost=first.cost * 10))  # everything is accepted now
    again = []
    for _ in range(300):
        (proposal,) = search.ask()
        again.append(proposal.state().strategy.key)
        search.tell([attrs.evolve(landscape.trial(proposal.state()), cost=float("inf"))])
    assert candidate.state().strategy.key in again


def test_a_fabric_reached_by_a_strategy_of_another_kind_is_priced_with_the_own_best():
    problem, search, first = started(plans=False)
    pipeline = pipeline_strategy(first.state.strategy.placements, [0] * len(problem.graph.operators), "gpipe", 1)
    fabric = attrs.evolve(reference.ring(), name="another")
    search.adopt(attrs.evolve(first, state=State(pipeline, fabric), cost=first.cost / 2))
    (candidate,) = search.ask()
    assert candidate.state().strategy is first.state.strategy
    assert candidate.state().fabric is fabric
    moved = attrs.evolve(landscape.trial(candidate.state()), cost=first.cost * 2)
    search.tell([moved])
    (candidate,) = search.ask()
    assert candidate.base is moved.state


@pytest.mark.parametrize(("share", "goes_on", "allowed"), [(0.05, False, 1), (0.6, False, 8), (0.95, True, 10)])
def test_a_chain_that_is_far_behind_the_best_plan_ends(monkeypatch, share, goes_on, allowed):
    problem = landscape.problem()
    parts = len(problem.graph.operators) * problem.cluster.n_devices
    monkeypatch.setattr("topoplan_searcher_auto.search._PARTS_BEHIND", 8 * parts)
    _, search, first = started(plans=False)
    search.know_best(first.cost * share)
    proposals = 0
    while proposals < 10 and (candidates := search.ask()):
        proposals += 1
        search.tell([attrs.evolve(landscape.trial(candidates[0].state()), cost=first.cost)])
    assert proposals == (10 if goes_on else allowed)
    assert ("20 times as long" in search.left_out) is (share == 0.05)
    assert bool(search.left_out) is not goes_on


def test_proposals_of_a_chain_that_comes_nearer_do_not_count(monkeypatch):
    """NCF on 512 devices: the best plan took a third of the start, and a chain beats it after 48 proposals."""
    problem = landscape.problem()
    monkeypatch.setattr(
        "topoplan_searcher_auto.search._PARTS_BEHIND", 16 * len(problem.graph.operators) * problem.cluster.n_devices
    )
    _, search, first = started(plans=False)
    search.know_best(first.cost / 3.0)
    proposals, cost = 0, first.cost
    while proposals < 40 and (candidates := search.ask()):
        proposals += 1
        cost *= 0.97 if proposals % 2 else 1.0
        search.tell([attrs.evolve(landscape.trial(candidates[0].state()), cost=cost)])
    assert proposals == 40
    assert not search.left_out


def test_a_chain_proposes_as_many_parts_for_a_turn_on_large_problems(monkeypatch):
    problem = landscape.problem()
    parts = len(problem.graph.operators) * problem.cluster.n_devices
    monkeypatch.setattr("topoplan_searcher_auto.search._PARTS_A_TURN", parts // 3)
    _, search, _ = started(plans=False)
    proposed = []
    turns = parts // (parts // 3)
    for _ in range(3 * turns):
        candidates = search.ask()
        proposed.append(bool(candidates))
        assert search.waits is not proposed[-1]
        search.tell([landscape.trial(candidate.state()) for candidate in candidates])
    assert turns > 1
    assert proposed == ([False] * (turns - 1) + [True]) * 3


@pytest.mark.parametrize(("times", "proposals"), [(30.0, 0), (1.0, 1)])
def test_planners_of_models_with_layers_come_first_on_large_problems(monkeypatch, times, proposals):
    """A chain that is hopeless behind their plan makes no estimates, which take seconds."""
    monkeypatch.setattr("topoplan_searcher_auto.search._PARTS_LARGE", 1)
    problem = landscape.problem()
    parts = len(problem.graph.operators) * problem.cluster.n_devices
    monkeypatch.setattr("topoplan_searcher_auto.search._PARTS_FIRST", parts // 5)
    without_layers, first = started()[1:]
    assert len(without_layers.ask()) == 1
    layers = layers_of(problem.graph)._replace(layer=("layer0", "layer1"))
    monkeypatch.setattr("topoplan_searcher_auto.search.layers_of", lambda graph: layers)
    _, search, _ = started()
    turns = parts // (parts // 5)
    assert [(len(search.ask()), search.waits, search.plans) for _ in range(turns - 1)] == [(0, True, True)] * (
        turns - 1
    )
    search.know_best(first.cost / times)
    assert search.ask() == []
    assert len(search.ask()) == proposals
    assert search.plans is (proposals > 0)
    assert (f"{times:g} times as long" in search.left_out) is (proposals == 0)
    _, alone, _ = started(hybrids=False)
    assert len(alone.ask()) == 1


def test_kinds_of_moves_that_bring_nothing_are_rare():
    """Walks, blocks, single operators, forms, and blocks with forms: 1 : 1 : 3 : 1 : 1, a sixteenth of it in vain."""
    _, search, _ = started(plans=False)
    drawn = np.zeros((2, 5))
    for row, in_vain in enumerate(([0] * 5, [0, 0, 0, 240, 10_000])):
        for _ in range(4_000):
            search._in_vain = list(in_vain)
            drawn[row, search._likely_kind()] += 1
    shares = np.array([[1, 1, 3, 1, 1], [1, 1, 3, 1 / 16, 1 / 16]])
    assert drawn / 4_000 == pytest.approx(shares / shares.sum(axis=1, keepdims=True), abs=0.03)


def test_a_better_plan_makes_its_kind_of_move_frequent_again():
    _, search, first = started(plans=False)
    search._repeats = True
    for _ in range(20):
        (candidate,) = search.ask()
        search.tell([attrs.evolve(landscape.trial(candidate.state()), cost=first.cost * 2)])
    assert sum(search._in_vain) >= 20
    (candidate,) = search.ask()
    assert search._in_vain[search._kind] > 0
    search.tell([attrs.evolve(landscape.trial(candidate.state()), cost=first.cost / 2)])
    assert search._in_vain[search._kind] == 0


@pytest.mark.parametrize("plans_first", [True, False])
def test_one_seed_proposes_the_same(plans_first):
    def proposals():
        _, search, _ = started(plans=plans_first)
        keys = []
        for _ in range(40):
            (candidate,) = search.ask()
            keys.append(candidate.state().strategy.key)
            search.tell([landscape.trial(candidate.state())])
        return keys

    assert proposals() == proposals()
