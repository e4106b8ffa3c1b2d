"""Simulating the quotient of an SPMD program: the messages of one device load links for those of all.

All hosts hang on one switch, in the same way, and one collective at a time uses the network
(`topoplan_engine.lowering.spmd_quotient`).  So all links of a kind, those that leave hosts for the switch say, carry
the same load at any time, and one of each kind is enough.  A host of ``k`` devices has ``k / r`` groups with ``r`` of
their ``m`` members each:

* A ring crosses the links of its group's hosts once each; ``k / r`` rings do so on those between hosts, one on those
  inside.
* An all-to-all sends ``k (m - r)`` messages from a host to others, and ``r - 1`` from a device to those of its host.
  Messages within one window (`topoplan_simulator_fluid.bursts`) wait for each other: ``k r`` go to each of the
  ``m / r - 1`` other hosts, one after the other.

Data flow: `program_loads` takes the columns of the quotient as if it were a whole task graph, and replaces messages and
loads; `spread` gives the bytes that crossed the links to all links of a kind.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I64, i32, i64
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.lowering.spmd_quotient import ProgramQuotient
from topoplan_engine.network.tables import LOAD, Network
from topoplan_engine.simulation.columns import Outcome, columns
from topoplan_engine.simulation.flows import Entities, build
from topoplan_simulator_fluid.bursts import BURST
from topoplan_simulator_fluid.kernel import run
from topoplan_simulator_fluid.prepared import Prepared
from topoplan_simulator_fluid.quotient import Star, switch_links

__all__ = ["ProgramLoads", "program_loads", "spread"]

#: Messages in the longest queue between two hosts that is simulated wherever it comes up.  Longer ones are simulated
#: once for all equal all-to-alls, whose times then differ by rounding.
_QUEUE = 256


class ProgramLoads(NamedTuple):
    """The columns of a program's quotient, and (E,) bytes over links that none of its messages counts."""

    prepared: Prepared
    link_bytes: F64


def program_loads(prepared: Prepared, quotient: ProgramQuotient, network: Network, links: Star) -> ProgramLoads:
    """Give the messages of the first device the loads of those of all devices."""
    entities, paths = prepared.entities, prepared.paths
    hosts, members = quotient.hosts[entities.task], quotient.members[entities.task]
    kind = _kind_of_link(network, links)
    transfers = entities.path_set >= 0
    between = transfers & (paths.pair[entities.path_set] >= 0)
    waiting = between & (entities.volume <= BURST)
    long = waiting & (quotient.host_devices * members > _QUEUE) & (len(prepared.tasks.kind) > 1)
    queues = [
        _queue(network, int(hosts[entity]), int(members[entity]), int(prepared.tasks.size[entities.task[entity]]))
        for entity in np.flatnonzero(long)
    ]
    setup_latency, path_set = entities.setup_latency.copy(), entities.path_set.copy()
    setup_latency[long] = [queue.seconds for queue in queues]
    path_set[long] = -1
    link_bytes = np.sum([np.zeros(network.n_links), *(queue.link_bytes for queue in queues)], axis=0)
    flows = np.where(transfers, members - 1, 1)
    flows[between] = (quotient.host_devices * members * (hosts - 1))[between]
    flows[waiting] = hosts[waiting] - 1
    groups = quotient.host_devices // np.maximum(members, 1)
    repeats = np.where(waiting & ~long, quotient.host_devices * members, 1)
    none = np.zeros(0, dtype=np.int64)
    loads = [
        (none, none)
        if long[entity]
        else _transfer_loads(prepared, entity, flows[entity])
        if transfers[entity]
        else _ring_loads(network, int(entities.ring[entity]), kind, groups[entity])
        for entity in range(len(transfers))
    ]
    slots = np.array([len(links) for links, _ in loads])
    per_task = np.bincount(entities.task, repeats, len(prepared.tasks.kind)).astype(np.int64)
    rows = np.repeat(np.arange(len(transfers)), repeats)
    columns = entities._replace(
        ring=np.arange(len(transfers)), path_set=path_set, setup_latency=setup_latency
    )._asdict()
    repeated = {name: columns[name][rows] for name in columns if name not in ("of_task", "slot_ptr", "caps")}
    loaded = prepared._replace(
        entities=Entities(
            **repeated,
            # Columns can be written, as those of a whole task graph: the kernel is compiled once for both.
            of_task=np.concatenate([[0], np.cumsum(per_task)]).astype(np.int32),
            slot_ptr=np.concatenate([[0], np.cumsum(slots[rows])]).astype(np.int64),
            caps=entities.caps,
        ),
        rings=prepared.rings._replace(
            load_ptr=i64(np.concatenate([[0], np.cumsum(slots)])),
            load_links=i32(np.concatenate([none, *(links for links, _ in loads)])),
            load=i64(np.concatenate([none, *(load for _, load in loads)])),
        ),
    )
    return ProgramLoads(loaded, link_bytes)


