"""The searcher: what it promises, proposes and reports, and what it refuses."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from pipeline_models import Costs, evaluator_of, random_case, solve, switch_problem

from topoplan import Candidate, Cluster, TopoplanError, Trial
from topoplan.errors import NoPlanFitsError
from topoplan.testing import parametrize_with_checks
from topoplan_samples.graphs import layer_graph
from topoplan_samples.problems import state_of
from topoplan_searcher_pipeline import DapplePipeline
from topoplan_searcher_pipeline.search import PipelineSearch, plan_pipelines


@parametrize_with_checks(DapplePipeline)
def test_conformance(check):
    check()


def chain(layers, batch=16, weight=1000, outputs=4000, seconds=1e-3, **cluster):
    edges = [(k, k + 1) for k in range(layers - 1)]
    graph = layer_graph(edges, [weight] * layers, [outputs] * layers, batch)
    costs = Costs([seconds] * layers, [2 * seconds] * layers, [batch * outputs] * layers, [3.0 * weight] * layers)
    return switch_problem(graph, Cluster.uniform(latency=0.0, **cluster), costs)


def test_reports_are_of_what_was_simulated():
    problem = random_case(3, layers=8, hosts=2, devices_per_host=2)
    result, evaluator, search = solve(problem)
    report = search.report(None)
    assert report["speedup"] == pytest.approx(report["one_device_s"] / result.best_cost, rel=1e-12)
    cost = evaluator_of(problem).price(Candidate(base=state_of(problem, result.best.strategy))).cost
    assert cost == result.best_cost
    assert max(v for v in report["baselines"].values() if v) <= report["speedup"] * (1 + 1e-12)
    operators = [op.name for op in problem.graph.operators]
    names = [name for stage in report["stages"] for name in stage["operators"]]
    assert sorted(names) == sorted(operators)
    for stage in report["stages"]:
        assert stage["replication"] == len(stage["devices"])
        assert (stage["first"], stage["last"]) == (stage["operators"][0], stage["operators"][-1])
        for name in stage["operators"]:
            placed = result.best.strategy.placements[operators.index(name)]
            assert placed.devices.tolist() == stage["devices"]
    assert evaluator.memory(result.best.strategy).max() <= problem.cluster.device_memory.max()


def test_data_parallelism_that_leaves_nothing_idle_ends_the_search():
    problem = chain(4, weight=0, n_hosts=4, interface_bandwidth=1e12)
    result, _, search = solve(problem)
    assert search.report(None)["split"] == "4"
    assert result.evaluations <= 3
    assert search.report(None)["speedup"] == pytest.approx(4.0, rel=1e-3)


def test_heavy_weights_on_a_slow_network_make_a_pipeline():
    problem = chain(8, weight=20_000_000, outputs=100, n_hosts=4, interface_bandwidth=1e9, interfaces=1)
    result, _, search = solve(problem)
    report = search.report(None)
    assert [stage["replication"] for stage in report["stages"]] == [1, 1, 1, 1]
    assert report["micro_batches"] == 16
    assert report["speedup"] > 3.0 > report["baselines"]["data_parallel"]
    assert result.best.strategy.n_stages == 4


def test_stages_recompute_where_memory_is_short_and_only_then():
    roomy = chain(4, batch=8, weight=1_000_000, outputs=1_000_000, n_hosts=2, interface_bandwidth=1e12)
    assert not any(stage["recompute"] for stage in solve(roomy)[2].report(None)["stages"])
    # Two stages of two operators keep 6 MB for weights; one micro-batch takes 1 MB for each operator and its input.
    short = chain(
        4, batch=8, weight=1_000_000, outputs=1_000_000, n_hosts=2, interface_bandwidth=1e12, device_memory=9.9e6
    )
    result, evaluator, search = solve(short)
    assert any(stage["recompute"] for stage in search.report(None)["stages"])
    assert (evaluator.memory(result.best.strategy) <= 9.9e6).all()
    lacks = r"no pipeline that was tried fits into memory: .* too much \(.* what would help: .*recomputation"
    with pytest.raises(NoPlanFitsError, match=lacks):
        plan_pipelines(DapplePipeline(recompute=False), short)
    tiny = attrs.evolve(short.cluster, device_memory=np.full(2, 2.9e6))
    with pytest.raises(NoPlanFitsError, match=r"operator 'a?\w+' keeps .* stages keep weights whole; what would help"):
        plan_pipelines(DapplePipeline(), attrs.evolve(short, cluster=tiny))


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "1f1b-deep", "zero-bubble"])
def test_a_schedule_that_is_asked_for_is_the_only_one(kind):
    problem = chain(8, weight=20_000_000, n_hosts=4, interface_bandwidth=1e9, interfaces=1)
    _, _, search = solve(problem, schedule=kind)
    assert {plan.kind for plan in search._simulated} == {kind}


def test_micro_batches_are_no_smaller_than_asked_for():
    problem = chain(8, weight=20_000_000, n_hosts=4, interface_bandwidth=1e9, interfaces=1)
    _, _, search = solve(problem, micro_batch=4)
    assert search.report(None)["micro_batches"] <= 4
    assert len(search.report(None)["stages"]) > 1


def test_fewer_layers_than_devices_are_planned_for():
    problem = chain(2, n_hosts=4)
    assert 1 < solve(problem)[2].report(None)["speedup"] <= 4


class TableCosts(Costs):
    """Operators that come before ``first_cut`` have a price only as a whole."""

    first_cut = 4

    def supports(self, op, degrees):
        return op >= self.first_cut or set(degrees) == {1}


def test_operators_that_cannot_be_cut_share_the_devices_of_a_stage():
    # Four tables of 1 and an operator of 4 that reads them, on four devices: no more than 2 each, in one stage.
    graph = layer_graph([(k, 4) for k in range(4)], [10_000_000] * 4 + [0], [8] * 5, 4)
    costs = TableCosts([1e-3] * 4 + [4e-3], [2e-3] * 4 + [8e-3], [32] * 5, [3e7] * 4 + [0.0])
    problem = switch_problem(graph, Cluster.uniform(n_hosts=4, latency=0.0, interface_bandwidth=1e12), costs)
    result, _, search = solve(problem)
    assert search.report(None)["speedup"] == pytest.approx(4.0, rel=1e-3)
    tables = result.best.strategy.placements[:4]
    assert sorted(device for table in tables for device in table.devices.tolist()) == [0, 1, 2, 3]
    assert result.best.strategy.placements[4].parts == 4


def test_a_tower_that_does_not_begin_at_the_first_operator_is_cut():
    # Two towers of four operators, read by a ninth: four devices in a pipeline have three operators each at most.
    edges = [(0, 1), (1, 2), (2, 3), (4, 5), (5, 6), (6, 7), (3, 8), (7, 8)]
    graph = layer_graph(edges, [20_000_000] * 9, [100] * 9, 16)
    costs = Costs([1e-3] * 9, [2e-3] * 9, [1600.0] * 9, [6e7] * 9)
    cluster = Cluster.uniform(n_hosts=4, latency=0.0, interface_bandwidth=1e9, interfaces=1)
    result, _, search = solve(switch_problem(graph, cluster, costs))
    stages = search.report(None)["stages"]
    assert max(len(stage["operators"]) for stage in stages) == 3
    assert len({result.best.strategy.stage_of[op] for op in range(4, 8)}) > 1


def test_one_device_is_planned_for():
    _, _, search = solve(chain(3, n_hosts=1))
    assert search.report(None)["split"] == "1"


def test_too_many_states_are_cut_in_order():
    edges = [(0, k) for k in range(1, 9)] + [(k, 9) for k in range(1, 9)]
    graph = layer_graph(edges, [1000] * 10, [100] * 10, 16)
    costs = Costs([1e-3] * 10, [2e-3] * 10, [1600.0] * 10, [3000.0] * 10)
    problem = switch_problem(graph, Cluster.uniform(n_hosts=4), costs)
    assert plan_pipelines(DapplePipeline(), problem).complete
    shortlist = plan_pipelines(DapplePipeline(max_states=20), problem)
    assert not shortlist.complete
    assert shortlist.planner.columns.n_cuts == 11


def test_stages_end_with_layers_where_asked():
    problem = chain(9, weight=100_000_000, n_hosts=4)
    with pytest.raises(TopoplanError, match=r"^searcher pipeline: cuts=layers: model .* is in no layer by its name"):
        plan_pipelines(DapplePipeline(cuts="layers"), problem)
    names = ["embedding", *(f"layers.{k // 3}.{k % 3}" for k in range(7)), "head"]
    renamed = [attrs.evolve(op, name=name) for op, name in zip(problem.graph.operators, names, strict=True)]
    problem = attrs.evolve(problem, graph=attrs.evolve(problem.graph, operators=tuple(renamed)))
    report = solve(problem, cuts="layers")[2].report(None)
    assert len(report["stages"]) > 1
    firsts = {stage["first"] for stage in report["stages"]}
    assert firsts <= {"embedding", "layers.0.0", "layers.1.0", "layers.2.0", "head"}
    assert solve(problem)[2].report(None)["speedup"] >= report["speedup"]


def test_infeasible_plans_leave_a_report():
    problem = random_case(1)
    search = PipelineSearch(DapplePipeline(), problem)
    first = Trial(state=state_of(problem), cost=1.0, demand=lambda: None)
    search.adopt(first)
    for _ in range(100):
        candidates = search.ask()
        search.tell([attrs.evolve(first, state=candidate.state(), cost=float("inf")) for candidate in candidates])
    assert search.ask() == []
    assert search.report(None)["speedup"] is None


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        ({"micro_batch": 17}, {}, "micro-batch 17 is larger than the batch of 16 samples"),
        (
            {},
            {"device_memory": 4e9, "weight": 2_000_000_000},
            "operator 'op0' keeps 5.6 GiB .* a device has 3.7 GiB, .*-s spmd, .* devices of at least 5.6 GiB",
        ),
        ({}, {"seconds": 0.0}, "takes no time"),
    ],
)
def test_what_cannot_be_planned_is_refused(options, given, message):
    with pytest.raises(TopoplanError, match=message):
        plan_pipelines(DapplePipeline(**options), chain(4, n_hosts=4, **given))
