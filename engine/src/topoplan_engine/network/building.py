"""How commands get a topology's fabric: built, and refused where the cluster's hosts cannot have it.

And how much of its hosts a fabric uses, for reports.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import I64
from topoplan.errors import FabricError
from topoplan.model.cluster import Cluster
from topoplan.model.reconfigurable import AnyFabric
from topoplan.plugin.components import Topology, TopologyContext
from topoplan_engine.interfaces import ROUNDING, check_fabric, ends_at_hosts

__all__ = ["build_fabric", "host_links", "used_interfaces"]

_GBPS = 8e-9


def build_fabric(topology: Topology, context: TopologyContext) -> AnyFabric:
    """Build the fabric of a topology and check it.

    Raises:
        TopoplanError: the topology refuses, or its fabric is one that the cluster's hosts cannot have.
    """
    fabric = topology.build(context)
    try:
        check_fabric(fabric, context.cluster)
    except FabricError as error:
        raise error.of(getattr(topology, "who", f"topology {topology.name!r}")) from None
    return fabric


def used_interfaces(fabric: AnyFabric, cluster: Cluster) -> I64:
    """Return the (H,) interfaces that each host needs: the larger of what goes out and comes in, over all phases."""
    sides = []
    for wiring in fabric.wirings:
        for end in (wiring.link_src, wiring.link_dst):
            count, _, lanes = ends_at_hosts(wiring, end)
            sides.append(count + np.ceil(lanes / cluster.interface_bandwidth * (1 - ROUNDING)).astype(np.int64))
    most: I64 = np.max(sides, axis=0)
    return most


def host_links(fabric: AnyFabric, cluster: Cluster) -> str:
    """Say what a host has and the fabric uses of it: ``8 x 400 Gbps``, or ``1 of 8 x 400 Gbps``.

    Of hosts that differ it is the least and the most: ``2..4 x 25 Gbps``.  A fabric that was read and needs more than
    the hosts have says so: ``4 of 2 x 25 Gbps``.
    """
    used, available = used_interfaces(fabric, cluster), cluster.interfaces
    speed = _range(cluster.interface_bandwidth * _GBPS, ".6g")
    # An odd number of interfaces leaves one that no link can take.
    idle = int((available - used).max()) > (1 if int(available.sum()) % 2 else 0)
    share = f"{_range(used, 'd')} of " if idle or (used > available).any() else ""
    return f"{share}{_range(available, 'd')} x {speed} Gbps"


def _range(values: np.ndarray, form: str) -> str:
    low, high = (format(value, form) for value in (values.min(), values.max()))
    return low if low == high else f"{low}..{high}"
