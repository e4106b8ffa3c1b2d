"""Classes of messages that load different links between switches: which of these links hold them up together.

Where racks are of another size than stages, each host sends on links of its own, and nothing folds.  A class of
messages is then one flow that loads all links which any of them loads, as much as all of them together: it is as fast
as the slowest of them, which devices in lockstep wait for.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import F64, I64
from topoplan_engine.csr import frozen, indptr, row_of_entry
from topoplan_engine.distinct import distinct_columns
from topoplan_engine.kernels.jit import kernel
from topoplan_engine.lowering.folding.class_loads import ClassLoads
from topoplan_engine.lowering.folding.classes import bits_of, label
from topoplan_engine.lowering.folding.patterns import SpreadMessages

__all__ = ["first_of_equal_links", "spread_of_flows"]


def first_of_equal_links(sums: ClassLoads, bandwidth: F64, first_link: I64) -> I64:
    """Return the link that represents each one, of some links those alone that are full before others.

    Links are equal if all classes of messages load them as much.  One that each class loads no more than another link,
    for its bandwidth, is never full before it; of such links the other one is the representative.

    Args:
        sums: what classes of flows put on these links: those that tell no messages apart.
        bandwidth: (E,) of all links.
        first_link: (E,) the representatives otherwise.
    """
    flows = len(sums.ptr) - 1
    first = first_link.copy()
    if not len(sums.links):
        return first
    order = np.argsort(sums.links, kind="stable")
    link, flow = sums.links[order].astype(np.int64), row_of_entry(sums.ptr)[order]
    seconds = sums.loads[order] / bandwidth[link]
    links, number = _of_equal_times(link, flow, seconds)
    kinds, some = len(links), np.isin(link, links)
    times = np.zeros((kinds, flows))
    times[np.searchsorted(links, link[some]), flow[some]] = seconds[some]
    front = _front(times)
    everyone = link[np.diff(link, prepend=-1) != 0]
    first[everyone] = links[front[number]]
    return first


def _of_equal_times(link: I64, flow: I64, seconds: F64) -> tuple[I64, I64]:
    """Return the first link of each kind that all flows keep busy for as long, ascending, and (n,) kinds of all links.

    Args:
        link, flow, seconds: (k,) how long a flow keeps a link busy, by link and flow.
    """
    begins = np.flatnonzero(np.diff(link, prepend=-1))
    with np.errstate(over="ignore"):
        key = np.add.reduceat(label(flow, bits_of(seconds)), begins)  # equal sums are taken for equal times
    _, first, kind = np.unique(key, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return link[begins[first[order]]], np.argsort(order)[kind.ravel()]


def _front(times: F64) -> I64:
    """(K,) the kind of links that represents each one, given the (K, F) seconds that flows keep them busy."""
    order = np.lexsort((np.arange(len(times)), -times.sum(axis=1)))
    ptr = indptr(np.count_nonzero(times, axis=0))
    room, places, ends = np.empty((2, len(times)), np.int64), np.empty(ptr[-1], np.int64), ptr[:-1].copy()
    flows, represents = np.empty(times.shape[1], np.int64), np.empty(len(times), np.int64)
    _represent(frozen(times), frozen(order), ptr, room, places, ends, flows, represents)
    return represents


@kernel
def _represent(
    times: F64, order: I64, ptr: I64, room: I64, places: I64, ends: I64, flows: I64, represents: I64
) -> None:
    """Write the first kind, in an order, that is as busy with every flow as each one is; itself if none before is.

    ``front[:end]`` are the kinds so far that represent themselves, and ``places[ptr[f] : ends[f]]`` those of them that
    flow f keeps busy, ascending.  A kind that is busy with a flow is represented by one of these: of those of the flow
    that has the fewest.
    """
    front, everyone = room
    end = 0
    for number in order:
        count, fewest = 0, -1
        for flow in range(times.shape[1]):
            if times[number, flow] > 0:
                flows[count] = flow
                count += 1
                if fewest < 0 or ends[flow] - ptr[flow] < ends[fewest] - ptr[fewest]:
                    fewest = flow
        place = end
        among = places[ptr[fewest] : ends[fewest]] if count else everyone[:end]
        for candidate in among:
            i = 0
            while i < count and times[number, flows[i]] <= times[front[candidate], flows[i]] * (1 + 1e-9):
                i += 1
            if i == count:
                place = candidate
                break
        if place == end:
            front[end], everyone[end] = number, end
            for flow in flows[:count]:
                places[ends[flow]] = end
                ends[flow] += 1
            end += 1
        represents[number] = front[place]


def spread_of_flows(spread: SpreadMessages, of: I64) -> SpreadMessages:
    """Return what classes of flows put on routes, given the (N,) class of each flow."""
    sent = of[spread.flow] >= 0
    flow, route = of[spread.flow[sent]], spread.route[sent]
    sums = distinct_columns(flow, route)
    times = np.bincount(sums.number, spread.times[sent], len(sums.first)).astype(np.int64)
    return spread._replace(flow=flow[sums.first], route=route[sums.first], times=times)
