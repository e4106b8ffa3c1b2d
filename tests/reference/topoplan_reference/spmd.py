"""The slow, plain counterpart of `topoplan_engine.lowering.turns`: device by device, in textbook words."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from topoplan.model.graph import OperatorGraph
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.lowering.spmd_costs import DeviceCosts
from topoplan_engine.sharding.mesh import MeshStep
from topoplan_engine.sharding.programs import Reshard, reshards_of

__all__ = ["reference_program"]


def reference_program(graph: OperatorGraph, strategy: StagedStrategy, prices: Sequence[DeviceCosts]) -> TaskGraph:
    """Return the graph of a strategy of one program, rows of successors ascending."""
    program, n_ops = strategy.program, len(graph.operators)
    devices, copies = range(program.n_devices), strategy.micro_batches
    stage = list(range(n_ops)) if strategy.whole_batch else strategy.stage_of.tolist()
    moves = reshards_of(program, graph)
    rows: list[dict[str, Any]] = []
    edges: set[tuple[int, int]] = set()
    groups: list[list[int]] = []
    stream: dict[tuple[str, int], int] = {}  # last task of ("compute" or "exchange", device)
    done: dict[tuple[Any, ...], int] = {}  # last task of (direction, operator or conversion, micro-batch, device)

    def add(kind: TaskKind, **columns: Any) -> int:
        empty = {"device": -1, "seconds": 0.0, "size": 0, "src": -1, "dst": -1, "group": -1, "micro_batch": -1}
        rows.append({**empty, "collective": -1, **columns, "kind": int(kind)})
        return len(rows) - 1

    def follow(task: int, *befores: int | None) -> None:
        edges.update((before, task) for before in befores if before is not None)

    def compute(way: str, op: int, copy: int) -> None:
        waits = [m for m in moves if (op in m.users if way == "F" else m.output >= 0 and m.op == op)]
        seconds = prices[op].forward if way == "F" else prices[op].backward
        for d in devices:
            kind = TaskKind.FORWARD if way == "F" else TaskKind.BACKWARD
            task = add(kind, device=d, seconds=float(seconds[d]) / copies, op=op, micro_batch=copy)
            follow(task, stream.get(("compute", d)), *(done.get((way, m, copy, d)) for m in waits))
            stream["compute", d] = done[way, op, copy, d] = task

    def exchange(way: str, move: Reshard, copy: int) -> None:
        waits = []
        if way == "F" and move.output >= 0:
            waits = [(way, move.op, copy)]
        if way == "B":
            waits = [(way, op, k) for op in move.users for k in (range(copies) if move.parameter else [copy])]
        before = {d: [done[(*wait, d)] for wait in waits] for d in devices}
        for step in move.forward if way == "F" else move.backward:
            if step.free:
                continue
            made = collective(move, step, -1 if move.parameter else copy)
            for group, (begin, _) in made:
                for d in group:
                    follow(begin, stream.get(("exchange", d)), *before[d])
            for group, (_, end) in made:
                for d in group:
                    stream["exchange", d] = end
                    for k in range(copies) if move.parameter else [copy]:
                        done[way, move, k, d] = end
            before = {d: [] for d in devices}

    def collective(move: Reshard, step: MeshStep, copy: int) -> list[tuple[list[int], tuple[int, int]]]:
        nbytes = round(move.nbytes * step.share)
        if copy >= 0:
            nbytes = nbytes * (copy + 1) // copies - nbytes * copy // copies
        common = {"op": move.users[0], "micro_batch": copy}
        groups = members_of(program.mesh, step.axes)
        what = step.step.collective
        if what != Collective.ALL_TO_ALL:
            size = nbytes if what == Collective.ALL_REDUCE else (nbytes + 1) // 2
            tasks = [add(TaskKind.COLLECTIVE, collective=what, size=size, group=number(g), **common) for g in groups]
            return [(g, (task, task)) for g, task in zip(groups, tasks, strict=True)]
        joins = {**common, "collective": Collective.JOIN}
        begins = [add(TaskKind.COLLECTIVE, group=number(g[:1]), **joins) for g in groups]
        pairs = [[(a, b) for a in g for b in g if a != b] for g in groups]
        each = -(-nbytes // len(groups[0]) ** 2)
        sent = [[add(TaskKind.TRANSFER, size=each, src=a, dst=b, **common) for a, b in row] for row in pairs]
        ends = [add(TaskKind.COLLECTIVE, group=number(g[:1]), **joins) for g in groups]
        for begin, tasks, end in zip(begins, sent, ends, strict=True):
            edges.update((begin, task) for task in tasks)
            edges.update((task, end) for task in tasks)
        return list(zip(groups, zip(begins, ends, strict=True), strict=True))

    def number(group: list[int]) -> int:
        if group not in groups:
            groups.append(group)
        return groups.index(group)

    order = sorted(set(stage), key=stage.index)
    for s in order:
        for copy in range(copies):
            for move in moves:
                if stage[move.users[0]] == s and (copy == 0 or not move.parameter):
                    exchange("F", move, copy)
            for op in range(n_ops):
                if stage[op] == s:
                    compute("F", op, copy)
    for s in reversed(order):
        for copy in reversed(range(copies)):
            for op in reversed(range(n_ops)):
                if stage[op] == s:
                    compute("B", op, copy)
            for move in reversed(moves):
                if stage[move.users[0]] == s and (copy == 0 or not move.parameter):
                    exchange("B", move, copy)
    successors: list[list[int]] = [[] for _ in rows]
    for tail, head in sorted(edges):
        successors[tail].append(head)
    columns: dict[str, Any] = {name: [row[name] for row in rows] for name in rows[0]}
    columns["micro_batch"] = columns["micro_batch"] if copies > 1 else None
    return TaskGraph(
        **columns,
        group_ptr=np.cumsum([0, *map(len, groups)]),
        group_members=list(itertools.chain(*groups)),
        succ_ptr=np.cumsum([0, *map(len, successors)]),
        succ=list(itertools.chain(*successors)),
        op_names=tuple(op.name for op in graph.operators),
        n_devices=program.n_devices,
    )


def members_of(mesh: tuple[int, ...], axes: tuple[int, ...]) -> list[list[int]]:
    """Return the devices of each group along some axes: those whose other coordinates are equal."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for device, place in enumerate(itertools.product(*map(range, mesh))):
        groups.setdefault(tuple(at for axis, at in enumerate(place) if axis not in axes), []).append(device)
    return list(groups.values())
