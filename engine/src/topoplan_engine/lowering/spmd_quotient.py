"""The quotient of an SPMD program: the tasks of one device, where all devices are equal.

All devices of a program run the same operators in the same order, and all groups of a mesh the same collectives.  If
they also take equally long, and every host holds a block of the mesh, then a shift of the mesh by one place maps the
whole iteration to itself: devices, hosts, groups and messages.  So every task of a kind begins and ends when those of
the first device and of its groups do, and one collective at a time uses the network.  What the others load follows by
arithmetic: a block of ``k`` devices has ``k / r`` groups with ``r`` members each, whichever host it is.

    a host of k = 8 devices on a mesh of 4 x 8:  groups along axis 0 have r = 1 member there, along axis 1 r = 8

Data flow: `program_quotient` asks `block` whether the devices are equal, and writes the tasks of the first one.
`topoplan_simulator_fluid.programs` gives their messages the loads of all.  What is exported, or asked for task by task,
is the whole task graph (`topoplan_engine.lowering.spmd_tasks`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan.model.cluster import Cluster
from topoplan.model.graph import OperatorGraph
from topoplan.model.schedule import Schedule
from topoplan.model.spmd import SpmdProgram
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.lowering.spmd_costs import DeviceCosts
from topoplan_engine.lowering.spmd_tasks import NO_TASK, ProgramWriter, pair_bytes, ring_bytes, write_program
from topoplan_engine.sharding.mesh import mesh_groups

__all__ = ["ProgramQuotient", "block", "program_quotient"]


class ProgramQuotient(NamedTuple):
    """One iteration of the first device and its groups.

    Attributes:
        taskgraph: tasks of the first device, collectives of its groups.  Of an all-to-all there are two transfers: one
            stands for those inside hosts, one for those between hosts.
        hosts: (T,) hosts of the group of each collective and transfer; 0 of other tasks.
        members: (T,) members that such a group has in each of its hosts.
        host_devices: devices of each host.
        n_tasks: tasks of the whole task graph.
    """

    taskgraph: TaskGraph
    hosts: I64
    members: I64
    host_devices: int
    n_tasks: int

    def waits(self, in_turn_bytes: int) -> bool:
        """Say whether messages of two groups go from one host to the same other one in turn.

        Then the group whose messages go first is done first, and devices are not equal.

        Args:
            in_turn_bytes: messages of no more bytes from one host to the same other one are served in turn.
        """
        small = (self.taskgraph.kind == TaskKind.TRANSFER) & (self.taskgraph.size <= in_turn_bytes)
        return bool((small & (self.hosts > 1) & (self.members < self.host_devices)).any())


def program_quotient(
    graph: OperatorGraph, program: SpmdProgram, schedule: Schedule, prices: Sequence[DeviceCosts], cluster: Cluster
) -> ProgramQuotient | None:
    """Return the quotient; None unless all devices are equal.

    Args:
        graph, program, schedule, prices: see `topoplan_engine.lowering.spmd_tasks.program_taskgraph`.
        cluster: the hosts of its devices.
    """
    inside = block(program.mesh, cluster)
    if inside is None or not all(_equal(price.forward) and _equal(price.backward) for price in prices):
        return None
    writer = _FirstDevice(program, schedule.micro_batches, inside)
    write_program(writer, graph, program, schedule, prices)
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

    def __init__(self, program: SpmdProgram, copies: int, inside: tuple[int, ...]) -> None:
        super().__init__(copies)
        self._mesh, self._inside, self._devices = program.mesh, inside, program.n_devices
        self._columns: dict[str, list[Any]] = {name: [] for name in (*NO_TASK, "hosts", "members")}
        self._edges: list[tuple[int, int]] = []
        self._groups: dict[tuple[int, ...], int] = {}
        self._listed: list[I64] = []
        self._whole = 0

    def quotient(self, names: tuple[str, ...]) -> ProgramQuotient:
        """Return the quotient of all tasks so far."""
        count = len(self._columns["kind"])
        edges = np.array(self._edges, dtype=np.int64).reshape(-1, 2)
        edges = edges[np.argsort(edges[:, 0], kind="stable")]
        columns: dict[str, Any] = {name: np.array(rows) for name, rows in self._columns.items()}
        hosts, members = columns.pop("hosts"), columns.pop("members")
        taskgraph = TaskGraph(
            **{**columns, "micro_batch": columns["micro_batch"] if self._copies > 1 else None},
            group_ptr=np.concatenate([[0], np.cumsum([len(row) for row in self._listed])]),
            group_members=np.concatenate(self._listed) if self._listed else [],
            succ_ptr=np.concatenate([[0], np.cumsum(np.bincount(edges[:, 0], minlength=count))]),
            succ=edges[:, 1],
            op_names=names,
            n_devices=self._devices,
        )
        return ProgramQuotient(taskgraph, hosts, members, math.prod(self._inside), self._whole)

    def _run(self, kind: TaskKind, op: int, copy: int, seconds: F64) -> int:
        return self._add(self._devices, kind=kind, device=0, seconds=seconds[0] / self._copies, op=op, micro_batch=copy)

    def _communicate(
        self, kind: Collective, nbytes: int, axes: tuple[int, ...], *, op: int, micro_batch: int
    ) -> tuple[int, int]:
        group = self._group(axes)
        listed = self._listed[group]
        members = math.prod(self._inside[axis] for axis in axes)
        size, groups = len(listed), self._devices // len(listed)
        common = {"op": op, "micro_batch": micro_batch, "hosts": size // members, "members": members}
        if kind is not Collective.ALL_TO_ALL:
            task = self._add_collective(kind, group, groups, size=ring_bytes(kind, nbytes), **common)
            return task, task
        single = self._group(())
        join = self._add_collective(Collective.JOIN, single, groups, **common)
        between = [
            self._add(
                groups * size * count,
                kind=TaskKind.TRANSFER,
                size=pair_bytes(nbytes, size),
                src=0,
                dst=int(listed[place]),
                **common,
            )
            for place, count in ((1, members - 1), (members, size - members))
            if count
        ]
        leave = self._add_collective(Collective.JOIN, single, groups, **common)
        self._edges += itertools.chain(((join, task) for task in between), ((task, leave) for task in between))
        return join, leave

    def _group(self, axes: tuple[int, ...]) -> int:
        """Return the number of the first device's group along some axes."""
        if axes not in self._groups:
            self._groups[axes] = len(self._listed)
            self._listed.append(mesh_groups(self._mesh, axes)[0])
        return self._groups[axes]

    def _add(self, like: int, **columns: Any) -> int:
        """Add a task that stands for so many like it; return its number."""
        empty = {**NO_TASK, "hosts": 0, "members": 0}
        for name, rows in self._columns.items():
            rows.append(columns.get(name, empty[name]))
        self._whole += like
        return len(self._columns["kind"]) - 1

    def _add_collective(self, collective: Collective, group: int, like: int, **columns: Any) -> int:
        return self._add(like, kind=TaskKind.COLLECTIVE, collective=collective, group=group, **columns)

    def _follow(self, ends: int, tasks: int) -> None:
        self._edges.append((ends, tasks))
