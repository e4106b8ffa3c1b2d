"""Jellyfish: a random regular graph of switches that have hosts (Singla et al., NSDI 2012).

Links are drawn one by one between switches with free ports that are not joined yet.  Where none are left but two ports
of one switch, or of two that are joined, a random link is taken out and its ends are joined to these, as in the paper.
An odd number of ports leaves one free.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort

import attrs
import numpy as np

from topoplan import Fabric, Topology, TopologyContext, TopoplanError, hookimpl, option

__all__ = ["Jellyfish", "topoplan_topologies"]

#: Graphs that are drawn until one is connected.
_DRAWS = 100


@attrs.frozen(kw_only=True)
class Jellyfish(Topology):
    """Jellyfish: switches with hosts, joined to each other at random."""

    name = "jellyfish"
    switched = True

    hosts: int | None = option(
        None,
        help="hosts of a switch; as few as leave most switches two links apart when absent",
        minimum=1,
        maximum=4096,
    )
    links: int | None = option(
        None, help="links of a switch to others; three for each host when absent", minimum=1, maximum=4096
    )
    switches: int | None = option(None, help="as few as have room when absent", minimum=1, maximum=2**17)
    paths: int = option(16, help="number of equal-cost paths for a pair of hosts", minimum=1, maximum=65_536)

    def build(self, context: TopologyContext) -> Fabric:
        """Join the switches at random; links between them are as fast as the host with the most bandwidth.

        Raises:
            TopoplanError: there is no such graph, or no room for the hosts of the cluster.
        """
        from topoplan_graph_fabrics import at_switches, limit_links

        count = context.cluster.n_hosts
        hosts = self.hosts
        if hosts is None and self.switches is not None:
            hosts = math.ceil(count / self.switches)
        elif hosts is None:  # a switch reaches r + r (r - 1) others over two links
            hosts = next(
                t for t in range(1, count + 1) if math.ceil(count / t) <= (self.links or 3 * t) ** 2 + 1 or t == count
            )
        switches = self.switches or math.ceil(count / hosts)
        if switches * hosts < count:
            room = f"{switches} switches of {hosts} hosts have room for {switches * hosts}, not {count}"
            raise TopoplanError(f"topology jellyfish: {room} (use hosts={math.ceil(count / switches)})")
        links = min(3 * hosts, switches - 1) if self.links is None else self.links
        if links > switches - 1 or (switches > 2 and links < 2):
            raise TopoplanError(
                f"topology jellyfish: links {links} of {switches} switches (must be {min(2, switches - 1)} to "
                f"{switches - 1})"
            )
        limit_links(self.name, switches * links // 2, f"switches {switches} with links {links}")
        return at_switches(
            "jellyfish",
            context.cluster,
            np.arange(count) // hosts,
            _drawn(switches, links, context.rng),
            n_switches=switches,
            max_paths=self.paths,
        )


def _drawn(switches: int, links: int, rng: np.random.Generator) -> list[tuple[int, int]]:
    """Return the links of a connected regular graph of switches; a dense one is what a sparse one lacks."""
    degrees = np.full(switches, links)
    degrees[-1] -= switches * links % 2
    dense = 2 * links >= switches
    everyone = set(range(switches))
    for _ in range(_DRAWS):
        joined = _regular(switches - 1 - degrees if dense else degrees, rng)
        if dense:
            joined = [everyone - other_items - {switch} for switch, other_items in enumerate(joined)]
        if [len(other_items) for other_items in joined] == degrees.tolist() and _is_connected(joined):
            return [(a, b) for a, other_items in enumerate(joined) for b in sorted(other_items) if a < b]
    raise TopoplanError(f"topology jellyfish: no connected graph of {switches} switches with {links} links is found")


def _regular(degrees: np.ndarray, rng: np.random.Generator) -> list[set[int]]:
    """Return the switches that each is joined to; a few ports stay free where no exchange is found for them."""
    switches = len(degrees)
    joined = [set[int]() for _ in range(switches)]
    ends = rng.permutation(np.repeat(np.arange(switches), degrees)).tolist()
    remaining_items = []
    while len(ends) > 1:
        a, b = ends.pop(), ends.pop()
        if a == b or b in joined[a]:
            remaining_items.append((a, b))
        else:
            joined[a].add(b)
            joined[b].add(a)
    ordered = [sorted(peers) for peers in joined] if remaining_items else []  # to draw one without sorting again
    for a, b in remaining_items:
        for _ in range(1000):
            c = int(rng.integers(switches))
            if not joined[c] or a == c or c in joined[a]:
                continue
            d = ordered[c][int(rng.integers(len(ordered[c])))]
            if b != d and d not in joined[b] and (a, b) != (d, c):
                for node, gone, new in ((c, d, a), (d, c, b)):
                    joined[node].remove(gone)
                    del ordered[node][bisect_left(ordered[node], gone)]
                    joined[node].add(new)
                    insort(ordered[node], new)
                for node, new in ((a, c), (b, d)):
                    joined[node].add(new)
                    insort(ordered[node], new)
                break
    return joined


def _is_connected(joined: list[set[int]]) -> bool:
    reached_nodes, new = {0}, [0]
    while new:
        new = [b for b in {b for a in new for b in joined[a]} if b not in reached_nodes]
        reached_nodes.update(new)
    return len(reached_nodes) == len(joined)


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return Jellyfish
