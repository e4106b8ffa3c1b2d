"""Lowering of pipelines of placed operators: micro-batches that pass stages in an order of passes.

The tasks of one micro-batch are laid out once (`_micro_batch`): the passes of every part, then the messages between
parts on different devices.  All micro-batches are copies of that, one after the other; all-reduces come last and wait
for the last micro-batch.  Every compute task leads to the one that its device runs next.  So edges between parts on
one device would say nothing more, and none is made.  A message is sent as soon as its tensor is there, whatever was
sent before.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I32, I64, i64
from topoplan.model.pass_order import Pass, PassOrder
from topoplan.model.problem import Demand
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.csr import indptr
from topoplan_engine.interrupt import check_size
from topoplan_engine.lowering.fragments import OperatorFragment
from topoplan_engine.lowering.memory import Peak, scheduled_peak
from topoplan_engine.lowering.order import Steps, steps_under, tasks_in_turn
from topoplan_engine.lowering.parts import PartTable
from topoplan_engine.lowering.passes import BackwardPasses
from topoplan_engine.lowering.placements import PlacedLowering
from topoplan_engine.lowering.sent_once import along_edges, sent_once
from topoplan_engine.lowering.task_columns import TaskColumns
from topoplan_engine.lowering.tied_groups import with_copies, with_tied_groups
from topoplan_engine.network.demand import taskgraph_demand

__all__ = ["PipelineLowering", "scheduled_taskgraph"]

_KIND = np.array([TaskKind.FORWARD, TaskKind.FORWARD, TaskKind.BACKWARD, TaskKind.BACKWARD], dtype=np.int8)


def _n_tasks(table: PartTable, strategy: StagedStrategy) -> int:
    """Return how many passes and transfers the parts of a table have in all micro-batches."""
    return strategy.micro_batches * 2 * (len(table.device) + len(table.src))


class PipelineLowering(PlacedLowering):
    """Lowers pipelines; see `topoplan_engine.lowering.lower.StrategyLowering`.

    Where an order leaves nothing to order, `topoplan_engine.lowering.placements` lowers strategies.
    """

    def lower(self, strategy: StagedStrategy) -> TaskGraph:
        """Return the task graph of one iteration."""
        return self._scheduled(strategy)[0]

    def demand(self, strategy: StagedStrategy) -> Demand:
        """Return what ``strategy`` asks of the network, host by host."""
        taskgraph, forward = self._scheduled(strategy)
        return taskgraph_demand(taskgraph, self._fragments.cluster, forward)

    def _scheduled(self, strategy: StagedStrategy) -> tuple[TaskGraph, NDArray[np.bool_]]:
        """Return `scheduled_taskgraph` of a strategy."""
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

    def peak(self, strategy: StagedStrategy) -> Peak:
        """Return the peak of the bytes that each device holds."""
        fragments = self._operators(strategy)
        return scheduled_peak(
            strategy.order,
            self._tensor_bytes.of_parts(strategy.placements, fragments, strategy.stage_of),
            self._fragments.gradient_order,
            indptr([len(fragment.devices) for fragment in fragments], np.int32),
            np.repeat(strategy.stage_of, [len(fragment.devices) for fragment in fragments]),
            np.concatenate([fragment.devices for fragment in fragments]),
            np.concatenate([fragment.weight_gradient for fragment in fragments]),
            self._fragments.cluster.n_devices,
        )

    def _operators(self, strategy: StagedStrategy) -> list[OperatorFragment]:
        """Return the fragments of all operators, with copies of weights that stages share."""
        return with_copies(self._fragments.graph, strategy.placements, super()._operators(strategy))

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
) -> tuple[TaskGraph, NDArray[np.bool_]]:
    """Return the task graph of one iteration, and (T,) which tasks are messages of forward passes.

    Messages that passes send again are none of these.

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
    groups, tasks, last_batch = len(table.group_bytes), TaskColumns(), (count - 1) * batch.n_tasks
    # Of each task's successors the next one of its device comes first, then messages, then all-reduces.
    tasks.edges(*tasks_in_turn(order, steps, stage, table.device, batch.n_tasks))
    tasks.add_copies(batch.columns(divisor=1, scale=1.0, is_first=False), batch.ends(), np.arange(count), count)
    reduces = tasks.add(
        groups,
        kind=TaskKind.COLLECTIVE,
        seconds=table.group_seconds,
        size=table.group_bytes,
        group=np.arange(groups),
        op=table.group_op,
        collective=Collective.ALL_REDUCE,
    )
    # The last backward task of each part, for the gradients of its weights.
    last = np.where(steps.task[:, Pass.WEIGHTS] >= 0, steps.task[:, Pass.WEIGHTS], steps.task[:, Pass.BACKWARD])
    members = np.diff(table.part_ptr)
    reduced = last[table.group_parts + np.repeat(table.op_base[table.group_op], members)]
    tasks.edges(reduced + last_batch, np.repeat(reduces, members))
    columns = tasks.columns(is_first=False)
    is_first = columns.pop("is_first")
    taskgraph = TaskGraph(
        **columns,
        **tasks.successors(),
        group_ptr=table.device_ptr,
        group_members=table.group_devices,
        op_names=op_names,
        n_devices=n_devices,
    )
    return taskgraph, is_first


def _messages(table: PartTable) -> tuple[I32, I32, I64, I32]:
    """(n,) of the pairs on different devices: both parts, bytes, and the consumer."""
    pairs, remote = np.diff(table.edge_ptr), ~table.local
    source = (table.src + np.repeat(table.op_base[table.edge_src_op], pairs))[remote]
    target = (table.dst + np.repeat(table.op_base[table.edge_dst_op], pairs))[remote]
    return source, target, table.size[remote], np.repeat(table.edge_dst_op, pairs)[remote]


def _micro_batch(table: PartTable, gradients: PartTable, steps: Steps, stage: I32, weight_gradient: F64) -> TaskColumns:
    """Write one of the micro-batches; of ``gradients`` the pairs count, which send them back."""
    part, kind, batch = steps.part, steps.kind, TaskColumns()
    split = steps.task[:, Pass.WEIGHTS] >= 0
    gradient = np.where(split, weight_gradient, 0.0)
    seconds = np.stack([table.forward, table.forward, table.backward - gradient, gradient], axis=1)[part, kind]
    device = table.device[part]
    batch.add(len(part), kind=_KIND[kind], device=device, seconds=seconds, op=table.op[part], micro_batch=0)

    def send(sender: I64, receiver: I64, **columns: Any) -> None:
        ends = {"src": device[sender], "dst": device[receiver]}
        messages = batch.add(len(sender), kind=TaskKind.TRANSFER, micro_batch=0, **ends, **columns)
        batch.edges(sender, messages)
        batch.edges(messages, receiver)

    source, target, size, op = _messages(table)
    maker, reader, size_back, op_back = _messages(gradients)
    # What a stage gets from another one is an input, which it keeps; the rest is sent again.
    repeated = (steps.task[target, Pass.RECOMPUTE] >= 0) & (stage[source] == stage[target])
    forward, recompute, backward = i64(steps.task[:, : Pass.WEIGHTS]).T
    send(forward[source], forward[target], size=size, op=op, is_first=True)
    send(recompute[source[repeated]], recompute[target[repeated]], size=size[repeated], op=op[repeated])
    send(backward[reader], backward[maker], size=size_back, op=op_back)
    return batch
