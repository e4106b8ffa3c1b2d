"""One place of a stage that stands for all: its tasks say along which axes of the mesh they send."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import I32, I64
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan_engine.lowering.task_columns import TaskColumns, Weights

__all__ = ["OnePlace"]


class _Group(NamedTuple):
    """A communicator of which one device's part is written; see `topoplan_engine.lowering.places.Communicator`."""

    size: int
    axes: tuple[int, ...]
    place: OnePlace

    def add(
        self, tasks: TaskColumns, kind: Collective, weights: Sequence[Weights] = (), *, size: int = 0, **columns: Any
    ) -> tuple[I64, I64]:
        """Add the collective: that of the device that has most of it."""
        for each in weights:
            self.place.weights.setdefault(self.axes, {})[each.values.tobytes(), each.end] = each
        most = max((float(each.values.max()) for each in weights if each.end < 2), default=1.0)
        columns |= {"size": round(size * most), "weighted": bool(weights)}
        task = self._add(tasks, collective=kind, **columns)
        return task, task

    def join(self, tasks: TaskColumns, **columns: Any) -> I64:
        """Add a join."""
        return self._add(tasks, collective=Collective.JOIN, **columns)

    def _add(self, tasks: TaskColumns, **columns: Any) -> I64:
        code = sum(1 << axis for axis in self.axes)
        return tasks.add(len(self.place.rows), kind=TaskKind.COLLECTIVE, axes=code, **columns)


class OnePlace:
    """The place and the layout of the tasks (`topoplan_engine.lowering.places`).

    Tasks have further columns: ``axes`` along which they send, a bit for each, and whether all-to-alls are
    ``weighted``: their members do not all send as much.

    Attributes:
        sizes: of the mesh.
        weights: axes -> those of such all-to-alls, each once.
    """

    columns: Mapping[str, Any] = {"axes": 0, "weighted": False}

    def __init__(self, sizes: tuple[int, ...], copies: int = 1) -> None:
        """Write each task ``copies`` times."""
        self.sizes, self.groups = sizes, TaskColumns()
        self.devices: I32 = np.zeros(copies, dtype=np.int32)
        self.rows: I64 = np.zeros(copies, dtype=np.int64)
        self.weights: dict[tuple[int, ...], dict[object, Weights]] = {}

    def axes_of(self, code: int) -> tuple[int, ...]:
        """Return the axes of a task."""
        return tuple(axis for axis in range(len(self.sizes)) if code >> axis & 1)

    def communicator(self, axes: tuple[int, ...]) -> _Group:
        """Return the groups along some axes."""
        return _Group(math.prod(self.sizes[axis] for axis in axes), axes, self)

    def next_along(self, axis: int) -> tuple[Mapping[str, Any], I64]:
        """Return columns of a hop to the next place along an axis, and the place that sends."""
        return {"axes": 1 << axis, "src": 0, "dst": 0}, np.arange(len(self.rows))
