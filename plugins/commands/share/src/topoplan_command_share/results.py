"""Means and tails of the iteration times of all jobs of a network at a load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from topoplan_command_share.draw import at_load, draw
from topoplan_command_share.plans import NetworkPlan
from topoplan_command_share.shared_cluster import SharedCluster
from topoplan_command_share.simulate import job_seconds

__all__ = ["JobTime", "LoadResult", "as_json", "job_times", "load_results"]


@attrs.frozen(kw_only=True)
class JobTime:
    """One job of one draw on one network.

    Attributes:
        network, model: names in the study.
        load: percent of the servers that may be occupied.
        trial: number of the draw.
        seconds, alone: of an iteration, with the other jobs and alone.
    """

    network: str
    load: int
    trial: int
    model: str
    seconds: float
    alone: float


@attrs.frozen(kw_only=True)
class LoadResult:
    """Iteration times of all jobs on a network at a load.

    Attributes:
        jobs: their number, over all draws.
        mean, p99, most: seconds of an iteration; the 99th percentile is interpolated linearly.
        slowdown, worst: mean and largest of seconds over those alone.
        models: model -> mean seconds of its jobs, for models that have any.
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


def job_times(
    shared: SharedCluster, networks: Sequence[NetworkPlan], on_progress: Callable[[str], None]
) -> list[JobTime]:
    """Simulate every draw at every load on every network; ``on_progress`` is called after each of them."""
    study, options = shared.study, shared.options
    draws = [draw(shared, trial) for trial in range(options.trials)]
    times = []
    for network in networks:
        for load in options.loads:
            for trial, all_jobs in enumerate(draws):
                jobs = at_load(all_jobs, study.cluster.servers, load)
                for job, seconds in zip(jobs, job_seconds(jobs, network), strict=True):
                    times.append(
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
    return times


def load_results(times: Sequence[JobTime]) -> list[LoadResult]:
    """Gather jobs by network and load, in the order in which these occur."""
    groups: dict[tuple[str, int], list[JobTime]] = {}
    for time in times:
        groups.setdefault((time.network, time.load), []).append(time)
    return [_load_result(network, load, group) for (network, load), group in groups.items()]


def _load_result(network: str, load: int, times: list[JobTime]) -> LoadResult:
    seconds = np.array([time.seconds for time in times])
    slowdown = np.array([time.seconds / time.alone if time.alone > 0 else 1.0 for time in times])
    models: dict[str, list[float]] = {}
    for time in times:
        models.setdefault(time.model, []).append(time.seconds)
    return LoadResult(
        network=network,
        load=load,
        jobs=len(times),
        mean=float(seconds.mean()),
        p99=float(np.percentile(seconds, 99)),
        most=float(seconds.max()),
        slowdown=float(slowdown.mean()),
        worst=float(slowdown.max()),
        models={model: float(np.mean(values)) for model, values in sorted(models.items())},
    )


def as_json(shared: SharedCluster, networks: Sequence[NetworkPlan], times: Sequence[JobTime]) -> dict[str, Any]:
    """Return everything as plain values."""
    return {
        "title": shared.study.title,
        "servers": shared.study.cluster.servers,
        "budget": shared.study.run.budget,
        **attrs.asdict(shared.options),
        "networks": [
            {
                "network": network.name,
                "shared": network.fabric is not None,
                "fits": network.fits,
                "interfaces": int(network.cluster.interfaces.min()),
                "interface_bandwidth_gbps": float(network.cluster.interface_bandwidth.min()) * 8e-9,
                "equal_cost": None if network.target is None else attrs.asdict(network.target),
                "alone_s": {
                    model.name: plan.alone for model, plan in zip(shared.study.models, network.jobs, strict=True)
                },
            }
            for network in networks
        ],
        "rows": [
            {
                "network": result.network,
                "load": result.load,
                "jobs": result.jobs,
                "mean_s": result.mean,
                "p99_s": result.p99,
                "max_s": result.most,
                "mean_slowdown": result.slowdown,
                "max_slowdown": result.worst,
                "mean_s_by_model": result.models,
            }
            for result in load_results(times)
        ],
        "jobs": [attrs.asdict(time) for time in times],
    }
