"""Seconds below which no plan gets."""

from __future__ import annotations

import pytest

from topoplan import Host, optimize
from topoplan_engine import ClusterOptions, build_cluster, problem_on
from topoplan_engine.search.least_work import least_seconds
from topoplan_estimator_roofline import Roofline
from topoplan_operators import GraphBuilder
from topoplan_topology_bigswitch import BigSwitch


def test_one_device_takes_that_long_and_several_their_share():
    b = GraphBuilder("matrices", 64)
    b.linear(b.linear(b.input((256,)), 256), 256)
    graph = b.build()
    alone = optimize(graph, servers=1, searchers=["baseline:rule=ddp"])
    assert alone.least_seconds == pytest.approx(alone.seconds)
    four = build_cluster(ClusterOptions(servers=4), Host.discover())
    problem = problem_on(graph, four, Roofline().build(graph, four), BigSwitch())
    assert least_seconds(problem) == pytest.approx(alone.least_seconds / 4)


@pytest.mark.slow
def test_plans_take_longer():
    outcome = optimize("alexnet", servers=4, batch_size=64, budget=20)
    assert 0 < outcome.least_seconds < outcome.seconds
