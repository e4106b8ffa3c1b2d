"""Exporter ``torchtitan-toml``: the sections of torchtitan's TOML configurations that a plan decides.

Keys are those of torchtitan 4a950ea (2026-02-23), the last version whose configurations are TOML:
torchtitan/config/job_config.py and distributed/pipeline_parallel.py.  Later versions take the recipe of `torchtitan`.
Model, data and optimizer are the user's: sections of the same file, or flags.
"""

from __future__ import annotations

import json
from typing import Any

from topoplan_engine.throughput import sequence_length
from topoplan_exporter_launch.as_run import unsaid
from topoplan_exporter_launch.grid import Grid, grid_of
from topoplan_exporter_launch.schedules import schedule_of
from topoplan_exporter_launch.torchtitan import (
    SCHEDULES,
    TARGET,
    modules_of,
    parallelism_of,
    stages_of,
    why_not_trained,
)
from topoplan_trainer_plans import PlanLike

__all__ = ["write"]


def write(plan: PlanLike) -> bytes:
    """Write the configuration; equal plans give equal bytes.

    Raises:
        TopoplanError: torchtitan cannot run the plan.
    """
    graph, _ = TARGET.searched(plan)
    if why := why_not_trained(graph):
        raise TARGET.unsuited(why)
    grid = grid_of(plan, TARGET)
    piped = grid.pipeline > 1
    length = sequence_length(graph)
    sections = {
        "training": {
            "local_batch_size": grid.samples * (grid.micro_batches if piped else 1),
            "global_batch_size": grid.samples * grid.micro_batches * grid.data,
            **({"seq_len": length} if length else {}),
            "mixed_precision_param": "float32" if graph.precision == "fp32" else "bfloat16",
            **({} if grid.clips is None or grid.clips else {"max_norm": 0.0}),
        },
        "parallelism": {**_degrees(plan, grid), **(_pipeline(plan, grid) if piped else {})},
        "activation_checkpoint": _checkpoints(grid),
    }
    lines = [
        f"# Plan for model {graph.name!a}: {', '.join(_words(grid))}.",
        *(f"# {line}" for line in unsaid(graph, grid)),
    ]
    for name, values in sections.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return ("\n".join(lines) + "\n").encode()


def _words(grid: Grid) -> list[str]:
    degrees = {"pp": grid.pipeline, "dp": grid.data, "cp": grid.context, "tp": grid.tensor, "ep": grid.experts}
    return [f"{name}={degree}" for name, degree in degrees.items()]


def _degrees(plan: PlanLike, grid: Grid) -> dict[str, Any]:
    settings = parallelism_of(plan, grid)
    sequence = settings.pop("enable_sequence_parallel")
    if grid.tensor > 1 and not sequence:
        raise TARGET.unsuited(
            "the plan cuts tensors without sequence parallelism, which configurations in TOML always have (sp=yes)"
        )
    experts = {"expert_tensor_parallel_degree": grid.expert_tensor} if grid.experts > 1 else {}
    of_matrices = grid.tensor // grid.expert_tensor  # ``ParallelDims``: experts are divided over all of it, and of cp
    if grid.experts > 1 and (grid.expert_tensor not in (1, grid.tensor) or grid.experts % (grid.context * of_matrices)):
        degrees = f"etp={grid.expert_tensor}, ep={grid.experts}, tp={grid.tensor}, cp={grid.context}"
        raise TARGET.unsuited(f"the plan has {degrees} (can: etp of 1 or tp, ep a multiple of cp x tp / etp)")
    rotation = {"gather": "allgather", "ring": "alltoall"}[grid.context_way]
    context = {"context_parallel_rotate_method": rotation} if grid.context > 1 else {}
    return {**settings, **context, **experts}


def _pipeline(plan: PlanLike, grid: Grid) -> dict[str, Any]:
    graph, _ = TARGET.searched(plan)
    name = schedule_of(grid.order)
    if name not in SCHEDULES:
        raise TARGET.unsuited(
            f"the plan has schedule {name}, for which a configuration needs the path of a file (a recipe of "
            "torchtitan, and torch-schedule, say it)"
        )
    return {
        "pipeline_parallel_schedule": SCHEDULES[name],
        "pipeline_parallel_microbatch_size": grid.samples,
        "module_fqns_per_model_part": modules_of(stages_of(graph, grid), "output"),
    }


def _checkpoints(grid: Grid) -> dict[str, Any]:
    if grid.recompute in ("none", "full"):
        return {"mode": grid.recompute}
    if grid.recompute == "op":
        return {"mode": "selective", "selective_ac_option": "op"}
    if grid.recompute.startswith("every:"):
        return {"mode": "selective", "selective_ac_option": grid.recompute.partition(":")[2]}
    raise TARGET.unsuited(
        f"the plan recomputes {grid.recompute}, but a configuration chooses operations or whole layers"
    )
