"""Exporter ``megatron``: a script that starts Megatron-LM with the parallelism of a plan.

Flags are those of Megatron-LM d98e8a6 (2026-08-22): megatron/training/arguments.py, and in megatron/core
model_parallel_config.py and transformer/pipeline_parallel_layer_layout.py.  The model itself (its sizes, data,
optimizer) is the user's.
"""

from __future__ import annotations

from topoplan import OperatorGraph
from topoplan.model.schedule import ScheduleKind
from topoplan_exporter_launch.grid import Grid, Kept, grid_of
from topoplan_exporter_launch.layers import StageLayers, layers_of_stages
from topoplan_exporter_launch.ranks import script
from topoplan_exporter_launch.targets import Target
from topoplan_exporter_launch.tensor import Cut, check_matrices, cuts_of
from topoplan_trainer_plans import PlanLike

__all__ = ["flags_of", "layout_of", "write"]

TARGET = Target(
    "megatron",
    "Megatron-LM",
    "data, tensor, sequence and expert parallelism on one grid, and 1F1B pipelines of whole layers with equal replicas",
)
_PRECISION = {"fp32": (), "fp16": ("--fp16",), "bf16": ("--bf16",)}
#: Megatron-FSDP takes no other format of checkpoints.
_FSDP = ("--use-megatron-fsdp --use-distributed-optimizer", "--ckpt-format fsdp_dtensor")
_KEPT = {
    Kept.WHOLE: (),
    Kept.STATE_SLICES: (*_FSDP, "--data-parallel-sharding-strategy optim_grads"),
    Kept.SLICES: (*_FSDP, "--data-parallel-sharding-strategy optim_grads_params"),
}
#: Megatron-LM refuses slices of tensors without it on devices older than Blackwell, and Megatron-FSDP with it.
_ONE_CONNECTION = 'export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"'


def write(plan: PlanLike) -> bytes:
    """Write the script; equal plans give equal bytes.

    Raises:
        TopoplanError: Megatron-LM cannot run the plan.
    """
    graph, _ = TARGET.searched(plan)
    grid = grid_of(plan, TARGET)
    about = (
        f"Starts Megatron-LM under a plan for model {graph.name!a}: {grid.pipeline} stages x {grid.data} replicas "
        f"x {grid.tensor} slices of tensors.",
        "PROGRAM is pretrain_gpt.py or another one of Megatron-LM; ARGUMENTs say model, data and optimizer.",
    )
    settings = [_ONE_CONNECTION] if grid.tensor > 1 and grid.kept is Kept.WHOLE else []
    return script(plan.cluster, grid.devices.ravel(), about, flags_of(plan, grid), settings)


def flags_of(plan: PlanLike, grid: Grid) -> list[str]:
    """Return lines of flags.

    Raises:
        TopoplanError: Megatron-LM cannot run the plan.
    """
    graph, _ = TARGET.searched(plan)
    lines = [
        f"--tensor-model-parallel-size {grid.tensor}",
        f"--pipeline-model-parallel-size {grid.pipeline}",
        f"--micro-batch-size {grid.samples}",
        f"--global-batch-size {graph.batch_size}",
    ]
    if grid.pipeline > 1:
        lines += _pipeline(graph, grid)
    if grid.experts > 1:
        lines.append(f"--expert-model-parallel-size {grid.experts}")
    cuts = cuts_of(plan, grid, TARGET)
    check_matrices(plan, grid, cuts, TARGET)
    if Cut.POSITIONS in cuts:
        lines.append("--sequence-parallel")
    if grid.recompute:
        lines.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    return [*lines, *_KEPT[grid.kept], *_PRECISION[graph.precision]]


def _pipeline(graph: OperatorGraph, grid: Grid) -> list[str]:
    one_by_one = grid.micro_batches == 1 and grid.chunks == 1
    if grid.kind not in (ScheduleKind.ONE_F_ONE_B, ScheduleKind.INTERLEAVED) and not one_by_one:
        first = graph.operators[grid.stage.index(1)]
        raise TARGET.refusal(
            first,
            f"begins stage 1 of a pipeline with schedule {grid.kind.value} (-s pipeline:schedule=1f1b plans without)",
        )
    layout = layout_of(layers_of_stages(graph, grid.stage, TARGET))
    # A script quotes it: a shell would take | and * for its own.
    return [f"--pipeline-model-parallel-layout '{layout}'"]


def layout_of(stages: list[StageLayers]) -> str:
    """Return the layout in Megatron-LM's letters, such as ``Et*3|t*4L``."""
    texts = []
    for stage in stages:
        count = stage.last - stage.first
        layers = "" if not count else "t" if count == 1 else f"t*{count}"
        texts.append(f"{'E' if stage.embedding else ''}{layers}{'L' if stage.head else ''}")
    return "|".join(texts)
