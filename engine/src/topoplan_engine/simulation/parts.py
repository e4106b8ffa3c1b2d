"""Where the time of an iteration goes on one device: computing, traffic that it waits for, and waits for others.

Every second of the iteration has one part, so that parts add up to it.  While a device computes, the part is that of
what it computes.  While it does not, it waits: the next task that it computes begins when the last of what that needs
has ended, and this needed something in turn.  Going back along this chain, seconds in which a message of the device
runs are those of the message's traffic; seconds in which nothing of the device runs, because another one is not ready
to send, are waits for other devices, which in a pipeline are its bubble.  So of messages that run at once the one that
is waited for counts, and traffic behind computation counts nowhere: what is left of it is exposed.

Data flow: edges between tasks of the device ─► what each task waited for last ─► gaps between what it computes, each
walked back from its end, all of them at once.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I8, I64
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.model.timeline import Timeline

__all__ = ["Part", "parts_of_time"]


class Part(IntEnum):
    """What a device does, or waits for."""

    COMPUTATION = 0
    RECOMPUTATION = 1
    """Forward passes that run again in backward ones."""
    OPTIMIZER = 2
    """Updates of weights, and the norm of all gradients before them."""
    TENSOR = 3
    CONTEXT = 4
    EXPERT = 5
    PIPELINE = 6
    DATA = 7
    """Gradients of weights, and weights that are gathered."""
    EXCHANGE = 8
    """Between operators, where a plan does not name the axes of its meshes."""
    BUBBLE = 9
    """Other devices are not ready."""


class _Gaps(NamedTuple):
    """Times in which a device does not compute; G of them.

    Attributes:
        task: (G,) the last message that what comes behind waited for; -1 for none.
        begins, ends: (G,) seconds.
    """

    task: I64
    begins: F64
    ends: F64


def parts_of_time(tasks: TaskGraph, timeline: Timeline, device: int, part: I8) -> F64:
    """(len(Part),) seconds of each part of an iteration on one device; they add up to the iteration.

    Args:
        tasks, timeline: of the iteration; of tasks that stand for others, those with this device are enough.
        device: its number.
        part: (T,) `Part` of each task while it runs.
    """
    computes = (tasks.device == device) & (tasks.kind <= TaskKind.UPDATE)
    seconds = np.zeros(len(Part))
    rows = np.flatnonzero(computes)
    rows = rows[np.argsort(timeline.start[rows], kind="stable")]
    start, finish = timeline.start[rows], timeline.finish[rows]
    before = np.concatenate([[0.0], np.maximum.accumulate(finish)])
    np.add.at(seconds, part[rows], np.maximum(0.0, finish - np.maximum(start, before[:-1])))
    messages = _messages(tasks, device)
    end = int(np.argmax(np.where(messages, timeline.finish, -1.0))) if messages.any() else -1
    last = _waited_for(tasks, timeline, messages | computes, part)
    first, ends = np.append(last[rows], end), np.append(start, timeline.makespan)
    gaps = ends > before
    total: F64 = seconds + _walked_back(tasks, timeline, part, last, _Gaps(first[gaps], before[gaps], ends[gaps]))
    return total


def _messages(tasks: TaskGraph, device: int) -> np.ndarray:
    """(T,) whether a device sends, receives, or is a member; joins, which take no time, are those of all."""
    owner = np.repeat(np.arange(tasks.n_groups), np.diff(tasks.group_ptr))
    groups = np.zeros(tasks.n_groups + 1, dtype=bool)
    groups[owner[tasks.group_members == device]] = True
    sent = (tasks.kind == TaskKind.TRANSFER) & ((tasks.src == device) | (tasks.dst == device))
    together = (tasks.kind == TaskKind.COLLECTIVE) & (groups[tasks.group] | (tasks.collective == Collective.JOIN))
    chosen: np.ndarray = sent | together
    return chosen


def _waited_for(tasks: TaskGraph, timeline: Timeline, members: np.ndarray, part: I8) -> I64:
    """(T,) the last task, among those of a device, that each one waited for; -1 for none.

    Messages that follow each other around a ring, or between joins, are one exchange: the chain passes those of others.
    """
    hops = (tasks.kind == TaskKind.TRANSFER) & (part != Part.PIPELINE) | (tasks.collective == Collective.JOIN)
    tails, heads = tasks.edges()
    chosen = members[tails] & (members[heads] | hops[heads]) | hops[tails] & hops[heads]
    tails, heads = tails[chosen], heads[chosen]
    order = np.lexsort((timeline.finish[tails], heads))
    last: I64 = np.full(tasks.n_tasks, -1)
    last[heads[order]] = tails[order]  # of several values the last one stays
    return last


def _walked_back(tasks: TaskGraph, timeline: Timeline, part: I8, last: I64, gaps: _Gaps) -> F64:
    """(len(Part),) seconds of gaps, given (T,) what each task waited for last."""
    # A join ends with what it waits for; what it begins with does not matter.
    start = np.where(tasks.collective == Collective.JOIN, timeline.finish, timeline.start)
    seconds = np.zeros(len(Part))
    task, begins, until = gaps
    while len(task):
        waits = task >= 0
        finish = np.where(waits, np.clip(timeline.finish[task], begins, until), begins)
        seconds[Part.BUBBLE] += (until - finish).sum()
        since = np.where(waits, np.clip(start[task], begins, finish), finish)
        np.add.at(seconds, part[task], finish - since)
        further = waits & (since > begins)
        task, begins, until = last[task[further]], begins[further], since[further]
    return seconds
