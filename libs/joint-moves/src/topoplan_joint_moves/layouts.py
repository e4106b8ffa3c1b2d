"""Layouts: the order in which the ranks of a staged strategy lie on devices, the axis that changes fastest first.

Meshes of all stages are one grid with the ranks of the pipeline as a further axis.  A layout says how far apart
neighbours along each axis are; stages, programs and the order of passes stay as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import attrs
import numpy as np

from topoplan import OperatorGraph, StagedStrategy
from topoplan.arrays import I64

__all__ = ["Relayout", "relayouts"]

#: Axes that a layout names, in the order of Megatron-LM's ranks, and those of meshes that are factors of them.
_AXES = ("tp", "cp", "ep", "dp", "pp")
_AXIS_OF = {"kv": "tp", "ep-tp": "tp", "ep-cp": "cp", "shard": "dp"}
#: Layouts of so many axes are tried: more have hundreds.
_MOST_AXES = 4


class Relayout(NamedTuple):
    """A strategy in another layout: ``layout`` as the searcher ``stated`` takes it."""

    layout: str
    strategy: StagedStrategy


def relayouts(strategy: StagedStrategy, graph: OperatorGraph, n_devices: int) -> list[Relayout]:
    """Return a strategy in every other layout; tensor parallel devices stay neighbours where they are.

    Args:
        strategy: of stages on meshes of equal sizes whose axes have the names that ``stated`` gives them.
        graph: of the model.
        n_devices: of the cluster; all of them are used.

    Returns:
        None of them where the strategy has no layout, or no other one.
    """
    grid = _grid(strategy, n_devices)
    if grid is None:
        return []
    devices, names = grid
    order = _order(devices, names)
    if order is None or len(order) > _MOST_AXES:
        return []
    moved, fixed = [], 1 if order[0] == "tp" else 0
    for permutation in itertools.permutations(order[fixed:]):
        listed = (*order[:fixed], *permutation)
        if listed != tuple(order):
            moved.append(Relayout(_text(listed), _placed(strategy, graph, _in_order(devices, names, listed))))
    return moved


def _grid(strategy: StagedStrategy, n_devices: int) -> tuple[I64, tuple[str, ...]] | None:
    """Return the device at each place of pipeline rank and mesh, and the names of these axes; None if there is none."""
    stages, ranks = strategy.stages, strategy.order.rank_of
    first = stages[0].mesh
    if strategy.is_placed or strategy.copy_of.any() or any(stage.mesh.sizes != first.sizes for stage in stages):
        return None
    names = ("pp", *first.axes)
    if any(_AXIS_OF.get(name, name) not in _AXES for name in names):
        return None
    rows: dict[int, I64] = {}
    for rank, stage in zip(ranks.tolist(), stages, strict=True):
        row = rows.setdefault(rank, stage.mesh.devices.astype(np.int64))
        if not np.array_equal(row, stage.mesh.devices):
            return None
    devices = np.stack([rows[rank] for rank in sorted(rows)]).reshape(len(rows), *first.sizes)
    return (devices, names) if devices.size == n_devices else None


def _strides(devices: I64) -> list[int]:
    """Return how far apart the first two devices along each axis are; 0 where there is one."""
    first = int(devices.flat[0])
    return [
        int(np.take(devices, 1, axis).flat[0]) - first if size > 1 else 0 for axis, size in enumerate(devices.shape)
    ]


def _order(devices: I64, names: Sequence[str]) -> list[str] | None:
    """Return the axes of a layout with several devices, the fastest first; None where devices lie in no such order."""
    strides = _strides(devices)
    places = np.indices(devices.shape).reshape(devices.ndim, -1)
    if not np.array_equal(devices.ravel(), np.array(strides) @ places + devices.flat[0]):
        return None
    pairs = sorted((stride, _AXIS_OF.get(name, name)) for stride, name in zip(strides, names, strict=True) if stride)
    order = [axis for axis, _ in itertools.groupby(axis for _, axis in pairs)]
    return order if pairs and pairs[0][0] > 0 and len(order) == len(set(order)) else None


def _in_order(devices: I64, names: Sequence[str], order: Sequence[str]) -> I64:
    """Return the devices of a grid in another layout; factors of an axis stay next to each other as they are."""
    strides = _strides(devices)
    slowest_first = [
        axis
        for name in reversed(order)
        for axis in sorted(range(devices.ndim), key=lambda axis: -strides[axis])
        if strides[axis] and _AXIS_OF.get(names[axis], names[axis]) == name
    ]
    listed = [*(axis for axis in range(devices.ndim) if not strides[axis]), *slowest_first]
    moved = np.sort(devices, axis=None).reshape([devices.shape[axis] for axis in listed])
    return np.transpose(moved, np.argsort(listed))


def _placed(strategy: StagedStrategy, graph: OperatorGraph, devices: I64) -> StagedStrategy:
    """Return a strategy on other devices: those of (ranks, sizes of the mesh)."""
    stages = [
        attrs.evolve(stage, mesh=attrs.evolve(stage.mesh, devices=devices[rank].ravel()))
        for rank, stage in zip(strategy.order.rank_of.tolist(), strategy.stages, strict=True)
    ]
    moved = StagedStrategy.of(graph, stages, strategy.order, strategy.micro_batches)
    return attrs.evolve(strategy, placements=moved.placements, stages=moved.stages)


def _text(order: Sequence[str]) -> str:
    """Return all axes of a layout, those of one device behind the one before them in the usual order."""
    axes = list(order)
    for place, axis in enumerate(_AXES):
        if axis not in axes:
            axes.insert(axes.index(_AXES[place - 1]) + 1 if place else 0, axis)
    return "-".join(axes)
