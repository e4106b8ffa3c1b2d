"""Simulating the quotient of an SPMD program: the messages of one host, or one device, load links for those of all.

All hosts hang on one switch, in the same way, and run the same tasks at the same times
(`topoplan_engine.lowering.spmd_quotient`, `topoplan_engine.lowering.spmd_host`).  So all links of a kind, those that
leave hosts for the switch say, carry the same load at any time, and one of each kind is enough, two for each device
inside the host.  A host of ``k`` devices has ``k / r`` groups with ``r`` of their ``m`` members each; some of them, or
all, have tasks of their own, each of which stands for equally many groups:

* A ring crosses the links of its group's hosts once each; ``k / r`` rings do so on those between hosts, one on those
  inside.
* An all-to-all sends ``k (m - r)`` messages from a host to others, and ``r - 1`` from a device to those of its host.
  Messages within one window (`topoplan_simulator_fluid.bursts`) wait for each other: of a group, ``r r`` go to each of
  the ``m / r - 1`` other hosts, one after the other, and the groups of a host one after the other as well.

Data flow: `program_loads` takes the columns of the quotient as if it were a whole task graph, copies tasks and messages
for all devices of the host that differ, and replaces loads; `spread` gives the bytes that crossed the links to all
links of a kind.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64, f64, i8, i32, i64
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.lowering.spmd_host import HostTasks, host_tasks
from topoplan_engine.lowering.spmd_quotient import ProgramQuotient
from topoplan_engine.network.star import switch_links
from topoplan_engine.network.tables import LOAD, Network
from topoplan_engine.simulation.columns import Outcome, TaskColumns, columns
from topoplan_engine.simulation.flows import Entities, build
from topoplan_engine.simulation.messages import Transport
from topoplan_simulator_fluid.bursts import BURST
from topoplan_simulator_fluid.kernel import run
from topoplan_simulator_fluid.max_min import ALWAYS
from topoplan_simulator_fluid.prepared import Prepared

__all__ = ["ProgramLoads", "program_loads", "spread"]

#: Messages in the longest queue between two hosts that is simulated wherever it comes up.  Longer ones are simulated
#: once for all equal all-to-alls, whose times then differ by rounding.
_QUEUE = 256


class ProgramLoads(NamedTuple):
    """What the kernel runs for the quotient of a program.

    Attributes:
        prepared: columns of all copies of the quotient's tasks.
        first: (T,) the copy of each task that is the first device's.
        link_bytes: (E,) bytes over links that none of the messages counts.
    """

    prepared: Prepared
    first: I64
    link_bytes: F64


class _Messages(NamedTuple):
    """The entities of the first device's messages; N of them.

    Attributes:
        entities: latencies and path sets of those whose queue is simulated apart are replaced.
        kinds, loads: links that each loads, by `_Links`, and how much.
        repeats: (N,) messages of its group that wait for each other.
    """

    entities: Entities
    kinds: list[I64]
    loads: list[I64]
    repeats: I64


def program_loads(prepared: Prepared, quotient: ProgramQuotient, network: Network) -> ProgramLoads:
    """Copy the tasks of the first device for all of its host that differ, and load links with the messages of all."""
    messages, link_bytes = _messages(prepared, quotient, network)
    host = host_tasks(quotient)
    copied = _slices(prepared.entities.of_task[:-1], prepared.entities.of_task[1:], host.task)  # entity of each message
    messages_of_task = np.diff(prepared.entities.of_task)[host.task]
    task = np.repeat(np.arange(len(host.task)), messages_of_task)
    lengths = np.array([len(kinds) for kinds in messages.kinds], dtype=np.int64)
    ends = np.cumsum(lengths)
    loaded = _slices(ends - lengths, ends, copied)
    kinds, loads = (np.concatenate([np.zeros(0, np.int64), *rows]) for rows in (messages.kinds, messages.loads))
    device = np.repeat(host.device[task], lengths[copied])
    repeats = messages.repeats[copied]
    row = np.repeat(np.arange(len(copied)), repeats)  # message of each entity
    columns = messages.entities._replace(ring=np.zeros(len(lengths), np.int64))._asdict()
    repeated = {
        name: columns[name][copied[row]]
        for name in columns
        if name not in ("of_task", "task", "slot_ptr", "caps", "ring")
    }
    per_task = np.bincount(task, repeats, len(host.task)).astype(np.int64)
    return ProgramLoads(
        prepared._replace(
            tasks=_task_columns(prepared.tasks, host),
            entities=Entities(
                **repeated,
                # Columns can be written, as those of a whole task graph: the kernel is compiled once for both.
                task=task[row].astype(np.int32),
                ring=row,
                of_task=_running(per_task).astype(np.int32),
                slot_ptr=_running(lengths[copied[row]]),
                caps=prepared.entities.caps,
            ),
            rings=prepared.rings._replace(
                load_ptr=i64(_running(lengths[copied])),
                load_links=i32(_Links.of(network).of_kind(kinds[loaded], device)),
                load=i64(loads[loaded]),
            ),
        ),
        host.first,
        link_bytes,
    )


def _task_columns(tasks: TaskColumns, host: HostTasks) -> TaskColumns:
    """Return the columns of the copies of tasks."""
    return TaskColumns(
        kind=i8(tasks.kind[host.task]),
        device=i32(np.where(tasks.device[host.task] < 0, -1, host.device)),
        seconds=f64(tasks.seconds[host.task]),
        size=i64(tasks.size[host.task]),
        succ_ptr=i32(host.succ_ptr),
        succ=i32(host.succ),
        preds=np.bincount(host.succ, minlength=len(host.task)).astype(np.int32),
        collective=i8(tasks.collective[host.task]),
    )


def _messages(prepared: Prepared, quotient: ProgramQuotient, network: Network) -> tuple[_Messages, F64]:
    """Return the messages of the first device, and the (E,) bytes of those whose queue is simulated apart."""
    entities, paths = prepared.entities, prepared.paths
    members, peers = quotient.members[entities.task], quotient.peers[entities.task]
    groups = quotient.host_devices // np.maximum(members, 1)  # of a host
    alike = groups // quotient.copies[quotient.along[entities.task]]  # of these, groups that each entity stands for
    transfers = entities.path_set >= 0
    between = transfers & (paths.pair[entities.path_set] >= 0)
    in_turn = prepared.transport == Transport.FLEXNETPACKET
    waiting = between & (entities.volume <= BURST) & in_turn
    flows = np.where(transfers, peers, alike)
    flows[between & ~waiting] *= (alike * members**2)[between & ~waiting]
    repeats = np.where(waiting, members**2, 1)
    # If all devices of a host are in the group, nobody else uses the network meanwhile.
    apart = (repeats > _QUEUE) & (members == quotient.host_devices) & (len(prepared.tasks.kind) > 1)
    repeats[apart] = 1
    sizes = prepared.tasks.size[entities.task]
    queues = [_queue(network, *map(int, (peers[e], members[e], sizes[e]))) for e in np.flatnonzero(apart)]
    setup_latency, path_set = entities.setup_latency.copy(), entities.path_set.copy()
    setup_latency[apart] = [queue.seconds for queue in queues]
    path_set[apart] = -1
    none = np.zeros(0, dtype=np.int64)
    crossed = [(none, none) if apart[e] else _crossed(prepared, e, network) for e in range(len(transfers))]
    # Of a ring, only the links between hosts are those of several groups.
    loads = [np.where(transfers[e] | (kinds < 2), flows[e], 1) * load for e, (kinds, load) in enumerate(crossed)]
    kinds = [kinds for kinds, _ in crossed]
    messages = _Messages(entities._replace(setup_latency=setup_latency, path_set=path_set), kinds, loads, repeats)
    return messages, np.sum([np.zeros(network.n_links), *(queue.link_bytes for queue in queues)], axis=0)


def _slices(begins: I32 | I64, ends: I32 | I64, rows: I64) -> I64:
    """Return the numbers ``begins[row] .. ends[row] - 1`` of each row, one after the other."""
    lengths = (ends - begins)[rows]
    before = np.cumsum(lengths) - lengths
    numbers: I64 = np.arange(lengths.sum(), dtype=np.int64) + np.repeat(begins[rows] - before, lengths)
    return numbers


def _running(counts: I64) -> I64:
    """Return the running sum of counts, from 0."""
    return np.concatenate([[0], np.cumsum(counts)])


class _Queue(NamedTuple):
    """Seconds until all messages of an all-to-all that wait for each other are there, and (E,) bytes over links."""

    seconds: float
    link_bytes: F64


@functools.lru_cache(maxsize=256)
def _queue(network: Network, other_hosts: int, members: int, nbytes: int) -> _Queue:
    """Simulate such messages of a group between hosts, of ``nbytes`` each, on a network that is idle otherwise."""
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
    quotient = ProgramQuotient(
        taskgraph,
        members=np.array([members]),
        peers=np.array([other_hosts]),
        along=np.array([0]),
        axes=((0,),),
        mesh=(network.cluster.n_devices,),
        apart=(1,),
        host_devices=host_devices,
        n_tasks=1,
    )
    tasks, traffic = columns(taskgraph), network.lower(taskgraph)
    entities = build(tasks, traffic, network.paths, network.rings, False, Transport.FLEXNETPACKET)
    devices = network.cluster.n_devices
    prepared = Prepared(tasks, entities, network.paths, network.rings, devices, int(Transport.FLEXNETPACKET), ALWAYS)
    outcome = Outcome(*run(*program_loads(prepared, quotient, network).prepared, 0, np.zeros(0), np.inf))
    return _Queue(float(outcome.makespan), outcome.link_bytes)


def _crossed(prepared: Prepared, entity: int, network: Network) -> tuple[I64, I64]:
    """Return the kinds of links on the path of a transfer, or that a ring crosses, in their order, and their loads."""
    paths, rings, path_set = prepared.paths, network.rings_in_full, prepared.entities.path_set[entity]
    if path_set >= 0:
        path = paths.row_ptr[path_set]
        crossed = paths.links[paths.path_ptr[path] : paths.path_ptr[path + 1]]
        load = np.full(len(crossed), LOAD, dtype=np.int64)
    else:
        ring = slice(*rings.load_ptr[prepared.entities.ring[entity] :][:2].tolist())
        crossed, load = rings.load_links[ring], rings.load[ring]
    kinds = _Links.of(network).kind[crossed]
    first = np.sort(np.unique(kinds, return_index=True)[1])
    return kinds[first], load[first]


def spread(link_bytes: F64, network: Network) -> F64:
    """(E,) bytes over each link, given those over the links of the first host and the first device."""
    links = _Links.of(network)
    spread_bytes: F64 = link_bytes[links.of_first[links.kind]]
    return spread_bytes


class _Links(NamedTuple):
    """Links by kind: 0 for those from hosts to the switch, 1 for those back, 2 and 3 for those of devices inside hosts.

    Attributes:
        kind: (E,) of each link.
        of_first: (4,) the link of each kind that is the first host's, or the first device's.
    """

    kind: I64
    of_first: I64

    @staticmethod
    @functools.lru_cache(maxsize=16)
    def of(network: Network) -> _Links:
        """Return the links of a network with one switch."""
        links = switch_links(network)
        assert links is not None
        fabric_links = network.fabric.n_links
        kind = 2 + (np.arange(network.n_links) - fabric_links) % 2
        kind[links.up], kind[links.down] = 0, 1
        return _Links(kind, np.array([links.up[0], links.down[0], fabric_links, fabric_links + 1], dtype=np.int64))

    def of_kind(self, kinds: I64, devices: I64) -> I64:
        """Return links of the first host that stand for all of their kind, inside it those of some devices."""
        return self.of_first[kinds] + np.where(kinds < 2, 0, 2 * devices)
