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

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.graph import OperatorGraph
from topoplan.model.pass_order import Pass
from topoplan.model.problem import Demand
from topoplan.model.recording import MemoryUse
from topoplan.model.staged import Stage, StagedStrategy
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.model.timeline import Timeline
from topoplan_engine.available import check_memory
from topoplan_engine.host_models import shares_links
from topoplan_engine.interrupt import check_size
from topoplan_engine.lowering.folding.exchanges import exchanges_of
from topoplan_engine.lowering.folding.layout import FoldedIteration, FoldedLayout
from topoplan_engine.lowering.folding.patterns import MessageLoads, Patterns
from topoplan_engine.lowering.inside_sums import with_sums_inside
from topoplan_engine.lowering.lower import StrategyLowering
from topoplan_engine.lowering.memory_levels import Activations
from topoplan_engine.lowering.paired_passes import in_turns, paired_rows
from topoplan_engine.lowering.places import Layout, WholeLayout, copy_groups
from topoplan_engine.lowering.spmd_costs import PricedParts, ProgramPrices, of_one_number
from topoplan_engine.lowering.stage_costs import (
    StageCosts,
    moved_bytes,
    of_one_place,
    shared_passes,
    slowdown_of,
    summed_bytes,
    with_gradients,
)
from topoplan_engine.lowering.stage_memory import (
    StageBytes,
    StagedPeak,
    staged_activations,
    staged_memory_use,
    staged_peak,
)
from topoplan_engine.lowering.stage_rings import causal_passes, works_in_order
from topoplan_engine.lowering.stage_tasks import END, SUMS, Part, StageTasks, Variant
from topoplan_engine.lowering.task_columns import TaskColumns, shares_of
from topoplan_engine.lowering.turns import in_one_stage, program_columns, program_graph
from topoplan_engine.network.demand import taskgraph_demand
from topoplan_engine.optimizer import OptimizerCosts
from topoplan_engine.pass_orders import backward_at_once, is_in_twos
from topoplan_engine.sharding.stage_graphs import Link, StageGraph, crossing_weights, stage_graphs
from topoplan_engine.training import gradient_flow

__all__ = ["StagedLowering"]


