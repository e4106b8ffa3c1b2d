"""Exporter ``torchtitan``: a recipe, which is a Python module with a function that returns a ``Trainer.Config``.

Names are those of torchtitan b5bcd76 (2026-08-21) and of the release 0.3.0, which counts samples where the other one
counts tokens: torchtitan/config/configs.py, config/README.md and distributed/pipeline_parallel.py.  The recipe starts
from a configuration of the user (model, data, optimizer) and sets what the plan decides.  torchtitan cuts tensors as
its models say; a plan must cut them in the same way (`tensor`).
"""

from __future__ import annotations

import json

from topoplan import OperatorGraph
from topoplan.model.schedule import ScheduleKind
from topoplan.model.strategy import SpmdStrategy
from topoplan_engine.throughput import sequence_length
from topoplan_exporter_launch.grid import Grid, Kept, grid_of
from topoplan_exporter_launch.layers import StageLayers, layers_of_stages
from topoplan_exporter_launch.targets import Target
from topoplan_exporter_launch.tensor import Cut, check_matrices, cuts_of
from topoplan_trainer_plans import PlanLike

__all__ = ["why_not_trained", "write"]

TARGET = Target(
    "torchtitan",
    "torchtitan",
    "replicated or fully sharded data, tensor, sequence and expert parallelism on one grid, and pipelines of whole "
    "layers with equal replicas",
)
_SCHEDULES = {
    ScheduleKind.GPIPE: "GPipe",
    ScheduleKind.ONE_F_ONE_B: "1F1B",
    ScheduleKind.INTERLEAVED: "Interleaved1F1B",
}
_HEAD = '''"""Recipe of torchtitan for {model}: {degrees}.

Start it with the script of `-x torchrun=launch.sh`, on every host:

    BASE=torchtitan.models.llama3.config_registry:llama3_8b \\
    bash launch.sh HOST ADDRESS -m torchtitan.train --module {module} --config plan

BASE names the function whose configuration has the model, the data and the optimizer.{schedule}
"""

import importlib
import os
{path}
{activation}from torchtitan.trainer import Trainer


def plan() -> Trainer.Config:
    """Return the configuration of BASE under the plan."""
    module, _, function = os.environ["BASE"].partition(":")
    return parallelize(getattr(importlib.import_module(module), function)())


def parallelize(config: Trainer.Config) -> Trainer.Config:
    """Set what the plan decides, and return the configuration."""
'''


def write(plan: PlanLike) -> bytes:
    """Write the recipe; equal plans give equal bytes.

    Raises:
        TopoplanError: torchtitan cannot run the plan.
    """
    graph, _ = TARGET.searched(plan)
    grid = grid_of(plan, TARGET)
    degrees = f"{grid.pipeline} stages x {grid.data} replicas x {grid.tensor} slices of tensors"
    stages = layers_of_stages(graph, grid.stage, TARGET) if grid.pipeline > 1 else []
    table = bool(stages) and grid.kind not in _SCHEDULES
    head = _HEAD.format(
        model=ascii(graph.name).replace("\\", "/").replace('"', "'"),
        degrees=degrees,
        module="recipe",
        schedule="\nschedule.csv beside this file (`-x torch-schedule=schedule.csv`) has the order of passes."
        if table
        else "",
        path="from pathlib import Path\n" if table else "",
        activation="from torchtitan.distributed.activation_checkpoint import FullAC\n" if grid.recompute else "",
    )
    body = [*_checks(graph, stages), *_parallelism(plan, grid), *_stages(grid, stages, table), *_training(graph, grid)]
    if grid.recompute:
        body.append("config.activation_checkpoint = FullAC.Config()")
    return (head + "".join(f"    {line}\n" for line in [*body, "return config"])).encode()


def _checks(graph: OperatorGraph, stages: list[StageLayers]) -> list[str]:
    """Return lines that refuse a model of another depth."""
    if not stages:
        return []
    layers = stages[-1].last
    return [
        "layers = len(config.model_spec.model.layers)",
        f"if layers != {layers}:",
        f'    raise ValueError(f"the plan is for a model of {layers} layers, the model of BASE has {{layers}}")',
    ]


