"""Plans that are stated for 16 devices: what trainers' files say of them is read back, and by the trainers."""

from __future__ import annotations

import functools
import json

from topoplan import Host
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.precision import in_precision
from topoplan_frontend_huggingface import HuggingFace
from topoplan_samples import stated
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of
from topoplan_trainer_plans import ProposedPlan

DEVICES, BATCH, LAYERS = 16, 32, 8
LLAMA, MIXTRAL = ({**model, "num_hidden_layers": LAYERS} for model in (stated.LLAMA, stated.MIXTRAL))
OLMO = {**LLAMA, "model_type": "olmo", "architectures": ["OlmoForCausalLM"]}
#: Settings of `--plan` by what they are for; all for 16 devices.
SETTINGS = [
    "dp=16",
    "dp=16,zero=1",
    "dp=16,zero=2",
    "dp=16,zero=3",
    "dp=16,micro_batch=2",
    "tp=4",
    "tp=4,sp=no",
    "tp=2,zero=1,micro_batch=2",
    "tp=2,zero=2,recompute=full",
    "tp=4,zero=3,micro_batch=2",
    "cp=2",
    "cp=2,tp=2,zero=1",
    "cp=4,tp=2,zero=2",
    "cp=2,tp=2,pp=2,recompute=selective",
    "cp=2,cp_comm=ring",
    "cp=4,tp=2,cp_comm=ring,zero=1",
    "cp=2,pp=2,cp_comm=ulysses",
    "cp=2,tp=2,cp_comm=ulysses,recompute=full",
    "zero=1,shard=4,grads=fp32",
    "zero=3,shard=8,tp=2,clip=yes",
    "zero=3,reshard=no",
    "tp=2,grads=fp32,clip=yes",
    "tp=2,zero=1,gather=fp8,grads=fp32",
    "pp=2",
    "pp=4,micro_batch=2",
    "pp=4,tp=2,zero=1",
    "pp=4,tp=2,schedule=interleaved:2",
    "pp=2,tp=2,schedule=interleaved:4,zero=1",
    "pp=2,tp=4,schedule=interleaved:2,recompute=full,zero=1",
    "pp=4,schedule=interleaved:2,zero=2",
    "pp=2,tp=2,zero=3",
    "pp=8,tp=2",
    "pp=2,tp=2,recompute=selective,sp=no",
    "pp=2,recompute=modules:mlp",
    "tp=2,recompute=modules:core_attn+layernorm",
    "pp=2,tp=2,layout=tp-cp-ep-pp-dp",
    "pp=4,tp=2,zero=1,layout=tp-cp-ep-pp-dp,schedule=interleaved:2",
    "pp=2,tp=2,layout=dp-tp-cp-ep-pp",
    "tp=4,layout=dp-cp-ep-tp-pp",
    "pp=4,tp=2,cp=2,layout=pp-tp-cp-ep-dp,micro_batch=4",
    "pp=2,schedule=gpipe",
    "pp=2,tp=2,schedule=gpipe,zero=2",
    "tp=8,zero=1",
    "tp=8,pp=2,schedule=interleaved:2",
    "pp=2,layers=3+5",
    "pp=4,tp=2,layers=0+1*6+2,schedule=interleaved:2",
    "pp=4,layers=0+3+3+2,micro_batch=2",
    "pp=2,recompute=every:2",
    "tp=4,zero=2,recompute=every:4",
]
OF_EXPERTS = [
    "ep=4",
    "ep=2,zero=1",
    "ep=4,tp=2,zero=1",
    "ep=2,tp=2,pp=2,schedule=interleaved:2",
    "ep=4,pp=2,zero=2,recompute=full",
    "ep=2,pp=2,tp=2,layout=tp-ep-cp-dp-pp",
    "ep=4,pp=2,layout=tp-cp-ep-pp-dp",
    "ep=2,tp=8",
    "tp=2,etp=1,ep=2",
    "tp=4,etp=2,ep=1,zero=1",
    "tp=4,etp=1,ep=2,zero=1",
    "tp=4,etp=2,ep=4,pp=2",
    "tp=2,etp=2,cp=2,ep=4",
    "tp=2,etp=1,cp=2,ep=4,zero=2",
    "tp=2,etp=2,cp=4,ep=2,layout=tp-cp-ep-pp-dp,pp=2",
    "cp=4,etp=1,ep=2",
    "ep=4,overlap=experts",
    "ep=4,pp=2,schedule=interleaved:2,overlap=experts,zero=1",
    "ep=4,pp=2,overlap=experts",
    "ep=2,recompute=full,overlap=experts",
]
#: What Megatron-LM has not, and how its refusal goes on.
NOT_MEGATRON = {
    "reshard=no": "keeps the weights that it has gathered",
    "schedule=gpipe": "begins stage 1 of a pipeline with schedule gpipe",
    "recompute=every": "one layer in",
    "pp=2,overlap": "needs interleaved stages",
    "full,overlap": "needs no layers that run again",
}
OF_TORCHTITAN = [
    *(f"{zero},grads=fp32" for zero in ("zero=0", "zero=3", "zero=3,reshard=no", "zero=3,shard=4,clip=yes")),
    *(f"tp=4,{zero},micro_batch=2,grads=fp32,clip=yes" for zero in ("zero=0", "zero=3", "zero=3,reshard=no")),
    *(
        f"pp=2,tp=2,{zero},schedule={name},grads=fp32"
        for zero in ("zero=0", "zero=3", "zero=3,reshard=no,shard=2")
        for name in ("1f1b", "gpipe", "interleaved:2")
    ),
    *(f"tp=2,recompute={what},grads=fp32" for what in ("none", "full", "every:2", "every:4")),
    *(f"pp=4,recompute={what},micro_batch=2,grads=fp32" for what in ("full", "every:2", "every:8")),
    "cp=2,zero=3,grads=fp32",
    "cp=4,tp=2,zero=3,reshard=no,grads=fp32",
    "cp=8,zero=3,recompute=full,grads=fp32",
    "cp=2,pp=2,zero=3,schedule=interleaved:4,grads=fp32",
    "cp=4,zero=3,cp_comm=ring,grads=fp32",
    "pp=8,tp=2,grads=fp32",
    "pp=4,schedule=interleaved:2,micro_batch=2,grads=fp32",
    "pp=2,layers=5+3,zero=3,grads=fp32",
    "tp=8,zero=3,grads=fp32",
    "ep=4,zero=3,grads=fp32",
    "ep=2,tp=2,zero=3,reshard=no,grads=fp32",
    "ep=2,tp=2,pp=2,zero=3,schedule=interleaved:2,grads=fp32",
    "ep=4,pp=2,zero=3,recompute=full,grads=fp32",
    "tp=2,etp=1,ep=2,zero=3,grads=fp32",
    "tp=2,etp=2,cp=2,ep=4,zero=3,grads=fp32",
    "tp=2,etp=1,cp=2,ep=4,zero=3,grads=fp32",
]
NOT_TORCHTITAN = {
    "zero=1": "'model.embed_tokens' keeps its weights and gradients whole and a slice of its optimizer state",
    "zero=2": "'model.embed_tokens' keeps its weights whole and a slice of their gradients and optimizer state",
    "tp=4,sp=no": "without sequence parallelism, which configurations in TOML always have",
    "recompute=selective": "recomputes selective, but a configuration chooses operations or whole layers",
    "recompute=modules:mlp": "recomputes modules:mlp, but",
    "cp=2": "keeps its weights whole, but devices slice weights, where they share a sample",
    "cp=2,zero=3,cp_comm=ulysses": "all-to-alls between positions and heads",
    "cp=2,zero=3,zigzag=no": "positions in one piece",
    "pp=2,schedule=zb-h1": "has schedule zb-h1, for which a configuration needs the path of a file",
    "pp=2,schedule=1f1b-deep": "has schedule 1f1b-deep",
    "tp=2,grads=weights": "sums gradients in bf16, torchtitan in fp32",
}
#: Flags of Megatron-LM for the model.
MODEL = (
    f"--num-layers {LAYERS} --hidden-size 64 --num-attention-heads 8 --group-query-attention --num-query-groups 4 "
    "--seq-length 32 --max-position-embeddings 32 --vocab-size 128 --tokenizer-type NullTokenizer --train-iters 1 "
    "--lr 1e-3 --disable-bias-linear"
)
EXPERTS = "--num-experts 4 --moe-router-topk 2"


