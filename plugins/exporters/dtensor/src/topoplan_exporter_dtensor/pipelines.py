"""Runs a PyTorch module as the pipeline of a plan, with torch.distributed.pipelining.

    document = read("plan.dtensor")
    pipeline = Pipeline(model, document, "schedule.csv", (tokens,), loss, "cuda")
    loss = pipeline.step(tokens, targets)

``torch.distributed.pipelining.pipeline`` exports the module and splits it before the first module of every stage.  The
CSV file of exporter ``torch-schedule`` is the order of passes.  Each replica of the pipeline takes its share of the
batch; at the end of a step the gradients of a stage are averaged over the replicas.

This module needs torch; nothing else of the exporter does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from topoplan import TopoplanError
from topoplan_exporter_dtensor.matching import match_modules
from topoplan_exporter_dtensor.modules import rank_of_devices
from topoplan_exporter_dtensor.reader import Document

try:
    import torch
    from torch import distributed
    from torch.distributed.pipelining import SplitPoint, pipeline
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime
except ImportError:
    raise TopoplanError("dtensor: running a pipeline needs PyTorch (pip install torch)") from None

__all__ = ["Pipeline", "devices_of_stages", "splits_of"]


def devices_of_stages(document: Document) -> list[tuple[int, ...]]:
    """Return the devices of each stage, one for each replica.

    Raises:
        TopoplanError: the plan has no pipeline, or a stage is not data parallel over as many devices as the others.
    """
    if document.stages is None:
        raise TopoplanError(f"the plan for {document.model!r} has no pipeline (plan one with -s pipeline)")
    rows: dict[int, tuple[str, tuple[int, ...]]] = {}
    for operator, stage in zip(document.operators, document.stages.stage, strict=True):
        for tensor in (*operator.inputs, *operator.outputs):
            if set(tensor.placements) - {"Shard(0)", "Replicate()"} and tensor.shape:
                raise TopoplanError(
                    f"operator {operator.name!r} has {tensor.name!r} as {', '.join(tensor.placements)} (a stage runs "
                    "data parallel: Shard(0))"
                )
        name, devices = rows.setdefault(stage, (operator.name, operator.mesh.devices))
        if operator.mesh.devices != devices:
            raise TopoplanError(f"operator {operator.name!r} has other devices than {name!r} of its stage {stage}")
    first = rows[0][1]
    for stage, (name, devices) in sorted(rows.items()):
        if len(devices) != len(first):
            raise TopoplanError(
                f"operator {name!r} begins stage {stage} of {len(devices)} devices, but stage 0 has {len(first)} (all "
                "stages need equally many)"
            )
    return [rows[stage][1] for stage in sorted(rows)]


def splits_of(model: Any, document: Document, names: Mapping[str, str]) -> list[str]:
    """Return the name of the module that begins each stage but the first.

    Operators without a module of their own run in the stage of the module before them.

    Raises:
        TopoplanError: a stage has no module, or a module runs before one of an earlier stage.
    """
    assert document.stages is not None
    stage = document.stages.stage
    matches = match_modules(model, document, names)
    firsts: dict[int, str] = {}
    for match in matches:
        if match.operator.weights or stage[match.number] not in firsts:
            firsts.setdefault(stage[match.number], match.name)
    for number, operator in zip(stage, document.operators, strict=True):
        if number not in firsts:
            raise TopoplanError(f"operator {operator.name!r}: stage {number} has no module of the model")
    return [firsts[number] for number in range(1, max(stage) + 1)]


@attrs.frozen
class _Place:
    """Where this process stands: its replica, the stages that it runs, and its groups."""

    replica: int
    replicas: int
    stages: tuple[int, ...]
    pipeline_group: Any
    replica_group: Any


class Pipeline:
    """A module that runs as a pipeline; every process of the job makes one, at the same time.

    Attributes:
        replica, replicas: number of this process's replica, and how many there are.
        modules: stage -> module, for stages that this process runs; parameters have the names of the whole module.
    """

    def __init__(
        self,
        model: Any,
        document: Document,
        schedule: str | Path,
        example: Sequence[Any],
        loss: Callable[[Any, Any], Any],
        device_type: str = "cuda",
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Split the module and load the order of passes.

        Args:
            model: a ``torch.nn.Module`` with equal parameters in every process.
            document: placements, by `reader.read`.
            schedule: file of exporter ``torch-schedule`` for the same plan.
            example: inputs for the whole batch; only shapes and types matter.
            loss: from output and targets of one micro-batch to a mean over its samples.
            device_type: ``cuda``, or ``cpu`` for gloo.
            names: name of a module -> name of its operator, where these differ.

        Raises:
            TopoplanError: the plan has no pipeline that this module can run as.
        """
        devices = devices_of_stages(document)
        assert document.stages is not None
        count = document.stages.micro_batches
        place = _place(devices)
        self.replica, self.replicas, self._group = place.replica, place.replicas, place.replica_group
        self._last = len(devices) - 1 in place.stages
        self._first = 0 in place.stages
        parts = count * place.replicas
        if document.batch_size % parts:
            raise TopoplanError(f"a batch of {document.batch_size} is no multiple of {parts} micro-batches of replicas")
        samples = document.batch_size // parts
        splits = dict.fromkeys(splits_of(model, document, names or {}), SplitPoint.BEGINNING)
        pipe = pipeline(model, mb_args=tuple(value[:samples] for value in example), split_spec=splits)
        if pipe.num_stages != len(devices):
            raise TopoplanError(f"torch split the module into {pipe.num_stages} stages, the plan has {len(devices)}")
        device = torch.device(device_type, torch.cuda.current_device()) if device_type == "cuda" else device_type
        stages = [pipe.build_stage(number, device, place.pipeline_group) for number in place.stages]
        self.modules = {number: stage.submod for number, stage in zip(place.stages, stages, strict=True)}
        self._runtime = _PipelineScheduleRuntime(stages, n_microbatches=count, loss_fn=loss, scale_grads=True)
        self._runtime._load_csv(str(schedule))

    def share(self, batch: Any) -> Any:
        """Return this replica's samples of a batch."""
        return batch.tensor_split(self.replicas)[self.replica]

    def step(self, *inputs: Any, target: Any) -> Any:
        """Run an iteration without the optimizer; parameters then have the gradients of the mean loss of the batch.

        Args:
            inputs: of the whole batch, equal in every process.
            target: likewise.

        Returns:
            The mean loss of the batch where this process has the last stage; None elsewhere.
        """
        losses: list[Any] = []
        shares = [self.share(value) for value in inputs] if self._first else []
        more = {"target": self.share(target), "losses": losses} if self._last else {}
        self._runtime.step(*shares, **more)
        for module in self.modules.values():
            for parameter in module.parameters():
                if parameter.grad is not None:
                    self._mean(parameter.grad)
        if not self._last:
            return None
        loss = torch.stack([value.detach() for value in losses]).mean()
        self._mean(loss)
        return loss

    def _mean(self, tensor: Any) -> None:
        """Replace a tensor by its mean over the replicas of this stage."""
        distributed.all_reduce(tensor, group=self._group)
        tensor.div_(self.replicas)


