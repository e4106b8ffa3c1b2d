"""Weights that stages share: their gradients are summed between the stages, and each stage has a copy; by hand."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster
from topoplan.model.graph import OperatorGraph
from topoplan.model.machine import HostModel
from topoplan.model.placement import Placement
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.lowering import Lowering
from topoplan_engine.tied import tied_weights
from topoplan_engine.training import frozen
from topoplan_estimator_roofline import Roofline
from topoplan_machine_nvidia import DEVICES
from topoplan_operators import GraphBuilder
from topoplan_pipeline_planning.stages import staged_strategy
from topoplan_samples.fabrics import star
from topoplan_samples.problems import star_problem
from topoplan_searcher_pipeline import DapplePipeline
from topoplan_searcher_pipeline.plans import Pipeline, memory_of, strategy_of
from topoplan_searcher_pipeline.search import plan_pipelines
from topoplan_simulator_fluid import Fluid

BATCH, WIDTH, BANDWIDTH = 8, 2048, 25e9 / 8
WEIGHT = WIDTH * WIDTH * 4


def tied(shared=True) -> OperatorGraph:
    """Return four layers without biases, the last of which has the matrix of the first one."""
    b = GraphBuilder("tied", BATCH)
    x = b.input((WIDTH,))
    for _ in range(4):
        x = b.linear(x, WIDTH, bias=False)
    graph = b.build()
    if not shared:
        return graph
    *layers, last = graph.operators
    (kernel,) = last.weights
    last = attrs.evolve(last, inputs=(*last.inputs, kernel), weights=(), tags={**last.tags, "shared": kernel.name})
    return attrs.evolve(graph, operators=(*layers, last))


def hosts(count):
    machines = {device.name.lower(): HostModel(device=device) for device in DEVICES}
    cluster = Cluster.uniform(n_hosts=count, latency=0.0, interface_bandwidth=BANDWIDTH, interfaces=1)
    return attrs.evolve(cluster, machines=machines)


def lowered(graph, stages, kind="1f1b", count=2):
    devices = sum(len(members) for _, members in stages)
    cluster = hosts(devices)
    lowering = Lowering(graph, cluster, Roofline(optimizer_state=2).build(graph, cluster))
    strategy = staged_strategy(graph, stages, count, kind)
    strategy.check(graph, devices)
    return lowering, strategy, cluster


def sums(tasks):
    """Return the bytes and the devices of all sums of gradients."""
    rows = np.flatnonzero(tasks.kind == TaskKind.COLLECTIVE).tolist()
    members = [
        tasks.group_members[tasks.group_ptr[tasks.group[t]] : tasks.group_ptr[tasks.group[t] + 1]].tolist()
        for t in rows
    ]
    return sorted(zip(tasks.size[rows].tolist(), members, strict=True))


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "zero-bubble"])
def test_a_gradient_is_summed_between_the_stages_that_make_it(kind):
    """Two devices that sum S bytes put S on the link of each: 16.8 MB at 25 Gbps take 5.37 ms."""
    lowering, strategy, cluster = lowered(tied(), [([0, 1], [0]), ([2, 3], [1])], kind)
    tasks = lowering.lower(strategy)
    tasks.check()
    assert sums(tasks) == [(WEIGHT, [0, 1])]
    timeline = Fluid().build()(tasks, star(2, BANDWIDTH, 0.0), cluster)
    (row,) = np.flatnonzero(tasks.kind == TaskKind.COLLECTIVE)
    assert timeline.finish[row] - timeline.start[row] == pytest.approx(WEIGHT / BANDWIDTH, rel=1e-6)
    # It waits for the last micro-batch of both: of the layer that made the matrix, and of the one that has a copy.
    before = {int(tasks.op[task]) for task in range(tasks.n_tasks) if row in tasks.successors(task)}
    assert before == {0, 3}
    demand = lowering.demand(strategy)
    assert (demand.group_bytes.tolist(), demand.group_members.tolist()) == ([WEIGHT], [0, 1])


def test_all_devices_of_both_stages_sum_it():
    lowering, strategy, _ = lowered(tied(), [([0, 1], [0, 1]), ([2, 3], [2, 3])])
    assert sums(lowering.lower(strategy)) == [(WEIGHT, [0, 1]), (WEIGHT, [0, 1, 2, 3]), (WEIGHT, [2, 3])]


def test_within_a_stage_nothing_changes():
    lowering, strategy, _ = lowered(tied(), [([0, 1, 2, 3], [0, 1])], kind="gpipe")
    assert sums(lowering.lower(strategy)) == [(WEIGHT, [0, 1])] * 3
    assert lowering.memory_use(strategy).weights.tolist() == [3 * WEIGHT] * 2
    middle = [([0, 3], [0]), ([1, 2], [1])]
    with pytest.raises(Exception, match="must not fall"):
        lowered(tied(), middle)


def test_each_stage_has_a_copy_with_gradient_and_state():
    lowering, strategy, _ = lowered(tied(), [([0, 1], [0]), ([2, 3], [1])])
    use = lowering.memory_use(strategy)
    assert use.weights.tolist() == use.gradients.tolist() == [2 * WEIGHT, 2 * WEIGHT]
    assert use.optimizer.tolist() == [4 * WEIGHT, 4 * WEIGHT]
    apart, same, _ = lowered(tied(shared=False), [([0, 1], [0]), ([2, 3], [1])])
    assert lowering.memory(strategy).tolist() == apart.memory(same).tolist()  # as if it were a weight of its own
    assert sums(apart.lower(same)) == []


def test_what_is_not_trained_is_copied_alone():
    graph = frozen(tied(), [tied().operators[0].name])
    last = graph.operators[-1]
    kernel = attrs.evolve(last.inputs[1], requires_grad=False)
    graph = attrs.evolve(graph, operators=(*graph.operators[:-1], attrs.evolve(last, inputs=(last.inputs[0], kernel))))
    lowering, strategy, _ = lowered(graph, [([0, 1], [0]), ([2, 3], [1])])
    assert sums(lowering.lower(strategy)) == []
    use = lowering.memory_use(strategy)
    assert use.weights.tolist() == [2 * WEIGHT, 2 * WEIGHT]
    assert use.gradients.tolist() == [WEIGHT, WEIGHT]


def test_slices_are_summed_by_those_that_hold_them():
    """The owner is cut by columns among devices 0 and 1, its user by samples: both of its parts have all columns."""
    lowering, strategy, _ = lowered(tied(), [([0, 1], [0, 1]), ([2, 3], [2, 3])])
    operator = lowering.graph.operators[0]
    out = next(index for index, dim in enumerate(operator.dims) if dim.role == "parameter")
    degrees = tuple(2 if index == out else 1 for index in range(len(operator.dims)))
    placements = (Placement(degrees, [0, 1]), *strategy.placements[1:])
    found = sums(lowering.lower(attrs.evolve(strategy, placements=placements)))
    assert found == [(WEIGHT // 2, [0, 2, 3]), (WEIGHT // 2, [1, 2, 3]), (WEIGHT, [0, 1]), (WEIGHT, [2, 3])]


@pytest.mark.parametrize("counts", [((1, 0), (0, 1)), ((1, 1, 0, 0), (0, 0, 1, 1)), ((1, 0, 0), (0, 1, 1))])
def test_the_planner_knows(counts):
    graph, cluster = tied(), hosts(len(counts[0]))
    problem = star_problem(graph, cluster, Roofline(optimizer_state=2).build(graph, cluster), BANDWIDTH)
    planner = plan_pipelines(DapplePipeline(), problem, stop=False).planner
    pipeline = Pipeline((0, 2), counts)
    plan = planner.plan(pipeline, "1f1b", 2)
    strategy = strategy_of(plan, graph, planner.columns, planner.machine)
    lowering = Lowering(graph, cluster, problem.costs)
    held, tasks = lowering.memory(strategy), lowering.lower(strategy)
    estimate = memory_of(planner.costs_of(pipeline, 2), plan.kind, 2)[0]
    first = [int(np.flatnonzero(row)[0]) for row in np.array(counts)]
    assert held[first] == pytest.approx(estimate)
    timeline = Fluid().build()(tasks, star(cluster.n_hosts, BANDWIDTH, 0.0), cluster)
    assert plan.seconds == pytest.approx(timeline.finish.max(), rel=0.05)
    apart = tied(shared=False)
    other = star_problem(apart, cluster, Roofline(optimizer_state=2).build(apart, cluster), BANDWIDTH)
    untied = plan_pipelines(DapplePipeline(), other, stop=False).planner.plan(pipeline, plan.kind, 2)
    assert plan.seconds >= untied.seconds


def test_a_head_has_the_table_of_the_words(tmp_path):
    from topoplan_frontend_huggingface import HuggingFace

    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, '
        '"num_hidden_layers": 2, "num_key_value_heads": 4, "vocab_size": 1000, "rms_norm_eps": 1e-5, '
        '"tie_word_embeddings": true, "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 128}'
    )
    graph = HuggingFace(config=str(config), sequence_length=16).build(4)
    (found,) = tied_weights(graph)
    assert graph.operators[found.owner].name == "model.embed_tokens"
    assert [graph.operators[user].name for user, _ in found.users] == ["lm_head"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_the_owner_is_the_operator_that_the_tag_names(place):
    """All four matrices have the same sizes."""
    *layers, last = tied().operators
    last = attrs.evolve(last, tags={**last.tags, f"owner.{last.inputs[1].name}": layers[place].name})
    graph = attrs.evolve(tied(), operators=(*layers, last))
    assert [(weight.owner, weight.users) for weight in tied_weights(graph)] == [(place, ((3, 1),))]
