"""Lowering task by task in plain Python; tests compare `topoplan_engine.partition` and `.lowering` with it.

Slow and obvious on purpose: every part of every operator gets the box of each tensor that it touches, every
pair of parts is intersected, every task and edge is appended in the order that the task graph promises.
"""

from __future__ import annotations

import itertools

from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.graph import Operator, OperatorGraph, Slices, Tensor
from topoplan.model.strategy import Strategy
from topoplan.model.taskgraph import TaskGraph, TaskKind

__all__ = ["boxes", "reference_lower", "reference_transfers"]

Box = tuple[tuple[int, int], ...]


def iterations(size: int, degree: int, at: int) -> tuple[int, int]:
    """Return where slice ``at`` of a dimension begins and ends."""
    if isinstance(degree, Slices):
        return sum(degree.sizes[:at]), sum(degree.sizes[: at + 1])
    return at * size // degree, (at + 1) * size // degree


def boxes(op: Operator, tensor: Tensor, degrees: tuple[int, ...]) -> list[Box]:
    """Return the box of ``tensor`` that each part touches: (low, high) of every axis."""
    result = []
    for coordinates in itertools.product(*(range(degree) for degree in degrees)):
        box = []
        for axis in tensor.axes:
            if axis.dim < 0:
                box.append((0, axis.size))
                continue
            low, high = iterations(op.dims[axis.dim].size, degrees[axis.dim], coordinates[axis.dim])
            touched = [
                element
                for iteration in range(low, high)
                for element in (
                    iteration * axis.scale + axis.offset,
                    iteration * axis.scale + axis.offset + axis.extent,
                )
            ]
            box.append((min(max(min(touched), 0), axis.size), min(max(max(touched), 0), axis.size)))
        result.append(tuple(box))
    return result


def volume(box: Box) -> int:
    """Return the number of elements of a box."""
    total = 1
    for low, high in box:
        total *= max(high - low, 0)
    return total


def overlap(one: Box, other: Box) -> int:
    """Return the number of elements that two boxes share."""
    return volume(tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True)))


def reference_transfers(
    producer: Operator,
    output: Tensor,
    producer_degrees: tuple[int, ...],
    consumer: Operator,
    into: Tensor,
    consumer_degrees: tuple[int, ...],
) -> list[tuple[int, int, int]]:
    """Return (producer part, consumer part, elements) by consumer part, then producer part."""
    producer_boxes, consumer_boxes = boxes(producer, output, producer_degrees), boxes(consumer, into, consumer_degrees)
    return [
        (s, d, overlap(source, target))
        for d, target in enumerate(consumer_boxes)
        for s, source in enumerate(producer_boxes)
        if overlap(source, target)
    ]


def reference_lower(graph: OperatorGraph, strategy: Strategy, costs: CostFunction, cluster: Cluster) -> TaskGraph:
    """Return the same task graph as `topoplan_engine.lowering.Lowering.lower`."""
    rows: list[dict[str, float]] = []
    successors: list[list[int]] = []
    groups: list[list[int]] = []
    first: list[int] = []

    def add(kind: TaskKind, op: int, **columns: float) -> int:
        rows.append({"device": -1, "seconds": 0.0, "size": 0, "src": -1, "dst": -1, "group": -1, **columns})
        rows[-1].update(kind=int(kind), op=op)
        successors.append([])
        return len(rows) - 1

    for index, placement in enumerate(strategy.placements):
        first.append(len(rows))
        prices = costs.price(index, placement.degrees, placement.devices)
        for part, device in enumerate(placement.devices.tolist()):
            f = add(TaskKind.FORWARD, index, device=device, seconds=prices.forward[part])
            b = add(TaskKind.BACKWARD, index, device=device, seconds=prices.backward[part])
            successors[f].append(b)
    for index, (op, placement) in enumerate(zip(graph.operators, strategy.placements, strict=True)):
        inside = cluster.gpus_per_device > 1 and op.kind != "embedding"
        for weight in op.weights:
            held: dict[Box, list[int]] = {}
            for part, box in enumerate(boxes(op, weight, placement.degrees)):
                held.setdefault(box, []).append(part)
            for box, parts in held.items():
                members = [int(placement.devices[part]) for part in parts]
                if not graph.reduces_per_part:
                    members = sorted(set(members))
                    if len(members) == 1 and not inside:
                        continue
                size = volume(box) * weight.itemsize
                slowest = min(float(cluster.inside_bandwidth[cluster.device_host[d]]) for d in members)
                gpus = cluster.gpus_per_device
                sent = 2 * size // gpus if graph.reduces_per_part else 2.0 * size * (gpus - 1) / gpus
                seconds = sent / slowest if inside else 0.0
                ring = add(TaskKind.COLLECTIVE, index, seconds=seconds, size=size, group=len(groups))
                groups.append(members)
                for part in parts:
                    successors[first[index] + 2 * part + 1].append(ring)
    for u, out, v, into in graph.edges.reshape(-1, 4).tolist():
        producer, consumer = graph.operators[u], graph.operators[v]
        source, target = strategy.placements[u], strategy.placements[v]
        tensor = consumer.inputs[into]
        for s, d, elements in reference_transfers(
            producer, producer.outputs[out], source.degrees, consumer, tensor, target.degrees
        ):
            a, b = first[u] + 2 * s, first[v] + 2 * d
            here, there = int(source.devices[s]), int(target.devices[d])
            for start, end, left, right in ((a, b, here, there), (b + 1, a + 1, there, here)):
                if here == there:
                    successors[start].append(end)
                else:
                    moved = add(TaskKind.TRANSFER, v, size=elements * tensor.itemsize, src=left, dst=right)
                    successors[start].append(moved)
                    successors[moved].append(end)
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    return TaskGraph(
        **columns,  # type: ignore[arg-type]
        group_ptr=list(itertools.accumulate((len(g) for g in groups), initial=0)),
        group_members=[device for group in groups for device in group],
        succ_ptr=list(itertools.accumulate((len(s) for s in successors), initial=0)),
        succ=[task for row in successors for task in row],
        op_names=tuple(op.name for op in graph.operators),
        n_devices=cluster.n_devices,
    )
