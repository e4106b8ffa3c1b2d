"""The jobs of a draw, together.

All start within an iteration of each other, at times of their own, and repeat their iteration about as long as the
longest one takes, so that short jobs do not leave the network to the long ones.  A job's iteration time is the mean
over its iterations, from its own start to the end of the last one, and over draws of equal paths
(`topoplan_engine.search.draws`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from topoplan.arrays import F64, I32
from topoplan.model.cluster import Cluster
from topoplan_command_share.draw import Job
from topoplan_command_share.plans import NetworkPlan
from topoplan_command_share.union import union, unroll
from topoplan_engine.search.draws import finish_times

__all__ = ["MOST_ITERATIONS", "devices_of", "iterations", "job_seconds"]

#: Iterations of a job at most, however short they are.
MOST_ITERATIONS = 50


def job_seconds(jobs: Sequence[Job], network: NetworkPlan) -> list[float]:
    """Return the seconds of an iteration of each job; on partitions of their own those that it takes alone."""
    seconds_alone = [network.jobs[job.model].alone for job in jobs]
    if network.fabric is None or not jobs:
        return seconds_alone
    times = iterations(seconds_alone)
    waits = [job.phase * seconds for job, seconds in zip(jobs, seconds_alone, strict=True)]
    graphs = [
        unroll(network.jobs[job.model].taskgraph, count, wait)
        for job, count, wait in zip(jobs, times, waits, strict=True)
    ]
    devices = [devices_of(network.cluster, job.servers) for job in jobs]
    whole = union(graphs, devices, network.cluster.n_devices)
    finish = finish_times(network.simulate, whole, network.fabric, network.cluster, network.first_draw)
    first_tasks = np.cumsum([0, *(graph.n_tasks for graph in graphs[:-1])])
    ends: F64 = np.maximum.reduceat(finish, first_tasks, axis=1).mean(axis=0)
    return [(float(end) - wait) / count for end, wait, count in zip(ends, waits, times, strict=True)]


def iterations(seconds_alone: Sequence[float]) -> list[int]:
    """Return how often each job repeats its iteration while the longest one runs once."""
    longest = max(seconds_alone)
    return [min(MOST_ITERATIONS, math.ceil(longest / seconds)) if seconds > 0 else 1 for seconds in seconds_alone]


def devices_of(cluster: Cluster, servers: I32) -> I32:
    """Return the devices of some hosts, host by host."""
    first = np.searchsorted(cluster.device_host, servers)
    last = np.searchsorted(cluster.device_host, servers, side="right")
    return np.concatenate([np.arange(a, b, dtype=np.int32) for a, b in zip(first, last, strict=True)])
