"""Networks for programs that read links alone: ns-3's link file and Graphviz."""

from __future__ import annotations

import warnings

from topoplan import Fabric
from topoplan.errors import TopoplanWarning
from topoplan_network_files.cables import both_ways, node_name

__all__ = ["write_dot", "write_ns3"]


def write_ns3(fabric: Fabric) -> bytes:
    """Write the topology file of HPCC's ns-3 simulator.

    Its lines: the numbers of nodes, switches and links; the switches; then for every cable both nodes, rate, delay and
    error rate (``simulation/mix/topology.txt`` of alibaba-edu/High-Precision-Congestion-Control at 9f4be2a).  Hosts
    have the numbers that they have here, and switches follow.

    Raises:
        TopoplanError: a link has none back of the same rate, latency and count.
    """
    cables = both_ways(fabric, "ns3")
    if fabric.routes is not None:
        note = f"ns3: the format cannot say explicit routes of fabric {fabric.name!r}; left out"
        warnings.warn(TopoplanWarning(note), stacklevel=2)
    links = [
        f"{cable.first} {cable.second} {round(cable.bandwidth * 8)}bps {cable.latency * 1e9:.12g}ns 0"
        for cable in cables
        for _ in range(cable.count)
    ]
    switches = " ".join(map(str, range(fabric.n_hosts, fabric.n_nodes)))
    return "\n".join([f"{fabric.n_nodes} {fabric.n_switches} {len(links)}", switches, *links, ""]).encode()


def write_dot(fabric: Fabric) -> bytes:
    """Write a drawing for Graphviz: hosts and switches, and links with their rate; a pair of links is one line."""
    lines = ["digraph network {", "  layout=neato; overlap=false;", "  node [shape=circle];", "  edge [dir=both];"]
    for node in range(fabric.n_nodes):
        shape = "" if node < fabric.n_hosts else ", shape=box"
        lines.append(f'  n{node} [label="{node_name(fabric, node)}"{shape}];')
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