def _parallelism(plan: PlanLike, grid: Grid) -> list[str]:
    """Return lines that set degrees."""
    graph, _ = TARGET.searched(plan)
    if grid.kept is Kept.STATE_SLICES:
        raise TARGET.refusal(
            graph.operators[0], "keeps its weights whole and a slice of their gradients and optimizer state"
        )
    cuts = cuts_of(plan, grid, TARGET)
    check_matrices(plan, grid, cuts, TARGET)
    whole = grid.kept is Kept.WHOLE and grid.experts == 1
    if grid.kept is Kept.WHOLE and grid.experts > 1:
        raise TARGET.refusal(
            graph.operators[0], "keeps its weights whole, but devices that share experts slice all other weights"
        )
    return [
        "parallelism = config.parallelism",
        f"parallelism.data_parallel_replicate_degree = {grid.data if whole else 1}",
        f"parallelism.data_parallel_shard_degree = {1 if whole else grid.data}",
        *_gathers(plan, whole),
        f"parallelism.tensor_parallel_degree = {grid.tensor}",
        f"parallelism.enable_sequence_parallel = {Cut.POSITIONS in cuts}",
        "parallelism.context_parallel_degree = 1",
        f"parallelism.expert_parallel_degree = {grid.experts}",
        f"parallelism.pipeline_parallel_degree = {grid.pipeline}",
    ]


def _gathers(plan: PlanLike, whole: bool) -> list[str]:
    """Return the line that says whether gathered parameters are given back after the forward pass."""
    _, strategy = TARGET.searched(plan)
    if whole or not isinstance(strategy, SpmdStrategy):
        return []
    return [f"parallelism.fsdp_reshard_after_forward = {'default' if strategy.program.gathers_again else 'never'!r}"]


def _stages(grid: Grid, stages: list[StageLayers], table: bool) -> list[str]:
    """Return lines that set the modules of stages and the order of passes."""
    if not stages:
        return []
    lines = ["parallelism.module_fqns_per_model_part = ["]
    for stage in stages:
        names = [
            *(["tok_embeddings"] if stage.embedding else []),
            *(f"layers.{layer}" for layer in range(stage.first, stage.last)),
            *(["norm", "lm_head"] if stage.head else []),
        ]
        lines.append(f"    {json.dumps(names)},")
    lines.append("]")
    if table:
        return [
            *lines,
            'parallelism.pipeline_parallel_schedule = "PipelineScheduleMulti"',
            'parallelism.pipeline_parallel_schedule_csv = str(Path(__file__).with_name("schedule.csv"))',
        ]
    return [*lines, f"parallelism.pipeline_parallel_schedule = {json.dumps(_SCHEDULES[grid.kind])}"]


def why_not_trained(graph: OperatorGraph) -> str:
    """Say why a model cannot be trained under any plan; empty if it can."""
    if graph.precision != "fp16":
        return ""
    return f"model {graph.name!r} is planned in fp16, which torchtitan has not (--precision bf16 or fp32)"


def _training(graph: OperatorGraph, grid: Grid) -> list[str]:
    """Return lines that set batch sizes and precision."""
    if why := why_not_trained(graph):
        raise TARGET.unsuited(why)
    length = sequence_length(graph)
    dtype = "float32" if graph.precision == "fp32" else "bfloat16"
    piped = grid.pipeline > 1
    released = [
        *([f"training.seq_len = {length}"] if length else []),
        f"training.local_batch_size = {grid.samples * (grid.micro_batches if piped else 1)}",
        f"training.global_batch_size = {grid.samples * grid.micro_batches * grid.data}",
        *([f"parallelism.pipeline_parallel_microbatch_size = {grid.samples}"] if piped else []),
    ]
    later = [
        *([f"training.max_context_length = {length}"] if length else []),
        f"tokens = {grid.samples} * training.max_context_length  # {grid.samples} samples in a micro-batch",
        "training.num_tokens_per_microbatch_per_dp_rank = tokens",
        f"training.num_tokens_per_train_step = tokens * {grid.micro_batches} * {grid.data}",
        *([f"parallelism.num_pp_microbatches = {grid.micro_batches}"] if piped else []),
    ]
    return [
        "training = config.training",
        f'training.mixed_precision_param = "{dtype}"',
        *(["training.disable_cuda_graphs = True"] if piped or grid.experts > 1 else []),
        'if hasattr(training, "seq_len"):  # torchtitan 0.3.0',
        *(f"    {line}" for line in released),
        "else:",
        *(f"    {line}" for line in later),
    ]
