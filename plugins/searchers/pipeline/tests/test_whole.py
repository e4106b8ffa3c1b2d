"""Operators that are not cut, and small messages: estimates beside the strategy that is built, and its simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pipeline_models import Costs, evaluator_of, switch_problem

from topoplan import Candidate, Cluster
from topoplan_samples.graphs import layer_graph
from topoplan_samples.problems import state_of
from topoplan_searcher_pipeline import DapplePipeline
from topoplan_searcher_pipeline.plans import Pipeline, devices_of, strategy_of
from topoplan_searcher_pipeline.search import plan_pipelines
from topoplan_searcher_pipeline.stage_simulation import StageTimes, iteration_seconds
from topoplan_searcher_pipeline.whole import rounded_share


class WholeCosts(Costs):
    """All operators but the last have a price only as a whole."""

    def supports(self, op, degrees):
        return op == len(self.columns[0]) - 1 or set(degrees) == {1}


def tables(seconds, outputs, hosts=4, batch=64):
    """Return a problem: tables that take so many seconds, and an operator of one second that reads them all."""
    count = len(seconds)
    graph = layer_graph([(k, count) for k in range(count)], [1_000] * count + [0], [outputs] * (count + 1), batch)
    costs = WholeCosts([*seconds, 1.0], [2 * s for s in seconds] + [2.0], [8.0] * (count + 1), [1e6] * count + [0.0])
    cluster = Cluster.uniform(n_hosts=hosts, latency=0.0, interface_bandwidth=1e9, interfaces=1)
    return switch_problem(graph, cluster, costs)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.1, 4.0), min_size=1, max_size=9), st.integers(1, 4))
def test_a_stage_takes_what_its_busiest_device_computes(seconds, devices):
    problem = tables(seconds, outputs=8)
    planner = plan_pipelines(DapplePipeline(), problem).planner
    columns, machine = planner.columns, planner.machine
    pipeline = Pipeline((0,), ((1,) * devices + (0,) * (4 - devices),))
    strategy = strategy_of(planner.plan(pipeline, "gpipe", 1), problem.graph, columns, machine)
    (members,) = devices_of(pipeline, machine)
    own = np.zeros(4)
    for op, placement in enumerate(strategy.placements):
        for device in placement.devices.tolist():
            own[device] += ([*seconds, 1.0][op]) / placement.parts
    costs = planner.costs_of(pipeline, 1)
    assert costs.forward[0] == pytest.approx(own[list(members)].max())
    assert costs.backward[0] == pytest.approx(2 * own[list(members)].max())
    held = np.bincount([int(p.devices[0]) for p in strategy.placements[:-1]], minlength=4) * 1e6
    assert costs.persistent[0] == pytest.approx(held.max())


def test_equal_operators_are_rounded_up_to_whole_ones():
    estimate = rounded_share.py_func  # plain: it is compiled as a part of others
    assert estimate(0.0, 0.0, 4) == 0.0
    assert estimate(8.0, 4.0, 4) == 0.0
    assert estimate(5.0, 5.0, 4) == pytest.approx(2.0 - 1.25)


@pytest.mark.parametrize("micro_batches", [1, 4, 16, 64])
def test_small_messages_take_their_bytes(micro_batches):
    # Two stages of a device each; in the smallest micro-batches messages have 8 bytes.
    problem = tables([1e-5], outputs=8, hosts=2)
    problem.costs.columns[0][1], problem.costs.columns[1][1] = 1e-5, 2e-5
    planner = plan_pipelines(DapplePipeline(), problem).planner
    plan = planner.plan(Pipeline((0, 1), ((1, 0), (0, 1))), "gpipe", micro_batches)
    strategy = strategy_of(plan, problem.graph, planner.columns, planner.machine)
    cost = evaluator_of(problem).price(Candidate(base=state_of(problem, strategy))).cost
    assert plan.seconds == pytest.approx(cost, rel=1e-3)


def test_what_is_sent_arrives_after_the_latency_of_the_network():
    one, load, back = np.ones(2), np.array([[0.25, 0.0]]), np.array([[0.0, 0.25]])
    times = StageTimes(
        one,
        0 * one,
        one,
        0 * one,
        0 * one,
        np.array([0]),
        np.array([1]),
        np.zeros(1),
        load,
        back,
        np.zeros(1),
        np.ones(1),
    )
    late = times._replace(latency=np.array([0.125]))
    assert iteration_seconds("gpipe", 1, times) == 4.5
    assert iteration_seconds("gpipe", 1, late) == 4.75
    assert iteration_seconds("gpipe", 8, late) == iteration_seconds("gpipe", 8, times) + 0.25


@pytest.mark.parametrize("micro_batches", [4, 16])
def test_passes_wait_for_messages_between_the_devices_of_a_stage(micro_batches):
    problem = tables([1e-4] * 4, outputs=1000)
    problem.costs.columns[0][4], problem.costs.columns[1][4] = 1e-4, 2e-4
    planner = plan_pipelines(DapplePipeline(), problem).planner
    plan = planner.plan(Pipeline((0,), ((1, 1, 1, 1),)), "gpipe", micro_batches)
    strategy = strategy_of(plan, problem.graph, planner.columns, planner.machine)
    cost = evaluator_of(problem).price(Candidate(base=state_of(problem, strategy))).cost
    assert plan.seconds == pytest.approx(cost, rel=1e-3)