class _Queue(NamedTuple):
    """Seconds until all messages of an all-to-all that wait for each other are there, and (E,) bytes over links."""

    seconds: float
    link_bytes: F64


@functools.lru_cache(maxsize=256)
def _queue(network: Network, hosts: int, members: int, nbytes: int) -> _Queue:
    """Simulate such messages between hosts, of ``nbytes`` each, on a network that is idle otherwise."""
    links = switch_links(network)
    assert links is not None
    host_devices = network.cluster.n_devices // network.cluster.n_hosts
    taskgraph = TaskGraph(
        kind=[TaskKind.TRANSFER],
        device=[-1],
        seconds=[0.0],
        size=[nbytes],
        group=[-1],
        op=[0],
        src=[0],
        dst=[host_devices],
        group_ptr=[0],
        group_members=[],
        succ_ptr=[0, 0],
        succ=[],
        n_devices=network.cluster.n_devices,
    )
    quotient = ProgramQuotient(taskgraph, np.array([hosts]), np.array([members]), host_devices, 1)
    tasks, traffic = columns(taskgraph), network.lower(taskgraph)
    entities = build(tasks, traffic, network.paths, network.rings, False)
    prepared = Prepared(tasks, entities, network.paths, network.rings, network.cluster.n_devices)
    outcome = Outcome(*run(*program_loads(prepared, quotient, network, links).prepared, 0, np.zeros(0), np.inf))
    return _Queue(float(outcome.makespan), outcome.link_bytes)


def _transfer_loads(prepared: Prepared, entity: int, flows: int) -> tuple[I64, I64]:
    """Return the links on the path of a transfer, and their loads if so many flows use each."""
    paths = prepared.paths
    path = paths.row_ptr[prepared.entities.path_set[entity]]
    links = paths.links[paths.path_ptr[path] : paths.path_ptr[path + 1]].astype(np.int64)
    return links, np.full(len(links), flows * LOAD)


def _ring_loads(network: Network, ring: int, kind: I64, groups: int) -> tuple[I64, I64]:
    """Return a link of each kind that a ring crosses, and its load if so many groups cross those between hosts."""
    rings = network.rings_in_full
    crossed = rings.load_links[rings.load_ptr[ring] : rings.load_ptr[ring + 1]].astype(np.int64)
    links = crossed[np.sort(np.unique(kind[crossed], return_index=True)[1])]
    return links, np.where(kind[links] < 2, groups, 1) * LOAD


def spread(link_bytes: F64, network: Network, links: Star) -> F64:
    """(E,) bytes over each link, given those over the links that stand for all of their kind."""
    kind = _kind_of_link(network, links)
    counted = np.bincount(kind, link_bytes, 4)
    return counted[kind].astype(np.float64)


def _kind_of_link(network: Network, links: Star) -> I64:
    """(E,) 0 for links from hosts to the switch, 1 for those back, 2 and 3 for those of devices inside hosts."""
    kind = np.empty(network.n_links, dtype=np.int64)
    kind[links.up], kind[links.down] = 0, 1
    inside = np.arange(network.n_links - network.fabric.n_links)
    kind[network.fabric.n_links :] = 2 + inside % 2
    return kind
