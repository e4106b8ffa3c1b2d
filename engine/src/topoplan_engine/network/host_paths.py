"""Paths inside a host: between its devices, and from devices to network interfaces (NICs) and back.

Data flow: a `topoplan.HostModel` goes in; `host_paths` finds the links on the way of any two of its devices and NICs,
and which NICs a device leaves by.  `topoplan_engine.network.machine` puts them before and behind paths of the fabric.
"""

from __future__ import annotations

import functools
import heapq
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64, f64, i32, i64
from topoplan.errors import TopoplanError
from topoplan.model.machine import HostModel, HostNode

__all__ = ["HostPaths", "host_paths"]

#: Bytes of the message that decides which way inside a host is the fastest.
_MESSAGE = float(1 << 20)


class HostPaths(NamedTuple):
    """Ways inside a host; its endpoints are the devices, then the NICs.

    Attributes:
        n_devices, n_nics: how many there are.
        bandwidth, latency: (E,) of the links that some way takes, one for each direction.
        ends: (E, 2) nodes of the host that they lead from and to.
        ptr, links: compressed rows: the links from endpoint ``a`` to ``b`` are those of row ``a * endpoints + b``.
        own_ptr, own_nics: compressed rows: the NICs that each device leaves by.
    """

    n_devices: int
    n_nics: int
    bandwidth: F64
    latency: F64
    ends: I32
    ptr: I64
    links: I32
    own_ptr: I64
    own_nics: I32

    @property
    def n_endpoints(self) -> int:
        """Devices and NICs together."""
        return self.n_devices + self.n_nics


@functools.lru_cache(maxsize=16)
def host_paths(model: HostModel) -> HostPaths:
    """Return the fastest ways inside a host, for a message of a MiB; of equal ones that with the fewest links.

    Of these, one to a NIC leads over a device that it belongs to.  Other devices may be on the way (NVLink to the GPU
    beside a NIC), NICs may not.

    Raises:
        TopoplanError: two of its devices, or a device and a NIC, are not joined.

    >>> from topoplan import HostLink, HostModel, HostNode
    >>> gpu, nic = HostNode.DEVICE, HostNode.NIC
    >>> links = (HostLink(0, 1, 450e9), HostLink(0, 2, 63e9), HostLink(1, 3, 63e9))
    >>> model = HostModel(device=None, nodes=(gpu, gpu, nic, nic), links=links, nic_bandwidth=50e9,
    ...                   nic_owners=((0,), (1,)))
    >>> ways = host_paths(model)
    >>> to_other_nic = ways.links[ways.ptr[0 * 4 + 3] : ways.ptr[0 * 4 + 4]]
    >>> [tuple(ends) for ends in ways.ends[to_other_nic].tolist()], ways.own_nics.tolist()
    ([(0, 1), (1, 3)], [0, 1])
    """
    devices = [place for place, node in enumerate(model.nodes) if node is HostNode.DEVICE]
    nics = [place for place, node in enumerate(model.nodes) if node is HostNode.NIC]
    ends = [(link.first, link.second) for link in model.links] + [(link.second, link.first) for link in model.links]
    rates = [link.bandwidth for link in model.links] * 2
    delays = [link.latency for link in model.links] * 2
    leaving: list[list[tuple[int, int, float]]] = [[] for _ in model.nodes]
    for number, (first, second) in enumerate(ends):
        leaving[first].append((number, second, delays[number] + _MESSAGE / rates[number]))
    endpoints = [*devices, *nics]
    ways: list[list[int]] = []
    seconds = np.zeros((len(endpoints), len(endpoints)))
    for row, source in enumerate(endpoints):
        cost, last = _fastest(model, leaving, source)
        for column, target in enumerate(endpoints):
            if target not in cost:
                kinds = [f"{model.nodes[node]} {node}" for node in (source, target)]
                raise TopoplanError(f"machine: no links lead from {kinds[0]} to {kinds[1]} of a host (join them)")
            seconds[row, column] = cost[target]
            way = []
            while target != source:
                way.append(last[target])
                target = ends[last[target]][0]
            ways.append(way[::-1])
    _over_owners(model, ways, seconds)
    used = sorted({number for way in ways for number in way})
    place = {number: new for new, number in enumerate(used)}
    own_nics = [_own(model, device, seconds[device, len(devices) :]) for device in range(len(devices))]
    return HostPaths(
        n_devices=len(devices),
        n_nics=len(nics),
        bandwidth=f64([rates[number] for number in used]),
        latency=f64([delays[number] for number in used]),
        ends=i32(np.array([ends[number] for number in used]).reshape(-1, 2)),
        ptr=i64(np.cumsum([0, *map(len, ways)])),
        links=i32([place[number] for way in ways for number in way]),
        own_ptr=i64(np.cumsum([0, *map(len, own_nics)])),
        own_nics=i32([nic for each in own_nics for nic in each]),
    )


def _fastest(
    model: HostModel, leaving: list[list[tuple[int, int, float]]], source: int
) -> tuple[dict[int, float], dict[int, int]]:
    """Return the seconds to all nodes that a source reaches, and the last link on the way to each (Dijkstra)."""
    cost: dict[int, float] = {}
    last: dict[int, int] = {}
    queue: list[tuple[float, int, int, int]] = [(0.0, 0, source, -1)]
    while queue:
        total, hops, node, link = heapq.heappop(queue)
        if node in cost:
            continue
        cost[node], last[node] = total, link
        if model.nodes[node] is HostNode.NIC and node != source:
            continue
        for number, target, more in leaving[node]:
            if target not in cost:
                heapq.heappush(queue, (total + more, hops + 1, target, number))
    return cost, last


def _over_owners(model: HostModel, ways: list[list[int]], seconds: F64) -> None:
    """Lead ways between a device and a NIC of others over one of these, of those that are equally fast and short.

    Two GPUs and two NICs below one PCIe switch are equally near.  The GPU on the rail of a NIC passes on what goes
    there, as with NCCL's PXN, so that messages to both NICs share no link.
    """
    count, n_devices = len(seconds), model.n_devices
    for nic, owners in enumerate(model.nic_owners, n_devices):
        for device in range(n_devices):
            if not owners or device in owners:
                continue
            for source, target in ((device, nic), (nic, device)):
                links = ways[source * count + target]
                for owner in owners:
                    way = ways[source * count + owner] + ways[owner * count + target]
                    duration = seconds[source, owner] + seconds[owner, target]
                    if len(way) <= len(links) and duration <= seconds[source, target] * (1 + 1e-9):
                        ways[source * count + target] = way
                        break


def _own(model: HostModel, device: int, seconds: F64) -> list[int]:
    """Return the NICs that a device leaves by: those that belong to it, else the host's, the nearest of them."""
    owners = model.nic_owners or ((),) * model.n_nics
    nics = [nic for nic, owner in enumerate(owners) if device in owner]
    nics = nics or [nic for nic, owner in enumerate(owners) if not owner] or list(range(len(owners)))
    least_seconds = min((seconds[nic] for nic in nics), default=0.0)
    return [nic for nic in nics if seconds[nic] <= least_seconds * (1 + 1e-9)]
