"""Task graphs of programs that all devices run, whose devices have one communication stream.

The stages of such a strategy (`topoplan.StagedStrategy.one_stream`) are parts of one program.  They are written as one
stage, by the writer of stages, pass by pass in the order of passes: so each pass follows the one before it on the
compute stream, and on the stream of all collectives.

    forward    computes       C1 part 1 | C2 part 1 | C1 part 2 | ...
               communicates   X1 part 1 | X2 part 1 | X1 part 2 | ...
    backward   the same from the end, micro-batches in the opposite order

A part begins with all reshardings that it is the first to need.  Where the whole batch goes through at once, each
operator is a part.  Parameters are gathered once, with the first micro-batch, and their gradients follow the backward
passes of all micro-batches, which take turns in every part (HiDup, Zhang et al., SoCC 2022, section 3.3; it also lets
the streams wait for each other between parts, which nothing here needs).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from topoplan.model.graph import OperatorGraph
from topoplan.model.pass_order import Pass, PassOrder
from topoplan.model.staged import Stage, StagedStrategy
from topoplan_engine.checkpoints import repeated_operators
from topoplan_engine.interrupt import check_size
from topoplan_engine.lowering.gather_units import parts_of
from topoplan_engine.lowering.places import Layout
from topoplan_engine.lowering.stage_costs import StageCosts
from topoplan_engine.lowering.stage_tasks import Shared, StageTasks, Variant
from topoplan_engine.lowering.task_columns import shares_of
from topoplan_engine.program_strategies import program_of
from topoplan_engine.sharding.programs import Reshard, reshards_of
from topoplan_engine.sharding.stage_graphs import StageGraph
from topoplan_engine.training import gradient_flow, tensors_read

__all__ = ["in_one_stage", "program_columns", "program_graph"]


def in_one_stage(strategy: StagedStrategy) -> StagedStrategy:
    """Return the strategy with all parts of its program as one stage, on which micro-batches follow each other."""
    program, count = program_of(strategy), strategy.micro_batches
    stage = Stage(operators=np.arange(len(strategy.placements)), mesh=strategy.stages[0].mesh, body=program)
    numbers, kinds = np.arange(count), [Pass.FORWARD, Pass.BACKWARD]
    order = PassOrder(
        name=strategy.order.name,
        rank_ptr=[0, 2 * count],
        kind=np.repeat(kinds, count),
        chunk=np.zeros(2 * count),
        micro_batch=np.concatenate([numbers, numbers[::-1]]),
    )
    return attrs.evolve(strategy, stages=(stage,), order=order)


def program_graph(strategy: StagedStrategy, graph: OperatorGraph) -> StageGraph:
    """Return the one stage of `in_one_stage` as a graph."""
    flow, repeated = gradient_flow(graph), repeated_operators(graph)
    stage, numbers = strategy.stages[0], tuple(range(len(graph.operators)))
    backward = tuple(runs or repeats for runs, repeats in zip(flow.backward, repeated, strict=True))
    read = [tensors_read(op, (*flow.inputs[k], *flow.weights[k]))[0] for k, op in enumerate(graph.operators)]
    return StageGraph(
        stage=stage,
        graph=graph,
        program=stage.program,
        operator=numbers,
        position=numbers,
        receives={},
        sends={},
        backward=backward,
        arguments_read=tuple(
            frozenset(each) if runs else frozenset() for each, runs in zip(read, backward, strict=True)
        ),
        reshards=reshards_of(stage.program, graph),
        copies=frozenset(),
    )


def program_columns(strategy: StagedStrategy, stage: StageGraph, costs: StageCosts, layout: Layout) -> dict[str, Any]:
    """Return the columns of a task graph but those of groups.

    Args:
        strategy: its order of passes.
        stage: its program (`program_graph`).
        costs: of all operators.
        layout: the places that tasks are written for.
    """
    order, parts = strategy.order, _Parts(stage, parts_of(strategy).tolist())
    places = layout.places(0)
    shared = Shared.of(stage, places, layout, parts.part_of, turns=strategy.micro_batches)
    writer, sums = shared.writer, shared.sums
    first, last = int(order.micro_batch[0]), int(order.micro_batch[-1])
    tasks = []
    for number in range(strategy.micro_batches):
        writer.micro_batch = number
        variant = Variant(number == first, number == last, frozenset())
        tasks.append(StageTasks(stage, costs, variant, places, layout, shared))
    whole = strategy.whole_batch
    for kind, chunk, number in zip(order.kind.tolist(), order.chunk.tolist(), order.micro_batch.tolist(), strict=True):
        writer.micro_batch = number
        numbers: Sequence[int] = range(len(parts.operators)) if whole else [chunk]
        for part in numbers if kind == Pass.FORWARD else reversed(numbers):
            write = tasks[number].forward if kind == Pass.FORWARD else tasks[number].backward
            write(parts.operators[part], parts.reshards[part])
            check_size(writer.n_tasks)  # messages between unlike places are many
    sums.send_rest()
    tasks[last].end(shared.computed[last])
    columns = {**tasks[0].columns(), **writer.successors()}
    divisor, scale, micro_batch = columns.pop("divisor"), columns.pop("scale"), columns["micro_batch"]
    columns["size"] = shares_of(columns["size"], micro_batch, strategy.micro_batches, divisor, scale)
    if strategy.micro_batches == 1:
        columns["micro_batch"] = None
    return columns


class _Parts:
    """Operators and reshardings of the parts of a program.

    Attributes:
        part_of: operator -> part.
        operators: part -> its operators.
        reshards: part -> those with which it begins.
    """

    def __init__(self, stage: StageGraph, part_of: Sequence[int]) -> None:
        self.part_of = part_of
        self.operators: list[list[int]] = [[] for _ in range(max(part_of) + 1)]
        self.reshards: list[list[Reshard]] = [[] for _ in self.operators]
        for op, part in enumerate(part_of):
            self.operators[part].append(op)
        for reshard in stage.reshards:
            self.reshards[part_of[reshard.users[0]]].append(reshard)
