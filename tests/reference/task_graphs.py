"""Task graphs that the real FlexNet wrote, made again from the model, its measured times and the strategy.

``task_graphs.csv`` has a row for each: preset, hosts, speed of a link, the strategy, and a digest of every column of
the published file.  ``task_graph_networks.csv`` has links, paths and rings of those that are not on one switch.  A test
compares the digests, so what is made here is what was published, to the last byte of each column; seconds are those of
the file, float32 milliseconds.

A placement is PARTS@FIRST+STEP, parts of the samples on devices at equal steps; ``12*`` before it stands for twelve
operators in a row.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import attrs
import numpy as np

from reference.tables import rows
from topoplan import Cluster, Fabric, Host, PlacedStrategy, Placement, Plan, Routes, Strategy, TaskGraph
from topoplan.model.graph import OperatorGraph
from topoplan_engine.lowering import Lowering

__all__ = ["COLUMNS", "digests", "model_of", "names", "plan", "read_strategy", "spell_strategy", "wanted"]

FRONTENDS = {"candle": "candle-uno", "dlrm": "dlrm", "transformer": "transformer", "vgg": "vgg16"}
COLUMNS = (
    "op_names",
    "kind",
    "device",
    "seconds",
    "size",
    "src",
    "dst",
    "group",
    "group_ptr",
    "group_members",
    "succ_ptr",
    "succ",
)
LATENCY = 1e-6


def names() -> list[str]:
    """Return the names of all task graphs."""
    return [row["task_graph"] for row in rows("task_graphs")]


def wanted(name: str) -> dict[str, str]:
    """Return the row of a task graph."""
    return next(row for row in rows("task_graphs") if row["task_graph"] == name)


@cache
def model_of(preset: str) -> tuple[OperatorGraph, Any, Cluster]:
    """Return the graph, the costs and the cluster that FlexNet used for a preset, as ``dlrm16``."""
    host = Host.discover()
    family, servers = re.fullmatch(r"([a-z]+)(\d+)", preset).groups()
    frontend = host.make("frontend", FRONTENDS[family], {"preset": preset, "dialect": "flexnet"})
    graph = frontend.build(None)
    cluster = Cluster.uniform(n_hosts=int(servers), gpus_per_device=4, inside_bandwidth=25e9, latency=LATENCY)
    estimator = host.make("estimator", "measured", {"profile": preset})
    return graph, estimator.build(graph, cluster), cluster


@cache
def plan(name: str) -> Plan:
    """Return a task graph with its fabric and cluster."""
    row = wanted(name)
    graph, costs, cluster = model_of(row["preset"])
    speed = float(row["link_gbps"]) * 1e9 / 8
    lowered = Lowering(graph, cluster, costs).lower(read_strategy(row["strategy"], graph))
    fabric = network(name, cluster.n_hosts, speed)
    links_out = np.bincount(fabric.link_src, weights=fabric.link_count)[: cluster.n_hosts]
    cluster = attrs.evolve(
        cluster, gpus_per_device=1, interfaces=links_out, interface_bandwidth=np.full(cluster.n_hosts, speed)
    )
    return Plan(cluster=cluster, fabric=fabric, taskgraph=attrs.evolve(lowered, seconds=as_written(lowered)))


def as_written(graph: TaskGraph) -> Any:
    """Return seconds as a file holds them: float32 milliseconds."""
    return (graph.seconds * 1e3).astype(np.float32).astype(np.float64) / 1e3


def network(name: str, hosts: int, speed: float) -> Fabric:
    """Return one switch, or the links, paths and rings that the table has."""
    row = next((row for row in rows("task_graph_networks") if row["task_graph"] == name), None)
    if row is None:
        links = [(a, b) for host in range(hosts) for a, b in ((host, hosts), (hosts, host))]
        return Fabric.from_links(
            name="file", n_hosts=hosts, n_switches=1, links=links, bandwidth=speed, latency=LATENCY
        )
    links = [tuple(map(int, pair.split(">"))) for pair in row["links"].split()]
    bare = Fabric.from_links(name="file", n_hosts=hosts, links=links, bandwidth=speed, latency=LATENCY)
    rings = {
        int(size): tuple(tuple(map(int, one.split(","))) for one in text.split("|"))
        for size, text in (ring.split(":") for ring in row["rings"].split())
    }
    return attrs.evolve(bare, routes=routes(bare, row["paths"].split()), rings=rings)


def routes(fabric: Fabric, paths: Iterable[str]) -> Routes:
    """Make routes of one path for each pair, each a list of hosts A>B>C."""
    link = {pair: at for at, pair in enumerate(zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True))}
    walks = sorted((nodes[0], nodes[-1], nodes) for nodes in ([int(n) for n in path.split(">")] for path in paths))
    crossed = [[link[pair] for pair in itertools.pairwise(nodes)] for *_, nodes in walks]
    return Routes(
        pairs=np.array([(source, target) for source, target, _ in walks]),
        pair_ptr=np.arange(len(walks) + 1),
        path_ptr=np.cumsum([0, *map(len, crossed)]),
        links=np.concatenate(crossed),
        weight=np.ones(len(walks)),
    )


def read_strategy(text: str, graph: OperatorGraph) -> Strategy:
    """Return the strategy that a row spells."""
    placements: list[Placement] = []
    for word in text.split():
        count, parts, first, step = map(
            int, re.fullmatch(r"(?:(\d+)\*)?(\d+)@(\d+)\+(\d+)", "1*" * ("*" not in word) + word).groups()
        )
        for op in graph.operators[len(placements) : len(placements) + count]:
            degrees = tuple(parts if dim == op.sample_dim else 1 for dim in range(len(op.dims)))
            placements.append(Placement(degrees, np.arange(first, first + parts * step, step)))
    return PlacedStrategy(tuple(placements))


def spell_strategy(strategy: Strategy, graph: OperatorGraph) -> str:
    """Spell a strategy as a row does."""
    words: list[list[Any]] = []
    for op, placement in zip(graph.operators, strategy.placements, strict=True):
        devices = placement.devices.tolist()
        step = devices[1] - devices[0] if len(devices) > 1 else 1
        word = f"{len(devices)}@{devices[0]}+{step}"
        if words and words[-1][1] == word:
            words[-1][0] += 1
        else:
            words.append([1, word])
        assert devices == list(range(devices[0], devices[0] + len(devices) * step, step))
        assert all(degree == 1 or dim == op.sample_dim for dim, degree in enumerate(placement.degrees))
    return " ".join(word if count == 1 else f"{count}*{word}" for count, word in words)


def digests(graph: TaskGraph, op_names: Sequence[str]) -> dict[str, str]:
    """Return eight digits for each column; seconds count to six digits, since the last one of float32 may differ."""
    table = {}
    for column in COLUMNS:
        if column == "op_names":
            content = "\n".join(op_names).encode()
        elif column == "seconds":
            content = "\n".join(f"{value:.5e}" for value in graph.seconds.tolist()).encode()
        else:
            content = np.asarray(getattr(graph, column)).astype("<i8").tobytes()
        table[column] = hashlib.sha256(content).hexdigest()[:8]
    return table
