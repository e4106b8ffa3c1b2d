"""Means and tails of the iteration times of all jobs of a network at a load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from topoplan_command_share.draw import at_load, draw
from topoplan_command_share.plans import NetworkPlan
from topoplan_command_share.share import Share
from topoplan_command_share.simulate import job_seconds

__all__ = ["JobTime", "Row", "as_json", "measured", "rows_of"]


@attrs.frozen(kw_only=True)
class JobTime:
    """One job of one draw on one network.

    Attributes:
        network, model: names in the study.
        load: percent of the servers that may be occupied.
        trial: number of the draw.
        seconds, alone: of an iteration, beside the others and alone.
    """

    network: str
    load: int
    trial: int
    model: str
    seconds: float
    alone: float


@attrs.frozen(kw_only=True)
class Row:
    """All jobs on a network at a load.

    Attributes:
        jobs: their number, over all draws.
        mean, p99, most: seconds of an iteration; the 99th percentile is interpolated linearly.
        slowdown, worst: mean and largest of seconds over those alone.
        models: model -> mean seconds of its jobs, where there were any.
    """

    network: str
    load: int
    jobs: int
    mean: float
    p99: float
    most: float
    slowdown: float
    worst: float
    models: dict[str, float]


def measured(share: Share, networks: Sequence[NetworkPlan], on_progress: Callable[[str], None]) -> list[JobTime]:
    """Simulate every draw at every load on every network; ``on_progress`` is called after each of them."""
    study, options = share.study, share.options
    draws = [draw(share, trial) for trial in range(options.trials)]
    found = []
    for network in networks:
        for load in options.loads:
            for trial, drawn in enumerate(draws):
                jobs = at_load(drawn, study.cluster.servers, load)
                for job, seconds in zip(jobs, job_seconds(jobs, network), strict=True):
                    found.append(
                        JobTime(
                            network=network.name,
                            load=load,
                            trial=trial,
                            model=study.models[job.model].name,
                            seconds=seconds,
                            alone=network.jobs[job.model].alone,
                        )
                    )
                on_progress(f"{network.name} at {load} %")
    return found


def rows_of(times: Sequence[JobTime]) -> list[Row]:
    """Gather jobs by network and load, in the order in which these occur."""
    gathered: dict[tuple[str, int], list[JobTime]] = {}
    for time in times:
        gathered.setdefault((time.network, time.load), []).append(time)
    return [_row(network, load, own) for (network, load), own in gathered.items()]


def _row(network: str, load: int, own: list[JobTime]) -> Row:
    seconds = np.array([time.seconds for time in own])
    slowdown = np.array([time.seconds / time.alone if time.alone > 0 else 1.0 for time in own])
    models: dict[str, list[float]] = {}
    for time in own:
        models.setdefault(time.model, []).append(time.seconds)
    return Row(
        network=network,
        load=load,
        jobs=len(own),
        mean=float(seconds.mean()),
        p99=float(np.percentile(seconds, 99)),
        most=float(seconds.max()),
        slowdown=float(slowdown.mean()),
        worst=float(slowdown.max()),
        models={model: float(np.mean(values)) for model, values in sorted(models.items())},
    )


def as_json(share: Share, networks: Sequence[NetworkPlan], times: Sequence[JobTime]) -> dict[str, Any]:
    """Return everything as plain values."""
    return {
        "title": share.study.title,
        "servers": share.study.cluster.servers,
        "budget": share.study.budget,
        **attrs.asdict(share.options),
        "networks": [
            {
                "network": network.name,
                "shared": network.fabric is not None,
                "fits": network.fits,
                "interfaces": int(network.cluster.interfaces.min()),
                "interface_bandwidth_gbps": float(network.cluster.interface_bandwidth.min()) * 8e-9,
                "equal_cost": None if network.target is None else attrs.asdict(network.target),
                "alone_s": {
                    model.name: plan.alone for model, plan in zip(share.study.models, network.jobs, strict=True)
                },
            }
            for network in networks
        ],
        "rows": [
            {
                "network": row.network,
                "load": row.load,
                "jobs": row.jobs,
                "mean_s": row.mean,
                "p99_s": row.p99,
                "max_s": row.most,
                "mean_slowdown": row.slowdown,
                "max_slowdown": row.worst,
                "mean_s_by_model": row.models,
            }
            for row in rows_of(times)
        ],
        "jobs": [attrs.asdict(time) for time in times],
    }
