"""Data-parallel training over all devices, by the planner's measure: what a pipeline has to beat.

Four ways to train, as speedups over one device that runs the whole batch:

- ``no_overlap``: all gradients are summed after the backward pass;
- ``p3``: while it runs, and while the next forward pass runs, those of early layers first, as they are needed first
  (P3: Jayarajan et al., Priority-based Parameter Propagation, MLSys 2019);
- ``accumulated``: the batch goes through in steps that fit into memory, and gradients are summed while the
  last step's backward pass runs, in the order in which they come;
- ``accumulated_p3``: likewise, those of early layers first, into the next forward pass.

`corrected` plays the communication on one channel: an all-reduce starts when its gradients are there, `p3`
ones give way to earlier layers, and a layer's next forward step waits for its own.  Where the batch of a device does
not fit into its memory, or its weights do not, there is no speedup.

`released` repeats HPGO 0.9.2 (``OFFSET``): it subtracts from each all-reduce the time until the next gradients, and
the forward step of the layer that stands as far from the *other* end of the model; steps are those of the whole batch,
not of a device's share, so that 16 of 16 is common; the first two ways know no memory.
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
    """Speedups, None where training does not fit into memory; and the steps of gradient accumulation."""

    no_overlap: float | None
    p3: float | None
    accumulated: float | None
    accumulated_p3: float | None
    steps: int | None


@attrs.frozen(kw_only=True)
class Memory:
    """Bytes: of a device, and of what training keeps there for each sample; copies of the weights there."""

    device: float
    sample: float
    weight_copies: float = 1.0

    def samples(self, weights: float) -> int:
        """Return how many samples fit beside ``weights`` bytes of parameters; 0 where not even one does."""
        free_bytes = self.device - weights * self.weight_copies
        return (
            max(0, math.floor(min(free_bytes / self.sample, 1 << 62)))
            if self.sample
            else (1 << 62 if free_bytes >= 0 else 0)
        )


def released_memory(sample: float, weight_copies: float = 1.0) -> Memory:
    """Return what HPGO assumes: devices of 16 GB."""
    return Memory(device=16e9, sample=sample, weight_copies=weight_copies)


def corrected(columns: OperatorColumns, machine: Machine, batch_size: int, memory: Memory) -> Baselines:
    """Return the baselines of operators that run one after the other in their order."""
    count = machine.n_devices
    everywhere = tuple(range(count))
    total = float((columns.forward + columns.backward).sum())
    weights = float(columns.parameters.sum())
    share = -(-batch_size // count)
    fits = memory.samples(weights)
    steps = next((k for k in range(1, share + 1) if share % k == 0 and share // k <= fits), None)
    whole = steps == 1
    summing = machine.allreduce(everywhere, columns.parameters)

    def speedup(exposed: float) -> float:
        return total / (total / count + exposed)

    def overlapped(parts: int, *, urgent_first: bool) -> float:
        forward, backward = columns.forward / count / parts, columns.backward / count / parts
        return speedup(_exposed_p3(forward, backward, summing) if urgent_first else _exposed(backward, summing))

    return Baselines(
        no_overlap=speedup(float(machine.allreduce(everywhere, weights))) if whole else None,
        p3=overlapped(1, urgent_first=True) if whole else None,
        accumulated=overlapped(steps, urgent_first=False) if steps else None,
        accumulated_p3=overlapped(steps, urgent_first=True) if steps else None,
        steps=steps,
    )


def _exposed(backward: F64, summing: F64) -> float:
    """Return the seconds after the backward pass until the last gradients are summed, first come first served."""
    ready = np.cumsum(backward[::-1])
    end = 0.0
    for start, seconds in zip(ready, summing[::-1], strict=True):
        end = max(end, float(start)) + float(seconds)
    return max(0.0, end - float(ready[-1]))


def _exposed_p3(forward: F64, backward: F64, summing: F64) -> float:
    """Return the seconds that the next forward pass waits for gradients, where those of early layers come first.

    Gradients come from the last layer on, so that new ones always go before all that wait: a stack.
    """
    waiting: list[list[float]] = []  # (layer, seconds left), the most urgent one last
    finish = np.zeros(len(summing))
    now = 0.0
    for layer in reversed(range(len(summing))):
        ready = now + float(backward[layer])
        while waiting and now < ready:
            busy = min(waiting[-1][1], ready - now)
            now += busy
            waiting[-1][1] -= busy
            if waiting[-1][1] <= 0:
                finish[int(waiting.pop()[0])] = now
        now = ready
        if summing[layer] > 0:
            waiting.append([layer, float(summing[layer])])
    backward_end = now
    while waiting:
        layer, remaining = int(waiting[-1][0]), waiting.pop()[1]
        now += remaining
        finish[layer] = now
    end = backward_end
    for layer, seconds in enumerate(forward):
        end = max(end, float(finish[layer])) + float(seconds)
    return end - backward_end - float(forward.sum())


def released(layers: Layers, machine: Machine, batch_size: int, memory: Memory) -> Baselines:
    """Return the baselines as HPGO 0.9.2 has them; no accumulation where HPGO would divide by zero."""
    count = machine.n_devices
    everywhere = tuple(range(count))
    total, weights = float(layers.seconds[-1]), float(layers.parameters[-1])
    seconds, parameters = (np.diff(column, prepend=0.0) for column in (layers.seconds, layers.parameters))
    summing = machine.allreduce(everywhere, parameters)[::-1]
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
        return total / (total / count + _released_offset(slots, summing))

    return Baselines(
        no_overlap=total / (total / count + float(machine.allreduce(everywhere, weights))),
        p3=speedup(1, with_forward=True),
        accumulated=speedup(steps, with_forward=False) if steps else None,
        accumulated_p3=speedup(steps, with_forward=True) if steps else None,
        steps=steps,
    )


def _released_offset(slots: F64, summing: F64) -> float:
    """Return what no slot hides; time left over in a slot hides later all-reduces, from the first layer on."""
    exposed, spare = float(summing[-1]), 0.0
    for slot, seconds in zip(slots[::-1], summing[-2::-1], strict=True):
        need = float(seconds - slot)
        if need <= spare:
            spare -= need
        else:
            exposed, spare = exposed + need - spare, 0.0
    return exposed
