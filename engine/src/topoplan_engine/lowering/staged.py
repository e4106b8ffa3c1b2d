"""Lowering of staged strategies: one micro-batch of each stage, copied, and tied together in the order of passes.

    strategy ─► stage_graphs ─► stage_tasks: columns of one micro-batch ─► copies for all micro-batches ┐
                         └────► stage_links: transfers between stages ──► copies for all micro-batches ─┼─► task graph
    PassOrder ─► the next pass of every rank ─► edges along its streams ────────────────────────────────┘

Each device runs the passes of its rank one after the other.  A communicator works on its collectives in the same order,
and transfers of one tensor between two stages follow each other in each direction, as in NCCL.  Pipelines of single
devices (`topoplan_engine.lowering.pipeline`) let such messages overtake each other, which makes a difference only where
a message takes longer than the passes between two of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64, digest
from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.graph import OperatorGraph
from topoplan.model.pass_order import Pass
from topoplan.model.problem import Demand
from topoplan.model.recording import MemoryUse
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.model.timeline import Timeline
from topoplan_engine.interrupt import check_size
from topoplan_engine.lowering.memory_levels import Activations
from topoplan_engine.lowering.spmd_costs import DeviceCosts, ProgramPrices
from topoplan_engine.lowering.stage_links import Routes, routes_between, slices_of
from topoplan_engine.lowering.stage_memory import (
    StageBytes,
    StagedPeak,
    staged_activations,
    staged_memory_use,
    staged_peak,
)
from topoplan_engine.lowering.stage_rings import causal_passes
from topoplan_engine.lowering.stage_tasks import (
    END,
    Part,
    StageCosts,
    StageTasks,
    Variant,
    shared_passes,
    with_gradients,
)
from topoplan_engine.lowering.task_columns import NO_TASK, TaskColumns
from topoplan_engine.network.demand import taskgraph_demand
from topoplan_engine.sharding.mesh import mesh_groups
from topoplan_engine.sharding.stage_graphs import Link, StageGraph, crossing_weights, stage_graphs

__all__ = ["StagedLowering"]


class StagedLowering:
    """Lowers staged strategies; see `topoplan_engine.lowering.lower.StrategyLowering`."""

    def __init__(self, graph: OperatorGraph, cluster: Cluster, costs: CostFunction) -> None:
        self._graph, self._cluster, self._costs = graph, cluster, costs
        self._prices = ProgramPrices(graph, cluster, costs)
        self._last: tuple[StagedStrategy, tuple[StageGraph, ...], list[StageCosts]] | None = None

    def lower(self, strategy: StagedStrategy) -> TaskGraph:
        """Return the task graph of one iteration."""
        check_size(self.n_tasks(strategy))
        stages, costs = self._stages(strategy)
        names = tuple(op.name for op in self._graph.operators)
        return _Assembly(strategy, self._graph, stages, costs).taskgraph(names, self._cluster.n_devices)

    def n_tasks(self, strategy: StagedStrategy) -> int:
        """Return the passes of all devices in all micro-batches; collectives are fewer."""
        passes = sum(len(stage.operators) * stage.mesh.n_devices for stage in strategy.stages)
        return 2 * passes * strategy.micro_batches

    def class_key(self, strategy: StagedStrategy, in_turn_bytes: int) -> None:
        """Return None: see `symmetry`."""

    def symmetry(self, strategy: StagedStrategy, in_turn_bytes: int) -> None:
        """Return None: staged strategies are simulated whole."""

    def memory(self, strategy: StagedStrategy) -> F64:
        """Return the (D,) peak of the bytes that each device holds."""
        return self._peak(strategy).total

    def resting_memory(self, strategy: StagedStrategy) -> F64:
        """Return the same; it is asked for of placements alone, see `StrategyLowering`."""
        return self.memory(strategy)

    def holds_gradients(self, strategy: StagedStrategy) -> bool:
        """Return True: sums of operators' bytes say nothing of the peak."""
        return True

    def memory_use(self, strategy: StagedStrategy) -> MemoryUse:
        """Return the bytes of `memory` by their use, rounded to whole bytes."""
        return staged_memory_use(self._bytes(strategy), self._peak(strategy))

    def activations(self, strategy: StagedStrategy, taskgraph: TaskGraph, timeline: Timeline) -> Activations:
        """Return the bytes of activations over time, pass by pass."""
        return staged_activations(strategy, self._bytes(strategy), taskgraph, timeline)

    def demand(self, strategy: StagedStrategy) -> Demand:
        """Return what ``strategy`` asks of the network, host by host."""
        return taskgraph_demand(self.lower(strategy), self._cluster)

    def _peak(self, strategy: StagedStrategy) -> StagedPeak:
        return staged_peak(strategy, self._bytes(strategy), self._cluster.n_devices)

    def _bytes(self, strategy: StagedStrategy) -> list[StageBytes]:
        stages, costs = self._stages(strategy)
        crossing = crossing_weights(strategy, self._graph)
        return [
            StageBytes.of(strategy, self._graph, number, stages[number], costs[number].passes, crossing)
            for number in range(len(stages))
        ]

    def _stages(self, strategy: StagedStrategy) -> tuple[tuple[StageGraph, ...], list[StageCosts]]:
        if self._last is None or self._last[0] is not strategy:
            costs = [self._costs_of(strategy, number) for number in range(len(strategy.stages))]
            self._last = strategy, stage_graphs(strategy, self._graph), costs
        return self._last[1:]

    def _costs_of(self, strategy: StagedStrategy, number: int) -> StageCosts:
        stage = strategy.stages[number]
        operators, mesh = stage.operators.tolist(), stage.mesh
        parts = [self._graph.operators[op] for op in operators]
        weights = self._prices.of_operators(stage.program, strategy.micro_batches, operators, mesh.devices)
        passes = [with_gradients(each, op, stage.gradient_bytes) for each, op in zip(weights, parts, strict=True)]
        price = getattr(self._costs, "optimizer_seconds", None)
        updates: list[F64 | None] = [None] * len(operators)
        for row, op in enumerate(operators) if price is not None else ():
            dims = len(self._graph.operators[op].dims)
            part = stage.program.part_of_place(row, dims)
            placement = stage.placement(row, dims)
            seconds = price(op, placement.degrees, placement.devices)  # type: ignore[misc]
            if seconds is not None:
                updates[row] = seconds[:, part] * _moved(passes[row]) / _moved(weights[row])
        return StageCosts(causal_passes(stage, parts, shared_passes(stage, passes)), updates)


