"""All-to-alls and broadcasts that are single tasks, written out: transfers between two joins.

Simulators whose model has no algorithm for them run them so.  The row of the collective becomes the join behind its
transfers; appended are, collective by collective, the join before them, and the transfers:

    predecessors -> join -> transfers -> join (the row of the collective) -> successors
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import attrs
import numpy as np

from topoplan.arrays import I64
from topoplan.model.plan import Plan
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.network.exchanged import messages_of
from topoplan_engine.simulation.gradients import extended

__all__ = ["WrittenOut", "plan_written_out", "written_out"]


class WrittenOut(NamedTuple):
    """A task graph without single all-to-alls and broadcasts.

    Attributes:
        taskgraph: the original's rows, and further ones.
        task: (r,) rows that are joins now.
        join: (r,) appended rows of the joins before their transfers.
        origin: (T',) the row of the original that each row belongs to.
    """

    taskgraph: TaskGraph
    task: I64
    join: I64
    origin: I64


def written_out(taskgraph: TaskGraph, without: Collection[Collective] = ()) -> WrittenOut:
    """Write out the all-to-alls and broadcasts of a task graph; of those ``without`` the kinds named, which stay."""
    kinds = [int(kind) for kind in (Collective.ALL_TO_ALL, Collective.BROADCAST) if kind not in without]
    tasks = np.flatnonzero(np.isin(taskgraph.collective, kinds))
    if not len(tasks):
        return WrittenOut(taskgraph, tasks, tasks, np.arange(taskgraph.n_tasks))
    messages = [messages_of(taskgraph, task) for task in tasks.tolist()]
    members_of = [taskgraph.members(task).astype(np.int64) for task in tasks.tolist()]
    counts = np.array([1 + len(each.sender) for each in messages])
    join = taskgraph.n_tasks + np.cumsum(counts) - counts
    total = int(counts.sum())
    is_join = np.zeros(total, dtype=bool)
    is_join[join - taskgraph.n_tasks] = True
    owner = np.repeat(np.arange(len(tasks)), counts)
    columns = {name: np.full(total, -1) for name in ("src", "dst", "group")}
    pairs = list(zip(members_of, messages, strict=True))
    columns["src"][~is_join] = np.concatenate([members[each.sender] for members, each in pairs])
    columns["dst"][~is_join] = np.concatenate([members[each.receiver] for members, each in pairs])
    single = taskgraph.n_groups + np.arange(len(tasks))
    columns["group"][is_join] = single
    sizes = np.zeros(total, np.int64)
    sizes[~is_join] = np.concatenate([each.nbytes for each in messages])
    rewritten = {name: getattr(taskgraph, name).copy() for name in ("size", "seconds", "group", "collective")}
    rewritten["size"][tasks], rewritten["seconds"][tasks] = 0, 0.0
    rewritten["group"][tasks], rewritten["collective"][tasks] = single, Collective.JOIN
    tails, heads = taskgraph.edges()
    into = np.arange(taskgraph.n_tasks)
    into[tasks] = join
    rows = taskgraph.n_tasks + np.flatnonzero(~is_join)
    of_row = owner[~is_join]
    empty = np.flatnonzero(counts == 1)  # a group of one member
    graph = extended(
        attrs.evolve(
            taskgraph,
            **rewritten,
            group_ptr=np.concatenate([taskgraph.group_ptr, taskgraph.group_ptr[-1] + 1 + np.arange(len(tasks))]),
            group_members=np.concatenate([taskgraph.group_members, [members[0] for members in members_of]]),
        ),
        np.concatenate([tails, join[of_row], rows, join[empty]]),
        np.concatenate([into[heads], rows, tasks[of_row], tasks[empty]]),
        kind=np.where(is_join, int(TaskKind.COLLECTIVE), int(TaskKind.TRANSFER)),
        size=sizes,
        op=taskgraph.op[tasks][owner],
        collective=np.where(is_join, int(Collective.JOIN), -1),
        **columns,
    )
    return WrittenOut(graph, tasks, join, np.concatenate([np.arange(taskgraph.n_tasks), tasks[owner]]))


def plan_written_out(plan: Plan) -> Plan:
    """Return a plan without single all-to-alls and broadcasts, for formats that know none.

    Their joins and transfers have the starts and ends of the task.
    """
    joined = written_out(plan.taskgraph)
    if not len(joined.task):
        return plan
    timeline = plan.timeline
    if timeline is not None:
        timeline = attrs.evolve(timeline, start=timeline.start[joined.origin], finish=timeline.finish[joined.origin])
    return attrs.evolve(plan, taskgraph=joined.taskgraph, timeline=timeline, recording=None)
