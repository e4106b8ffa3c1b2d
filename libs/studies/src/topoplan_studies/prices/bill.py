"""From a fabric to the parts that it is built of, and from parts to a sum.

Counting, for every physical link at its own bandwidth:

- a host's end is an interface (``nic``) with a ``transceiver``;
- a switch's end is a ``switch-port`` with a ``transceiver``, or an ``ideal-switch-port`` (`book.Prices.price`);
- a link between two hosts is one ``fibre``, or passes a patch panel or an optical circuit switch, which takes a port
  there and a fibre to it at either end; panels and optical switches need no transceivers;
- a link to a switch is one ``fibre``;
- a lane, which is a share of an interface, counts as a link of its own bandwidth;
- a link inside a host is one ``inside-link``, whatever its ends: it has no interface, transceiver or fibre, and does
  not become faster with the network.

Links are two-way: the two directions of a link share ports and fibre.  A link of one direction takes the sending half
of one port and the receiving half of another.  A link between switches counts where a shortest path between two hosts
crosses it, so that a tree with room for more hosts costs what its hosts use of it; `reach` finds these links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import numpy as np

from topoplan.arrays import F64, I64
from topoplan.errors import TopoplanError
from topoplan.model.fabric import Fabric, LinkKind, Switching
from topoplan.model.reconfigurable import AnyFabric
from topoplan_studies.prices.book import IDEAL_PORT, INSIDE_LINK, Prices
from topoplan_studies.prices.reach import reached_links

__all__ = ["UNSTATED", "Item", "affordable", "bill", "cost", "largest_factor", "scaled"]

#: What the links of a fabric pass that does not say it: nothing but cables and packet switches, the least of all.
UNSTATED: Switching = "packet"
_PANEL_PORTS = {"patch-panel": "patch-panel-port", "ocs": "ocs-port"}
_GBPS = 8e-9
#: Steps by which the affordable bandwidth is doubled or halved before the search gives up.
_OCTAVES = 60


@attrs.frozen
class Item:
    """So many pieces of one part at one bandwidth."""

    part: str
    gbps: float
    count: float


def bill(fabric: AnyFabric) -> tuple[Item, ...]:
    """Count the parts of a fabric.

    Links pass what `Fabric.switching` says, and are `UNSTATED` where it does not say.  A fabric that is rebuilt in the
    course of an iteration is built of what its phases need at most.
    """
    counts: dict[tuple[str, float], float] = {}
    for wiring in fabric.wirings:
        for key, count in _count(wiring, wiring.switching or UNSTATED).items():
            counts[key] = max(counts.get(key, 0.0), count)
    return tuple(Item(part, gbps, count) for (part, gbps), count in sorted(counts.items()) if count)


def _count(fabric: Fabric, switching: Switching) -> dict[tuple[str, float], float]:
    speeds, speed = np.unique(
        [float(f"{gbps:.9g}") for gbps in fabric.link_bandwidth / fabric.link_count * _GBPS], return_inverse=True
    )
    hosts = fabric.n_hosts
    inside = fabric.link_kind == LinkKind.INSIDE
    between_hosts = (fabric.link_src < hosts) & (fabric.link_dst < hosts) & ~inside
    used = reached_links(fabric) & ~inside
    ports = _ports(fabric, speed, len(speeds), used)
    panel = _ports(fabric, speed, len(speeds), between_hosts)[:hosts].sum(axis=0)
    passes = switching in _PANEL_PORTS
    cables = _cables(fabric, speed, len(speeds), used & ~between_hosts if passes else used)
    counts: dict[tuple[str, float], float] = {}

    def add(part: str, pieces: F64 | I64) -> None:
        for gbps, count in zip(speeds.tolist(), pieces.tolist(), strict=True):
            counts[part, gbps] = counts.get((part, gbps), 0.0) + float(count)

    add("nic", ports[:hosts].sum(axis=0))
    add("transceiver", ports[:hosts].sum(axis=0))
    switch_ports = ports[hosts:].sum(axis=0)
    if switching == "ideal":
        add(IDEAL_PORT, switch_ports)
    else:
        add("switch-port", switch_ports)
        add("transceiver", switch_ports)
    add("fibre", cables)
    add(INSIDE_LINK, _cables(fabric, speed, len(speeds), inside))
    if passes:
        add(_PANEL_PORTS[switching], panel)
        add("fibre", panel)
    return counts


def _ports(fabric: Fabric, speed: I64, kinds: int, chosen: np.ndarray) -> I64:
    """(nodes, kinds) ports of each node at each speed, for the chosen links; both directions share a port."""
    sides = []
    for end in (fabric.link_src, fabric.link_dst):
        count = np.zeros((fabric.n_nodes, kinds), dtype=np.int64)
        np.add.at(count, (end[chosen], speed[chosen]), fabric.link_count[chosen])
        sides.append(count)
    return np.maximum(*sides)


def _cables(fabric: Fabric, speed: I64, kinds: int, chosen: np.ndarray) -> F64:
    """(kinds,) two-way links at each speed, for the chosen links."""
    a, b = fabric.link_src[chosen].astype(np.int64), fabric.link_dst[chosen].astype(np.int64)
    pair = np.minimum(a, b) * fabric.n_nodes + np.maximum(a, b)
    keys, row = np.unique(pair * kinds + speed[chosen], return_inverse=True)
    weight = fabric.link_count[chosen]
    forward, backward = (np.bincount(row, weight * way, len(keys)) for way in (a < b, a > b))
    return np.bincount(keys % kinds, np.maximum(forward, backward), kinds).astype(np.float64)


def cost(items: Iterable[Item], prices: Prices) -> float:
    """Return what the parts cost together.

    Raises:
        TopoplanError: a part has no price.
    """
    return sum(item.count * prices.price(item.part, item.gbps) for item in items)


def scaled(items: Iterable[Item], factor: float) -> tuple[Item, ...]:
    """Return the bill of the same network with every link ``factor`` times as fast, but for those inside hosts."""
    return tuple(item if item.part == INSIDE_LINK else attrs.evolve(item, gbps=item.gbps * factor) for item in items)


def affordable(items: tuple[Item, ...], prices: Prices, budget: float) -> float:
    """Return the largest factor by which all links may be faster so that the network costs at most ``budget``.

    Prices never fall with bandwidth, so neither does the cost: the factor is found by bisection, to the last bit.

    Raises:
        TopoplanError: the parts cost more even at the lowest bandwidth, or not more at any.
    """
    return largest_factor(lambda factor: cost(scaled(items, factor), prices), prices, budget, _OCTAVES, 0.0)


def largest_factor(
    total: Callable[[float], float], prices: Prices, budget: float, octaves: int, precision: float
) -> float:
    """Return the largest factor on bandwidths at which a network costs at most ``budget``.

    Args:
        total: cost at a factor; must not fall.
        prices: for messages.
        budget: in the prices' currency.
        octaves: how often the factor is doubled, or halved, from 1.
        precision: share of the factor to which it is found; 0 finds it to the last bit.

    Raises:
        TopoplanError: it costs more at the smallest factor, or not more at the largest.
    """
    low = high = 1.0
    for _ in range(octaves):
        if total(low) <= budget:
            break
        low /= 2
    else:
        raise TopoplanError(
            f"prices {prices.name}: the network costs {total(low):,.0f} {prices.currency} however slow, "
            f"more than the {budget:,.0f} that it should"
        )
    for _ in range(octaves):
        if total(high) > budget:
            break
        high *= 2
    else:
        raise TopoplanError(
            f"prices {prices.name}: the network costs no more than {total(high):,.0f} {prices.currency} however fast, "
            f"less than the {budget:,.0f} that it should"
        )
    while low * (1 + precision) < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if total(middle) <= budget else (low, middle)
    return low
