"""Which devices a stage gets: the three policies of DAPPLE (Fan et al., PPoPP 2021, section 4) as HPGO has them.

*Fresh first* takes hosts that nobody uses yet, *append first* hosts that are used in part, *scatter first* one device
of each host in turn.  The policies see only which devices are taken, so what they return is a set of devices;
two policies may agree.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from topoplan_pipeline_planning.machine import Devices, Machine

__all__ = ["placements", "replicated_placements"]

_Hosts = tuple[tuple[Devices, bool], ...]


def placements(machine: Machine, used: frozenset[int], need: int) -> tuple[Devices, ...]:
    """Return the different sets of ``need`` free devices that the policies choose, fresh first, then append, scatter.

    Empty where fewer devices are free.
    """
    return _placements(machine.host, used, need)


def replicated_placements(machine: Machine, used: frozenset[int], need: int, replicas: int) -> tuple[Devices, ...]:
    """Place ``need`` devices once for each replica, in all combinations of policies; return the different unions."""
    unions: dict[Devices, None] = {(): None}
    for _ in range(replicas):
        unions = {
            tuple(sorted((*union, *chosen))): None
            for union in unions
            for chosen in placements(machine, used | frozenset(union), need)
        }
    return tuple(unions)


@functools.lru_cache(maxsize=4096)
def _placements(host: tuple[int, ...], occupied: frozenset[int], need: int) -> tuple[Devices, ...]:
    free: dict[int, list[int]] = {}
    used = {host[device] for device in occupied}
    for device, position in enumerate(host):
        if device not in occupied:
            free.setdefault(position, []).append(device)
    hosts: _Hosts = tuple((tuple(devices), position in used) for position, devices in free.items())
    policies: Iterable[Callable[[_Hosts], Devices]] = (_fresh_first, _append_first, _scatter_first)
    chosen = (policy(hosts)[:need] for policy in policies)
    return tuple(dict.fromkeys(tuple(sorted(devices)) for devices in chosen if len(devices) == need))


def _fresh_first(hosts: _Hosts) -> Devices:
    return tuple(device for devices, used in hosts if not used for device in devices)


def _append_first(hosts: _Hosts) -> Devices:
    return tuple(device for devices, used in hosts if used for device in devices)


def _scatter_first(hosts: _Hosts) -> Devices:
    rounds = max((len(devices) for devices, _ in hosts), default=0)
    return tuple(devices[turn] for turn in range(rounds) for devices, _ in hosts if turn < len(devices))
