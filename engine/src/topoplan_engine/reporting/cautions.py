"""What a plan does that its user may not expect, and its price: devices without work, tensor parallelism over hosts.

    plan: devices, stages, shares of attention, seconds by part, insides of hosts ─► rows of tables, `cautions` in JSON

None is an error: on one host there may be no other plan, copies of small heads are cheap, and interfaces that are
faster than the links behind them may be what there is.
"""

from __future__ import annotations

import math

import numpy as np

from topoplan.model.plan import Plan
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import PlacedStrategy, Strategy
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.host_models import slow_link_of_interfaces
from topoplan_engine.reporting.parts import iteration_parts
from topoplan_engine.reporting.printing import spelled_time
from topoplan_engine.simulation.parts import Part

__all__ = ["caution_rows"]

#: Axes of a mesh along which layers are divided; along the last one keys and values are copied.
_TENSOR = ("edp-tp", "ep-tp", "tp", "kv")
#: Part of an iteration that sums at a time may seem to save.
_SLACK = 1e-3
_ATTENTION = "scaled_dot_product_attention"


def caution_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return rows of a table: what to look at, and what it costs; none for a plan that does nothing of the kind."""
    rows = _fast_interfaces(plan)
    if plan.graph is None or plan.strategy is None:
        return rows
    rows += _without_work(plan, plan.strategy) + _sums_at_a_time(plan, plan.strategy)
    if isinstance(plan.strategy, StagedStrategy):
        rows += _over_hosts(plan, plan.strategy) + _copied_heads(plan, plan.strategy)
    return rows


def _fast_interfaces(plan: Plan) -> list[tuple[str, str]]:
    """Return a row where interfaces are faster than the links behind them."""
    link = slow_link_of_interfaces(plan.cluster)
    if link is None:
        return []
    rate = float(plan.cluster.interface_bandwidth.min())
    text = f"each of {rate * 8e-9:,.4g} Gbps is behind a link of {link * 8e-9:,.4g} Gbps inside its host"
    return [("caution: interfaces", f"{text}, by which it sends no more")]


def _without_work(plan: Plan, strategy: Strategy) -> list[tuple[str, str]]:
    """Return a row where devices have no part of any operator, with the batch where it does not divide over all."""
    assert plan.graph is not None
    count, batch = plan.cluster.n_devices, plan.graph.batch_size
    works = np.zeros(count, dtype=bool)
    stages = strategy.stages if isinstance(strategy, StagedStrategy) else ()
    for devices in (*(stage.mesh.devices for stage in stages), *(each.devices for each in strategy.placements)):
        works[devices] = True
        if works.all():
            return []
    why = f": a batch of {batch:,} does not divide over {count:,}" if batch % count else ""
    return [("caution: devices", f"{count - int(works.sum()):,} of {count:,} have nothing to do{why}")]


def _sums_at_a_time(plan: Plan, strategy: Strategy) -> list[tuple[str, str]]:
    """Return a row where the GPUs of a device sum several gradients at a time, each as if it had their links alone.

    On one link they take the sum of their times, from when the first one begins.
    """
    gpus, timeline = plan.cluster.gpus_per_device, plan.timeline
    flexnet = plan.graph is not None and plan.graph.reduces_per_part  # whose devices have a link for each pair of GPUs
    if gpus == 1 or timeline is None or flexnet or not isinstance(strategy, PlacedStrategy):
        return []
    tasks, n_devices = plan.taskgraph, plan.cluster.n_devices
    sums = np.flatnonzero((tasks.kind == TaskKind.COLLECTIVE) & (tasks.seconds > 0))
    groups = tasks.group[sums]
    counts = tasks.group_ptr[groups + 1] - tasks.group_ptr[groups]
    devices = np.concatenate([np.zeros(0, np.int32), *(tasks.members(int(task)) for task in sums)])
    seconds = np.bincount(devices, np.repeat(tasks.seconds[sums], counts), n_devices)
    first = np.full(n_devices, np.inf)
    np.minimum.at(first, devices, np.repeat(timeline.start[sums], counts))
    ends = np.where(seconds > 0, first + seconds, 0.0)
    device = int(np.argmax(ends))
    if ends[device] <= timeline.makespan * (1 + _SLACK):
        return []
    text = (
        f"the {gpus} of device {device} sum gradients for {spelled_time(float(seconds[device]))} over the same links, "
        f"several at a time: the iteration takes {spelled_time(float(ends[device]))} at least (--gpus-per-server "
        "models each GPU)"
    )
    return [("caution: GPUs of a device", text)]


def _over_hosts(plan: Plan, strategy: StagedStrategy) -> list[tuple[str, str]]:
    """Return a row where a tensor-parallel group has devices of several hosts, with the time of its messages."""
    most, degree = 1, 1
    for stage in strategy.stages:
        mesh = stage.mesh
        along = [number for number, name in enumerate(mesh.axes) if name in _TENSOR]
        size = math.prod(mesh.sizes[number] for number in along)
        grid = np.moveaxis(mesh.devices.reshape(mesh.sizes), along, range(-len(along), 0)).reshape(-1, size)
        hosts = np.sort(plan.cluster.device_host[grid], axis=1)
        count = 1 + int((np.diff(hosts, axis=1) != 0).sum(axis=1).max(initial=0))
        most, degree = max((most, degree), (count, size))
    if most == 1:
        return []
    parts = iteration_parts(plan)
    seconds = 0.0 if parts is None else parts.seconds.get(Part.TENSOR, 0.0)
    share = "" if parts is None or not parts.total else f", {seconds / parts.total:.0%} of the iteration"
    return [
        (
            "caution: tensor parallelism",
            f"tp={degree} lies over {most} hosts, between which it waits for the network: "
            f"{spelled_time(seconds)} exposed{share}",
        )
    ]


def _copied_heads(plan: Plan, strategy: StagedStrategy) -> list[tuple[str, str]]:
    """Return a row where heads of queries are divided further than those of keys and values, which are copied then."""
    assert plan.graph is not None
    for stage in strategy.stages:
        for number, row in zip(stage.operators.tolist(), stage.share_of.tolist(), strict=False):
            op = plan.graph.operators[number]
            share = float(stage.shares[row].max()) if row >= 0 else 1.0
            if op.kind == _ATTENTION and share < 1:
                heads = next(dim.size for dim in op.dims if dim.name == "h")
                text = f"each of {heads} is on {round(1 / share)} devices of a tensor-parallel group, with its weights"
                return [("caution: heads of keys and values", text)]
    return []
