"""Which jobs run, and where: drawn by seed, the same for all networks, and at a higher load the same and more."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from topoplan.arrays import ARRAY_EQ, I32, i32
from topoplan_command_share.share import Share

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


def draw(share: Share, trial: int) -> list[Job]:
    """Fill the cluster: draw models by their weights until none fits any more."""
    rng = np.random.default_rng([share.options.seed, trial])
    servers = share.study.cluster.servers
    places = np.arange(servers) if share.options.placement == "contiguous" else rng.permutation(servers)
    jobs: list[Job] = []
    left = servers
    while fitting := [number for number, job in enumerate(share.jobs) if job.servers <= left]:
        weights = np.array([share.jobs[number].weight for number in fitting])
        model = fitting[int(rng.choice(len(fitting), p=weights / weights.sum()))]
        first, left = servers - left, left - share.jobs[model].servers
        jobs.append(Job(model, np.sort(places[first : servers - left]), float(rng.random())))
    return jobs


def at_load(jobs: Sequence[Job], servers: int, load: int) -> list[Job]:
    """Return the first jobs, as many as keep within ``load`` percent of the servers."""
    taken = np.cumsum([len(job.servers) for job in jobs])
    return list(jobs[: int(np.searchsorted(taken, servers * load // 100, side="right"))])
