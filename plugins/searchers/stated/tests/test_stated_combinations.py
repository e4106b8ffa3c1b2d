"""Plans that combine all degrees, schedules, ZeRO and recomputation at random: bytes of each kind of message by hand.

Bytes are those of whole tensors, added over all groups, so that they depend on no layout: `N` is the activation of the
batch between two layers, and each collective of it along some axis has `N` in all groups together.

    drawn plan ─► task graph ─► bytes by collective and axes of its mesh ┐
            └───► formulas of Korthikanti et al. (2022), Rajbhandari et al. (2020), Llama 3 (2024), Megatron-LM ─► equal
"""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter

import numpy as np
import pytest

from topoplan import Collective, Host, TaskKind, TopoplanError
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.pass_orders import backward_at_once
from topoplan_engine.precision import in_precision
from topoplan_estimator_roofline import Roofline
from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples.stated import GPT2, MIXTRAL
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of

LAYERS, BATCH, POSITIONS, WIDTH, HEADS, KV_HEADS, INNER, WORDS, EXPERTS, CHOSEN = 8, 32, 64, 128, 16, 8, 256, 512, 8, 2
LLAMA_LIKE = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": INNER,
    "vocab_size": WORDS,
    "max_position_embeddings": POSITIONS,
}
CONFIGS = {
    "llama": {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", **LLAMA_LIKE},
    "mixtral": {**MIXTRAL, **LLAMA_LIKE, "num_local_experts": EXPERTS},
    "gpt2": {
        **GPT2,
        "n_embd": WIDTH,
        "n_layer": LAYERS,
        "n_head": HEADS,
        "vocab_size": WORDS,
        "n_positions": POSITIONS,
    },
}
N = 2 * BATCH * POSITIONS * WIDTH
SCHEDULES = ["gpipe", "1f1b", "interleaved:2", "zb-h1", "zb-h2", "zbv", "v-half"]
#: Plans that are taken.
DAY, NIGHT = 10, 60


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    built = {}
    for name, config in CONFIGS.items():
        path = tmp_path_factory.mktemp(name) / "config.json"
        path.write_text(json.dumps(config))
        built[name] = in_precision(HuggingFace(config=str(path)).build(BATCH), "bf16")
    return built


def drawn(draw):
    """Draw a model and a plan."""
    name = draw.choice([*CONFIGS])
    tp, cp, pp, dp = draw.choice([1, 2, 4]), draw.choice([1, 2, 4]), draw.choice([1, 2, 4]), draw.choice([1, 2, 4])
    plan = {"tp": tp, "cp": cp, "pp": pp, "dp": dp, "zero": draw.randrange(4), "micro_batch": draw.choice([1, 2, 4])}
    plan["cp_comm"] = draw.choice(["gather", "ring", "ulysses"])
    plan["sp"] = tp > 1 and draw.random() < 0.7
    # In V-shaped orders other chunks run back at once, too, here and there.
    plan["schedule"] = draw.choice(SCHEDULES[: 5 if plan["zero"] == 3 else None]) if pp > 1 else "1f1b"
    plan["recompute"] = draw.choice(["none", "selective", "full", "every:2"])
    plan["reshard"] = plan["zero"] < 3 or draw.random() < 0.6
    plan["bucket_mb"] = draw.choice([0.0, 0.1])
    plan["layout"] = draw.choice(["", "dp-tp-cp-ep-pp", "pp-dp-tp-cp-ep"])
    if name == "mixtral":
        plan["ep"] = dp if tp == 1 or plan["sp"] else 1
        if plan["sp"] and (dp == 1 or draw.random() < 0.5):  # without `ep` answers of routers are gathered, too
            plan |= {"etp": 1, "ep": tp}
    return name, plan


def counted(tasks, strategy):
    """Add the bytes of all messages by kind and by what their axes are for."""
    stage_of = {device: stage for stage in strategy.stages for device in stage.mesh.devices.tolist()}
    total = Counter()
    for row in np.flatnonzero(np.isin(tasks.kind, (TaskKind.TRANSFER, TaskKind.COLLECTIVE))).tolist():
        sends = tasks.kind[row] == TaskKind.TRANSFER
        members = [int(tasks.src[row]), int(tasks.dst[row])] if sends else tasks.members(row).tolist()
        kind = None if sends else Collective(tasks.collective[row])
        if kind is Collective.JOIN:
            continue
        mesh = stage_of[members[0]].mesh
        if {*members} <= {*mesh.devices.tolist()}:
            places = np.searchsorted(mesh.devices, members, sorter=np.argsort(mesh.devices))
            places = np.array(np.unravel_index(np.argsort(mesh.devices)[places], mesh.sizes))
            moves = (places != places[:, :1]).any(axis=1)
            axes = {part for axis, moved in zip(mesh.axes, moves, strict=True) if moved for part in axis.split("-")}
        else:
            axes = {"stages"}
        halved = kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER)
        nbytes = int(tasks.size[row]) * (2 if halved else 1)
        if kind is Collective.ALL_REDUCE:
            total["all-reduce"] += nbytes
        elif sends:
            total["send", "stages" if "stages" in axes else "ep" if "ep" in axes else "cp"] += nbytes
        else:
            total[kind.label, "data" if axes & {"dp", "cp"} or "tp" not in axes else "tp"] += nbytes
    return total


