"""Random hybrid plans of small models on random networks, on which folded iterations are compared with whole ones."""

from __future__ import annotations

import json
import random
from functools import cache

import attrs
import numpy as np

from topoplan import Cluster, Host, Topology, TopoplanError
from topoplan.model.machine import HostModel
from topoplan.plugin.components import TopologyContext
from topoplan_engine.network.building import build_fabric
from topoplan_frontend_huggingface import HuggingFace
from topoplan_machine_nvidia import DEVICES
from topoplan_samples.stated import LLAMA
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings

CONFIG = {**LLAMA, "num_key_value_heads": 8, "vocab_size": 256, "max_position_embeddings": 256}
EXPERTS = {
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
LAYOUTS = ["tp-cp-ep-dp-pp", "tp-pp-cp-ep-dp", "dp-tp-cp-ep-pp", "cp-dp-pp-tp-ep", "pp-tp-cp-dp-ep"]
# Where a pair of hosts has one path, nothing is drawn.
ONE_PATH = {
    "bigswitch": {},
    "fattree": {"paths": 1},
    "torus": {"paths": 1},
    "dragonfly": {"paths": 1},
    "hyperx": {"paths": 1},
    "jellyfish": {"paths": 1},
    "random": {"paths": 1},
    "topoopt": {"paths": 1},
    "bcube": {"paths": 1},
    "slim-fly": {"paths": 1},
    "fully-connected": {},
}
#: Hosts, and devices of each: up to 64 and up to 512 devices.
SMALL, LARGE = ([2, 4, 8, 16], [1, 2, 4]), ([32, 64], [4, 8])


def write(folder, **changes):
    """Write a small model's configuration; return its path."""
    path = folder / f"{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps({**CONFIG, **changes}))
    return str(path)


def models_in(folder):
    """Return what builds a model of a kind with so many layers, whose configuration is written to a folder."""

    @cache
    def build(kind, layers, batch=32):
        changes = EXPERTS if kind == "experts" else {"tie_word_embeddings": kind == "tied"}
        config = write(folder, num_hidden_layers=layers, **changes)
        return HuggingFace(config=config, sequence_length=32).build(batch)

    return build


def cluster_of(hosts, devices, interfaces=1):
    """Return equal hosts, with machines for all devices that are sold."""
    cluster = Cluster.uniform(n_hosts=hosts, devices_per_host=devices, interfaces=interfaces)
    return attrs.evolve(cluster, machines={device.name.lower(): HostModel(device=device) for device in DEVICES})


def fabric_of(name, cluster, options):
    """Return a network of a cluster."""
    topology = Host.discover().make(Topology, name, options)
    return build_fabric(topology, TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))


def drawn_plan(seed, model_of, options_of=ONE_PATH, topology=None, sizes=SMALL, batch=32):
    """A hybrid plan, a cluster and a fabric; None for what does not go together."""
    draw = random.Random(seed)
    hosts, devices = (draw.choice(each) for each in sizes)
    topology = topology or draw.choice(sorted(options_of))
    kind = draw.choice(["dense", "tied", "experts"])
    graph = model_of(kind, draw.choice([2, 4]), batch)
    settings = Settings(
        tp=draw.choice([1, 2, 4, 8]),
        pp=draw.choice([1, 2, 4]),
        cp=draw.choice([1, 1, 2]),
        ep=draw.choice([1, 2]) if kind == "experts" else 1,
        zero=draw.choice([0, 1, 2, 3]),
        schedule=draw.choice(["1f1b", "gpipe", "interleaved:2", "zb-h1"]),
        recompute=draw.choice(["none", "selective", "full"]),
        micro_batch=draw.choice([1, 2]),
        layout=draw.choice(LAYOUTS),
        bucket_mb=draw.choice([0, 0.05]),
        cp_comm=draw.choice(["gather", "ring", "ulysses"]),
        zigzag=draw.choice([True, False]),
        clip=draw.choice([True, False, False]),
        shard=draw.choice([0, 0, 2]),
        reshard=draw.choice([True, True, False]),
        grads=draw.choice(["weights", "fp32"]),
    )
    cluster = cluster_of(hosts, devices, draw.choice([1, 2, 4]))
    settings = attrs.evolve(settings, async_tp=settings.tp > 1 and draw.choice([True, False]))
    settings = attrs.evolve(settings, overlap=draw.choice(["all", "megatron"]))
    if settings.ep > 1:
        changes = {"dispatch": draw.choice([0, 1, 2]), "overlap": draw.choice([settings.overlap, "experts"])}
        settings = attrs.evolve(settings, **changes)
    settings = attrs.evolve(settings, slowdown=draw.choice([0.0, 0.15]))
    try:
        strategy, _ = strategy_of(settings, graph, cluster.n_devices)
        return graph, cluster, fabric_of(topology, cluster, options_of[topology]), strategy
    except TopoplanError:
        return None


def some_plans(first, count, model_of, **options):
    """The first plans of a stream of draws that go together."""
    plans = (drawn_plan(seed, model_of, **options) for seed in range(first, first + 100 * count))
    return [plan for plan, _ in zip((plan for plan in plans if plan is not None), range(count), strict=False)]
