"""The searcher: what it promises, proposes and reports, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import (
    Cluster,
    CostFunction,
    PartCosts,
    TopoplanError,
    Trial,
)
from topoplan.testing import parametrize_with_checks
from topoplan_samples.graphs import layer_graph
from topoplan_samples.problems import star_problem, state_of
from topoplan_searcher_hpgo import Hpgo

BATCH = 32


@parametrize_with_checks(Hpgo)
def test_conformance(check):
    check()


class Costs(CostFunction):
    """A millisecond forward and two backward for each whole operator, shared by its parts."""

    largest_cut = BATCH

    def supports(self, op, degrees):
        return max(degrees) <= self.largest_cut

    def price(self, op, degrees, devices):
        share = np.full(len(devices), 1e-3 / len(devices))
        return PartCosts(forward=share, backward=2 * share, memory=share)


def problem_of(edges, count, devices_per_host=2, weight=4_000_000, costs=None, **cluster):
    graph = layer_graph(edges, [weight] * count, [400] * count, BATCH)
    machine = Cluster.uniform(n_hosts=2, devices_per_host=devices_per_host, **cluster)
    return star_problem(graph, machine, costs or Costs())


def chain(count, **given):
    return problem_of([(k, k + 1) for k in range(count - 1)], count, **given)


def search_of(problem, **options):
    search = Hpgo(**options).build(problem, np.random.default_rng(0))
    search.adopt(Trial(state=state_of(problem), cost=1.0, demand=lambda: None))
    return search


def test_every_operator_of_a_stage_is_data_parallel_over_its_devices():
    problem = chain(8, weight=1000)
    search = search_of(problem)
    candidates = search.ask()
    report = search.report(None)
    assert {stage["start"] for stage in report["stages"]} == {0, 4}
    assert report["split"] == "2|2 @4"
    best = candidates[0].state().strategy
    best.check(problem.graph, 4)
    operators = [op.name for op in problem.graph.operators]
    for stage in report["stages"]:
        for name in stage["operators"]:
            placed = best.placements[operators.index(name)]
            assert placed.devices.tolist() == stage["devices"]
            assert placed.degrees == (2,)
    assert sorted(name for stage in report["stages"] for name in stage["operators"]) == [f"op{k}" for k in range(8)]


def test_parallel_branches_land_in_some_stage():
    problem = problem_of([(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5), (4, 6), (5, 6)], 7)
    search = search_of(problem)
    for candidate in search.ask():
        strategy = candidate.state().strategy
        strategy.check(problem.graph, 4)
    assert sum(len(stage["operators"]) for stage in search.report(None)["stages"]) == 7


def test_one_plan_of_each_family_is_proposed_once_the_best_one_first():
    search = search_of(chain(8))
    candidates = search.ask()
    assert 2 <= len(candidates) <= 4
    assert [bool(c.comparison) for c in candidates] == [False] + [True] * (len(candidates) - 1)
    search.tell([Trial(state=c.state(), cost=1.0 + k, demand=lambda: None) for k, c in enumerate(candidates)])
    report = search.report(candidates[0].state().strategy)
    assert report["planned_iteration_time_s"] == pytest.approx(report["one_device_s"] / report["speedup"])
    assert search.ask() == []


def test_a_plan_that_cannot_be_priced_is_reported_all_the_same():
    costs = Costs()
    costs.largest_cut = 1
    search = search_of(chain(8, weight=1000, costs=costs))
    candidates = search.ask()
    assert [max(p.parts for p in c.base.strategy.placements) for c in candidates] == [1]  # one device each
    assert [c.comparison for c in candidates] == ["hpgo's best of its family one device each, 1|1|1|1 @2 @4 @6"]
    assert search.report(None)["split"] == "2|2 @4"


def test_bandwidths_of_the_cluster_count_when_asked_for():
    slow = {"interface_bandwidth": 1e6, "interfaces": 1, "inside_bandwidth": 1e6}
    released = search_of(chain(8, **slow)).report(None)
    own = search_of(chain(8, **slow), bandwidths="cluster").report(None)
    assert own["speedup"] < released["speedup"]
    assert own["baselines"]["no_overlap"] < released["baselines"]["no_overlap"] / 100


def test_fewer_layers_than_devices_leave_one_family_out():
    report = search_of(chain(3)).report(None)
    assert report["left_out"] == "one device each: 3 layers for 4 devices"
    assert report["speedup"] > 1
    assert search_of(chain(4)).report(None)["left_out"] is None


def test_one_device_and_one_layer_are_planned_for():
    problem = chain(1)
    assert search_of(problem).report(None)["split"] == "4"
    single = problem_of([(0, 1)], 2, devices_per_host=1)
    assert search_of(single).report(None)["speedup"] > 0


def test_simplified_layers_are_operators_in_order():
    branches = [(0, k) for k in range(1, 7)] + [(k, 7) for k in range(1, 7)]
    problem = problem_of(branches, 8)
    assert search_of(problem).report(None)["layers"] > 8
    assert search_of(problem, simplify=True).report(None)["layers"] == 8


@pytest.mark.parametrize(
    ("edges", "count", "given", "options", "message"),
    [
        ([(0, 1)], 2, {}, {"micro_batch": 33}, "micro-batch 33 is larger than the batch of 32 samples"),
        ([(0, 1)], 2, {"device_memory": 1e6}, {}, "the weights of 'op0' take 0.0 GiB, but no device has more"),
        ([(0, 1)], 4, {}, {}, "operator 'op2' is on no way from or to the first one, 'op0'"),
        (
            [(0, k) for k in range(1, 9)] + [(k, 9) for k in range(1, 9)],
            10,
            {},
            {"max_states": 20},
            "more than 20 layers .antichain states. of 10 operators .hpgo:simplify=true",
        ),
        ([(k, k + 1) for k in range(9)], 10, {}, {"max_states": 9, "simplify": True}, "10 layers are more than max-s"),
    ],
)
def test_what_cannot_be_planned_is_refused(edges, count, given, options, message):
    with pytest.raises(TopoplanError, match=message):
        search_of(problem_of(edges, count, **given), **options)


def test_a_model_that_takes_no_time_is_refused():
    class Free(Costs):
        def price(self, op, degrees, devices):
            none = np.zeros(len(devices))
            return PartCosts(forward=none, backward=none, memory=none)

    with pytest.raises(TopoplanError, match="takes no time"):
        search_of(chain(4, costs=Free()))


def test_plans_of_more_micro_batches_than_are_simulated_are_refused():
    graph = layer_graph([(0, 1), (1, 2)], [1000] * 3, [400] * 3, 2**20)
    costs = Costs()
    costs.largest_cut = 2**20
    problem = star_problem(graph, Cluster.uniform(n_hosts=2, devices_per_host=2), costs)
    with pytest.raises(TopoplanError, match=r"hpgo: micro-batch is 1, .* 16,384 .*micro-batch=64 or more"):
        Hpgo().build(problem, np.random.default_rng(0))
    assert Hpgo(micro_batch=64).build(problem, np.random.default_rng(0))
