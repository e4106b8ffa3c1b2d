"""The fabric as a picture: where hosts and switches stand, and how loaded the links between them are.

Hosts that all have links to the same offsets stand on a circle, hosts of a torus on a grid (`grids`), hosts and
switches in tiers; where many links join switches of one tier (dragonfly, HyperX, Slim Fly, Jellyfish), the switches
stand on a circle and their hosts around it; where hosts hang on several switches, as on rails, switches are bars
(`bars`).
Positions are in a square of side 1; both directions of a link are one line, as loaded as the busier of them.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.fabric import Fabric
from topoplan.model.plan import Plan
from topoplan.model.reconfigurable import ReconfigurableFabric
from topoplan_engine.network.building import host_links
from topoplan_html_report.alike import classes_of
from topoplan_html_report.bars import Bars, bars_of
from topoplan_html_report.columns import packed
from topoplan_html_report.grids import Grid, grid_of, places
from topoplan_html_report.limits import Limits

__all__ = ["fabric_picture"]

#: Characters of the longest name of a node that is shown in full.
_NAME = 40


@attrs.frozen
class _Layout:
    """Where nodes stand: (N, 2) from 0 to 1, and the sentence that says why."""

    name: str
    position: F64
    said: str
    bars: Bars | None = None
    grid: Grid | None = None


def fabric_picture(plan: Plan, limits: Limits) -> dict[str, Any]:
    """Return positions of nodes, and lines with their loads: seconds at full speed over those of the iteration.

    A node that is not drawn stands at -1.  A fabric that its only host does not use, or of more nodes than
    ``limits`` has, is not drawn at all.
    """
    links = plan.fabric.links
    timeline = plan.timeline
    busy = np.zeros(links.n_links) if timeline is None else timeline.link_busy[: links.n_links]
    load = busy / timeline.makespan if timeline is not None and timeline.makespan > 0 else busy
    low, high = np.minimum(links.link_src, links.link_dst), np.maximum(links.link_src, links.link_dst)
    line, row = np.unique(np.stack([low, high]).astype(np.int64), axis=1, return_inverse=True)
    most, total = np.zeros(line.shape[1]), np.zeros(line.shape[1])
    np.maximum.at(most, row.ravel(), load)
    np.add.at(total, row.ravel(), links.link_bandwidth)
    undrawn = _undrawn(links, load, limits)
    is_drawn = np.zeros(0, dtype=bool) if undrawn else _between_hosts(links, load)
    layout = undrawn or _layout(links, is_drawn)
    order = np.lexsort((np.arange(line.shape[1]), most))  # the busiest are drawn last, on top
    order = order[:0] if undrawn else order[is_drawn[line[:, order]].all(axis=0)]
    order, shown = _on_top(order, line, layout)
    lines = len(order)
    order = order[-limits.lines :]
    place = np.full(line.shape[1], -1)
    place[order] = np.arange(len(order))
    sentences = [layout.said]
    if isinstance(plan.fabric, ReconfigurableFabric):
        sentences.append("rebuilt between the phases of the iteration: the links of all phases are drawn")
    if hidden := int((~is_drawn).sum()):
        sentences.append(f"switches on no shortest path between hosts are not drawn ({hidden:,})")
    if lines > len(order):
        sentences.append(f"the {len(order):,} busiest of {lines:,} lines are drawn")
    return {
        "name": plan.fabric.name,
        "layout": layout.name,
        "said": "; ".join(sentences),
        "interfaces": host_links(plan.fabric, plan.cluster),
        "hosts": links.n_hosts,
        "switches": links.n_switches,
        "links": int(links.n_links),
        "names": [] if undrawn else [name[:_NAME] for name in links.node_names],
        "x": packed(layout.position[:, 0], "float32"),
        "y": packed(layout.position[:, 1], "float32"),
        "from": packed(line[0][order], "int32"),
        "to": packed(line[1][order], "int32"),
        "load": packed(most[order], "float32"),
        "bandwidth": packed(total[order], "float64"),
        "lineOfLink": place[shown[row.ravel()]],
        "loads": _distribution(load),
        **_bars_data(layout.bars),
        **({} if layout.grid is None else {"sides": list(layout.grid.sides)}),
    }


def _on_top(order: I64, line: I64, layout: _Layout) -> tuple[I64, I64]:
    """Return the lines to draw, and for each line the one that is seen in its place: bars may lie on each other."""
    shown = np.arange(line.shape[1])
    if layout.bars is None or not layout.bars.merged:
        return order, shown
    ends = layout.position[line[:, order]]
    across = np.where(ends[0, :, 1] > ends[1, :, 1], ends[0, :, 0], ends[1, :, 0])
    crossing = np.stack([across, ends[:, :, 1].min(axis=0)])
    _, busiest, of = np.unique(crossing[:, ::-1], axis=1, return_index=True, return_inverse=True)
    top = len(order) - 1 - busiest
    shown[order[::-1]] = order[top[of.ravel()]]
    return order[np.sort(top)], shown


def _bars_data(bars: Bars | None) -> dict[str, Any]:
    """Return what the page is given of bars; nothing where there are none."""
    if bars is None:
        return {}
    heights, names = zip(*bars.rows, strict=True)
    return {
        "low": packed(bars.span[:, 0], "float32"),
        "high": packed(bars.span[:, 1], "float32"),
        "rows": {"y": list(heights), "name": [name[:_NAME] for name in names]},
    }


def _undrawn(links: Fabric, load: F64, limits: Limits) -> _Layout | None:
    """Return what is said of a fabric that is not drawn: one that one host does not use, or of too many nodes."""
    if links.n_hosts == 1 and not load.any():
        return _Layout("none", np.zeros((0, 2)), "1 host, which sends nothing")
    if links.n_nodes <= limits.nodes:
        return None
    switches = f" and {links.n_switches:,} switches" if links.n_switches else ""
    sentence = f"{links.n_hosts:,} hosts{switches}, which are not drawn: a picture has {limits.nodes:,} nodes at most"
    return _Layout("none", np.zeros((0, 2)), sentence)


def _between_hosts(links: Fabric, load: F64) -> Any:
    """Return (N,) flags of the nodes that are drawn: hosts, what is used, and switches that may be between two hosts.

    A shortest path of n links between hosts leads over nodes that are n / 2 links away from one of them at most, so
    switches that are farther from all hosts than half of the longest such path are on none: empty pods of a fat-tree,
    and switches that nothing is joined to.
    """
    is_drawn = np.ones(links.n_nodes, dtype=bool)
    if not links.n_switches:
        return is_drawn
    tier = _tier(links)
    ways = [links.link_dst[links.link_src == host].tobytes() for host in range(links.n_hosts)]
    apart = max(int(_distance(links, members[0])[: links.n_hosts].max()) for members in classes_of(ways))
    is_drawn = tier <= apart // 2
    is_drawn[: links.n_hosts] = True
    is_drawn[links.link_src[load > 0]] = is_drawn[links.link_dst[load > 0]] = True
    return is_drawn


def _distance(links: Fabric, host: int) -> I64:
    """Return (N,) links from a host to every node; -1 where there is no way."""
    first = np.zeros(links.n_nodes, dtype=bool)
    first[host] = True
    return _levels(links, first)


def _levels(links: Fabric, first: Any) -> I64:
    """Return (N,) links from the nearest of the flagged nodes; -1 where there is no way."""
    level = np.where(first, 0, -1)
    height = 0
    while first.any():
        height += 1
        first = np.bincount(links.link_dst[first[links.link_src]], minlength=links.n_nodes) > 0
        first &= level < 0
        level[first] = height
    return level


def _tier(links: Fabric) -> I64:
    """Return (N,) links from each node to the nearest host; more than any way has where there is none."""
    tier = _levels(links, np.arange(links.n_nodes) < links.n_hosts)
    return np.where(tier < 0, 2 * links.n_nodes, tier)


def _distribution(load: F64) -> dict[str, float]:
    """Return the least, the mean and the greatest load of links."""
    if not len(load):
        return {}
    return {"least": float(load.min()), "mean": float(load.mean()), "most": float(load.max())}


def _layout(links: Fabric, is_drawn: Any) -> _Layout:
    if links.n_switches:
        tier = np.where(is_drawn, _tier(links), -1)
        if _is_direct(links, tier):
            return _around(links, tier)
        bars = bars_of(links, tier)
        return _tiers(links, tier) if bars is None else _Layout("bars", bars.position, _bars_text(tier, bars), bars)
    offsets = _offsets(links)
    if offsets is None:
        grid = grid_of(links)
        if grid is not None:
            sentence = f"a {'twisted ' * grid.twisted}grid of {' x '.join(map(str, grid.sides))} hosts"
            return _Layout("grid", places(grid.sides), sentence, grid=grid)
        return _Layout("circle", _circle(links.n_hosts), "hosts on a circle, in the order of their numbers")
    if len(offsets) >= links.n_hosts - 1 > 2:
        return _Layout("circle", _circle(links.n_hosts), "every host is wired to every other one")
    steps = ", ".join(f"{step:+d}" for step in offsets)
    return _Layout("circle", _circle(links.n_hosts), f"every host is wired to those {steps} places ahead")


def _circle(count: int) -> F64:
    angle = 2 * np.pi * np.arange(count) / max(count, 1)
    return np.stack([0.5 + 0.5 * np.sin(angle), 0.5 - 0.5 * np.cos(angle)], axis=1)


def _offsets(links: Fabric) -> list[int] | None:
    """Return how far ahead the links of a host lead, if they do the same at every host (a circulant)."""
    n = links.n_hosts
    step = (links.link_dst - links.link_src) % max(n, 1)
    values, counts = np.unique(step, return_counts=True)
    if not len(values) or (counts != n).any():
        return None
    return sorted((int(value) if value <= n // 2 else int(value) - n for value in values), key=lambda s: (abs(s), -s))


def _is_direct(links: Fabric, tier: Any) -> bool:
    """Say whether a fifth of the links of switches join switches of one tier, as links between tiers do not."""
    ends = tier[links.link_src], tier[links.link_dst]
    between_switches = np.minimum(*ends) > 0
    return bool(5 * (between_switches & (ends[0] == ends[1])).sum() > between_switches.sum())


def _around(links: Fabric, tier: Any) -> _Layout:
    """Return switches on a circle, in the order of their numbers, and each host outside of the first one it has."""
    hosts = links.n_hosts
    switches = hosts + np.flatnonzero(tier[hosts:] >= 0)
    position = np.full((links.n_nodes, 2), -1.0)
    position[switches] = 0.5 + 0.68 * (_circle(len(switches)) - 0.5)
    rank = np.zeros(links.n_nodes)
    rank[switches] = np.arange(len(switches))
    up = (links.link_src < hosts) & (links.link_dst >= hosts)
    first = np.full(hosts, links.n_nodes - 1)
    np.minimum.at(first, links.link_src[up], links.link_dst[up])
    # Hosts of one switch share the arc between the middles to the next switches.
    order = np.argsort(first, kind="stable")
    counts = np.bincount(first, minlength=links.n_nodes)
    begins = np.cumsum(counts) - counts
    share = (np.arange(hosts) - begins[first[order]] + 0.5) / counts[first[order]] - 0.5
    angle = 2 * np.pi * (rank[first[order]] + 0.8 * share) / max(len(switches), 1)
    position[order] = np.stack([0.5 + 0.5 * np.sin(angle), 0.5 - 0.5 * np.cos(angle)], axis=1)
    sentence = (
        f"{hosts:,} hosts around {len(switches):,} switches, which stand on a circle in the order of their numbers"
    )
    return _Layout("around", position, sentence)


def _tiers(links: Fabric, tier: Any) -> _Layout:
    """Return hosts below and switches above, each as many tiers up as links away from the nearest host."""
    is_drawn = tier >= 0
    heights = np.unique(tier[is_drawn]).tolist()
    top = max(heights[-1], 1)
    position = np.full((links.n_nodes, 2), -1.0)
    position[is_drawn, 1] = 1 - tier[is_drawn] / top
    for height in heights:
        nodes = np.flatnonzero(tier == height)
        if height:
            nodes = nodes[np.lexsort((nodes, _below(links, nodes, tier, position)))]
        position[nodes, 0] = (np.arange(len(nodes)) + 0.5) / max(len(nodes), 1)
    counts = [int((tier == height).sum()) for height in heights]
    sentence = ", ".join([f"{counts[0]} hosts", *(f"{count} switches above" for count in counts[1:])])
    return _Layout("tiers", position, sentence.replace("1 switches", "1 switch"))


def _bars_text(tier: Any, bars: Bars) -> str:
    counts = np.bincount(tier[tier >= 0])
    above = ", ".join(f"{count} switches" for count in counts[1:].tolist()).replace("1 switches", "1 switch")
    merged = ", of which those over the same switches are one" if bars.merged else ""
    return f"{counts[0]} hosts as vertical lines, {above} as bars above{merged}; links are the points where they cross"


def _below(links: Fabric, nodes: I64, tier: Any, position: F64) -> F64:
    """Return the mean place of the neighbours of nodes in the tier below."""
    down = (tier[links.link_dst] == tier[links.link_src] - 1) & (tier[links.link_dst] >= 0)
    total = np.bincount(links.link_src[down], position[links.link_dst[down], 0], links.n_nodes)
    count = np.bincount(links.link_src[down], minlength=links.n_nodes)
    return np.asarray((total / np.maximum(count, 1))[nodes])
