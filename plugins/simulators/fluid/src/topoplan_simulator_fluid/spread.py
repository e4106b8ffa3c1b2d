"""Loads of messages that take all equal paths between switches, for folded iterations.

A network for these (`topoplan_engine.network.kept.NetworkCache.for_folds`) has one path for each pair of hosts.  The
links at its ends, and those inside of hosts, are on every path.  Between them messages load the links of a route, of
which those are listed that may hold messages up (`topoplan_engine.network.spreading`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64, i32
from topoplan.model.fabric import Fabric
from topoplan_engine.csr import expand, indptr, select
from topoplan_engine.lowering.folding.patterns import MessageLoads, SpreadMessages
from topoplan_engine.network.spreading import Routes, between_switches
from topoplan_engine.network.tables import LOAD, Network
from topoplan_engine.simulation.flows import Entities

__all__ = ["with_spread"]


def with_spread(loads: MessageLoads, entities: Entities, network: Network) -> MessageLoads:
    """Return what messages put on links, those between switches among them; ``loads`` has one path for each."""
    spreading, fabric = network.spreading, network.fabric
    assert spreading is not None
    flow, row = _rows_of_flows(entities, network)
    rows, place = np.unique(row, return_inverse=True)
    enters, leaves = (ends[place.ravel()] for ends in network.ends_in_fabric(rows.astype(np.int32)))
    source, target = fabric.link_dst[enters].astype(np.int64), fabric.link_src[leaves].astype(np.int64)
    away = np.flatnonzero((enters >= 0) & (source != target))
    enters, leaves = np.unique(enters[away]), np.unique(leaves[away])
    keys, route = np.unique(source[away] * fabric.n_nodes + target[away], return_inverse=True)
    routes = Routes(
        *np.divmod(keys, fabric.n_nodes),
        enters=_rates(fabric.link_dst, enters, fabric),
        leaves=_rates(fabric.link_src, leaves, fabric),
    )
    pairs, count = np.unique(flow[away] * max(len(keys), 1) + route.ravel(), return_counts=True)
    flow, route = np.divmod(pairs, max(len(keys), 1))
    limits = spreading.limiting(routes)
    owner, entry = select(limits.ptr, route)
    cell, of_cell = np.unique(flow[owner] * np.int64(network.n_links) + limits.links[entry], return_inverse=True)
    total = np.bincount(of_cell.ravel(), count[owner] * limits.shares[entry], len(cell))
    added = _Entries(*np.divmod(cell, network.n_links), np.maximum(1, np.rint(total * LOAD)).astype(np.int64))
    between = np.zeros(network.n_links, dtype=bool)
    between[: fabric.n_links] = between_switches(fabric)
    spread = SpreadMessages(routes.source, routes.target, between, flow, route, count)
    return _merged(loads, between, added)._replace(draws=limits.several, spread=spread)


def _rates(ends: I32, links: I64, fabric: Fabric) -> F64:
    """(N,) bytes/s of some links together, by the nodes that they have at one end."""
    rates: F64 = np.bincount(ends[links], fabric.link_bandwidth[links], fabric.n_nodes).astype(np.float64)
    return rates


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


def _merged(loads: MessageLoads, between: np.ndarray, added: _Entries) -> MessageLoads:
    """Put entries in the place of those of links between switches."""
    stays = ~between[loads.links]
    flow = np.repeat(np.arange(len(loads.task)), np.diff(loads.load_ptr))[stays]
    flow = np.append(flow, added.flow)
    order = np.argsort(flow, kind="stable")
    links: I32 = i32(np.append(loads.links[stays], added.link)[order])
    return loads._replace(
        load_ptr=indptr(np.bincount(flow, minlength=len(loads.task))),
        links=links,
        loads=np.append(loads.loads[stays], added.load)[order],
        shares=np.append(loads.shares[stays], added.load)[order],
    )
