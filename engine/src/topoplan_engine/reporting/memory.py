"""What tables and JSON say about memory: the fullest device, what is on it, and whether the plan fits."""

from __future__ import annotations

from typing import Any

from topoplan.model.plan import Plan
from topoplan_engine.fitting import bytes_by_purpose, fullest_device, reserve_text, size_text

__all__ = ["memory_json", "memory_rows"]

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
    device = fullest_device(memory, capacity)
    used = f"{size_text(memory.total[device])} of {size_text(capacity[device])} (device {device})"
    rows = [("memory per device", used if plan.fits else f"DOES NOT FIT: {used}")]
    for name, nbytes in bytes_by_purpose(memory, device).items():
        remark = _at_once(plan, device) if name == "activations" else ""
        rows.append((f"  {_LABELS[name]}", size_text(nbytes) + remark))
    if plan.cluster.memory_reserve:
        whole = float(plan.cluster.device_memory[device])
        reserve = f"{size_text(whole - capacity[device])}, {reserve_text(plan.cluster)} of {size_text(whole)}"
        rows.append(("  reserve", reserve))
    return rows


def memory_json(plan: Plan) -> dict[str, Any]:
    """Return what the JSON object of a run says about memory: of the fullest device; nothing where it is not known."""
    memory, capacity = plan.memory, plan.cluster.device_memory
    if memory is None:
        return {}
    device = fullest_device(memory, plan.cluster.usable_memory)
    purposes = {f"{name}_bytes": nbytes for name, nbytes in bytes_by_purpose(memory, device).items()}
    return {
        "fits": plan.fits,
        "memory_bytes": float(memory.total[device]),
        "memory_capacity_bytes": float(capacity[device]),
        "memory_reserve_bytes": float(capacity[device] - plan.cluster.usable_memory[device]),
        "memory": {"device": device, **purposes},
    }


def _at_once(plan: Plan, device: int) -> str:
    """Say how many micro-batches are under way at the time, where the batch is cut."""
    count = 1 if plan.strategy is None else plan.strategy.micro_batches
    if count == 1 or plan.memory is None:
        return ""
    return f" ({plan.memory.at_once[device] * count:.3g} of {count} micro-batches)"
