"""Exporter ``deepspeed``: the JSON configuration of DeepSpeed.

Keys are those of DeepSpeed 0.19.8: docs/_pages/config-json.md, deepspeed/module_inject/autotp_config.py.
Tensor parallelism (AutoTP) is one pattern for each parameter name; parameter names are operator names of the plan, with
numbers of layers left open.  DeepSpeed's pipelines are Python code (``PipelineModule``), so this file cannot say them.
"""

from __future__ import annotations

import json
from typing import Any

from topoplan.model.staged import StagedStrategy
from topoplan_engine.lowering.gather_units import gather_units, stage_units
from topoplan_engine.program_strategies import program_strategy
from topoplan_engine.sharding.stage_graphs import stage_graphs
from topoplan_exporter_launch.grid import Grid, grid_of
from topoplan_exporter_launch.meshes import Kept
from topoplan_exporter_launch.schedules import schedule_of
from topoplan_exporter_launch.targets import Target
from topoplan_exporter_launch.tensor import TABLES, Cut, cuts_of
from topoplan_pipeline_planning.layer_names import name_pattern
from topoplan_trainer_plans import PlanLike

__all__ = ["write"]

TARGET = Target(
    "deepspeed",
    "a DeepSpeed configuration",
    "data parallelism with or without ZeRO, and tensor or expert parallelism; its pipelines are Python code",
)
#: DeepSpeed's defaults of stage3_max_live_parameters and stage3_max_reuse_distance.
_MOST_LIVE = 10**9
_STAGES = {Kept.WHOLE: 0, Kept.OPTIMIZER_SLICES: 1, Kept.STATE_SLICES: 2, Kept.SLICES: 3}


def write(plan: PlanLike) -> bytes:
    """Write the configuration; equal plans give equal bytes.

    Raises:
        TopoplanError: a configuration of DeepSpeed cannot say the plan.
    """
    graph, _ = TARGET.searched(plan)
    grid = grid_of(plan, TARGET)
    if grid.pipeline > 1:
        raise TARGET.refusal(graph.operators[grid.stage.index(1)], "begins stage 1 of a pipeline")
    if grid.groups > 1:
        raise TARGET.unsuited(f"the plan shares in {grid.groups} groups of replicas")
    if grid.gathers_ahead:
        raise TARGET.unsuited("the plan gathers weights ahead of forward passes, DeepSpeed behind the optimizer's step")
    if grid.gather_bytes:
        raise TARGET.unsuited(f"the plan gathers weights in {grid.gather_bytes} bytes a number")
    if grid.context > 1:
        raise TARGET.unsuited("the plan has context parallelism, which needs a model of DeepSpeed's own (Ulysses)")
    if grid.micro_batches > 1 and schedule_of(grid.order) != "1f1b":
        raise TARGET.unsuited(f"the plan has micro-batches in the order {grid.order.name}, not one after the other")
    if grid.pairs:
        raise TARGET.unsuited("the plan runs two passes at the same time (overlap=all plans without)")
    if grid.recompute != "none":
        raise TARGET.refusal(graph.operators[0], "recomputes its forward pass, which the program asks for by a call")
    document: dict[str, Any] = {
        "train_batch_size": graph.batch_size,
        "train_micro_batch_size_per_gpu": grid.samples,
        "gradient_accumulation_steps": grid.micro_batches,
        "zero_optimization": {"stage": _STAGES[grid.kept], **_gathers(plan, grid)},
    }
    if grid.tensor > 1 and grid.experts > 1:
        raise TARGET.unsuited("the plan has tensor and expert parallelism, which AutoEP does not combine")
    if grid.tensor > 1:
        document["tensor_parallel"] = {"autotp_size": grid.tensor, "partition_config": _partition(plan, grid)}
    if grid.experts > 1:
        document["expert_parallel"] = {"enabled": True, "autoep_size": grid.experts}
    if grid.gradient_bytes == 4 and graph.precision != "fp32":
        document["communication_data_type"] = "fp32"
    if grid.clips:
        document["gradient_clipping"] = 1.0
    if graph.precision != "fp32":
        document[graph.precision] = {"enabled": True}
    return json.dumps(document, indent=2).encode() + b"\n"


def _gathers(plan: PlanLike, grid: Grid) -> dict[str, int]:
    """Return how many parameters are whole at a time, all or those of two layers, where defaults say otherwise."""
    graph, strategy = TARGET.searched(plan)
    if grid.kept is not Kept.SLICES or grid.program is None:
        return {}
    elements = sum(tensor.elements for op in graph.operators for tensor in op.weights)
    units = None
    if grid.program.gathers_again and isinstance(strategy, StagedStrategy) and strategy.program is None:
        # slices of a bias that a tensor axis cuts, too, are joined in any order, as in the stage's tasks
        units = stage_units(stage_graphs(strategy, graph)[0])
    elif grid.program.gathers_again:
        units = gather_units(program_strategy(grid.program, graph), graph)
    if units is None and elements <= _MOST_LIVE:
        return {}
    if units is None:
        return {"stage3_max_live_parameters": elements, "stage3_max_reuse_distance": elements}
    share = float(units.in_backward().max()) / sum(tensor.nbytes for op in graph.operators for tensor in op.weights)
    return {"stage3_max_live_parameters": round(share * elements), "stage3_max_reuse_distance": 0}


def _partition(plan: PlanLike, grid: Grid) -> dict[str, Any]:
    """Return which parameters are cut by columns and by rows.

    Raises:
        TopoplanError: a matrix is cut otherwise, or between matrices more than sums is sent.
    """
    graph, _ = TARGET.searched(plan)
    cuts = cuts_of(plan, grid, TARGET)
    patterns: dict[Cut, dict[str, str]] = {Cut.COLUMN: {}, Cut.ROW: {}, Cut.WHOLE: {}}
    for op, cut in zip(graph.operators, cuts, strict=True):
        if cut is Cut.POSITIONS:
            raise TARGET.refusal(op, "is cut by positions")
        # AutoTP cuts a table by channels, without gradients and without a sum afterwards.
        if cut is not Cut.WHOLE and op.kind in TABLES:
            raise TARGET.refusal(op, "cuts the table of an embedding, which AutoTP leaves whole in training")
        if not any(len(weight.axes) > 1 for weight in op.weights):
            continue
        pattern = rf"(.*\.)?{name_pattern(op.name)}\.weight$"
        for kind, names in patterns.items():
            if kind is not cut and pattern in names:
                raise TARGET.refusal(op, f"is cut as {cut.value}, but {names[pattern]!r} as {kind.value}")
        patterns[cut].setdefault(pattern, op.name)
    words = {Cut.COLUMN: "column", Cut.ROW: "row", Cut.WHOLE: "skip"}
    return {
        "use_default_specs": False,
        "layer_specs": [
            {"patterns": [*names], "partition_type": words[cut]} for cut, names in patterns.items() if names
        ],
    }
