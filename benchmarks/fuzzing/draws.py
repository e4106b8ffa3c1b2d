"""Inputs for every reader: what is right to begin with, and how it is changed."""

from __future__ import annotations

import atexit
import functools
import json
import re
import shutil
import tempfile
import tomllib
import zipfile
from pathlib import Path
from random import Random
from typing import Any

import attrs
import numpy as np

from fuzzing.mutators import NUMBERS, bytes_of, json_of, text_of, word
from topoplan import Host
from topoplan.model.plan import Plan
from topoplan.testing import reference
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.exporting import write_outputs
from topoplan_engine.options import HostGroup
from topoplan_studies.store import Store

ROOT = Path(__file__).resolve().parents[2]
HOST = Host.discover()


@functools.cache
def folder() -> Path:
    """Return a folder for the files that are read; in memory where the system has such a one."""
    memory = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="topoplan-fuzz-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, made, ignore_errors=True)  # children leave without it
    return made


def stored(name: str, data: bytes | str) -> Path:
    """Write an input to a file."""
    path = folder() / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass"))
    return path


@functools.cache
def plans() -> tuple[Plan, ...]:
    """Return plans of several kinds: by hand, pipelined, searched on a patch panel, an SPMD program."""
    small = Experiment(
        model="alexnet",
        cluster=ClusterOptions(servers=4, interface_bandwidth_gbps=10.0),
        topology="topoopt",
        searchers="mcmc",
        run=RunOptions(batch_size=16, budget=2),
    )
    searched = optimize(small, host=HOST).plan
    program = optimize(attrs.evolve(small, topology="bigswitch", searchers="spmd"), host=HOST).plan
    return reference.plan(), reference.pipelined(), searched, program


def written(exporter: str, which: tuple[Plan, ...]) -> list[bytes]:
    """Return plans in a format."""
    found = []
    for plan in which:
        path = folder() / f"base.{exporter}"
        if write_outputs(HOST, plan, ((Choice(exporter), str(path)),)).paths:
            found.append(path.read_bytes())
    return found


@functools.cache
def graph_of(model: str, batch: int) -> Any:
    """Return the graph of a model."""
    frontend = HOST.make("frontend", model)
    return frontend.build(batch)


@functools.cache
def texts(*names: str) -> list[str]:
    """Return files of the repository."""
    found = [path for name in names for path in sorted(ROOT.glob(name))]
    return [path.read_text(encoding="utf-8") for path in found]


def models() -> tuple[list[str], list[dict[str, Any]]]:
    """Return models of layers, as TOML and as what JSON says: the example, and those of the README."""
    readme, example = texts("plugins/frontends/layers/README.md", "examples/models/transformer.toml")
    found = [example, *re.findall(r"```toml\n(.*?)```", readme, re.DOTALL)]
    return found, [tomllib.loads(text) for text in found]


def configs() -> list[dict[str, Any]]:
    """Return configurations of Hugging Face: one of each family, small."""
    sizes = {"num_hidden_layers": 2, "num_experts_per_tok": 2, "n_layer": 2}
    families = ("llama", "mixtral", "qwen2_moe", "qwen3", "deepseek_v2", "deepseek_v3", "gpt2", "bert", "vit")
    return [{"model_type": family, **sizes} for family in families]


@functools.cache
def options_of() -> dict[str, list[str]]:
    """Return the keys of all options, by the component that has them."""
    known = {f"{one.kind.value}:{one.name}": [f.name for f in attrs.fields(one)] for one in HOST.components()}
    for name, cls in (("cluster", ClusterOptions), ("hosts", HostGroup), ("run", RunOptions)):
        known[name] = [field.name for field in attrs.fields(cls)]
    return known


def draw_values(rng: Random) -> tuple[str, dict[str, Any]]:
    known = options_of()
    name = rng.choice([name for name in known if known[name] or rng.random() < 0.05])
    keys = [key for key in known[name] if key != "file"] or ["x"]
    chosen = rng.sample(keys, min(len(keys), rng.choice((1, 1, 2))))
    value = rng.choice(
        (word, word, lambda rng: _number(rng.choice(NUMBERS)), lambda rng: rng.choice(([], {}, None, [1])))
    )
    return name, {key.replace("_", rng.choice("-_")): value(rng) for key in chosen}


def _number(text: str) -> Any:
    try:
        return int(text) if len(text) < 4000 else text
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def draw_option_text(rng: Random) -> str:
    known = options_of()
    name = rng.choice([name for name in known if ":" in name and (known[name] or rng.random() < 0.05)])
    kind, _, component = name.partition(":")
    keys = [key for key in options_of()[name] if key != "file"] or ["x"]
    given = ",".join(f"{rng.choice(keys).replace('_', '-')}={word(rng)}" for _ in range(rng.randrange(3)))
    text = f"{kind} {component}:{given}"
    return text_of(rng, [text]) if rng.random() < 0.3 else text


def draw_change(rng: Random) -> tuple[str, tuple[str, ...]]:
    keys = (
        "model",
        "cluster",
        "topology",
        "searcher",
        "searcher.0",
        "run",
        "outputs",
        "cluster.hosts",
        "simulator",
        "x",
    )
    names = ("use", "servers", "degree", "seed", "budget", "every", "json", "hosts", "0", "", "batch-size", "a.b.c")
    base = rng.choice(texts("examples/*.toml"))
    change = f"{rng.choice(keys)}.{rng.choice(names)}={word(rng)}"
    return base, (text_of(rng, [change]) if rng.random() < 0.4 else change,)


