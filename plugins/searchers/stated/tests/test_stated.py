"""Stated plans: pipelines, recomputation and memory by hand, published figures, and what does not divide."""

from __future__ import annotations

import functools
import itertools

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Collective, Host, Searcher, State, TaskKind, TopoplanError, Trial, stated_plan
from topoplan.errors import TopoplanWarning
from topoplan.model.machine import HostModel
from topoplan_engine import ClusterOptions, build_cluster, problem_on
from topoplan_engine.experiment import Choice
from topoplan_engine.lowering import Lowering
from topoplan_engine.precision import in_precision
from topoplan_estimator_roofline import Roofline
from topoplan_machine_nvidia import DEVICES
from topoplan_operators import GraphBuilder
from topoplan_operators.dense import token_embedding
from topoplan_samples.fabrics import star
from topoplan_samples.long_tail import at_night
from topoplan_samples.stated import (
    BATCH,
    HIDDEN,
    LAYERS,
    POSITIONS,
    VOCABULARY,
    N,
    lowered,
    nbytes,
)
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.degrees import degrees_of, nearest, short_words_of
from topoplan_searcher_stated.search import StatedSearch
from topoplan_searcher_stated.settings import Settings, settings_of
from topoplan_simulator_fluid import Fluid
from topoplan_topology_bigswitch import BigSwitch

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


@pytest.mark.by_day(2)
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


@pytest.mark.parametrize(
    ("options", "devices", "hint"),
    [
        ({"pp": 3}, 3, r"pp=1; or layers=1\*2\+2"),  # 2 and 4 divide the layers, but no 3 devices
        ({"pp": 3}, 12, r"pp=2 or 4; or layers=1\*2\+2"),
        ({"pp": 3, "tp": 2}, 6, r"pp=1; or layers=1\*2\+2"),
        ({"pp": 6}, 6, "pp=2"),
        ({"pp": 3, "cp": 2}, 12, r"pp=2; or layers=1\*2\+2"),
        ({"cp": 7}, 28, "cp=4"),  # of 16 positions: neither 8 nor 16 divides 28 devices
        ({"tp": 24}, 24, "tp=8"),  # of 4 heads of keys and values, copied for 8 of queries
    ],
)
def test_divisions_are_proposed_that_the_devices_allow(model, options, devices, hint):
    with pytest.raises(TopoplanError, match=rf" does not .*\(nearest: {hint}\)"):
        strategy_of(Stated(**options), model("llama"), devices)


def test_tied_words_are_summed_between_the_first_and_the_last_stage(model):
    tasks, _ = lowered(model("gpt2"), 4, tp=2, pp=2)
    for pair in ([0, 2], [1, 3]):
        assert nbytes(tasks, Collective.ALL_REDUCE, pair) == [VOCABULARY * HIDDEN * 2 // 2]


@pytest.mark.parametrize(("zero", "share"), [(1, 1), (2, 2), (3, 2)])
def test_tied_words_are_summed_once_and_gathered_behind_that(model, zero, share):
    """Devices that share gradients sum the part that they have; weights are new once all gradients are summed."""
    tasks, _ = lowered(model("gpt2"), 4, dp=2, pp=2, zero=zero)
    collective, members = tasks.collective.tolist(), np.split(tasks.group_members, tasks.group_ptr[1:-1])
    sums = [k for k, each in enumerate(collective) if each == Collective.ALL_REDUCE and tasks.size[k] > HIDDEN * 8]
    assert [tasks.size[k] for k in sums] == [VOCABULARY * HIDDEN * 2 // share] * 2
    assert sorted(sorted(members[tasks.group[k]].tolist()) for k in sums) == [[0, 2], [1, 3]]
    for k in sums if zero < 3 else ():
        behind = tasks.succ[tasks.succ_ptr[k] : tasks.succ_ptr[k + 1]]
        assert {collective[each] for each in behind} == {Collective.ALL_GATHER}
        assert sorted(sorted(members[tasks.group[each]].tolist()) for each in behind) == [[0, 1], [2, 3]]


SCHEDULES = ["gpipe", "1f1b", "interleaved:2", "zb-h1", "zb-h2", "zbv", "v-half"]
RECOMPUTED = ["none", "selective", "full"]
#: Each schedule with some recomputation, and each recomputation with some schedules, of both models.
OF_EACH = {(each, RECOMPUTED[number % 3], "llama") for number, each in enumerate(SCHEDULES)} | {
    ("1f1b", "none", "gpt2"),
    ("zbv", "selective", "gpt2"),
    ("interleaved:2", "full", "gpt2"),
}


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    ("schedule", "recompute", "name"),
    at_night(itertools.product(SCHEDULES, RECOMPUTED, ["llama", "gpt2"]), *sorted(OF_EACH)),
)
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
    """Its input is gathered once more; its output, terms of a sum, is needed no more."""
    graph = model("llama")
    counts = []
    for recompute in ("none", "modules:mlp"):
        tasks, _ = lowered(graph, 2, tp=2, micro_batch=BATCH, recompute=recompute)
        counts.append([len(nbytes(tasks, kind, [0, 1])) for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)])
    assert counts[1] == [counts[0][0] + LAYERS, counts[0][1]]


