"""Tasks that say what they compute and not how long: seconds from operations, bytes and the rates of a device.

An importer keeps operations and bytes of such tasks in columns of the task graph (`work_columns`); `priced` turns them
into seconds before a simulation.  A task takes as long as its arithmetic at the peak or its bytes at the memory's
bandwidth, whichever is longer: the roofline, as ASTRA-sim prices ``num_ops`` (Roofline.cc at 518bd51).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs
import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.plan import Plan
from topoplan.model.taskgraph import TaskGraph
from topoplan.options import option
from topoplan.plugin.host import Host
from topoplan_engine.experiment import build_cluster
from topoplan_engine.options import ClusterOptions

__all__ = ["RateOptions", "Rates", "priced", "work_columns"]

#: Columns of a task graph, among those that an importer read: operations, and bytes.
_OPS, _BYTES = "work_ops", "work_bytes"


@attrs.frozen(kw_only=True)
class RateOptions:
    """At which rates tasks compute that say their work and not their time."""

    work_device: str = option("", help="device whose rates tasks have that say their operations and no time")
    work_precision: Literal["fp32", "tf32", "bf16", "fp16"] | None = option(
        None, help="arithmetic whose peak counts for these; unset: bf16, or fp16 where the device has none"
    )
    work_tflops: float | None = option(
        None, help="their arithmetic rate; unset: the peak of the device", unit="TFLOP/s", above=0, maximum=1e9
    )
    work_gb_per_s: float | None = option(
        None, help="their memory bandwidth; unset: the device's", unit="GB/s", above=0, maximum=1e9
    )


@attrs.frozen
class Rates:
    """FLOP/s and bytes/s, and where they come from."""

    flops: float
    bandwidth: float
    source: str

    def __str__(self) -> str:
        return f"{self.flops * 1e-12:g} TFLOP/s and {self.bandwidth * 1e-9:g} GB/s ({self.source})"


def work_columns(n_tasks: int, work: Mapping[int, tuple[float, float]]) -> dict[str, Any]:
    """Return columns that keep the work of tasks: task -> operations and bytes; none where no task has any.

    >>> work_columns(3, {1: (2e9, 1e6)})["work_ops"].tolist()
    [0.0, 2000000000.0, 0.0]
    """
    if not work:
        return {}
    columns = np.zeros((2, n_tasks))
    for task, quantities in work.items():
        columns[:, task] = quantities
    return {_OPS: columns[0], _BYTES: columns[1]}


def priced(plan: Plan, options: RateOptions | None, host: Host) -> tuple[Plan, str]:
    """Return a plan whose tasks of stated work take time, and a sentence on their rates; empty where there are none.

    Args:
        plan: as read.
        options: of the rates; those of the default device unless given.
        host: knows the devices.

    Raises:
        TopoplanError: an unknown device, or one that lacks the precision.
    """
    columns = plan.taskgraph.foreign
    if _OPS not in columns:
        return plan, ""
    rates = _rates(options or RateOptions(), host)
    ops, nbytes = np.asarray(columns[_OPS]), np.asarray(columns[_BYTES])
    seconds = np.maximum(ops / rates.flops, nbytes / rates.bandwidth)
    graph = plan.taskgraph
    sentence = f"{int((seconds > 0).sum()):,} of {graph.n_tasks:,} tasks say their work and no time: at {rates}"
    return attrs.evolve(plan, taskgraph=_with_seconds(graph, seconds)), sentence


def _with_seconds(graph: TaskGraph, seconds: np.ndarray) -> TaskGraph:
    stated = np.asarray(graph.seconds)
    return attrs.evolve(graph, seconds=np.where(stated > 0, stated, seconds))


def _rates(options: RateOptions, host: Host) -> Rates:
    """Return the rates of a device, or those that are given."""
    name = options.work_device or ClusterOptions().device
    cluster = build_cluster(ClusterOptions(servers=1, device=name), host)
    device = cluster.device(name)
    precision = options.work_precision or ("bf16" if "bf16" in device.peak_flops else "fp16")
    if options.work_tflops is None and precision not in device.peak_flops:
        have = ", ".join(device.peak_flops)
        raise TopoplanError(f"--work-precision {precision}: {device.name} has no peak of it (have: {have})")
    sources = [f"peak of {device.name} in {precision}", f"memory of {device.name}"]
    flops, bandwidth = device.peak_flops.get(precision, 0.0), device.memory_bandwidth
    if options.work_tflops is not None:
        flops, sources[0] = options.work_tflops * 1e12, "--work-tflops"
    if options.work_gb_per_s is not None:
        bandwidth, sources[1] = options.work_gb_per_s * 1e9, "--work-gb-per-s"
    return Rates(flops, bandwidth, ", ".join(sources))
