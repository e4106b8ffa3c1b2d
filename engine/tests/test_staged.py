"""Staged strategies: the two ends of what they can say equal programs and pipelines; what lies between, by hand."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster, CostFunction, DeviceMesh, PartCosts, StagedStrategy, TopoplanError, Zero
from topoplan.model.machine import HostModel
from topoplan.model.pass_order import PassOrder
from topoplan.model.sharding import PARTIAL, REPLICATED, shard
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.stage_links import routes_between, slices_of
from topoplan_engine.program_strategies import program_strategy
from topoplan_engine.sharding.programs import check_strategy, why_invalid
from topoplan_estimator_roofline import Roofline
from topoplan_machine_nvidia import DEVICES
from topoplan_operators import GraphBuilder
from topoplan_samples.fabrics import star
from topoplan_samples.layered import (
    checkpointed,
    half_frozen,
    layered,
    megatron,
    pipeline,
    program,
    samples,
    stages_of,
    tied,
)
from topoplan_samples.pipelines import branching
from topoplan_samples.staged import as_stages, of_program, order_of
from topoplan_simulator_fluid import Fluid

BANDWIDTH, LATENCY = 12.5e9, 1e-6


def setting(graph, devices, **options):
    machines = {device.name.lower(): HostModel(device=device) for device in DEVICES}
    cluster = Cluster.uniform(n_hosts=devices, latency=LATENCY, interface_bandwidth=BANDWIDTH, interfaces=1)
    cluster = attrs.evolve(cluster, machines=machines)
    return cluster, Lowering(graph, cluster, Roofline(**options).build(graph, cluster))


def seconds(graph, cluster, tasks):
    tasks.check()
    return Fluid().build().makespan(tasks, star(cluster.n_devices, BANDWIDTH, LATENCY), cluster, np.inf)


def both(graph, devices, before, staged):
    """Return seconds and memory of two strategies."""
    for strategy in (before, staged):
        strategy.check(graph, devices)
        assert why_invalid(strategy, graph, devices) is None
    cluster, lowering = setting(graph, devices)
    return [
        (seconds(graph, cluster, lowering.lower(strategy)), lowering.memory_use(strategy))
        for strategy in (before, staged)
    ]


def assert_equal_memory(uses, at_once=True):
    for name in ("weights", "gradients", "optimizer", "activations", *(["at_once"] if at_once else [])):
        np.testing.assert_allclose(getattr(uses[0], name), getattr(uses[1], name), rtol=1e-12, err_msg=name)


# ── One stage: the program itself ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("make", [layered, tied, half_frozen, checkpointed])
@pytest.mark.parametrize("cut", [samples, megatron])
def test_one_stage_takes_what_its_program_takes(make, cut):
    """Programs on meshes of one axis have one communicator, so that both have the same streams."""
    graph = make()
    strategy = program(graph, (4,), [cut])
    (before, use), (after, staged_use) = both(graph, 4, strategy, of_program(graph, strategy.program))
    assert after == before
    assert_equal_memory([use, staged_use])


@pytest.mark.parametrize(
    "options", [{"gradient_bucket_bytes": 5000}, {"gradient_bucket_bytes": 2**40}, {"gathers_again": True}, {}]
)
def test_buckets_and_slices_are_those_of_programs(options):
    graph = layered()
    strategy = program(graph, (4,), [samples], stored=None if "gradient_bucket_bytes" in options else {0: 0})
    changed = attrs.evolve(strategy.program, **options)
    strategy = program_strategy(changed, graph)
    (before, use), (after, staged_use) = both(graph, 4, strategy, of_program(graph, changed))
    assert after == before
    assert_equal_memory([use, staged_use])


def test_communicators_of_several_axes_do_not_wait_for_each_other():
    """A program has one stream for all collectives; here sums of gradients run beside those of activations."""
    graph = layered()
    strategy = program(graph, (2, 2), [samples, megatron])
    (before, use), (after, staged_use) = both(graph, 4, strategy, of_program(graph, strategy.program))
    assert after < before
    assert_equal_memory([use, staged_use])


# ── Stages of one device: pipelines ─────────────────────────────────────────────────────────────────────────────────


def singles(devices):
    return [DeviceMesh(axes=["dp"], sizes=[1], devices=[device]) for device in devices]


@pytest.mark.by_day(6)
@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "1f1b-deep", "zero-bubble"])
@pytest.mark.parametrize("make", [layered, tied, half_frozen])
@pytest.mark.parametrize("recompute", [(), (True, False)])
def test_stages_of_one_device_take_what_pipelines_take(make, kind, recompute):
    graph, devices = make(), [0, 1]
    stage_of = stages_of(graph, (0, 0, 1, 1))
    before = pipeline(graph, stage_of, [[device] for device in devices], kind, 4, recompute)
    order = order_of(kind, 2, 4, recomputed=[stage for stage, again in enumerate(recompute) if again])
    regions = [0 if recompute[stage] else -1 for stage in stage_of] if recompute else None
    staged = as_stages(graph, stage_of, singles(devices), order, [lambda op: None], regions=regions)
    (seconds_before, use), (seconds_staged, staged_use) = both(graph, 2, before, staged)
    assert seconds_staged == pytest.approx(seconds_before, rel=1e-12)
    # Where gradients of weights wait, pipelines count gradients of activations among what is there at once.
    assert_equal_memory([use, staged_use], at_once=kind != "zero-bubble")


@pytest.mark.parametrize(("kind", "devices"), [("1f1b", [0, 1, 2, 3]), ("interleaved", [0, 1, 0, 1])])
def test_deep_and_interleaved_pipelines(kind, devices):
    graph = layered()
    stage_of, ranks = stages_of(graph, (0, 1, 2, 3)), len(set(devices))
    before = pipeline(graph, stage_of, [[device] for device in devices], kind, 4)
    staged = as_stages(graph, stage_of, singles(devices), order_of(kind, ranks, 4, 4 // ranks), [lambda op: None])
    (seconds_before, use), (seconds_staged, staged_use) = both(graph, ranks, before, staged)
    assert seconds_staged == pytest.approx(seconds_before, rel=1e-12)
    assert_equal_memory([use, staged_use])


@pytest.mark.parametrize("kind", ["gpipe", "1f1b", "zero-bubble"])
def test_a_tensor_that_jumps_over_stages_is_sent_to_each_that_reads_it(kind):
    graph = branching(12)
    stage_of = np.minimum(np.arange(len(graph.operators)) // 3, 2).tolist()
    before = pipeline(graph, stage_of, [[0], [1], [2]], kind, 3)
    staged = as_stages(graph, stage_of, singles([0, 1, 2]), order_of(kind, 3, 3), [lambda op: None])
    (seconds_before, use), (seconds_staged, staged_use) = both(graph, 3, before, staged)
    assert seconds_staged == pytest.approx(seconds_before, rel=1e-12)
    assert_equal_memory([use, staged_use], at_once=kind != "zero-bubble")


# ── Between both: stages that run programs ──────────────────────────────────────────────────────────────────────────


def hybrid(graph, *, kind="1f1b", micro_batches=4, meshes=None, **options):
    """Two stages, each with two replicas of two slices."""
    stage_of = stages_of(graph, (0, 0, 1, 1))
    meshes = meshes or [DeviceMesh(axes=["dp", "tp"], sizes=[2, 2], devices=np.arange(4) + 4 * k) for k in range(2)]
    return as_stages(graph, stage_of, meshes, order_of(kind, 2, micro_batches), [samples, megatron], **options)


def members_and_bytes(tasks, kind):
    rows = np.flatnonzero((tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective == kind)).tolist()
    return [(tuple(tasks.members(task).tolist()), int(tasks.size[task])) for task in rows]


def test_collectives_of_hybrids_by_hand():
    """Activations of a replica are 8 samples of 8 x 16 numbers, of which a micro-batch has a quarter.

    In each stage two layers have one all-reduce of activations in each pass, among the tensor-parallel ranks; the
    embedding and the loss have theirs.  Matrices of 16 x 32 are cut in two, and summed over replicas.
    """
    graph = layered()
    _, lowering = setting(graph, 8)
    tasks = lowering.lower(hybrid(graph))
    activations = 16 * 8 * 16 * 4 // 2 // 4
    tensor_groups = {(0, 1), (2, 3), (4, 5), (6, 7)}
    sums = members_and_bytes(tasks, Collective.ALL_REDUCE)
    of_layers = [(group, nbytes) for group, nbytes in sums if group in tensor_groups and nbytes == activations]
    # Stage 0: words and two layers; stage 1: two layers; both passes, 4 micro-batches, 2 replicas.
    assert len(of_layers) == (3 + 2) * 2 * 4 * 2
    matrix = 16 * 32 * 4 // 2
    gradients = sorted((group, nbytes) for group, nbytes in sums if group not in tensor_groups)
    data_groups = [(0, 2), (1, 3), (4, 6), (5, 7)]
    # Words and two matrices of each of two layers; two layers and the head.
    assert gradients == sorted([(group, matrix) for group in data_groups for _ in range(5)])


def test_messages_between_stages_by_hand():
    """Each of four ranks sends what it has, whole along the tensor axis, to its peer, and gets the gradient back."""
    graph = layered()
    _, lowering = setting(graph, 8)
    tasks = lowering.lower(hybrid(graph))
    moved = np.flatnonzero(tasks.kind == TaskKind.TRANSFER)
    pairs = sorted(set(zip(tasks.src[moved].tolist(), tasks.dst[moved].tolist(), strict=True)))
    assert pairs == sorted([(k, k + 4) for k in range(4)] + [(k + 4, k) for k in range(4)])
    assert set(tasks.size[moved].tolist()) == {16 * 8 * 16 * 4 // 2 // 4}
    assert len(moved) == 2 * 4 * 4


@pytest.mark.parametrize("target", [(4, 1), (1, 4), (2, 2), (1, 2), (2, 1), (1, 1), (8, 2)])
@pytest.mark.parametrize("sharding", [shard(2), REPLICATED])
def test_every_receiver_gets_each_byte_of_its_share_once(target, sharding):
    tensor = layered().operators[3].outputs[0]
    mesh = DeviceMesh(axes=["dp", "tp"], sizes=[2, 2])
    other = DeviceMesh(axes=["dp", "tp"], sizes=target, devices=np.arange(np.prod(target)) + 100)
    arrives = (shard(0), sharding)
    routes = routes_between(tensor, (shard(0), REPLICATED), mesh, arrives, other)
    low, high = slices_of(tensor.shape, arrives, target)
    wanted = (high - low).prod(axis=1) * tensor.itemsize
    assert np.bincount(routes.target, routes.nbytes, other.n_devices).tolist() == wanted.tolist()
    sent = np.bincount(routes.source, routes.nbytes, mesh.n_devices)
    if other.n_devices >= 4 and target != (1, 4):
        assert len(set(sent.tolist())) == 1, "all that have it send as much"


@pytest.mark.parametrize("micro_batches", [1, 2, 4])
@pytest.mark.parametrize("make", [layered, tied])
def test_stages_with_meshes_of_different_shapes(make, micro_batches):
    graph = make()
    meshes = [
        DeviceMesh(axes=["dp", "tp"], sizes=[4, 1], devices=[3, 1, 0, 2]),
        DeviceMesh(axes=["dp", "tp"], sizes=[2, 2], devices=[4, 5, 6, 7]),
    ]
    strategy = hybrid(graph, meshes=meshes, micro_batches=micro_batches)
    if make is tied:
        with pytest.raises(TopoplanError, match="share a weight in different slices"):
            setting(graph, 8)[1].lower(strategy)
        return
    cluster, lowering = setting(graph, 8)
    assert why_invalid(strategy, graph, 8) is None
    tasks = lowering.lower(strategy)
    assert seconds(graph, cluster, tasks) > 0
    moved = tasks.kind == TaskKind.TRANSFER
    there = moved & (tasks.dst >= 4)
    # Both tensor-parallel ranks of stage 1 get the whole tensor of their replica.
    assert tasks.size[there].sum() == 2 * 16 * 8 * 16 * 4


def test_tied_weights_of_stages_are_summed_between_their_tensor_parallel_ranks():
    graph = tied()
    _, lowering = setting(graph, 8)
    tasks = lowering.lower(hybrid(graph))
    between = [(0, 4), (1, 5), (2, 6), (3, 7)]
    table = 16 * 32 * 4 // 2
    sums = [(group, nbytes) for group, nbytes in members_and_bytes(tasks, Collective.ALL_REDUCE) if group in between]
    assert sorted(sums) == [(group, table) for group in between]
    use = lowering.memory_use(hybrid(graph))
    whole = setting(layered(), 8)[1].memory_use(hybrid(layered()))
    assert (use.weights == whole.weights).all(), "a copy is in the memory of both stages"


@pytest.mark.parametrize("level", [1, 2])
def test_sharded_state_is_scattered_and_gathered(level):
    """ZeRO sends a reduce-scatter and an all-gather in place of each all-reduce: as many bytes, in two halves.

    Where gradients are not kept whole (level 2), each of four micro-batches has its reduce-scatter.
    """
    graph = layered()
    _, lowering = setting(graph, 8)
    plain, shared = lowering.lower(hybrid(graph)), lowering.lower(hybrid(graph, zero=Zero(level=level, axes=[0])))
    data_groups = [(0, 2), (1, 3), (4, 6), (5, 7)]
    before = [row for row in members_and_bytes(plain, Collective.ALL_REDUCE) if row[0] in data_groups]
    for kind, times in ((Collective.REDUCE_SCATTER, 4 if level == 2 else 1), (Collective.ALL_GATHER, 1)):
        expected = sorted((group, size // 2) for group, size in before * times)
        assert sorted(members_and_bytes(shared, kind)) == expected
    assert not [row for row in members_and_bytes(shared, Collective.ALL_REDUCE) if row[0] in data_groups]
    uses = [lowering.memory_use(hybrid(graph, zero=zero)) for zero in (Zero(), Zero(level=level, axes=[0]))]
    assert (uses[1].optimizer == uses[0].optimizer / 2).all()
    assert (uses[1].gradients == uses[0].gradients / (2 if level == 2 else 1)).all()
    assert (uses[1].weights == uses[0].weights).all()


def test_updates_wait_for_sums_and_gathers_for_updates():
    graph = layered()
    _, lowering = setting(graph, 8, optimizer_step=True)
    strategies = [hybrid(graph, zero=zero) for zero in (Zero(), Zero(level=1, axes=[0]))]
    plain, shared = (lowering.lower(strategy) for strategy in strategies)
    for tasks in (plain, shared):
        updates = tasks.kind == TaskKind.UPDATE
        assert updates.sum() == 10 * 4, "five weights in each stage, on four devices"
        src, dst = tasks.edges()
        before = tasks.kind[src[np.isin(dst, np.flatnonzero(updates))]]
        assert TaskKind.COLLECTIVE in before
    update, bandwidth = plain.seconds[plain.kind == TaskKind.UPDATE], 1555e9 * 0.75
    overhead = DEVICES[0].kernel_overhead
    # Weight, gradient and two moments of half a matrix in fp32 are read, three of them written: 7 x 4 bytes each.
    assert update[0] == pytest.approx(16 * 32 / 2 * 28 / bandwidth + overhead, rel=0.2)
    assert shared.seconds[shared.kind == TaskKind.UPDATE][0] < update[0]


def test_regions_run_again_before_their_backward_pass_with_their_collectives():
    graph = layered()
    layer = [int(op.name.split(".")[1]) if op.name.startswith("layers.") else -1 for op in graph.operators]
    _, lowering = setting(graph, 8)
    plain, again = hybrid(graph), hybrid(graph, regions=layer)
    kept, repeated = (lowering.lower(strategy) for strategy in (plain, again))
    forward = [int((tasks.kind == TaskKind.FORWARD).sum()) for tasks in (kept, repeated)]
    assert forward[1] - forward[0] == 4 * 4 * 4 * 4, "four operators of four layers, 4 micro-batches, 4 devices"
    sums = [len(members_and_bytes(tasks, Collective.ALL_REDUCE)) for tasks in (kept, repeated)]
    # One all-reduce in each of four layers, for 2 replicas and 4 micro-batches.
    assert sums[1] - sums[0] == 4 * 2 * 4
    uses = [lowering.memory_use(strategy).activations for strategy in (plain, again)]
    assert (uses[1][:4] < uses[0][:4]).all(), "two micro-batches are under way"
    assert (uses[1] <= uses[0]).all()


def test_a_layout_is_a_choice():
    """Tensor-parallel pairs are faster inside of hosts than across them."""
    graph = layered(batch=64)
    cluster = Cluster.uniform(n_hosts=4, devices_per_host=2, latency=LATENCY, interface_bandwidth=1e9, interfaces=1)
    machines = {device.name.lower(): HostModel(device=device) for device in DEVICES}
    cluster = attrs.evolve(cluster, machines=machines)
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    times = []
    for places in ([0, 1, 2, 3], [0, 2, 1, 3]):
        meshes = [
            DeviceMesh(axes=["dp", "tp"], sizes=[2, 2], devices=np.array(places) + 4 * stage) for stage in range(2)
        ]
        tasks = lowering.lower(hybrid(graph, meshes=meshes))
        times.append(Fluid().build().makespan(tasks, star(4, 1e9, LATENCY), cluster, np.inf))
    assert times[0] < times[1]


# ── Schedules ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Units(CostFunction):
    """Every pass of a batch takes equally long, and a micro-batch its share."""

    linear_in_samples = True

    def __init__(self, seconds):
        self._seconds = seconds

    def supports(self, op, degrees):
        return True

    def price(self, op, degrees, devices):
        each = self._seconds * np.ones(len(devices))
        return PartCosts(forward=each, backward=2 * each, memory=np.ones(len(devices)), weight_gradient=each)


@pytest.mark.parametrize(
    ("kind", "chunks", "expected"),
    [("gpipe", 1, 24 + 9), ("1f1b", 1, 24 + 9), ("zero-bubble", 1, 24 + 3), ("interleaved", 2, 24 + 4.5)],
)
def test_bubbles_are_those_of_the_formulas(kind, chunks, expected):
    """p = 4, m = 8, F = B = W = 1: (p - 1)(F + B + W), (p - 1)(F + B - W), and (p - 1)(F + B + W) / v."""
    b = GraphBuilder("equal", 8)
    x = b.input((4,))
    for k in range(4 * chunks):
        x = b.linear(x, 4, bias=False, name=f"layer{k}")
    graph = b.build()
    cluster = Cluster.uniform(n_hosts=4, latency=0.0, interface_bandwidth=1e18, interfaces=1)
    lowering = Lowering(graph, cluster, Units(8 / chunks))
    meshes = singles([k % 4 for k in range(4 * chunks)])
    staged = as_stages(graph, range(4 * chunks), meshes, order_of(kind, 4, 8, chunks), [lambda op: None])
    tasks = lowering.lower(staged)
    made = Fluid().build().makespan(tasks, star(4, 1e18, 0.0), cluster, np.inf)
    assert made == pytest.approx(expected, rel=1e-6)


# ── What is refused ─────────────────────────────────────────────────────────────────────────────────────────────────


def other(strategy, number, **changes):
    stages = list(strategy.stages)
    stages[number] = attrs.evolve(stages[number], **changes)
    return attrs.evolve(strategy, stages=tuple(stages))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: attrs.evolve(s, micro_batches=2), "has 4 micro-batches, the strategy 2"),
        (lambda s: attrs.evolve(s, order=order_of("1f1b", 1, 4)), "has 1 chunks for 2 stages"),
        (lambda s: attrs.evolve(s, stages=s.stages[:1]), "is in 0 stages"),
        (lambda s: other(s, 1, mesh=s.stages[0].mesh), "device 0 is on ranks 0 and 1"),
        (
            lambda s: other(s, 1, mesh=attrs.evolve(s.stages[1].mesh, devices=[4, 5, 6, 9])),
            "stage 1 names device 9 of a cluster of 8",
        ),
        (
            lambda s: attrs.evolve(s, order=order_of("1f1b", 2, 4, recomputed=[0])),
            "recomputes stage 0, no operator of which is recomputed",
        ),
        (
            lambda s: attrs.evolve(
                s, placements=(attrs.evolve(s.placements[0], devices=[1, 0, 2, 3]), *s.placements[1:])
            ),
            "placement of 'tok_embeddings' is not that of its stage",
        ),
    ],
)
def test_what_does_not_go_together_is_named(change, message):
    graph = layered()
    with pytest.raises(TopoplanError, match=message):
        check_strategy(change(hybrid(graph)), graph, 8)


def test_batches_must_divide():
    graph = layered(batch=12)
    with pytest.raises(TopoplanError, match="12 samples for 4 micro-batches on 2 devices \\(needs a multiple of 8\\)"):
        check_strategy(hybrid(graph), graph, 8)


def test_signatures_must_be_sound_and_tensors_arrive_whole_or_sliced():
    graph = layered()
    strategy = hybrid(graph)
    program_of = strategy.stages[1].program
    stored = list(program_of.stored)
    stored[0] = ((PARTIAL, PARTIAL), *stored[0][1:])
    wrong = other(strategy, 1, body=attrs.evolve(program_of, stored=tuple(stored)))
    assert "arrives as" in why_invalid(wrong, graph, 8)
    shared = other(strategy, 0, body=attrs.evolve(strategy.stages[0].program, sharded_state=True))
    assert "stage 0: program has sharded_state" in why_invalid(shared, graph, 8)
    with pytest.raises(TopoplanError, match="level 3"):
        Zero(level=3, axes=[0])
    with pytest.raises(TopoplanError, match="device 1 stands at two places"):
        DeviceMesh(axes=["dp"], sizes=[2], devices=[1, 1])


def test_equal_strategies_have_equal_keys_and_others_not():
    graph = layered()
    first, same = hybrid(graph), hybrid(graph)
    assert first.key == same.key
    changed = [
        hybrid(graph, zero=Zero(level=1, axes=[0])),
        hybrid(graph, kind="gpipe"),
        hybrid(graph, micro_batches=2),
        other(first, 0, mesh=attrs.evolve(first.stages[0].mesh, devices=[0, 2, 1, 3])),
        hybrid(graph, regions=[0] * len(graph.operators)),
        hybrid(graph, bucket=100),
    ]
    assert len({each.key for each in (first, *changed)}) == 1 + len(changed)
    with pytest.raises(TopoplanError, match="cannot be placed one by one"):
        first.with_changes({0: first.placements[0]})
    assert isinstance(first.order, PassOrder)
    assert isinstance(first, StagedStrategy)
