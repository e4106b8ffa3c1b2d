"""Exporter ``megatron``: a script that starts Megatron-LM with the parallelism of a plan.

Flags are those of Megatron-LM d98e8a6 (2026-08-22): megatron/training/arguments.py, and in megatron/core
model_parallel_config.py and transformer/pipeline_parallel_layer_layout.py.  The model itself (its sizes, data,
optimizer) is the user's.
"""

from __future__ import annotations

import numpy as np

from topoplan import OperatorGraph, TopoplanError
from topoplan.arrays import I32
from topoplan_exporter_launch.as_run import unsaid
from topoplan_exporter_launch.grid import Grid, grid_of
from topoplan_exporter_launch.layers import StageLayers, layers_of_stages
from topoplan_exporter_launch.meshes import Kept
from topoplan_exporter_launch.models import why_not_in_megatron
from topoplan_exporter_launch.ranks import script
from topoplan_exporter_launch.schedules import schedule_of
from topoplan_exporter_launch.targets import Target
from topoplan_exporter_launch.tensor import Cut, check_matrices, cuts_of
from topoplan_trainer_plans import PlanLike

__all__ = ["flags_of", "layout_of", "write"]

TARGET = Target(
    "megatron",
    "Megatron-LM",
    "data, context, tensor, sequence and expert parallelism on one grid, and 1F1B pipelines of whole layers with equal "
    "replicas",
)
_PRECISION = {"fp32": (), "fp16": ("--fp16",), "bf16": ("--bf16",)}
#: Megatron-FSDP takes no other format of checkpoints.
_FSDP = ("--use-megatron-fsdp --use-distributed-optimizer", "--ckpt-format fsdp_dtensor")
_KEPT = {
    Kept.WHOLE: (),
    Kept.OPTIMIZER_SLICES: ("--use-distributed-optimizer",),
    Kept.STATE_SLICES: (*_FSDP, "--data-parallel-sharding-strategy optim_grads"),
    Kept.SLICES: (*_FSDP, "--data-parallel-sharding-strategy optim_grads_params"),
}
_CONTEXT = {"gather": "all_gather", "ring": "p2p", "ulysses": "a2a"}
_RECOMPUTE = {
    "none": (),
    "selective": ("--recompute-granularity selective --recompute-modules core_attn",),
    "full": ("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1",),
}
#: Modules of a layer that can run again, of which a plan has words.
_MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")
#: Megatron-LM refuses slices of tensors or positions without it on devices older than Blackwell, and Megatron-FSDP
#: with it.
_ONE_CONNECTION = 'export CUDA_DEVICE_MAX_CONNECTIONS="${CUDA_DEVICE_MAX_CONNECTIONS:-1}"'


def write(plan: PlanLike) -> bytes:
    """Write the script; equal plans give equal bytes.

    Raises:
        TopoplanError: Megatron-LM cannot run the plan.
    """
    graph, _ = TARGET.searched(plan)
    flags, grid = flags_and_grid(plan)
    about = (
        f"Starts Megatron-LM under a plan for model {graph.name!a}: {grid.pipeline} stages x {grid.data} replicas "
        f"x {grid.tensor} slices of tensors.",
        "PROGRAM is pretrain_gpt.py or another one of Megatron-LM; ARGUMENTs say model, data and optimizer.",
        *unsaid(graph, grid),
    )
    sends = grid.tensor > 1 or grid.context > 1
    settings = [_ONE_CONNECTION] if sends and grid.kept in (Kept.WHOLE, Kept.OPTIMIZER_SLICES) else []
    return script(plan.cluster, _ranks(grid), about, flags, settings)


def flags_and_grid(plan: PlanLike) -> tuple[list[str], Grid]:
    """Return the flags of a plan, and where devices stand; see `write`."""
    graph, _ = TARGET.searched(plan)
    if why := why_not_in_megatron(graph):
        raise TopoplanError(f"{TARGET.component}: {why}")
    grid = grid_of(plan, TARGET)
    return flags_of(plan, grid), grid


def _pipelines_inside(grid: Grid) -> bool:
    """Whether devices are in the order that has the stages of a replica before the next replica.

    Experts have groups of their own, which Megatron-LM refuses in this order.
    """
    devices = grid.devices
    return (
        grid.experts == 1
        and grid.expert_tensor == grid.tensor
        and not _ascends(devices)
        and _ascends(_by_replicas(grid))
    )


def _by_replicas(grid: Grid) -> I32:
    """(data, pipeline, context, tensor) devices."""
    return np.moveaxis(grid.devices.reshape(grid.pipeline, grid.data, grid.context, grid.tensor), 0, 1)


def _ascends(devices: I32) -> bool:
    return bool((np.diff(devices.ravel()) > 0).all())


