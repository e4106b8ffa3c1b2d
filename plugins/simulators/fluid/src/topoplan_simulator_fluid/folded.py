"""Simulating a folded iteration: one flow for each class of flows, with the loads of all of them.

`message_loads` says what the messages of an iteration put on links, for the color refinement of
`topoplan_engine.lowering.folding`; `folded_loads` gives the flows of the folded iteration the loads of their classes.
Both ask the network as for any task graph, so that routes, rings and what is inside of hosts are those of the whole
iteration.  A flow that would draw one of several paths loads each by its weight.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import F64, I64, i32, i64
from topoplan.model.taskgraph import TaskGraph
from topoplan_engine.csr import indptr, select
from topoplan_engine.lowering.folding.layout import FoldedIteration
from topoplan_engine.lowering.folding.patterns import MessageLoads
from topoplan_engine.network.ring_loads import ring_loads
from topoplan_engine.network.tables import LOAD, ONE_PATH, Network
from topoplan_engine.simulation.columns import columns
from topoplan_engine.simulation.flows import Entities, build
from topoplan_engine.simulation.messages import Transport
from topoplan_simulator_fluid.max_min import ALWAYS, GRAIN
from topoplan_simulator_fluid.prepared import Prepared

__all__ = ["folded_loads", "link_bytes", "message_loads"]


def _entities(taskgraph: TaskGraph, network: Network) -> tuple[Entities, bool]:
    """Return the flows of a task graph on the wire, none of which draws paths, and whether one would."""
    traffic = network.lower(taskgraph)
    rings = network.rings_in_full
    draws = bool((rings.choice[np.unique(traffic.ring[traffic.ring >= 0])] != ONE_PATH).any())
    certain = rings._replace(choice=np.full_like(rings.choice, ONE_PATH))
    entities = build(columns(taskgraph), traffic, network.paths, certain, False, int(Transport.WIRE))
    rows = entities.path_set[entities.path_set >= 0]
    return entities, draws or bool((np.diff(network.paths.row_ptr)[rows] > 1).any())


def message_loads(taskgraph: TaskGraph, network: Network) -> MessageLoads:
    """Return what each flow of each task puts on links."""
    entities, draws = _entities(taskgraph, network)
    paths, rings, transfers = network.paths, network.rings_in_full, entities.path_set >= 0
    rows = entities.path_set[transfers]
    ptr, links, loads = ring_loads(
        rows,
        np.ones(len(rows), np.int64),
        paths.row_ptr,
        paths.path_ptr,
        paths.links,
        paths.cumulative_weight,
        network.n_links,
    )
    ring = entities.ring[~transfers]
    of_ring, entry = select(rings.load_ptr, ring)
    lengths = np.zeros(len(transfers), np.int64)
    lengths[transfers], lengths[~transfers] = np.diff(ptr), np.bincount(of_ring, minlength=len(ring))
    load_ptr = indptr(lengths)
    of_transfer = np.repeat(transfers, lengths)
    all_links, all_loads = np.empty(load_ptr[-1], np.int32), np.empty(load_ptr[-1], np.int64)
    all_links[of_transfer], all_loads[of_transfer] = links, loads
    all_links[~of_transfer], all_loads[~of_transfer] = rings.load_links[entry], rings.load[entry]
    constants = np.stack([entities.setup_latency, entities.drain_latency, entities.max_rate], axis=1)
    constants[transfers, 0] = paths.delay[paths.row_ptr[rows]]
    constants[:, 2] = np.where(entities.cap >= 0, constants[:, 2], 0.0)
    shares = -(-all_loads // GRAIN) * GRAIN  # as sharing rounds each flow's load
    return MessageLoads(entities.task, load_ptr, all_links, all_loads, shares, constants, paths.bandwidth, draws)


def folded_loads(folded: FoldedIteration, network: Network) -> Prepared:
    """Return the columns of a folded iteration, whose flows have the loads of their classes."""
    entities, _ = _entities(folded.taskgraph, network)
    flow = _flow_of(folded, entities)
    lengths = np.diff(folded.load_ptr)
    rings = network.rings_in_full._replace(
        load_ptr=i64(folded.load_ptr), load_links=i32(folded.links), load=i64(folded.shares)
    )
    changed = entities._replace(ring=flow, slot_ptr=indptr(lengths[flow] + (entities.cap >= 0)))
    cluster = network.cluster
    return Prepared(
        columns(folded.taskgraph), changed, network.paths, rings, cluster.n_devices, int(Transport.WIRE), ALWAYS
    )


def _flow_of(folded: FoldedIteration, entities: Entities) -> I64:
    """(N,) the flow of the class of messages that each entity is."""
    task = entities.task
    flow: I64 = folded.flow_ptr[folded.message[task]] + np.arange(len(task)) - entities.of_task[task]
    return flow


def link_bytes(folded: FoldedIteration, prepared: Prepared) -> F64:
    """(E,) bytes that cross each link."""
    entities = prepared.entities
    sent = np.bincount(entities.ring, entities.volume * entities.rounds, len(folded.load_ptr) - 1)
    per_flow = np.repeat(sent, np.diff(folded.load_ptr))
    total = np.bincount(folded.links, per_flow * (folded.loads / LOAD), len(folded.first_link))
    crossed: F64 = total[folded.first_link].astype(np.float64)
    return crossed