def _moved(price: DeviceCosts) -> F64 | float:
    """(D,) bytes that a step of the optimizer moves: weights and gradients once, the state of the optimizer twice."""
    return 1.0 if price.states is None else np.array([1.0, 1.0, 2.0]) @ price.states


class _Copies(NamedTuple):
    """The tasks of a stage in all micro-batches.

    Attributes:
        tasks: variant -> the tasks of one micro-batch.
        variant: (micro-batches,) of each.
        offset: (micro-batches,) number of its first task.
    """

    tasks: dict[Variant, StageTasks]
    variant: list[Variant]
    offset: I64


class _Assembly:
    """Puts the tasks of all stages and micro-batches into one task graph."""

    def __init__(
        self,
        strategy: StagedStrategy,
        graph: OperatorGraph,
        stages: Sequence[StageGraph],
        costs: Sequence[StageCosts],
    ) -> None:
        self._strategy, self._graph, self._stages = strategy, graph, stages
        self._groups = TaskColumns()
        self._columns: dict[str, list[Any]] = {name: [] for name in NO_TASK}
        self._tails: list[I64] = []
        self._heads: list[I64] = []
        self._count = 0
        self._copies = [self._stage(number, costs[number]) for number in range(len(stages))]

    def taskgraph(self, names: tuple[str, ...], n_devices: int) -> TaskGraph:
        """Return the task graph."""
        self._send()
        self._order_ranks()
        sums = self._sum_tied()
        if self._strategy.clips:
            self._clip(sums)
        columns: dict[str, Any] = {name: np.concatenate(parts) for name, parts in self._columns.items()}
        tails, heads = np.concatenate(self._tails), np.concatenate(self._heads)
        degree = np.bincount(tails, minlength=self._count)
        if self._strategy.micro_batches == 1:
            columns["micro_batch"] = None
        return TaskGraph(
            **columns,
            **self._groups.group_columns(),
            succ_ptr=np.concatenate([[0], np.cumsum(degree)]),
            succ=heads[np.argsort(tails, kind="stable")],
            op_names=names,
            n_devices=n_devices,
        )

    def _stage(self, number: int, costs: StageCosts) -> _Copies:
        """Write a stage once for each variant of its micro-batches, and copy it for all of them."""
        order, count = self._strategy.order, self._strategy.micro_batches
        rows = order.row_of[:, number]
        separate = frozenset(kind for kind in (Pass.RECOMPUTE, Pass.WEIGHTS) if (rows[kind] >= 0).any())
        first = int(rows[Pass.FORWARD].argmin())
        last = int(rows[Pass.WEIGHTS if Pass.WEIGHTS in separate else Pass.BACKWARD].argmax())
        variants = [Variant(k == first, k == last) for k in range(count)]
        tasks: dict[Variant, StageTasks] = {}
        offset = np.zeros(count, dtype=np.int64)
        for variant in dict.fromkeys(variants):
            written = StageTasks(self._stages[number], costs, variant, self._groups, separate)
            tasks[variant] = written
            members = np.flatnonzero([each == variant for each in variants])
            offset[members] = self._count + written.n_tasks * np.arange(len(members))
            columns = written.columns()
            size = columns.pop("size")
            columns["size"] = _sizes(size, columns.pop("divisor"), columns["micro_batch"], members, count)
            micro_batch = columns["micro_batch"][None]
            columns["micro_batch"] = np.where(micro_batch < 0, -1, members[:, None])
            self._add(columns, written.n_tasks * len(members))
            tails, heads = written.ends()
            self._edge(tails[None] + offset[members, None], heads[None] + offset[members, None])
        return _Copies(tasks, variants, offset)

    def _add(self, columns: dict[str, Any], count: int) -> I64:
        """Add rows; each column is a number, or repeats until there are ``count`` values."""
        for name, empty in NO_TASK.items():
            values = np.asarray(columns.get(name, empty)).ravel()
            self._columns[name].append(np.tile(values, count // len(values)))
        self._count += count
        return np.arange(self._count - count, self._count)

    def _edge(self, tails: I64, heads: I64) -> None:
        self._tails.append(tails.ravel())
        self._heads.append(heads.ravel())

    # ── Between stages ──────────────────────────────────────────────────────────────────────────────────────

    def _send(self) -> None:
        """Write the transfers of all tensors between stages, and of their gradients."""
        links = {link: None for stage in self._stages for several in stage.sends.values() for link in several}
        for link in links:
            tensor = self._graph.operators[link.op].outputs[link.output]
            meshes = [self._strategy.stages[number].mesh for number in (link.source, link.target)]
            routes = routes_between(tensor, link.sent, meshes[0], link.arrives, meshes[1])
            self._transfer(link, False, link.source, link.target, routes)
            if link.gradient:
                back = routes_between(tensor, link.arrives, meshes[1], link.sent, meshes[0])
                self._transfer(link, True, link.target, link.source, back)

    def _transfer(self, link: Link, gradient: bool, source: int, target: int, routes: Routes) -> None:
        """Write one tensor's transfers in one direction, for all micro-batches."""
        count, away = self._strategy.micro_batches, ~routes.local
        sender, receiver = (self._strategy.stages[number].mesh.devices for number in (source, target))
        n = int(away.sum())
        members = np.arange(count)
        columns = {
            "kind": TaskKind.TRANSFER,
            "size": _sizes(routes.nbytes[away], np.ones(n, np.int64), np.zeros(n, np.int64), members, count),
            "src": sender[routes.source[away]],
            "dst": receiver[routes.target[away]],
            "op": link.op if gradient else self._reader(link),
            "micro_batch": np.repeat(members, n),
        }
        tasks = self._add(columns, n * count).reshape(count, n) if n else np.zeros((count, 0), dtype=np.int64)
        for k in range(count):
            leaves = self._ends_of(source, k, "leaves", (link, gradient))
            waits = self._ends_of(target, k, "arrives", (link, gradient))
            for end in leaves:
                self._edge(end[routes.source[away]], tasks[k])
            for wait in waits:
                self._edge(tasks[k], wait[routes.target[away]])
                for end in leaves if routes.local.any() else ():
                    self._edge(end[routes.source[routes.local]], wait[routes.target[routes.local]])
        kind = Pass.BACKWARD if gradient else Pass.FORWARD
        in_turn = np.argsort(self._strategy.order.row_of[kind, source])
        self._edge(tasks[in_turn[:-1]], tasks[in_turn[1:]])

    def _reader(self, link: Link) -> int:
        """Return the first operator that reads what a link brings."""
        stage = self._stages[link.target]
        index = next(op for op, each in stage.receives.items() if each == link)
        readers = stage.graph.edges[stage.graph.edges[:, 0] == index, 2]
        return stage.operator[int(readers.min())]

    def _ends_of(self, stage: int, micro_batch: int, name: str, key: object) -> list[I64]:
        copies = self._copies[stage]
        tasks = copies.tasks[copies.variant[micro_batch]]
        return [end + copies.offset[micro_batch] for end in getattr(tasks, name).get(key, ())]

    # ── The order of passes ─────────────────────────────────────────────────────────────────────────────────

    def _order_ranks(self) -> None:
        """Let every pass follow the one before it on its rank, stream by stream."""
        order = self._strategy.order
        last = [[variant.last for variant in each.variant].index(True) for each in self._copies]
        for rank in range(order.n_ranks):
            rows = slice(order.rank_ptr[rank], order.rank_ptr[rank + 1])
            kind, chunk, micro_batch = (
                column[rows].tolist() for column in (order.kind, order.chunk, order.micro_batch)
            )
            chunks = sorted(set(chunk))
            passes = [*zip(kind, chunk, micro_batch, strict=True), *((END, c, last[c]) for c in chunks)]
            self._order_rank(passes)

    def _order_rank(self, passes: Sequence[tuple[int, int, int]]) -> None:
        streams: dict[bytes, list[tuple[tuple[I64, I64], int]]] = {}
        ends: dict[tuple[int, int, Variant], list[tuple[bytes, tuple[I64, I64]]]] = {}
        for kind, chunk, micro_batch in passes:
            copies = self._copies[chunk]
            key = kind, chunk, copies.variant[micro_batch]
            if key not in ends:
                ends[key] = list(self._streams_of(kind, chunk, copies.tasks[key[2]]))
            for stream, first_and_last in ends[key]:
                streams.setdefault(stream, []).append((first_and_last, int(copies.offset[micro_batch])))
        for rows in streams.values():
            offsets = np.array([offset for _, offset in rows])[:, None]
            first, last = (np.stack([each[k] for each, _ in rows]) + offsets for k in (0, 1))
            self._edge(last[:-1], first[1:])

    def _streams_of(self, kind: int, chunk: int, tasks: StageTasks) -> Iterator[tuple[bytes, tuple[I64, I64]]]:
        """Yield the streams that a pass uses, with its first and last tasks there, by device or by group."""
        part, mesh = tasks.parts.get(kind), self._strategy.stages[chunk].mesh
        if part is None:
            return
        if part.computed is not None:
            by_device = np.argsort(mesh.devices)
            yield b"", (part.computed[0][by_device], part.computed[1][by_device])
        for axes, (first, last) in part.exchanged.items():
            members = mesh_groups(mesh.sizes, axes)
            order = np.argsort(mesh.devices[members].min(axis=1))
            groups = members[order]
            yield digest([np.sort(mesh.devices[groups], axis=1)]), (first[groups[:, 0]], last[groups[:, 0]])

    # ── Weights that stages share ───────────────────────────────────────────────────────────────────────────

    def _sum_tied(self) -> list[int]:
        """Sum the gradients of weights that several stages use, once those of each are summed; return the sums."""
        sums: list[int] = []
        for tied in crossing_weights(self._strategy, self._graph):
            operator = self._graph.operators[tied.owner]
            places = [(tied.owner, len(operator.inputs) + tied.weight)]
            rank_of = self._strategy.rank_of
            ranks = {int(rank_of[tied.owner])}
            for op, argument in tied.users:
                if int(rank_of[op]) not in ranks:
                    ranks.add(int(rank_of[op]))
                    places.append((op, argument))
            holders = [self._holders(op, argument, operator.weights[tied.weight].shape) for op, argument in places]
            itemsize = self._strategy.stages[0].gradient_bytes or operator.weights[tied.weight].itemsize
            sums += self._sum_copies(tied.owner, itemsize, places, holders)
        return sums

    def _clip(self, sums: Sequence[int]) -> None:
        """Let updates, and gathers of weights, wait for the norm of all gradients, which all devices add up."""
        devices = np.concatenate([stage.mesh.devices for stage in self._strategy.stages])
        (group,) = self._groups.numbers(np.unique(devices)[None].astype(np.int32))
        columns = {"kind": TaskKind.COLLECTIVE, "collective": Collective.ALL_REDUCE, "size": 4, "group": group}
        (norm,) = self._add(columns, 1)
        self._edge(np.array(sums, dtype=np.int64), np.full(len(sums), norm))
        for copies in self._copies:
            last = next(k for k, variant in enumerate(copies.variant) if variant.last)
            parts, offset = copies.tasks[copies.variant[last]].parts, copies.offset[last]
            before = [ends[1] for kind in (Pass.BACKWARD, Pass.WEIGHTS) for ends in _streams(parts.get(kind))]
            after = [ends[0] for ends in _streams(parts.get(END))]
            tails, heads = (np.unique(np.concatenate([*each, np.zeros(0, np.int64)])) for each in (before, after))
            self._edge(tails.astype(np.int64) + offset, np.full(len(tails), norm))
            self._edge(np.full(len(heads), norm), heads.astype(np.int64) + offset)

    def _holders(self, op: int, argument: int, shape: tuple[int, ...]) -> I64:
        """(2, D, axes) the slice of a weight, along the axes of ``shape``, that each device of a stage stores."""
        stage = self._strategy.stages[int(self._strategy.stage_of[op])]
        row = int(np.searchsorted(stage.operators, op))
        operator = self._graph.operators[op]
        tensor = (*operator.inputs, *operator.weights)[argument]
        slices = slices_of(tensor.shape, stage.program.stored[row][argument], stage.mesh.sizes)
        free, axes = list(range(len(tensor.shape))), []
        for size in shape:  # the same axes, perhaps in another order
            axes.append(next(k for k in free if tensor.shape[k] == size))
            free.remove(axes[-1])
        return slices[:, :, axes]

    def _sum_copies(
        self, owner: int, itemsize: int, places: Sequence[tuple[int, int]], holders: Sequence[I64]
    ) -> list[int]:
        """Add the all-reduces among devices that store the same elements in different stages: the k-th of each."""
        sets = [_by_slice(each) for each in holders]
        if any(each.keys() != sets[0].keys() for each in sets):
            names = [self._graph.operators[op].name for op, _ in places]
            raise TopoplanError(
                f"strategy: {' and '.join(names)} share a weight in different slices (slice it equally)"
            )
        sums = []
        for elements in sets[0]:
            rows = [each[elements] for each in sets]
            count = min(map(len, rows))
            low, high = (np.array(half) for half in elements)
            for k in range(count):
                members = [(n, place) for n, row in enumerate(rows) for place in _share(row, k, count)]
                sums.append(self._sum_group(owner, int((high - low).prod()) * itemsize, places, members))
        return sums

    def _sum_group(
        self, owner: int, nbytes: int, places: Sequence[tuple[int, int]], members: Sequence[tuple[int, int]]
    ) -> int:
        devices, after, before = [], [], []
        for number, place in members:
            op, argument = places[number]
            stage = int(self._strategy.stage_of[op])
            copies = self._copies[stage]
            last = next(k for k, variant in enumerate(copies.variant) if variant.last)
            tasks = copies.tasks[copies.variant[last]]
            devices.append(int(self._strategy.stages[stage].mesh.devices[place]))
            before += [int(end[place] + copies.offset[last]) for end in tasks.summed[op, argument]]
            if op in tasks.updated:
                after.append(int(tasks.updated[op][place] + copies.offset[last]))
        (group,) = self._groups.numbers(np.array([devices], dtype=np.int32))
        columns = {"kind": TaskKind.COLLECTIVE, "collective": Collective.ALL_REDUCE, "size": nbytes, "op": owner}
        (task,) = self._add({**columns, "group": group}, 1)
        self._edge(np.array(before), np.full(len(before), task))
        self._edge(np.full(len(after), task), np.array(after, dtype=np.int64))
        return int(task)


def _streams(part: Part | None) -> list[tuple[I64, I64]]:
    """Return the first and last tasks of each stream of a pass."""
    if part is None:
        return []
    return [*([] if part.computed is None else [part.computed]), *part.exchanged.values()]


def _by_slice(slices: I64) -> dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]]:
    """Return the places that store each slice, by where it begins and ends."""
    places: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for place, (low, high) in enumerate(zip(slices[0].tolist(), slices[1].tolist(), strict=True)):
        places.setdefault((tuple(low), tuple(high)), []).append(place)
    return places


def _share(row: Sequence[int], k: int, count: int) -> Sequence[int]:
    return row[k * len(row) // count : (k + 1) * len(row) // count]


def _sizes(nbytes: I64, divisor: I64, micro_batch: I32 | I64, members: I64, count: int) -> I64:
    """(members, T) sizes of tasks in some of ``count`` micro-batches, given bytes of the batch.

    A micro-batch has the bytes between two fractions of the whole; tasks that belong to none (-1) have all bytes.
    """
    share, remainder = np.divmod(nbytes, count)
    ends = np.stack([members, members + 1])[:, :, None] * remainder // count
    part = np.where(micro_batch < 0, nbytes, share + ends[1] - ends[0])
    sizes: I64 = -(-part // divisor)
    return sizes
