"""The quotient of an SPMD program: the tasks of one device, where all devices are equal.

All devices of a program run the same operators in the same order, and all groups of a mesh the same collectives.  If
they also take equally long, and every host holds a block of the mesh, then a shift of the mesh by one place maps the
whole iteration to itself: devices, hosts, groups and messages.  So every task of a kind begins and ends when those of
the first device and of its groups do, and one collective at a time uses the network.  What the others load follows by
arithmetic: a block of ``k`` devices has ``k / r`` groups with ``r`` members each, whichever host it is.

    a host of k = 8 devices on a mesh of 4 x 8:  groups along axis 0 have r = 1 member there, along axis 1 r = 8

Messages that are served in turn are the exception: where several groups of a host send them to the same other hosts,
one group is done before the other, and devices are not equal along the other axes (`ProgramQuotient.apart`).  Shifts by
whole hosts still map the iteration to itself, so that the devices of the first host stand for all
(`topoplan_engine.lowering.spmd_host`).

Data flow: `program_quotient` asks `block` whether the devices are equal, and writes the tasks of the first one.
`topoplan_simulator_fluid.programs` gives their messages the loads of all.  What is exported, or asked for task by task,
is the whole task graph (`topoplan_engine.lowering.spmd_tasks`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.cluster import Cluster
from topoplan.model.graph import OperatorGraph
from topoplan.model.spmd import SpmdProgram
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.lowering.spmd_costs import DeviceCosts
from topoplan_engine.lowering.spmd_tasks import ProgramWriter, pair_bytes, ring_bytes, write_program
from topoplan_engine.lowering.task_columns import NO_TASK
from topoplan_engine.program_strategies import program_of
from topoplan_engine.sharding.mesh import mesh_groups

__all__ = ["ProgramQuotient", "block", "program_quotient"]


class ProgramQuotient(NamedTuple):
    """One iteration of the first device and its groups.

    Attributes:
        taskgraph: tasks of the first device, collectives of its groups.  Of an all-to-all there are two transfers: one
            stands for those inside hosts, one for those between hosts; one for those to each `direction` if messages of
            several groups may wait for each other.
        members: (T,) members that the group of a collective or transfer has in each of its hosts; 0 of other tasks.
        peers: (T,) of a transfer, the other members or other hosts to which messages like it go; 0 of other tasks.
        along: (T,) number in ``axes`` of the axes along which the group of a task lies.
        axes: axes of the mesh along which some group lies; the first one is a device by itself.
        mesh: devices along each axis.
        apart: along each axis, places of a host whose devices differ, because their groups wait for each other; 1 if
            they are equal along it.
        host_devices: devices of each host.
        n_tasks: tasks of the whole task graph.
    """

    taskgraph: TaskGraph
    members: I64
    peers: I64
    along: I64
    axes: tuple[tuple[int, ...], ...]
    mesh: tuple[int, ...]
    apart: tuple[int, ...]
    host_devices: int
    n_tasks: int

    @property
    def copies(self) -> I64:
        """(A,) groups along each of ``axes``, among those of a host that differ."""
        return np.array(
            [math.prod(n for axis, n in enumerate(self.apart) if axis not in along) for along in self.axes],
            dtype=np.int64,
        )


def program_quotient(
    graph: OperatorGraph,
    strategy: StagedStrategy,
    prices: Sequence[DeviceCosts],
    cluster: Cluster,
    in_turn_bytes: int,
) -> ProgramQuotient | None:
    """Return the quotient; None unless all devices are equal but for the order of their messages.

    Args:
        graph, strategy, prices: see `topoplan_engine.lowering.spmd_tasks.program_taskgraph`.
        cluster: the hosts of its devices.
        in_turn_bytes: messages of no more bytes from one host to the same other one are served in turn.
    """
    program = program_of(strategy)
    inside = block(program.mesh, cluster)
    if inside is None or not all(_equal(price.forward) and _equal(price.backward) for price in prices):
        return None
    writer = _FirstDevice(program, strategy.micro_batches, inside, in_turn_bytes)
    write_program(writer, graph, strategy, prices)
    return writer.quotient(tuple(op.name for op in graph.operators))


def block(mesh: tuple[int, ...], cluster: Cluster) -> tuple[int, ...] | None:
    """Return how many devices of a host lie along each axis; None unless every host is such a block of the mesh.

    Devices are numbered along the mesh, the last axis first, and host by host.  So the axes behind some axis lie in one
    host, that axis in several, each of which has the same number of places along it, and those before it in others.
    """
    counts = np.bincount(cluster.device_host, minlength=cluster.n_hosts)
    remaining = int(counts[0])
    ascending = (np.diff(cluster.device_host) >= 0).all()
    if 1 in mesh or math.prod(mesh) != cluster.n_devices or not ascending or (counts != remaining).any():
        return None
    inside = []
    for size in reversed(mesh):
        inside.append(math.gcd(size, remaining))
        if inside[-1] < min(size, remaining):
            return None
        remaining //= inside[-1]
    return tuple(reversed(inside))


def _equal(seconds: F64) -> bool:
    return bool((seconds == seconds[0]).all())


class _FirstDevice(ProgramWriter[int]):
    """Collects the tasks of the first device, and of the groups that it is in."""

    def __init__(self, program: SpmdProgram, copies: int, inside: tuple[int, ...], in_turn_bytes: int) -> None:
        super().__init__(copies)
        self._mesh, self._inside, self._devices = program.mesh, inside, program.n_devices
        self._host_devices, self._in_turn_bytes = math.prod(inside), in_turn_bytes
        self._columns: dict[str, list[Any]] = {name: [] for name in (*NO_TASK, "members", "peers", "along")}
        self._edges: list[tuple[int, int]] = []
        self._axes: dict[tuple[int, ...], int] = {}
        self._listed: list[I64] = []
        self._wait: set[tuple[int, ...]] = set()  # axes of groups whose messages wait for those of other groups
        self._whole = 0
        self._number(())

    def quotient(self, names: tuple[str, ...]) -> ProgramQuotient:
        """Return the quotient of all tasks so far."""
        count = len(self._columns["kind"])
        edges = np.array(self._edges, dtype=np.int64).reshape(-1, 2)
        edges = edges[np.argsort(edges[:, 0], kind="stable")]
        columns: dict[str, Any] = {name: np.array(rows) for name, rows in self._columns.items()}
        group_columns = {name: columns.pop(name) for name in ("members", "peers", "along")}
        taskgraph = TaskGraph(
            **{**columns, "micro_batch": columns["micro_batch"] if self._copies > 1 else None},
            group_ptr=np.concatenate([[0], np.cumsum([len(row) for row in self._listed])]),
            group_members=np.concatenate(self._listed),
            succ_ptr=np.concatenate([[0], np.cumsum(np.bincount(edges[:, 0], minlength=count))]),
            succ=edges[:, 1],
            op_names=names,
            n_devices=self._devices,
        )
        apart = tuple(
            size if any(axis not in axes for axes in self._wait) else 1 for axis, size in enumerate(self._inside)
        )
        return ProgramQuotient(
            taskgraph,
            **group_columns,
            axes=tuple(self._axes),
            mesh=self._mesh,
            apart=apart,
            host_devices=self._host_devices,
            n_tasks=self._whole,
        )

    def _run(self, kind: TaskKind, op: int, copy: int, seconds: F64) -> int:
        return self._add(self._devices, kind=kind, device=0, seconds=seconds[0], op=op, micro_batch=copy)

    def _communicate(
        self, kind: Collective, nbytes: int, axes: tuple[int, ...], *, op: int, micro_batch: int
    ) -> tuple[int, int]:
        along = self._number(axes)
        size = len(self._listed[along])
        groups = self._devices // size
        members = math.prod(self._inside[axis] for axis in axes)
        common = {"op": op, "micro_batch": micro_batch, "members": members, "along": along}
        if kind is not Collective.ALL_TO_ALL:
            task = self._add_collective(kind, along, groups, size=ring_bytes(kind, nbytes), **common)
            return task, task
        single, sent = self._number(()), pair_bytes(nbytes, size)
        join = self._add_collective(Collective.JOIN, single, groups, **common)
        transfers = [
            self._add(
                groups * size * (peers if dst < self._host_devices else peers * members),
                kind=TaskKind.TRANSFER,
                size=sent,
                src=0,
                dst=dst,
                peers=peers,
                **common,
            )
            for dst, peers in self._receivers(axes, members, sent)
        ]
        leave = self._add_collective(Collective.JOIN, single, groups, **common)
        self._edges += itertools.chain(((join, task) for task in transfers), ((task, leave) for task in transfers))
        return join, leave

    def _receivers(self, axes: tuple[int, ...], members: int, sent: int) -> Iterator[tuple[int, int]]:
        """Yield a device that stands for other members of a group in the first host, and those for other hosts.

        With each of them comes how many members, or hosts, it stands for.
        """
        listed = self._listed[self._axes[axes]]
        hosts = len(listed) // members
        if members > 1:
            yield int(listed[1]), members - 1
        if hosts == 1:
            return
        if members == self._host_devices or sent > self._in_turn_bytes:
            yield int(listed[members]), hosts - 1
            return
        self._wait.add(axes)
        # Groups along other axes may have some of these hosts in common: those that lie in one direction.
        across = [axis for axis in axes if self._mesh[axis] > self._inside[axis]]
        for count in range(1, len(across) + 1):
            for direction in itertools.combinations(across, count):
                steps = (self._inside[axis] * math.prod(self._mesh[axis + 1 :]) for axis in direction)
                yield sum(steps), math.prod(self._mesh[axis] // self._inside[axis] - 1 for axis in direction)

    def _number(self, axes: tuple[int, ...]) -> int:
        """Return the number of the first device's group along some axes."""
        if axes not in self._axes:
            self._axes[axes] = len(self._listed)
            self._listed.append(mesh_groups(self._mesh, axes)[0])
        return self._axes[axes]

    def _add(self, like: int, **columns: Any) -> int:
        """Add a task that stands for so many like it; return its number."""
        empty = {**NO_TASK, "members": 0, "peers": 0, "along": 0}
        for name, rows in self._columns.items():
            rows.append(columns.get(name, empty[name]))
        self._whole += like
        return len(self._columns["kind"]) - 1

    def _add_collective(self, collective: Collective, group: int, like: int, **columns: Any) -> int:
        return self._add(like, kind=TaskKind.COLLECTIVE, collective=collective, group=group, **columns)

    def _follow(self, ends: int, tasks: int) -> None:
        self._edges.append((ends, tasks))
