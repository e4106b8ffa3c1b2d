"""Task graphs that topoplan wrote for FlexNetPacket, and what the packet simulator made of them.

``own_exports.csv`` has a row for each run; where files of an older form misled the packet simulator, a corrected time
stands beside the raw one (members of groups honoured, sends staggered).  ``own_exports.npz.xz`` holds the columns of
the task graphs and their networks, as narrow as they may be; rows of larger ones have none.
"""

from __future__ import annotations

import io
import lzma
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from reference import tables
from topoplan import Cluster, Fabric, Plan, Routes, TaskGraph
from topoplan_engine.csr import row_of_entry

__all__ = ["columns_of", "names", "plan", "rows"]

LATENCY = 1e-6
PLAIN = ("kind", "device", "size", "src", "dst", "group", "group_members")
ENDS = ("link_src", "link_dst", "link_count")


def rows() -> Iterator[tuple[dict[str, str], Plan]]:
    """Yield rows and task graphs, with ``counts_ms``: the corrected time, or the raw one where there is none."""
    exports = set(names())
    for row in tables.rows("own_exports"):
        if row["export"] in exports:
            yield (
                {**row, "counts_ms": row["members_honoured_ms"] or row["staggered_ms"] or row["packet_ms"]},
                plan(row["export"]),
            )


def names() -> list[str]:
    """Return the names of the task graphs."""
    return sorted({name.partition("/")[0] for name in _columns()})


@cache
def plan(name: str) -> Plan:
    """Return a task graph with its network, and a cluster of its hosts."""
    columns = {key.partition("/")[2]: column for key, column in _columns().items() if key.startswith(f"{name}/")}
    hosts, switches, devices = columns["nodes"].tolist()
    bandwidth = float(columns["bandwidth"][0])
    sources = np.repeat(np.arange(len(columns["kind"])), columns["successors"])
    taskgraph = TaskGraph(
        **{column: columns[column].astype(np.int64) for column in PLAIN},
        seconds=columns["ms"].astype(np.float64) / 1e3,
        group_ptr=_starts(columns["members"]),
        succ_ptr=_starts(columns["successors"]),
        succ=columns["succ"].astype(np.int64) + sources,
        op=np.full(len(columns["kind"]), -1),
        n_devices=devices,
    )
    cluster = Cluster.uniform(n_hosts=hosts, interface_bandwidth=bandwidth, latency=LATENCY)
    n_others = devices - hosts  # such as a parameter server's, which compute and send nothing
    cluster = attrs.evolve(
        cluster,
        device_host=np.append(cluster.device_host, np.full(n_others, hosts - 1)),
        device_preset=cluster.device_preset + ("CPU",) * n_others,
        device_speed=np.append(cluster.device_speed, np.ones(n_others)),
        device_memory=np.append(cluster.device_memory, np.full(n_others, cluster.device_memory[-1])),
    )
    return Plan(cluster=cluster, fabric=_fabric(columns, hosts, switches, bandwidth), taskgraph=taskgraph)


def _fabric(own: Mapping[str, Any], hosts: int, switches: int, bandwidth: float) -> Fabric:
    src, dst, count = (own[end].astype(np.int64) for end in ENDS)
    links = np.repeat(np.stack([src, dst], axis=1), count, axis=0)
    rings: dict[int, list[tuple[int, ...]]] = {}
    for ring in np.split(own["ring_jumps"], np.cumsum(own["ring_lengths"])[:-1]) if len(own["ring_lengths"]) else []:
        rings.setdefault(int(ring[0]), []).append(tuple(ring[1:].tolist()))
    bare = Fabric.from_links(
        name="file",
        n_hosts=hosts,
        n_switches=switches,
        links=links,
        bandwidth=bandwidth,
        latency=LATENCY,
        rings={size: tuple(of) for size, of in rings.items()},
    )
    if "pairs" not in own:
        return bare
    routes = Routes(
        pairs=own["pairs"],
        pair_ptr=_starts(own["paths"]),
        path_ptr=_starts(own["hops"]),
        links=own["links"],
        weight=own["weight"],
    )
    return attrs.evolve(bare, routes=routes)


def columns_of(given: Plan) -> dict[str, Any]:
    """Return what `plan` needs to make a plan again, as narrow columns."""
    graph, fabric = given.taskgraph, given.fabric
    sources = row_of_entry(graph.succ_ptr)
    rings = [(size, *jumps) for size, of in fabric.rings.items() for jumps in of]
    columns = {column: _narrow(getattr(graph, column)) for column in PLAIN}
    columns |= {end: _narrow(getattr(fabric, end)) for end in ENDS}
    columns |= {
        "nodes": np.array([fabric.n_hosts, fabric.n_switches, graph.n_devices]),
        "bandwidth": np.array([fabric.link_bandwidth[0] / fabric.link_count[0]]),
        "ms": (graph.seconds * 1e3).astype(np.float32),
        "members": _narrow(np.diff(graph.group_ptr)),
        "successors": _narrow(np.diff(graph.succ_ptr)),
        "succ": _narrow(graph.succ - sources),
        "ring_lengths": _narrow(np.array([len(ring) for ring in rings], dtype=np.int64)),
        "ring_jumps": _narrow(np.array([jump for ring in rings for jump in ring], dtype=np.int64)),
    }
    if fabric.routes is not None:
        routes = fabric.routes
        columns |= {"pairs": _narrow(routes.pairs), "links": _narrow(routes.links), "weight": routes.weight}
        columns |= {"paths": _narrow(np.diff(routes.pair_ptr)), "hops": _narrow(np.diff(routes.path_ptr))}
    return columns


def _narrow(column: Any) -> Any:
    """Return integers in the smallest type that holds them."""
    if not column.size:
        return column
    return (
        column.astype(np.result_type(np.min_scalar_type(column.min()), np.min_scalar_type(column.max())))
        if column.size
        else column
    )


def _starts(counts: Any) -> Any:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])


@cache
def _columns() -> dict[str, Any]:
    data = lzma.decompress((Path(__file__).parent / "own_exports.npz.xz").read_bytes())
    with np.load(io.BytesIO(data)) as content:
        return dict(content)
