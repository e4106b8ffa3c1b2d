"""Which rings of a fabric the all-reduce of a group walks."""

from __future__ import annotations

import math

import numpy as np

from topoplan.arrays import I32, I64, i64
from topoplan.errors import TopoplanError
from topoplan.model.fabric import Fabric
from topoplan_engine.network.ring_search import find_cycles

__all__ = ["cycles_of", "links_of_groups", "looks_along_links", "own_links", "rings_of"]


def looks_along_links(fabric: Fabric) -> bool:
    """Return whether a group looks for rings along links: not on a fabric of switches alone, whatever it says."""
    is_direct = (fabric.link_src < fabric.n_hosts) & (fabric.link_dst < fabric.n_hosts)
    return fabric.rings_along_links and bool(is_direct.any())


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


def own_links(fabric: Fabric, hosts: I32) -> list[I64]:
    """Return the (members, jumps) links to the next member along each ring, or cycle, that a fabric has for a group.

    Raises:
        TopoplanError: a ring or a cycle needs a link that is not there.
    """
    rings = [_jump_links(fabric, hosts, jumps) for jumps in rings_of(fabric, hosts)]
    return rings or [_cycle_links(fabric, hosts, hosts[receivers]) for receivers in cycles_of(fabric, hosts)]


def links_of_groups(fabric: Fabric, hosts: I32, pointers: I64) -> list[list[I64]]:
    """Return `own_links` of groups, given their hosts as compressed rows; a group inside one host has none."""
    first = pointers[:-1]
    away = np.minimum.reduceat(hosts, first) < np.maximum.reduceat(hosts, first)
    ends = pointers.tolist()
    return [own_links(fabric, hosts[ends[g] : ends[g + 1]]) if away[g] else [] for g in range(len(first))]


def _jump_links(fabric: Fabric, hosts: I32, jumps: tuple[int, ...]) -> I64:
    """(members, jumps) links from each member of a ring to the next one."""
    steps = np.array([*jumps[1:], jumps[0]])
    tails = (hosts[:, None] + np.cumsum(steps) - steps) % fabric.n_hosts
    heads = (tails + steps) % fabric.n_hosts
    links = fabric.link_rows(tails, heads)
    if (absent := np.flatnonzero(links.ravel() < 0)).size:
        raise TopoplanError(
            f"fabric {fabric.name!r}: the ring {jumps} of groups of {len(hosts)} needs a link from host "
            f"{tails.flat[absent[0]]} to host {heads.flat[absent[0]]} (add it, or leave the ring out)"
        )
    return links


def _cycle_links(fabric: Fabric, hosts: I32, receivers: I32) -> I64:
    """(members, 1) direct link from each member of a cycle to the host that it sends to."""
    links = fabric.link_rows(hosts, receivers)
    if (absent := np.flatnonzero(links < 0)).size:
        raise TopoplanError(
            f"fabric {fabric.name!r}: a cycle of {len(hosts)} hosts needs a link from host "
            f"{hosts[absent[0]]} to host {receivers[absent[0]]} (add it, or leave the cycle out)"
        )
    return links[:, None]
