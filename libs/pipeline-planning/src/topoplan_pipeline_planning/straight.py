"""HPGO's dynamic program for pipelines of equal stages: one device (or one per replica) for each.

The full program fills cells (layers, devices, used devices) with the smallest bottleneck.  It initializes every cell
with one evenly divided stage.  No pipeline improves such a cell, because the maximum of several stages is at least
their mean.  It therefore finds pipelines only without this initialization, in its *straight* form: all stages have the
same number of devices.  This module implements that form; `topoplan_pipeline_planning.planning` adds the one-stage
plans.

A row of cells is a column over layers, and a step is one maximum over all pairs of layers, computed with numpy.
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan.arrays import F64, I64
from topoplan.search.stopping import stop_if_wanted
from topoplan_pipeline_planning.layers import Layers
from topoplan_pipeline_planning.machine import Devices, Machine
from topoplan_pipeline_planning.placing import placements, replicated_placements

__all__ = ["Pipeline", "straight_pipeline"]


@attrs.frozen
class Pipeline:
    """Seconds of the slowest stage or transfer for the whole batch; starts of stages; their devices."""

    bottleneck: float
    starts: tuple[int, ...]
    devices: tuple[Devices, ...]


@attrs.frozen(eq=False)
class _Row:
    """Cells of all L layers for one set of used devices.

    ``value`` is the smallest bottleneck (``inf``: none), ``cut`` the last layer of the last stage but one, and ``turn``
    the number of its `_Turn`.
    """

    value: F64
    cut: I64
    turn: I64


@attrs.frozen
class _Turn:
    """One way to add a stage: the row that it continues, and the devices of the new stage."""

    row: int
    devices: Devices


@attrs.frozen(eq=False)
class _Step:
    """All cells with the same number of stages: one row for each set of used devices, and all turns.

    As in HPGO, of two sets the first one is that which lacks the first device in which they differ.
    """

    device_sets: list[frozenset[int]]
    rows: list[_Row]
    turns: list[_Turn]


def straight_pipeline(layers: Layers, machine: Machine, stages: int, replicas: int) -> Pipeline | None:
    """Return the pipeline with the smallest bottleneck, of ``stages`` stages with ``replicas`` devices each.

    Of equal ones the first is returned: in the order of cuts, then of sets of used devices (`_Step`), then of
    `replicated_placements`.

    Returns:
        None if the model has too few layers.
    """
    compute = np.where(layers.before, layers.seconds[:, None] - layers.seconds[None, :], np.inf) / replicas
    first = placements(machine, frozenset(), replicas)[0]
    no_predecessor = np.full(layers.count, -1)
    seed = _Row(layers.seconds / replicas, no_predecessor, np.zeros_like(no_predecessor))
    steps = [_Step([frozenset(first)], [seed], [_Turn(-1, first)])]
    scratch = np.empty_like(compute)
    for _ in range(1, stages):
        steps.append(_next_step(steps[-1], layers, machine, replicas, compute, scratch))
    ends = [(row.value[-1], row.cut[-1], row.turn[-1], number) for number, row in enumerate(steps[-1].rows)]
    value, _, _, number = min(ends, default=(np.inf, -1, -1, -1))
    return None if value == np.inf else _trace(steps, number)


def _next_step(step: _Step, layers: Layers, machine: Machine, replicas: int, compute: F64, scratch: F64) -> _Step:
    """Add a stage to every cell in all possible ways; ``compute`` (L, L) is the time of layers (column, row]."""
    rows: dict[frozenset[int], _Row] = {}
    turns: list[_Turn] = []
    for number, (occupied, row) in enumerate(zip(step.device_sets, step.rows, strict=True)):
        for devices in replicated_placements(machine, occupied, replicas):
            stop_if_wanted()
            bottleneck = np.maximum(row.value, _transfers(layers, machine, step, row, devices))
            np.maximum(compute, bottleneck, out=scratch)
            cut = scratch.argmin(axis=1)
            value = scratch[np.arange(layers.count), cut]
            new = _Row(value, cut, np.full(layers.count, len(turns)))
            turns.append(_Turn(number, devices))
            key = occupied | frozenset(devices)
            rows[key] = _better(rows[key], new) if key in rows else new
    device_sets = sorted(rows, key=sorted, reverse=True)
    return _Step(device_sets, [rows[key] for key in device_sets], turns)


def _transfers(layers: Layers, machine: Machine, step: _Step, row: _Row, target: Devices) -> F64:
    """Return (L,) seconds of the transfer from the last stage of every cell; twice the bytes, for both directions."""
    seconds = np.zeros(layers.count)
    for turn in set(row.turn.tolist()):
        sending = machine.transfer(step.turns[turn].devices, target, 2 * layers.crossing)
        seconds = np.where(row.turn == turn, sending, seconds)
    return seconds


def _better(old: _Row, new: _Row) -> _Row:
    """Return the elementwise smaller cells; of equal ones that with the earlier cut, or else the old one."""
    wins = (new.value < old.value) | ((new.value == old.value) & (new.cut < old.cut))
    return _Row(
        np.where(wins, new.value, old.value), np.where(wins, new.cut, old.cut), np.where(wins, new.turn, old.turn)
    )


def _trace(steps: list[_Step], number: int) -> Pipeline:
    """Follow the cuts back from the last layer of a row."""
    layer = len(steps[-1].rows[number].value) - 1
    bottleneck = float(steps[-1].rows[number].value[layer])
    starts: list[int] = []
    devices: list[Devices] = []
    for step in reversed(steps):
        row = step.rows[number]
        turn = step.turns[row.turn[layer]]
        devices.append(turn.devices)
        layer, number = int(row.cut[layer]), turn.row
        starts.append(layer + 1)
    return Pipeline(bottleneck, tuple(starts[::-1]), tuple(devices[::-1]))
