"""The schedule of the temperature, restarts, and acceptance."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan.testing import landscape
from topoplan_searcher_anneal import Anneal


def started(**options):
    problem = landscape.problem()
    search = Anneal(**options).build(problem, np.random.default_rng(0))
    first = landscape.trial(landscape.start(problem))
    search.adopt(first)
    return search, first


def priced(search, cost):
    """Ask once, answer with a cost, and return the trial."""
    (candidate,) = search.ask()
    trial = attrs.evolve(landscape.trial(candidate.state()), cost=cost)
    search.tell([trial])
    return trial


def test_the_temperature_falls_geometrically_and_rounds_double():
    search, first = started(hot=0.1, cold=0.001, length=3)
    temperatures = []
    for _ in range(3 + 6 + 1):
        search.ask()
        temperatures.append(search.temperature)
        search.tell([attrs.evolve(first, cost=float("inf"))])
    assert temperatures[:3] == pytest.approx([0.1, 0.01, 0.001])
    assert temperatures[3:9] == pytest.approx(list(0.1 * 0.01 ** (np.arange(6) / 5)))
    assert temperatures[9] == pytest.approx(0.1)


def test_a_round_starts_from_the_best_state():
    search, first = started(length=2, hot=1e6, cold=1e5)
    best = priced(search, first.cost / 2)
    assert search.reached is best
    slow = priced(search, first.cost)  # so hot that it is accepted
    assert search.reached is slow
    (candidate,) = search.ask()
    assert candidate.base is best.state


def test_slowdowns_are_accepted_hot_and_not_cold():
    def share(temperature):
        search, first = started(hot=temperature, cold=temperature, length=1000)
        accepted = 0
        for _ in range(400):
            search.adopt(first)
            trial = priced(search, first.cost * 1.01)
            accepted += search.reached is trial
        return accepted / 400

    assert share(0.01) == pytest.approx(np.exp(-1), abs=0.08)
    assert share(0.0005) == 0
