"""Converts a plan into the JSON document: every tensor of every operator, with its placements on the operator's mesh.

The operator's dimension that a mesh axis cuts determines the placement along that axis.  If a tensor axis follows the
dimension in equal slices, the placement is `Shard`.  Otherwise an output is `Partial`, and any other tensor is
`Replicate`.  A tensor of which parts read more than their slices (windows of convolutions) is also `Replicate`.  An
SPMD program, and the program of each stage on its own mesh, state their shardings themselves.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from topoplan import Operator, OperatorGraph, Placement, Stage, StagedStrategy, Strategy, Tensor, TopoplanError
from topoplan.model.graph import Slices
from topoplan.model.sharding import Holding, Sharding, arguments
from topoplan.model.spmd import SpmdProgram
from topoplan_exporter_dtensor.layouts import Layout, Mesh, lay_out
from topoplan_trainer_plans import PlanLike

__all__ = ["FORMAT", "VERSION", "write"]

FORMAT = "topoplan-dtensor"
VERSION = 1


def write(plan: PlanLike) -> bytes:
    """Write the placements of a plan; equal plans give equal bytes.

    Raises:
        TopoplanError: see `topoplan_exporter_dtensor.build`.
    """
    return json.dumps(document_of(plan), indent=1, allow_nan=False).encode() + b"\n"


def document_of(plan: PlanLike) -> dict[str, Any]:
    """Return the placements of a plan as plain values; see `write`."""
    graph, strategy = plan.graph, plan.strategy
    if graph is None or strategy is None:
        raise TopoplanError("dtensor: the plan holds only a task graph (plan a model to get a strategy)")
    if isinstance(strategy, StagedStrategy) and not strategy.is_placed:
        meshes, operators = _of_stages(graph, strategy)
    else:
        meshes, operators = _of_placements(graph, strategy.placements)
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": graph.name,
        "batch_size": graph.batch_size,
        "world_size": plan.cluster.n_devices,
        "meshes": {mesh.name: {"dim_names": list(mesh.dim_names), "devices": mesh.devices.tolist()} for mesh in meshes},
        "operators": operators,
        "edges": graph.edges.reshape(-1, 4).tolist(),
        **_scheduling(strategy),
    }


def _of_placements(graph: OperatorGraph, placements: tuple[Placement, ...]) -> tuple[list[Mesh], list[dict[str, Any]]]:
    for op, placement in zip(graph.operators, placements, strict=True):
        devices, count = np.unique(placement.devices, return_counts=True)
        if count.max() > 1:
            raise TopoplanError(
                f"dtensor: operator {op.name!r} has {count.max()} parts on device {devices[count.argmax()]} "
                "(a mesh has every device once; json can say it)"
            )
        for dim, degree in zip(op.dims, placement.degrees, strict=True):
            if isinstance(degree, Slices):
                raise TopoplanError(
                    f"dtensor: operator {op.name!r} is cut along {dim.name!r} into slices of {degree}, but Shard makes "
                    "equal ones (json can say it)"
                )
    meshes, layouts = lay_out(placements)
    operators = []
    for op, layout in zip(graph.operators, layouts, strict=True):
        entry: dict[str, Any] = _head(op, meshes[layout.mesh])
        for name, whole in (("inputs", "Replicate()"), ("weights", "Replicate()"), ("outputs", "Partial()")):
            entry[name] = [_tensor_entry(each, _placements(op, each, layout, whole)) for each in getattr(op, name)]
        operators.append(entry)
    return meshes, operators


def _of_stages(graph: OperatorGraph, strategy: StagedStrategy) -> tuple[list[Mesh], list[dict[str, Any]]]:
    """Return the mesh of each stage, and all operators; a tensor of another stage is stored as it arrives.

    Parts of one program have one mesh.
    """
    if strategy.copy_of.any():
        raise TopoplanError(
            f"dtensor: the plan has two copies of the model in one pipeline (schedule {strategy.order.name}; json can "
            "say them)"
        )
    if strategy.program is not None:
        mesh = _mesh_of("mesh0", strategy.stages[0])
        return [mesh], _of_program(graph.operators, strategy.program, mesh)
    meshes: list[Mesh] = []
    rows: dict[int, dict[str, Any]] = {}
    for number, stage in enumerate(strategy.stages):
        mesh = _mesh_of(f"mesh{number}", stage)
        members = stage.operators.tolist()
        meshes.append(mesh)
        rows |= zip(members, _of_program([graph.operators[op] for op in members], stage.program, mesh), strict=True)
    return meshes, [rows[op] for op in range(len(graph.operators))]


def _mesh_of(name: str, stage: Stage) -> Mesh:
    return Mesh(name, stage.mesh.devices.reshape(stage.mesh.sizes), stage.mesh.axes)


def _of_program(members: Sequence[Operator], program: SpmdProgram, mesh: Mesh) -> list[dict[str, Any]]:
    operators = []
    for index, op in enumerate(members):
        layouts = []
        for k, tensor in enumerate(arguments(op)):
            target = _dtensor_texts(program.wanted(index, k))
            stored = _dtensor_texts(program.stored[index][k])
            layouts.append(
                {**_tensor_entry(tensor, target), **({"stored": stored} if stored and stored != target else {})}
            )
        outputs = [_tensor_entry(tensor, _dtensor_texts(program.made(index, k))) for k, tensor in enumerate(op.outputs)]
        count = len(op.inputs)
        operators.append({**_head(op, mesh), "inputs": layouts[:count], "weights": layouts[count:], "outputs": outputs})
    return operators


def _head(op: Operator, mesh: Mesh) -> dict[str, Any]:
    return {"name": op.name, "kind": op.kind, "mesh": mesh.name}


def _tensor_entry(tensor: Tensor, placements: list[str]) -> dict[str, Any]:
    return {"name": tensor.name, "shape": list(tensor.shape), "placements": placements}


def _placements(op: Operator, tensor: Tensor, layout: Layout, default: str) -> list[str]:
    """Return the placements of a tensor; ``default`` where it lacks what is cut: of an output these are sums."""
    words = []
    for dim in layout.dims:
        axis_index = next((k for k, axis in enumerate(tensor.axes) if axis.dim == dim), -1)
        if dim < 0:
            words.append("Replicate()")
        elif axis_index < 0:
            words.append(default)
        else:
            axis = tensor.axes[axis_index]
            equal = axis.offset == 0 and axis.scale == axis.extent and axis.size == op.dims[dim].size * axis.scale
            if not equal and default == "Partial()":
                raise TopoplanError(
                    f"dtensor: operator {op.name!r}: cutting {op.dims[dim].name!r} does not cut output "
                    f"{tensor.name!r} in equal slices (json can say it)"
                )
            words.append(f"Shard({axis_index})" if equal else "Replicate()")
    return words


def _dtensor_texts(forms: tuple[Sharding, ...]) -> list[str]:
    """Return the shardings along the dimensions of a mesh, as texts of DTensor."""
    words = {Holding.REPLICATED: "Replicate()", Holding.PENDING_GRADIENT: "Replicate()", Holding.PARTIAL: "Partial()"}
    return [f"Shard({form.axis})" if form.sliced else words[form.holding] for form in forms]


def _scheduling(strategy: Strategy) -> dict[str, Any]:
    """Return the pipeline stage of each operator, if there is a pipeline."""
    one_pass = strategy.n_stages == strategy.micro_batches == 1 and not any(strategy.recomputes)
    if strategy.whole_batch or one_pass:
        return {}
    return {
        "schedule": {
            "kind": strategy.order_name,
            "micro_batches": strategy.micro_batches,
            "stages": strategy.stage_of.tolist(),
            **(_shared(strategy) if isinstance(strategy, StagedStrategy) and not strategy.is_placed else {}),
        }
    }


def _shared(strategy: StagedStrategy) -> dict[str, Any]:
    """Return what devices of each stage share (ZeRO), if any do, and which operators run again."""
    levels = [
        {"level": stage.zero.level, "dims": [stage.mesh.axes[axis] for axis in stage.zero.axes]}
        for stage in strategy.stages
    ]
    regions = np.full(len(strategy.placements), -1)
    for stage in strategy.stages:
        regions[stage.operators] = stage.regions
    return {
        **({"zero": levels} if any(each["level"] for each in levels) else {}),
        **({"recomputed": regions.tolist()} if (regions >= 0).any() else {}),
    }
