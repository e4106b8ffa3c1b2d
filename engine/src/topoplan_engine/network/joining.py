"""Paths from device to device: the links of hosts on the way of paths of the fabric, written in one compiled pass.

A path inside a host is the way between two devices.  Between hosts it is, for each link of the fabric that leaves a
host, the way to a NIC and that NIC, then the link, then for each that enters a host a NIC of it; behind the last link,
the way to the device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import I32, I64
from topoplan_engine.csr import frozen
from topoplan_engine.kernels.jit import inline_kernel, kernel

__all__ = ["Cables", "Insides", "Outside", "joined_paths"]


class Outside(NamedTuple):
    """Paths of the fabric between the hosts of k pairs of devices, as compressed rows.

    Attributes:
        pair_ptr, path_ptr, links: see `topoplan_engine.network.routing.Paths`.
        leaves, arrives: (k,) NICs by which a pair leaves and arrives; -1 where its links say them.
    """

    pair_ptr: I64
    path_ptr: I64
    links: I32
    leaves: I64
    arrives: I64

    def read_only(self) -> Outside:
        """Return views that are read-only, which kernels are compiled for."""
        return Outside._make(frozen(column[:]) for column in self)


class Cables(NamedTuple):
    """The links of a fabric: (L,) their ends, lanes, and the first and last NIC that each leaves and enters a host by.

    NICs are -1 where it does not.
    """

    tail: I32
    head: I32
    lane: I64
    leaves_first: I64
    leaves_last: I64
    enters_first: I64
    enters_last: I64

    def read_only(self) -> Cables:
        """Return views that are read-only, which kernels are compiled for."""
        return Cables._make(frozen(column[:]) for column in self)


class Insides(NamedTuple):
    """The links of hosts, and the ways through them.

    Attributes:
        host: (D,) of each device.
        ptr, links, own_ptr, own_nics: see `topoplan_engine.network.host_paths.HostPaths`.
        devices, endpoints: of a host.
        first, block, inside, lanes: see `topoplan_engine.network.machine.HostLinks`.
    """

    host: I32
    ptr: I64
    links: I32
    own_ptr: I64
    own_nics: I32
    devices: int
    endpoints: int
    first: int
    block: int
    inside: int
    lanes: int


def joined_paths(src: I64, dst: I64, outside: Outside, cables: Cables, insides: Insides) -> tuple[I64, I32]:
    """Return the number of links of each path, and these, of pairs of devices in turn.

    Args:
        src, dst: (n,) devices; two of one host have one path.
        outside: paths of the pairs of two hosts, in their order.
        cables, insides: of the network.
    """
    host = insides.host
    inner = int(np.count_nonzero(host[src] == host[dst]))
    n_paths, longest = inner + int(outside.pair_ptr[-1]), int(np.diff(insides.ptr).max(initial=0))
    # At most a way, two NICs and a link for each link outside, and a way to the device: what is not used is not taken.
    lengths, links = (
        np.empty(n_paths, np.int64),
        np.empty((longest + 3) * len(outside.links) + longest * n_paths, np.int32),
    )
    columns = frozen(src[:]), frozen(dst[:]), outside.read_only(), cables.read_only(), insides, lengths
    end = _join(*columns, links)
    return frozen(lengths), frozen(links[:end])


@kernel
def _join(src: I64, dst: I64, outside: Outside, cables: Cables, insides: Insides, lengths: I64, joined: I32) -> int:
    """Write the number of links of each path, and these; return how many there are."""
    end, path_number, outer = 0, 0, 0
    for pair in range(len(src)):
        host = insides.host[src[pair]]
        start, target = src[pair] % insides.devices, dst[pair] % insides.devices
        if host == insides.host[dst[pair]]:
            before, end = end, _add_way(insides, host, start, target, joined, end)
            lengths[path_number] = end - before
            path_number += 1
            continue
        for path in range(outside.pair_ptr[outer], outside.pair_ptr[outer + 1]):
            before, end = end, _add_path(start, target, path, outer, outside, cables, insides, joined, end)
            lengths[path_number] = end - before
            path_number += 1
        outer += 1
    return end


@inline_kernel
def _add_path(
    start: int,
    target: int,
    path: int,
    outer: int,
    outside: Outside,
    cables: Cables,
    insides: Insides,
    joined: I32,
    end: int,
) -> int:
    """Add a path between hosts; return the end of the list.

    Invariant: at each link ``place`` is the endpoint at which the message is in the host that the link leaves.
    """
    first, last = outside.path_ptr[path], outside.path_ptr[path + 1] - 1
    place, host = start, insides.host[0]
    for entry in range(first, last + 1):
        link = outside.links[entry]
        chosen = outside.leaves[outer] if entry == first else -1
        nic = _nic_of(cables.leaves_first[link], cables.leaves_last[link], start, chosen, entry == first, insides)
        if nic >= 0:
            end = _add_way(insides, cables.tail[link], place, nic + insides.devices, joined, end)
            end = _add(joined, _link_of(insides, cables.tail[link], nic, cables.lane[link], 0), end)
        end = _add(joined, link, end)
        chosen = outside.arrives[outer] if entry == last else -1
        nic = _nic_of(cables.enters_first[link], cables.enters_last[link], target, chosen, entry == last, insides)
        host = cables.head[link]
        if nic >= 0:
            end = _add(joined, _link_of(insides, host, nic, cables.lane[link], 1), end)
        place = nic + insides.devices
    return int(_add_way(insides, host, place, target, joined, end))


@inline_kernel
def _nic_of(first: int, last: int, place: int, chosen: int, at_end: bool, insides: Insides) -> int:
    """Return the NIC by which a message leaves or enters a host, given those of a link; -1 where there is none.

    At the ends of a path it is the chosen one, else the device's own if it is one of the link's NICs, else the link's
    NICs take devices in turn, by their places.
    """
    if first < 0:
        return -1
    if at_end:
        if chosen >= 0:
            return int(chosen)
        own_nic = int(insides.own_nics[insides.own_ptr[place]])
        if first <= own_nic <= last:
            return own_nic
    return int(first + place % max(last - first + 1, 1))


@inline_kernel
def _link_of(insides: Insides, host: int, nic: int, lane: int, arriving: int) -> int:
    """Return the link of a lane of a NIC (`topoplan_engine.network.machine.HostLinks.nic`)."""
    return insides.first + host * insides.block + insides.inside + 2 * (nic * insides.lanes + max(lane, 0)) + arriving


@inline_kernel
def _add_way(insides: Insides, host: int, start: int, target: int, joined: I32, end: int) -> int:
    """Add the links from one endpoint of a host to another; return the end of the list."""
    row, first = start * insides.endpoints + target, insides.first + host * insides.block
    for entry in range(insides.ptr[row], insides.ptr[row + 1]):
        end = _add(joined, first + insides.links[entry], end)
    return end


@inline_kernel
def _add(joined: I32, link: int, end: int) -> int:
    """Add a link; return the end of the list."""
    joined[end] = link
    return end + 1
