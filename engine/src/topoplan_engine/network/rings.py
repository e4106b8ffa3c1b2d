"""Which rings of a fabric the all-reduce of a group walks."""

from __future__ import annotations

import math

import numpy as np

from topoplan.arrays import I32, I64, i64
from topoplan.model.fabric import Fabric
from topoplan_engine.network.ring_search import find_cycles

__all__ = ["cycles_of", "rings_of"]


def rings_of(fabric: Fabric, hosts: I32) -> list[tuple[int, ...]]:
    """Return the rings for a group on ``hosts``; none unless each visits every one of them and no other.

    That needs hosts at equal strides, and rings that keep to these.
    """
    n, size = fabric.n_hosts, len(hosts)
    rings = [jumps for jumps in fabric.rings.get(size, ()) if jumps]
    if size < 2 or not rings or n % size or not (np.diff(hosts) == n // size).all():
        return []
    stride = n // size
    visits = all(sum(jumps) % stride == 0 and math.gcd(sum(jumps) // stride, size) == 1 for jumps in rings)
    return rings if visits else []


def cycles_of(fabric: Fabric, hosts: I32) -> I64:
    """Return the cycles for a group on ``hosts``, as (cycles, members) places in it to which each member sends.

    None where no cycle is on exactly these hosts, and where the group has `rings_of` its own.  A fabric without rings
    and cycles may have those that are found along its links.
    """
    if fabric.rings_along_links and not fabric.rings and not fabric.cycles and len(np.unique(hosts)) == len(hosts):
        return find_cycles(fabric, hosts)
    if not fabric.cycles:
        return np.zeros((0, len(hosts)), dtype=np.int64)
    members = hosts.tolist()
    place = {host: number for number, host in enumerate(members)}
    cycles = [cycle for cycle in fabric.cycles if place.keys() == set(cycle)]
    if len(place) < len(members) or (cycles and rings_of(fabric, hosts)):
        cycles = []
    after = [dict(zip(cycle, (*cycle[1:], cycle[0]), strict=True)) for cycle in cycles]
    receivers = [[place[following[host]] for host in members] for following in after]
    return i64(np.array(receivers, dtype=np.int64).reshape(len(cycles), len(members)))
