"""Lowering of pipelines of placed operators: micro-batches that pass stages in an order of passes.

The tasks of one micro-batch are laid out once (`_micro_batch`): the passes of every part, then the messages between
parts on different devices.  All micro-batches are copies of that, one after the other; all-reduces come last and wait
for the last micro-batch.  Every compute task leads to the one that its device runs next.  So edges between parts on
one device would say nothing more, and none is made.  A message is sent as soon as its tensor is there, whatever was
sent before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.pass_order import Pass, PassOrder
from topoplan.model.problem import Demand
from topoplan.model.recording import MemoryUse
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.model.timeline import Timeline
from topoplan_engine.csr import indptr
from topoplan_engine.interrupt import check_size
from topoplan_engine.lowering.fragment_cache import FragmentCache
from topoplan_engine.lowering.fragments import OperatorFragment
from topoplan_engine.lowering.lower import StrategyLowering
from topoplan_engine.lowering.memory import Peak, TensorBytes, placed_activations, placed_memory_use, scheduled_peak
from topoplan_engine.lowering.memory_levels import Activations
from topoplan_engine.lowering.order import Steps, steps_under, tasks_in_turn
from topoplan_engine.lowering.parts import PartTable
from topoplan_engine.lowering.passes import BackwardPasses
from topoplan_engine.lowering.placements import hosts_demand, traffic_between
from topoplan_engine.lowering.sent_once import along_edges, sent_once
from topoplan_engine.lowering.task_columns import TaskColumns, shares_of
from topoplan_engine.lowering.tied_groups import with_copies, with_tied_groups

__all__ = ["PipelineLowering", "scheduled_taskgraph"]

_KIND = np.array([TaskKind.FORWARD, TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.BACKWARD], dtype=np.int8)


class _MicroBatch(NamedTuple):
    """Tasks of one micro-batch.

    Attributes:
        columns: of a `TaskGraph`, without sizes.
        size: (tasks,) bytes in the whole batch.
        tails, heads: (edges,) tasks at both ends of messages.
    """

    columns: Mapping[str, np.ndarray]
    size: I64
    tails: I64
    heads: I64


def _n_tasks(table: PartTable, strategy: StagedStrategy) -> int:
    """Return how many passes and transfers the parts of a table have in all micro-batches."""
    return strategy.micro_batches * 2 * (len(table.device) + len(table.src))


class PipelineLowering(StrategyLowering):
    """Lowers pipelines; see `topoplan_engine.lowering.lower.StrategyLowering`.

    Where an order leaves nothing to order, `topoplan_engine.lowering.placements` lowers strategies.
    """

    def __init__(self, fragments: FragmentCache) -> None:
        self._fragments = fragments
        self._tensor_bytes = TensorBytes(fragments.graph)

    def lower(self, strategy: StagedStrategy) -> TaskGraph:
        """Return the task graph of one iteration."""
        cache = self._fragments
        forward, backward, gradient = cache.micro_batch_seconds(strategy.placements, strategy.micro_batches)
        table, gradients = self._tables(strategy)
        check_size(_n_tasks(table, strategy))
        return scheduled_taskgraph(
            table._replace(forward=forward, backward=backward),
            strategy.order,
            strategy.stage_of,
            gradient,
            cache.op_names,
            cache.cluster.n_devices,
            cache.passes,
            gradients,
        )

    def n_tasks(self, strategy: StagedStrategy) -> int:
        """Return about how many tasks `lower` makes: both passes of each micro-batch, and their transfers."""
        return _n_tasks(self._tables(strategy)[0], strategy)

    def memory(self, strategy: StagedStrategy) -> F64:
        """Return the (D,) peak of the bytes that each device holds."""
        return self._peak(strategy).total

    def _peak(self, strategy: StagedStrategy) -> Peak:
        """Return the peak of the bytes that each device holds."""
        fragments = self._operators(strategy)
        return scheduled_peak(
            strategy.order,
            self._tensor_bytes.of_parts(strategy.placements, fragments, strategy.stage_of),
            self._tensor_bytes.order,
            indptr([len(fragment.devices) for fragment in fragments], np.int32),
            np.repeat(strategy.stage_of, [len(fragment.devices) for fragment in fragments]),
            np.concatenate([fragment.devices for fragment in fragments]),
            np.concatenate([fragment.weight_gradient for fragment in fragments]),
            self._fragments.cluster.n_devices,
        )

    def memory_use(self, strategy: StagedStrategy) -> MemoryUse:
        """Return the same bytes by their use, rounded to whole bytes."""
        return placed_memory_use(strategy, self._operators(strategy), self._tensor_bytes, self._peak(strategy))

    def _operators(self, strategy: StagedStrategy) -> list[OperatorFragment]:
        """Return the fragments of all operators, with copies of weights that stages share."""
        fragments = self._fragments.operators(strategy.placements)
        return with_copies(self._fragments.graph, strategy.placements, fragments)

    def activations(self, strategy: StagedStrategy, taskgraph: TaskGraph, timeline: Timeline) -> Activations:
        """Return the bytes of activations over time."""
        use, operators = self.memory_use(strategy), self._operators(strategy)
        return placed_activations(taskgraph, timeline, strategy, use, operators, self._fragments)

    def demand(self, strategy: StagedStrategy) -> Demand:
        """Return what ``strategy`` asks of the network, host by host."""
        cluster, stage = self._fragments.cluster, strategy.stage_of
        table, gradients = self._tables(strategy)
        devices, ends = _ends_of_pairs(table)
        forward = backward = traffic_between(cluster, devices, table.size)
        if gradients is not None:
            backward = traffic_between(cluster, _ends_of_pairs(gradients)[0], gradients.size)
        # Messages inside stages that recompute are sent again.
        recompute = np.array(strategy.recomputes or (False,) * strategy.n_stages)
        resent = recompute[stage[ends[1]]] & (stage[ends[0]] == stage[ends[1]])
        repeated = traffic_between(cluster, devices[:, resent], table.size[resent])
        members = zip(np.split(table.group_devices, table.device_ptr[1:-1]), table.group_bytes.tolist(), strict=True)
        groups = ((np.unique(cluster.device_host[devices]), nbytes) for devices, nbytes in members)
        return hosts_demand(groups if len(table.group_bytes) else (), forward, backward, repeated)

    def _tables(self, strategy: StagedStrategy) -> tuple[PartTable, PartTable | None]:
        """Return the parts with one row for each message, and with those whose gradients go back, unless all do."""
        passes = self._fragments.passes
        whole = with_tied_groups(self._fragments.part_table(strategy.placements), self._fragments, strategy.placements)
        stage = strategy.stage_of[whole.op]
        table = sent_once(whole, stage, self._fragments, strategy.placements)
        if passes.everything:
            return table, None
        return table, sent_once(along_edges(whole, passes.edges), stage, self._fragments, strategy.placements)


def scheduled_taskgraph(
    table: PartTable,
    order: PassOrder,
    stage_of: I32,
    weight_gradient: F64,
    op_names: tuple[str, ...],
    n_devices: int,
    passes: BackwardPasses | None = None,
    gradients: PartTable | None = None,
) -> TaskGraph:
    """Return the task graph of one iteration.

    Args:
        table: the strategy's parts, with the seconds of one micro-batch; its all-reduces and pairs, with the bytes of
            the batch.
        order: of the passes of its stages.
        stage_of: (n_ops,) stage of every operator.
        weight_gradient: (parts,) seconds of ``table.backward`` that gradients of weights take.
        op_names, n_devices: of the task graph.
        passes: what runs backward; None: everything.
        gradients: the same parts, with the pairs along which gradients go back; None: all, or as ``passes`` says.
    """
    count, stage = order.n_micro_batches, stage_of[table.op]
    partial = passes is not None and not passes.everything
    steps = steps_under(order, stage, weight_gradient, passes.operators[table.op] if passes and partial else None)
    if gradients is None:
        gradients = along_edges(table, passes.edges) if passes and partial else table
    batch = _micro_batch(table, gradients, steps, stage, weight_gradient)
    n_tasks, groups = len(batch.columns["kind"]), len(table.group_bytes)
    numbers, columns = np.arange(count)[:, None], {name: np.tile(each, count) for name, each in batch.columns.items()}
    size, number_of_task = shares_of(batch.size, numbers, count).ravel(), np.repeat(numbers, n_tasks)
    tasks = TaskColumns()
    tasks.add(count * n_tasks, **columns, size=size, micro_batch=number_of_task)
    reduces = tasks.add(
        groups,
        kind=TaskKind.COLLECTIVE,
        seconds=table.group_seconds,
        size=table.group_bytes,
        group=np.arange(groups),
        op=table.group_op,
        collective=Collective.ALL_REDUCE,
    )
    # Of each task's successors the next one of its device comes first, then messages, then all-reduces.
    tasks.edges(*tasks_in_turn(order, steps, stage, table.device, n_tasks))
    offset = n_tasks * numbers
    tasks.edges((batch.tails + offset).ravel(), (batch.heads + offset).ravel())
    # The last backward task of each part, for the gradients of its weights.
    last = np.where(steps.task[:, Pass.WEIGHTS] >= 0, steps.task[:, Pass.WEIGHTS], steps.task[:, Pass.BACKWARD])
    members = np.diff(table.part_ptr)
    reduced = last[table.group_parts + np.repeat(table.op_base[table.group_op], members)]
    tasks.edges(reduced + offset[-1], np.repeat(reduces, members))
    return TaskGraph(
        **tasks.columns(),
        **tasks.successors(),
        group_ptr=table.device_ptr,
        group_members=table.group_devices,
        op_names=op_names,
        n_devices=n_devices,
    )


def _messages(table: PartTable) -> tuple[I32, I32, I64, I32]:
    """(n,) of the pairs on different devices: both parts, bytes, and the consumer."""
    pairs, remote = np.diff(table.edge_ptr), ~table.local
    source = (table.src + np.repeat(table.op_base[table.edge_src_op], pairs))[remote]
    target = (table.dst + np.repeat(table.op_base[table.edge_dst_op], pairs))[remote]
    return source, target, table.size[remote], np.repeat(table.edge_dst_op, pairs)[remote]


def _ends_of_pairs(table: PartTable) -> tuple[I32, I32]:
    """(2, pairs) the devices at both ends of every pair, and (2, pairs) the operators."""
    pairs = np.diff(table.edge_ptr)
    operators = np.stack([np.repeat(table.edge_src_op, pairs), np.repeat(table.edge_dst_op, pairs)])
    devices: I32 = table.device[table.op_base[operators] + np.stack([table.src, table.dst])]
    return devices, operators


def _micro_batch(table: PartTable, gradients: PartTable, steps: Steps, stage: I32, weight_gradient: F64) -> _MicroBatch:
    """Lay out one of the micro-batches; of ``gradients`` the pairs count, which send them back."""
    part, kind = steps.part, steps.kind
    split = steps.task[:, Pass.WEIGHTS] >= 0
    gradient = np.where(split, weight_gradient, 0.0)
    seconds = np.stack([table.forward, table.forward, table.backward - gradient, gradient], axis=1)

    source, target, size, op = _messages(table)
    maker, reader, size_back, op_back = _messages(gradients)
    # What a stage gets from another one is an input, which it keeps; the rest is sent again.
    repeated = (steps.task[target, Pass.RECOMPUTE] >= 0) & (stage[source] == stage[target])
    forward, recompute, backward = (steps.task[:, each] for each in (Pass.FORWARD, Pass.RECOMPUTE, Pass.BACKWARD))
    sender = np.concatenate([forward[source], recompute[source[repeated]], backward[reader]])
    receiver = np.concatenate([forward[target], recompute[target[repeated]], backward[maker]])
    passes, messages = len(part), len(sender)
    message, none = np.arange(passes, passes + messages), np.full(passes, -1)
    return _MicroBatch(
        columns={
            "kind": np.append(_KIND[kind], np.full(messages, TaskKind.TRANSFER)),
            "device": np.append(table.device[part], np.full(messages, -1)),
            "seconds": np.append(seconds[part, kind], np.zeros(messages)),
            "src": np.append(none, table.device[part[sender]]),
            "dst": np.append(none, table.device[part[receiver]]),
            "op": np.concatenate([table.op[part], op, op[repeated], op_back]),
        },
        size=np.concatenate([np.zeros(passes, np.int64), size, size[repeated], size_back]),
        tails=np.append(sender, message),
        heads=np.append(message, receiver),
    )
