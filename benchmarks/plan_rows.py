"""What stated plans send, keep and compute by hand, beside what their task graphs have: rows of `strategies`.

The model is a Llama or a Mixtral that is small enough to count: four layers of 64 channels, 8 heads of the query and 4
of keys and values, 32 positions, a batch of 8, in bf16.  `N` is the activation between two layers, in bytes.

    plan in words -> `StagedStrategy` -> task graph, memory -> bytes of collectives, GiB, ... beside a formula
"""

from __future__ import annotations

import functools
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from topoplan import Collective, Host, OperatorGraph, StagedStrategy, TaskGraph, TaskKind
from topoplan.model.recording import MemoryUse
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.experiment import Choice
from topoplan_engine.lowering import Lowering
from topoplan_engine.precision import in_precision
from topoplan_engine.reporting.tables import markdown_table
from topoplan_estimator_roofline import Roofline
from topoplan_frontend_huggingface import HuggingFace
from topoplan_searcher_stated.construct import strategy_of

__all__ = ["plans_table"]

LAYERS, BATCH, POSITIONS, HIDDEN, INNER, HEADS, KV_HEADS = 4, 8, 32, 64, 128, 8, 4
N = 2 * BATCH * POSITIONS * HIDDEN
#: Bytes of the keys, or of the values, of all positions of the batch.
KEYS = N * KV_HEADS // HEADS
#: Numbers of the Llama's weights.
PARAMETERS = 164416
_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "intermediate_size": INNER,
    "vocab_size": 128,
    "max_position_embeddings": POSITIONS,
    "hidden_act": "silu",
}
_MIXTRAL = _LLAMA | {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}


