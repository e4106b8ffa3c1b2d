"""The chain: what it accepts, when it returns to the best, and how a placement spreads."""

from __future__ import annotations

import math

import numpy as np
import pytest

from topoplan import Cluster, Demand, Fabric, Placement, State, Trial
from topoplan.model.graph import Slices
from topoplan.testing import parametrize_with_checks, reference
from topoplan_engine import problem_on_fabric
from topoplan_placement_moves.propagation import Propagation, map_placement
from topoplan_samples.costs import FlatCosts
from topoplan_samples.graphs import two_linears
from topoplan_searcher_mcmc import Mcmc
from topoplan_searcher_mcmc.chain import Chain
from topoplan_searcher_mcmc.draws import Draws, quick_draws
from topoplan_searcher_mcmc.windows import neighbouring


@pytest.fixture
def problem():
    return problem_on_fabric(two_linears(), Cluster.uniform(n_hosts=4), FlatCosts(), reference.ring())


def trial_of(state, cost):
    return Trial(state=state, cost=cost, demand=lambda: None)


def first_state(problem):
    fabric = Fabric.from_links(name="pair", n_hosts=4, links=[(0, 1)], bandwidth=1.0, latency=0.0)
    return State(problem.space.initial(), fabric)


@parametrize_with_checks(Mcmc)
def test_conformance(check):
    check()


@pytest.mark.parametrize(("temperature", "alpha", "slowdown"), [("relative", 50.0, 0.01), ("absolute", 2.0, 0.0003)])
def test_a_slowdown_is_accepted_as_often_as_metropolis_says(problem, temperature, alpha, slowdown):
    options = Mcmc(temperature=temperature, alpha=alpha, reset_every=10**9)
    chain = Chain(options, problem, np.random.default_rng(1))
    state = first_state(problem)
    expected = math.exp(-alpha * slowdown) if temperature == "relative" else math.exp(-alpha * slowdown * 1e3)
    accepted, tries = 0, 4000
    for _ in range(tries):
        chain.adopt(trial_of(state, 1.0))
        (candidate,) = chain.ask()
        chain.tell([trial_of(candidate.state(), 1.0 + slowdown)])
        accepted += candidate.cutoff_seconds > 1.0 + slowdown
    assert accepted / tries == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / tries))
    assert chain.acceptance == pytest.approx(accepted / tries)


def test_faster_and_equal_are_always_accepted(problem):
    chain = Chain(Mcmc(reset_every=10**9), problem, np.random.default_rng(2))
    chain.adopt(trial_of(first_state(problem), 1.0))
    for cost in (1.0, 1.0, 0.9, 0.9, 0.5):
        (candidate,) = chain.ask()
        trial = trial_of(candidate.state(), cost)
        chain.tell([trial])
        assert chain.ask()[0].base is trial.state
    assert chain.acceptance == 1.0


def test_an_infeasible_start_is_left_by_anything(problem):
    chain = Chain(Mcmc(), problem, np.random.default_rng(0))
    chain.adopt(trial_of(first_state(problem), math.inf))
    (candidate,) = chain.ask()
    trial = trial_of(candidate.state(), 5.0)
    chain.tell([trial])
    assert chain.ask()[0].base is trial.state


def test_the_chain_returns_to_the_best(problem):
    chain = Chain(Mcmc(reset_every=5, temperature="absolute", alpha=1e-9), problem, np.random.default_rng(0))
    best = trial_of(first_state(problem), 1.0)
    chain.adopt(best)
    bases = []
    for _ in range(12):
        (candidate,) = chain.ask()
        bases.append(candidate.base)
        chain.tell([trial_of(candidate.state(), 2.0)])
    assert [k for k, base in enumerate(bases) if base is best.state] == [0, 5, 10]


def test_one_seed_gives_one_chain(problem):
    def proposals(seed):
        chain = Chain(Mcmc(), problem, np.random.default_rng(seed))
        chain.adopt(trial_of(first_state(problem), 1.0))
        seen = []
        for k in range(50):
            (candidate,) = chain.ask()
            seen.append([(op, p.key) for op, p in candidate.placements.items()])
            chain.tell([trial_of(candidate.state(), 1.0 + 0.01 * (k % 3))])
        return seen

    assert proposals(7) == proposals(7)
    assert proposals(7) != proposals(8)


