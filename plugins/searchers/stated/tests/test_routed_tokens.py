"""What reaches experts and comes back, in families of models and many divisions of experts: bytes by hand.

Written from Megatron-LM's dispatchers (``token_dispatcher.py``): a rank sends the tokens of its positions, `k` copies
each, to the ranks with experts; those that have parts of an expert gather what came for it, and scatter their sums.
With experts on one rank alone, Megatron-LM's default is `MoEAllGatherTokenDispatcher`: positions are gathered, then
dispatched.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from topoplan import Collective, Host, TaskKind
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.precision import in_precision
from topoplan_engine.simulation.parts import Part
from topoplan_engine.simulation.traffic import part_of_tasks
from topoplan_engine.trainer_kernels import with_kernels
from topoplan_estimator_roofline import Roofline
from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples.stated import HIDDEN, LLAMA, POSITIONS, lowered
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of

LAYERS, BATCH, ANSWERS, WIDTH = 2, 16, 4, 2
_EXPERTS = {key: value for key, value in LLAMA.items() if key != "architectures"} | {
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": 8,
    "num_experts_per_tok": ANSWERS,
}
_FAMILIES: dict[str, dict[str, Any]] = {
    "qwen2_moe": {"num_experts": 16, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 64},
    "qwen3_moe": {"num_experts": 16, "moe_intermediate_size": 32, "head_dim": 8},
    "gpt_oss": {"num_local_experts": 16, "head_dim": 8, "sliding_window": 16},
    "deepseek_v3": {
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "moe_intermediate_size": 32,
        "first_k_dense_replace": 0,
        "q_lora_rank": 32,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
    },
}
#: Bytes of all copies of all tokens of an iteration, in all layers.
_COPIES = LAYERS * BATCH * POSITIONS * ANSWERS * HIDDEN * WIDTH


@pytest.fixture(scope="module", params=_FAMILIES)
def graph(request, tmp_path_factory):
    return _built(tmp_path_factory, request.param)


def _built(tmp_path_factory, family, **changed):
    path = tmp_path_factory.mktemp(family) / "config.json"
    path.write_text(json.dumps({**_EXPERTS, **_FAMILIES[family], "model_type": family, **changed}))
    return in_precision(HuggingFace(config=str(path)).build(BATCH), "bf16")


def _sent(graph, devices, **plan):
    """Bytes that all ranks send to experts and back, and those that tensor-parallel groups gather and scatter."""
    tasks, strategy = lowered(graph, devices, **plan)
    parts = part_of_tasks(tasks, strategy)
    to_experts = float(tasks.size[(tasks.kind == TaskKind.TRANSFER) & (parts == Part.EXPERT)].sum())
    gathered = 0.0
    for kind in (Collective.ALL_GATHER, Collective.REDUCE_SCATTER):
        rows = np.flatnonzero((tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective == kind) & (parts == Part.TENSOR))
        gathered += sum(2 * (len(tasks.members(row)) - 1) * float(tasks.size[row]) for row in rows.tolist())
    return to_experts, gathered


@pytest.mark.parametrize(
    ("devices", "plan"),
    [
        (8, {"tp": 4, "ep": 2}),
        (8, {"tp": 2, "cp": 2, "ep": 2}),
        (8, {"tp": 2, "ep": 4, "zero": 2, "recompute": "full"}),
        (16, {"tp": 4, "cp": 2, "ep": 4, "zero": 3}),
        (16, {"tp": 2, "cp": 2, "ep": 4, "pp": 2, "recompute": "modules:moe"}),
        (16, {"tp": 4, "ep": 2, "pp": 2, "zero": 1}),
    ],
)
def test_copies_of_tokens_travel_once_and_parts_of_experts_gather_them(devices, plan, graph):
    """`(x-1)/x` of all copies go there and come back, forward and backward; `etp - 1` times as many are gathered."""
    micro_batch = max(1, BATCH * plan["tp"] * plan.get("cp", 1) * plan.get("pp", 1) // devices // 2)
    passes = 4 if plan.get("recompute", "none") == "none" else 6
    whole = _sent(graph, devices, **plan, etp=1, micro_batch=micro_batch)
    for etp in sorted({2, plan["tp"]}):
        to_experts, gathered = _sent(graph, devices, **plan, etp=etp, micro_batch=micro_batch)
        assert to_experts == pytest.approx(passes * _COPIES * (plan["ep"] - 1) / plan["ep"])
        assert gathered - whole[1] == pytest.approx(passes * _COPIES * (etp - 1))
        assert whole[0] == to_experts


def test_experts_of_one_rank_read_gathered_positions(graph):
    """As `MoEAllGatherTokenDispatcher`: a token and its scores are gathered, and its sum scattered; not its copies."""
    etp = 4
    gathered = [_sent(graph, 4, tp=4, etp=each, micro_batch=BATCH) for each in (1, etp)]
    assert all(to_experts == 0 for to_experts, _ in gathered)
    # There, back, both again for gradients, and scores of 16 experts; permuted tokens are kept, none is gathered again.
    passes = (gathered[1][1] - gathered[0][1]) / (_COPIES / ANSWERS * (etp - 1))
    assert 4 < passes < 4 + 3 * 16 / HIDDEN


def test_shared_experts_of_torchtitan_read_what_routed_ones_gathered(tmp_path_factory):
    """Its tokens are gathered where they enter the experts of both kinds (``moe_sharding.py``, with EP off)."""
    graph = _built(tmp_path_factory, "qwen2_moe")
    plan = {"tp": 4, "micro_batch": BATCH}
    megatron, torchtitan = (_sent(with_kernels(graph, name), 4, **plan)[1] for name in ("megatron", "torchtitan"))
    # The other gather, and the sum of its gradients.
    assert megatron - torchtitan == pytest.approx(2 * _COPIES / ANSWERS * 3)


def test_what_parts_of_experts_gathered_is_kept_as_they_read_it(graph):
    """Matrices of `etp` ranks keep `etp` times the copies that a rank sends: what it is in Megatron-LM's kernels."""
    cluster = build_cluster(ClusterOptions(servers=8, device="h100"), Host.discover())
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    plan = {"tp": 4, "ep": 2, "micro_batch": BATCH // 2}
    uses = [
        lowering.memory_use(strategy_of(Stated(**plan, etp=etp), graph, 8)[0]).activations.max() for etp in (1, 2, 4)
    ]
    copies = _COPIES / 8
    assert [use - uses[0] for use in uses[1:]] == pytest.approx([copies, 3 * copies], rel=0.35)


@pytest.mark.parametrize("plan", [{"tp": 2, "cp": 2}, {"tp": 4}, {"tp": 8}, {"cp": 4}, {"tp": 4, "etp": 1}])
def test_slots_of_experts_need_not_be_divided_evenly(plan, tmp_path_factory):
    """Of 32 tokens with 4 of 12 experts each has 10 2/3, in 11 slots, which ranks have equal shares of."""
    graph, ep = _built(tmp_path_factory, "qwen3_moe", num_experts=12), 2
    to_experts, _ = _sent(graph, 8, **plan, ep=ep, micro_batch=BATCH * plan.get("tp", 1) * plan.get("cp", 1) // 8)
    slots = 11
    assert to_experts == pytest.approx(4 * LAYERS * BATCH * 12 * slots * HIDDEN * WIDTH * (ep - 1) / ep, rel=1e-3)