@functools.cache
def graph(folder, name):
    """The operators of a model, whose configuration is written to a folder."""
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"llama": LLAMA, "mixtral": MIXTRAL, "olmo": OLMO}[name]))
    return in_precision(HuggingFace(config=str(path)).build(BATCH), "bf16")


def options_of(text):
    """Options of the searcher, of the words of a plan."""
    pairs = [pair.split("=") for pair in text.split(",")]
    return {
        key: value == "yes" if key in ("sp", "zigzag", "clip", "reshard") else int(value) if value.isdigit() else value
        for key, value in pairs
    }


def layers_of(options, stages):
    """How many layers each stage of a plan has."""
    words = [part.partition("*") for part in options.get("layers", "").split("+") if part]
    counts = [int(count) for count, _, times in words for _ in range(int(times or 1))]
    return counts or [LAYERS // stages] * stages


def of_text(folder, text, name=None):
    """A plan as exporters see it, of the model of that name."""
    cluster = build_cluster(ClusterOptions(servers=DEVICES // 4, gpus_per_server=4, device="h100"), Host.discover())
    model = graph(folder, name or ("mixtral" if "ep=" in text else "llama"))
    strategy, _ = strategy_of(Stated(**options_of(text)), model, DEVICES)
    return ProposedPlan(model, strategy, cluster)
