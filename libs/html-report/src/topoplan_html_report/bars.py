"""Fabrics whose hosts have links to several switches, such as rails: switches as bars, hosts as lines that cross them.

Lines from every host to each of its rails would cross each other everywhere.  Here a switch is a horizontal bar over
what hangs on it, a host or a switch below a vertical line up to the highest of its bars, and a link the point where
both cross.  Bars that are not over the same nodes share a row, as the same rail of several units does.  Where there are
too many rows, switches that join the same switches below, such as the spines of a rail, are one bar.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.fabric import Fabric
from topoplan_html_report.alike import classes_of

__all__ = ["Bars", "bars_of"]

#: Rows of which each can be seen, and rows with a bar for each switch at most.
_ROWS = 120
_SEPARATE = 48
#: Rows that are left free between two tiers.
_BETWEEN = 1


@attrs.frozen
class Bars:
    """N nodes.

    Attributes:
        position: (N, 2) from 0 to 1: where the line of a node stands, and the height of its bar; -1 for one not drawn.
        span: (N, 2) from 0 to 1: ends of bars; those of hosts are points.
        rows: for each row, its height and the words that all of its switches have in their names, or how many they are.
        merged: whether several switches are one bar.
    """

    position: F64
    span: F64
    rows: list[tuple[float, str]]
    merged: bool


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
    return _stacked(links, tier, pairs, _SEPARATE, merged=False) or _stacked(links, tier, pairs, _ROWS, merged=True)


def _stacked(links: Fabric, tier: I64, pairs: I64, most: int, *, merged: bool) -> Bars | None:
    """Return bars tier above tier, each a row above those that it would lie on; None where there are too many rows."""
    hosts = links.n_hosts
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
        # Rails of a unit are over the same hosts, and stay lanes of their own.
        first, of = _same(nodes, pairs, position) if merged and height > 1 else (nodes, np.arange(len(nodes)))
        position[nodes, 0] = _inside(span[first])[of]
        of_tier = _packed(span[first], [links.node_name(node).split() for node in first.tolist()])
        row[nodes] = count + of_tier[of]
        count += int(of_tier.max(initial=-1)) + 1 + _BETWEEN
    if count > most:
        return None
    position[:hosts, 1] = 1.0
    switches = np.flatnonzero(row >= 0)
    position[switches, 1] = 1 - (row[switches] + 1) / max(count, 1)
    return Bars(position, span, _labels(links, row, position), merged)


def _same(nodes: I64, pairs: I64, position: F64) -> tuple[I64, I64]:
    """Return the first of the nodes that are over the same places of the tier below, and which of these each has."""
    rows = np.flatnonzero(np.isin(pairs[1], nodes))
    rows = rows[np.argsort(pairs[1][rows], kind="stable")]
    begins = np.searchsorted(pairs[1][rows], nodes)
    below = np.split(position[pairs[0][rows], 0], begins[1:])
    members = classes_of([np.unique(places).tobytes() for places in below])
    of = np.empty(len(nodes), dtype=np.int64)
    for number, each in enumerate(members):
        of[each] = number
    return nodes[[each[0] for each in members]], of


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


def _packed(span: F64, names: list[list[str]]) -> I64:
    """(n,) rows in which bars lie beside all others: of free ones that of the names most like its own, as of a rail."""
    ends: list[float] = []
    words: list[list[str]] = []
    first: list[int] = []
    rows = np.zeros(len(span), dtype=np.int64)
    for bar in np.lexsort((np.arange(len(span)), span[:, 0])).tolist():
        free = [row for row, end in enumerate(ends) if end < span[bar, 0]]
        row = max(free, key=lambda row: (_common(words[row], names[bar]), -row), default=len(ends))
        first[row : row + 1] = [min([bar, *first[row : row + 1]])]
        ends[row : row + 1], words[row : row + 1] = [float(span[bar, 1])], [names[bar]]
        rows[bar] = row
    height = np.empty(len(first), dtype=np.int64)
    height[np.argsort(first)] = np.arange(len(first))
    return height[rows]


def _common(words: list[str], name: list[str]) -> int:
    return sum(word == of_name for word, of_name in zip(words, name, strict=False))


def _labels(links: Fabric, row: Any, position: F64) -> list[tuple[float, str]]:
    """Return the height of each row, and what its switches are called, as far as they are called the same."""
    labels = []
    for number in np.unique(row[row >= 0]).tolist():
        nodes = np.flatnonzero(row == number).tolist()
        names = [links.node_name(node).split() for node in nodes]
        words = [words[0] for words in zip(*names, strict=False) if len(set(words)) == 1]
        is_named = len(nodes) == 1 or len(words) > 1  # several have more in common than that they are switches
        several = f"{len(nodes)} {words[0]}s" if words not in ([], ["switch"]) else f"{len(nodes)} switches"
        labels.append((float(position[nodes[0], 1]), " ".join(words) if is_named else several))
    return labels