_COMMAND = (
    "dlrmsim --nsimnode 16 -ll:gpu 1 -b 64 --interface-bandwidth 25 --node-degree 4 --topology topoopt --budget 100 "
    "--arch-sparse-feature-size 128 --arch-embedding-size 1000-1000 --embedding-bag-size 1 --arch-mlp-bot 64-32 "
    "--taskgraph a.fbuf --big-gpu 4 --network-latency 1 --alpha 1.2 --enable-propagation --export b --mfile m.json"
)


def draw_flags(rng: Random) -> list[str]:
    words = _COMMAND.split()
    words[0] = rng.choice(("dlrmsim", "ncfsim", "./Transformersim", "vggsim", "candle_unosim", "moesim"))
    for _ in range(rng.choice((1, 2, 3))):
        at = rng.randrange(1, len(words))
        match rng.randrange(4):
            case 0:
                del words[at]
            case 1:
                words[at] = word(rng)
            case 2:
                words.insert(at, words[rng.randrange(1, len(words))])
            case _:
                words[at] = text_of(rng, [words[at]])
    return words


def draw_words(rng: Random) -> tuple[str, str, str]:
    networks = text_of(rng, ["topoopt,fattree:k=4,oversubscription=2,bigswitch", "ocs:delay-ms=1,random"])
    return networks, rng.choice(("degree", "servers")), text_of(rng, ["4,8,16", "25,50.5"])


def draw_kept(rng: Random) -> bytes:
    store = Store(folder())
    store.put("base", {}, {"iteration_time_s": 0.5, "parts": [["nic", 25.0, 4.0]]})
    document = json.loads((folder() / "base.json").read_bytes())
    return json_of(rng, [document]) if rng.random() < 0.5 else bytes_of(rng, [json.dumps(document).encode()])


_LIMITS = (
    *(0, 1, 2, 3, 5, 7, 2**15 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**50, 2**62, 2**63, 2**64 - 1),
    *(1e-3, 0.5, 1e3, 1e9, 1e10, 1e20, 3e38),
)


def draw_columns(rng: Random) -> bytes:
    """Change values inside the tables of a file, which stays a well-formed one."""
    from topoplan_exporter_flatbuffer.encode import encode
    from topoplan_exporter_flatbuffer.schema import Rows
    from topoplan_exporter_flatbuffer.wire import decode

    columns = decode(rng.choice(fbufs()), "base")
    for _ in range(rng.choice((1, 1, 2, 4))):
        table: Any = columns
        while True:
            key = rng.choice(list(table))
            value = table[key]
            if isinstance(value, Rows) and isinstance(value.values, dict):
                table = value.values
                continue
            array = value.values if isinstance(value, Rows) else value
            if isinstance(array, np.ndarray) and len(array):
                new = array.copy()
                limits = [
                    0,
                    1,
                    2,
                    3,
                    5,
                    7,
                    2**15 - 1,
                    2**31 - 1,
                    2**31,
                    2**32 - 1,
                    2**40,
                    2**50,
                    2**62,
                    2**63,
                    2**64 - 1,
                ]
                choice = rng.choice((*limits, 1e-3, 0.5, 1e3, 1e9, 1e10, 1e20, 3e38))
                with np.errstate(all="ignore"):
                    new[rng.randrange(len(new))] = (
                        choice if array.dtype.kind == "f" else int(choice) & (2 ** (8 * array.dtype.itemsize - 1) - 1)
                    )
                table[key] = Rows(value.ptr, new) if isinstance(value, Rows) else new
            break
    return encode(columns)


@functools.cache
def fbufs() -> list[bytes]:
    """Return files for the packet simulator."""
    return written("flatbuffer", plans()[:3])


@functools.cache
def jsons() -> list[Any]:
    """Return plans as JSON values."""
    return [json.loads(data) for data in written("json", plans())]


@functools.cache
def json_files() -> list[bytes]:
    """Return plans as JSON text."""
    return [json.dumps(document).encode() for document in jsons()]


def exported() -> list[bytes]:
    """Return PyTorch modules as torch.export.save writes them."""
    return [(ROOT / "examples" / "models" / "transformer.pt2").read_bytes()]


def programs() -> list[Any]:
    """Return the graphs in these files."""
    with zipfile.ZipFile(ROOT / "examples" / "models" / "transformer.pt2") as archive:
        return [json.loads(archive.read("tiny/models/model.json"))]


def measured() -> list[Any]:
    layer = {"name": "Conv_3_64_11_4_2", "pc_str": "4-1-1-1-1", "fw_time": 0.5, "bw_time": 1.0, "mem_req": 1e6}
    names = [op.tags["flexnet"] for op in graph_of("alexnet", 64).operators]
    rows = [{**layer, "name": name, "pc_str": f"4-1-1-1-{cut}"} for name in names for cut in (1, 2, 4)]
    rows += [{**layer, "name": name, "pc_str": f"2-1-{cut}"} for name in names for cut in (1, 4)]
    return [{"batch_size": 64, "ngpus": 4, "measurements": rows}]


def collectives() -> list[Any]:
    line = {"latency_s": 1e-4, "bandwidth_bytes_per_s": 1e9}
    kinds = ("all_gather", "all_reduce", "reduce_scatter", "all_to_all")
    head = {"format": "topoplan-collectives", "version": 1, "world_size": 8}
    return [{**head, "collectives": dict.fromkeys(kinds, line)}]
