"""A lower bound where messages take time: operators on a path, and the hosts that they are on.

Take operators that follow each other, of which each part needs something of the one before, whatever the cuts.  Behind
any part of the last one there is a part of each: a chain.  It lies on some number ``n`` of hosts, ``c`` devices each.
Let ``m`` be the seconds of a message, at least.  A micro-batch goes along the chain from the first part to the last
one, and its gradients go back.  Before it comes to the host that the chain comes to as number ``i``, from 0 on, it has
left ``i`` others, so it has taken ``i`` messages, and as many are left when its gradients leave that host for good.
Likewise, ``k`` messages are left before the end of the chain when it leaves the host that the chain leaves last but
``k``, and ``n - 1`` are in the whole chain, at least.  So in an iteration of ``T`` seconds, each host has for its parts
of the chain, in all micro-batches,

- ``T - 2 i m`` for all passes but those for gradients of weights, which nothing waits for,
- ``T - i m`` for all passes,
- ``T - i m - k m - (n - 1) m`` for the forward passes alone, which are followed by the way to the end of the chain and
  back to its first part, and as much for the gradients of inputs alone, which come after the way to the end and back.

Over the hosts both ``i`` and ``k`` take each value from 0 to ``n - 1`` once.  If the parts of the chain take ``P``
seconds without gradients of weights, ``A`` with them, and ``F`` in one direction, the sums over the hosts say

    T >= P / (c n) + (n - 1) m,    T >= A / (c n) + (n - 1) m / 2,    T >= F / (c n) + 2 (n - 1) m.

The bound is the least over ``n`` of the greatest of these: few hosts compute for long, many wait.  It holds for
placements and pipelines, whatever their schedule; their micro-batches take turns on a device, so that all of them
together compute as long as one batch.  In a program every device has a part of every operator and computes for ``A``
seconds, which is no less than what ``n = 1`` says.

`path_bound` takes the path on which the shortest parts of the operators take longest in all; as in
`topoplan_studies.problems.bounds`, no other cut is taken to have a shorter part than those that are looked at.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64
from topoplan.model.fabric import Fabric
from topoplan.model.problem import Problem
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan.plugin.simulate import Simulate
from topoplan_engine.lowering.fragments import weight_seconds
from topoplan_engine.partition import slice_elements
from topoplan_studies.problems.cuts import degrees_of

__all__ = ["least_message_seconds", "path_bound"]


def path_bound(problem: Problem, message_seconds: float) -> float:
    """Return the bound; zero where messages take no time.

    Args:
        problem: with equal devices, and as many on each host.
        message_seconds: that a message between two hosts takes at least.
    """
    if message_seconds <= 0:
        return 0.0
    cluster = problem.cluster
    devices = cluster.n_devices // cluster.n_hosts
    forward, backward, all_passes = (float(seconds) for seconds in _longest_path(problem))
    passes, one_way = forward + backward, max(forward, backward)
    return min(
        max(
            passes / (devices * n) + (n - 1) * message_seconds,
            all_passes / (devices * n) + (n - 1) * message_seconds / 2,
            one_way / (devices * n) + (n - 1) * message_seconds * 2,
        )
        for n in range(1, cluster.n_hosts + 1)
    )


def _longest_path(problem: Problem) -> F64:
    """(3,) seconds on a path: forward, backward without gradients of weights, and of all passes.

    It is the path on which the first two of the shortest parts take longest.
    """
    graph = problem.graph
    producers: list[list[tuple[int, int]]] = [[] for _ in graph.operators]
    for producer, _, consumer, argument in graph.edges.reshape(-1, 4).tolist():
        producers[consumer].append((producer, argument))
    longest: list[F64] = []
    for index in range(len(graph.operators)):
        seconds, needed = _shortest(problem, index)
        before = [longest[producer] for producer, argument in producers[index] if needed[argument]]
        longest.append(seconds + max(before, key=_length, default=np.zeros(3)))
    return max(longest, key=_length)


def _length(seconds: F64) -> float:
    return float(seconds[0] + seconds[1])


def _shortest(problem: Problem, index: int) -> tuple[F64, NDArray[np.bool_]]:
    """Return the least (3,) seconds of an operator's parts, and of which inputs every part needs something."""
    operator = problem.graph.operators[index]
    shortest, needed = np.full(3, np.inf), np.ones(len(operator.inputs), dtype=bool)
    for degrees in degrees_of(problem, index):
        price = problem.costs.price(index, degrees, np.arange(math.prod(degrees), dtype=np.int32))
        backward = price.backward - weight_seconds(operator, price)
        passes = (price.forward, backward, price.forward + price.backward)
        shortest = np.minimum(shortest, [float(seconds.min()) for seconds in passes])
        elements = [int(slice_elements(operator, tensor, degrees).min()) for tensor in operator.inputs]
        needed &= np.array(elements, dtype=np.int64) > 0
    return shortest, needed


def least_message_seconds(problem: Problem, simulate: Simulate) -> float:
    """Return what the smallest message between two hosts takes where nothing else is sent; zero where nobody knows.

    Args:
        problem: whose network is meant: that of its topology, or, if it can be wired, one cable between two hosts.
        simulate: the simulator that prices its strategies.
    """
    cluster = problem.cluster
    if cluster.n_hosts < 2:
        return 0.0
    fabric = _two_hosts(problem) if problem.reconfigurable else problem.build_fabric(None, np.random.default_rng(0))
    if not isinstance(fabric, Fabric):
        return 0.0
    hosts = range(2) if problem.reconfigurable else range(cluster.n_hosts)
    device = np.searchsorted(cluster.device_host, np.arange(cluster.n_hosts))
    pairs = np.array([(device[a], device[b]) for a in hosts for b in hosts if a != b], dtype=np.int32)
    timeline = simulate(_one_by_one(pairs, cluster.n_devices), fabric, cluster)
    seconds: F64 = timeline.finish - timeline.start
    return float(seconds.min())


def _two_hosts(problem: Problem) -> Fabric:
    """Return a fabric whose first two hosts have all their interfaces for each other."""
    cluster = problem.cluster
    count = int(cluster.interfaces.max())
    return Fabric(
        name="cable",
        n_hosts=cluster.n_hosts,
        link_src=[0, 1],
        link_dst=[1, 0],
        link_count=[count, count],
        link_bandwidth=np.full(2, float((cluster.interfaces * cluster.interface_bandwidth).max())),
        link_latency=np.full(2, cluster.latency),
    )


def _one_by_one(pairs: np.ndarray, n_devices: int) -> TaskGraph:
    """Return messages of one byte from device to device, each of which waits for the one before."""
    count = len(pairs)
    none = np.full(count, -1)
    return TaskGraph(
        kind=np.full(count, int(TaskKind.TRANSFER)),
        device=none,
        seconds=np.zeros(count),
        size=np.ones(count),
        src=pairs[:, 0],
        dst=pairs[:, 1],
        group=none,
        group_ptr=[0],
        group_members=[],
        succ_ptr=np.minimum(np.arange(count + 1), count - 1),
        succ=np.arange(1, count),
        op=none,
        n_devices=n_devices,
    )
