"""Divides layers and devices among stages: the second of two levels of planning, as in Alpa.

    seconds and bytes of each layer on each mesh ─► for each limit of the slowest stage, from the last stage on:
    the least sum of all stages that have so many layers and devices ─► pipelines, the fastest first

A pipeline of m micro-batches takes the sum of its stages, and m - 1 times its slowest stage, which the limit bounds.
Stages have layers and devices in a row.  A stage that s - 1 others follow keeps the activations of s micro-batches.

Source: Zheng et al., Alpa, OSDI 2022, section 5.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I64
from topoplan_engine.kernels.jit import kernel

__all__ = ["DeviceRow", "Division", "MeshColumns", "StageOfLayers", "divide", "divisions"]

#: Limits of the slowest stage, over what all devices would take if they had equal work.
_LIMITS = (1.005, 1.01, 1.02, 1.03, 1.045, 1.06, 1.08, 1.1, 1.13, 1.16, 1.2, 1.27, 1.35, 1.5, 1.75, 2.0, 3.0, 6.0)
#: Stages of a pipeline, at most.
_STAGES = 16


class MeshColumns(NamedTuple):
    """What L places, layers and what is behind the last one, take on a mesh, for one number of micro-batches.

    Attributes:
        n_devices: of the mesh.
        starts: first devices at which a stage may have it.
        seconds: (L,) of both passes of a micro-batch.
        summing: (L,) of the sums of gradients behind the last one.
        stays: (L,) bytes that stay on a device.
        kept: (L,) bytes of a micro-batch between its passes.
    """

    n_devices: int
    starts: frozenset[int]
    seconds: F64
    summing: F64
    stays: F64
    kept: F64


class DeviceRow(NamedTuple):
    """Devices in a row.

    Attributes:
        n_devices: all of them are used.
        per_byte: (devices + 1,) seconds per byte that is sent over the border in front of each device.
        memory: bytes of a device.
    """

    n_devices: int
    per_byte: F64
    memory: float


class StageOfLayers(NamedTuple):
    """A stage: its places from ``first`` to before ``end``, its first device, and the number of its mesh."""

    first: int
    end: int
    device: int
    mesh: int


class Division(NamedTuple):
    """A pipeline, and the seconds of an iteration by its stages alone."""

    seconds: float
    stages: tuple[StageOfLayers, ...]


class _Cells(NamedTuple):
    """(S, devices + 1, L + 1) pipelines of 1 to S stages that end with the model and with the last device.

    Attributes:
        total: the least seconds of all stages; infinite where there is none.
        mesh, end: of their first stage.
    """

    total: F64
    mesh: I64
    end: I64


class _Table(NamedTuple):
    """The M meshes as a kernel reads them.

    Attributes:
        n_devices: (M,) of each.
        may_start: (M, devices + 1) whether a stage may begin at a device.
        sums: (M, 4, L + 1) seconds, bytes that stay, bytes of a micro-batch and seconds of sums of gradients before
            each place.
    """

    n_devices: I64
    may_start: np.ndarray
    sums: F64


def divisions(meshes: Sequence[MeshColumns], machine: DeviceRow, micro_batches: int, sent: F64) -> list[Division]:
    """Return the fastest pipeline of each number of stages, for each limit of the slowest stage.

    Args:
        meshes: that stages may have.
        machine: its devices.
        micro_batches: of the batch.
        sent: (L,) bytes of a micro-batch that cross the border in front of each place.
    """
    places, n_devices = len(sent), machine.n_devices
    table, stages = _table(meshes, n_devices), min(n_devices, places, _STAGES)
    shape = stages, n_devices + 1, places + 1
    cells = _Cells(np.empty(shape), np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64))
    over = machine.per_byte[:, None] * sent
    balanced = min(float(mesh.seconds.sum()) * mesh.n_devices / n_devices for mesh in meshes)
    pipelines: dict[tuple[StageOfLayers, ...], Division] = {}
    for limit in (balanced * factor for factor in _LIMITS):
        divide(table, over, limit, micro_batches, machine.memory, cells)
        for number in np.flatnonzero(np.isfinite(cells.total[:, n_devices, 0])).tolist():
            several = _follow(cells, number, meshes, n_devices)
            pipelines.setdefault(several, Division(_seconds(several, meshes, machine, micro_batches, sent), several))
    return sorted(pipelines.values())


def _table(meshes: Sequence[MeshColumns], n_devices: int) -> _Table:
    may_start = np.zeros((len(meshes), n_devices + 1), dtype=np.bool_)
    for row, mesh in zip(may_start, meshes, strict=True):
        row[list(mesh.starts)] = True
    columns = np.array([(mesh.seconds, mesh.stays, mesh.kept, mesh.summing) for mesh in meshes])
    sums = np.concatenate([np.zeros((*columns.shape[:2], 1)), np.cumsum(columns, axis=2)], axis=2)
    return _Table(np.array([mesh.n_devices for mesh in meshes]), may_start, sums)


@kernel  # type: ignore[untyped-decorator]
def divide(table: _Table, over: F64, limit: float, micro_batches: int, memory: float, cells: _Cells) -> None:
    """Fill cells, from the last stage on.

    A cell of s stages is the best of all meshes and ends of its first stage, given those of s - 1 stages.

    Args:
        table: the meshes.
        over: (devices + 1, L) seconds of a micro-batch over the border in front of a device and a place.
        limit: seconds that no stage, and nothing that is sent, takes longer than.
        micro_batches: of the batch.
        memory: bytes of a device.
        cells: output.
    """
    stages, devices, places = cells.total.shape[0], cells.total.shape[1] - 1, cells.total.shape[2] - 1
    cells.total[:] = np.inf
    for number in range(stages):
        in_flight = min(number + 1, micro_batches)
        for used in range(devices + 1):
            for end in range(1, places + 1):
                sum_behind = 0.0
                if number == 0:
                    if used > 0 or end < places:
                        continue
                else:
                    sending = over[devices - used, end] if end < places else np.inf
                    sum_behind = cells.total[number - 1, used, end] + 2 * sending
                    if sending > limit:
                        continue
                if sum_behind == np.inf:
                    continue
                for mesh in range(len(table.n_devices)):
                    after = used + table.n_devices[mesh]
                    if after > devices or not table.may_start[mesh, devices - after]:
                        continue
                    sums = table.sums[mesh]
                    for start in range(end - 1, -1, -1):
                        seconds = sums[0, end] - sums[0, start]
                        if seconds > limit:
                            break
                        if sums[1, end] - sums[1, start] + in_flight * (sums[2, end] - sums[2, start]) > memory:
                            break
                        # Sums of gradients of later stages hide behind backward passes of earlier ones.
                        total = sum_behind + seconds + (sums[3, end] - sums[3, start]) / (number + 1)
                        if total < cells.total[number, after, start]:
                            cells.total[number, after, start] = total
                            cells.mesh[number, after, start] = mesh
                            cells.end[number, after, start] = end


def _follow(cells: _Cells, number: int, meshes: Sequence[MeshColumns], n_devices: int) -> tuple[StageOfLayers, ...]:
    """Return the stages of the pipeline of all layers and devices in some row of cells."""
    used, place, stages = n_devices, 0, []
    for row in range(number, -1, -1):
        mesh, end = int(cells.mesh[row, used, place]), int(cells.end[row, used, place])
        stages.append(StageOfLayers(place, end, n_devices - used, mesh))
        used, place = used - meshes[mesh].n_devices, end
    return tuple(stages)


def _seconds(
    stages: Sequence[StageOfLayers],
    meshes: Sequence[MeshColumns],
    machine: DeviceRow,
    micro_batches: int,
    sent: F64,
) -> float:
    """Return the seconds of a pipeline: of the first micro-batch, of the others, and of sums that nothing hides."""
    seconds = [float(meshes[each.mesh].seconds[each.first : each.end].sum()) for each in stages]
    borders = [float(sent[each.first] * machine.per_byte[each.device]) for each in stages[1:]]
    summing = [float(meshes[each.mesh].summing[each.first : each.end].sum()) for each in stages]
    tail = max(late - sum(seconds[:number]) for number, late in enumerate(summing))
    return math.fsum(seconds) + 2 * math.fsum(borders) + (micro_batches - 1) * max(seconds + borders) + max(0.0, tail)
