"""Networks for programs that read links alone: ns-3's link file and Graphviz."""

from __future__ import annotations

import json
import warnings

import networkx as nx
import numpy as np

from topoplan import Fabric
from topoplan.errors import TopoplanWarning
from topoplan_network_files.cables import Cable, both_ways

__all__ = ["write_dot", "write_ns3"]

#: Links of a switch (``pCnt`` of switch-node.h, whose port 0 is none).
_PORTS = 256


def write_ns3(fabric: Fabric) -> bytes:
    """Write the topology file of HPCC's ns-3 simulator.

    Its lines: the numbers of nodes, switches and links; the switches; then for every link both nodes, rate, delay and
    error rate (``simulation/mix/topology.txt`` of alibaba-edu/High-Precision-Congestion-Control at 9f4be2a).  Hosts
    have the numbers that they have here, and switches follow.  Parallel cables are one link of their rates together:
    the program sends all packets between two nodes over the last link that it read.  It cuts delays off to whole
    nanoseconds; here they are rounded.

    Raises:
        TopoplanError: a link has none back of the same rate, latency and count.
    """
    cables = both_ways(fabric, "ns3")
    if fabric.routes is not None:
        _note(f"the format cannot say explicit routes of fabric {fabric.name!r}; left out")
    pair = _unjoined(fabric, cables)
    if pair is not None:
        _note(f"no switches join host {pair[0]} to host {pair[1]}, and hosts of the simulator pass nothing on")
    n_ports = np.bincount([node for cable in cables for node in (cable.first, cable.second)], minlength=fabric.n_nodes)
    for node in (fabric.n_hosts + np.flatnonzero(n_ports[fabric.n_hosts :] > _PORTS))[:1].tolist():
        _note(f"{fabric.node_name(node)} has {n_ports[node]} links; switches of the simulator have {_PORTS}")
    links = [
        f"{cable.first} {cable.second} {round(cable.bandwidth * cable.count * 8)}bps {round(cable.latency * 1e9)}ns 0"
        for cable in cables
    ]
    switches = " ".join(map(str, range(fabric.n_hosts, fabric.n_nodes)))
    return "\n".join([f"{fabric.n_nodes} {fabric.n_switches} {len(links)}", switches, *links, ""]).encode()


def _note(what: str) -> None:
    warnings.warn(TopoplanWarning(f"ns3: {what}"), stacklevel=3)


def _unjoined(fabric: Fabric, cables: list[Cable]) -> tuple[int, int] | None:
    """Return the first two hosts that have no cable and no path of switches between them."""
    hosts = range(fabric.n_hosts)
    graph: nx.Graph[int] = nx.empty_graph(fabric.n_nodes)
    graph.add_edges_from((cable.first, cable.second) for cable in cables)
    groups = [
        {node for switch in switches for node in graph[switch] if node in hosts}
        for switches in nx.connected_components(graph.subgraph(range(fabric.n_hosts, fabric.n_nodes)))
    ]
    if any(len(group) == fabric.n_hosts for group in groups):
        return None
    for host in hosts:
        joined = {host, *graph[host]}.union(*(group for group in groups if host in group))
        if not joined.issuperset(hosts):
            return host, min(set(hosts) - joined)
    return None


def write_dot(fabric: Fabric) -> bytes:
    """Write a drawing for Graphviz: hosts and switches, and links with their rate; a pair of links is one line."""
    lines = ["digraph network {", "  layout=neato; overlap=false;", "  node [shape=circle];", "  edge [dir=both];"]
    for node in range(fabric.n_nodes):
        shape = "" if node < fabric.n_hosts else ", shape=box"
        lines.append(f"  n{node} [label={json.dumps(fabric.node_name(node), ensure_ascii=False)}{shape}];")
    back = fabric.link_rows(fabric.link_dst, fabric.link_src).tolist()
    columns = (fabric.link_src, fabric.link_dst, fabric.link_bandwidth, fabric.link_count, fabric.link_latency)
    rows = list(zip(*(column.tolist() for column in columns), strict=True))
    for (source, target, bandwidth, count, seconds), reverse in zip(rows, back, strict=True):
        same = reverse >= 0 and rows[reverse][2:] == (bandwidth, count, seconds)
        if same and source > target:
            continue  # drawn with the link back
        label = f"{count} x {bandwidth / count * 8e-9:.6g} Gbps"
        arrow = "" if same else ", dir=forward"
        lines.append(f'  n{source} -> n{target} [label="{label}"{arrow}];')
    return ("\n".join([*lines, "}"]) + "\n").encode()
