"""Exporter ``torchtitan``: a recipe, which is a Python module with a function that returns a ``Trainer.Config``.

Names are those of torchtitan b5bcd76 (2026-08-21) and of the release 0.3.0, which counts samples where the other one
counts tokens: torchtitan/config/configs.py, config/README.md and distributed/pipeline_parallel.py.  The recipe starts
from a configuration of the user (model, data, optimizer) and sets what the plan decides.  torchtitan cuts tensors as
its models say; a plan must cut them in the same way (`tensor`).
"""

from __future__ import annotations

import json
from typing import Any

from topoplan import OperatorGraph, StagedStrategy, TopoplanError
from topoplan_engine.throughput import sequence_length
from topoplan_exporter_launch.as_run import unsaid
from topoplan_exporter_launch.grid import Grid, grid_of
from topoplan_exporter_launch.layers import StageLayers, layers_of_stages
from topoplan_exporter_launch.meshes import Kept
from topoplan_exporter_launch.models import has_no_pipelines, why_not_in_torchtitan
from topoplan_exporter_launch.schedules import schedule_of
from topoplan_exporter_launch.targets import Target
from topoplan_exporter_launch.tensor import Cut, check_matrices, cuts_of
from topoplan_trainer_plans import PlanLike

__all__ = ["SCHEDULES", "TARGET", "modules_of", "parallelism_of", "stages_of", "why_not_trained", "write"]

TARGET = Target(
    "torchtitan",
    "torchtitan",
    "replicated or fully sharded data, context, tensor, sequence and expert parallelism on one grid, and pipelines of "
    "whole layers with equal replicas",
)
#: Schedule -> torchtitan's name for it; others come from a file of exporter torch-schedule.
SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "Interleaved1F1B"}
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
    stages = stages_of(graph, grid)
    if stages and has_no_pipelines(graph):
        raise TARGET.unsuited(
            f"the plan has stages of model {graph.name!r}, which torchtitan has as one of transformers with experts, "
            "and cuts into none (pp=1)"
        )
    table = bool(stages) and schedule_of(grid.order) not in SCHEDULES
    if grid.experts > 1 and grid.expert_tensor > 1:
        raise TARGET.unsuited("the plan cuts the matrices of experts that devices share, which torchtitan leaves whole")
    if grid.recompute not in ("none", "full"):
        raise TARGET.unsuited(f"the plan recomputes {grid.recompute}, but a recipe chooses operations or every layer")
    head = _HEAD.format(
        model=ascii(graph.name).replace("\\", "/").replace('"', "'"),
        degrees=degrees,
        module="recipe",
        schedule="\nschedule.csv beside this file (`-x torch-schedule=schedule.csv`) has the order of passes."
        if table
        else "",
        path="from pathlib import Path\n" if table else "",
        activation="from torchtitan.distributed.activation_checkpoint import FullAC\n"
        if grid.recompute == "full"
        else "",
    )
    settings = parallelism_of(plan, grid)
    if grid.context > 1 and grid.context_way == "ring":
        raise TARGET.unsuited(
            "the plan has context parallelism by a ring, which only configurations in TOML can choose"
        )
    body = [
        *(f"# {line}" for line in unsaid(graph, grid)),
        *_checks(graph, stages),
        "parallelism = config.parallelism",
        *(f"parallelism.{key} = {value!r}" for key, value in settings.items()),
        *_stages(grid, stages, table),
        *_training(graph, grid),
    ]
    if grid.recompute == "full":
        body.append("config.activation_checkpoint = FullAC.Config()")
    elif all(op.checkpoint is None for op in graph.operators):  # else what runs again is said by the model
        body.append("config.activation_checkpoint = None")
    return (head + "".join(f"    {line}\n" for line in [*body, "return config"])).encode()


def _checks(graph: OperatorGraph, stages: list[StageLayers]) -> list[str]:
    """Return lines that refuse a model of another depth."""
    if not stages:
        return []
    layers = stages[-1].last
    return [
        'layers = getattr(config.model_spec.model, "layers", None)  # models of transformers have none before they run',
        f"if layers is not None and len(layers) != {layers}:",
        f'    raise ValueError(f"the plan is for a model of {layers} layers, the model of BASE has {{len(layers)}}")',
    ]


def stages_of(graph: OperatorGraph, grid: Grid) -> list[StageLayers]:
    """Return the layers of each stage; none where there is no pipeline.

    Raises:
        TopoplanError: torchtitan has no such model, or micro-batches do not go one after the other where there is
            no pipeline.
    """
    if why := why_not_in_torchtitan(graph):
        raise TopoplanError(f"{TARGET.component}: {why}")
    if grid.pipeline > 1:
        return layers_of_stages(graph, grid.stage, TARGET)
    if schedule_of(grid.order) != "1f1b":
        raise TARGET.unsuited(
            f"the plan has micro-batches on one rank in the order {grid.order.name} (schedule=1f1b plans without)"
        )
    return []