def weights_of(name):
    """Bytes of weights: those that tensor parallelism cuts, those that it does not, and of experts."""
    if name == "gpt2":
        cut = LAYERS * (3 * WIDTH * (WIDTH + 1) + WIDTH * WIDTH + 8 * WIDTH * WIDTH + 4 * WIDTH) + WORDS * WIDTH
        return 2 * cut, 2 * (LAYERS * 6 * WIDTH + 2 * WIDTH + POSITIONS * WIDTH), 0
    cut = LAYERS * (2 * WIDTH * WIDTH + 2 * WIDTH * WIDTH * KV_HEADS // HEADS) + 2 * WORDS * WIDTH
    whole, layer = (2 * LAYERS + 1) * WIDTH, LAYERS * 3 * WIDTH * INNER
    if name == "llama":
        return 2 * (cut + layer), 2 * whole, 0
    return 2 * cut, 2 * (whole + LAYERS * WIDTH * EXPERTS), 2 * EXPERTS * layer


def of_activations(name, plan, strategy):
    """Add what activations and their gradients send."""
    tp, cp, ep = plan["tp"], plan["cp"], plan.get("ep", 1)
    again = {"none": 0, "selective": 0, "full": LAYERS, "every:2": LAYERS // 2}[plan["recompute"]]
    attention = LAYERS if plan["recompute"] == "selective" else again
    keys = N if name == "gpt2" else N * KV_HEADS // HEADS
    total = Counter()
    if tp > 1:
        total["all-reduce"] += 3 * 4 * BATCH * POSITIONS  # maximum, own score and sum of exponentials, in fp32
        if plan["sp"]:  # what is exchanged between experts is kept, and gathered once for both passes
            alone = name == "mixtral" and (plan.get("etp") == 1 or ep > 1)
            copies = CHOSEN if alone and plan.get("etp") != 1 else 0
            total["all-gather", "tp"] += N * ((3 if alone else 6) * LAYERS + 3 + copies * (2 * LAYERS + again))
            total["reduce-scatter", "tp"] += N * ((2 if alone else 4) * LAYERS + 2 + copies * (2 * LAYERS + again))
            for kind in ("all-gather", "reduce-scatter"):
                total[kind, "tp"] += N * again * (1 if alone else 2)
        else:
            total["all-reduce"] += N * (4 * LAYERS + 2 + 2 * again)
    if cp > 1 and plan["cp_comm"] == "gather":
        total["all-gather", "data"] += (4 * LAYERS + 2 * attention) * keys
        total["reduce-scatter", "data"] += 2 * LAYERS * keys
    elif cp > 1 and plan["cp_comm"] == "ring":
        total["send", "cp"] += (3 * LAYERS + attention) * (cp - 1) * 2 * keys
    elif cp > 1:
        both, inputs = 2 * LAYERS + again, attention - again
        total["send", "cp"] += (both * 2 * (N + keys) + inputs * (N + 2 * keys)) * (cp - 1) // cp
    total["send", "ep"] += (4 * LAYERS + 2 * again) * N * CHOSEN * (ep - 1) // ep
    rank = strategy.order.rank_of.tolist()
    borders = sum(a != b for a, b in itertools.pairwise(rank))
    total["send", "stages"] += 2 * borders * N * (1 if plan["sp"] else tp)
    return total


def of_weights(name, plan, strategy):
    """Add what weights and their gradients send."""
    tp, pp, zero, replicas, count = (
        plan["tp"],
        plan["pp"],
        plan["zero"],
        plan["dp"] * plan["cp"],
        strategy.micro_batches,
    )
    cut, whole, experts = weights_of(name)
    total, rank = Counter(), strategy.order.rank_of.tolist()
    stays = zero == 3 and not plan["reshard"]
    once = stays and pp > 1
    gathers = 1 if zero < 3 or once else count * (1 if stays else 2)
    table, both_ends = 2 * WORDS * WIDTH, name == "gpt2" and pp > 1
    if both_ends and rank[0] != rank[-1]:
        cut += table
        total["all-reduce"] += table * (replicas if zero < 3 else 1)
    elif both_ends and zero == 3 and replicas > 1:  # a rank that has both ends gathers the table for each
        total["all-gather", "data"] += table * gathers
    shards = [(cut + tp * whole, replicas)]
    if experts:
        cuts = plan.get("etp") or tp
        shards.append((experts, replicas * tp // (plan["ep"] * cuts)))
    for nbytes, members in shards:
        if members > 1 and zero == 0:
            total["all-reduce"] += nbytes
        elif members > 1:
            total["all-gather", "data"] += nbytes * gathers
            total["reduce-scatter", "data"] += nbytes * (1 if zero == 1 or once else count)
    if zero == 3 and not stays and replicas > 1:  # the last layer stays where its backward pass comes at once
        last = 4 * WIDTH * tp if name == "gpt2" and pp == 1 else table
        total["all-gather", "data"] -= int(backward_at_once(strategy.order, len(strategy.stages) - 1).sum()) * last
    if plan["sp"]:  # gradients of norms and of positions are of a slice of the positions
        summed = whole - (2 * 2 * LAYERS * WIDTH if name == "gpt2" else 0)
        if zero == 0 and replicas > 1:  # with those of all replicas
            total["all-reduce"] -= (tp - 1) * summed
        else:
            total["all-reduce"] += summed
    return total


@pytest.mark.parametrize("seed", [pytest.param(7, id="day"), pytest.param(8, id="night", marks=pytest.mark.slow)])
def test_bytes_of_all_messages_are_those_of_formulas(graphs, seed):
    draw, host, taken = random.Random(seed), Host.discover(), 0
    while taken < (DAY if seed == 7 else NIGHT):
        name, plan = drawn(draw)
        devices = plan["tp"] * plan["cp"] * plan["pp"] * plan["dp"]
        if not 4 <= devices <= 32:
            continue
        try:
            strategy, _ = strategy_of(Stated(**plan), graphs[name], devices)
        except TopoplanError:
            continue
        if strategy.micro_batches > 8:
            continue
        cluster = build_cluster(ClusterOptions(servers=devices, device="h100"), host)
        tasks = Lowering(graphs[name], cluster, Roofline().build(graphs[name], cluster)).lower(strategy)
        expected = of_activations(name, plan, strategy)
        expected.update(of_weights(name, plan, strategy))
        found = counted(tasks, strategy)
        if plan["zero"] == 3 and plan["sp"]:  # those of norms come before or behind what scatters them
            assert found.pop("all-reduce") >= expected.pop("all-reduce"), str((name, plan))
        expected = {key: value for key, value in expected.items() if value}
        assert {key: value for key, value in found.items() if value} == expected, str((name, plan))
        taken += 1
