"""Plans of 131,072 devices beside hand calculations: what hosts send, and what replicas do not change.

Llama with 32 layers, 16 micro-batches of one sequence of 2,048 positions, four bytes each; a host is one group of
tensor parallelism, so that what leaves a host is gradients, weights and what stages send each other.
"""

from __future__ import annotations

import gc
import json

import attrs
import numpy as np
import pytest

from topoplan import Host, State
from topoplan_engine import ClusterOptions, problem_on
from topoplan_engine.experiment import build_cluster
from topoplan_engine.search.evaluator import Evaluator
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings

HIDDEN, LAYERS, POSITIONS, MICRO_BATCHES, STAGES, TP = 4096, 32, 2048, 16, 4, 8
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 8192,
    "hidden_act": "silu",
}
#: Weights of a layer: queries and outputs, keys and values of 8 heads, three matrices behind.
LAYER = HIDDEN * HIDDEN * 2 + HIDDEN * 1024 * 2 + 3 * HIDDEN * 14336
TABLE, NORMS = 128256 * HIDDEN, (2 * LAYERS + 1) * HIDDEN
#: Bytes of weights on the hosts of one replica; each device has all of the norms.
WEIGHTS = 4 * (LAYERS * LAYER + 2 * TABLE + TP * NORMS)
#: Bytes that stages send each other at a boundary, both ways, for each replica.
BOUNDARY = 2 * MICRO_BATCHES * POSITIONS * HIDDEN * 4


@pytest.fixture(autouse=True)
def memory_is_given_back():
    """Plans of this size hold some 0.4 GB in cycles, and Python looks for these rarely after a command ran."""
    yield
    gc.collect()


def planned(servers, settings, folder, faster=1.0, changes=None):
    """Return the plan on one switch, and bytes that a host sends on average."""
    path = folder / "config.json"
    path.write_text(json.dumps({**CONFIG, **(changes or {})}))
    host, replicas = Host.discover(), servers // STAGES
    frontend = host.make("frontend", "huggingface", {"config": str(path), "sequence_length": POSITIONS})
    graph = frontend.build(replicas * MICRO_BATCHES)
    cluster = build_cluster(ClusterOptions(servers=servers, gpus_per_server=TP, degree=1, device="h100"), host)
    if faster > 1:
        cluster = attrs.evolve(
            cluster,
            latency=0.0,
            interface_bandwidth=cluster.interface_bandwidth * faster,
            inside_bandwidth=cluster.inside_bandwidth * faster,
        )
    costs = host.make("estimator", "roofline").build(graph, cluster)
    problem = problem_on(graph, cluster, costs, host.make("topology", "bigswitch"))
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    strategy, _ = strategy_of(settings, graph, cluster.n_devices)
    plan = Evaluator(problem, host.make("simulator", "fluid").build(), "ignore").plan(State(strategy, fabric), {})
    leaving = np.flatnonzero(fabric.link_src < fabric.n_hosts)
    return plan, plan.timeline.link_bytes[leaving].sum() / servers


@pytest.mark.parametrize(
    ("settings", "times", "boundaries"),
    [
        (Settings(tp=TP, pp=STAGES, zero=1), 2, STAGES - 1),
        (Settings(tp=TP, pp=STAGES, zero=2), MICRO_BATCHES + 1, STAGES - 1),
        (Settings(tp=TP, pp=STAGES, zero=1, schedule="interleaved:2"), 2, 2 * STAGES - 1),
    ],
    ids=["zero=1", "zero=2", "interleaved"],
)
def test_hosts_send_what_the_hand_calculation_says(settings, times, boundaries, tmp_path):
    """A ring of n members sends (n-1)/n of its bytes for a reduce-scatter, and for an all-gather.

    ZeRO 2 scatters gradients after every micro-batch, ZeRO 1 once; both gather weights once.
    """
    servers = 16_384
    n = servers // STAGES
    _, sent = planned(servers, settings, tmp_path)
    expected = (times * (n - 1) / n * WEIGHTS + boundaries * BOUNDARY) / STAGES
    assert sent == pytest.approx(expected, rel=1e-12)


def test_weights_are_gathered_twice_but_for_the_head(tmp_path):
    """ZeRO 3 gathers for forward and for backward and scatters once.

    In the last stage each backward pass follows its forward pass at once and finds what that gathered last, the table
    of the head. In the other stages passes of other micro-batches are in between.
    """
    servers = 16_384
    n = servers // STAGES
    _, sent = planned(servers, Settings(tp=TP, pp=STAGES, zero=3), tmp_path)
    expected = (MICRO_BATCHES * (n - 1) / n * (3 * WEIGHTS - 4 * TABLE) + (STAGES - 1) * BOUNDARY) / STAGES
    assert sent == pytest.approx(expected, rel=1e-12)


def test_hosts_of_experts_send_what_the_hand_calculation_says(tmp_path):
    """Tokens of eight hosts go to eight experts, a host each, and back: with two choices in both passes of each layer.

    Gradients of an expert are summed over an eighth of the replicas, all others over all.  Each device routes.
    """
    servers, experts = 16_384, 8
    mixtral = {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"}
    mixtral |= {"num_local_experts": experts, "num_experts_per_tok": 2}
    n, matrices = servers // STAGES, 4 * LAYERS * 3 * HIDDEN * 14336  # of one expert in all layers
    shared = WEIGHTS - matrices + 4 * TP * LAYERS * HIDDEN * experts
    tokens = MICRO_BATCHES * LAYERS * POSITIONS * 2 * HIDDEN * 4 * (experts - 1) / experts
    summed = (n - 1) / n * shared + (n / experts - 1) / (n / experts) * matrices
    _, sent = planned(servers, Settings(tp=TP, pp=STAGES, ep=experts, zero=1), tmp_path, changes=mixtral)
    assert sent == pytest.approx((2 * summed + 4 * tokens + (STAGES - 1) * BOUNDARY) / STAGES, rel=1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved:2"])
def test_replicas_do_not_matter_where_the_network_takes_no_time(schedule, tmp_path):
    settings = Settings(tp=TP, pp=STAGES, schedule=schedule)
    few, many = (planned(servers, settings, tmp_path, 1e6)[0].timeline.makespan for servers in (8, 16_384))
    assert many == pytest.approx(few, rel=1e-6)
