"""Recovers the strategy of a task graph, given its model.

FlexNet's files contain the device of each task, but not its operator.  The order of tasks determines it: forward and
backward tasks are sorted by operator and part, and the all-reduce of a weight follows the backward tasks of exactly the
parts of its operator.  This gives the parts of every operator with weights.  Tasks between them belong to operators
without weights, which are separated by a change of the run time or a decrease of the device number.
"""

from __future__ import annotations

import itertools

import numpy as np

from topoplan import OperatorGraph, PlacedStrategy, Placement, Strategy, TaskGraph, TaskKind, TopoplanError

__all__ = ["recover_strategy"]


def recover_strategy(taskgraph: TaskGraph, name: str, graph: OperatorGraph) -> Strategy:
    """Return the strategy of ``taskgraph``, every operator cut along its samples.

    Raises:
        TopoplanError: the task graph was not made from ``graph``, or cuts more than samples.
    """
    forward = np.flatnonzero(taskgraph.kind == TaskKind.FORWARD)
    backward = np.flatnonzero(taskgraph.kind == TaskKind.BACKWARD)
    if len(forward) != len(backward) or not len(forward):
        raise TopoplanError(f"{name}: {len(forward)} forward and {len(backward)} backward tasks (must be as many)")
    if _scheduled(taskgraph, forward, backward):
        raise TopoplanError(
            f"{name}: its tasks follow a schedule of micro-batches or an SPMD program, which the format cannot say"
        )
    part = np.full(taskgraph.n_tasks, -1)
    part[backward] = np.arange(len(backward))
    spans = _weighted_spans(taskgraph, part, name, graph)
    devices = taskgraph.device[forward]
    seconds = taskgraph.seconds[forward]
    placements: list[Placement] = []
    task, op = 0, 0
    while op < len(graph.operators):
        if op in spans:
            start, stop = spans[op]
            bounds = [start, stop]
        else:
            last = op
            while last < len(graph.operators) and last not in spans:
                last += 1
            stop = spans[last][0] if last in spans else len(devices)
            bounds = _split(devices, seconds, task, stop, last - op)
        for first, end in itertools.pairwise(bounds):
            if first != task or end <= first or op >= len(graph.operators):
                raise TopoplanError(f"{name}: its tasks do not fit the operators of model {graph.name!r}")
            placements.append(_placement(graph, op, devices[first:end], name))
            task, op = end, op + 1
    if task != len(devices) or len(placements) != len(graph.operators):
        raise TopoplanError(f"{name}: has {len(devices)} parts, model {graph.name!r} accounts for {task} of them")
    return PlacedStrategy(tuple(placements))


def _scheduled(taskgraph: TaskGraph, forward: np.ndarray, backward: np.ndarray) -> bool:
    """Whether a backward task does not follow the forward task of its part at once."""
    source, target = taskgraph.edges()
    edges = source * taskgraph.n_tasks + target
    return not np.isin(forward * taskgraph.n_tasks + backward, edges).all()


def _weighted_spans(
    taskgraph: TaskGraph, part: np.ndarray, name: str, graph: OperatorGraph
) -> dict[int, tuple[int, int]]:
    """Return the first part and the one behind the last of every operator that has weights."""
    rings = np.flatnonzero(taskgraph.kind == TaskKind.COLLECTIVE)
    weights = [op for op, operator in enumerate(graph.operators) for _ in operator.weights]
    if len(rings) != len(weights):
        raise TopoplanError(
            f"{name}: has {len(rings)} all-reduces, model {graph.name!r} has {len(weights)} weights "
            "(another model, or cut in more than samples)"
        )
    source, target = taskgraph.edges()
    spans: dict[int, tuple[int, int]] = {}
    for ring, op in zip(rings.tolist(), weights, strict=True):
        parts = part[source[target == ring]]
        if not len(parts) or parts.min() < 0 or parts.max() - parts.min() + 1 != len(parts):
            raise TopoplanError(f"{name}: {taskgraph.label(ring)} does not follow the backward tasks of one operator")
        spans[op] = (int(parts.min()), int(parts.max()) + 1)
    return spans


def _split(devices: np.ndarray, seconds: np.ndarray, start: int, stop: int, count: int) -> list[int]:
    """Return the bounds of ``count`` operators without weights among parts ``start`` to ``stop``."""
    ends = [k for k in range(start + 1, stop) if seconds[k] != seconds[k - 1] or devices[k] <= devices[k - 1]]
    bounds = [start, *ends, stop]
    if len(bounds) == count + 1:
        return bounds
    # Adjacent operators with equal tasks: the only remaining possibility is an equal number of parts.
    return np.linspace(start, stop, count + 1).astype(int).tolist() if (stop - start) % count == 0 else bounds


def _placement(graph: OperatorGraph, op: int, devices: np.ndarray, name: str) -> Placement:
    operator = graph.operators[op]
    degrees = [1] * len(operator.dims)
    if len(devices) > 1:
        if operator.sample_dim < 0:
            raise TopoplanError(
                f"{name}: {len(devices)} parts for operator {operator.name!r}, which has no samples to cut"
            )
        degrees[operator.sample_dim] = len(devices)
    return Placement(degrees, devices)