def test_a_cut_is_carried_along_the_tensor_that_two_operators_share():
    samples = Placement((4, 1, 1), [0, 1, 2, 3])
    assert map_placement(samples, {0: 1}, (3, 8, 3)).degrees == (1, 4, 1)
    assert map_placement(Placement((2, 1, 2), [0, 1, 2, 3]), {0: 0}, (8, 8, 8)) is None
    uneven = Placement((Slices((5, 3)), 1), [0, 1])
    assert map_placement(uneven, {0: 1}, (3, 8, 3)).degrees == (1, Slices((5, 3)), 1)
    assert map_placement(uneven, {0: 0}, (80,)).degrees == (Slices((50, 30)),)
    # Dimensions that change places take their devices with them.
    crossed = map_placement(Placement((2, 2), [0, 1, 2, 3]), {0: 1, 1: 0}, (2, 2))
    assert crossed.degrees == (2, 2)
    assert crossed.devices.tolist() == [0, 2, 1, 3]


def test_spreading_makes_neighbours_agree(problem):
    space = problem.space
    placements = [space.place((1,) * len(op.dims), 0) for op in problem.graph.operators]
    placements[0] = space.place((4, 1, 1), 0)
    propagation = Propagation(problem.graph, space, 0.99)
    rng = np.random.default_rng(0)
    seen = [propagation.spread(placements, rng) for _ in range(40)]
    assert any(1 in changes and changes[1].degrees[0] == 4 for changes in seen)
    assert all(p.degrees in space.degrees(op) for changes in seen for op, p in changes.items())


def test_demand_is_not_asked_for(problem):
    def demand() -> Demand:
        raise AssertionError

    chain = Chain(Mcmc(), problem, np.random.default_rng(0))
    chain.adopt(Trial(state=first_state(problem), cost=1.0, demand=demand))
    chain.tell([Trial(state=chain.ask()[0].state(), cost=1.0, demand=demand)])


def test_accepted_moves_are_offered_and_a_worse_state_that_it_is_given_is_not_its_best(problem):
    chain = Chain(Mcmc(reset_every=2, temperature="absolute", alpha=1e-9), problem, np.random.default_rng(0))
    best = trial_of(first_state(problem), 1.0)
    chain.adopt(best)
    (candidate,) = chain.ask()
    moved = trial_of(candidate.state(), 1.5)
    chain.tell([moved])
    assert chain.reached is moved
    assert chain.follows
    worse = trial_of(moved.state, 1.25)
    chain.adopt(worse)  # the same strategy on another fabric
    (candidate,) = chain.ask()
    assert candidate.base is worse.state
    chain.tell([trial_of(candidate.state(), math.inf)])
    assert chain.reached is None
    assert chain.ask()[0].base is best.state


def test_neighbouring_hosts_stand_in_a_row():
    cluster = Cluster.uniform(n_hosts=8, devices_per_host=2, interfaces=1)
    rng, seen = np.random.default_rng(3), set()
    for _ in range(200):
        devices = neighbouring(Placement((4, 2), np.arange(0, 16, 2)), cluster, rng).devices
        hosts = np.unique(cluster.device_host[devices])
        assert len(hosts) == 4
        assert list(devices) == sorted(devices)
        gaps = np.diff([*hosts, hosts[0] + 8])
        assert sorted(gaps)[:3] == [1, 1, 1]  # in a row, round the end
        seen.add(tuple(hosts))
    assert len(seen) == 8
    small = Placement((2, 1), [4, 5])
    assert neighbouring(small, cluster, rng) is small


def test_a_chain_draws_neighbouring_hosts(problem):
    options = Mcmc(hosts="neighbouring", block=0, propagation=0)
    chain = Chain(options, problem, np.random.default_rng(4))
    chain.adopt(trial_of(first_state(problem), 1.0))
    pairs = set()
    for _ in range(100):
        (candidate,) = chain.ask()
        pairs |= {tuple(p.devices) for p in candidate.placements.values() if p.parts == 2}
        chain.tell([])
    assert pairs == {(0, 1), (1, 2), (2, 3), (0, 3)}


@pytest.mark.parametrize("begun", [False, True], ids=["a fresh one", "half a number is left"])
def test_quick_draws_are_those_of_the_generator(begun):
    slow, rng, kinds = (np.random.default_rng(8) for _ in range(3))
    if begun:
        assert slow.integers(7) == rng.integers(7)
    quick = quick_draws(rng)
    assert isinstance(quick, Draws)
    for bound in kinds.choice([0, 1, 2, 3, 17, 1000, 2**31 + 5, 2**32 - 1], size=6000).tolist():
        if bound == 0:
            assert quick.random() == slow.random()
        else:
            assert quick.integers(bound) == slow.integers(bound)


def test_other_generators_are_left_as_they_are():
    rng = np.random.Generator(np.random.MT19937(0))
    assert quick_draws(rng) is rng
