"""The slow, plain counterpart of `topoplan_engine.lowering.pipeline`: task by task, in textbook words."""

from __future__ import annotations

import itertools
from collections import defaultdict

import numpy as np

from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan_engine.lowering.parts import PartTable

__all__ = ["reference_blocks", "reference_scheduled"]

#: A block: forward ``F``, the same again ``A``, backward ``B`` or weights' gradients ``W``; stage; micro-batch.
Block = tuple[str, int, int]


def reference_blocks(kind: str, depth: int, rounds: int, count: int, position: int) -> list[Block]:
    """Return the blocks of the devices at ``position``, in order, without recomputation."""
    if kind == "gpipe":
        return [("F", position, m) for m in range(count)] + [("B", position, m) for m in range(count)]
    if kind == "interleaved":
        forwards, backwards = [], []
        for first in range(0, count, depth):
            group = range(first, first + depth)
            forwards += [("F", chunk * depth + position, m) for chunk in range(rounds) for m in group]
            backwards += [("B", chunk * depth + position, m) for chunk in reversed(range(rounds)) for m in group]
        warm_up = 2 * (depth - position - 1) + (rounds - 1) * depth
        blocks = []
        for forward in forwards:
            blocks.append(forward)
            if len(blocks) > warm_up:
                blocks.append(backwards.pop(0))
        return blocks + backwards
    # At most as many micro-batches in flight as there are positions from here to the end, or transfers and positions.
    most = depth - position if kind != "1f1b-deep" else 2 * (depth - position) - 1
    blocks, begun, backward, weights = [], 0, 0, 0
    while backward < count:
        while begun < count and begun - backward < most:
            blocks.append(("F", position, begun))
            begun += 1
        blocks.append(("B", position, backward))
        backward += 1
        if kind == "zero-bubble" and backward - weights > position:
            blocks.append(("W", position, weights))
            weights += 1
    if kind == "zero-bubble":
        blocks += [("W", position, m) for m in range(weights, count)]
    return blocks


def reference_scheduled(
    table: PartTable, strategy: StagedStrategy, weight_gradient: list[float], op_names: tuple[str, ...], n_devices: int
) -> TaskGraph:
    """Return the same task graph as `pipeline.scheduled_taskgraph`, rows of successors ascending."""
    count, parts = strategy.micro_batches, range(len(table.device))
    stage = [int(strategy.stage_of[op]) for op in table.op]
    device = [int(d) for d in table.device]
    recompute = strategy.recomputes or (False,) * strategy.n_stages
    depth = strategy.n_stages
    if strategy.order_name == "interleaved":
        on = defaultdict(set)
        for p in parts:
            on[stage[p]].add(device[p])
        depth = next((s for s in range(1, strategy.n_stages) if on[s] & on[0]), strategy.n_stages)
    split = [strategy.order_name == "zero-bubble" and seconds > 0 for seconds in weight_gradient]

    rows: list[dict[str, float]] = []
    successors: list[set[int]] = []
    task: dict[tuple[str, int, int], int] = {}

    def add(kind: TaskKind, **columns: float) -> int:
        empty = {"device": -1, "seconds": 0.0, "size": 0, "src": -1, "dst": -1, "group": -1, "micro_batch": -1}
        rows.append({**empty, "kind": int(kind), **columns})
        successors.append(set())
        return len(rows) - 1

    base = [int(b) for b in table.op_base]
    pairs = []
    for edge, (u, v) in enumerate(zip(table.edge_src_op, table.edge_dst_op, strict=True)):
        for k in range(table.edge_ptr[edge], table.edge_ptr[edge + 1]):
            if not table.local[k]:
                pairs.append((base[u] + int(table.src[k]), base[v] + int(table.dst[k]), int(table.size[k])))
    for m in range(count):
        for p in parts:
            gradient = weight_gradient[p] if split[p] else 0.0
            runs = [("F", table.forward[p]), ("B", table.backward[p] - gradient)]
            runs[1:1] = [("A", table.forward[p])] if recompute[stage[p]] else []
            runs += [("W", gradient)] if split[p] else []
            for name, seconds in runs:
                kind = TaskKind.FORWARD if name in "FA" else TaskKind.BACKWARD
                common = {"op": int(table.op[p]), "micro_batch": m}
                task[name, p, m] = add(kind, device=device[p], seconds=float(seconds), **common)
        for name in "FAB":
            for a, b, size in pairs:
                if name == "A" and not (recompute[stage[a]] and stage[a] == stage[b]):
                    continue
                start, end = (b, a) if name == "B" else (a, b)
                moved = add(
                    TaskKind.TRANSFER,
                    size=size * (m + 1) // count - size * m // count,
                    src=device[start],
                    dst=device[end],
                    op=int(table.op[b]),
                    micro_batch=m,
                )
                successors[task[name, start, m]].add(moved)
                successors[moved].add(task[name, end, m])
    for g in range(len(table.group_bytes)):
        op, size = int(table.group_op[g]), int(table.group_bytes[g])
        ring = add(TaskKind.COLLECTIVE, op=op, size=size, seconds=float(table.group_seconds[g]), group=g)
        for k in range(table.part_ptr[g], table.part_ptr[g + 1]):
            p = base[op] + int(table.group_parts[k])
            successors[task["W" if split[p] else "B", p, count - 1]].add(ring)
    for d in set(device):
        position = stage[device.index(d)] % depth
        order = []
        for name, s, m in reference_blocks(strategy.order_name, depth, strategy.n_stages // depth, count, position):
            own = [p for p in parts if device[p] == d and stage[p] == s]
            if name == "B" and recompute[s]:
                order += [task["A", p, m] for p in own]
            passes = own if name == "F" else own[::-1]
            order += [task[name, p, m] for p in passes if name != "W" or split[p]]
        for one, next_one in itertools.pairwise(order):
            successors[one].add(next_one)
    return TaskGraph(
        **{name: [row[name] for row in rows] for name in rows[0]},  # type: ignore[arg-type]
        group_ptr=table.device_ptr,
        group_members=table.group_devices,
        succ_ptr=np.cumsum([0, *map(len, successors)]),
        succ=[task for row in successors for task in sorted(row)],
        op_names=op_names,
        n_devices=n_devices,
    )
