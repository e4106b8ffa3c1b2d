"""Problems that tests search: a model on hosts around one switch."""

from __future__ import annotations

from topoplan import Fabric, Problem
from topoplan_engine.search.space import Space


def star_problem(graph, cluster, costs, bandwidth=1e9, latency=0.0):
    """Return the problem of placing a model on hosts around one switch, with links of so many bytes/s and seconds."""
    hosts = range(cluster.n_hosts)
    switch = len(hosts)
    links = [(host, switch) for host in hosts] + [(switch, host) for host in hosts]
    star = Fabric.from_links(
        name="star", n_hosts=len(hosts), n_switches=1, links=links, bandwidth=bandwidth, latency=latency
    )
    return Problem(
        graph=graph,
        cluster=cluster,
        costs=costs,
        space=Space(graph, cluster, costs),
        topology="star",
        build_fabric=lambda demand, rng: star,
        reconfigurable=False,
    )
