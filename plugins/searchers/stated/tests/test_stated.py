"""Stated plans: bytes, messages and memory by hand, published figures, and one line for what does not divide."""

from __future__ import annotations

import functools
import json

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Collective, Host, State, TaskKind, TopoplanError, Trial, stated_plan
from topoplan.errors import TopoplanWarning
from topoplan.model.machine import HostModel
from topoplan_engine import ClusterOptions, build_cluster, problem_on
from topoplan_engine.lowering import Lowering
from topoplan_engine.precision import in_precision
from topoplan_estimator_roofline import Roofline
from topoplan_frontend_huggingface import HuggingFace
from topoplan_machine_nvidia import DEVICES
from topoplan_operators import GraphBuilder
from topoplan_operators.dense import token_embedding
from topoplan_samples.fabrics import star
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.degrees import nearest
from topoplan_searcher_stated.search import StatedSearch
from topoplan_searcher_stated.settings import Settings, settings_of
from topoplan_simulator_fluid import Fluid
from topoplan_topology_bigswitch import BigSwitch

LAYERS, BATCH, POSITIONS, HIDDEN, VOCABULARY = 4, 8, 32, 64, 128
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 128,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "hidden_act": "silu",
}
MIXTRAL = {
    **LLAMA,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
GPT2 = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "n_embd": HIDDEN,
    "n_layer": LAYERS,
    "n_head": 8,
    "vocab_size": VOCABULARY,
    "n_positions": POSITIONS,
}
#: Bytes of the activations of a batch between two layers, in bf16.
N = 2 * BATCH * POSITIONS * HIDDEN


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    @functools.cache
    def build(name, batch=BATCH):
        config = {"llama": LLAMA, "gpt2": GPT2, "mixtral": MIXTRAL}[name]
        path = tmp_path_factory.mktemp(name) / "config.json"
        path.write_text(json.dumps(config))
        return in_precision(HuggingFace(config=str(path)).build(batch), "bf16")

    return build


def lowered(graph, devices, **options):
    """The task graph of a plan, and its strategy."""
    cluster = build_cluster(ClusterOptions(servers=devices, device="h100"), Host.discover())
    strategy, _ = strategy_of(Stated(**options), graph, devices)
    strategy.check(graph, devices)
    return Lowering(graph, cluster, Roofline().build(graph, cluster)).lower(strategy), strategy


def nbytes(tasks, kind, members):
    """Bytes of whole tensors of all collectives of a kind in one group."""
    rows = np.flatnonzero((tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective == kind)).tolist()
    rows = [row for row in rows if tasks.members(row).tolist() == members]
    return [int(tasks.size[row]) * (1 if kind is Collective.ALL_REDUCE else 2) for row in rows]


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
    """A whole layer both gathers and both scatters; an MLP its gather, for nobody needs its sum again."""
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


@pytest.mark.parametrize("options", [{}, {"zero": 1}, {"bucket_mb": 1.0}])
def test_data_parallelism_sums_every_parameter_once(model, options):
    graph = model("llama")
    tasks, _ = lowered(graph, 4, dp=4, **options)
    kinds = [Collective.REDUCE_SCATTER, Collective.ALL_GATHER] if "zero" in options else [Collective.ALL_REDUCE]
    for kind in kinds:
        assert sum(nbytes(tasks, kind, [0, 1, 2, 3])) == graph.parameter_bytes
    if "bucket_mb" in options:
        assert len(nbytes(tasks, Collective.ALL_REDUCE, [0, 1, 2, 3])) == 1


@pytest.mark.parametrize("sp", [False, True])
def test_tensor_parallelism_of_experts_sends_what_that_of_other_layers_does(model, sp):
    """Devices have slices of every expert, and add what they make after each token has its experts' answers."""
    tasks, _ = lowered(model("mixtral"), 2, tp=2, sp=sp, micro_batch=BATCH)
    sums = nbytes(tasks, Collective.REDUCE_SCATTER if sp else Collective.ALL_REDUCE, [0, 1])
    assert sums.count(N) == 4 * LAYERS + 2
    assert max(sums) == N


def test_expert_parallelism_sends_tokens_to_their_experts_and_back(model):
    """A rank sends (x - 1) / x of two experts' worth of its tokens, four times in a layer, pass by pass."""
    graph = model("mixtral")
    tasks, strategy = lowered(graph, 4, ep=2)
    assert strategy.stages[0].mesh.axes == ("dp", "ep")
    assert strategy.stages[0].mesh.sizes == (2, 2)
    moved = tasks.kind == TaskKind.TRANSFER
    tokens = BATCH // 4 // strategy.micro_batches * POSITIONS
    assert set(tasks.size[moved].tolist()) == {tokens * 2 * HIDDEN * 2 // 2}
    assert moved.sum() == 4 * LAYERS * strategy.micro_batches * 4, "each of four ranks has one other one to send to"
    experts = sum(w.nbytes for op in graph.operators if "experts" in op.name for w in op.weights)
    of_experts = sum(nbytes(tasks, Collective.ALL_REDUCE, [0, 2]))
    assert of_experts == experts // 2, "half of the experts, which two ranks have"
    assert sum(nbytes(tasks, Collective.ALL_REDUCE, [0, 1, 2, 3])) == graph.parameter_bytes - experts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ep": 2, "skew": 3}, r"skew=3 with ep=2 \(needs skew=1 to 2\)"),
        ({"ep": 3, "dp": 8}, r"ep=3 does not divide dp=8 \(nearest: ep=2 or 4\)"),
        ({"ep": 8}, r"ep=8 does not divide the 4 .* of operator .*experts.* \(nearest: ep=4\)"),
        ({"cp": 32, "layout": "tp-cp-ep-dp-pp"}, "cp=32 .*does not divide 8 devices"),
    ],
)
def test_what_experts_do_not_divide_into(model, options, message):
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Stated(**options), model("mixtral"), 8)


