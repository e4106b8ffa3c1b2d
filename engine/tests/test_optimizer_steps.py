"""Optimizer steps: one for every slice of a weight on every device, behind the sum of its gradient."""

from __future__ import annotations

import functools

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Host, PlacedStrategy, Placement, Plan, State, TaskKind
from topoplan_engine import ClusterOptions, build_cluster, problem_on
from topoplan_engine.lowering import Lowering
from topoplan_engine.replay import simulate_file
from topoplan_engine.search.evaluator import Evaluator
from topoplan_operators import GraphBuilder

WIDTH, DEVICES = 512, 4


@functools.cache
def host():
    return Host.discover()


def problem(optimizer="adam", **options):
    builder = GraphBuilder("two", 16)
    tensor = builder.linear(builder.input((WIDTH,)), WIDTH, bias=False)
    builder.linear(tensor, WIDTH, bias=False)
    graph = attrs.evolve(builder.build(), optimizer=optimizer)
    cluster = build_cluster(ClusterOptions(servers=DEVICES, device="A100-40", degree=1), host())
    costs = host().make("estimator", "roofline", options).build(graph, cluster)
    return problem_on(graph, cluster, costs, host().make("topology", "bigswitch"))


def lowered(of, strategy):
    return Lowering(of.graph, of.cluster, of.costs).lower(strategy)


MIXED = PlacedStrategy((Placement((2, 2, 1), [0, 1, 2, 3]), Placement((1, 1, 1), [1])))


def test_without_the_option_nothing_changes():
    assert TaskKind.UPDATE not in lowered(problem(), MIXED).kind


@pytest.mark.parametrize(("optimizer", "moved"), [("sgd", 3), ("momentum", 5), ("adam", 7)])
def test_a_step_reads_and_writes_weights_and_state(optimizer, moved):
    of = problem(optimizer, optimizer_step=True)
    tasks, plain = lowered(of, MIXED), lowered(problem(optimizer), MIXED)
    tasks.check()
    count = plain.n_tasks
    for column in ("kind", "device", "seconds", "size", "src", "dst", "group", "op", "collective"):
        assert (getattr(tasks, column)[:count] == getattr(plain, column)).all()
    assert (tasks.kind[count:] == TaskKind.UPDATE).all()
    assert tasks.device[count:].tolist() == [0, 2, 1, 3, 1]
    device = of.cluster.device("A100-40")
    slices = np.array([2, 2, 2, 2, 4]) * WIDTH * WIDTH  # bytes: half of fp32 weights, and all of them
    seconds = moved * slices / (device.memory_bandwidth * 0.75) + device.kernel_overhead
    assert tasks.seconds[count:] == pytest.approx(seconds, rel=1e-12)
    # The first operator's slices are on two devices each: updates wait for the sums; the other one's for its backward.
    before = {
        heads: tails for tails, heads in zip(*map(np.ndarray.tolist, tasks.edges()), strict=True) if heads >= count
    }
    assert [tasks.kind[before[count + k]] for k in range(5)] == [TaskKind.COLLECTIVE] * 4 + [TaskKind.BACKWARD]
    assert [tasks.members(before[count + k]).tolist() for k in range(4)] == [[0, 2], [0, 2], [1, 3], [1, 3]]


@pytest.mark.parametrize("collective", ["ring", "parameter-server", "nccl-serial"])
@pytest.mark.parametrize("sync", ["overlap", "barrier"])
def test_exports_run_as_long_as_the_plan(collective, sync, tmp_path):
    of = problem(optimizer_step=True)
    strategy, fabric = of.space.initial(), of.build_fabric(None, np.random.default_rng(0))
    options = {"collective": collective, "gradient_sync": sync, "level": "stepped"}
    simulate = host().make("simulator", "fluid", options).build()
    tasks = lowered(of, strategy)
    line = simulate(tasks, fabric, of.cluster)
    evaluator = Evaluator(of, simulate, "ignore")
    assert evaluator.price(Candidate(base=State(strategy, fabric))).cost == line.makespan
    without = simulate.makespan(lowered(problem(), strategy), fabric, of.cluster)
    assert line.makespan > without
    told = {"components": [{"kind": "simulator", "name": "fluid", "options": options}]}
    plan = Plan(cluster=of.cluster, fabric=fabric, taskgraph=tasks, timeline=line, provenance=told)
    for name in ("json", "flatbuffer"):
        exporter = host().make("exporter", name)
        path = tmp_path / f"plan{exporter.suffix}"
        path.write_bytes(exporter.write(plan))
        asked = None if name == "json" else "fluid:level=stepped,transport=wire"
        again = simulate_file(path, simulator=asked, host=host()).timeline.makespan
        assert again == pytest.approx(line.makespan, rel=1e-12 if name == "json" else 0.02)
    steps = tasks.kind == TaskKind.UPDATE
    assert host().make("exporter", "dot").write(plan).decode().count(" | UPDATE") >= steps.sum()


def test_a_server_updates_for_all_and_sends_what_it_updated():
    of = problem(optimizer_step=True)
    strategy, fabric = of.space.initial(), of.build_fabric(None, np.random.default_rng(0))
    tasks = lowered(of, strategy)
    line = host().make("simulator", "fluid", {"collective": "parameter-server"}).build()(tasks, fabric, of.cluster)
    steps = np.flatnonzero(tasks.kind == TaskKind.UPDATE)
    took = line.finish[steps] - line.start[steps]
    server = tasks.device[steps] == 0
    assert (took[~server] == 0).all()
    assert took[server] == pytest.approx(tasks.seconds[steps[server]])
    for op in (0, 1):
        mine = tasks.op[steps] == op
        assert line.finish[steps[mine & server]] < line.start[steps[mine & ~server]].min()


def test_tables_are_updated_in_place_and_have_no_step():
    builder = GraphBuilder("table", 16)
    builder.embedding(builder.input((1,), 8), 1000, 64)
    graph = builder.build()
    cluster = build_cluster(ClusterOptions(servers=2, degree=1), host())
    costs = host().make("estimator", "roofline", {"optimizer_step": True}).build(graph, cluster)
    assert costs.optimizer_seconds(0, (1,) * len(graph.operators[0].dims), np.zeros(1, np.int32)) is None
