"""Fabrics as networkx graphs, and back: what `Fabric.to_networkx` and `Fabric.from_networkx` call.

networkx is imported where a fabric is converted, since that takes long.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.fabric import LONGEST_NAME, Fabric, LinkKind
from topoplan_network_files.unread import LINK_ATTRIBUTES, UnreadAttributes, check_graph_attributes

if TYPE_CHECKING:
    import networkx as nx

__all__ = ["from_networkx", "to_networkx"]


def to_networkx(fabric: Fabric) -> nx.DiGraph:
    """Return the links as a directed graph, an edge for each row.

    Nodes are ``0 .. n_nodes-1``, hosts first, with the attribute ``kind`` (``"host"`` or ``"switch"``), and ``label``
    where the fabric has names of nodes.  Edges have ``bandwidth`` (bytes/s of the row, all its parallel links
    together), ``latency`` (seconds), ``count`` (parallel links) and ``link`` (a `LinkKind`, in lower case).  The graph
    has ``name``, ``max_paths``, ``rings``, ``cycles``, ``rings_along_links`` and ``switching``.  Explicit routes are
    not part of it.
    """
    import networkx as nx

    rings = {size: [list(jumps) for jumps in rings] for size, rings in fabric.rings.items()}
    cycles = [list(cycle) for cycle in fabric.cycles]
    graph = nx.DiGraph(name=fabric.name, max_paths=fabric.max_paths, rings=rings, cycles=cycles)
    graph.graph["switching"] = fabric.switching
    graph.graph["rings_along_links"] = fabric.rings_along_links
    graph.add_nodes_from(range(fabric.n_hosts), kind="host")
    graph.add_nodes_from(range(fabric.n_hosts, fabric.n_nodes), kind="switch")
    for node, label in enumerate(fabric.node_names):
        graph.nodes[node]["label"] = label
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
    """Make a fabric from any networkx graph, with the attributes of `to_networkx`.

    Hosts are the nodes of ``kind="host"``, or all nodes where none has a kind, in the order of the graph; switches
    (``kind="switch"``) follow.  An undirected edge is a link each way.  Parallel edges of a multigraph become one link
    of their summed bandwidth.  Attributes that are not read are refused or named (`topoplan_network_files.unread`).
    Nodes keep their names (the attribute ``label``, else the node).

    Args:
        graph: directed or not, with nodes of any name.
        name: of the fabric; the graph's own name unless given.
        bandwidth: bytes/s of one physical link, for edges without the attribute ``bandwidth``.
        latency: seconds, for edges without the attribute ``latency``.
        max_paths: equal-cost shortest paths to keep for a pair; the graph's attribute, else 1, unless given.

    Raises:
        TopoplanError: a node of another kind, an edge without bandwidth or latency, or with one that is no number.
    """
    unread = UnreadAttributes("graph", _OF_GRAPHS)
    hosts_first, n_hosts = _hosts_first(graph, unread)
    number = {node: place for place, node in enumerate(hosts_first)}
    links = {kind.name.lower(): kind for kind in LinkKind}
    rows: list[tuple[float, ...]] = []
    for source, target, data in graph.edges(data=True):
        edge = f"graph: edge {source!r} - {target!r}"
        unread.add(data, edge)
        count, link = int(_number(edge, data, "count", 1)), data.get("link", "network")
        if count < 1:
            raise TopoplanError(f"{edge} has count {count} (it must be at least 1)")
        if not isinstance(link, str) or link not in links:
            raise TopoplanError(f"{edge} has link {link!r} (it must be {', '.join(links)})")
        rate = _number(edge, data, "bandwidth", None if bandwidth is None else bandwidth * count) / count
        columns = (rate, _number(edge, data, "latency", latency), links[link])
        ends = [(number[source], number[target]), (number[target], number[source])]
        rows += [(*pair, *columns) for pair in (ends[:1] if graph.is_directed() else ends)] * count
    unread.finish(stacklevel=4)
    table = np.array(rows, dtype=np.float64).reshape(-1, 5)
    fabric = Fabric.from_links(
        name=name or str(graph.name or "networkx"),
        n_hosts=n_hosts,
        n_switches=len(number) - n_hosts,
        links=table[:, :2],
        bandwidth=table[:, 2],
        latency=table[:, 3],
        kind=table[:, 4],
        max_paths=max_paths or int(graph.graph.get("max_paths", 1)),
        rings={int(size): tuple(map(tuple, rings)) for size, rings in graph.graph.get("rings", {}).items()},
        cycles=graph.graph.get("cycles", ()),
        rings_along_links=graph.graph.get("rings_along_links", True),
        switching=graph.graph.get("switching"),
    )
    return attrs.evolve(fabric, node_names=_names(graph, hosts_first, n_hosts))


def _hosts_first(graph: nx.Graph, unread: UnreadAttributes) -> tuple[list[Any], int]:
    """Return the nodes, hosts first and each kind in the order of the graph, and how many are hosts."""
    check_graph_attributes({key for key in graph.graph if isinstance(key, str)}, "graph")
    for node, data in graph.nodes(data=True):
        unread.add_node(data, f"graph: node {node!r}")
    kinds = dict(graph.nodes(data="kind"))
    if all(kind is None or kind == "" for kind in kinds.values()):
        kinds = dict.fromkeys(kinds, "host")
    for node, kind in kinds.items():
        if not isinstance(kind, str) or kind not in ("host", "switch"):
            raise TopoplanError(f"graph: node {node!r} has kind {kind!r} (it must be 'host' or 'switch')")
    n_hosts = sum(kind == "host" for kind in kinds.values())
    if not n_hosts:
        raise TopoplanError("graph: it has no host (a node of kind 'host')")
    return sorted(kinds, key=lambda node: kinds[node] == "switch"), n_hosts


#: What edges of a graph in memory have, whose numbers have no units.
_OF_GRAPHS = {**LINK_ATTRIBUTES, "bandwidth": "bytes/s of all its links together", "latency": "seconds"}


def _names(graph: nx.Graph, nodes: list[Any], n_hosts: int) -> tuple[str, ...]:
    """Return the names of nodes, hosts first: their labels, else the nodes themselves; none where these are numbers.

    A number is no name, but where it is not the node's own it is kept: ``host 12``.
    """
    labels = [graph.nodes[node].get("label") for node in nodes]
    usable = all(isinstance(label, str) and label.strip() for label in labels) and len(set(labels)) == len(labels)
    names = []
    for place, name in enumerate(labels if usable else nodes):
        text = str(name)
        if text.isdecimal():
            text = f"{'host' if place < n_hosts else 'switch'} {text}"
        if not text.isprintable():
            text = "".join(c if c.isprintable() else c.encode("unicode_escape", "replace").decode() for c in text)
        names.append(text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 3]}...")
    plain = [f"host {place}" if place < n_hosts else f"switch {place - n_hosts}" for place in range(len(nodes))]
    return () if names == plain or len(set(names)) < len(names) or not all(names) else tuple(names)


def _number(edge: str, data: Mapping[str, Any], key: str, default: float | None) -> float:
    """Return a number among the attributes of an edge."""
    value = data.get(key, default)
    if value is None:
        raise TopoplanError(f"{edge} has no {key} (give {key}=... for all that have none)")
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
        raise TopoplanError(f"{edge} has {key} {value!r} (it must be a finite number)")
    return float(value)
