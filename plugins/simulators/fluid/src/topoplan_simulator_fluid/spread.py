"""Loads of messages that take all equal paths between switches, for folded iterations.

A network for these (`topoplan_engine.network.kept.NetworkCache.for_folds`) has one path for each pair of hosts.  The
links at its ends, and those inside of hosts, are on every path.  Between them messages load the links of a route, of
which those are listed that may hold messages up (`topoplan_engine.network.spreading`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan_engine.csr import expand, frozen, indptr
from topoplan_engine.distinct import distinct_columns
from topoplan_engine.kernels.jit import inline_kernel, kernel
from topoplan_engine.lowering.folding.patterns import MessageLoads, SpreadMessages
from topoplan_engine.network.doors import own_place
from topoplan_engine.network.ring_loads import ring_loads
from topoplan_engine.network.spreading import AtHosts, Limiting
from topoplan_engine.network.tables import LOAD, Network
from topoplan_engine.simulation.flows import Entities

__all__ = ["on_routes", "with_rates_of_one_path", "with_rates_of_one_way", "with_spread"]


def with_spread(loads: MessageLoads, entities: Entities, network: Network) -> MessageLoads:
    """Return what messages put on links, those on routes among them; ``loads`` has one path for each."""
    spreading = network.spreading
    assert spreading is not None
    flow, row = _rows_of_flows(entities, network)
    of_row, place = distinct_columns(row)
    source, target = (ends[place] for ends in network.ends_of(row[of_row].astype(np.int32)))
    as_kept = np.isin(flow, flow[source < -1])
    away = np.flatnonzero((source >= 0) & ~as_kept)
    routes, route = spreading.routes(source[away], target[away])
    sent, route = away[route >= 0], route[route >= 0]
    limits = spreading.limiting(routes)
    ends = (source[sent], target[sent]) if spreading.doors.has_doors else (np.zeros(len(sent), np.int64),) * 2
    ways = distinct_columns(flow[sent], route, *ends)
    of_way, counts = ways.first, ways.counts
    of_flow, on_route = flow[sent][of_way], route[of_way]
    ways_of = indptr(np.bincount(of_flow, minlength=len(loads.task)))
    added = _Added(ways_of, on_route, counts, *(end[of_way] for end in ends))
    pairs = np.flatnonzero((np.diff(of_flow, prepend=-1) != 0) | (np.diff(on_route, prepend=-1) != 0))
    count = np.add.reduceat(counts, pairs) if len(pairs) else counts
    between = np.zeros(network.n_links, dtype=bool)
    between[spreading.between] = True
    spread = SpreadMessages(routes.source, routes.target, between, of_flow[pairs], on_route[pairs], count)
    stays = np.zeros(len(loads.task), dtype=bool)
    stays[flow[as_kept]] = True
    merged = _merged(loads, stays, on_routes(network), added, limits, spreading.at_hosts)
    draws = spreading.draws(limits.least_share[on_route], of_flow, entities.ring >= 0, network.lanes.most)
    return merged._replace(draws=draws, spread=spread)


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
    path = paths.row_ptr[entities.path_set[transfers]]
    rate = np.empty(len(path))
    _rates_at_ends(path, paths.path_ptr, paths.links, paths.bandwidth, on_routes(network), rate)
    slower = paths.slowest[path] < rate
    transfers, rate = transfers[slower], paths.slowest[path[slower]] * interfaces.most
    cap[transfers], max_rate[transfers] = len(caps) + np.arange(len(rate)), rate
    return entities._replace(cap=cap, max_rate=max_rate, caps=np.append(caps, rate))


@kernel
def _rates_at_ends(path: I64, path_ptr: I64, links: I32, bandwidth: F64, spread: Any, rate: F64) -> None:
    """Write the smallest bandwidth of the links of each path that are not ``spread`` (E,); infinite without any."""
    for k in range(len(path)):
        rate[k] = np.inf
        for i in range(path_ptr[path[k]], path_ptr[path[k] + 1]):
            if not spread[links[i]]:
                rate[k] = min(rate[k], bandwidth[links[i]])


def with_rates_of_one_path(entities: Entities, network: Network) -> Entities:
    """Hold messages that load all kept paths at a time to the rate of one, the fastest: each would draw one."""
    paths = network.paths
    transfers = np.flatnonzero((entities.path_set >= 0) & (entities.cap < 0))
    first, place = distinct_columns(entities.path_set[transfers])
    rows = entities.path_set[transfers][first]
    several = np.flatnonzero(np.diff(paths.row_ptr)[rows] > 1)
    if not len(several):
        return entities
    once, columns = (
        np.ones(len(several), np.int64),
        (paths.row_ptr, paths.path_ptr, paths.links, paths.cumulative_weight),
    )
    ptr, links, loads = ring_loads(rows[several], once, *columns, network.n_links)
    by_weight, path_rate = np.full((2, len(rows)), np.inf)
    by_weight[several] = np.minimum.reduceat(paths.bandwidth[links] * (LOAD / loads), ptr[:-1])
    owner, path = expand(paths.row_ptr[rows[several]], np.diff(paths.row_ptr)[rows[several]])
    path_rate[several] = 0.0
    np.maximum.at(path_rate, several[owner], paths.slowest[path])
    some = (path_rate * (1 + 1e-9) < by_weight)[place]
    transfers, rate = transfers[some], path_rate[place][some]
    cap, max_rate = entities.cap.copy(), entities.max_rate.copy()
    cap[transfers], max_rate[transfers] = len(entities.caps) + np.arange(len(rate)), rate
    return entities._replace(cap=cap, max_rate=max_rate, caps=np.append(entities.caps, rate))


class _Added(NamedTuple):
    """What flows put on links that they have no entries of, as compressed rows: n routes.

    Attributes:
        ptr: (N+1,) those of each flow.
        route, times: (n,) a route, and how many messages of the flow take it.
        source, target: (n,) hosts at the ends of these messages.
    """

    ptr: I64
    route: I64
    times: I64
    source: I64
    target: I64


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


def _merged(
    loads: MessageLoads, stays: Any, spread: Any, added: _Added, limits: Limiting, at_hosts: AtHosts
) -> MessageLoads:
    """Put the links of routes in the place of those that are ``spread`` (E,), but for flows of which all ``stays``."""
    per_route = np.diff(limits.ptr)[added.route]
    most = len(loads.links) + 2 * int(per_route.sum())
    load_ptr = np.zeros(len(loads.task) + 1, np.int64)
    links, units = np.empty(most, np.int32), np.empty(most, np.int64)
    shares = units if loads.shares is loads.loads else np.empty(most, np.int64)
    before = _Rows(loads.load_ptr, loads.links, loads.loads, loads.shares)
    routes = _Rows(limits.ptr, limits.links, limits.shares, limits.shares)
    after = _Rows(load_ptr, links, units, shares)
    _merge(stays, spread, before, added, routes, at_hosts, np.zeros(len(loads.bandwidth)), after)
    end = load_ptr[-1]
    loaded = units[:end]
    return loads._replace(
        load_ptr=load_ptr, links=frozen(links[:end]), loads=loaded, shares=loaded if shares is units else shares[:end]
    )


class _Rows(NamedTuple):
    """Links of rows, and what is put there."""

    ptr: I64
    links: Any
    loads: Any
    shares: Any


@kernel
def _merge(
    stays: Any, spread: Any, before: _Rows, added: _Added, routes: _Rows, at_hosts: AtHosts, total: F64, after: _Rows
) -> None:
    """Write ``after``: of each flow the links that stay, and behind them those of routes, each once.

    ``total`` (E,) is room, all 0.
    """
    end = 0
    for flow in range(len(stays)):
        for i in range(before.ptr[flow], before.ptr[flow + 1]):
            if stays[flow] or not spread[before.links[i]]:
                after.links[end], after.loads[end] = before.links[i], before.loads[i]
                after.shares[end] = before.shares[i]
                end += 1
        first = end
        for way in range(added.ptr[flow], added.ptr[flow + 1]):
            for i in range(routes.ptr[added.route[way]], routes.ptr[added.route[way] + 1]):
                link, part = routes.links[i], added.times[way] * routes.loads[i]
                first_link, second_link = at_hosts.links[0, link], at_hosts.links[1, link]
                if at_hosts.ends.number[link] >= 0:
                    side, place = own_place(at_hosts.ends, link, added.source[way], added.target[way])
                    first_link, second_link = at_hosts.of_hosts[side, 0, place], at_hosts.of_hosts[side, 1, place]
                end = _put(after.links, total, first_link, part, end)
                if second_link >= 0:
                    end = _put(after.links, total, second_link, part, end)
        for i in range(first, end):
            after.loads[i] = max(1, int(np.rint(total[after.links[i]] * LOAD)))
            after.shares[i] = after.loads[i]
            total[after.links[i]] = 0.0
        after.ptr[flow + 1] = end


@inline_kernel
def _put(links: I32, total: F64, link: int, part: float, end: int) -> int:
    """Add to what is put on a link, which is listed if it is not yet; return the end of the list."""
    if total[link] == 0.0 and part > 0.0:
        links[end] = link
        end += 1
    total[link] += part
    return end
