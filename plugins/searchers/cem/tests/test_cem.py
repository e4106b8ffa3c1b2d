"""Distributions, and what a generation teaches them."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan.testing import landscape
from topoplan_searcher_cem import CrossEntropy, Distribution


def test_a_distribution_moves_to_the_frequencies_of_the_elite():
    space = landscape.problem().space
    a, b, c = list(space.placements(0))[:3]
    distribution = Distribution(a, 0.2)
    assert [distribution.draw(u) for u in (0.0, 0.79, 0.81)] == [a, a, None]
    distribution.learn([b, b, b, c], rate=0.5, fresh=0.1)
    assert distribution.weights == pytest.approx({a: 0.4, b: 0.375, c: 0.125})
    distribution.learn([b], rate=1.0, fresh=0.1)
    assert distribution.weights == pytest.approx({b: 0.9})
    assert [distribution.draw(u) for u in (0.89, 0.91)] == [b, None]


def test_it_converges_to_what_is_fast():
    problem = landscape.problem()
    search = CrossEntropy(generation=20, elite=0.2, spread=1.0).build(problem, np.random.default_rng(1))
    search.adopt(landscape.trial(landscape.start(problem)))
    costs = []
    for _ in range(400):
        (candidate,) = search.ask()
        costs.append(landscape.trial(candidate.state()).cost)
        search.tell([landscape.trial(candidate.state())])
    cheapest = min(
        landscape.trial(attrs.evolve(candidate.base, strategy=candidate.base.strategy.with_changes({0: p, 1: q}))).cost
        for p in problem.space.placements(0)
        for q in problem.space.placements(1)
    )
    assert np.mean(costs[-50:]) < np.mean(costs[:50])
    assert min(costs) == pytest.approx(cheapest)


def test_the_cutoff_is_the_slowest_of_the_elite():
    problem = landscape.problem()
    search = CrossEntropy(generation=10, elite=0.2).build(problem, np.random.default_rng(1))
    first = attrs.evolve(landscape.trial(landscape.start(problem)), cost=1.0)
    search.adopt(first)
    cutoffs = []
    for cost in (3.0, 2.0, 4.0, 0.5):
        (candidate,) = search.ask()
        cutoffs.append(candidate.cutoff_seconds)
        search.tell([attrs.evolve(first, cost=cost)])
    assert cutoffs == [float("inf"), 3.0, 2.0, 2.0]
    assert search.ask()[0].cutoff_seconds == 1.0
