"""A network that is one switch, which all hosts reach in the same way: what passes an interface needs no routes.

Data flow: `switch_links` finds the interfaces of hosts, `star` those of hosts of one device each.  Simulators give
`Interfaces` of them to the search (`topoplan_engine.search.lower_bounds`), and simulate one host for all like it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.cluster import Cluster
from topoplan.model.reconfigurable import AnyFabric
from topoplan_engine.distinct import distinct_values
from topoplan_engine.host_models import shares_links
from topoplan_engine.network.tables import Network

__all__ = ["HasInterfaces", "Interfaces", "Star", "star", "switch_links"]


class Star(NamedTuple):
    """(H,) the link that leaves each host, and the one that enters it."""

    up: I64
    down: I64


class Interfaces(NamedTuple):
    """The interfaces of devices that are the only ones of their hosts, on one switch.

    Attributes:
        up, down: (D,) link that leaves each device, and the one that enters it.
        bandwidth: (E,) bytes/s of all links of the network.
        guaranteed_bytes: of (n,) messages, how many bytes each sends at least over each interface that it passes, as
            (n,) float64.  Takes the bytes of messages as (n,) int64, and the members of all-reduces as (n,) int32, or
            none (0,) where the messages are transfers.
    """

    up: I64
    down: I64
    bandwidth: F64
    guaranteed_bytes: Callable[[I64, I32], F64]


@runtime_checkable
class HasInterfaces(Protocol):
    """A simulator that says what a message sends over interfaces, without routes."""

    def interfaces(self, fabric: AnyFabric, cluster: Cluster) -> Interfaces | None:
        """Return the interfaces of a network that is a star; None of another one.

        What messages send over them is what `topoplan.Simulate.link_seconds` says.
        """


def star(network: Network) -> Star | None:
    """Return the interfaces of the hosts if they, all equal and of one device, hang on one switch and nothing else."""
    cluster = network.cluster
    return switch_links(network) if cluster.n_devices == cluster.n_hosts else None


@functools.lru_cache(maxsize=16)
def switch_links(network: Network) -> Star | None:
    """Return the interfaces of the hosts if they, all equal, hang on one switch and nothing else."""
    fabric, cluster = network.fabric, network.cluster
    hosts = fabric.n_hosts
    if shares_links(cluster.host):
        return None
    if fabric.n_switches != 1 or fabric.n_links != 2 * hosts or fabric.routes is not None or fabric.rings:
        return None
    counts = np.bincount(cluster.device_host, minlength=hosts)
    if (counts != counts[0]).any() or (cluster.inside_bandwidth != cluster.inside_bandwidth[0]).any():
        return None
    up, down = np.flatnonzero(fabric.link_dst == hosts), np.flatnonzero(fabric.link_src == hosts)
    equal = all(
        len(distinct_values(column[links])) == 1
        for links in (up, down)
        for column in (fabric.link_bandwidth, fabric.link_latency)
    )
    if len(up) != hosts or not equal or (np.diff(cluster.device_host) < 0).any():
        return None
    return Star(up[np.argsort(fabric.link_src[up])], down[np.argsort(fabric.link_dst[down])])
