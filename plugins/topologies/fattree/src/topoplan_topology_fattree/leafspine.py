"""Two levels of switches, counted port by port: leaves that hosts join, and spines that join all leaves.

A switch has R ports, each as fast as one interface.  With i interfaces a host and oversubscription o, a leaf has
h = floor(R * o / (1 + o) / i) hosts and u = ceil(h * i / o) uplinks.  There are as few spines as have room for them:
every leaf has u / S links to each of S spines.  So a full tree without oversubscription has three ports for every
interface of a host: its own, and both ends of an uplink.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from topoplan import Cluster, Fabric, TopoplanError

__all__ = ["leaf_spine"]


@attrs.frozen
class _Shape:
    """Hosts and uplinks of a leaf, and spines."""

    hosts: int
    uplinks: int
    leaves: int
    spines: int


def leaf_spine(cluster: Cluster, radix: int, oversubscription: float, max_paths: int) -> Fabric:
    """Return the fabric; nodes are hosts, leaves, spines.

    Args:
        cluster: hosts fill leaves from the left, each with room for the host of most interfaces.
        radix: ports of a switch.
        oversubscription: host bandwidth over uplink bandwidth of a full leaf, exactly: uplinks are slower where whole
            ones would be too fast.
        max_paths: equal-cost paths of a pair.

    Raises:
        TopoplanError: a leaf has no room for one host, or spines none for all leaves.
    """
    interfaces = int(cluster.interfaces.max())
    shape = _shape(cluster.n_hosts, interfaces, radix, oversubscription)
    fastest = float(cluster.interface_bandwidth.max())
    host = np.arange(cluster.n_hosts)
    leaf = cluster.n_hosts + np.arange(shape.leaves)
    spine = cluster.n_hosts + shape.leaves + np.arange(shape.spines)
    up = np.stack([np.repeat(leaf, shape.spines), np.tile(spine, shape.leaves)], axis=1)
    links = np.concatenate([np.stack([host, leaf[host // shape.hosts]], axis=1), up])
    slowed = fastest * shape.hosts * interfaces / oversubscription / shape.uplinks
    parallel = shape.uplinks // max(shape.spines, 1)
    bandwidth = np.concatenate(
        [cluster.interfaces * cluster.interface_bandwidth, np.full(len(up), parallel * min(slowed, fastest))]
    )
    tree = Fabric.from_links(
        name="fattree",
        n_hosts=cluster.n_hosts,
        n_switches=shape.leaves + shape.spines,
        links=np.concatenate([links, links[:, ::-1]]),
        bandwidth=np.concatenate([bandwidth, bandwidth]),
        latency=cluster.latency,
        max_paths=max_paths,
        switching="packet",
    )
    lower = np.minimum(tree.link_src, tree.link_dst)
    count = np.append(cluster.interfaces, parallel)[np.minimum(lower, cluster.n_hosts)]
    return attrs.evolve(tree, link_count=count)


def _shape(hosts: int, interfaces: int, radix: int, oversubscription: float) -> _Shape:
    """Return the smallest tree with room for the hosts."""
    shape = _fit(hosts, interfaces, radix, oversubscription)
    if shape is not None:
        return shape
    fitting = radix
    while _fit(hosts, interfaces, fitting, oversubscription) is None:
        fitting *= 2
    raise TopoplanError(
        f"topology fattree: two levels of switches of {radix} ports have no room for {hosts} hosts of {interfaces} "
        f"interfaces (use radix={fitting}, or levels=3)"
    )


def _fit(hosts: int, interfaces: int, radix: int, oversubscription: float) -> _Shape | None:
    """Return the smallest tree of switches of so many ports; None where there is none."""
    down = int(radix * oversubscription / (1 + oversubscription) + 1e-9) // interfaces
    if hosts * interfaces <= radix:
        return _Shape(hosts, 1, 1, 0)  # one switch has room for all
    if down == 0:
        return None
    leaves = math.ceil(hosts / down)
    uplinks = min(max(1, math.ceil(down * interfaces / oversubscription - 1e-9)), radix - down * interfaces)
    for spines in range(1, uplinks + 1):
        if uplinks % spines == 0 and uplinks // spines * leaves <= radix:
            return _Shape(down, uplinks, leaves, spines)
    return None
