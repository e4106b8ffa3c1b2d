"""Stated plans whose experts are divided over data, context and tensor parallel devices: bytes by hand."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Collective, Host, Plan, TaskKind, TopoplanError
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.simulation.parts import Part
from topoplan_engine.simulation.traffic import part_of_tasks
from topoplan_estimator_roofline import Roofline
from topoplan_samples.fabrics import star
from topoplan_samples.stated import BATCH, HIDDEN, LAYERS, POSITIONS, lowered, nbytes
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.degrees import words_of
from topoplan_searcher_stated.settings import settings_of

#: Bytes of a value, and experts that answer a token.
WIDTH, ANSWERS = 2, 2


def expert_bytes(graph):
    return sum(w.nbytes for op in graph.operators if "experts" in op.name for w in op.weights)


def sums(tasks, members):
    """Bytes of all all-reduces of some devices, in whichever order these are listed."""
    listed = {tuple(tasks.members(task).tolist()) for task in np.flatnonzero(tasks.collective == Collective.ALL_REDUCE)}
    return sum(sum(nbytes(tasks, Collective.ALL_REDUCE, [*each])) for each in listed if sorted(each) == members)


@pytest.mark.parametrize(
    ("devices", "plan", "axes"),
    [
        (4, {"cp": 4, "ep": 4}, {"ep-cp": 4}),
        (4, {"cp": 2, "ep": 4}, {"ep": 2, "ep-cp": 2}),
        (4, {"tp": 4, "ep": 4}, {"ep-tp": 4}),
        (4, {"tp": 2, "cp": 2, "ep": 4}, {"ep-cp": 2, "ep-tp": 2}),
        (8, {"tp": 2, "cp": 2, "ep": 4}, {"ep": 2, "ep-cp": 2, "tp": 2}),
        (8, {"tp": 4, "ep": 4}, {"ep": 2, "ep-tp": 2, "tp": 2}),
        (4, {"cp": 4, "ep": 2}, {"ep-cp": 2, "cp": 2}),
        (4, {"tp": 4, "ep": 2}, {"ep-tp": 2, "tp": 2}),
    ],
)
def test_each_device_sends_its_tokens_to_all_others_with_experts_at_once(devices, plan, axes, model):
    """Four times in a layer and micro-batch a rank sends 1/x of two experts' worth of its tokens to each other one.

    Samples and positions are cut among all devices, also among those that have parts of the same experts (Megatron-LM,
    `MoEAlltoAllTokenDispatcher`): these gather what came for them.

    Args:
        axes: of the mesh, but data parallelism.
    """
    graph = model("mixtral")
    dp = devices // (plan.get("tp", 1) * plan.get("cp", 1))
    tasks, strategy = lowered(graph, devices, micro_batch=BATCH // dp, **plan)
    mesh = strategy.stages[0].mesh
    assert {axis: size for axis, size in zip(mesh.axes, mesh.sizes, strict=True) if axis != "dp"} == axes
    moved, ep = tasks.kind == TaskKind.TRANSFER, plan["ep"]
    tokens = BATCH * POSITIONS // devices
    assert set(tasks.size[moved].tolist()) == {tokens * ANSWERS * HIDDEN * WIDTH // ep}
    assert moved.sum() == 4 * LAYERS * devices * (ep - 1)
    assert set(part_of_tasks(tasks, strategy)[moved].tolist()) == {Part.EXPERT}


@pytest.mark.parametrize(
    ("devices", "plan", "slices", "groups"),
    [
        (4, {"cp": 4, "ep": 4}, 4, []),
        (4, {"tp": 4, "ep": 4}, 4, []),
        (4, {"cp": 4, "ep": 2}, 2, [[0, 2], [1, 3]]),
        (8, {"cp": 2, "tp": 2, "ep": 4}, 8, []),
        (8, {"tp": 2, "cp": 4, "ep": 2}, 4, [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (16, {"tp": 2, "cp": 2, "ep": 2, "layout": "tp-cp-ep-dp-pp"}, 4, [[0, 2, 8, 10], [1, 3, 9, 11]]),
    ],
)
def test_gradients_of_experts_are_summed_among_those_that_have_them(devices, plan, slices, groups, model):
    """What is left of data and context parallelism has the same experts; dense weights are summed among all of both."""
    graph = model("mixtral")
    dp = devices // (plan.get("tp", 1) * plan.get("cp", 1))
    tasks, _ = lowered(graph, devices, micro_batch=max(1, BATCH // dp), **plan)
    reduced = tasks.collective == Collective.ALL_REDUCE
    listed = [sorted(tasks.members(task).tolist()) for task in np.flatnonzero(reduced)]
    tp = plan.get("tp", 1)
    dense = list(range(0, devices, tp))
    for members in groups:
        assert sums(tasks, members) == expert_bytes(graph) // slices
    others = {tuple(each) for each in listed if 1 < len(each) < len(dense) and each[1] - each[0] >= tp}
    assert not groups or {tuple(each) for each in groups} <= others
    if tp == 1:
        assert sums(tasks, dense) == graph.parameter_bytes - expert_bytes(graph)
        assert groups or all(each == dense for each in listed)


def test_devices_hold_their_experts_and_their_share_of_all_else(model):
    graph, host_devices = model("mixtral"), 4
    cluster = build_cluster(ClusterOptions(servers=host_devices, device="h100"))
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    dense = graph.parameter_bytes - expert_bytes(graph)
    for plan in ({"cp": 4, "ep": 4}, {"cp": 2, "ep": 4}, {"ep": 4}):
        use = lowering.memory_use(strategy_of(Stated(**plan), graph, host_devices)[0])
        assert set(use.weights.tolist()) == {dense + expert_bytes(graph) // 4}
    whole, cut = (strategy_of(Stated(tp=4, **each), graph, host_devices)[0] for each in ({}, {"ep": 4}))
    assert lowering.memory_use(whole).weights.tolist() == lowering.memory_use(cut).weights.tolist()


def test_without_sequence_parallelism_devices_work_on_the_tokens_of_their_experts(model):
    """All have all tokens, and what the experts make is added up, as what slices of all experts make."""
    graph = model("mixtral")
    tasks, _ = lowered(graph, 4, tp=4, ep=4, sp=False, micro_batch=BATCH)
    sliced, _ = lowered(graph, 4, tp=4, sp=False, micro_batch=BATCH)
    assert not (tasks.kind == TaskKind.TRANSFER).any()
    assert nbytes(tasks, Collective.ALL_REDUCE, [0, 1, 2, 3]) == nbytes(sliced, Collective.ALL_REDUCE, [0, 1, 2, 3])


def test_busy_experts_get_more_wherever_they_are(model):
    graph = model("mixtral")
    tasks, strategy = lowered(graph, 4, cp=2, ep=4, skew=1.5, micro_batch=BATCH // 2)
    (row,) = strategy.stages[0].shares
    assert sorted(row.tolist()) == pytest.approx([2.5 / 3] * 3 + [1.5])
    moved = tasks.kind == TaskKind.TRANSFER
    even = BATCH // 4 * POSITIONS * ANSWERS * HIDDEN * WIDTH // 4
    assert sorted(set(tasks.size[moved].tolist())) == pytest.approx([2.5 / 3 * even, 1.5 * even], abs=1)


@pytest.mark.parametrize(
    ("devices", "options", "message"),
    [
        (8, {"ep": 3}, r"ep=3 does not divide dp x cp x tp = 8 \(nearest: ep=2 or 4\)"),
        (8, {"tp": 2, "cp": 2, "ep": 16}, r"ep=16 does not divide dp x cp x tp = 8 \(nearest: ep=8\)"),
        (16, {"tp": 8, "ep": 16}, r"ep=16 does not divide dp x cp x tp = 8 .* 2 devices with the same heads.*ep=8"),
        (8, {"cp": 8, "ep": 2, "cp_comm": "ring"}, r"ep=2, which takes 2 of cp=8 \(cp-comm=gather, .*ep=1 or 8\)"),
        (4, {"tp": 4, "ep": 2, "async_tp": True}, r"takes 2 of tp=4 \(async-tp=no, .*ep=1 or 4"),
        (8, {"cp": 8, "ep": 8}, r"ep=8 does not divide the 4 experts of operator .*experts.* \(nearest: ep=4\)"),
    ],
)
def test_what_experts_cannot_be_divided_over_is_named(devices, options, message, model):
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Stated(**options), model("mixtral"), devices)


@pytest.mark.parametrize(
    ("plan", "flags"), [({"cp": 4, "ep": 4}, ()), ({"tp": 4, "ep": 4}, ("tensor-parallel-size 1",))]
)
def test_files_of_trainers_say_plans_whose_experts_are_divided_over_neighbours(plan, flags, model):
    graph, host = model("mixtral"), Host.discover()
    cluster = build_cluster(ClusterOptions(servers=4, device="h100"), host)
    strategy, _ = strategy_of(Stated(**plan), graph, 4)
    made = Plan(graph=graph, cluster=cluster, strategy=strategy, fabric=star(4), taskgraph=lowered(graph, 4, **plan)[0])
    text = host.make("exporter", "megatron").write(made).decode()
    assert all(f"--expert-{words}" in text for words in ("model-parallel-size 4", *flags))


def test_a_trainer_is_given_no_plan_whose_experts_are_divided_over_devices_far_apart(model):
    """Context parallel devices of which two have the same experts, and neighbours others: Megatron-LM has them so."""
    graph, host, plan = model("mixtral"), Host.discover(), {"cp": 2, "ep": 2}
    cluster = build_cluster(ClusterOptions(servers=4, device="h100"), host)
    strategy, _ = strategy_of(Stated(**plan), graph, 4)
    made = Plan(graph=graph, cluster=cluster, strategy=strategy, fabric=star(4), taskgraph=lowered(graph, 4, **plan)[0])
    with pytest.raises(TopoplanError, match="experts to devices that are no neighbours"):
        host.make("exporter", "megatron").write(made)


# ── Tensor parallelism of experts by itself ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("devices", "plan", "axes", "part"),
    [
        (2, {"tp": 2, "etp": 1}, {"edp-tp": 2}, 1),
        (2, {"tp": 2, "etp": 2}, {"tp": 2}, 2),
        (2, {"tp": 2, "etp": 1, "ep": 2}, {"ep-tp": 2}, 2),
        (4, {"tp": 4, "etp": 2}, {"edp-tp": 2, "tp": 2}, 2),
        (4, {"tp": 4, "etp": 1, "ep": 2}, {"edp-tp": 2, "ep-tp": 2}, 2),
        (4, {"tp": 4, "etp": 2, "ep": 2}, {"ep-tp": 2, "tp": 2}, 4),
        (8, {"tp": 2, "cp": 2, "etp": 1, "ep": 4}, {"ep-cp": 2, "ep-tp": 2}, 4),
        (8, {"tp": 2, "cp": 2, "etp": 2, "ep": 4}, {"ep": 2, "ep-cp": 2, "tp": 2}, 8),
    ],
)
def test_matrices_of_experts_are_cut_into_as_many_slices_as_stated(devices, plan, axes, part, model):
    """``etp`` x ``ep`` devices have a copy of all experts; ``tp`` have one of what is dense, but for the norms."""
    graph = model("mixtral")
    dp = devices // (plan["tp"] * plan.get("cp", 1))
    _, strategy = lowered(graph, devices, micro_batch=BATCH // dp, **plan)
    mesh = strategy.stages[0].mesh
    assert {axis: size for axis, size in zip(mesh.axes, mesh.sizes, strict=True) if axis != "dp"} == axes
    cluster = build_cluster(ClusterOptions(servers=devices, device="h100"))
    use = Lowering(graph, cluster, Roofline().build(graph, cluster)).memory_use(strategy)
    dense = (
        Lowering(graph, cluster, Roofline().build(graph, cluster))
        .memory_use(strategy_of(Stated(tp=plan["tp"]), graph, devices)[0])
        .weights
        - expert_bytes(graph) // plan["tp"]
    )
    assert (use.weights - dense).tolist() == [expert_bytes(graph) // part] * devices


@pytest.mark.parametrize(
    ("devices", "plan", "group"),
    [(2, {"tp": 2, "etp": 1}, [0, 1]), (4, {"tp": 4, "etp": 2}, [0, 2]), (8, {"tp": 4, "etp": 2}, [0, 2, 4, 6])],
)
def test_gradients_of_copied_experts_are_summed_among_tensor_parallel_devices(devices, plan, group, model):
    """Every device has the tokens of its positions for its copies: a matrix of 64 x 128 in bf16 of each expert."""
    graph = model("mixtral")
    tasks, _ = lowered(graph, devices, micro_batch=BATCH * plan["tp"] // devices, **plan)
    matrices = [size for size in nbytes(tasks, Collective.ALL_REDUCE, group) if size >= 4 * HIDDEN * WIDTH]
    each = 4 * HIDDEN * 128 * WIDTH // plan["etp"]
    assert matrices.count(each) == 3 * LAYERS


def test_the_optimizers_state_of_copied_experts_is_shared_by_all_that_have_them(model):
    graph = model("mixtral")
    cluster = build_cluster(ClusterOptions(servers=8, device="h100"))
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    copied, cut = (
        lowering.memory_use(strategy_of(Stated(tp=4, etp=etp, zero=1), graph, 8)[0]).optimizer for etp in (1, 4)
    )
    # Norms and routers, 1 % of the state, are shared by them, too.
    np.testing.assert_allclose(copied, cut, rtol=0.02)


@pytest.mark.parametrize(
    ("devices", "options", "message"),
    [
        (4, {"tp": 4, "etp": 3}, r"etp=3 with tp=4 \(nearest: etp=2 or 4\)"),
        (4, {"tp": 2, "etp": 4}, r"etp=4 with tp=2 \(nearest: etp=2\)"),
        (8, {"tp": 8, "etp": 1}, r"etp=1 with tp=8, 2 devices of which have the same heads \(nearest: etp=2\)"),
        (4, {"tp": 4, "etp": 2, "ep": 3}, r"leaves tp x cp x dp = 2 x 1 x 1 devices, and ep=3 does not divide them"),
        (
            12,
            {"tp": 4, "etp": 1, "cp": 3, "ep": 3},
            r"4 x 3 x 1 devices, and ep=3 takes them in part \(nearest: ep=2 or 4\)",
        ),
        (2, {"tp": 2, "etp": 1, "sp": False}, r"etp=1 with tp=2,sp=no: devices with the same experts .* \(sp=yes\)"),
        (2, {"tp": 2, "etp": 1, "async_tp": True}, r"async-tp=yes with etp=1 of tp=2 \(async-tp=no, or etp=2\)"),
    ],
)
def test_what_a_degree_of_experts_does_not_go_with_is_named(devices, options, message, model):
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Stated(**options), model("mixtral"), devices)


def test_a_model_without_experts_has_no_degree_of_them(model):
    with pytest.raises(TopoplanError, match=r"etp=1: model 'llama' has no experts \(leave etp out\)"):
        strategy_of(Stated(tp=2, etp=1), model("llama"), 2)


def test_one_part_of_each_expert_is_said_as_a_number(model):
    stated = Stated(tp=4, ep=2, etp=1, micro_batch=BATCH // 2)
    _, degrees = strategy_of(stated, model("mixtral"), 8)
    assert "etp=1" in words_of(settings_of(stated, model("mixtral")), degrees).split(",")
