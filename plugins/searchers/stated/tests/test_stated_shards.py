"""Stated plans: bytes of tensor, sequence, context and expert parallelism by hand."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Collective, Host, TaskKind, TopoplanError
from topoplan.model.graph import Axis, Tensor
from topoplan.model.machine import HostModel
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_estimator_roofline import Roofline
from topoplan_machine_nvidia import DEVICES
from topoplan_operators import GraphBuilder
from topoplan_samples.fabrics import star
from topoplan_samples.graphs import computed_weight
from topoplan_samples.stated import (
    BATCH,
    HIDDEN,
    LAYERS,
    POSITIONS,
    N,
    lowered,
    nbytes,
)
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of
from topoplan_simulator_fluid import Fluid

# ── Tensor, sequence and context parallelism ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_tensor_parallelism_has_four_all_reduces_in_a_layer(model, name):
    """Two forward, behind attention and MLP, two backward; one of the words in each pass; three numbers of the loss."""
    tasks, _ = lowered(model(name), 2, tp=2, sp=False, micro_batch=BATCH)
    sums = nbytes(tasks, Collective.ALL_REDUCE, [0, 1])
    assert sorted(sums) == sorted([N] * (4 * LAYERS + 2) + [3 * 4 * BATCH * POSITIONS])
    assert not nbytes(tasks, Collective.ALL_GATHER, [0, 1])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_sequence_parallelism_gathers_and_scatters(model, name):
    """In a layer two gathers and two scatters in each pass, and two gathers more of the slices that were kept.

    The words are scattered, the head gathers; norms have gradients that tensor-parallel ranks sum.
    """
    tasks, _ = lowered(model(name), 2, tp=2, sp=True, micro_batch=BATCH)
    gathers = nbytes(tasks, Collective.ALL_GATHER, [0, 1])
    assert gathers == [N] * ((2 * LAYERS + 1) + (2 * LAYERS + 1) + (2 * LAYERS + 1))
    assert nbytes(tasks, Collective.REDUCE_SCATTER, [0, 1]) == [N] * ((2 * LAYERS + 1) + (2 * LAYERS + 1))
    sums = nbytes(tasks, Collective.ALL_REDUCE, [0, 1])
    assert max(sums) < N


def test_context_parallelism_gathers_keys_and_values(model):
    """Of 4 heads of 8 channels: forward, and again backward; their gradients are scattered."""
    tasks, _ = lowered(model("llama"), 2, cp=2, micro_batch=BATCH)
    of_heads = 2 * BATCH * POSITIONS * 4 * 8
    assert nbytes(tasks, Collective.ALL_GATHER, [0, 1]) == [of_heads] * (2 * LAYERS * 2)
    assert nbytes(tasks, Collective.REDUCE_SCATTER, [0, 1]) == [of_heads] * (2 * LAYERS)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_async_tensor_parallelism_sends_pieces_from_neighbour_to_neighbour(model, tp, schedule):
    """The bytes of gathers and scatters, in tp - 1 steps of 1/tp each; words, and what is gathered again, at once.

    In each pass two gathers and two scatters in a layer; the head gathers forward and scatters backward.
    """
    graph = model("llama")
    options = {"micro_batch": BATCH, "schedule": schedule}
    tasks, _ = lowered(graph, tp, tp=tp, async_tp=True, **options)
    before, _ = lowered(graph, tp, tp=tp, **options)
    moved, everyone = tasks.kind == TaskKind.TRANSFER, [*range(tp)]
    assert set(tasks.size[moved].tolist()) == {N // tp}
    assert moved.sum() == (8 * LAYERS + 2) * (tp - 1) * tp
    assert nbytes(tasks, Collective.ALL_GATHER, everyone) == [N] * (2 * LAYERS + 1 + 1)
    assert nbytes(tasks, Collective.REDUCE_SCATTER, everyone) == [N]
    sums = [nbytes(each, Collective.ALL_REDUCE, everyone) for each in (tasks, before)]
    assert sums[0] == sums[1]
    for kind in (TaskKind.FORWARD, TaskKind.BACKWARD):
        seconds = [each.seconds[each.kind == kind].sum() for each in (tasks, before)]
        assert seconds[0] == pytest.approx(seconds[1], rel=1e-12)


@pytest.mark.parametrize("recompute", ["full", "modules:mlp"])
def test_what_runs_again_sends_its_pieces_again(model, recompute):
    """A whole layer both gathers and both scatters; an MLP its gather, for its sum is not needed again."""
    graph = model("llama")
    counts = [
        int(
            (
                lowered(graph, 2, tp=2, async_tp=True, recompute=each, micro_batch=BATCH)[0].kind == TaskKind.TRANSFER
            ).sum()
        )
        for each in ("none", recompute)
    ]
    assert counts[1] - counts[0] == {"full": 4, "modules:mlp": 1}[recompute] * LAYERS * 2


@pytest.mark.parametrize(("bandwidth", "hidden"), [(1e13, True), (2e6, False)])
def test_messages_of_async_tensor_parallelism_hide_behind_products(model, bandwidth, hidden):
    """Of a matrix that gathers, and of one that scatters: four pieces, or three messages and the piece beside them."""
    graph, tp = model("llama"), 4
    cluster = Cluster.uniform(n_hosts=tp, latency=0.0, interface_bandwidth=bandwidth, interfaces=1)
    cluster = attrs.evolve(cluster, machines={device.name.lower(): HostModel(device=device) for device in DEVICES})
    strategy, _ = strategy_of(Stated(tp=tp, async_tp=True, micro_batch=BATCH), graph, tp)
    tasks = Lowering(graph, cluster, Roofline().build(graph, cluster)).lower(strategy)
    timeline = Fluid().build()(tasks, star(tp, bandwidth, 0.0), cluster)
    hop = N / tp / bandwidth
    for name, end in (("0.mlp.gate_proj", "0.mlp.act_fn"), ("0.mlp.down_proj", "0.add2")):
        first, after = (
            next(k for k, op in enumerate(graph.operators) if op.name.endswith(each)) for each in (name, end)
        )
        rows = [
            np.flatnonzero((tasks.kind == TaskKind.FORWARD) & (tasks.device == 1) & (tasks.op == op))
            for op in (first, after)
        ]
        assert len(rows[0]) == tp
        piece = tasks.seconds[rows[0][0]]
        assert (piece > hop) == hidden
        span = timeline.start[rows[1]].min() - timeline.start[rows[0]].min()
        assert span == pytest.approx(tp * piece if hidden else 3 * hop + piece, rel=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"async-tp=yes with tp=1 \(needs tp of at least 2, and sp=yes\)"),
        ({"tp": 2, "sp": False}, r"async-tp=yes with tp=2,sp=no \(needs"),
        ({"tp": 8}, r"async-tp=yes with tp=8: heads of keys and values are copied \(needs tp of at most 4\)"),
    ],
)
def test_what_has_no_pieces(model, options, message):
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Stated(async_tp=True, **options), model("llama"), 8)


@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_rings_send_keys_and_values_from_neighbour_to_neighbour(model, cp, tp, recompute):
    """cp - 1 steps forward, again where attention runs again, and twice that backward: keys and values, gradients."""
    graph = model("llama")
    tasks, _ = lowered(graph, cp * tp, cp=cp, tp=tp, cp_comm="ring", recompute=recompute, micro_batch=BATCH)
    of_heads = 2 * BATCH * POSITIONS * 4 * 8 // tp
    moved = tasks.kind == TaskKind.TRANSFER
    assert set(tasks.size[moved].tolist()) == {2 * of_heads // cp}
    assert moved.sum() == (cp - 1) * (3 + (recompute == "selective")) * LAYERS * cp * tp
    around = {(tp * k + t, tp * ((k + 1) % cp) + t) for k in range(cp) for t in range(tp)}
    assert {(int(a), int(b)) for a, b in zip(tasks.src[moved], tasks.dst[moved], strict=True)} == around
    assert of_heads not in nbytes(tasks, Collective.ALL_GATHER, [tp * k for k in range(cp)])


@pytest.mark.parametrize(("bandwidth", "kept_busy"), [(1e13, True), (2e6, False)])
def test_blocks_of_attention_run_while_keys_and_values_travel(model, bandwidth, kept_busy):
    """Four blocks of attention take four times one, or three messages and the last block where these take longer."""
    graph, cp = model("llama"), 4
    cluster = Cluster.uniform(n_hosts=cp, latency=0.0, interface_bandwidth=bandwidth, interfaces=1)
    cluster = attrs.evolve(cluster, machines={device.name.lower(): HostModel(device=device) for device in DEVICES})
    strategy, _ = strategy_of(Stated(cp=cp, cp_comm="ring", micro_batch=BATCH), graph, cp)
    tasks = Lowering(graph, cluster, Roofline().build(graph, cluster)).lower(strategy)
    timeline = Fluid().build()(tasks, star(cp, bandwidth, 0.0), cluster)
    op = next(k for k, each in enumerate(graph.operators) if each.name.endswith("0.self_attn.attention"))
    blocks = np.flatnonzero((tasks.kind == TaskKind.FORWARD) & (tasks.device == 1) & (tasks.op == op))
    assert len(blocks) == cp
    block, hop = tasks.seconds[blocks[0]], 2 * 2 * BATCH * POSITIONS * 4 * 8 / cp / bandwidth
    assert (block > hop) == kept_busy
    span = timeline.finish[blocks].max() - timeline.start[blocks].min()
    assert span == pytest.approx(3 * max(block, hop) + block, rel=1e-6)


@pytest.mark.parametrize("kind", ["gather", "ring"])
def test_causal_attention_is_more_work_for_later_positions_without_zigzag(model, kind):
    """The r-th of four devices has (2r + 1) / 4 of the mean, in both passes; with zig-zag halves all have the mean."""
    graph, cp, work = model("llama"), 4, {}
    for zigzag in (True, False):
        tasks, _ = lowered(graph, cp, cp=cp, cp_comm=kind, zigzag=zigzag, micro_batch=BATCH)
        attention = np.array([graph.operators[op].name.endswith(".attention") for op in tasks.op])
        compute = attention & np.isin(tasks.kind, (TaskKind.FORWARD, TaskKind.BACKWARD))
        work[zigzag] = np.bincount(tasks.device[compute], tasks.seconds[compute], cp)
    np.testing.assert_allclose(work[True], work[True][0], rtol=1e-12)
    np.testing.assert_allclose(work[False] / work[True], [0.25, 0.75, 1.25, 1.75], rtol=1e-12)


@pytest.mark.parametrize(("cp", "tp"), [(2, 1), (4, 1), (2, 2)])
def test_ulysses_exchanges_positions_and_heads(model, cp, tp):
    """Queries, keys, values and answers in each pass: a device sends 1/p of its p-th of each to every other one."""
    graph = model("llama")
    tasks, _ = lowered(graph, cp * tp, cp=cp, tp=tp, cp_comm="ulysses", micro_batch=BATCH)
    moved = tasks.kind == TaskKind.TRANSFER
    pairs = 2 * LAYERS * 2 * cp * (cp - 1) * tp  # of queries and answers, and as many of keys and values
    sizes, counts = np.unique(tasks.size[moved], return_counts=True)
    assert sizes.tolist() == [N // 2 // tp // cp**2, N // tp // cp**2]
    assert counts.tolist() == [pairs, pairs]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("llama", {"cp": 8, "cp_comm": "ulysses"}, r"cp=8 does not divide the 4 heads \(of keys and values\) .*cp=4\)"),
        ("llama", {"cp": 2, "tp": 4, "cp_comm": "ulysses"}, r"tp=4 does not divide the 4 heads .*nearest: tp=2\)"),
        ("llama", {"cp_comm": "ring"}, r"cp-comm=ring with cp=1 \(needs cp of at least 2\)"),
    ],
)
def test_what_context_parallelism_cannot_send(model, name, options, message):
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Stated(**options), model(name), 8)


@pytest.mark.parametrize("sp", [False, True])
def test_heads_of_keys_and_values_are_copied(model, sp):
    """8 devices, 4 heads of keys and values, 8 of queries: pairs sum gradients of what makes a head; the rest stays.

    A matrix of keys, or of values, of one head has 64 x 8 numbers of 2 bytes.
    """
    graph = model("llama")
    tasks, strategy = lowered(graph, 8, tp=8, sp=sp, micro_batch=BATCH)
    (stage,) = strategy.stages
    assert (stage.mesh.axes, stage.mesh.sizes) == (("dp", "tp", "kv"), (1, 4, 2))
    everyone = [*range(8)]
    if sp:
        assert nbytes(tasks, Collective.ALL_GATHER, everyone) == [N] * (6 * LAYERS + 3)
        assert nbytes(tasks, Collective.REDUCE_SCATTER, everyone) == [N] * (4 * LAYERS + 2)
    else:
        assert nbytes(tasks, Collective.ALL_REDUCE, everyone).count(N) == 4 * LAYERS + 2
    for pair in range(4):
        sums = nbytes(tasks, Collective.ALL_REDUCE, [2 * pair, 2 * pair + 1])
        assert sums == [HIDDEN * 8 * 2] * (2 * LAYERS)


def test_devices_with_copies_of_heads_have_their_share_of_attention(model):
    """Half of the seconds that each of 4 devices has; matrices that make keys are not divided further."""
    graph, seconds, kept = model("llama"), {}, {}
    for tp in (4, 8):
        cluster = build_cluster(ClusterOptions(servers=tp, device="h100"), Host.discover())
        lowering = Lowering(graph, cluster, Roofline(kernel_overhead_us=0).build(graph, cluster))
        strategy, _ = strategy_of(Stated(tp=tp, micro_batch=BATCH), graph, tp)
        tasks = lowering.lower(strategy)
        kept[tp] = lowering.memory_use(strategy).activations[0]
        for word in ("attention", "k_proj"):
            op = next(k for k, each in enumerate(graph.operators) if each.name.endswith(f"0.self_attn.{word}"))
            rows = (tasks.kind == TaskKind.FORWARD) & (tasks.device == 0) & (tasks.op == op)
            (seconds[word, tp],) = tasks.seconds[rows].tolist()
    assert seconds["attention", 8] == pytest.approx(seconds["attention", 4] / 2, rel=1e-9)
    assert seconds["k_proj", 8] > 0.6 * seconds["k_proj", 4]
    whole = kept[4] - kept[8]
    assert 0.35 * kept[4] < whole < 0.5 * kept[4], "all but keys and values halves"


def test_scores_of_heads_are_divided_with_copied_heads(model):
    """Each of 8 devices has the sink of its head of queries, of which nothing is summed."""
    graph = model("llama")
    operators = []
    for op in graph.operators:
        if op.kind == "scaled_dot_product_attention":
            h = next(number for number, dim in enumerate(op.dims) if dim.name == "h")
            op = attrs.evolve(op, weights=(Tensor("sinks", (Axis(8, h, scale=2, extent=2),), 2),))
        operators.append(op)
    graph = attrs.evolve(graph, operators=tuple(operators))
    tasks, strategy = lowered(graph, 8, tp=8, sp=False, micro_batch=BATCH)
    (stage,) = strategy.stages
    assert stage.mesh.sizes == (1, 4, 2)
    for pair in range(4):
        assert nbytes(tasks, Collective.ALL_REDUCE, [2 * pair, 2 * pair + 1]) == [HIDDEN * 8 * 2] * (2 * LAYERS)
    cluster = build_cluster(ClusterOptions(servers=8, device="h100"), Host.discover())
    whole, without = (
        Lowering(each, cluster, Roofline().build(each, cluster)).memory_use(strategy_of(Stated(tp=8), each, 8)[0])
        for each in (graph, model("llama"))
    )
    assert (whole.weights - without.weights).tolist() == [2 * LAYERS] * 8, "one number of 2 bytes in each layer"


def test_a_matrix_that_makes_keys_and_queries_at_once_is_whole():
    """Its channels have no even slices of all three: attention is cut by positions, and no heads are copied."""
    b = GraphBuilder("fused", 8)
    q, k, v = b.split(b.linear(b.input((32, 64)), 96), [64, 16, 16])
    y = b.linear(b.scaled_dot_product_attention(q, k, v, heads=(8, 2)), 64)
    b.linear(b.relu(b.linear(y, 128)), 64)
    strategy, _ = strategy_of(Stated(tp=4), b.build(), 4)
    assert strategy.stages[0].mesh.axes == ("dp", "tp")


def test_context_parallelism_of_experts_gathers_keys_and_values_alone(model):
    """Devices route their own positions: each sends what it does without, to half as many others."""
    graph = model("mixtral")
    tasks, _ = lowered(graph, 4, cp=2, ep=2, micro_batch=BATCH // 2)
    of_heads = 2 * BATCH // 2 * POSITIONS * 4 * 8
    assert nbytes(tasks, Collective.ALL_GATHER, [0, 1]) == [of_heads] * (2 * LAYERS * 2)
    assert nbytes(tasks, Collective.REDUCE_SCATTER, [0, 1]) == [of_heads] * (2 * LAYERS)
    tokens = BATCH // 2 * POSITIONS // 2
    moved = tasks.kind == TaskKind.TRANSFER
    assert set(tasks.size[moved].tolist()) == {tokens * 2 * HIDDEN * 2 // 2}
    assert {abs(int(a) - int(b)) for a, b in zip(tasks.src[moved], tasks.dst[moved], strict=True)} == {2}
    assert moved.sum() == 4 * LAYERS * 4
    experts = sum(w.nbytes for op in graph.operators if "experts" in op.name for w in op.weights)
    assert sum(nbytes(tasks, Collective.ALL_REDUCE, [0, 1])) == experts // 2


def test_weights_are_stored_in_slices_that_nothing_divides_evenly(model):
    """Six devices have a sixth of each: of 64 and 128 channels slices differ by one, as PyTorch's FSDP2 pads them."""
    graph, devices = model("llama", 12), 6
    cluster = build_cluster(ClusterOptions(servers=devices, device="h100"))
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    use = lowering.memory_use(strategy_of(Stated(zero=3), graph, devices)[0])
    numbers = sum(weight.elements for op in graph.operators for weight in op.weights)
    assert use.optimizer.tolist() == pytest.approx([12 * numbers / devices] * devices, abs=1)
    assert use.gradients.max() == pytest.approx(2 * numbers / devices, abs=1)


def test_gradients_of_what_a_weight_is_computed_of_are_summed():
    """Each device has a term of them, from its samples: all 4 (4096 * 64 + 64 * 1024) bytes are summed."""
    graph, devices = computed_weight(64, 1024, 4096, 64), [0, 1, 2, 3]
    total = 4 * (4096 * 64 + 64 * 1024)
    tasks, _ = lowered(graph, 4, dp=4)
    assert sum(nbytes(tasks, Collective.ALL_REDUCE, devices)) == total
    tasks, _ = lowered(graph, 4, dp=4, zero=3, micro_batch=16)  # each has a quarter
    assert sum(nbytes(tasks, Collective.REDUCE_SCATTER, devices)) == total