@functools.cache
def model(name: str) -> OperatorGraph:
    """Build a model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps({"llama": _LLAMA, "mixtral": _MIXTRAL}[name]))
        return in_precision(HuggingFace(config=str(path)).build(BATCH), "bf16")


class Lowered(NamedTuple):
    """A plan, its task graph and its memory."""

    graph: OperatorGraph
    strategy: StagedStrategy
    tasks: TaskGraph
    memory: MemoryUse

    def count(self, kind: Collective, nbytes: int | None = None) -> int:
        """Return the collectives of a kind in one group, of tensors of ``nbytes`` if these are given."""
        return len(self.sizes(kind)) if nbytes is None else self.sizes(kind).count(nbytes)

    def sizes(self, kind: Collective, members: int = 0) -> list[int]:
        """Return the bytes of whole tensors of all collectives of a kind that the first device takes part in.

        Args:
            kind: of the collectives.
            members: of their groups; 0 for any number.
        """
        tasks = self.tasks
        rows = np.flatnonzero((tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective == kind)).tolist()
        mine = [row for row in rows if 0 in tasks.members(row) and members in (0, len(tasks.members(row)))]
        return [int(tasks.size[row]) * (1 if kind is Collective.ALL_REDUCE else 2) for row in mine]

    def sent(self) -> int:
        """Return the bytes that the first device sends in messages to single devices."""
        tasks = self.tasks
        return int(tasks.size[(tasks.kind == TaskKind.TRANSFER) & (tasks.src == 0)].sum())


def lowered(name: str, devices: int, plan: str) -> Lowered:
    """Lower a plan of a model on hosts of one device each."""
    graph, host = model(name), Host.discover()
    cluster = build_cluster(ClusterOptions(servers=devices, device="h100"), host)
    options = Choice.parse(f"stated:{plan}", "plan").options
    strategy, _ = strategy_of(host.make("searcher", "stated", options), graph, devices)
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    return Lowered(graph, strategy, lowering.lower(strategy), lowering.memory_use(strategy))


class Row(NamedTuple):
    """A plan: what is counted of it, how much that is by hand, and how it is counted."""

    model: str
    devices: int
    plan: str
    what: str
    by_hand: str
    value: float
    counted: Callable[[Lowered], float]


def rows() -> Iterator[Row]:
    """Return the rows of the table."""
    whole = f"micro-batch={BATCH}"
    yield Row(
        "llama",
        2,
        f"tp=2,sp=no,{whole}",
        "all-reduces of `N`",
        "4L + 2",
        4 * LAYERS + 2,
        lambda plan: plan.count(Collective.ALL_REDUCE, N),
    )
    yield Row(
        "llama",
        2,
        f"tp=2,sp=no,recompute=full,{whole}",
        "all-reduces of `N`",
        "6L + 2",
        6 * LAYERS + 2,
        lambda plan: plan.count(Collective.ALL_REDUCE, N),
    )
    yield Row(
        "llama",
        2,
        f"tp=2,sp=no,recompute=every:2,{whole}",
        "all-reduces of `N`",
        "4L + 2L/2 + 2",
        5 * LAYERS + 2,
        lambda plan: plan.count(Collective.ALL_REDUCE, N),
    )
    yield Row(
        "llama",
        2,
        f"tp=2,recompute=modules:mlp,{whole}",
        "all-gathers of `N`",
        "6L + 3 + L",
        7 * LAYERS + 3,
        lambda plan: plan.count(Collective.ALL_GATHER, N),
    )
    yield Row(
        "llama",
        8,
        f"tp=8,{whole}",
        "bytes that two copies of a head sum",
        "2L matrices of 64 x 8 x 2",
        LAYERS * 2 * HIDDEN * 8 * 2,
        lambda plan: sum(plan.sizes(Collective.ALL_REDUCE, members=2)),
    )
    yield Row(
        "llama",
        3,
        "pp=3,layers=embedding+head",
        "layers of the second stage",
        "(L + 2) / 3",
        2,
        lambda plan: sum(plan.graph.operators[op].name.endswith("up_proj") for op in plan.strategy.stages[1].operators),
    )
    yield Row(
        "mixtral",
        4,
        "cp=2,ep=2,micro-batch=4",
        "bytes to experts and back, of a device",
        "4L x 64 positions x 2 x 64",
        4 * LAYERS * BATCH // 2 * POSITIONS // 2 * 2 * HIDDEN * 2 // 2,
        lambda plan: plan.sent(),
    )
    yield Row(
        "llama",
        4,
        f"tp=4,async-tp=yes,{whole}",
        "bytes that a device sends to the next one",
        "(8L + 2)(t - 1) N / t",
        (8 * LAYERS + 2) * 3 * N // 4,
        lambda plan: plan.sent(),
    )
    yield Row(
        "llama",
        4,
        f"tp=4,async-tp=yes,{whole}",
        "all-gathers and reduce-scatters of `N`",
        "2L + 3",
        2 * LAYERS + 3,
        lambda plan: plan.count(Collective.ALL_GATHER, N) + plan.count(Collective.REDUCE_SCATTER, N),
    )
    yield Row(
        "llama",
        4,
        "dp=4,zero=3,slowdown=0.15",
        "share by which a device is slower beside messages",
        "0.15",
        0.15,
        lambda plan: float(plan.tasks.slowdown.max()),
    )
    yield Row(
        "llama",
        4,
        f"cp=4,{whole}",
        "all-gathers of `K`",
        "2 x 2L",
        4 * LAYERS,
        lambda plan: plan.count(Collective.ALL_GATHER, KEYS),
    )
    yield Row(
        "llama",
        4,
        f"cp=4,cp-comm=ring,{whole}",
        "bytes that a device sends",
        "L x 3 (c - 1) x 2K / c",
        LAYERS * 3 * 3 * 2 * KEYS // 4,
        lambda plan: plan.sent(),
    )
    yield Row(
        "llama",
        4,
        f"cp=4,cp-comm=ring,zigzag=no,{whole}",
        "attention of the last device over the mean",
        "(2c - 1) / c",
        7 / 4,
        lambda plan: _share_of(plan, ".attention", -1),
    )
    yield Row(
        "llama",
        4,
        f"cp=4,cp-comm=ulysses,{whole}",
        "bytes that a device sends",
        "2L (c - 1) (2N + 2K) / c^2",
        2 * LAYERS * 3 * (2 * N + 2 * KEYS) // 16,
        lambda plan: plan.sent(),
    )
    parameters = "P = 164,416"
    yield Row(
        "llama",
        4,
        "dp=4,grads=fp32,zero=1",
        "bytes of reduce-scatters",
        f"4P, {parameters}",
        4 * PARAMETERS,
        lambda plan: sum(plan.sizes(Collective.REDUCE_SCATTER)),
    )
    yield Row(
        "llama",
        4,
        "dp=4,grads=fp32,zero=1",
        "bytes of weights, gradients and state",
        "(6 + 12 / 4) P",
        9 * PARAMETERS,
        lambda plan: float(plan.memory.weights[0] + plan.memory.gradients[0] + plan.memory.optimizer[0]),
    )
    yield Row(
        "llama",
        8,
        "dp=8,zero=3,shard=4",
        "bytes of all-reduces between groups",
        "2P / 4",
        PARAMETERS / 2,
        lambda plan: sum(plan.sizes(Collective.ALL_REDUCE)),
    )
    yield Row(
        "llama",
        8,
        "dp=8,zero=3,shard=4",
        "bytes of gradients and state",
        "14P / 4",
        14 * PARAMETERS / 4,
        lambda plan: float(plan.memory.gradients[0] + plan.memory.optimizer[0]),
    )
    yield Row(
        "llama",
        4,
        "dp=4,zero=3,reshard=no",
        "bytes of all-gathers",
        "2Pm, m = 2",
        4 * PARAMETERS,
        lambda plan: sum(plan.sizes(Collective.ALL_GATHER)),
    )
    yield Row(
        "llama",
        4,
        "dp=4,zero=3",
        "bytes of all-gathers",
        "(4P - 2 x 64 x 128) m, m = 2",
        2 * (4 * PARAMETERS - 2 * HIDDEN * 128),
        lambda plan: sum(plan.sizes(Collective.ALL_GATHER)),
    )
    kept = "dp=2,pp=2,zero=3,reshard=no,layers=4+0"
    first = PARAMETERS - HIDDEN - HIDDEN * 128  # of the first stage, which has neither the last norm nor the head
    yield Row(
        "llama",
        4,
        kept,
        "bytes of all-gathers and reduce-scatters of the first stage",
        "2 x 2 (P - 64 - 64 x 128)",
        2 * 2 * first,
        lambda plan: sum(plan.sizes(Collective.ALL_GATHER) + plan.sizes(Collective.REDUCE_SCATTER)),
    )
    yield Row(
        "llama",
        4,
        "dp=2,pp=2,clip=yes",
        "all-reduces of 4 bytes",
        "1",
        1,
        lambda plan: plan.count(Collective.ALL_REDUCE, 4),
    )
    yield Row(
        "llama",
        4,
        "dp=4,zero=1,gather=fp8",
        "bytes of all-gathers",
        "P",
        PARAMETERS,
        lambda plan: sum(plan.sizes(Collective.ALL_GATHER)),
    )
    yield Row(
        "mixtral",
        4,
        "ep=4,skew=1.3",
        "experts of the first device over the mean",
        "1.3",
        1.3,
        lambda plan: _share_of(plan, "experts", 0),
    )
    yield Row(
        "mixtral",
        4,
        f"tp=4,etp=1,ep=2,{whole}",
        "bytes to experts and back, of a device",
        "4L x 64 positions x 2 x 64",
        4 * LAYERS * 64 * 2 * 64,
        lambda plan: plan.sent(),
    )
    of_experts = 4 * HIDDEN * INNER * 2
    yield Row(
        "mixtral",
        2,
        f"tp=2,etp=1,{whole}",
        "bytes that two copies of all experts sum",
        "12L matrices of 64 x 128 x 2",
        3 * LAYERS * of_experts,
        lambda plan: sum(size for size in plan.sizes(Collective.ALL_REDUCE) if size == of_experts),
    )


def _share_of(plan: Lowered, word: str, device: int) -> float:
    """Return the seconds of a device's operators with a word in their names, over the mean of all devices."""
    tasks = plan.tasks
    named = np.array([word in plan.graph.operators[op].name for op in tasks.op])
    rows = named & np.isin(tasks.kind, (TaskKind.FORWARD, TaskKind.BACKWARD))
    seconds = np.bincount(tasks.device[rows], tasks.seconds[rows])
    return float(seconds[device] / seconds.mean())


def plans_table() -> str:
    """Return the table of plans in Markdown."""
    body = []
    for row in rows():
        counted = row.counted(lowered(row.model, row.devices, row.plan))
        body.append([row.model, f"`{row.plan}`", row.what, row.by_hand, f"{row.value:.6g}", f"{counted:.6g}"])
    head = ["model", "plan", "what", "by hand", "that is", "counted"]
    return markdown_table(head, body, head[4:])
