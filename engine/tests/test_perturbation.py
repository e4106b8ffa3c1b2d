"""Perturbed problems: what is wrong in them is what was asked for, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoplan.model.fabric import Fabric
from topoplan.testing import reference
from topoplan_engine.perturbation import Perturbation
from topoplan_engine.search.perturbed import at_bandwidth, perturbed
from topoplan_engine.search.problems import problem_on_fabric


def problem():
    graph, cluster, costs = reference.graph(), reference.cluster(), reference.Costs()
    return problem_on_fabric(graph, cluster, costs, reference.ring())


def test_no_perturbation_changes_nothing():
    true, seen = problem(), perturbed(problem(), Perturbation(seed=3))
    assert seen.cluster == true.cluster
    rng = np.random.default_rng(0)
    assert seen.build_fabric(None, rng) == true.build_fabric(None, rng)
    for op in range(3):
        arguments = (op, (2, 1, 1), np.arange(2))
        assert (seen.costs.price(*arguments).forward == true.costs.price(*arguments).forward).all()


@given(noise=st.floats(0, 0.99), scale=st.floats(0.01, 100), seed=st.integers(0, 1000))
def test_factors_are_within_the_noise_and_one_for_each_operator(noise, scale, seed):
    true = problem()
    seen = perturbed(true, Perturbation(compute_noise=noise, communication_scale=scale, seed=seed))
    for op in range(3):
        ratios = []
        for degrees in ((1, 1, 1), (4, 1, 1), (1, 2, 2)):
            devices = np.arange(int(np.prod(degrees)))
            before, after = true.costs.price(op, degrees, devices), seen.costs.price(op, degrees, devices)
            ratios += [*(after.forward / before.forward), *(after.backward / before.backward)]
            assert (after.memory == before.memory).all()
        assert np.allclose(ratios, ratios[0])
        assert 1 - noise - 1e-9 <= ratios[0] <= 1 + noise + 1e-9
    for column in ("inside_bandwidth", "interface_bandwidth"):
        assert np.allclose(getattr(seen.cluster, column), getattr(true.cluster, column) * scale)
    fabric = seen.build_fabric(None, np.random.default_rng(0))
    assert np.allclose(fabric.link_bandwidth, reference.ring().link_bandwidth * scale)
    assert (fabric.link_latency == reference.ring().link_latency).all()


def test_one_seed_gives_one_noise_and_another_one_another():
    factors = [
        [
            perturbed(problem(), Perturbation(compute_noise=0.5, seed=seed))
            .costs.price(op, (1, 1, 1), np.zeros(1, dtype=np.int32))
            .forward[0]
            for op in range(3)
        ]
        for seed in (1, 1, 2)
    ]
    assert factors[0] == factors[1] != factors[2]
    assert len(set(factors[0])) == 3


@pytest.mark.parametrize("fabric", [reference.ring(), reference.rebuilt(1e-3)], ids=["stays", "rebuilt"])
def test_bandwidths_come_back(fabric: Fabric):
    fast = at_bandwidth(fabric, 4.0)
    assert all((part.link_bandwidth == 4e9).all() for part in fast.wirings)
    assert at_bandwidth(fast, 0.25) == fabric


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, "none"),
        ({"compute_noise": 0.2}, "compute x 0.8..1.2"),
        ({"compute_noise": 0.5, "communication_scale": 2.0}, "compute x 0.5..1.5, bandwidth x 2"),
    ],
)
def test_it_is_told_in_words(given, told):
    assert str(Perturbation(**given)) == told
