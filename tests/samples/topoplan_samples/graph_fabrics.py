"""Fabrics on graphs that tests of topologies share: built for a number of hosts, and counted by networkx."""

from __future__ import annotations

import networkx as nx
import numpy as np

from topoplan import Cluster, TopologyContext
from topoplan.options import structure

__all__ = ["counts", "made"]


def made(topology, count, /, interfaces=4, **options):
    """Build a topology for hosts with so many interfaces."""
    cluster = Cluster.uniform(n_hosts=count, interfaces=interfaces, interface_bandwidth=1e9, latency=1e-6)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    return structure(topology, options, f"topology {topology.name}").build(context)


def counts(fabric):
    """Hosts, switches, links, links between switches, diameters of hosts and of switches, mean distance of hosts."""
    graph = fabric.to_networkx().to_undirected()
    distances = dict(nx.all_pairs_shortest_path_length(graph))
    hosts = range(fabric.n_hosts)
    between = [distances[a][b] for a in hosts for b in hosts if a < b]
    switches = graph.subgraph(range(fabric.n_hosts, fabric.n_nodes))
    diameter = nx.diameter(switches) if nx.is_connected(switches) else None
    row = fabric.n_hosts, fabric.n_switches, graph.number_of_edges(), switches.number_of_edges()
    return *row, max(between), diameter, round(float(np.mean(between)), 6)
