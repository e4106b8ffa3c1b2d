"""Estimates of data-parallel training over all devices, as baselines of pipelines.

There are four variants.  Each estimate is a speedup over one device that runs the whole batch:

- ``no_overlap``: all gradients are summed after the backward pass;
- ``p3``: gradients are summed during the backward pass and the next forward pass, those of early layers first, because
  they are needed first (P3: Jayarajan et al., Priority-based Parameter Propagation, MLSys 2019);
- ``accumulated``: the batch is divided into steps that fit into memory, and gradients are summed during the backward
  pass of the last step, in the order in which they become ready;
- ``accumulated_p3``: likewise, with those of early layers first and overlap with the next forward pass.

`corrected` schedules the communication on one channel.  An all-reduce starts when its gradients are ready, `p3`
all-reduces are preempted by those of earlier layers, and a layer's next forward step waits for its own all-reduce.  If
the batch or the weights of a device do not fit into its memory, there is no speedup.

`released` repeats HPGO 0.9.2 (``OFFSET``).  It subtracts from each all-reduce the time until the next gradients, and
the forward step of the layer at the same distance from the *other* end of the model.  It counts steps for the whole
batch, not for the share of a device, so 16 steps on 16 devices are common.  The first two variants ignore memory.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from topoplan.arrays import F64
from topoplan_pipeline_planning.layers import Layers, OperatorColumns
from topoplan_pipeline_planning.machine import Machine

__all__ = ["Baselines", "Memory", "corrected", "released", "released_memory"]


@attrs.frozen(kw_only=True)
class Baselines:
    """Speedups (None if training does not fit into memory), and the number of steps of gradient accumulation."""

    no_overlap: float | None
    p3: float | None
    accumulated: float | None
    accumulated_p3: float | None
    steps: int | None


@attrs.frozen(kw_only=True)
class Memory:
    """Memory of a device (bytes), memory for each sample (bytes), and the number of copies of the weights."""

    device: float
    sample: float
    weight_copies: float = 1.0

    def samples(self, weights: float) -> int:
        """Return how many samples fit beside ``weights`` bytes of parameters; 0 if not even one fits."""
        free_bytes = self.device - weights * self.weight_copies
        return (
            max(0, math.floor(min(free_bytes / self.sample, 1 << 62)))
            if self.sample
            else (1 << 62 if free_bytes >= 0 else 0)
        )


def released_memory(sample: float, weight_copies: float = 1.0) -> Memory:
    """Return HPGO's assumption: devices of 16 GB."""
    return Memory(device=16e9, sample=sample, weight_copies=weight_copies)


def corrected(columns: OperatorColumns, machine: Machine, batch_size: int, memory: Memory) -> Baselines:
    """Return the corrected baselines, for operators that run one after the other."""
    count = machine.n_devices
    devices = tuple(range(count))
    total = float((columns.forward + columns.backward).sum())
    weights = float(columns.parameters.sum())
    share = -(-batch_size // count)
    fits = memory.samples(weights)
    steps = next((k for k in range(1, share + 1) if share % k == 0 and share // k <= fits), None)
    fits_at_once = steps == 1
    allreduce_seconds = machine.allreduce(devices, columns.parameters)

    def speedup(exposed: float) -> float:
        return total / (total / count + exposed)

    def overlapped(parts: int, *, urgent_first: bool) -> float:
        forward, backward = columns.forward / count / parts, columns.backward / count / parts
        return speedup(
            _exposed_p3(forward, backward, allreduce_seconds) if urgent_first else _exposed(backward, allreduce_seconds)
        )

    return Baselines(
        no_overlap=speedup(float(machine.allreduce(devices, weights))) if fits_at_once else None,
        p3=overlapped(1, urgent_first=True) if fits_at_once else None,
        accumulated=overlapped(steps, urgent_first=False) if steps else None,
        accumulated_p3=overlapped(steps, urgent_first=True) if steps else None,
        steps=steps,
    )


def _exposed(backward: F64, allreduce_seconds: F64) -> float:
    """Return the seconds from the end of the backward pass until all gradients are summed, in order of readiness."""
    ready = np.cumsum(backward[::-1])
    end = 0.0
    for start, seconds in zip(ready, allreduce_seconds[::-1], strict=True):
        end = max(end, float(start)) + float(seconds)
    return max(0.0, end - float(ready[-1]))


def _exposed_p3(forward: F64, backward: F64, allreduce_seconds: F64) -> float:
    """Return the seconds that the next forward pass waits for gradients, if those of early layers come first.

    The last layer's gradients are ready first.  New ones therefore always precede all that wait: a stack.
    """
    waiting: list[list[float]] = []  # (layer, seconds left), the most urgent one last
    finish = np.zeros(len(allreduce_seconds))
    time = 0.0
    for layer in reversed(range(len(allreduce_seconds))):
        ready = time + float(backward[layer])
        while waiting and time < ready:
            duration = min(waiting[-1][1], ready - time)
            time += duration
            waiting[-1][1] -= duration
            if waiting[-1][1] <= 0:
                finish[int(waiting.pop()[0])] = time
        time = ready
        if allreduce_seconds[layer] > 0:
            waiting.append([layer, float(allreduce_seconds[layer])])
    backward_end = time
    while waiting:
        layer, remaining = int(waiting[-1][0]), waiting.pop()[1]
        time += remaining
        finish[layer] = time
    end = backward_end
    for layer, seconds in enumerate(forward):
        end = max(end, float(finish[layer])) + float(seconds)
    return end - backward_end - float(forward.sum())


def released(layers: Layers, machine: Machine, batch_size: int, memory: Memory) -> Baselines:
    """Return the baselines of HPGO 0.9.2; no accumulation if HPGO would divide by zero."""
    count = machine.n_devices
    devices = tuple(range(count))
    total, weights = float(layers.seconds[-1]), float(layers.parameters[-1])
    seconds, parameters = (np.diff(column, prepend=0.0) for column in (layers.seconds, layers.parameters))
    allreduce_seconds = machine.allreduce(devices, parameters)[::-1]
    fits = memory.samples(weights)
    steps = None
    if fits:
        steps = 1 if fits >= batch_size else math.ceil(batch_size / fits)
        while batch_size % steps:
            steps += 1

    def speedup(parts: int, *, with_forward: bool) -> float:
        half = seconds / parts / 2
        ready = np.cumsum(half[::-1])
        slots = np.diff(ready) + (half[1:] if with_forward else 0.0)
        return total / (total / count + _released_offset(slots, allreduce_seconds))

    return Baselines(
        no_overlap=total / (total / count + float(machine.allreduce(devices, weights))),
        p3=speedup(1, with_forward=True),
        accumulated=speedup(steps, with_forward=False) if steps else None,
        accumulated_p3=speedup(steps, with_forward=True) if steps else None,
        steps=steps,
    )


def _released_offset(slots: F64, allreduce_seconds: F64) -> float:
    """Return the exposed seconds; unused time of a slot hides later all-reduces, from the first layer on."""
    exposed, slack = float(allreduce_seconds[-1]), 0.0
    for slot, seconds in zip(slots[::-1], allreduce_seconds[-2::-1], strict=True):
        excess = float(seconds - slot)
        if excess <= slack:
            slack -= excess
        else:
            exposed, slack = exposed + excess - slack, 0.0
    return exposed
