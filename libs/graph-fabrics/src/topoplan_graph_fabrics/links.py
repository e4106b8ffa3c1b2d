"""From pairs of nodes to a fabric: bandwidth, cables and kinds of links, for hosts of any interfaces.

Pairs are columns of nodes that are joined both ways; a pair that occurs several times is so many parallel links.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import ArrayLike

from topoplan import Cluster, Fabric, LinkKind, TopoplanError

__all__ = ["at_switches", "limit_links", "share_interfaces"]

#: Pairs of nodes that may be joined: those of 1,448 hosts that are all joined to each other, or of 131,072 with 16.
_MOST_LINKS = 2**20


def limit_links(topology: str, links: int, options: str) -> None:
    """Refuse a network of very many links before they are written down; each takes some microseconds and 100 bytes.

    Args:
        topology: its name.
        links: pairs of nodes that it joins.
        options: that say how many, and their values.

    Raises:
        TopoplanError: there are more than 1,048,576.

    >>> limit_links("mesh", 2**22, "2897 hosts")
    Traceback (most recent call last):
    topoplan.errors.TopoplanError: topology mesh: 2897 hosts are 4194304 links (expected at most 1048576)
    """
    if links > _MOST_LINKS:
        raise TopoplanError(f"topology {topology}: {options} are {links} links (expected at most {_MOST_LINKS})")


def share_interfaces(
    name: str,
    cluster: Cluster,
    pairs: ArrayLike,
    *,
    n_switches: int = 0,
    inside: ArrayLike = False,
    max_paths: int = 1,
) -> Fabric:
    """Return a fabric whose hosts divide the bandwidth of their interfaces evenly among their links.

    If all hosts have as many interfaces and links, and the former are a multiple of the latter, a link has whole
    interfaces, else lanes of them.  A link between two hosts has the smaller of their shares; switches are as fast as
    the hosts that join them.

    Args:
        name: of the fabric.
        cluster: its hosts.
        pairs: (k, 2) nodes that are joined, hosts before switches; at least one of each pair is a host.
        n_switches: number of switches.
        inside: (k,) or one, whether the link joins hosts in one rack (`LinkKind.INSIDE`) and takes no interface.
        max_paths: equal-cost paths of a pair of hosts.

    >>> ring = share_interfaces("ring", Cluster.uniform(n_hosts=3, interface_bandwidth=1e9), [(0, 1), (1, 2), (2, 0)])
    >>> ring.link_count.tolist(), ring.link_bandwidth.tolist()  # of four interfaces two for each neighbour
    ([2, 2, 2, 2, 2, 2], [2000000000.0, 2000000000.0, 2000000000.0, 2000000000.0, 2000000000.0, 2000000000.0])
    """
    ends = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    hosts, interfaces = cluster.n_hosts, cluster.interfaces
    links = np.bincount(ends.ravel(), minlength=hosts + n_switches)[:hosts]
    most = max(int(links.max(initial=0)), 1)
    uniform = bool((links == most).all() and (interfaces == interfaces[0]).all())
    has_own_interfaces = uniform and int(interfaces[0]) % most == 0
    share = np.full(hosts + n_switches, np.inf)
    share[:hosts] = interfaces * cluster.interface_bandwidth / np.maximum(links, 1)
    bandwidth = np.minimum(share[ends[:, 0]], share[ends[:, 1]])
    of_network = LinkKind.NETWORK if has_own_interfaces else LinkKind.LANE
    kind = np.where(np.broadcast_to(inside, len(ends)), LinkKind.INSIDE, of_network)
    fabric = Fabric.from_links(
        name=name,
        n_hosts=hosts,
        n_switches=n_switches,
        links=np.concatenate([ends, ends[:, ::-1]]),
        bandwidth=np.tile(bandwidth, 2),
        latency=cluster.latency,
        kind=np.tile(kind, 2),
        max_paths=max_paths,
        rings_along_links=not n_switches,
        switching="packet",
    )
    return (
        attrs.evolve(fabric, link_count=fabric.link_count * (interfaces[0] // most)) if has_own_interfaces else fabric
    )


def at_switches(
    name: str,
    cluster: Cluster,
    switch_of_host: ArrayLike,
    pairs: ArrayLike,
    *,
    n_switches: int,
    speed: float = 1.0,
    max_paths: int = 1,
) -> Fabric:
    """Return a fabric whose hosts join one switch each, with all of their interfaces as parallel links.

    A link between switches is as fast as the host with the most bandwidth, times ``speed``, and as many cables: such a
    bundle takes one port of a switch.

    Args:
        name: of the fabric.
        cluster: its hosts.
        switch_of_host: (hosts,) the switch of each, from 0.
        pairs: (k, 2) switches that are joined, from 0.
        n_switches: number of switches.
        speed: bandwidth of a link between switches over that of the fastest host.
        max_paths: equal-cost paths of a pair of hosts.

    >>> two = at_switches("two", Cluster.uniform(n_hosts=2, interface_bandwidth=1e9), [0, 1], [(0, 1)], n_switches=2)
    >>> two.n_links, two.link_count.tolist()
    (6, [4, 4, 4, 4, 4, 4])
    """
    hosts = cluster.n_hosts
    between = np.asarray(pairs, dtype=np.int64).reshape(-1, 2) + hosts
    joins = np.stack([np.arange(hosts), np.asarray(switch_of_host, dtype=np.int64) + hosts], axis=1)
    host_bandwidth = cluster.interfaces * cluster.interface_bandwidth
    widest = int(host_bandwidth.argmax())
    ends = np.concatenate([joins, between])
    bandwidth = np.concatenate([host_bandwidth, np.full(len(between), host_bandwidth[widest] * speed)])
    fabric = Fabric.from_links(
        name=name,
        n_hosts=hosts,
        n_switches=n_switches,
        links=np.concatenate([ends, ends[:, ::-1]]),
        bandwidth=np.tile(bandwidth, 2),
        latency=cluster.latency,
        max_paths=max_paths,
        switching="packet",
    )
    lower = np.minimum(np.minimum(fabric.link_src, fabric.link_dst), hosts)
    cables = np.append(cluster.interfaces, cluster.interfaces[widest])[lower]
    return attrs.evolve(fabric, link_count=fabric.link_count * cables)
