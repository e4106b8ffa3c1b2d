"""Nodes and links of a host, added one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from topoplan import Device, HostLink, HostModel, HostNode

__all__ = ["HostBuilder"]


class HostBuilder:
    """A host that grows: nodes are numbers, in the order in which they are added.

    >>> host = HostBuilder()
    >>> gpus, switch = host.devices(2), host.add(HostNode.SWITCH)
    >>> host.link(gpus, [switch] * 2, bandwidth=450e9)
    >>> for gpu in gpus:
    ...     nic = host.nic(owners=[gpu])
    ...     host.link([gpu], [nic], bandwidth=63e9)
    >>> model = host.build(nic_bandwidth=50e9)
    >>> model.n_devices, model.n_nics, len(model.links), model.nic_owners
    (2, 2, 4, ((0,), (1,)))
    """

    def __init__(self) -> None:
        self._nodes: list[HostNode] = []
        self._links: list[HostLink] = []
        self._owners: list[tuple[int, ...]] = []

    def add(self, node: HostNode) -> int:
        """Add a node and return its number."""
        self._nodes.append(node)
        return len(self._nodes) - 1

    def devices(self, count: int) -> list[int]:
        """Add devices and return their numbers."""
        return [self.add(HostNode.DEVICE) for _ in range(count)]

    def nic(self, owners: Iterable[int] = ()) -> int:
        """Add a NIC of these devices, which are given by their numbers; of the host if there are none."""
        devices = [place for place, node in enumerate(self._nodes) if node is HostNode.DEVICE]
        self._owners.append(tuple(devices.index(owner) for owner in owners))
        return self.add(HostNode.NIC)

    def link(self, firsts: Iterable[int], seconds: Iterable[int], bandwidth: float, latency: float = 0.0) -> None:
        """Join each of some nodes to its partner; bytes/s each way, and seconds one way."""
        pairs = zip(firsts, seconds, strict=True)
        self._links += [HostLink(first, second, bandwidth, latency) for first, second in pairs]

    def build(
        self,
        device: Device | None = None,
        *,
        nic_bandwidth: float = 0.0,
        cross_rail: Literal["nvlink", "fabric"] = "nvlink",
        servers: int | None = None,
        sources: tuple[str, ...] = (),
    ) -> HostModel:
        """Return the host; see `topoplan.HostModel` for what else it has."""
        return HostModel(
            device=device,
            nodes=tuple(self._nodes),
            links=tuple(self._links),
            nic_bandwidth=nic_bandwidth,
            nic_owners=tuple(self._owners),
            cross_rail=cross_rail,
            servers=servers,
            sources=sources,
        )