def test_weights_in_slices_are_gathered_for_each_pass(model):
    """ZeRO 3: a micro-batch gathers every weight forward, and all but the last layer backward; gradients each time."""
    graph = model("llama")
    tasks, strategy = lowered(graph, 4, dp=4, zero=3)
    count = strategy.micro_batches
    assert count == 2
    gathered = sum(nbytes(tasks, Collective.ALL_GATHER, [0, 1, 2, 3]))
    assert sum(nbytes(tasks, Collective.REDUCE_SCATTER, [0, 1, 2, 3])) == count * graph.parameter_bytes
    head = graph.operators[-2]
    assert head.name == "lm_head"
    assert gathered == count * (2 * graph.parameter_bytes - head.weights[0].nbytes)
    cluster = build_cluster(ClusterOptions(servers=4, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    uses = [lowering.memory_use(strategy_of(Stated(dp=4, zero=zero), graph, 4)[0]) for zero in (0, 3)]
    assert (uses[1].optimizer == uses[0].optimizer / 4).all()
    assert (uses[1].gradients == uses[0].gradients / 4).all()
    assert (uses[1].weights < uses[0].weights).all()


@pytest.mark.parametrize(("ep", "skew"), [(2, 1.5), (4, 1.3), (4, 4.0)])
def test_a_busy_device_has_more_tokens(model, ep, skew):
    """Its experts take so many times the mean, its all-to-alls too; what the others have makes the mean."""
    graph, seconds, sent = model("mixtral"), {}, {}
    cluster = build_cluster(ClusterOptions(servers=ep, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline(kernel_overhead_us=0).build(graph, cluster))
    for factor in (1.0, skew):
        strategy, _ = strategy_of(Stated(ep=ep, dp=ep, skew=factor, micro_batch=BATCH // ep), graph, ep)
        tasks = lowering.lower(strategy)
        tasks.check()
        named = np.array(["experts" in graph.operators[op].name for op in tasks.op])
        rows = named & np.isin(tasks.kind, (TaskKind.FORWARD, TaskKind.BACKWARD))
        seconds[factor] = np.bincount(tasks.device[rows], tasks.seconds[rows], ep)
        moved = tasks.kind == TaskKind.TRANSFER
        ends = (tasks.src[moved], tasks.dst[moved])
        sent[factor] = np.array([np.bincount(each, tasks.size[moved], ep) for each in ends])
    others = (ep - skew) / (ep - 1)
    np.testing.assert_allclose(seconds[skew] / seconds[1.0], [skew] + [others] * (ep - 1), rtol=1e-9, atol=1e-12)
    # Two of four all-to-alls in a layer send to the busy device so much, two send that from it.
    to_others = skew / 2 + others / 2  # of device 0: half of what it sends goes to the others' experts
    assert sent[skew][0, 0] == pytest.approx(sent[1.0][0, 0] * to_others, rel=1e-3)
    assert sent[skew][1, 0] == pytest.approx(sent[1.0][1, 0] * to_others, rel=1e-3)
    assert sent[skew].sum() == pytest.approx(sent[1.0].sum(), rel=1e-3)


def test_gathers_in_fp8_send_one_byte_for_a_number(model):
    for zero, times in ((1, 1), (2, 1), (3, 2)):
        graph = model("llama")
        tasks, _ = lowered(graph, 4, dp=4, zero=zero, gather="fp8", micro_batch=2)
        head = graph.operators[-2].weights[0].nbytes // 2 if zero == 3 else 0
        assert sum(nbytes(tasks, Collective.ALL_GATHER, [0, 1, 2, 3])) == times * PARAMETERS - head
        assert sum(nbytes(tasks, Collective.REDUCE_SCATTER, [0, 1, 2, 3])) == 2 * PARAMETERS


PARAMETERS = 164416  # of the Llama


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_gradients_in_fp32_are_summed_and_kept_in_four_bytes(model, zero):
    """Weights are still gathered in two; 18 bytes for each parameter in place of 16, less what ZeRO shares."""
    graph, dp = model("llama"), 4
    assert graph.parameter_bytes == 2 * PARAMETERS
    cluster = build_cluster(ClusterOptions(servers=dp, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    strategy, _ = strategy_of(Stated(dp=dp, zero=zero, grads="fp32", micro_batch=2), graph, dp)
    tasks, use = lowering.lower(strategy), lowering.memory_use(strategy)
    sums = Collective.REDUCE_SCATTER if zero else Collective.ALL_REDUCE
    assert sum(nbytes(tasks, sums, [0, 1, 2, 3])) == 4 * PARAMETERS
    if zero:
        gathered = 2 * graph.parameter_bytes - graph.operators[-2].weights[0].nbytes if zero == 3 else 2 * PARAMETERS
        assert sum(nbytes(tasks, Collective.ALL_GATHER, [0, 1, 2, 3])) == gathered
    assert use.gradients[0] == 4 * PARAMETERS / (dp if zero > 1 else 1)
    assert use.optimizer[0] == 12 * PARAMETERS / (dp if zero else 1)
    if zero < 3:
        assert use.weights[0] == 2 * PARAMETERS


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_hybrid_sharding_shares_inside_of_groups_and_sums_a_share_between_them(model, zero):
    """Groups of four of eight devices: two micro-batches scatter a gradient twice, if it is not kept whole."""
    graph = model("llama", 16)
    tasks, strategy = lowered(graph, 8, dp=8, zero=zero, shard=4, micro_batch=1)
    assert (strategy.micro_batches, strategy.stages[0].mesh.axes) == (2, ("dp", "shard"))
    times = 2 if zero > 1 else 1
    for group in ([0, 1, 2, 3], [4, 5, 6, 7]):
        assert sum(nbytes(tasks, Collective.REDUCE_SCATTER, group)) == times * graph.parameter_bytes
    for k in range(4):
        assert sum(nbytes(tasks, Collective.ALL_REDUCE, [k, k + 4])) == graph.parameter_bytes // 4


def test_hybrid_sharding_keeps_the_state_of_its_group(model):
    graph = model("llama", 16)
    cluster = build_cluster(ClusterOptions(servers=8, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    for zero in (1, 2, 3):
        use = lowering.memory_use(strategy_of(Stated(dp=8, zero=zero, shard=4), graph, 8)[0])
        assert use.optimizer[0] == 12 * PARAMETERS / 4
        assert use.gradients[0] == 2 * PARAMETERS / (4 if zero > 1 else 1)


def test_weights_that_are_not_given_back_are_gathered_once(model):
    """And stay: all of them, beside the slices; their gradients are scattered in each micro-batch all the same."""
    graph = model("llama")
    tasks, strategy = lowered(graph, 4, dp=4, zero=3, reshard=False)
    assert strategy.micro_batches == 2
    assert sum(nbytes(tasks, Collective.ALL_GATHER, [0, 1, 2, 3])) == graph.parameter_bytes
    assert sum(nbytes(tasks, Collective.REDUCE_SCATTER, [0, 1, 2, 3])) == 2 * graph.parameter_bytes
    cluster = build_cluster(ClusterOptions(servers=4, device="h100"), Host.discover())
    use = Lowering(graph, cluster, Roofline().build(graph, cluster)).memory_use(strategy)
    assert use.weights[0] == 2 * PARAMETERS * (1 + 1 / 4)
    assert use.gradients[0] == 2 * PARAMETERS / 4


@pytest.mark.parametrize("options", [{"zero": 1}, {"zero": 0}, {"zero": 1, "schedule": "zb-h1"}, {"zero": 3}])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_updates_wait_for_the_norm_of_all_gradients(model, name, options):
    """One all-reduce of four bytes over all devices: behind every sum, in front of every update and gather."""
    graph = model(name)
    cluster = build_cluster(ClusterOptions(servers=4, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline(optimizer_step=True).build(graph, cluster))
    tasks = lowering.lower(strategy_of(Stated(pp=2, dp=2, clip=True, **options), graph, 4)[0])
    tasks.check()
    (norm,) = np.flatnonzero((tasks.kind == TaskKind.COLLECTIVE) & (tasks.size == 4)).tolist()
    assert tasks.members(norm).tolist() == [0, 1, 2, 3]
    timeline = Fluid().build()(tasks, star(4, 1e10, 1e-6), cluster)
    update = tasks.kind == TaskKind.UPDATE
    assert update.any()
    assert timeline.start[update].min() >= timeline.finish[norm]
    sums = (tasks.kind == TaskKind.COLLECTIVE) & np.isin(tasks.collective, (0, Collective.REDUCE_SCATTER))
    sums[norm] = False
    assert timeline.finish[sums].max() <= timeline.start[norm]
    backward = tasks.kind == TaskKind.BACKWARD
    assert timeline.finish[backward].max() <= timeline.start[norm]
    if options["zero"] == 1:
        gathers = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective == Collective.ALL_GATHER)
        assert timeline.start[gathers].min() >= timeline.finish[norm]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shard": 4}, r"shard=4 with zero=0 \(needs zero=1, 2 or 3\)"),
        ({"shard": 3, "zero": 3}, r"shard=3 does not divide dp / ep = 8 \(nearest: shard=2 or 4\)"),
        ({"skew": 1.5}, r"skew=1.5 with ep=1 \(needs ep of at least 2\)"),
        ({"gather": "fp8"}, r"gather=fp8 with zero=0 \(needs zero=1, 2 or 3"),
        ({"reshard": False, "zero": 2}, r"reshard=no with zero=2 \(needs zero=3"),
    ],
)
def test_what_does_not_share(model, options, message):
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Stated(**options), model("llama"), 8)


def test_words_are_padded_by_the_model(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(GPT2 | {"vocab_size": 50257}))
    graph = HuggingFace(config=str(path)).build(8)
    message = r"tp=4 does not divide the 50257 words of operator 'transformer.wte' \(Megatron-LM pads them to 50688"
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Stated(tp=4), graph, 4)


def test_a_matrix_in_front_of_a_norm_is_whole_and_those_of_layers_are_not(tmp_path):
    """BERT's head has a matrix of the size of those of its attention, and a norm behind it."""
    path = tmp_path / "config.json"
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "intermediate_size": 128}
    names = {"architectures": ["BertForMaskedLM"], "model_type": "bert", "vocab_size": 256}
    path.write_text(json.dumps(sizes | names | {"max_position_embeddings": 32, "hidden_act": "gelu"}))
    graph = in_precision(HuggingFace(config=str(path)).build(8), "bf16")
    tasks, strategy = lowered(graph, 2, tp=2, sp=False, micro_batch=8)
    program = strategy.stages[0].program
    cut = {op.name for op, rules in zip(graph.operators, program.rules, strict=True) if rules[-1].dim >= 0}
    assert "cls.predictions.transform.dense" not in cut
    assert {f"bert.encoder.layer.{k}.attention.self.query" for k in range(2)} <= cut
    sums = nbytes(tasks, Collective.ALL_REDUCE, [0, 1])
    assert sums.count(2 * 8 * 32 * 64) == 4 * 2 + 2


# ── Pipelines ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("tp", "sp", "share"), [(1, False, 1), (2, False, 1), (2, True, 2)])
def test_messages_between_stages(model, tp, sp, share):
    """Each rank sends what it has to its peer: all of a micro-batch, or its slice with sequence parallelism."""
    tasks, strategy = lowered(model("llama"), 2 * tp, tp=tp, pp=2, sp=sp)
    assert strategy.micro_batches == BATCH
    moved = tasks.kind == TaskKind.TRANSFER
    assert set(tasks.size[moved].tolist()) == {N // BATCH // share}
    assert moved.sum() == 2 * tp * BATCH
    assert {(int(a), int(b)) for a, b in zip(tasks.src[moved], tasks.dst[moved], strict=True)} == {
        pair for k in range(tp) for pair in ((k, k + tp), (k + tp, k))
    }


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb-h1", "interleaved:2"])
def test_ranks_of_megatron_wait_for_what_they_send(model, schedule):
    """Messages take 10 ms: no pass begins on the sender before its last one has arrived, unless it has two chunks."""
    graph, bandwidth = model("llama"), N / BATCH / 0.01
    cluster = Cluster.uniform(n_hosts=2, latency=0.0, interface_bandwidth=bandwidth, interfaces=1)
    cluster = attrs.evolve(cluster, machines={device.name.lower(): HostModel(device=device) for device in DEVICES})
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    makespans = {}
    for overlap in ("all", "megatron"):
        strategy, _ = strategy_of(Stated(pp=2, schedule=schedule, overlap=overlap), graph, 2)
        assert strategy.blocks == (overlap == "megatron" and schedule != "interleaved:2")
        tasks = lowering.lower(strategy)
        tasks.check()
        timeline = Fluid().build()(tasks, star(2, bandwidth, 0.0), cluster)
        makespans[overlap] = timeline.makespan
        compute = np.isin(tasks.kind, (TaskKind.FORWARD, TaskKind.BACKWARD))
        for rank in (0, 1):
            sent = np.flatnonzero((tasks.kind == TaskKind.TRANSFER) & (tasks.src == rank))
            starts = timeline.start[compute & (tasks.device == rank)]
            beside = sum(
                ((starts > timeline.start[each] + 1e-9) & (starts < timeline.finish[each] - 1e-9)).any()
                for each in sent
            )
            assert (beside == 0) or not strategy.blocks
    if schedule == "gpipe":  # rank 0 sends 8 micro-batches, and waits for each; then gets 8 gradients
        assert makespans["megatron"] == pytest.approx(makespans["all"], rel=0.02)
    assert makespans["megatron"] >= makespans["all"] * (1 - 1e-9)


@pytest.mark.parametrize(
    ("options", "name"),
    [({"tp": 4, "async_tp": True}, "0.mlp.down_proj"), ({"cp": 4, "cp_comm": "ring"}, "0.self_attn.attention")],
)
def test_pieces_beside_messages_are_slower(model, options, name):
    """Three of four pieces of what has a ring take 15 % more."""
    graph, seconds = model("llama"), []
    op = next(k for k, each in enumerate(graph.operators) if each.name.endswith(name))
    for slowdown in (0.0, 0.15):
        strategy, _ = strategy_of(Stated(micro_batch=BATCH, slowdown=slowdown, **options), graph, 4)
        cluster = build_cluster(ClusterOptions(servers=4, device="h100"), Host.discover())
        tasks = Lowering(graph, cluster, Roofline().build(graph, cluster)).lower(strategy)
        seconds.append(tasks.seconds[(tasks.kind == TaskKind.FORWARD) & (tasks.device == 0) & (tasks.op == op)])
    np.testing.assert_allclose(seconds[1] / seconds[0], [1.0, 1.15, 1.15, 1.15], rtol=1e-9)
    with pytest.raises(TopoplanError, match=r"slowdown=0.1 without rings \(needs async-tp=yes or cp-comm=ring\)"):
        strategy_of(Stated(slowdown=0.1), graph, 4)


def test_layouts_name_the_devices(model):
    graph = model("llama")
    for layout, first, last in (
        ("tp-cp-ep-dp-pp", [0, 1, 2, 3], [4, 5, 6, 7]),
        ("tp-cp-ep-pp-dp", [0, 1, 4, 5], [2, 3, 6, 7]),
        ("dp-tp-cp-ep-pp", [0, 1, 2, 3], [4, 5, 6, 7]),
        ("pp-dp-tp-cp-ep", [0, 2, 4, 6], [1, 3, 5, 7]),
    ):
        strategy, _ = strategy_of(Stated(tp=2, pp=2, layout=layout), graph, 8)
        assert [sorted(stage.mesh.devices.tolist()) for stage in strategy.stages] == [first, last], layout
        mesh = strategy.stages[0].mesh
        assert mesh.axes == ("dp", "tp")
        stride = np.diff(mesh.devices.reshape(mesh.sizes)[0])[0]
        assert stride == {"tp-cp-ep-dp-pp": 1, "tp-cp-ep-pp-dp": 1, "dp-tp-cp-ep-pp": 2, "pp-dp-tp-cp-ep": 4}[layout]


@pytest.mark.parametrize("layout", ["tp-cp-ep-dp-pp", "dp-ep-pp-cp-tp", "pp-dp-tp-cp-ep", "ep-cp-dp-tp-pp"])
@pytest.mark.parametrize(("name", "options"), [("llama", {"cp": 2}), ("mixtral", {"ep": 2, "dp": 4})])
def test_a_layout_changes_devices_and_nothing_else(model, layout, name, options):
    graph = model(name)
    sizes = []
    for each in ("tp-cp-ep-dp-pp", layout):
        tasks, _ = lowered(graph, 16, tp=2, pp=2, layout=each, **options)
        sizes.append(sorted(tasks.size.tolist()))
    assert sizes[0] == sizes[1]


def test_stages_have_equally_many_layers_with_the_words_and_the_head(model):
    graph = model("gpt2")
    strategy, _ = strategy_of(Stated(pp=4), graph, 4)
    names = [[graph.operators[op].name for op in stage.operators] for stage in strategy.stages]
    assert names[0][0] == "transformer.wte"
    assert names[-1][-1] == "loss"
    assert [sum(".mlp.c_fc" in name for name in each) for each in names] == [1] * 4


@pytest.mark.parametrize(
    ("options", "layers"),
    [
        ({"pp": 3, "layers": "1+2+1"}, [1, 2, 1]),
        ({"pp": 3, "layers": "embedding+head"}, [1, 2, 1]),
        ({"pp": 4, "layers": "0+1+2+1"}, [0, 1, 2, 1]),
        ({"pp": 2, "schedule": "interleaved:2", "layers": "0+2*2+0"}, [0, 2, 2, 0]),
    ],
)
def test_stages_of_different_depth(model, options, layers):
    graph = model("llama")
    tasks, strategy = lowered(graph, options["pp"], **options)
    tasks.check()
    names = [[graph.operators[op].name for op in stage.operators] for stage in strategy.stages]
    assert [sum(".mlp.up_proj" in name for name in each) for each in names] == layers
    assert names[0][0] == "model.embed_tokens"
    assert names[-1][-1] == "loss"


def test_an_uneven_division_is_proposed(model):
    with pytest.raises(TopoplanError, match=r"pp=3 does not .*\(nearest: pp=2 or 4; or layers=1\*2\+2\)"):
        strategy_of(Stated(pp=3), model("llama"), 3)


def test_tied_words_are_summed_between_the_first_and_the_last_stage(model):
    tasks, _ = lowered(model("gpt2"), 4, tp=2, pp=2)
    for pair in ([0, 2], [1, 3]):
        assert nbytes(tasks, Collective.ALL_REDUCE, pair) == [VOCABULARY * HIDDEN * 2 // 2]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved:2", "zb-h1", "zb-h2", "zbv", "v-half"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_schedules_and_recomputation_go_together(model, schedule, recompute, name):
    tasks, strategy = lowered(model(name), 8, tp=2, pp=2, schedule=schedule, recompute=recompute, zero=1)
    tasks.check()
    assert strategy.order.name == schedule.partition(":")[0]
    forward = int((tasks.kind == TaskKind.FORWARD).sum())
    once = len(strategy.placements) * 4 * strategy.micro_batches
    again = (
        {"none": 0, "selective": LAYERS, "full": LAYERS * {"llama": 16, "gpt2": 12}[name]}[recompute]
        * 4
        * strategy.micro_batches
    )
    assert forward == once + again


def again(strategy, graph):
    """Names of the operators that run again, region by region."""
    (stage,) = strategy.stages
    regions = stage.regions.tolist()
    numbers = dict.fromkeys(region for region in regions if region >= 0)
    return [[op.name for op, r in zip(graph.operators, regions, strict=True) if r == number] for number in numbers]


def test_every_second_layer_runs_again(model):
    """16 operators each of the second and the fourth layer; with their gathers and scatters: 6 N in place of 4 N."""
    graph = model("llama")
    tasks, strategy = lowered(graph, 2, tp=2, sp=False, micro_batch=BATCH, recompute="every:2")
    layers = again(strategy, graph)
    assert [len(layer) for layer in layers] == [16, 16]
    assert [layer[0] for layer in layers] == [f"model.layers.{k}.input_layernorm" for k in (1, 3)]
    assert nbytes(tasks, Collective.ALL_REDUCE, [0, 1]).count(N) == 4 * LAYERS + 2 + 2 * 2


@pytest.mark.parametrize(
    ("name", "words", "first"),
    [
        ("llama", "mlp", [f"mlp.{each}" for each in ("gate_proj", "act_fn", "up_proj", "multiply", "down_proj")]),
        (
            "llama",
            "mlp.act_fn+mlp",
            [f"mlp.{each}" for each in ("gate_proj", "act_fn", "up_proj", "multiply", "down_proj")],
        ),
        ("llama", "core_attn", ["self_attn.attention"]),
        ("llama", "layernorm", ["input_layernorm"]),
        ("mixtral", "moe_act", ["mlp.experts.act_fn", "mlp.experts.multiply"]),
        ("gpt2", "attn.c_proj", ["attn.c_proj"]),
    ],
)
def test_modules_that_run_again(model, name, words, first):
    graph = model(name)
    strategy, _ = strategy_of(Stated(recompute=f"modules:{words}"), graph, 1)
    regions = again(strategy, graph)
    assert [each.split(".0.", 1)[1] for each in regions[0]] == first
    assert len(regions) == LAYERS * (2 if words == "layernorm" else 1)


def test_an_mlp_that_runs_again_gathers_again_and_sums_nothing(model):
    """Its input is gathered once more; its output, terms of a sum, is what nobody needs again."""
    graph = model("llama")
    counts = []
    for recompute in ("none", "modules:mlp"):
        tasks, _ = lowered(graph, 2, tp=2, micro_batch=BATCH, recompute=recompute)
        counts.append([len(nbytes(tasks, kind, [0, 1])) for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)])
    assert counts[1] == [counts[0][0] + LAYERS, counts[0][1]]


def test_memory_of_modules_that_run_again(model):
    """Of an MLP of Llama what is as wide as its inner layer is not kept: gate, its SiLU, up and their product.

    One of them is there again while a backward pass runs, so that a batch of one sample keeps three layers' worth less.
    """
    graph = model("llama", 2)
    cluster = build_cluster(ClusterOptions(servers=1, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    kept = [
        lowering.memory_use(strategy_of(Stated(recompute=recompute, micro_batch=2), graph, 1)[0]).activations[0]
        for recompute in ("none", "modules:mlp", "modules:mlp.act_fn")
    ]
    wide = 2 * 2 * POSITIONS * 128
    assert kept[0] - kept[1] == pytest.approx((LAYERS - 1) * 4 * wide, abs=2 * wide)
    assert kept[2] == kept[0], "the product reads what the SiLU makes"


@pytest.mark.parametrize(
    ("recompute", "message"),
    [
        ("modules:mpl", r"recompute=modules:mpl: layers of model 'llama' have no module 'mpl' \(nearest: mlp, "),
        ("modules:core", r"have no module 'core' \(nearest: core_attn"),
        ("every:9", r"has 4 layers \(nearest: every:4\)"),
        ("every:two", r"every two-th layer"),
        ("modules:", r"must be none, selective, full, every:2 or modules:NAME\+NAME"),
        ("some", r"recompute=some \(must be none"),
    ],
)
def test_what_cannot_run_again_is_one_line(model, recompute, message):
    with pytest.raises(TopoplanError, match=message) as caught:
        strategy_of(Stated(recompute=recompute), model("llama"), 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{}, {"zero": 1}, {"tp": 2}, {"recompute": "full"}, {"grads": "fp32", "clip": True}]
)
def test_dualpipe_has_two_copies_of_the_model(model, options):
    """Ranks r and p - 1 - r have the same two stages; devices at the same places sum the gradients of each once."""
    graph, tp = model("llama", 16), options.get("tp", 1)
    cluster = build_cluster(ClusterOptions(servers=8 * tp, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    plans = {
        name: strategy_of(Stated(pp=4, dp=2, schedule=name, **options), graph, 8 * tp)[0]
        for name in ("1f1b", "dualpipe")
    }
    both = plans["dualpipe"]
    assert both.stage_of_copies.shape == (2, len(graph.operators))
    assert both.order.rank_of[both.stage_of_copies[0]].tolist() == [
        3 - rank for rank in both.order.rank_of[both.stage_of_copies[1]]
    ]
    tasks = {name: lowering.lower(plan) for name, plan in plans.items()}
    tasks["dualpipe"].check()
    for kind in (TaskKind.FORWARD, TaskKind.BACKWARD):
        seconds = {name: each.seconds[each.kind == kind].sum() for name, each in tasks.items()}
        assert seconds["dualpipe"] == pytest.approx(seconds["1f1b"], rel=1e-9), "no micro-batch runs twice"
    moved = {name: each.size[each.kind == TaskKind.TRANSFER].sum() for name, each in tasks.items()}
    assert moved["dualpipe"] == moved["1f1b"]
    uses = {name: lowering.memory_use(plan) for name, plan in plans.items()}
    assert uses["dualpipe"].weights.sum() == 2 * uses["1f1b"].weights.sum()
    assert uses["dualpipe"].weights[0] == uses["1f1b"].weights[[0, 6 * tp]].sum()
    itemsize = 4 if "grads" in options else 2
    mirrored = [sum(nbytes(tasks["dualpipe"], Collective.ALL_REDUCE, [k * tp, (6 + k) * tp])) for k in (0, 1)]
    of_ends = sum(
        w.nbytes // 2 * itemsize
        for op, stage in zip(graph.operators, plans["1f1b"].stage_of.tolist(), strict=True)
        for w in op.weights
        if stage in (0, 3)
    )
    if tp == 1:
        assert mirrored == [of_ends // (2 if "zero" in options else 1)] * 2
    timeline = Fluid().build()(tasks["dualpipe"], star(8 * tp, 1e11, 1e-6), cluster)
    assert np.isfinite(timeline.makespan)


def test_dualpipe_sums_no_weights_that_stages_share(model):
    with pytest.raises(TopoplanError, match=r"order 'dualpipe': 'transformer.wte' and 'lm_head' share a weight"):
        strategy_of(Stated(pp=4, schedule="dualpipe"), model("gpt2"), 4)


# ── Memory: GPT-3 of 175 billion parameters ─────────────────────────────────────────────────────────────────────────


@functools.cache
def gpt3():
    """GPT-3 with dropout and attention that is not fused, in fp16 (Korthikanti et al., 2022, table 3)."""
    layers, sequence, hidden, heads = 96, 2048, 12288, 96
    b = GraphBuilder("gpt3", 8)
    shape = (sequence, heads, hidden // heads)
    tokens = b.input((sequence,), itemsize=8)
    (x,) = b.append(token_embedding(tokens, 51200, hidden), [tokens], "words")
    x = b.elementwise("dropout", x, name="words.dropout")
    for k in range(layers):
        at = f"layers.{k}"
        y = b.layer_norm(x, name=f"{at}.norm1")
        q, keys, values = (
            b.view(b.linear(y, hidden, name=f"{at}.{word}"), shape, name=f"{at}.{word}_heads") for word in "qkv"
        )
        scores = b.einsum("nqhd,nthd->nhqt", [q, keys], name=f"{at}.scores")
        shares = b.elementwise("dropout", b.softmax(scores, name=f"{at}.softmax"), name=f"{at}.mask")
        y = b.einsum("nhqt,nthd->nqhd", [shares, values], name=f"{at}.context")
        y = b.linear(b.view(y, (sequence, hidden), name=f"{at}.flat"), hidden, name=f"{at}.out")
        x = b.add(x, b.elementwise("dropout", y, name=f"{at}.dropout1"), name=f"{at}.sum1")
        y = b.linear(b.layer_norm(x, name=f"{at}.norm2"), 4 * hidden, name=f"{at}.up")
        y = b.linear(b.elementwise("gelu", y, name=f"{at}.gelu"), hidden, name=f"{at}.down")
        x = b.add(x, b.elementwise("dropout", y, name=f"{at}.dropout2"), name=f"{at}.sum2")
    b.linear(b.layer_norm(x, name="norm"), 51200, bias=False, name="head")
    return in_precision(b.build(), "fp16")


@pytest.mark.parametrize(
    ("options", "gibibytes"),
    [
        pytest.param({"sp": False}, 51.75, marks=pytest.mark.slow),
        pytest.param({"sp": True}, 32.06, marks=pytest.mark.slow),
        ({"sp": True, "recompute": "selective"}, 9.56),
        pytest.param({"sp": False, "recompute": "full"}, 4.5, marks=pytest.mark.slow),
    ],
)
def test_activations_of_the_first_stage_of_gpt_3(options, gibibytes):
    """Beside layers, the words and their mask are kept: 3sbh, 1/8 of it with sequence parallelism, of 8 micro-batches.

    Gradients of activations and what runs again come on top for a moment, less than one micro-batch of a layer or two.
    """
    graph, devices = gpt3(), 64
    cluster = build_cluster(ClusterOptions(servers=8, gpus_per_server=8, device="h100"), Host.discover())
    strategy, _ = strategy_of(Stated(tp=8, pp=8, **options), graph, devices)
    use = Lowering(graph, cluster, Roofline().build(graph, cluster)).memory_use(strategy)
    words = 8 * (3 if options.get("recompute") != "full" else 1) * 2048 * 12288 / (8 if options["sp"] else 1)
    layer = 51.75 * 2**30 / 96
    assert gibibytes * 2**30 + words * 0.3 <= use.activations[0] <= gibibytes * 2**30 + words + 1.5 * layer
    assert use.weights[0] == pytest.approx(2 * (175e9 / 64 + 51200 * 12288 / 8), rel=0.1)


# ── What does not go together ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tp": 3}, r"tp=3 x cp=1 x pp=1 = 3 does not divide 16 devices \(nearest: pp=.*|tp=2 or 4\)"),
        ({"pp": 4, "dp": 3}, r"tp=1 x cp=1 x pp=4 x dp=3 = 12 for 16 devices \(nearest: dp=4\)"),
        ({"tp": 16}, r"tp=16 does not divide the 4 heads \(of keys and values\) of .* \(nearest: tp=8\)"),
        ({"pp": 2, "layers": "3+2"}, r"layers=3\+2: has 5 layers, model 'llama' has 4"),
        ({"pp": 2, "layers": "2+1+1"}, r"layers=2\+1\+1: has 3 stages, the schedule 2 \(one number for each\)"),
        ({"pp": 4, "layers": "2+0+1+1"}, r"stage 1 has no operator \(the first and the last may have 0\)"),
        ({"pp": 4, "layers": "head"}, r"does not divide the 4 layers and the head of model 'llama' \(nearest: pp=1"),
        ({"pp": 2, "layers": "two+2"}, r"'two' is no number of layers"),
        ({"pp": 8}, r"pp=8 does not divide the 4 layers of model 'llama' \(nearest: pp=4\)"),
        ({"pp": 4, "schedule": "interleaved:2"}, r"pp=4 x 2 chunks does not divide the 4 layers .*nearest: pp=2\)"),
        ({"micro_batch": 3}, r"a batch of 16 is no multiple of dp=16 x micro-batch=3 \(nearest: --batch-size 48\)"),
        ({"cp": 16, "layout": "cp-tp-ep-dp"}, "layout=cp-tp-ep-dp: must name each of tp, cp, ep, dp, pp once"),
        ({"ep": 2}, "ep=2: model 'llama' has no experts"),
        ({"zero": 4}, r"zero=4 \(must be 0, 1, 2 or 3\)"),
        ({"pp": 4, "schedule": "dualpipe"}, r"4 micro-batches on 4 ranks \(must be even, and at least two .*: 8\)"),
        ({"pp": 4, "schedule": "1f2b"}, "no schedule named '1f2b'"),
    ],
)
def test_one_line_says_what_would_divide(model, options, message):
    with pytest.raises(TopoplanError, match=message) as caught:
        strategy_of(Stated(**options), model("llama", 16), 16)
    assert "\n" not in str(caught.value)


def test_a_model_without_layers_or_matrices_has_no_such_plan():
    b = GraphBuilder("plain", 16)
    b.relu(b.input((8,)))
    for options, message in (({"pp": 2}, "has no numbered layers"), ({"tp": 2}, "has no matrices to cut")):
        with pytest.raises(TopoplanError, match=message):
            strategy_of(Stated(**options), b.build(), 2)


def test_nearest():
    assert (nearest(1, [2, 4]), nearest(9, [2, 4]), nearest(3, [2, 4])) == ("2", "4", "2 or 4")


def test_the_report_says_what_was_left_out(model):
    graph = model("llama")
    cluster = build_cluster(ClusterOptions(servers=8), Host.discover())
    problem = problem_on(graph, cluster, Roofline().build(graph, cluster), BigSwitch())
    search = StatedSearch(Stated(tp=2), problem)
    search.adopt(Trial(state=State(problem.space.initial(), None), cost=1.0, demand=lambda: None))
    (candidate,) = search.ask()
    assert not search.ask()
    plan = search.report(candidate.base.strategy)["plan"]
    assert plan == "tp=2,cp=1,pp=1,dp=4,sp=yes,zero=0,micro-batch=1,schedule=1f1b,recompute=none,layout=tp-cp-ep-dp-pp"


def test_a_stated_plan_in_python():
    plan = stated_plan("transformer", "tp=2,pp=2", servers=1, gpus_per_server=8)
    assert [stage.mesh.sizes for stage in plan.strategy.stages] == [(2, 2), (2, 2)]
    assert plan.timeline.makespan > 0


# ── Files of trainers ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_says_what_options_leave_out(model, tmp_path):
    file = tmp_path / "train.sh"
    file.write_text(
        "torchrun --nproc_per_node 8 pretrain.py --tensor-model-parallel-size 2 --sequence-parallel \\\n"
        f"  --pipeline-model-parallel-size 4 --micro-batch-size 2 --use-distributed-optimizer"
        f" --global-batch-size {BATCH}\n"
    )
    graph = model("llama")
    expected = Settings(tp=2, pp=4, sp=True, zero=1, micro_batch=2, clip=True)
    assert settings_of(Stated(file=str(file)), graph) == expected
    assert settings_of(Stated(file=str(file), pp=1, zero=0), graph) == attrs.evolve(expected, pp=1, zero=0)
    strategy, degrees = strategy_of(Stated(file=str(file), pp=2), graph, 8)
    assert (degrees.dp, len(strategy.stages), strategy.stages[0].mesh.sizes) == (2, 2, (2, 2))


def test_a_file_of_another_batch_is_said(model, tmp_path):
    file = tmp_path / "train.yaml"
    file.write_text("MODEL_ARGS:\n  --tensor-model-parallel-size: 2\n  --global-batch-size: 1536\n")
    with pytest.warns(TopoplanWarning, match="has a batch of 1536, the model one of 8 .--batch-size 1536"):
        settings_of(Stated(file=str(file)), model("llama"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "is no text in UTF-8"),
        (b"--tensor-model-parallel-size 2 --hierarchical-context-parallel-sizes 2", "a stated plan cannot say"),
        (b"echo", "has no flags of Megatron-LM"),
    ],
)
def test_a_file_that_says_no_plan_is_refused(model, tmp_path, content, message):
    file = tmp_path / "train.sh"
    file.write_bytes(content)
    with pytest.raises(TopoplanError, match=f"train.sh: .*{message}"):
        settings_of(Stated(file=str(file)), model("llama"))


def test_a_file_says_which_layers_run_again(model, tmp_path):
    """Every second layer of torchtitan's configurations unless they say something else."""
    file = tmp_path / "titan.toml"
    file.write_text("[parallelism]\ntensor_parallel_degree = 2\n")
    assert settings_of(Stated(file=str(file)), model("llama")).recompute == "every:2"