def parallelism_of(plan: PlanLike, grid: Grid) -> dict[str, Any]:
    """Return the settings of degrees.

    Raises:
        TopoplanError: torchtitan has no such parallelism.
    """
    graph, strategy = TARGET.searched(plan)
    first = graph.operators[0]
    staged = isinstance(strategy, StagedStrategy) and strategy.program is None
    if staged and graph.precision == "bf16" and grid.gradient_bytes != 4:
        raise TARGET.unsuited("the plan sums gradients in bf16, torchtitan in fp32 (grads=fp32)")
    if grid.pairs:
        raise TARGET.unsuited("the plan runs two passes at the same time (overlap=all plans without)")
    if grid.gather_bytes:
        raise TARGET.unsuited(f"the plan gathers weights in {grid.gather_bytes} bytes a number")
    if grid.kept is Kept.OPTIMIZER_SLICES:
        raise TARGET.refusal(first, "keeps its weights and gradients whole and a slice of its optimizer state")
    if grid.kept is Kept.STATE_SLICES:
        raise TARGET.refusal(first, "keeps its weights whole and a slice of their gradients and optimizer state")
    cuts = cuts_of(plan, grid, TARGET)
    check_matrices(plan, grid, cuts, TARGET)
    if grid.experts == 1 and grid.expert_tensor != grid.tensor:
        raise TARGET.unsuited("the plan has copies of experts on devices that have slices of all else (ep=1)")
    if grid.kept is Kept.WHOLE and (grid.experts > 1 or grid.context > 1):
        what = (
            "all other weights, where they share experts" if grid.experts > 1 else "weights, where they share a sample"
        )
        raise TARGET.refusal(first, f"keeps its weights whole, but devices slice {what}")
    if grid.context > 1 and (grid.context_way == "ulysses" or not grid.zigzag):
        what = "all-to-alls between positions and heads" if grid.zigzag else "positions in one piece on each device"
        raise TARGET.unsuited(f"the plan has context parallelism with {what}")
    whole = grid.kept is Kept.WHOLE
    gathers_again = grid.kept is Kept.SLICES and grid.program is not None and grid.program.gathers_again
    reshard = "always" if staged else "default"
    return {
        "data_parallel_replicate_degree": grid.data if whole else grid.groups,
        "data_parallel_shard_degree": 1 if whole else grid.data // grid.groups,
        **({} if whole else {"fsdp_reshard_after_forward": reshard if gathers_again else "never"}),
        "tensor_parallel_degree": grid.tensor,
        "enable_sequence_parallel": Cut.POSITIONS in cuts,
        "context_parallel_degree": grid.context,
        "expert_parallel_degree": grid.experts,
        "pipeline_parallel_degree": grid.pipeline,
    }


def modules_of(stages: list[StageLayers], head: str) -> list[list[str]]:
    """Return the names of the modules of each stage."""
    return [
        [
            *(["tok_embeddings"] if stage.embedding else []),
            *(f"layers.{layer}" for layer in range(stage.first, stage.last)),
            *(["norm", head] if stage.head else []),
        ]
        for stage in stages
    ]


def _stages(grid: Grid, stages: list[StageLayers], table: bool) -> list[str]:
    """Return lines that set the modules of stages and the order of passes."""
    if not stages:
        return []
    lines = ["parallelism.module_fqns_per_model_part = ["]
    lines += [f"    {json.dumps(names)}," for names in modules_of(stages, "lm_head")]
    lines += ["]", "if layers is None:  # every stage has their table of rotary positions"]
    lines += ["    for names in parallelism.module_fqns_per_model_part:", '        names.append("rotary_emb")']
    if table:
        return [
            *lines,
            'parallelism.pipeline_parallel_schedule = "PipelineScheduleMulti"',
            'parallelism.pipeline_parallel_schedule_csv = str(Path(__file__).with_name("schedule.csv"))',
        ]
    return [*lines, f"parallelism.pipeline_parallel_schedule = {json.dumps(SCHEDULES[schedule_of(grid.order)])}"]


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
        *([] if grid.clips is None or grid.clips else ["training.max_norm = 0.0"]),
        f'training.mixed_precision_param = "{dtype}"',
        *(["training.disable_cuda_graphs = True"] if piped or grid.experts > 1 else []),
        'if hasattr(training, "seq_len"):  # torchtitan 0.3.0',
        *(f"    {line}" for line in released),
        "else:",
        *(f"    {line}" for line in later),
    ]
