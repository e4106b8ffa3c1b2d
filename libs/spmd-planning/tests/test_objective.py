"""The objective of a plan, priced again from its stages."""

from __future__ import annotations

import pytest

from topoplan import Cluster
from topoplan_engine import problem_on
from topoplan_estimator_hidup import Hidup
from topoplan_frontend_hidup import VitSwitch
from topoplan_spmd_planning.objective import objective
from topoplan_spmd_planning.planning import plan
from topoplan_spmd_planning.prices import Prices
from topoplan_spmd_planning.program import write_down
from topoplan_spmd_planning.released import released
from topoplan_topology_bigswitch import BigSwitch

GRAPH, CLUSTER = VitSwitch(world_size=8, layers=2).build(None), Cluster.uniform(n_hosts=1, devices_per_host=8)
PROGRAM = write_down(GRAPH, released)


def planned(**profile):
    costs = Hidup(preset="released", **profile).build(GRAPH, CLUSTER)
    prices = Prices(problem_on(GRAPH, CLUSTER, costs, BigSwitch()))
    return plan(PROGRAM, prices, max_states=1_000_000, model="vit-switch"), prices


def test_the_stages_cost_what_the_search_said():
    for profile in ({}, {"noise": 0.3, "noise_seed": 5}):
        answer, prices = planned(**profile)
        assert objective(answer.stages, PROGRAM, prices) == pytest.approx(answer.outcome.objective, rel=1e-14)


@pytest.mark.slow
def test_no_plan_of_other_prices_is_better():
    best, prices = planned()
    costs = [
        objective(planned(noise=0.8, noise_seed=seed)[0].stages, PROGRAM, prices) / best.outcome.objective
        for seed in range(4)
    ]
    assert min(costs) > 1 - 1e-12
    assert max(costs) > 1
