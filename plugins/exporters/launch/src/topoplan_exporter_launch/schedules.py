"""Exporter ``torch-schedule``: the order of passes of a pipeline, as torch.distributed.pipelining reads it.

One row for each group of devices, one cell for each step: ``{stage}{F|B|I|W}{micro-batch}`` is a forward pass, a
backward pass, or its halves for inputs and for weights; an empty cell is idle.  Cells of one column run at the same
time if all passes take equally long, so a pass is always right of those that it waits for.  Torch adds sends and
receives (``_PipelineScheduleRuntime``, format ``compute_only``).
"""

from __future__ import annotations

from topoplan.model.pass_order import Pass
from topoplan.model.schedule import ScheduleKind
from topoplan_engine.lowering.order import blocks_of
from topoplan_exporter_launch.grid import Grid, grid_of
from topoplan_exporter_launch.targets import Target
from topoplan_trainer_plans import PlanLike

__all__ = ["actions_of", "table_of", "write"]

TARGET = Target(
    "torch-schedule", "torch.distributed.pipelining", "pipelines of equally replicated stages without recomputation"
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
    if grid.recompute:
        raise TARGET.refusal(graph.operators[0], "is in stage 0, which recomputes its forward pass")
    rows = [",".join(cells) for cells in table_of(grid)]
    return ("\n".join(rows) + "\n").encode()


def actions_of(grid: Grid) -> list[list[Action]]:
    """Return what each group of devices does, in order."""
    split = grid.kind is ScheduleKind.ZERO_BUBBLE
    letters = {Pass.FORWARD: "F", Pass.BACKWARD: "I" if split else "B", Pass.WEIGHTS: "W"}
    rows = []
    for position in range(grid.pipeline):
        blocks = blocks_of(grid.kind, grid.pipeline, grid.chunks, grid.micro_batches, position, (False,) * grid.chunks)
        columns = (blocks.kind.tolist(), blocks.chunk.tolist(), blocks.micro_batch.tolist())
        rows.append([(stage, letters[Pass(kind)], micro) for kind, stage, micro in zip(*columns, strict=True)])
    return rows


def table_of(grid: Grid) -> list[list[str]]:
    """Return the cells of every row, all rows equally long."""
    rows, last = actions_of(grid), grid.pipeline * grid.chunks - 1
    columns: dict[Action, int] = {}  # action -> its column
    free, following = [0] * len(rows), [0] * len(rows)
    while any(number < len(row) for number, row in zip(following, rows, strict=True)):
        for position, row in enumerate(rows):
            while following[position] < len(row):
                action = row[following[position]]
                needs = _needs(action, last)
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


def _needs(action: Action, last: int) -> list[Action]:
    """Return the actions that must end before one begins."""
    stage, letter, micro = action
    if letter == "F":
        return [(stage - 1, "F", micro)] if stage else []
    if letter == "W":
        return [(stage, "I", micro)]
    return [(stage, "F", micro), *([(stage + 1, letter, micro)] if stage < last else [])]
