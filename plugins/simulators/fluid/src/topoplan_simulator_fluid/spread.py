"""Loads of messages that take all equal paths between switches, for folded iterations.

A network for these (`topoplan_engine.network.kept.NetworkCache.for_folds`) has one path for each pair of hosts.  The
links at its ends, and those inside of hosts, are on every path.  Between them messages load the links of a route, of
which those are listed that may hold messages up (`topoplan_engine.network.spreading`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import I32, I64, i32
from topoplan_engine.csr import expand, indptr, select
from topoplan_engine.distinct import distinct_columns
from topoplan_engine.lowering.folding.patterns import MessageLoads, SpreadMessages
from topoplan_engine.network.tables import LOAD, Network
from topoplan_engine.simulation.flows import Entities

__all__ = ["on_routes", "with_rates_of_one_way", "with_spread"]


def with_spread(loads: MessageLoads, entities: Entities, network: Network) -> MessageLoads:
    """Return what messages put on links, those on routes among them; ``loads`` has one path for each."""
    spreading = network.spreading
    assert spreading is not None
    flow, row = _rows_of_flows(entities, network)
    rows, place = np.unique(row, return_inverse=True)
    source, target = (ends[place.ravel()] for ends in network.ends_of(rows.astype(np.int32)))
    as_kept = np.isin(flow, flow[source < -1])
    away = np.flatnonzero((source >= 0) & ~as_kept)
    routes, route = spreading.routes(source[away], target[away])
    sent, route = away[route >= 0], route[route >= 0]
    limits = spreading.limiting(routes)
    ends = (source[sent], target[sent]) if spreading.doors.has_doors else (np.zeros(len(sent), np.int64),) * 2
    ways = distinct_columns(flow[sent], route, *ends)
    of_way = ways.first
    owner, entry = select(limits.ptr, route[of_way])
    some, link = spreading.links_of(limits.links[entry], *(end[of_way][owner] for end in ends))
    owner, entry = owner[some], entry[some]
    cells = flow[sent][of_way][owner] * np.int64(network.n_links) + link
    cell, of_cell = np.unique(cells, return_inverse=True)
    total = np.bincount(of_cell.ravel(), ways.counts[owner] * limits.shares[entry], len(cell))
    added = _Entries(*np.divmod(cell, network.n_links), np.maximum(1, np.rint(total * LOAD)).astype(np.int64))
    count_of = max(len(routes.source), 1)
    pairs, count = np.unique(flow[sent] * count_of + route, return_counts=True)
    of_pair, route = np.divmod(pairs, count_of)
    between = np.zeros(network.n_links, dtype=bool)
    between[spreading.between] = True
    spread = SpreadMessages(routes.source, routes.target, between, of_pair, route, count)
    return _merged(loads, on_routes(network), np.unique(flow[as_kept]), added)._replace(
        draws=limits.several, spread=spread
    )


def on_routes(network: Network) -> np.ndarray:
    """(E,) whether each link of a network is on routes, and so carries shares of messages."""
    between = np.zeros(network.n_links, dtype=bool)
    if network.spreading is not None:
        between[network.spreading.links] = True
    return between


def with_rates_of_one_way(entities: Entities, network: Network) -> Entities:
    """Hold messages, and rings, that load several ways at a time to the rate of those that they would draw.

    A message draws one way for each of its stripes.  A ring draws one for each member, on each of the planes and rails
    of a network.  Where hosts forward, stripes are of several sizes: links of hosts hold them up, and nothing else.
    """
    paths, interfaces, cap = network.paths, network.interfaces, entities.cap.copy()
    planes = network.lanes.most * (interfaces.most if interfaces.on_rails else 1)
    capped_rings = np.flatnonzero((entities.ring >= 0) & (cap >= 0))
    max_rate, caps = entities.max_rate.copy(), entities.caps.copy()
    max_rate[capped_rings] *= planes
    caps[cap[capped_rings]] *= planes
    transfers = np.flatnonzero(entities.path_set >= 0)
    if interfaces.most > 1 and not interfaces.on_rails:
        transfers = transfers[:0]
    rows, place = np.unique(entities.path_set[transfers], return_inverse=True)
    path = paths.row_ptr[rows]
    owner, entry = select(paths.path_ptr, path)
    links = paths.links[entry]
    certain = ~on_routes(network)[links]
    of_ends = np.full(len(rows), np.inf)
    np.minimum.at(of_ends, owner[certain], paths.bandwidth[links[certain]])
    slower = (paths.slowest[path] < of_ends)[place.ravel()]
    transfers, rate = transfers[slower], paths.slowest[path][place.ravel()][slower] * interfaces.most
    cap[transfers], max_rate[transfers] = len(caps) + np.arange(len(rate)), rate
    return entities._replace(cap=cap, max_rate=max_rate, caps=np.append(caps, rate))


class _Entries(NamedTuple):
    """Units of load of flows on links."""

    flow: I64
    link: I64
    load: I64


def _rows_of_flows(entities: Entities, network: Network) -> tuple[I64, I64]:
    """Return the rows of paths of each flow: (flow, row); of a ring one for each of its members."""
    rings = network.rings_in_full
    transfers = np.flatnonzero(entities.path_set >= 0)
    of_rings = np.flatnonzero(entities.ring >= 0)
    group = np.searchsorted(rings.ring, entities.ring[of_rings], "right") - 1
    members = rings.members[group].astype(np.int64)
    first = rings.first[group] + (entities.ring[of_rings] - rings.ring[group]) * members
    owner, place = expand(first, members)
    flows = np.append(transfers, of_rings[owner])
    return flows, np.append(entities.path_set[transfers], rings.rows[place]).astype(np.int64)


def _merged(loads: MessageLoads, spread: np.ndarray, as_kept: I64, added: _Entries) -> MessageLoads:
    """Put entries in the place of those of links on routes, but for flows that are on the paths that are kept."""
    flow = np.repeat(np.arange(len(loads.task)), np.diff(loads.load_ptr))
    stays = ~spread[loads.links]
    if len(as_kept):
        stays |= np.isin(flow, as_kept)
    flow = flow[stays]
    flow = np.append(flow, added.flow)
    order = np.argsort(flow, kind="stable")
    links: I32 = i32(np.append(loads.links[stays], added.link)[order])
    return loads._replace(
        load_ptr=indptr(np.bincount(flow, minlength=len(loads.task))),
        links=links,
        loads=np.append(loads.loads[stays], added.load)[order],
        shares=np.append(loads.shares[stays], added.load)[order],
    )
