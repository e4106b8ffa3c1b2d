"""DAPPLE's model of the cluster: devices on hosts, and the times of transfers and all-reduces.

The formulas are those of HPGO's released code (AlibabaPAI/DAPPLE; HPGO 0.9.2): linear in the bytes, without latency.
HPGO has built-in bandwidths (`RELEASED`); here they are part of the value.  Devices are tuples of ascending numbers.
If ``nbytes`` is an array, so are the seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import attrs

from topoplan import Cluster, TopoplanError
from topoplan.arrays import F64

__all__ = ["RELEASED", "Bandwidths", "Devices", "Machine"]

#: Device numbers, ascending.
Devices = tuple[int, ...]

Bytes = TypeVar("Bytes", float, F64)


@attrs.frozen(kw_only=True)
class Bandwidths:
    """Bytes/s between two devices of one host, of transfers between hosts, and of all-reduces between hosts."""

    inside: float
    transfer: float
    allreduce: float

    @classmethod
    def of(cls, cluster: Cluster) -> Bandwidths:
        """Return the bandwidths of a cluster: those of its slowest host, all interfaces together."""
        outside = float((cluster.interfaces * cluster.interface_bandwidth).min())
        return cls(inside=float(cluster.inside_bandwidth.min()), transfer=outside, allreduce=outside)


#: HPGO's built-in bandwidths: NVLink, and its authors' measurements on 25 Gb/s Ethernet (gRPC transfers, NCCL).
RELEASED = Bandwidths(inside=25e9, transfer=1e9, allreduce=3e9)


@attrs.frozen(kw_only=True)
class Machine:
    """``host[d]`` is the host of device ``d``; hosts are numbered from 0, their devices one after the other."""

    host: tuple[int, ...]
    bandwidths: Bandwidths = RELEASED

    @classmethod
    def split(cls, separators: Sequence[int], bandwidths: Bandwidths = RELEASED) -> Machine:
        """Return the machine whose hosts' devices end at ``separators``: ``[8, 16]`` means two hosts of eight.

        Raises:
            TopoplanError: the ends do not ascend from 1 on.
        """
        host: list[int] = []
        for number, end in enumerate(separators):
            if end <= len(host):
                raise TopoplanError(
                    f"devices {list(separators)}: host {number} ends at {end}, before it has a device "
                    f"(where each host's devices end, ascending: 8,16 is two hosts of eight)"
                )
            host += [number] * (end - len(host))
        if not host:
            raise TopoplanError("devices: no host (where each host's devices end: 8,16 is two hosts of eight)")
        return cls(host=tuple(host), bandwidths=bandwidths)

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.host)

    def crosses(self, devices: Devices) -> bool:
        """Say whether the first and the last of these devices are on different hosts."""
        return self.host[devices[0]] != self.host[devices[-1]]

    def allreduce(self, devices: Devices, nbytes: Bytes) -> Bytes:
        """Return the seconds to all-reduce ``nbytes``: one ring, or inside a host half as many rings as devices."""
        count = len(devices)
        if count == 1:
            return nbytes * 0.0
        sent_bytes = 2 * nbytes * (count - 1) / count
        if self.crosses(devices):
            return sent_bytes / self.bandwidths.allreduce
        return sent_bytes / self.bandwidths.inside / (count // 2)

    def transfer(self, source: Devices, target: Devices, nbytes: Bytes) -> Bytes:
        """Return the seconds to send ``nbytes``, evenly divided over ``source``, to ``target``.

        If ``target`` is on one host, data from other hosts shares the network of that host.  If it is on several hosts,
        HPGO uses the bandwidth of all-reduces.
        """
        if self.crosses(target):
            ends = (min(source[0], target[0]), max(source[-1], target[-1]))
            return nbytes / (self.bandwidths.allreduce if self.crosses(ends) else self.bandwidths.inside)
        foreign = sum(self.host[device] != self.host[target[0]] for device in source)
        if not foreign:
            return nbytes / self.bandwidths.inside
        return nbytes / len(source) * foreign / self.bandwidths.transfer