class StagedLowering(StrategyLowering):
    """Lowers staged strategies; see `topoplan_engine.lowering.lower.StrategyLowering`."""

    def __init__(self, graph: OperatorGraph, cluster: Cluster, costs: CostFunction, *, one_task: bool = False) -> None:
        """Lower strategies of a graph; ``one_task``: see `topoplan_engine.lowering.Lowering`."""
        self._graph, self._cluster, self._costs, self._one_task = graph, cluster, costs, one_task
        self._prices, self._names = ProgramPrices(graph, cluster, costs), tuple(op.name for op in graph.operators)
        self._last: tuple[StagedStrategy, tuple[StageGraph, ...], list[StageCosts]] | None = None
        # Bytes of stages with these costs, and their peak.
        self._last_bytes: tuple[list[StageCosts], bytes, list[StageBytes]] | None = None
        self._last_peak: tuple[list[StageBytes], StagedPeak] | None = None

    def lower(self, strategy: StagedStrategy) -> TaskGraph:
        """Return the task graph of one iteration."""
        check_size(self.n_tasks(strategy))
        stages, costs = self._stages(strategy)
        layout = WholeLayout(strategy, self._graph, one_task=self._one_task)
        columns = self._columns(strategy, stages, costs, layout) | layout.groups.group_columns()
        return TaskGraph(**columns, op_names=self._names, n_devices=self._cluster.n_devices)

    def fold(
        self,
        strategy: StagedStrategy,
        loads_of: Callable[[TaskGraph], MessageLoads],
        chosen: Collection[Collective] = (),
    ) -> FoldedIteration:
        """Return one iteration with a task for each class of tasks.

        Args:
            strategy: to lower.
            loads_of: says what messages put on links, given a task graph of messages that do not wait.
            chosen: collectives that run by algorithms.
        """
        stages, costs = self._stages(strategy)
        listed = in_one_stage(strategy) if strategy.one_stream else strategy
        one_task = self._one_task and Collective.ALL_TO_ALL in chosen  # else its messages are of several classes
        exchanges = exchanges_of(listed, stages, costs, one_task=one_task)
        same_path = self._one_task and not shares_links(self._cluster.host)  # from hosts without insides
        endpoint = self._cluster.device_host if same_path else None
        patterns = Patterns(listed, self._graph, self._cluster.n_devices, stages, costs, exchanges, chosen, endpoint)
        messages = patterns.taskgraph()
        check_size(messages.n_tasks)  # each has a path, which takes as long as a task
        loads = loads_of(messages)
        del messages  # gigabytes
        layout = FoldedLayout(listed, patterns, loads, one_task=one_task, counted_once=self._one_task)
        return layout.iteration(self._columns(strategy, stages, costs, layout), self._names, self._cluster.device_host)

    def _columns(
        self, strategy: StagedStrategy, stages: Sequence[StageGraph], costs: Sequence[StageCosts], layout: Layout
    ) -> dict[str, Any]:
        """Return the columns of a task graph but those of groups."""
        slowdown = slowdown_of(strategy.stages, self._cluster.n_devices)
        if strategy.one_stream:
            return program_columns(strategy, stages[0], costs[0], layout) | {"slowdown": slowdown}
        return Assembly(strategy, stages, costs, layout).columns() | {"slowdown": slowdown}

    def n_tasks(self, strategy: StagedStrategy) -> int:
        """Return the passes of all devices in all micro-batches; collectives are fewer."""
        passes = sum(len(stage.operators) * stage.mesh.n_devices for stage in strategy.stages)
        return 2 * passes * strategy.micro_batches // len(strategy.stage_of_copies)

    def memory(self, strategy: StagedStrategy) -> F64:
        """Return the (D,) peak of the bytes that each device holds."""
        return self._peak(strategy).total

    def memory_use(self, strategy: StagedStrategy) -> MemoryUse:
        """Return the bytes of `memory` by their use, rounded to whole bytes."""
        return staged_memory_use(self._bytes(strategy), self._peak(strategy))

    def activations(self, strategy: StagedStrategy, taskgraph: TaskGraph, timeline: Timeline) -> Activations:
        """Return the bytes of activations over time, pass by pass."""
        return staged_activations(strategy, self._bytes(strategy), taskgraph, timeline)

    def demand(self, strategy: StagedStrategy) -> Demand:
        """Return what ``strategy`` asks of the network, host by host."""
        return taskgraph_demand(self.lower(strategy), self._cluster)

    def parts(
        self, strategy: StagedStrategy, costs: list[StageCosts] | None = None
    ) -> tuple[Sequence[StageGraph], Sequence[StageCosts], Sequence[StageBytes]]:
        """Return graph, costs and bytes of each stage, for those that put other pipelines together of such stages.

        Args:
            strategy: what is lowered.
            costs: of its stages (`stage_costs`), which are the same for some that differ in what runs again.
        """
        if costs is not None:
            self._last = strategy, self._graphs(strategy), costs
        return *self._stages(strategy), self._bytes(strategy)

    def stage_costs(self, strategy: StagedStrategy) -> list[StageCosts]:
        """Return what the operators of each stage cost; those of a program with one stream are one stage."""
        prices_so_far, listed = PricedParts({}, {}), in_one_stage(strategy) if strategy.one_stream else strategy
        return [self._costs_of(listed, number, prices_so_far) for number in range(len(listed.stages))]

    def _peak(self, strategy: StagedStrategy) -> StagedPeak:
        stage_bytes = self._bytes(strategy)
        if self._last_peak is None or self._last_peak[0] is not stage_bytes:
            turns = 2 if strategy.pairs and is_in_twos(strategy.order) else 1
            self._last_peak = stage_bytes, staged_peak(strategy.order, stage_bytes, self._cluster.n_devices, turns)
        return self._last_peak[1]

    def _bytes(self, strategy: StagedStrategy) -> list[StageBytes]:
        stages, costs = self._stages(strategy)
        if self._last_bytes is None or self._last_bytes[0] is not costs or self._last_bytes[1] != strategy.key:
            crossing = crossing_weights(strategy, self._graph)
            stage_bytes = [
                StageBytes.of(strategy, self._graph, number, stages[number], costs[number], crossing)
                for number in range(len(stages))
            ]
            self._last_bytes = costs, strategy.key, stage_bytes
        return self._last_bytes[2]

    def _stages(self, strategy: StagedStrategy) -> tuple[tuple[StageGraph, ...], list[StageCosts]]:
        if self._last is None or self._last[0].key != strategy.key:
            self._last = strategy, self._graphs(strategy), self.stage_costs(strategy)
        return self._last[1:]

    def _graphs(self, strategy: StagedStrategy) -> tuple[StageGraph, ...]:
        whole_graph = (program_graph(in_one_stage(strategy), self._graph),) if strategy.one_stream else ()
        stages = whole_graph or stage_graphs(strategy, self._graph)
        return tuple(with_sums_inside(stage, self._graph, self._cluster) for stage in stages)

    def _costs_of(self, strategy: StagedStrategy, number: int, prices_so_far: PricedParts) -> StageCosts:
        stage = strategy.stages[number]
        operators, mesh = stage.operators.tolist(), stage.mesh
        parts = [self._graph.operators[op] for op in operators]
        weights = self._prices.of_operators(stage, strategy.micro_batches, prices_so_far)
        step = self._step_seconds(stage, prices_so_far)
        is_one = not len(stage.share_of) and not works_in_order(stage, parts) and all(each.uniform for each in weights)
        is_one &= all(of_one_number(seconds) for seconds, _ in step.values())
        if is_one:
            weights = of_one_place(weights)
        passes = with_gradients(weights, parts, stage.gradient_bytes)
        updates: list[F64 | None] = [None] * len(operators)
        shared, trained = dict[object, F64](), gradient_flow(self._graph).weights
        for row, (seconds, part) in step.items():
            key = id(seconds), id(part), id(passes[row]), id(weights[row]), trained[operators[row]]
            if key not in shared:
                places = slice(1) if is_one else part
                at_places = seconds[:, places] * moved_bytes(passes[row]) / moved_bytes(weights[row])
                if not all(key[-1]):
                    at_places *= np.array(key[-1])[:, None]
                shared[key] = at_places
            updates[row] = shared[key]
        if is_one:
            return StageCosts(passes, updates, np.zeros(mesh.n_devices, np.int64))
        passes = causal_passes(stage, parts, shared_passes(stage, passes))
        return StageCosts(passes, updates, np.arange(mesh.n_devices)).merged()

    def _step_seconds(self, stage: Stage, prices_so_far: PricedParts) -> dict[int, tuple[F64, I32]]:
        """Return the (weights, P) seconds of optimizer steps, if any, and (D,) parts, by operators of the stage."""
        step: dict[int, tuple[F64, I32]] = {}
        if not isinstance(self._costs, OptimizerCosts):
            return step
        trained, program = gradient_flow(self._graph).weights, stage.program
        for row, op in enumerate(stage.operators.tolist()):
            if any(trained[op]):
                degrees = program.degrees(row, len(self._graph.operators[op].dims))
                parts = prices_so_far.of(program, row, degrees)
                seconds = self._costs.optimizer_seconds(op, degrees, stage.mesh.devices[parts.devices[0]])
                if seconds is not None:
                    step[row] = seconds, parts.part
        return step