def test_memory_of_modules_that_run_again(model):
    """Of an MLP of Llama what is as wide as its inner layer is not kept: gate, its SiLU, up and their product.

    One of them may be there again at the peak, while a backward pass runs: three to four layers' worth less are kept.
    """
    graph = model("llama", 2)
    cluster = build_cluster(ClusterOptions(servers=1, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    kept = [
        lowering.memory_use(strategy_of(Stated(recompute=recompute, micro_batch=2), graph, 1)[0]).activations[0]
        for recompute in ("none", "modules:mlp", "modules:mlp.act_fn")
    ]
    wide = 2 * 2 * POSITIONS * 128
    assert (LAYERS - 1) * 4 * wide <= kept[0] - kept[1] <= LAYERS * 4 * wide
    assert kept[2] == kept[0], "the product reads what the SiLU makes"


@pytest.mark.parametrize(
    ("recompute", "message"),
    [
        ("modules:mpl", r"recompute=modules:mpl: layers of model 'llama' have no module 'mpl' \(nearest: mlp, "),
        ("modules:core", r"have no module 'core' \(nearest: core_attn"),
        ("every:9", r"has 4 layers \(nearest: every:4\)"),
        ("every:two", r"every two-th layer"),
        ("modules:", r"must be none, selective, op, full, every:2 or modules:NAME\+NAME"),
        ("some", r"recompute=some \(must be none"),
    ],
)
def test_what_cannot_run_again_is_one_line(model, recompute, message):
    with pytest.raises(TopoplanError, match=message) as caught:
        strategy_of(Stated(recompute=recompute), model("llama"), 1)
    assert "\n" not in str(caught.value)


@pytest.mark.by_day(2)
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


@pytest.mark.parametrize("options", [{}, {"tp": 2}, {"zero": 1}, {"recompute": "full"}])
def test_dualpipe_has_tied_words_once_on_both_ends(model, options):
    """Rank 0 has the words of one copy and the head of the other, the last rank likewise: each has the table once.

    By hand: the devices of both ends sum what they have, all weights of the first and of the last stage, in which the
    table is once.  With tables of their own it were a table more.
    """
    graph, tp = model("gpt2", 16), options.get("tp", 1)
    tasks, plan = lowered(graph, 8 * tp, pp=4, dp=2, schedule="dualpipe", **options)
    tasks.check()
    stage_of, table = plan.stage_of.tolist(), VOCABULARY * HIDDEN * 2
    weights = [w.nbytes for op, n in zip(graph.operators, stage_of, strict=True) for w in op.weights if n in (0, 3)]
    assert weights.count(table) == 1
    sums = [sum(nbytes(tasks, Collective.ALL_REDUCE, [k * tp, (6 + k) * tp])) for k in (0, 1)]
    if tp == 1:
        assert sums == [sum(weights) // (2 if "zero" in options else 1)] * 2
    cluster = build_cluster(ClusterOptions(servers=8 * tp, device="h100"), Host.discover())
    use = Lowering(graph, cluster, Roofline().build(graph, cluster)).memory_use(plan)
    assert use.weights[0] == use.weights[6 * tp]
    assert tp > 1 or use.weights[0] == sum(weights)


def test_dualpipe_sums_tied_words_behind_both_gradients(model):
    """The sum of the table waits for the words and the head of both copies, on both ends."""
    graph = model("gpt2", 16)
    tasks, plan = lowered(graph, 4, pp=4, schedule="dualpipe")
    words, head = (
        next(k for k, op in enumerate(graph.operators) if op.name == name) for name in ("transformer.wte", "lm_head")
    )
    (number,) = np.flatnonzero((tasks.collective == Collective.ALL_REDUCE) & (tasks.op == words))
    before, front = set(), [int(number)]
    tails, heads = tasks.edges()
    while front:
        before.update(front)
        front = [t for t in tails[np.isin(heads, front)].tolist() if t not in before]
    gradients = np.flatnonzero(np.isin(tasks.op, [words, head]) & (tasks.kind == TaskKind.BACKWARD))
    assert len(gradients) >= 2 * plan.micro_batches
    assert set(gradients.tolist()) <= before


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


@pytest.mark.slow  # tests/test_activation_formulas.py has the paper's shares on each save
@pytest.mark.parametrize(
    ("options", "gibibytes"),
    [
        ({"sp": False}, 51.75),
        ({"sp": True}, 32.06),
        ({"sp": True, "recompute": "selective"}, 9.56),
        ({"sp": False, "recompute": "full"}, 4.5),
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
    for options, message in (({"pp": 2}, "has no parts with weights to divide"), ({"tp": 2}, "has no matrices to cut")):
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
    report = search.report(candidate.base.strategy)
    plan = report["plan"]
    assert plan == "tp=2,cp=1,pp=1,dp=4,sp=yes,zero=0,micro-batch=1,schedule=1f1b,recompute=none,layout=tp-cp-ep-dp-pp"
    assert report["short"] == "tp=2,dp=4"


@pytest.mark.parametrize(
    "plan",
    [{"tp": 2, "sp": False, "zigzag": False, "recompute": "every:2"}, {"pp": 2, "layers": "1+3", "clip": True}, {}],
)
def test_short_words_say_the_same_plan(model, plan):
    settings = settings_of(Stated(**plan), model("llama"))
    words = short_words_of(settings, degrees_of(settings, model("llama"), 4))
    again = Choice.parse(f"stated:{words}", "searcher").make(Host.discover(), Searcher)
    assert attrs.evolve(settings_of(again, model("llama")), dp=None) == settings


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
