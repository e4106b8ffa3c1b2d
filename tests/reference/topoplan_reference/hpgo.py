"""The search of HPGO 0.9.2 in plain Python, cell by cell: what `planning` and `straight` are compared with.

Slow and obvious on purpose, and complete: also the part of the dynamic program that can find nothing but its own seeds
is gone through.  Predecessors are visited in ascending order; of two sets of taken devices the one is first that
leaves free the first device in which they differ.
"""

from __future__ import annotations

import itertools

from topoplan_pipeline_planning.layers import Layers
from topoplan_pipeline_planning.machine import Devices, Machine
from topoplan_pipeline_planning.placing import placements

__all__ = ["reference_best", "reference_candidates", "replicated_placements"]

#: Start, last layer, replication, devices.
Span = tuple[int, int, int, Devices]
#: Speedup, stages, pipelines.
Candidate = tuple[float, list[Span], int]
#: Layer, devices used (in stages of one device each, less one), taken devices.
Key = tuple[int, int, frozenset[int]]
#: Bottleneck, devices and size of the last stage, cell before it.
Cell = tuple[float, Devices, int, Key | None]


def replicated_placements(machine: Machine, occupied: frozenset[int], need: int, replicas: int) -> tuple[Devices, ...]:
    """Place ``need`` devices once for each replica, in all combinations of policies; return the different unions."""
    unions: dict[Devices, None] = {(): None}
    for _ in range(replicas):
        unions = {
            tuple(sorted((*union, *members))): None
            for union in unions
            for members in placements(machine, occupied | frozenset(union), need)
        }
    return tuple(unions)


def reference_best(layers: Layers, machine: Machine, batch_size: int, micro_batch: int) -> Candidate:
    """Return the last of the candidates of the greatest speedup."""
    best: Candidate = (-1.0, [], 0)
    for candidate in reference_candidates(layers, machine, batch_size, micro_batch):
        if candidate[0] >= best[0]:
            best = candidate
    return best


def reference_candidates(layers: Layers, machine: Machine, batch_size: int, micro_batch: int) -> list[Candidate]:
    """Return all candidates in the order of HPGO; ``n // 2`` pipelines and more than one device are assumed."""
    count, last = machine.n_devices, layers.count - 1
    tried = [(stages, False) for stages in range(2, count + 1)]
    tried += [(stages, True) for stages in ([2, count] if count > 2 and count % 2 == 0 else [count])]
    candidates: list[Candidate] = []
    for stages, straight in tried:
        pipelines = count // stages
        candidate = _dynamic_program(layers, machine, stages, pipelines, straight=straight)
        if candidate is not None:
            value, spans = candidate
            candidates.append(
                (_score(layers, machine, spans, pipelines, value, batch_size, micro_batch), spans, pipelines)
            )
    for cut in range(last):
        for size in range(1, count):
            for front in placements(machine, frozenset(), size):
                for back in placements(machine, frozenset(front), count - size):
                    value = max(
                        _seconds(layers, 0, cut) / size,
                        _seconds(layers, cut + 1, last) / (count - size),
                        machine.transfer(front, back, float(layers.crossing[cut])),
                    )
                    spans = [(0, cut, size, front), (cut + 1, last, count - size, back)]
                    candidates.append((_score(layers, machine, spans, 1, value, batch_size, micro_batch), spans, 1))
    return candidates


def _dynamic_program(
    layers: Layers, machine: Machine, stages: int, replicas: int, *, straight: bool
) -> tuple[float, list[Span]] | None:
    cells: dict[tuple[int, int], dict[frozenset[int], Cell]] = {}
    best: dict[tuple[int, int], Cell] = {}

    def enter(layer: int, used: int, taken: frozenset[int], cell: Cell) -> None:
        row = cells.setdefault((layer, used), {})
        if taken not in row or cell[0] < row[taken][0]:
            row[taken] = cell
        if (layer, used) not in best or cell[0] < best[layer, used][0]:
            best[layer, used] = cell

    for layer in range(layers.count):
        for used in range(1 if straight else stages):
            on = placements(machine, frozenset(), (used + 1) * replicas)[0]
            value = float(layers.seconds[layer]) / (used + 1) / replicas
            enter(layer, used, frozenset(on), (value, on, used + 1, None))
    for used in range(1, stages):
        for layer in range(1, layers.count):
            for cut in (k for k in range(layer) if layers.before[layer, k]):
                for size in range(1, (1 if straight else used) + 1):
                    row = cells.get((cut, used - size), {})
                    for taken in sorted(row, key=sorted, reverse=True):
                        value, on, _, _ = row[taken]
                        for devices in replicated_placements(machine, taken, size, replicas):
                            slowest = max(
                                value,
                                _seconds(layers, cut + 1, layer) / (size * replicas),
                                machine.transfer(on, devices, 2 * float(layers.crossing[cut])),
                            )
                            back = (cut, used - size, taken)
                            enter(layer, used, taken | frozenset(devices), (slowest, devices, size, back))

    final = best.get((layers.count - 1, stages - 1))
    if final is None:
        return None
    spans: list[Span] = []
    key: Key | None
    (value, devices, size, key), end = final, layers.count - 1
    while key is not None:
        spans.append((key[0] + 1, end, size, devices))
        end = key[0]
        _, devices, size, key = cells[key[0], key[1]][key[2]]
    spans.append((0, end, size, devices))
    return value, spans[::-1]


def _seconds(layers: Layers, first: int, last: int) -> float:
    return float(layers.seconds[last]) - (float(layers.seconds[first - 1]) if first else 0.0)


def _score(
    layers: Layers, machine: Machine, spans: list[Span], pipelines: int, bottleneck: float, batch: int, micro_batch: int
) -> float:
    micro_batches = batch // pipelines // micro_batch
    if micro_batches == 0:
        return 0.0
    total, beat = float(layers.seconds[-1]), bottleneck / micro_batches
    length = beat * (micro_batches - 1) + total / pipelines / micro_batches
    for (_, end, _, source), (_, _, _, target) in itertools.pairwise(spans):
        length += machine.transfer(source, target, float(layers.crossing[end]) / pipelines / micro_batches)
    exposed = 0.0
    for number, (start, end, _, devices) in enumerate(spans):
        through = min(end + 1, layers.count - 1)  # as released: one layer more than the stage has
        gradients = float(layers.parameters[through]) - (float(layers.parameters[start - 1]) if start else 0.0)
        exposed = max(exposed, machine.allreduce(devices, gradients) - number * beat)
    return total / (length + exposed)
