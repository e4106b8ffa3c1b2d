"""The machine as DAPPLE's planner sees it: devices on hosts, and what transfers and all-reduces cost on it.

Formulas are those of HPGO's released code (AlibabaPAI/DAPPLE; HPGO 0.9.2): linear in the bytes, without latency.
HPGO has its bandwidths built in; here they are part of the value, with HPGO's as `RELEASED`.  Devices are tuples of
numbers, ascending; ``nbytes`` may be an array, and the seconds then are one.
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
    """Bytes/s: between two devices of one host; of a host's transfers; of all-reduces between hosts."""

    inside: float
    transfer: float
    allreduce: float

    @classmethod
    def of(cls, cluster: Cluster) -> Bandwidths:
        """Return those of a cluster: of its slowest host, all interfaces together."""
        outside = float((cluster.interfaces * cluster.interface_bandwidth).min())
        return cls(inside=float(cluster.inside_bandwidth.min()), transfer=outside, allreduce=outside)


#: What HPGO has built in: NVLink, and 25 Gb/s Ethernet as its authors measured it (gRPC transfers, NCCL).
RELEASED = Bandwidths(inside=25e9, transfer=1e9, allreduce=3e9)


@attrs.frozen(kw_only=True)
class Machine:
    """``host[d]`` is the host of device ``d``; hosts are numbered from 0, their devices one after the other."""

    host: tuple[int, ...]
    bandwidths: Bandwidths = RELEASED

    @classmethod
    def split(cls, separators: Sequence[int], bandwidths: Bandwidths = RELEASED) -> Machine:
        """Make a machine from where each host's devices end: ``[8, 16]`` is two hosts of eight.

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
        """Return the seconds of summing ``nbytes`` over devices: a ring, or half as many as devices inside a host."""
        count = len(devices)
        if count == 1:
            return nbytes * 0.0
        moved = 2 * nbytes * (count - 1) / count
        if self.crosses(devices):
            return moved / self.bandwidths.allreduce
        return moved / self.bandwidths.inside / (count // 2)

    def transfer(self, source: Devices, target: Devices, nbytes: Bytes) -> Bytes:
        """Return the seconds of sending ``nbytes``, spread evenly over ``source``, to ``target``.

        Into one host, what comes from other hosts shares its network; among several hosts HPGO takes the
        bandwidth of all-reduces.
        """
        if self.crosses(target):
            ends = (min(source[0], target[0]), max(source[-1], target[-1]))
            return nbytes / (self.bandwidths.allreduce if self.crosses(ends) else self.bandwidths.inside)
        foreign = sum(self.host[device] != self.host[target[0]] for device in source)
        if not foreign:
            return nbytes / self.bandwidths.inside
        return nbytes / len(source) * foreign / self.bandwidths.transfer
