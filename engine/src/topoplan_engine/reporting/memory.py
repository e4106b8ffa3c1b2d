"""What tables and JSON say about memory: the fullest device, what is on it, and whether the plan fits."""

from __future__ import annotations

from typing import Any

import numpy as np

from topoplan.model.plan import Plan
from topoplan.model.staged import StagedStrategy
from topoplan_engine.fitting import bytes_by_purpose, fullest_device, reserve_text, size_text
from topoplan_engine.reporting.tables import Column, RowTable

__all__ = ["fits_text", "memory_json", "memory_rows", "print_stages", "stage_memory"]

_GIB = 2**30

_LABELS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "undivided": "not divided by the estimator",
}


def memory_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of a table: the fullest device, and by what it is filled."""
    memory, capacity = plan.memory, plan.cluster.usable_memory
    if memory is None:
        return []
    device = fullest_device(memory.total, capacity)
    used = f"{size_text(memory.total[device])} of {size_text(capacity[device])} (device {device})"
    rows = [("memory per device", used if plan.fits else f"DOES NOT FIT: {used}")]
    for name, nbytes in bytes_by_purpose(memory, device).items():
        remark = _at_once(plan, device) if name == "activations" else ""
        rows.append((f"  {_LABELS[name]}", size_text(nbytes) + remark))
    if plan.cluster.memory_reserve:
        whole = float(plan.cluster.device_memory[device])
        reserve = f"{size_text(whole - capacity[device])}, {reserve_text(plan.cluster)} of {size_text(whole)}"
        rows.append(("  reserve", f"{reserve}, for all but tensors: driver, NCCL, what an allocator keeps unused"))
    return rows


def fits_text(plan: Plan) -> str:
    """Say whether a plan with memory fits, and how much of the fullest device it fills."""
    assert plan.memory is not None
    device = fullest_device(plan.memory.total, plan.cluster.usable_memory)
    used, room = float(plan.memory.total[device]), float(plan.cluster.usable_memory[device])
    stage = next((text for devices, text in _ranks(plan) if (devices == device).any()), "")
    where = f"device {device}" + (f", stage {stage}" if stage else "")
    text = f"{used / _GIB:.1f} of {room / _GIB:.1f} GiB on the fullest device ({where})"
    return f"fits: {text}" if plan.fits else f"DOES NOT FIT, {(used - room) / _GIB:.1f} GiB too much: {text}"


def stage_memory(plan: Plan) -> list[dict[str, Any]]:
    """Return, for each stage of a pipeline, GiB of its fullest device by what they are for; nothing for one stage."""
    if plan.memory is None:
        return []
    rows = []
    for devices, stage in _ranks(plan):
        fullest = int(devices[_fullest_among(plan, devices)])
        purposes = bytes_by_purpose(plan.memory, fullest)
        sizes = {f"{name}_gib": nbytes / _GIB for name, nbytes in purposes.items()}
        total = float(plan.memory.total[fullest]) / _GIB
        rows.append({"stage": stage, "device": fullest, **sizes, "total_gib": total})
    return rows


def print_stages(plan: Plan) -> None:
    """Print GiB of the fullest device of each stage of a pipeline."""
    rows = stage_memory(plan)
    if not rows:
        return
    names = [name for name in rows[0] if name.endswith("_gib")]

    def column(name: str) -> Column[dict[str, Any]]:
        return Column(name.removesuffix("_gib"), lambda row: f"{row[name]:.1f}", align="right")

    stage = Column[dict[str, Any]]("stage", lambda row: str(row["stage"]), names_rows=True)
    device = Column[dict[str, Any]]("device", lambda row: str(row["device"]))
    RowTable([stage, device, *map(column, names)], rows).print("GiB of the fullest device of each stage")


def _fullest_among(plan: Plan, devices: np.ndarray) -> int:
    """Return the place of the fullest of some devices."""
    assert plan.memory is not None
    return fullest_device(plan.memory.total[devices], plan.cluster.usable_memory[devices])


def _ranks(plan: Plan) -> list[tuple[np.ndarray, str]]:
    """Return the devices of each rank of a pipeline, and the stages that it runs; nothing where there is one."""
    if not isinstance(plan.strategy, StagedStrategy) or plan.strategy.order.n_ranks < 2:
        return []
    stages: dict[bytes, tuple[np.ndarray, list[str]]] = {}
    for number, stage in enumerate(plan.strategy.stages):
        devices = np.sort(stage.mesh.devices)
        stages.setdefault(devices.tobytes(), (devices, []))[1].append(str(number))
    return [(devices, ", ".join(numbers)) for devices, numbers in stages.values()]


def memory_json(plan: Plan) -> dict[str, Any]:
    """Return what the JSON object of a run says about memory: of the fullest device; nothing where it is not known."""
    memory, capacity = plan.memory, plan.cluster.device_memory
    if memory is None:
        return {}
    device = fullest_device(memory.total, plan.cluster.usable_memory)
    purposes = {f"{name}_bytes": nbytes for name, nbytes in bytes_by_purpose(memory, device).items()}
    return {
        "fits": plan.fits,
        "memory_bytes": float(memory.total[device]),
        "memory_capacity_bytes": float(capacity[device]),
        "memory_reserve_bytes": float(capacity[device] - plan.cluster.usable_memory[device]),
        "memory": {"device": device, **purposes},
        **({"memory_by_stage": rows} if (rows := stage_memory(plan)) else {}),
    }


def _at_once(plan: Plan, device: int) -> str:
    """Say how many micro-batches are under way at the time, where the batch is cut."""
    count = 1 if plan.strategy is None else plan.strategy.micro_batches
    if count == 1 or plan.memory is None:
        return ""
    return f" ({plan.memory.at_once[device] * count:.3g} of {count} micro-batches)"
