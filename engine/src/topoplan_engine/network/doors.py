"""Where messages of hosts enter a network, and leave it.

- A host with one neighbour, a switch, is no node of routes: its switch is.
- Hosts with several ways out are nodes.  Where any two of them are on the same switches or on none together, and no
  other host is on these (rails, planes), no shortest path leads through a host: one is the node for all on its
  switches, and the links there are *doors*, each of which stands for one of every such host.
- Elsewhere (hosts that forward) each is a node.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs
import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I32, I64
from topoplan.model.fabric import Fabric
from topoplan_engine.kernels.hashing import GOLDEN
from topoplan_engine.kernels.jit import inline_kernel
from topoplan_engine.network.lanes import components

__all__ = ["Doors", "Ends", "own_place", "some_links"]


class Ends(NamedTuple):
    """The links at hosts, in the order of these: of those that leave them, and of those that lead to them.

    Attributes:
        number: (L,) of each door, its number among the links of its host in that direction; -1 of other links.
        into: (L,) whether each link of the graph leads to a host.
        begins: (2, H) where the links of each host begin in the order.
    """

    number: I32
    into: NDArray[np.bool_]
    begins: I64


@inline_kernel
def own_place(ends: Ends, door: int, source: int, target: int) -> tuple[int, int]:
    """Return 0 or 1, and the place in this order of the link that stands for a door between two hosts: of that end."""
    way, host = (1, target) if ends.into[door] else (0, source)
    return way, ends.begins[way, host] + ends.number[door]


class Doors:
    """The nodes of hosts.

    Attributes:
        leaving, arriving: (H,) the node where messages of each host enter routes, and leave them.  A host of doors is
            two: messages arrive at the node that is behind those of the graph.
        n_nodes: with these.
        is_node: (N,) whether each node of the graph is one of routes.
        is_door: (L,) of each link of the graph.
        at_ends: (L,) whether it is a door, or one that a door stands for.
        has_doors: whether there are any.
        orders: links by the hosts that they leave, and by those that they lead to; there by their other ends.

    Example:
        >>> links = [(h, s) for h in (0, 1) for s in (2, 3)]  # two hosts, each on both switches
        >>> both = links + [(b, a) for a, b in links]
        >>> doors = Doors(Fabric.from_links(name="two", n_hosts=2, n_switches=2, links=both, bandwidth=1.0, latency=0))
        >>> doors.leaving.tolist(), int(doors.is_door.sum()), int(doors.at_ends.sum())
        ([0, 0], 4, 8)
    """

    def __init__(self, graph: Fabric) -> None:
        self._tails, self._heads = graph.link_src.astype(np.int64), graph.link_dst.astype(np.int64)
        ends, hosts = (self._tails, self._heads), graph.n_hosts
        self.leaving, self.arriving = _nodes_of(*ends, hosts), _nodes_of(*ends[::-1], hosts)
        numbers, of_switches = np.arange(hosts), np.zeros(graph.n_switches, dtype=bool)
        several = (self.leaving == numbers) | (self.arriving == numbers)
        first = _first_on_switches(*ends, several, graph.n_nodes)
        self.has_doors = first is not None
        self.n_nodes = graph.n_nodes + self.has_doors * hosts
        first = numbers if first is None else first
        self.leaving, self.arriving = (np.where(each == numbers, first, each) for each in (self.leaving, self.arriving))
        self.arriving[several] += self.has_doors * graph.n_nodes
        self.is_node = np.append(several & (first == numbers), ~of_switches)
        host = np.minimum(*ends)  # switches have the highest numbers
        self.at_ends = np.append(several & self.has_doors, of_switches)[host]
        self.is_door = self.at_ends & self.is_node[host]
        # Links by their hosts, and there by the switches that they lead to or come from.
        self.orders = np.lexsort(ends[::-1]), np.lexsort(ends)
        begins = (np.searchsorted(each[order], numbers) for each, order in zip(ends, self.orders, strict=True))
        self._begins = tuple(begins)

    def thinned(self, graph: Fabric) -> I64 | None:
        """Return the links of a graph that has the first link of each host alone; None where these do not connect all.

        One path of each pair is there, and is found among switches.
        """
        first = ~self.at_ends
        for order, begins in zip(self.orders, self._begins, strict=True):
            first[order[begins[self.arriving >= graph.n_nodes]]] = True
        rows = np.flatnonzero(first)
        switches = np.maximum(self._tails, self._heads)[np.flatnonzero(first & self.at_ends)] - graph.n_hosts
        component = components(graph)[switches]
        return rows if self.has_doors and (component == component[:1]).all() else None

    @property
    def ends(self) -> Ends:
        """Where each door is, for kernels."""
        into, number = self._heads < len(self.leaving), np.full(len(self._heads), -1, np.int32)
        for is_way, ends, order, begins in zip(
            (~into, into), (self._tails, self._heads), self.orders, self._begins, strict=True
        ):
            rows = order[(self.is_door & is_way)[order]]
            place = np.flatnonzero((self.is_door & is_way)[order])
            number[rows] = place - begins[ends[rows]]
        return Ends(number, into, np.stack(self._begins))

    def rates(self, used: I64, bandwidth: F64, *, arriving: bool) -> F64:
        """(N,) bytes/s by which messages of some hosts, all different, enter at their nodes, or leave there.

        That is what their links carry; at hosts that forward it is any rate.
        """
        of, ends = (self.arriving, self._heads) if arriving else (self.leaving, self._tails)
        rows = np.flatnonzero(ends < len(of))
        rate = np.bincount(ends[rows], bandwidth[rows], len(of))[used]
        forwards = (of[used] < len(of)) & (not self.has_doors)
        rates: F64 = np.bincount(of[used], np.where(forwards, np.inf, rate), self.n_nodes).astype(np.float64)
        return rates


def some_links(graph: Fabric, links: I64) -> Fabric:
    """Return a fabric with some links of another one.

    >>> two = Fabric.from_links(name="two", n_hosts=2, links=[(0, 1), (1, 0)], bandwidth=1.0, latency=0)
    >>> some_links(two, np.array([1])).link_src.tolist()
    [1]
    """
    columns = ("link_src", "link_dst", "link_count", "link_bandwidth", "link_latency", "link_kind")
    some: Fabric = attrs.evolve(graph, **{name: getattr(graph, name)[links] for name in columns})
    return some


def _hash(numbers: I64) -> np.ndarray:
    """Mix numbers as `topoplan_engine.kernels.hashing.mix` does."""
    bits: np.ndarray = numbers.astype(np.uint64) * GOLDEN
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    mixed: np.ndarray = bits ^ (bits >> np.uint64(31))
    return mixed


def _nodes_of(ends: I64, far_ends: I64, hosts: int) -> I64:
    """(H,) the node where messages of each host begin: its one neighbour, if that is a switch, or itself."""
    nodes = np.arange(hosts)
    rows = np.flatnonzero(ends < hosts)
    single = np.bincount(ends[rows], minlength=hosts)[ends[rows]] == 1
    rows = rows[single & (far_ends[rows] >= hosts)]
    nodes[ends[rows]] = far_ends[rows]
    return nodes


def _first_on_switches(tails: I64, heads: I64, several: np.ndarray, nodes: int) -> I64 | None:
    """(H,) the first host on the same switches as each one; None where some are on a part of these.

    Args:
        tails, heads: of links.
        several: (H,) which hosts are nodes.
        nodes: of the graph.
    """
    hosts = len(several)
    if not several.any() or ((tails < hosts) & (heads < hosts)).any():
        return None
    key = np.zeros(hosts, dtype=np.uint64)  # equal sums of hashes are taken for equal sets
    rows, ends_of_rows = [], []
    with np.errstate(over="ignore"):
        for ends, far_ends, way in ((tails, heads, 1), (heads, tails, 2)):
            at_host = np.flatnonzero(ends < hosts)
            rows.append(ends[at_host])
            ends_of_rows.append(far_ends[at_host])
            np.add.at(key, rows[-1], _hash(ends_of_rows[-1] * 2 + way))
    _, first, number = np.unique(key, return_index=True, return_inverse=True)
    number = np.where(several, number.ravel(), -1)
    host, switch = np.concatenate(rows), np.concatenate(ends_of_rows)
    lowest, highest = np.full(nodes, hosts), np.full(nodes, -2)
    np.minimum.at(lowest, switch, number[host])
    np.maximum.at(highest, switch, number[host])
    if (lowest[switch] != highest[switch])[several[host]].any():
        return None
    return np.where(several, first[number], np.arange(hosts))
