"""Draws of jobs and their servers by seed, the same for all networks; a higher load adds jobs to a lower one's."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from topoplan.arrays import ARRAY_EQ, I32, i32
from topoplan_command_share.shared_cluster import SharedCluster

__all__ = ["Job", "at_load", "draw"]


@attrs.frozen
class Job:
    """A job.

    Attributes:
        model: its number in the study.
        servers: hosts that it runs on, ascending.
        phase: share of an iteration that it starts after the others, at least 0 and less than 1.
    """

    model: int
    servers: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    phase: float


def draw(shared: SharedCluster, trial: int) -> list[Job]:
    """Fill the cluster: draw models by their weights until none fits any more."""
    rng = np.random.default_rng([shared.options.seed, trial])
    servers = shared.study.cluster.servers
    places = np.arange(servers) if shared.options.placement == "contiguous" else rng.permutation(servers)
    jobs: list[Job] = []
    free = servers
    while fitting := [number for number, job in enumerate(shared.jobs) if job.servers <= free]:
        weights = np.array([shared.jobs[number].weight for number in fitting])
        model = fitting[int(rng.choice(len(fitting), p=weights / weights.sum()))]
        first, free = servers - free, free - shared.jobs[model].servers
        jobs.append(Job(model, np.sort(places[first : servers - free]), float(rng.random())))
    return jobs


def at_load(jobs: Sequence[Job], servers: int, load: int) -> list[Job]:
    """Return the first jobs, as many as keep within ``load`` percent of the servers."""
    occupied = np.cumsum([len(job.servers) for job in jobs])
    return list(jobs[: int(np.searchsorted(occupied, servers * load // 100, side="right"))])
