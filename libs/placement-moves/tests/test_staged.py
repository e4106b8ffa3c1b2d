"""Moves between staged strategies: valid ones, of every kind, the same for one seed, and chains that use them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from topoplan import Host, PlacedStrategy, StagedStrategy, TopoplanError, Trial
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.guarded import build_search
from topoplan_engine.lowering import Lowering
from topoplan_estimator_roofline import Roofline
from topoplan_placement_moves.staged import StagedMoves
from topoplan_samples.llama import graph
from topoplan_samples.problems import star_problem, state_of
from topoplan_searcher_anneal import Anneal
from topoplan_searcher_cem import CrossEntropy
from topoplan_searcher_mcmc import Mcmc
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings


def llama_on(hosts, batch):
    model = graph(batch=batch)
    cluster = build_cluster(ClusterOptions(servers=hosts, device="h100"), Host.discover())
    return star_problem(model, cluster, Roofline().build(model, cluster))


@pytest.fixture(scope="module")
def problem():
    return llama_on(8, batch=16)


@pytest.fixture(scope="module")
def start(problem):
    plan = Settings(tp=2, pp=2, micro_batch=2, zero=1)
    return strategy_of(plan, problem.graph, 8)[0]


def said(strategy: StagedStrategy) -> tuple[object, ...]:
    """What moves change."""
    stages = strategy.stages
    return (
        tuple(stage.mesh.devices.tobytes() for stage in stages),
        tuple(stage.operators.tobytes() for stage in stages),
        strategy.micro_batches,
        tuple(stage.zero.level for stage in stages),
        tuple(stage.regions.tobytes() for stage in stages),
    )


def chain(problem, start, seed, length=40):
    moves, rng, strategies = StagedMoves(problem), np.random.default_rng(seed), [start]
    for _ in range(length):
        strategies.append(moves.draw(strategies[-1], rng))
    return strategies


@pytest.mark.slow
def test_every_kind_of_move_is_drawn_and_all_are_valid(problem, start):
    strategies = chain(problem, start, seed=0)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    kinds = set()
    for before, after in itertools.pairwise(strategies):
        after.check(problem.graph, 8)
        lowering.lower(after)
        changed = [k for k, (a, b) in enumerate(zip(said(before), said(after), strict=True)) if a != b]
        assert len(changed) == 1 or changed == [1, 4]  # layers that run again move with their stage
        kinds.add(changed[0])
    assert kinds == {0, 1, 2, 3, 4}


@pytest.mark.slow
def test_one_seed_draws_one_chain(problem, start):
    chains = [[each.key for each in chain(problem, start, seed)] for seed in (1, 1, 2)]
    assert chains[0] == chains[1] != chains[2]


@pytest.mark.parametrize("searcher", [Mcmc(), Anneal()], ids=["mcmc", "anneal"])
def test_chains_move_from_staged_strategies(problem, start, searcher):
    search = searcher.build(problem, np.random.default_rng(0))
    state = state_of(problem, start)
    search.adopt(Trial(state=state, cost=1.0, demand=None))
    seen = set()
    for _ in range(5):
        (candidate,) = search.ask()
        found = candidate.state().strategy
        assert isinstance(found, StagedStrategy)
        seen.add(found.key)
        search.tell([Trial(state=candidate.state(), cost=0.9, demand=None)])
    assert len(seen) > 2


def test_a_strategy_without_moves_stays(problem, start):
    one = llama_on(1, batch=1)
    alone = strategy_of(Settings(), one.graph, 1)[0]
    moves = StagedMoves(one)
    found = moves.draw(alone, np.random.default_rng(0))
    assert said(found)[:4] == said(alone)[:4]


def test_a_searcher_that_places_operators_of_such_stages_is_named(problem, start):
    search = build_search(CrossEntropy(), problem, np.random.default_rng(0))
    search.adopt(Trial(state=state_of(problem, start), cost=1.0, demand=None))
    message = r"searcher 'cem'.*: places operators one by one.*choose mcmc or anneal"
    with pytest.raises(TopoplanError, match=message):
        any(search.ask() is None for _ in range(100))  # it may draw no change at first


@pytest.mark.parametrize("searcher", [Mcmc, Anneal])
def test_chains_leave_a_program_of_all_devices_for_placements(problem, searcher):
    overlapped = strategy_of(Settings(dp=8, micro_batch=1, overlap="hidup"), problem.graph, 8)[0]
    search = build_search(searcher(), problem, np.random.default_rng(0))
    search.adopt(Trial(state=state_of(problem, overlapped), cost=1.0, demand=None))
    (candidate,) = search.ask()
    assert isinstance(candidate.state().strategy, PlacedStrategy)
