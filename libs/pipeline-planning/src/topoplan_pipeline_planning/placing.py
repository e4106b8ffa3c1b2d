"""Placement of stages: the three policies of DAPPLE (Fan et al., PPoPP 2021, section 4) as in HPGO.

*Fresh first* takes unused hosts, *append first* partly used hosts, *scatter first* one device of each host in turn.  A
policy depends only on the set of used devices and returns a set of devices.  Two policies may return the same set.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from topoplan.search.stopping import stop_if_wanted
from topoplan_pipeline_planning.machine import Devices, Machine

__all__ = ["placements", "replicated_placements"]

_Hosts = tuple[tuple[Devices, bool], ...]


def placements(machine: Machine, occupied: frozenset[int], need: int) -> tuple[Devices, ...]:
    """Return the different sets of ``need`` free devices that the policies choose: fresh first, append, scatter.

    Empty if fewer devices are free.
    """
    return _placements(machine.host, occupied, need)


def replicated_placements(machine: Machine, occupied: frozenset[int], replicas: int) -> tuple[Devices, ...]:
    """Place one device for each replica, in all combinations of policies; return the different unions.

    Of a single device, *scatter first* chooses what one of the others does: it is the first free device of all, which
    is the first one of unused hosts or of used ones.  So a union is a set of bits, and a policy the lowest bit of some.
    """
    return _replicated(machine.host, occupied, replicas)


@functools.lru_cache(maxsize=4096)
def _replicated(host: tuple[int, ...], occupied: frozenset[int], replicas: int) -> tuple[Devices, ...]:
    bits_of_host = _bits_of_hosts(host)
    is_free = np.ones(len(host), dtype=np.bool_)
    is_free[list(occupied)] = False
    free = int.from_bytes(np.packbits(is_free, bitorder="little").tobytes(), "little")
    on_used = sum(set(map(bits_of_host.__getitem__, occupied)))
    #: For each union the devices that are left, and all devices of used hosts.
    unions = {free: on_used}
    for _ in range(replicas):
        stop_if_wanted()
        longer: dict[int, int] = {}
        for mask, used in unions.items():
            for allowed in (mask & ~used, mask & used):
                if allowed:
                    device = allowed & -allowed
                    longer.setdefault(mask & ~device, used | bits_of_host[device.bit_length() - 1])
        unions = longer
    return tuple(tuple(_set_bits(free & ~mask)) for mask in unions)


@functools.lru_cache(maxsize=64)
def _bits_of_hosts(host: tuple[int, ...]) -> tuple[int, ...]:
    """Return for each device the bits of all devices of its host."""
    bits: dict[int, int] = {}
    for device, position in enumerate(host):
        bits[position] = bits.get(position, 0) | 1 << device
    return tuple(bits[position] for position in host)


def _set_bits(mask: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set, the lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


@functools.lru_cache(maxsize=4096)
def _placements(host: tuple[int, ...], occupied: frozenset[int], need: int) -> tuple[Devices, ...]:
    stop_if_wanted()
    free_devices: dict[int, list[int]] = {}
    used_hosts = {host[device] for device in occupied}
    for device, position in enumerate(host):
        if device not in occupied:
            free_devices.setdefault(position, []).append(device)
    hosts: _Hosts = tuple((tuple(devices), position in used_hosts) for position, devices in free_devices.items())
    policies: Iterable[Callable[[_Hosts], Devices]] = (_fresh_first, _append_first, _scatter_first)
    variants = (policy(hosts)[:need] for policy in policies)
    return tuple(dict.fromkeys(tuple(sorted(devices)) for devices in variants if len(devices) == need))


def _fresh_first(hosts: _Hosts) -> Devices:
    return tuple(device for devices, used in hosts if not used for device in devices)


def _append_first(hosts: _Hosts) -> Devices:
    return tuple(device for devices, used in hosts if used for device in devices)


def _scatter_first(hosts: _Hosts) -> Devices:
    rounds = max((len(devices) for devices, _ in hosts), default=0)
    return tuple(devices[turn] for turn in range(rounds) for devices, _ in hosts if turn < len(devices))