class _Written(NamedTuple):
    """Tasks of one micro-batch of a stage, and the edges between them.

    Attributes:
        tasks: these.
        members: (n,) micro-batches whose tasks are like them.
        tails, heads: of edges.
    """

    tasks: StageTasks
    members: I64
    tails: I64
    heads: I64


class _Copies(NamedTuple):
    """The tasks of a stage in all micro-batches.

    Attributes:
        tasks: variant -> the tasks of one micro-batch.
        variant: (micro-batches,) of each; None for one that another copy of the model runs.
        offset: (micro-batches,) number of its first task.
    """

    tasks: dict[Variant, StageTasks]
    variant: list[Variant | None]
    offset: I64

    def of(self, micro_batch: int) -> StageTasks:
        """Return the tasks of a micro-batch that runs here, as if they were numbered from 0."""
        variant = self.variant[micro_batch]
        assert variant is not None
        return self.tasks[variant]

    @property
    def first(self) -> int:
        """The micro-batch that begins first."""
        return next(k for k, variant in enumerate(self.variant) if variant is not None and variant.first)

    @property
    def last(self) -> int:
        """The micro-batch that ends last."""
        return next(k for k, variant in enumerate(self.variant) if variant is not None and variant.last)

    def around_sums(self) -> tuple[list[I64], list[I64]]:
        """Return the last tasks of all streams before the updates of weights, and the first ones from there on."""
        parts, offset = self.of(self.last).parts, self.offset[self.last]
        passes = (Pass.BACKWARD, Pass.WEIGHTS, SUMS)
        before = [end + offset for kind in passes for _, end in _streams(parts.get(kind))]
        return before, [first + offset for first, _ in _streams(parts.get(END))]


