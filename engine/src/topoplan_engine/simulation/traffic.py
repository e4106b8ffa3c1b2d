"""Which part of an iteration each task is: computing, or messages of one kind of parallelism, by the axes of meshes.

A message is of the axes of its stage's mesh along which its members lie: ``tp`` and ``kv`` are tensor parallelism (and
what sequence parallelism gathers and scatters), ``cp`` context parallelism, ``ep`` expert parallelism, ``dp`` and
``shard`` data parallelism.  Along ``ep-cp`` and ``ep-tp`` experts are divided as well: what goes from each device to
each other one is expert parallelism, all else context or tensor parallelism; along ``edp-tp``, whose devices have
copies of experts, all is tensor parallelism.  Gradients of weights, and weights that
are gathered, are data parallelism along ``cp`` and ``ep`` as well, whose devices have other samples or positions.  What
leaves a mesh is of the pipeline.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import I8, I64
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import Strategy
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.simulation.parts import Part

__all__ = ["part_of_tasks"]

#: Part of what is exchanged along an axis, of gradients and weights, and of all-to-alls; of several axes the first that
#: is listed.
_OF_AXES = {
    "dp": (Part.DATA, Part.DATA, Part.DATA),
    "shard": (Part.DATA, Part.DATA, Part.DATA),
    "ep": (Part.EXPERT, Part.DATA, Part.EXPERT),
    "ep-cp": (Part.CONTEXT, Part.DATA, Part.EXPERT),
    "cp": (Part.CONTEXT, Part.DATA, Part.CONTEXT),
    "edp-tp": (Part.TENSOR, Part.TENSOR, Part.TENSOR),
    "ep-tp": (Part.TENSOR, Part.TENSOR, Part.EXPERT),
    "tp": (Part.TENSOR, Part.TENSOR, Part.TENSOR),
    "kv": (Part.TENSOR, Part.TENSOR, Part.TENSOR),
}


def part_of_tasks(tasks: TaskGraph, strategy: Strategy | None) -> I8:
    """(T,) the `Part` of each task while it runs.

    Args:
        tasks: of an iteration, or of some of its devices.
        strategy: that it runs; without one, only sums of gradients and other exchanges differ.
    """
    part = np.full(tasks.n_tasks, Part.COMPUTATION, dtype=np.int8)
    part[tasks.kind == TaskKind.UPDATE] = Part.OPTIMIZER
    part[_runs_again(tasks, strategy)] = Part.RECOMPUTATION
    sends = tasks.kind >= TaskKind.TRANSFER
    weights = _of_weights(tasks)
    part[sends] = np.where(weights[sends], Part.DATA, Part.EXCHANGE)
    if isinstance(strategy, StagedStrategy):
        places = _places(strategy, tasks.n_devices)
        _of_meshes(tasks, places, weights, part)
    part[(tasks.kind == TaskKind.COLLECTIVE) & (tasks.op < 0)] = Part.OPTIMIZER  # the norm of all gradients
    return part


class _Places(NamedTuple):
    """Where devices stand; D of them.

    Attributes:
        mesh: (D,) number of the mesh of each one; -1 for none.
        along: (D, A) its place along each of the axes in ``_OF_AXES``; -1 along one that its mesh does not have.
    """

    mesh: I64
    along: I64


def _places(strategy: StagedStrategy, n_devices: int) -> _Places:
    mesh, along = np.full(n_devices, -1), np.full((n_devices, len(_OF_AXES)), -1)
    for number, each in enumerate(dict.fromkeys(stage.mesh for stage in strategy.stages)):
        where = np.indices(each.sizes).reshape(len(each.sizes), -1)
        unplaced = mesh[each.devices] < 0  # chunks of one rank have one mesh
        mesh[each.devices[unplaced]] = number
        for axis, name in enumerate(each.axes):
            if name in _OF_AXES:
                along[each.devices[unplaced], list(_OF_AXES).index(name)] = where[axis, unplaced]
    return _Places(mesh, along)


def _of_meshes(tasks: TaskGraph, places: _Places, weights: np.ndarray, part: I8) -> None:
    """Write the parts of messages along axes of meshes, and between meshes."""
    moves = np.flatnonzero(tasks.kind == TaskKind.TRANSFER)
    ends = np.stack([tasks.src[moves], tasks.dst[moves]])
    leaves = places.mesh[ends[0]] != places.mesh[ends[1]]
    _write(part, moves, leaves, (places.along[ends[0]] != places.along[ends[1]]), weights, np.full(len(moves), True))
    together = np.flatnonzero((tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective != Collective.JOIN))
    if not len(together):
        return
    members, first = tasks.group_members, tasks.group_ptr[:-1].astype(np.int64)
    filled = np.diff(tasks.group_ptr) > 0
    columns = np.column_stack([places.mesh[members], places.along[members]])
    differ = np.zeros((tasks.n_groups, columns.shape[1]), dtype=bool)
    spread = np.maximum.reduceat(columns, first[filled]) != np.minimum.reduceat(columns, first[filled])
    differ[filled] = spread
    of_task = differ[tasks.group[together]]
    exchanged = tasks.collective[together] == Collective.ALL_TO_ALL
    _write(part, together, of_task[:, 0], of_task[:, 1:], weights, exchanged)


def _write(
    part: I8, rows: I64, leaves: np.ndarray, differ: np.ndarray, weights: np.ndarray, exchanged: np.ndarray
) -> None:
    """Write the parts of (n,) messages.

    Args:
        part: to write to.
        rows: (n,) the messages.
        leaves: (n,) whether each leaves its mesh.
        differ: (n, A) the axes that it goes along.
        weights: of all tasks.
        exchanged: (n,) whether it is of an all-to-all, as transfers are.
    """
    of_axes = np.array(list(_OF_AXES.values()), dtype=np.int8)
    axis = np.argmax(differ, axis=1)
    among = differ.any(axis=1) & ~leaves
    of_weights = weights[rows[among]]
    part[rows[among]] = of_axes[axis[among], np.where(of_weights, 1, np.where(exchanged[among], 2, 0))]
    part[rows[leaves]] = Part.PIPELINE


def _of_weights(tasks: TaskGraph) -> np.ndarray:
    """(T,) whether a collective sums gradients of weights or gathers weights.

    Where the batch is cut, such tasks belong to no micro-batch; where it is not, no pass waits for them.
    """
    collective = (tasks.kind == TaskKind.COLLECTIVE) & (tasks.collective != Collective.JOIN)
    if tasks.micro_batch is not None:
        of_none: np.ndarray = collective & (tasks.micro_batch < 0)
        return of_none
    tails, heads = tasks.edges()
    awaited = np.zeros(tasks.n_tasks, dtype=bool)
    awaited[tails[tasks.kind[heads] <= TaskKind.BACKWARD]] = True
    ends: np.ndarray = collective & ~awaited & (tasks.collective <= Collective.REDUCE_SCATTER)
    return ends


def _runs_again(tasks: TaskGraph, strategy: Strategy | None) -> I64:
    """Return the forward passes that run again: of a device's passes of an operator and micro-batch the later half."""
    regions = np.zeros(len(tasks.op_names) + 1, dtype=bool)
    if isinstance(strategy, StagedStrategy):
        for stage in strategy.stages:
            regions[stage.operators[stage.regions >= 0]] = True
    rows = np.flatnonzero((tasks.kind == TaskKind.FORWARD) & regions[np.minimum(tasks.op, len(tasks.op_names))])
    if not len(rows):
        return rows
    batch = tasks.micro_batch[rows] if tasks.micro_batch is not None else np.zeros(len(rows), np.int64)
    order = np.lexsort((rows, batch, tasks.op[rows], tasks.device[rows]))
    key = np.stack([tasks.device[rows], tasks.op[rows], batch])[:, order]
    begins = np.flatnonzero(np.append(True, (np.diff(key) != 0).any(axis=0)))
    count = np.diff(np.append(begins, len(rows)))
    place = np.arange(len(rows)) - np.repeat(begins, count)
    repeats: I64 = rows[order[2 * place >= np.repeat(np.where(count > 1, count, len(rows) + 1), count)]]
    return repeats
