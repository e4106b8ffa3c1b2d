"""Turns and proposals of the searcher, with fabrics and prices made up by the test."""

import attrs
import numpy as np
import pytest

from topoplan import Fabric, State, TopoplanError, Trial
from topoplan.options import structure
from topoplan.testing import landscape, reference
from topoplan_searcher_rewire import Rewire


def problem(reconfigurable=True):
    return attrs.evolve(landscape.problem(), reconfigurable=reconfigurable)


def mesh():
    links = [(a, b) for a in range(4) for b in range(4) if a != b]
    return Fabric.from_links(name="mesh", n_hosts=4, links=links, bandwidth=1e9, latency=1e-6)


def start(**options):
    return structure(Rewire, options, "searcher rewire").build(problem(), np.random.default_rng(0))


def trial(fabric, cost=1.0):
    return Trial(state=State(problem().space.initial(), fabric), cost=cost, demand=reference.demand)


def test_needs_a_fabric_that_can_be_rewired():
    with pytest.raises(TopoplanError, match="cannot be rewired"):
        Rewire().build(problem(reconfigurable=False), np.random.default_rng(0))


def test_proposes_the_topologys_own_fabric_for_what_it_was_given():
    search = start()
    assert search.ask() == []
    given = trial(reference.ring(), cost=0.5)
    search.adopt(given)
    (candidate,) = search.ask()
    assert candidate.base is given.state
    assert candidate.cutoff_seconds == 0.5
    assert not candidate.placements
    assert {(0, 2), (2, 0)} <= set(zip(candidate.fabric.link_src, candidate.fabric.link_dst, strict=True))


def test_proposes_again_only_for_another_state_and_in_time():
    search = start(every=3)
    search.adopt(trial(mesh()))
    assert len(search.ask()) == 1
    assert [len(search.ask()) for _ in range(9)] == [0] * 9
    search.adopt(trial(mesh()))
    assert len(search.ask()) == 1
    search.adopt(trial(mesh()))
    assert [len(search.ask()) for _ in range(6)] == [0, 0, 1, 0, 0, 0]


def test_proposes_nothing_that_is_there_already():
    search = start()
    search.adopt(trial(landscape.problem().build_fabric(reference.demand(), np.random.default_rng(0))))
    assert search.ask() == []
