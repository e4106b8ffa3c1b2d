"""Fabrics as networkx graphs, and back: for topologies that networkx can generate, for analysis and drawing.

`to_networkx` gives one directed edge for each link row, with the attributes ``bandwidth`` (bytes/s of the row, all
its parallel links together), ``latency`` (seconds), ``count`` (parallel links) and ``link`` (``network``, ``lane`` or
``inside``, see `topoplan.model.fabric.LinkKind`; ``network`` where it is absent).  `from_networkx` reads a graph
with the same attributes: directed or not, with parallel edges or without, with nodes of any name.

networkx is imported when a function is called: who does not convert does not pay for it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.fabric import Fabric, LinkKind

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["from_networkx", "to_networkx"]

#: Values of the node attribute ``kind``.
_HOST, _SWITCH = "host", "switch"


def to_networkx(fabric: Fabric) -> nx.DiGraph:
    """Return the links of a fabric as a directed graph.

    Nodes are ``0 .. n_nodes-1``, hosts first, with the attribute ``kind`` (``"host"`` or ``"switch"``).  The graph
    has the attributes ``name``, ``max_paths``, ``rings`` and ``cycles``.  Explicit routes are not part of it.

    Raises:
        TopoplanError: the fabric is rebuilt during the iteration; convert those of its phases.
    """
    import networkx as nx

    if fabric.phases is not None:
        raise TopoplanError(
            f"fabric {fabric.name!r}: it is rebuilt during the iteration and is no single graph "
            "(convert each of fabric.phases.fabrics)"
        )
    rings = {size: [list(jumps) for jumps in rings] for size, rings in fabric.rings.items()}
    cycles = [list(cycle) for cycle in fabric.cycles]
    graph = nx.DiGraph(name=fabric.name, max_paths=fabric.max_paths, rings=rings, cycles=cycles)
    graph.add_nodes_from(range(fabric.n_hosts), kind=_HOST)
    graph.add_nodes_from(range(fabric.n_hosts, fabric.n_nodes), kind=_SWITCH)
    ends, numbers = (fabric.link_src, fabric.link_dst), (fabric.link_bandwidth, fabric.link_latency, fabric.link_count)
    columns = (column.tolist() for column in (*ends, *numbers, fabric.link_kind))
    for source, target, bandwidth, latency, count, kind in zip(*columns, strict=True):
        link = LinkKind(kind).name.lower()
        graph.add_edge(source, target, bandwidth=bandwidth, latency=latency, count=count, link=link)
    return graph


def from_networkx(
    graph: nx.Graph,
    *,
    name: str | None = None,
    bandwidth: float | None = None,
    latency: float | None = None,
    max_paths: int | None = None,
) -> Fabric:
    """Make a fabric from a graph.

    Hosts are the nodes of ``kind="host"``, or all nodes where none has a kind; they are numbered in the order of the
    graph, switches (``kind="switch"``) after them.  An undirected edge is a link each way.  Parallel edges of a
    multigraph become one link of their summed bandwidth.

    Args:
        graph: any networkx graph, for example ``nx.hypercube_graph(4)``.
        name: of the fabric; the graph's own name unless given.
        bandwidth: bytes/s of one physical link, for edges without the attribute ``bandwidth``.
        latency: seconds, for edges without the attribute ``latency``.
        max_paths: equal-cost shortest paths to keep for a pair; the graph's attribute, else 1, unless given.

    Raises:
        TopoplanError: a node of another kind, an edge without bandwidth or latency, or with one that is no number.
    """
    numbers, n_hosts = _numbers(graph)
    links, rates, delays, kinds = [], [], [], []
    for source, target, data in graph.edges(data=True):
        count = int(_number(data, "count", 1, source, target))
        if count < 1:
            raise TopoplanError(f"graph: edge {source!r} - {target!r} has count {count} (at least 1)")
        rate = _number(data, "bandwidth", None if bandwidth is None else bandwidth * count, source, target) / count
        delay = _number(data, "latency", latency, source, target)
        ways = [(source, target)] if graph.is_directed() else [(source, target), (target, source)]
        for start, end in ways:
            links += [(numbers[start], numbers[end])] * count
            rates += [rate] * count
            delays += [delay] * count
            kinds += [_kind(data, source, target)] * count
    kept = {int(size): tuple(tuple(jumps) for jumps in rings) for size, rings in graph.graph.get("rings", {}).items()}
    return Fabric.from_links(
        name=name or str(graph.name or "networkx"),
        n_hosts=n_hosts,
        n_switches=len(numbers) - n_hosts,
        links=np.array(links, dtype=np.int64).reshape(-1, 2),
        bandwidth=np.array(rates, dtype=np.float64),
        latency=np.array(delays, dtype=np.float64),
        kind=np.array(kinds, dtype=np.int32),
        max_paths=max_paths or int(graph.graph.get("max_paths", 1)),
        rings=kept,
        cycles=graph.graph.get("cycles", ()),
    )


def _numbers(graph: nx.Graph) -> tuple[Mapping[Hashable, int], int]:
    """Number the nodes of a graph, hosts first; return the numbers and how many hosts there are."""
    kinds = dict(graph.nodes(data="kind"))
    if not any(kinds.values()):
        kinds = dict.fromkeys(kinds, _HOST)
    for node, kind in kinds.items():
        if kind not in (_HOST, _SWITCH):
            raise TopoplanError(f"graph: node {node!r} has kind {kind!r} (it must be {_HOST!r} or {_SWITCH!r})")
    hosts = [node for node, kind in kinds.items() if kind == _HOST]
    if not hosts:
        raise TopoplanError("graph: it has no host (a node of kind 'host')")
    switches = [node for node, kind in kinds.items() if kind == _SWITCH]
    return {node: number for number, node in enumerate([*hosts, *switches])}, len(hosts)


def _kind(data: Mapping[str, Any], source: Hashable, target: Hashable) -> LinkKind:
    """Return what the link of an edge is built of."""
    names = {kind.name.lower(): kind for kind in LinkKind}
    name = data.get("link", "network")
    if name not in names:
        raise TopoplanError(f"graph: edge {source!r} - {target!r} is a link {name!r} (it must be {', '.join(names)})")
    return names[name]


def _number(data: Mapping[str, Any], key: str, default: float | None, source: Hashable, target: Hashable) -> float:
    """Return a number among the attributes of an edge."""
    value = data.get(key, default)
    if value is None:
        raise TopoplanError(f"graph: edge {source!r} - {target!r} has no {key} (give {key}=... for all that have none)")
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TopoplanError(f"graph: edge {source!r} - {target!r} has {key} {value!r} (it must be a finite number)")
    return float(value)