#: Bytes of a task and of an edge while an iteration is written and simulated: twelve columns of eight bytes and the
#: two ends of an edge, each as parts and put together, and what sorts and simulates them.
_TASK, _EDGE = 208, 68
_ALL_REDUCE: dict[str, Any] = {"kind": TaskKind.COLLECTIVE, "collective": Collective.ALL_REDUCE}
#: A pass on a rank: its kind, chunk and micro-batch.
_Pass = tuple[int, int, int]


class Assembly:
    """Puts the tasks of all stages and micro-batches into one task graph.

    Attributes:
        layout: the places that tasks are written for.
    """

    def __init__(
        self,
        strategy: StagedStrategy,
        stages: Sequence[StageGraph],
        costs: Sequence[StageCosts],
        layout: Layout,
    ) -> None:
        self._strategy, self._stages, self.layout = strategy, stages, layout
        self._in_twos = strategy.pairs and is_in_twos(strategy.order)
        self._places = [layout.places(number) for number in range(len(stages))]
        self._tasks = TaskColumns()
        written = [self._written(number, costs[number]) for number in range(len(stages))]
        _check_fits(written)
        check_size(sum(each.tasks.n_tasks * len(each.members) for several in written for each in several.values()))
        self._copies = [self._copied(several) for several in written]

    def columns(self) -> dict[str, Any]:
        """Return the columns of a task graph but those of groups."""
        self._send()
        self._order_ranks()
        sums = self._sum_tied() + self._sum_copies_of_model()
        if self._strategy.clips:
            self._clip(sums)
        columns: dict[str, Any] = self._tasks.columns(**self.layout.columns) | self._tasks.successors()
        if self._strategy.micro_batches == 1:
            columns["micro_batch"] = None
        return columns

    def _written(self, number: int, costs: StageCosts) -> dict[Variant, _Written]:
        """Write a stage once for each variant of its micro-batches."""
        order = self._strategy.order
        rows = order.row_of[:, number]
        is_in_order = rows[Pass.FORWARD] >= 0
        first = int(np.where(is_in_order, rows[Pass.FORWARD], len(order.kind)).argmin())
        last = int(rows.max(axis=0).argmax())
        at_once = backward_at_once(order, number)
        members: dict[Variant, list[int]] = {}
        for k in np.flatnonzero(is_in_order).tolist():
            separate = frozenset(kind for kind in (Pass.RECOMPUTE, Pass.WEIGHTS) if rows[kind, k] >= 0)
            variant = Variant(k == first, k == last, separate, at_once=bool(at_once[k]))
            members.setdefault(variant, []).append(k)
        stage, places = self._stages[number], self._places[number]
        written = {variant: StageTasks(stage, costs, variant, places, self.layout) for variant in members}
        return {
            variant: _Written(tasks, np.array(members[variant]), *tasks.ends()) for variant, tasks in written.items()
        }

    def _copied(self, written: Mapping[Variant, _Written]) -> _Copies:
        """Copy what is written of a stage for all of its micro-batches."""
        count = self._strategy.micro_batches
        variants: list[Variant | None] = [None] * count
        offset = np.zeros(count, dtype=np.int64)
        for variant, (tasks, members, tails, heads) in written.items():
            for k in members.tolist():
                variants[k] = variant
            offset[members] = self._tasks.add_copies(tasks.columns(), (tails, heads), members, count)
        return _Copies({variant: each.tasks for variant, each in written.items()}, variants, offset)

    def _edge(self, tails: I64, heads: I64) -> None:
        self._tasks.edges(tails.ravel(), heads.ravel())

    # ── Between stages ──────────────────────────────────────────────────────────────────────────────────────

    def _send(self) -> None:
        """Write the transfers of all tensors between stages, and of their gradients."""
        links = {link: None for stage in self._stages for several in stage.sends.values() for link in several}
        for link in links:
            self._transfer(link, False, link.source, link.target)
            if link.gradient:
                self._transfer(link, True, link.target, link.source)

    def _transfer(self, link: Link, gradient: bool, source: int, target: int) -> None:
        """Write one tensor's transfers in one direction, for all micro-batches."""
        count, sends = self._strategy.micro_batches, self.layout.sends(link, gradient)
        away = ~sends.local
        n = int(away.sum())
        members = np.flatnonzero([variant is not None for variant in self._copies[source].variant])
        columns = {"src": sends.src[away], "dst": sends.dst[away], **sends.columns}
        some = len(members)
        tasks = self._tasks.add(
            n * some,
            kind=TaskKind.TRANSFER,
            size=shares_of(sends.nbytes[away], members[:, None], count).ravel(),
            op=link.op if gradient else self._reader(link),
            micro_batch=np.repeat(members, n),
            **{name: np.tile(column, some) for name, column in columns.items()},
        ).reshape(some, n)
        for row, k in enumerate(members.tolist()):
            leaves = self._ends_of(source, k, "leaves", (link, gradient))
            waits = self._ends_of(target, k, "arrives", (link, gradient))
            for end in leaves:
                self._edge(end[sends.source[away]], tasks[row])
            for wait in waits:
                self._edge(tasks[row], wait[sends.target[away]])
                for end in leaves if sends.local.any() else ():
                    self._edge(end[sends.source[sends.local]], wait[sends.target[sends.local]])
            if self._strategy.blocks and n:
                self._block(tasks[row], sends.source[away], source, k, Pass.BACKWARD if gradient else Pass.FORWARD)
        kind = Pass.BACKWARD if gradient else Pass.FORWARD
        in_turn = np.argsort(self._strategy.order.row_of[kind, source, members])
        self._edge(tasks[in_turn[:-1]], tasks[in_turn[1:]])

    def _block(self, tasks: I64, senders: I64, stage: int, micro_batch: int, kind: Pass) -> None:
        """Let the pass behind one on its rank wait for what is sent after that one; ``senders`` are places."""
        order = self._strategy.order
        row = int(order.row_of[kind, stage, micro_batch]) + 1
        if row in order.rank_ptr:
            return
        kind, chunk, micro_batch = (int(column[row]) for column in (order.kind, order.chunk, order.micro_batch))  # type: ignore[assignment]
        part = self._copies[chunk].of(micro_batch).parts.get(kind)
        if part is None or part.computed is None:
            return
        place = np.empty_like(self._places[stage].order)
        place[self._places[stage].order] = self._places[chunk].order
        self._edge(tasks, part.computed[0][place[senders]] + self._copies[chunk].offset[micro_batch])

    def _reader(self, link: Link) -> int:
        """Return the first operator that reads what a link brings."""
        stage = self._stages[link.target]
        index = next(op for op, each in stage.receives.items() if each == link)
        readers = stage.graph.edges[stage.graph.edges[:, 0] == index, 2]
        return stage.operator[int(readers.min())]

    def _ends_of(self, stage: int, micro_batch: int, name: str, key: object) -> list[I64]:
        copies = self._copies[stage]
        tasks = copies.of(micro_batch)
        return [end + copies.offset[micro_batch] for end in getattr(tasks, name).get(key, ())]

    # ── The order of passes ─────────────────────────────────────────────────────────────────────────────────

    def _order_ranks(self) -> None:
        """Let every pass follow the one before it on its rank, stream by stream."""
        order = self._strategy.order
        last = [each.last for each in self._copies]
        pairs = paired_rows(order) if self._strategy.pairs and not self._in_twos else None
        for rank in range(order.n_ranks):
            rows = slice(order.rank_ptr[rank], order.rank_ptr[rank + 1])
            kind, chunk, micro_batch = (
                column[rows].tolist() for column in (order.kind, order.chunk, order.micro_batch)
            )
            chunks = sorted(set(chunk))
            last_parts = [(each, c, last[c]) for each in (SUMS, END) for c in chunks]
            passes = [*zip(kind, chunk, micro_batch, strict=True)]
            if not self._strategy.pairs:
                self._order_rank([*passes, *last_parts])
                continue
            together = self._in_twos_of(passes)
            if pairs is not None:
                first_row = int(order.rank_ptr[rank])
                together = [[passes[row - first_row] for row in rows_of_item] for rows_of_item in pairs[rank]]
            self._order_rank_of_pairs([*together, *([each] for each in last_parts)])

    def _order_rank(self, passes: Sequence[_Pass]) -> None:
        streams: dict[bytes, list[tuple[tuple[I64, I64], int, _Pass]]] = {}
        ends: dict[tuple[int, int, Variant | None], list[tuple[bytes, tuple[I64, I64]]]] = {}
        for kind, chunk, micro_batch in passes:
            copies = self._copies[chunk]
            key = kind, chunk, copies.variant[micro_batch]
            if key not in ends:
                ends[key] = list(self._streams_of(kind, chunk, copies.of(micro_batch)))
            for stream, first_and_last in ends[key]:
                row = first_and_last, int(copies.offset[micro_batch]), (kind, chunk, micro_batch)
                streams.setdefault(stream, []).append(row)
        for rows in streams.values():
            offsets = np.array([offset for _, offset, _ in rows])[:, None]
            first, last = (np.stack([each[k] for each, _, _ in rows]) + offsets for k in (0, 1))
            self._edge(last[:-1], first[1:])

    def _in_twos_of(self, passes: Sequence[_Pass]) -> list[list[_Pass]]:
        """Return passes of two micro-batches that need not wait for each other together, all others by themselves."""
        together: list[list[_Pass]] = []
        for each in passes:
            if together and len(together[-1]) == 1 and self._at_once(together[-1][0], each):
                together[-1].append(each)
            else:
                together.append([each])
        return together

    def _at_once(self, before: _Pass, after: _Pass) -> bool:
        """Whether a pass of two micro-batches need not wait for the one before it.

        All but what a whole chunk waits for: its first pass, which gathers weights that are kept, and its last one,
        which sums gradients of all.
        """
        ends = {
            (chunk, each) for chunk in {before[1]} for each in (self._copies[chunk].first, self._copies[chunk].last)
        }
        return before[:2] == after[:2] and before[2] // 2 == after[2] // 2 and not {before[1:], after[1:]} & ends

    def _order_rank_of_pairs(self, items: Sequence[Sequence[_Pass]]) -> None:
        """Let passes follow each other, and of two that are a pair the parts that are computed.

        What the two of a pair exchange shares the network; what others exchange waits for both.
        """
        computed: list[tuple[I64, I64]] = []
        exchanged: dict[bytes, list[tuple[I64, I64]]] = {}
        for item in items:
            of_passes, streams = [], dict[bytes, list[tuple[I64, I64]]]()
            for kind, chunk, micro_batch in item:
                tasks, offset = self._copies[chunk].of(micro_batch), self._copies[chunk].offset[micro_batch]
                part, place = tasks.parts.get(kind), self._places[chunk].order
                if part is not None:
                    parts = part.parts if self._in_twos else part.between_experts()
                    of_passes.append([(first[place] + offset, last[place] + offset) for first, last in parts])
                for key, (first, last) in self._streams_of(kind, chunk, tasks):
                    if key:
                        streams.setdefault(key, []).append((first + offset, last + offset))
            if len(of_passes) == 2 and (self._in_twos or item[0][0] == Pass.BACKWARD):
                of_passes.reverse()  # what leads is behind
            computed += in_turns(*of_passes) if len(of_passes) == 2 else [each for row in of_passes for each in row]
            for key, ends in streams.items():
                for (_, last), (first, _) in product(exchanged.get(key, ()), ends):
                    self._edge(last, first)
                exchanged[key] = ends
        for (_, last), (first, _) in pairwise(computed):
            self._edge(last, first)

    def _streams_of(self, kind: int, chunk: int, tasks: StageTasks) -> Iterator[tuple[bytes, tuple[I64, I64]]]:
        """Yield the streams that a pass uses, with its first and last tasks there, by device or by group."""
        part, places = tasks.parts.get(kind), self._places[chunk]
        if part is None:
            return
        if part.computed is not None:
            yield b"", (part.computed[0][places.order], part.computed[1][places.order])
        for axes, (first, last) in part.exchanged.items():
            key, numbers = places.streams(axes)
            yield key, (first[numbers], last[numbers])

    # ── Weights that stages share ───────────────────────────────────────────────────────────────────────────

    def _sum_tied(self) -> list[int]:
        """Sum the gradients of weights that several stages use, once those of each are summed; return the sums."""
        sums: list[int] = []
        for tied in self.layout.tied_sums():
            after, before = [], []
            for member, place in zip(tied.group.members, tied.numbers, strict=True):
                copies = self._copies[member.stage]
                last = copies.last
                tasks = copies.of(last)
                before += [int(end[place] + copies.offset[last]) for end in tasks.summed[member.op, member.argument]]
                waiting = tasks.waiting.get((member.op, member.argument), ())
                after += [int(task[place] + copies.offset[last]) for task in waiting]
            (task,) = self._tasks.add(1, **_ALL_REDUCE, size=tied.group.nbytes, op=tied.group.owner, **tied.columns)
            self._edge(np.array(before), np.full(len(before), task))
            self._edge(np.full(len(after), task), np.array(after, dtype=np.int64))
            sums.append(int(task))
        return sums

    def _sum_copies_of_model(self) -> list[int]:
        """Sum the gradients of stages that are the same in several copies of the model; return the sums.

        Each device sums what it has, after its own sums, with the devices at its place of the other copies.  A weight
        that stages share is in the sums of its owner's stages, behind whose passes on a rank those of its users are.
        """
        strategy, sums = self._strategy, []
        for several, devices in copy_groups(strategy):
            summed = self.layout.copy_sums(several, devices)
            op, nbytes = int(strategy.stages[several[0]].operators[0]), summed_bytes(self._stages[several[0]])
            tasks = self._tasks.add(summed.n_sums, **_ALL_REDUCE, size=nbytes, op=op, **summed.columns)
            for number, of_place in zip(several, summed.numbers, strict=True):
                before, after = self._copies[number].around_sums()
                for end in before:
                    self._edge(end, tasks[of_place])
                for first in after:
                    self._edge(tasks[of_place], first)
            sums += tasks.tolist()
        return sums

    def _clip(self, sums: Sequence[int]) -> None:
        """Let updates, and gathers of weights, wait for the norm of all gradients, which all devices add up."""
        (norm,) = self._tasks.add(1, **_ALL_REDUCE, size=4, **self.layout.everyone())
        self._edge(np.array(sums, dtype=np.int64), np.full(len(sums), norm))
        for copies in self._copies:
            tails, heads = (np.unique(np.concatenate([*each, np.zeros(0, np.int64)])) for each in copies.around_sums())
            self._edge(tails, np.full(len(tails), norm))
            self._edge(np.full(len(heads), norm), heads)


def _check_fits(stages: Sequence[Mapping[Variant, _Written]]) -> None:
    """Refuse an iteration whose tasks need more memory than there is.

    Raises:
        TopoplanError: they do.
    """
    several = [each for stage in stages for each in stage.values()]
    tasks = sum(each.tasks.n_tasks * len(each.members) for each in several)
    edges = sum(len(each.tails) * len(each.members) for each in several)
    advice = "use fewer micro-batches or devices, or a network of equal racks"
    check_memory(f"plan: {tasks:,} tasks that differ", _TASK * tasks + _EDGE * edges, advice)


def _streams(part: Part | None) -> list[tuple[I64, I64]]:
    """Return the first and last tasks of each stream of a pass."""
    if part is None:
        return []
    return [*([] if part.computed is None else [part.computed]), *part.exchanged.values()]
