"""By which NICs rings leave and enter hosts of which some NICs lead nowhere, or not to the same switches.

A ring has a gate in each host: a member of the group whose NIC carries it.  From host to host it goes on at a gate on
the same switch, else at one that the network joins to it; a ring that cannot go on is left out.  So there are as many
rings as the host with the fewest NICs has, or as there are rails that are whole in all hosts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import I64
from topoplan_engine.network.host_ways import ways_between

__all__ = ["NicPlaces", "gates_of_rings", "rings_through"]


class NicPlaces(NamedTuple):
    """Where NICs join a network, (H, n) or those of one host.

    Attributes:
        part: the connected part of the network that each is on, -1 where it joins none.
        place: a number that it shares with those on the same switches, -1 where it joins none.
    """

    part: I64
    place: I64

    def classes(self) -> tuple[I64, NDArray[np.bool_]] | None:
        """Return a number for hosts whose NICs are on the same parts, and whether some NIC of such hosts is on none.

        Returns:
            (H,) numbers and (classes,) truths; nothing where hosts are equal and all NICs lead somewhere.
        """
        if (self.part == self.part[:1]).all() and self.part.min(initial=0) >= 0:
            return None
        kinds, number = np.unique(self.part, axis=0, return_inverse=True)
        lacks_some: NDArray[np.bool_] = kinds.min(axis=1) < 0
        return number.ravel().astype(np.int64), lacks_some


def gates_of_rings(nics: list[I64], hosts: I64, places: NicPlaces) -> list[I64]:
    """Return for each host the members that are the gates of rings, ring by ring.

    Args:
        nics: of each host's members.
        hosts: in the order in which rings visit them.
        places: of the NICs of all hosts.

    >>> part = np.array([[0, 0, -1], [0, 0, 0]])  # the last NIC of the first host leads nowhere
    >>> gates = gates_of_rings([np.arange(3), np.arange(3)], np.arange(2), NicPlaces(part, part))
    >>> [each.tolist() for each in gates]
    [[1, 0], [1, 0]]
    """
    gates: list[I64] = []
    before = NicPlaces(np.zeros(0, np.int64), np.zeros(0, np.int64)), np.zeros(0, np.int64)
    for host, of_members in zip(hosts.tolist(), nics, strict=True):
        members = np.flatnonzero(places.part[host, of_members] >= 0)
        own_nics, first = np.unique(of_members[members], return_index=True)
        members = members[first]
        host_places = NicPlaces(places.part[host, own_nics], places.place[host, own_nics])
        follows = _following(*before, host_places, own_nics) if gates else _spaced(len(members))
        goes_on = follows >= 0
        if not goes_on.all():
            gates = [each[goes_on] for each in gates]
            follows = follows[goes_on]
        gates.append(members[follows])
        before = NicPlaces(host_places.part[follows], host_places.place[follows]), own_nics[follows]
    return gates


def _spaced(count: int) -> I64:
    """Return an order of gates whose last three are no neighbours.

    Of an odd number of rings these three are a cycle (`topoplan_engine.network.host_ways`).  Among an odd number of
    hosts rings leave the last one by other NICs than their gates': a gate reaches the NIC of its neighbour, below the
    same PCIe switch, by a link that the other one's PXN would need.
    """
    return np.concatenate([np.arange(1, count, 2), np.arange(0, count, 2)])


def _following(before: NicPlaces, nics_before: I64, host_places: NicPlaces, host_nics: I64) -> I64:
    """Return by which NIC each ring enters the next host, -1 where it cannot.

    It is one on the same switch, with the same number before others; else one that the network joins, in this order.
    """
    if np.array_equal(before.place, host_places.place) and np.array_equal(nics_before, host_nics):
        return np.arange(len(host_nics))
    same_number = nics_before[:, None] == host_nics
    same_place, same_part = before.place[:, None] == host_places.place, before.part[:, None] == host_places.part
    follows, is_free = np.full(len(nics_before), -1), np.ones(len(host_nics), dtype=bool)
    for fits in (same_place & same_number, same_place, same_part & same_number, same_part):
        for ring in np.flatnonzero((follows < 0) & fits.any(axis=1)).tolist():
            free = np.flatnonzero(fits[ring] & is_free)
            if len(free):
                follows[ring], is_free[free[0]] = free[0], False
    return follows


def rings_through(members: list[I64], gates: list[I64]) -> list[I64]:
    """Return rings through hosts by their gates: forward through every other host, and backward between.

    Args:
        members: on each host, as numbers of the group.
        gates: on each host the places of gates among its members, ring by ring.
    """
    ways = [_ways(tuple(each.tolist()), len(listed)) for each, listed in zip(gates, members, strict=True)]
    return [
        np.concatenate(
            [
                listed[way[ring] if stop % 2 == 0 else way[ring][::-1]]
                for stop, (listed, way) in enumerate(zip(members, ways, strict=True))
            ]
        )
        for ring in range(len(gates[0]))
    ]


@lru_cache(maxsize=1024)
def _ways(gates: tuple[int, ...], devices: int) -> list[I64]:
    """Return the ways between gates, found once: many hosts have the same."""
    return ways_between(np.array(gates, dtype=np.int64), devices)
