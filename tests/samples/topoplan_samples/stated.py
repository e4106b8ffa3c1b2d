"""Small language models whose stated plans tests count by hand, and what they count."""

from __future__ import annotations

import numpy as np

from topoplan import Collective, Host, TaskKind
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_estimator_roofline import Roofline
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of

__all__ = [
    "BATCH",
    "GPT2",
    "HIDDEN",
    "LAYERS",
    "LLAMA",
    "MIXTRAL",
    "PARAMETERS",
    "POSITIONS",
    "VOCABULARY",
    "N",
    "lowered",
    "nbytes",
]

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
#: Numbers of the weights of the Llama.
PARAMETERS = 164416


_LOWERED = {}


def lowered(graph, devices, **options):
    """The task graph of a plan, and its strategy, which nothing changes: made once for all tests that ask for them."""
    key = id(graph), devices, repr(sorted(options.items()))
    if key not in _LOWERED:
        cluster = build_cluster(ClusterOptions(servers=devices, device="h100"), Host.discover())
        strategy, _ = strategy_of(Stated(**options), graph, devices)
        strategy.check(graph, devices)
        tasks = Lowering(graph, cluster, Roofline().build(graph, cluster)).lower(strategy)
        _LOWERED[key] = graph, tasks, strategy  # the graph stays, so that no other one has its id
    return _LOWERED[key][1:]


def nbytes(tasks, kind, members):
    """Bytes of whole tensors of all collectives of a kind in one group."""
    rows = np.flatnonzero((tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective == kind)).tolist()
    rows = [row for row in rows if tasks.members(row).tolist() == members]
    return [int(tasks.size[row]) * (1 if kind is Collective.ALL_REDUCE else 2) for row in rows]
