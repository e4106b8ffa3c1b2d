"""Rings of groups with several devices on some host: they go from host to host, and there through all devices.

A ring enters a host at one of the group's devices, passes all of them, and leaves at the last one, so that a flow from
a host to the next crosses the links of its devices, too (`topoplan_engine.network.tables`).  All functions take many
groups at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from topoplan.arrays import I32, I64, i32
from topoplan.model.cluster import Cluster
from topoplan_engine.csr import expand, indptr, row_of_entry, select
from topoplan_engine.network.new_rows import NewRings, NewRows
from topoplan_engine.network.ring_loads import LOAD

if TYPE_CHECKING:
    from topoplan_engine.network.tables import PathColumns

__all__ = ["Hosted", "inside_shares", "rows_through_hosts", "stops_of"]


class Hosted(NamedTuple):
    """Devices of groups, group by group and host by host; k pairs of a group and one of its hosts.

    Attributes:
        devices: in this order; those of one host as they are listed.
        first, counts: (k,) where the devices of each pair begin, and how many they are.
        keys: (k,) group * ``n_hosts`` + host, ascending.
        n_hosts: more than the number of each host.
    """

    devices: I32
    first: I64
    counts: I64
    keys: I64
    n_hosts: int

    @classmethod
    def of(cls, pointers: I64, devices: I32, host: I32) -> Hosted:
        """Sort the members of groups, as compressed rows, given the (D,) host of each device."""
        n_hosts = int(host.max(initial=0)) + 1
        key = row_of_entry(pointers) * n_hosts + host[devices]
        order = np.argsort(key, kind="stable")
        first = np.flatnonzero(np.diff(key[order], prepend=-1))
        return cls(devices[order], first, np.diff(first, append=len(order)), key[order[first]], n_hosts)

    def pair(self, group: I64, host: I32 | I64) -> I64:
        """Return the number of the pair of each group and host."""
        number: I64 = np.searchsorted(self.keys, group * self.n_hosts + host)
        return number


def stops_of(pointers: I64, devices: I32, host: I32) -> tuple[I64, I32]:
    """Return the members of each group that send to the next one; groups are compressed rows, and so is the result.

    All do, but for groups on several hosts with several devices on one: the first of each host does.  Those that list a
    device twice are taken as they are.

    >>> members, host = i32([0, 1, 2, 3, 0, 1]), i32([0, 0, 1, 1])
    >>> pointers, stops = stops_of(np.array([0, 4, 6]), members, host)
    >>> pointers.tolist(), stops.tolist()
    ([0, 2, 4], [0, 2, 0, 1])
    """
    sizes, group = np.diff(pointers), row_of_entry(pointers)
    key = group * (int(host.max(initial=0)) + 1) + host[devices]
    order = np.argsort(key, kind="stable")
    first = np.zeros(len(order), dtype=np.bool_)
    first[order] = np.diff(key[order], prepend=-1) != 0
    hosts = np.bincount(group[first], minlength=len(sizes))
    several = (hosts > 1) & (hosts < sizes)
    if several.any():
        named = np.sort(group * (int(devices.max()) + 1) + devices)
        twice = named[1:][named[1:] == named[:-1]] // (int(devices.max()) + 1)
        several[twice] = False
    senders = first | ~several[group]
    return indptr(np.bincount(group[senders], minlength=len(sizes))), i32(devices[senders])


def rows_through_hosts(groups: NewRings, paths: PathColumns, host: I32, cluster: Cluster, first_inside: int) -> NewRows:
    """Return a row for each flow of rings among hosts that also crosses the links of its host's devices.

    Time passes on the way between hosts alone: what a device sends to the next one inside a host waits for nothing.

    Args:
        groups: whose rows are those between hosts.
        paths: of these rows.
        host: (D,) of each device.
        cluster: has the bandwidth inside hosts.
        first_inside: number of the first of two links of every device.
    """
    hosted = Hosted.of(groups.device_ptr, groups.devices, host)
    several = np.where(hosted.counts > 1, hosted.counts, 0)
    senders, receives = groups.hops()
    sends, rows, group = senders.astype(np.int64), groups.rows, row_of_entry(groups.row_ptr)
    place = hosted.pair(group, host[sends])  # of each flow's host
    flow, path = select(paths.row_ptr, rows)
    own_path, own_link = select(paths.path_ptr, path)
    inside_path, inside = expand(hosted.first[place[flow]], several[place[flow]])
    up = first_inside + 2 * hosted.devices[inside].astype(np.int64)
    owner = np.concatenate([own_path, inside_path, inside_path])
    links = np.concatenate([paths.links[own_link], up, up + 1])[np.argsort(owner, kind="stable")]
    load = LOAD * np.maximum(several - 1, 1) // np.maximum(several, 1)  # of a ring on a device's links
    inside_bandwidth = cluster.inside_bandwidth[hosted.keys % hosted.n_hosts]
    speed = np.where(several > 0, inside_bandwidth * LOAD / load, np.inf)
    sums = {
        "delay": paths.delay[path],
        "per_byte": paths.per_byte[path],
        "slowest": np.minimum(paths.slowest[path], speed[place[flow]]),
    }
    lengths = np.bincount(owner, minlength=len(path))
    # Groups that share hosts draw their paths apart: streams are numbered behind those of pairs of hosts.
    stream = cluster.n_hosts**2 + sends * cluster.n_devices + receives
    pair = np.where(paths.pair[rows] < 0, -1, stream)
    counts = paths.row_ptr[rows + 1] - paths.row_ptr[rows]
    return NewRows(counts, lengths, i32(links), sums, paths.cumulative_weight[path], pair)


def inside_shares(groups: NewRings, of_entry: I64, links: I32, load: I64, host: I32, first_inside: int) -> I64:
    """Return the loads of links by rings through hosts: inside, (k - 1) / k of a flow, of k devices.

    Args:
        groups: whose rings they are.
        of_entry: (n,) number of the group that loads each link.
        links, load: (n,) of all rings.
        host: (D,) of each device.
        first_inside: number of the first of two links of every device.
    """
    hosted, inside = Hosted.of(groups.device_ptr, groups.devices, host), np.flatnonzero(links >= first_inside)
    place = host[(links[inside] - first_inside) // 2]
    k = hosted.counts[hosted.pair(of_entry[inside], place)]
    shares = load.copy()
    shares[inside] = load[inside] * (k - 1) // k
    return shares
