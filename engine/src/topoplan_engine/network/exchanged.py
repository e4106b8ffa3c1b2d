"""The messages of all-to-alls and broadcasts that are single tasks: who sends how much to whom.

Members of an all-to-all send each other equal parts of their tensors, or so many times that much as `TaskGraph.shares`
says of their group: factors in blocks, as busy experts get more, or as tokens go once to each host.  So a task has a
few numbers in the place of n (n - 1) sizes, and all that want messages get them here.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I64, f64
from topoplan.model.taskgraph import Collective, TaskGraph

__all__ = ["Factors", "Messages", "factors_of", "is_unequal", "messages_of", "scales_of"]

#: Factors of one group, see `TaskGraph.shares`.
Factors = tuple[tuple[tuple[float, ...], ...], ...]


class Messages(NamedTuple):
    """(n,) members of a group that send and receive, by their places in it, and bytes."""

    sender: I64
    receiver: I64
    nbytes: I64


def factors_of(taskgraph: TaskGraph, group: int) -> Factors:
    """Return the factors of the all-to-alls of a group; none where all messages are equal."""
    return taskgraph.shares[group] if group < len(taskgraph.shares) else ()


def is_unequal(taskgraph: TaskGraph) -> np.ndarray:
    """(T,) whether a task is an all-to-all whose messages are not equal."""
    of_group = np.zeros(taskgraph.n_groups + 1, dtype=bool)  # the last one stands for tasks without a group
    of_group[: len(taskgraph.shares)] = [len(each) > 0 for each in taskgraph.shares]
    unequal: np.ndarray = of_group[taskgraph.group] & (taskgraph.collective == Collective.ALL_TO_ALL)
    return unequal


@functools.lru_cache(maxsize=64)
def scales_of(factors: Factors, size: int) -> F64:
    """(size, size) how many times an equal part each member sends to each other one: the product of all factors.

    >>> scales_of((((2.0,), (0.0,)), ((1.0, 1.5),)), 4).tolist()
    [[2.0, 2.0, 3.0, 3.0], [2.0, 2.0, 3.0, 3.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """
    scales = np.ones((size, size))
    for each in factors:
        table = np.array(each)
        scales *= np.repeat(np.repeat(table, size // table.shape[0], axis=0), size // table.shape[1], axis=1)
    return f64(scales)


def messages_of(taskgraph: TaskGraph, task: int) -> Messages:
    """Return the messages of an all-to-all, or of a broadcast.

    >>> from topoplan import Collective, TaskKind
    >>> kind, none = [TaskKind.COLLECTIVE], [-1]
    >>> tasks = TaskGraph(kind=kind, device=none, seconds=[0.0], size=[100], src=none, dst=none, group=[0],
    ...     group_ptr=[0, 2], group_members=[0, 1], succ_ptr=[0, 0], succ=[], op=none, n_devices=2,
    ...     collective=[Collective.ALL_TO_ALL], shares=((((1.5,), (0.5,)),),))
    >>> [column.tolist() for column in messages_of(tasks, 0)]
    [[0, 1], [1, 0], [75, 25]]
    """
    size, nbytes = len(taskgraph.members(task)), int(taskgraph.size[task])
    if taskgraph.collective[task] == Collective.BROADCAST:
        receiver = np.arange(1, size)
        return Messages(np.zeros_like(receiver), receiver, np.full(size - 1, nbytes))
    sender, receiver = np.nonzero(~np.eye(size, dtype=bool))
    equal = np.full(len(sender), -(-nbytes // size))
    factors = factors_of(taskgraph, int(taskgraph.group[task]))
    if not factors:
        return Messages(sender, receiver, equal)
    return Messages(sender, receiver, np.rint(equal * scales_of(factors, size)[sender, receiver]).astype(np.int64))
