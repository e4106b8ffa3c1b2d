"""Exporter ``torch-schedule``: the order of passes of a pipeline, as torch.distributed.pipelining reads it.

One row for each group of devices, one cell for each step: ``{stage}{F|B|I|W}{micro-batch}`` is a forward pass, a
backward pass, or its halves for inputs and for weights; an empty cell is idle.  Cells of one column run at the same
time if all passes take equally long, so a pass is always right of those that it waits for.  Torch adds sends and
receives (``_PipelineScheduleRuntime``, format ``compute_only``).
"""

from __future__ import annotations

import numpy as np

from topoplan import PassOrder
from topoplan.model.pass_order import Pass
from topoplan_engine.pass_orders import named_order
from topoplan_exporter_launch.grid import Grid, grid_of
from topoplan_exporter_launch.targets import Target
from topoplan_trainer_plans import PlanLike

__all__ = ["actions_of", "schedule_of", "table_of", "write"]

TARGET = Target(
    "torch-schedule",
    "torch.distributed.pipelining",
    "pipelines of stages on equal meshes, without recomputation of whole stages",
)
#: An action: stage, letter, micro-batch.
Action = tuple[int, str, int]


def write(plan: PlanLike) -> bytes:
    """Write the order of passes; equal plans give equal bytes.

    A plan without a pipeline has one stage.

    Raises:
        TopoplanError: torch's schedules cannot say the plan.
    """
    graph, _ = TARGET.searched(plan)
    grid = grid_of(plan, TARGET)
    if grid.recompute != "none" and grid.program is None:
        raise TARGET.refusal(graph.operators[0], "is in stage 0, which recomputes its forward pass")
    rows = [",".join(cells) for cells in table_of(grid)]
    return ("\n".join(rows) + "\n").encode()


def schedule_of(order: PassOrder) -> str:
    """Return the name of a pass order by what it does: 1f1b, gpipe, interleaved, or the name that it has.

    One micro-batch is 1f1b.  Recomputations are left out: trainers run them with the backward pass.

    >>> from topoplan_engine.pass_orders import alternating_order
    >>> schedule_of(alternating_order("mine", [1, 0], 4))
    '1f1b'
    """
    ranks, chunks, count = order.n_ranks, order.n_chunks // order.n_ranks, order.n_micro_batches
    usual: tuple[str, ...] = ("1f1b", "gpipe") if chunks == 1 else ()
    if chunks > 1 and count % ranks == 0:
        usual = ("interleaved",)
    is_written = order.kind != Pass.RECOMPUTE
    passes = np.stack([order.kind, order.chunk, order.micro_batch])[:, is_written]
    for name in usual:
        same = named_order(name, ranks, count, chunks)
        if np.array_equal(passes, np.stack([same.kind, same.chunk, same.micro_batch])):
            return name
    return order.name


def actions_of(grid: Grid) -> list[list[Action]]:
    """Return what each rank does, in order; what runs again runs with its backward pass."""
    order = grid.order
    split = (order.row_of[Pass.WEIGHTS] >= 0)[order.chunk, order.micro_batch].tolist()
    rank = np.repeat(np.arange(order.n_ranks), np.diff(order.rank_ptr)).tolist()
    rows: list[list[Action]] = [[] for _ in range(order.n_ranks)]
    columns = (rank, order.kind.tolist(), order.chunk.tolist(), order.micro_batch.tolist(), split)
    for row, kind, stage, micro, by_itself in zip(*columns, strict=True):
        letter = {Pass.FORWARD: "F", Pass.BACKWARD: "I" if by_itself else "B", Pass.WEIGHTS: "W"}.get(Pass(kind))
        if letter:
            rows[row].append((stage, letter, micro))
    return rows


def table_of(grid: Grid) -> list[list[str]]:
    """Return the cells of every row, all rows equally long."""
    rows, last = actions_of(grid), grid.order.n_chunks - 1
    everything = {action for row in rows for action in row}
    columns: dict[Action, int] = {}  # action -> its column
    free, following = [0] * len(rows), [0] * len(rows)
    while any(number < len(row) for number, row in zip(following, rows, strict=True)):
        for position, row in enumerate(rows):
            while following[position] < len(row):
                action = row[following[position]]
                needs = _needs(action, last, everything)
                if any(need not in columns for need in needs):
                    break
                columns[action] = max([free[position], *(columns[need] + 1 for need in needs)])
                free[position] = columns[action] + 1
                following[position] += 1
    cells = [[""] * max(free) for _ in rows]
    for position, row in enumerate(rows):
        for action in row:
            stage, letter, micro = action
            cells[position][columns[action]] = f"{stage}{letter}{micro}"
    return cells


def _needs(action: Action, last: int, everything: set[Action]) -> list[Action]:
    """Return the actions that must end before one begins."""
    stage, letter, micro = action
    if letter == "F":
        return [(stage - 1, "F", micro)] if stage else []
    if letter == "W":
        return [(stage, "I", micro)]
    later = [each for each in ((stage + 1, "B", micro), (stage + 1, "I", micro)) if each in everything]
    return [(stage, "F", micro), *(later if stage < last else [])]
