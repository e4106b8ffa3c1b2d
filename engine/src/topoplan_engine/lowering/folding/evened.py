"""Classes of messages that load different links between switches: which of these links hold them up together.

Where racks are of another size than stages, each host sends on links of its own, and nothing folds.  A class of
messages is then one flow that loads all links which any of them loads, as much as all of them together: it is as fast
as the slowest of them, which devices in lockstep wait for.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import I64
from topoplan_engine.lowering.folding.patterns import MessageLoads, SpreadMessages

__all__ = ["first_of_equal_links", "spread_of_flows"]


def first_of_equal_links(loads: MessageLoads, of: I64, first_link: I64) -> I64:
    """Return the link that represents each one, of links between switches those alone that are full before others.

    Links are equal if all classes of messages load them as much.  One that each class loads no more than another link,
    for its bandwidth, is never full before it; of such links the other one is the representative.

    Args:
        loads: of all messages.
        of: (N,) class of each flow.
        first_link: (E,) the representatives otherwise.
    """
    assert loads.spread is not None
    rows = np.repeat(np.arange(len(loads.task)), np.diff(loads.load_ptr))
    listed = np.flatnonzero(loads.spread.between[loads.links] & (of[rows] >= 0))
    first = first_link.copy()
    if not len(listed):
        return first
    links, link = np.unique(loads.links[listed], return_inverse=True)
    flows, flow = np.unique(of[rows[listed]], return_inverse=True)
    cell = link.ravel() * len(flows) + flow.ravel()
    total = np.bincount(cell, loads.loads[listed], len(links) * len(flows)).reshape(len(links), len(flows))
    seconds = total / loads.bandwidth[links, None]
    order = np.lexsort((links, -seconds.sum(axis=1)))
    front = np.zeros((0, len(flows)))
    front_links: list[int] = []
    for number in order.tolist():
        below = np.flatnonzero((seconds[number] <= front * (1 + 1e-9)).all(axis=1))
        if len(below):
            first[links[number]] = links[front_links[below[0]]]
            continue
        front_links.append(number)
        first[links[number]] = links[number]
        front = seconds[front_links]
    return first


def spread_of_flows(spread: SpreadMessages, of: I64) -> SpreadMessages:
    """Return what classes of flows put on routes, given the (N,) class of each flow."""
    sent = of[spread.flow] >= 0
    routes = len(spread.source)
    keys, place = np.unique(of[spread.flow[sent]] * routes + spread.route[sent], return_inverse=True)
    times = np.bincount(place.ravel(), spread.times[sent], len(keys)).astype(np.int64)
    flow, route = np.divmod(keys, max(routes, 1))
    return spread._replace(flow=flow, route=route, times=times)
