"""Fabrics whose hosts have links to several switches, such as rails: switches as bars, hosts as lines that cross them.

Lines from every host to each of its rails would cross each other everywhere.  Here a switch is a horizontal bar over
what hangs on it, a host or a switch below a vertical line up to the highest of its bars, and a link the point where
both cross.  Bars that are not over the same nodes share a row, as the same rail of several units does.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.fabric import Fabric

__all__ = ["Bars", "bars_of"]

#: Rows of which each can be seen.
_ROWS = 120
#: Rows that are left free between two tiers.
_BETWEEN = 1


@attrs.frozen
class Bars:
    """N nodes.

    Attributes:
        position: (N, 2) from 0 to 1: where the line of a node stands, and the height of its bar; -1 for one not drawn.
        span: (N, 2) from 0 to 1: ends of bars; those of hosts are points.
        rows: for each row, its height and the words that all of its switches have in their names, or how many they are.
    """

    position: F64
    span: F64
    rows: list[tuple[float, str]]


def bars_of(links: Fabric, tier: I64) -> Bars | None:
    """Return where bars lie; None where a host hangs on one switch, or there are too many rows.

    Args:
        links: the fabric.
        tier: (N,) links from each node to the nearest host; -1 for nodes that are not drawn.
    """
    up = (tier[links.link_src] >= 0) & (tier[links.link_dst] == tier[links.link_src] + 1)
    lower, upper = links.link_src[up], links.link_dst[up]
    pairs = np.unique(np.stack([lower, upper]), axis=1)
    hosts = links.n_hosts
    if hosts < 2 or np.bincount(pairs[0], minlength=links.n_nodes)[:hosts].min() < 2:
        return None
    position, span = np.full((links.n_nodes, 2), -1.0), np.full((links.n_nodes, 2), -1.0)
    place = (np.arange(hosts) + 0.5) / hosts
    position[:hosts, 0], span[:hosts] = place, place[:, None]
    row = np.full(links.n_nodes, -1)
    count = 0
    for height in range(1, int(tier.max()) + 1):
        nodes = np.flatnonzero(tier == height)
        low, high = np.full(links.n_nodes, np.inf), np.full(links.n_nodes, -np.inf)
        np.minimum.at(low, pairs[1], position[pairs[0], 0])
        np.maximum.at(high, pairs[1], position[pairs[0], 0])
        span[nodes] = np.stack([low[nodes], high[nodes]], axis=1)
        position[nodes, 0] = _inside(span[nodes])
        of_tier = _packed(span[nodes])
        row[nodes] = count + of_tier
        count += int(of_tier.max(initial=-1)) + 1 + _BETWEEN
    if count > _ROWS:
        return None
    position[:hosts, 1] = 1.0
    switches = np.flatnonzero(row >= 0)
    position[switches, 1] = 1 - (row[switches] + 1) / max(count, 1)
    return Bars(position, span, _labels(links, row, position))


def _inside(span: F64) -> F64:
    """(n,) places of the lines of bars: evenly over each span, those with the same span beside each other."""
    _, group, sizes = np.unique(span, axis=0, return_inverse=True, return_counts=True)
    group = group.ravel()
    order = np.argsort(group, kind="stable")
    begins = np.cumsum(sizes) - sizes
    rank = np.empty(len(span))
    rank[order] = np.arange(len(span)) - begins[group[order]]
    places: F64 = span[:, 0] + (rank + 0.5) / sizes[group] * (span[:, 1] - span[:, 0])
    return places


def _packed(span: F64) -> I64:
    """(n,) the first row of each bar in which it lies beside all others."""
    ends: list[float] = []
    rows = np.zeros(len(span), dtype=np.int64)
    for bar in np.lexsort((np.arange(len(span)), span[:, 0])).tolist():
        row = next((row for row, end in enumerate(ends) if end < span[bar, 0]), len(ends))
        ends[row : row + 1] = [float(span[bar, 1])]
        rows[bar] = row
    return rows


def _labels(links: Fabric, row: Any, position: F64) -> list[tuple[float, str]]:
    """Return the height of each row, and what its switches are called, as far as they are called the same."""
    labels = []
    for number in np.unique(row[row >= 0]).tolist():
        nodes = np.flatnonzero(row == number).tolist()
        names = [links.node_name(node).split() for node in nodes]
        words = [words[0] for words in zip(*names, strict=False) if len(set(words)) == 1]
        is_named = len(nodes) == 1 or len(words) > 1  # several have more in common than that they are switches
        labels.append((float(position[nodes[0], 1]), " ".join(words) if is_named else f"{len(nodes)} switches"))
    return labels
