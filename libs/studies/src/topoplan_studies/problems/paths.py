"""A lower bound where messages take time: operators on a path, and the hosts that they are on.

Take operators that follow each other, of which each part needs something of the one before, whatever the cuts.  Behind
any part of the last one there is a part of each: a chain.  It lies on some number ``n`` of hosts; number them in the
order in which the chain first comes to them.  When it comes to host ``j``, it has left ``j - 1`` others, each time by a
message of ``m`` seconds at least.  So before ``(j - 1) m`` nothing of the chain is computed there, in any micro-batch.
Gradients go back along the chain by as many messages, so that host ``j`` has done all its passes of the chain ``(j - 1)
m`` before the end: all but those for gradients of weights, which nothing waits for and which are left out.  What the
host computes of the chain takes its ``c`` devices ``T - 2 (j - 1) m`` at most.  If all parts of the chain take ``A``
seconds, the sum over its hosts says

    A / c <= n T - n (n - 1) m,    that is    T >= A / (c n) + (n - 1) m.

The bound is the least of this over ``n``: few hosts compute for long, many wait.  It holds for placements and
pipelines, whatever their schedule; their micro-batches take turns on a device, so that all of them together compute as
long as one batch.  In a program every device has a part of every operator and computes for ``A`` seconds, which is what
``n = 1`` and ``c = 1`` say; with several devices on a host the bound is less.

`path_bound` takes the path on which the shortest parts of the operators take longest in all.
"""

from __future__ import annotations

import math

import numpy as np

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
    hosts, devices = cluster.n_hosts, cluster.n_devices // cluster.n_hosts
    seconds = _longest_path(problem)
    return min(seconds / (devices * n) + (n - 1) * message_seconds for n in range(1, hosts + 1))


def _longest_path(problem: Problem) -> float:
    """Return the most seconds that the shortest parts of operators on a path take, without gradients of weights."""
    graph = problem.graph
    longest = [0.0] * len(graph.operators)
    producers: list[list[tuple[int, int]]] = [[] for _ in graph.operators]
    for producer, _, consumer, argument in graph.edges.reshape(-1, 4).tolist():
        producers[consumer].append((producer, argument))
    for index, operator in enumerate(graph.operators):
        shortest, needed = math.inf, np.ones(len(operator.inputs), dtype=bool)
        for degrees in degrees_of(problem, index):
            price = problem.costs.price(index, degrees, np.arange(math.prod(degrees), dtype=np.int32))
            passes = price.forward + price.backward - weight_seconds(operator, price)
            shortest = min(shortest, float(passes.min()))
            elements = [int(slice_elements(operator, tensor, degrees).min()) for tensor in operator.inputs]
            needed &= np.array(elements, dtype=np.int64) > 0
        before = [longest[producer] for producer, argument in producers[index] if needed[argument]]
        longest[index] = max(before, default=0.0) + shortest
    return max(longest)


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