def _ranks(grid: Grid) -> I32:
    """Return the device of every rank."""
    return _by_replicas(grid).ravel() if _pipelines_inside(grid) else grid.devices.ravel()


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
        stages = layout_of(layers_of_stages(graph, grid.stage, TARGET))
        # A script quotes it: a shell would take | and * for its own.
        lines.append(f"--pipeline-model-parallel-layout '{stages}'")
    _check_schedule(graph, grid)
    if grid.context > 1:
        if not grid.zigzag:
            raise TARGET.unsuited("the plan has positions in one piece on each device, not in pairs from both ends")
        lines.append(f"--context-parallel-size {grid.context} --cp-comm-type {_CONTEXT[grid.context_way]}")
    if grid.experts > 1:
        # Its default gathers all tokens, and does not overlap.
        lines.append(f"--expert-model-parallel-size {grid.experts} --moe-token-dispatcher-type alltoall")
    if grid.expert_tensor != grid.tensor:
        lines.append(f"--expert-tensor-parallel-size {grid.expert_tensor}")
    if _pipelines_inside(grid):
        lines.append("--use-tp-pp-dp-mapping")
    cuts = cuts_of(plan, grid, TARGET)
    check_matrices(plan, grid, cuts, TARGET)
    if Cut.POSITIONS in cuts:
        lines.append("--sequence-parallel")
    if grid.pairs:
        lines.append(_overlap(grid))
    if grid.groups > 1:
        lines.append(f"--num-distributed-optimizer-instances {grid.groups}")
    return [
        *lines,
        *_recompute(grid.recompute),
        *_KEPT[grid.kept],
        *_PRECISION[graph.precision],
        *_gradients(graph, grid),
    ]


def _overlap(grid: Grid) -> str:
    """Return the flag under which a forward and a backward pass run at the same time.

    Raises:
        TopoplanError: Megatron-LM has that for experts alone, without layers that run again, and in chunks.
    """
    needs = {
        "several devices with experts (ep of at least 2)": grid.experts > 1,
        "interleaved stages (schedule=interleaved:2)": grid.pipeline == 1 or grid.chunks > 1,
        "no layers that run again (recompute=none, or modules of them)": grid.recompute != "full",
    }
    if lacking := [what for what, is_given in needs.items() if not is_given]:
        raise TARGET.unsuited(f"the plan runs two passes at the same time, for which Megatron-LM needs {lacking[0]}")
    return "--overlap-moe-expert-parallel-comm"


def _gradients(graph: OperatorGraph, grid: Grid) -> list[str]:
    """Return flags for what a staged plan says of gradients, where Megatron-LM's defaults say otherwise."""
    if grid.clips is None:
        return []
    if grid.kept is Kept.SLICES and grid.program is not None and not grid.program.gathers_again:
        raise TARGET.unsuited("the plan keeps the weights that it has gathered, Megatron-FSDP gives them back")
    if grid.gather_bytes not in (0, 1):
        raise TARGET.unsuited(f"the plan gathers weights in {grid.gather_bytes} bytes a number")
    wide = {"bf16": "", "fp16": "--accumulate-allreduce-grads-in-fp32"}.get(graph.precision, "")
    narrow = {"bf16": "--grad-reduce-in-bf16"}.get(graph.precision, "")
    flags = [wide if grid.gradient_bytes == 4 else narrow, "" if grid.clips else "--clip-grad 0.0"]
    flags.append("--fp8-format hybrid --fp8-param-gather" if grid.gather_bytes == 1 else "")
    flags.append("--overlap-grad-reduce --overlap-param-gather" if grid.gathers_ahead else "")
    return [flag for flag in flags if flag]


def _recompute(words: str) -> tuple[str, ...]:
    """Return the flags that say what runs again."""
    if words in _RECOMPUTE:
        return _RECOMPUTE[words]
    way, _, names = words.partition(":")
    modules = names.split("+")
    if way == "every":
        raise TARGET.unsuited(f"the plan recomputes one layer in {names}; Megatron-LM all, or modules of each")
    if unknown := [name for name in modules if name not in _MODULES]:
        raise TARGET.unsuited(f"the plan recomputes module {unknown[0]!r} of layers (can: {', '.join(_MODULES)})")
    return (f"--recompute-granularity selective --recompute-modules {' '.join(modules)}",)


def _check_schedule(graph: OperatorGraph, grid: Grid) -> None:
    """Check that Megatron-LM has the order of passes, of micro-batches on one rank too.

    Raises:
        TopoplanError: it is neither 1F1B nor the interleaved one.
    """
    if schedule_of(grid.order) in ("1f1b", "interleaved"):
        return
    name = grid.order.name
    if grid.pipeline == 1:
        raise TARGET.unsuited(
            f"the plan has micro-batches on one rank in the order {name} (schedule=1f1b plans without)"
        )
    raise TARGET.refusal(
        graph.operators[grid.stage.index(1)],
        f"begins stage 1 of a pipeline with schedule {name} (-s pipeline:schedule=1f1b plans without)",
    )


def layout_of(stages: list[StageLayers]) -> str:
    """Return the layout in Megatron-LM's letters, such as ``Et*3|t*4L``."""
    texts = []
    for stage in stages:
        count = stage.last - stage.first
        layers = "" if not count else "t" if count == 1 else f"t*{count}"
        texts.append(f"{'E' if stage.embedding else ''}{layers}{'L' if stage.head else ''}")
    return "|".join(texts)