def _place(devices: list[tuple[int, ...]]) -> _Place:
    """Make the groups of all processes, and return the place of this one."""
    ranks = rank_of_devices()
    if missing := [device for row in devices for device in row if device not in ranks]:
        raise TopoplanError(f"the plan uses device {missing[0]}, but the job has {len(ranks)} ranks")
    grid = [[ranks[device] for device in row] for row in devices]
    rank, replicas = distributed.get_rank(), len(devices[0])
    place = None
    rows: list[list[int]] = []  # of devices, each that of one rank of the pipeline
    for row in grid:
        if not any(set(row) & set(other_row) for other_row in rows):
            rows.append(row)
    pipelines = [_group([row[replica] for row in rows]) for replica in range(replicas)]
    for row in rows:
        group = _group(row)
        if rank in row:
            replica = row.index(rank)
            stages = tuple(number for number, other_row in enumerate(grid) if rank in other_row)
            place = _Place(replica, replicas, stages, pipelines[replica], group)
    if place is None:
        raise TopoplanError(f"rank {rank} has no stage of the plan")
    return place


def _group(ranks: list[int]) -> Any:
    """Make a group whose members keep this order, which is that of the rows of the schedule."""
    if ranks == sorted(ranks):
        return distributed.new_group(ranks)
    return distributed.new_group(ranks, sort_ranks=False)
