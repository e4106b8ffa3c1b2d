"""The cluster: hosts with devices, memory, an inside bandwidth and network interfaces.

Columns, one row per device or per host, so that devices may differ in speed and memory and hosts in
degree and bandwidth.  Units are seconds, bytes, bytes/s and FLOP/s; the command line converts.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

import attrs
import numpy as np

from topoplan.arrays import ARRAY_EQ, F64, I32, FrozenMapping, OneLine, digest, f64, i32
from topoplan.errors import TopoplanError, shown
from topoplan.model.fabric import FASTEST, LONGEST_LATENCY, SLOWEST
from topoplan.model.machine import Device, HostModel, nearest_device

__all__ = ["Cluster"]

_MOST_GPUS = 1_000_000
#: Largest share of memory that is kept free.
_MOST_RESERVED = 0.99


@attrs.frozen(kw_only=True, repr=False)
class Cluster(OneLine):
    """Hosts and devices.

    Attributes:
        device_host: (D,) int32, host of each device; ascending.
        device_preset: (D,) name of the kind of each device, e.g. ``A100-40``; see `device`.
        device_speed: (D,) factor on the speed of its preset; 0.5 takes twice as long.
        device_memory: (D,) bytes.
        memory_reserve: share of every device's memory that no plan may fill: for the context, communication buffers and
            fragmentation of the allocator; see `usable_memory`.
        inside_bandwidth: (H,) bytes/s of the link of one GPU to the switch inside its host, each way.
        interfaces: (H,) int32, network interfaces of each host (its degree).
        interface_bandwidth: (H,) bytes/s of one interface.
        latency: seconds per network link, one way.
        gpus_per_device: GPUs that one device stands for: a gradient is first summed among them inside the host.  1 says
            that a device is one GPU.
        host: what is inside each host, where that is modelled; None where a host is one endpoint with a switch inside.
        machines: what is known of kinds of device and of the hosts that hold them, by name in lower case: of those of
            the cluster, and of others.  No part of the cluster's identity, and in no file.
    """

    device_host: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    device_preset: tuple[str, ...]
    device_speed: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    device_memory: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    inside_bandwidth: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    interfaces: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    interface_bandwidth: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    latency: float = 0.0
    gpus_per_device: int = 1
    memory_reserve: float = 0.0
    host: HostModel | None = None
    machines: Mapping[str, HostModel] = attrs.field(factory=dict, converter=FrozenMapping, eq=False, repr=False)

    @functools.cached_property
    def key(self) -> bytes:
        """Value key: two clusters are equal iff their keys are."""
        return digest([self])

    def __attrs_post_init__(self) -> None:
        hosts, devices = len(self.interfaces), len(self.device_host)
        if hosts < 1 or devices < 1:
            raise TopoplanError(f"cluster: {hosts} hosts with {devices} devices (at least one of each)")
        if (np.diff(self.device_host) < 0).any() or set(self.device_host.tolist()) != set(range(hosts)):
            raise TopoplanError("cluster: device_host must be ascending and every host needs a device")
        for field, rows, low, high, unit in (
            ("device_speed", devices, 1e-6, 1e6, ""),
            ("device_memory", devices, 1.0, 1e18, "bytes "),
            ("inside_bandwidth", hosts, SLOWEST, FASTEST, "bytes/s "),
            ("interfaces", hosts, 1, 2**31 - 1, ""),
            ("interface_bandwidth", hosts, SLOWEST, FASTEST, "bytes/s "),
        ):
            column = getattr(self, field)
            if len(column) != rows:
                raise TopoplanError(f"cluster: {field} has {len(column)} rows, not {rows}")
            bad = np.flatnonzero(~((column >= low) & (column <= high)))  # what is no number is bad, too
            if len(bad):
                value = f"{column[bad[0]]} {unit}(must be {low:g} to {high:g})"
                raise TopoplanError(f"cluster: {field}[{bad[0]}] is {value}")
        if len(self.device_preset) != devices:
            raise TopoplanError(f"cluster: {len(self.device_preset)} device presets for {devices} devices")
        if self.host is not None:
            counts, most = np.bincount(self.device_host), self.host.n_nics or np.inf
            if (counts != self.host.n_devices).any() or (self.interfaces > most).any():
                devices_of = "..".join(map(str, np.unique([counts.min(), counts.max()])))
                raise TopoplanError(
                    f"cluster: hosts of {devices_of} devices and up to {self.interfaces.max()} interfaces, but their "
                    f"machine has {self.host.n_devices} devices and {most} NICs"
                )
        if not 0 <= self.latency <= LONGEST_LATENCY:
            raise TopoplanError(f"cluster: latency {self.latency} s must be 0 to {LONGEST_LATENCY:g}")
        if not 1 <= self.gpus_per_device <= _MOST_GPUS:
            raise TopoplanError(f"cluster: gpus_per_device {shown(self.gpus_per_device)} must be 1 to {_MOST_GPUS}")
        if not 0 <= self.memory_reserve <= _MOST_RESERVED:
            share = shown(self.memory_reserve)
            raise TopoplanError(f"cluster: memory_reserve {share} (a share) must be 0 to {_MOST_RESERVED}")

    @classmethod
    def uniform(
        cls,
        *,
        n_hosts: int,
        devices_per_host: int = 1,
        device_preset: str = "A100-40",
        device_memory: float = 40e9,
        inside_bandwidth: float = 300e9,
        interfaces: int = 4,
        interface_bandwidth: float = 12.5e9,
        latency: float = 1e-6,
        gpus_per_device: int = 1,
        memory_reserve: float = 0.0,
    ) -> Cluster:
        """Make a cluster of equal hosts.  Bandwidths in bytes/s, latency in seconds, memory in bytes."""
        if n_hosts < 1 or devices_per_host < 1:
            raise TopoplanError(f"cluster: {n_hosts} hosts with {devices_per_host} devices each (at least one of each)")
        devices = n_hosts * devices_per_host
        return cls(
            device_host=np.repeat(np.arange(n_hosts), devices_per_host),
            device_preset=(device_preset,) * devices,
            device_speed=np.ones(devices),
            device_memory=np.full(devices, device_memory),
            inside_bandwidth=np.full(n_hosts, inside_bandwidth),
            interfaces=np.full(n_hosts, interfaces),
            interface_bandwidth=np.full(n_hosts, interface_bandwidth),
            latency=latency,
            gpus_per_device=gpus_per_device,
            memory_reserve=memory_reserve,
        )

    @property
    def usable_memory(self) -> F64:
        """(D,) bytes that a plan may fill on each device: its memory without the reserve.

        >>> Cluster.uniform(n_hosts=1, device_memory=80e9, memory_reserve=0.08).usable_memory.tolist()
        [73600000000.0]
        """
        return f64(self.device_memory * (1 - self.memory_reserve))

    def device(self, name: str) -> Device:
        """Return what is known of a kind of device; upper and lower case are the same.

        Raises:
            TopoplanError: nothing is known of it; the message names the nearest one or all of them.
        """
        machine = self.machines.get(name.lower())
        if machine is None or machine.device is None:
            names = sorted({model.device.name for model in self.machines.values() if model.device is not None})
            have = nearest_device(name.upper(), names) if names else " here (topoplan_engine.build_cluster knows them)"
            raise TopoplanError(f"device {name!r}: no such machine{have}")
        return machine.device

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return len(self.interfaces)

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.device_host)
