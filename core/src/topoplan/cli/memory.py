"""What tables and JSON say about memory: the fullest device, what is on it, and whether the plan fits."""

from __future__ import annotations

from typing import Any

from topoplan.plan import Plan

__all__ = ["memory_json", "memory_rows", "misfit"]

_LABELS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "undivided": "not divided by the estimator",
}


def memory_rows(plan: Plan) -> list[tuple[str, str]]:
    """Return the rows of a table: the fullest device, and by what it is filled."""
    memory, capacity = plan.memory, plan.cluster.device_memory
    if memory is None:
        return []
    device = memory.fullest(capacity)
    used = f"{_gigabytes(memory.total[device])} of {_gigabytes(capacity[device])} (device {device})"
    rows = [("memory per device", used if plan.fits else f"DOES NOT FIT: {used}")]
    for name, nbytes in memory.on(device).items():
        said = _at_once(plan, device) if name == "activations" else ""
        rows.append((f"  {_LABELS[name]}", _gigabytes(nbytes) + said))
    return rows


def memory_json(plan: Plan) -> dict[str, Any]:
    """Return what the JSON object of a run says about memory: of the fullest device."""
    memory, capacity = plan.memory, plan.cluster.device_memory
    assert memory is not None
    device = memory.fullest(capacity)
    return {
        "fits": plan.fits,
        "memory_bytes": float(memory.total[device]),
        "memory_capacity_bytes": float(capacity[device]),
        "memory": {"device": device, **{f"{name}_bytes": nbytes for name, nbytes in memory.on(device).items()}},
    }


def misfit(plan: Plan) -> str:
    """Say in one line which device lacks how much."""
    memory, capacity = plan.memory, plan.cluster.device_memory
    assert memory is not None
    device = memory.fullest(capacity)
    count = int((memory.total > capacity).sum())
    others = "" if count == 1 else f", and {count - 1} more of {len(capacity)} devices need too much"
    needed = f"device {device} needs {_gigabytes(memory.total[device])} of {_gigabytes(capacity[device])}"
    return f"DOES NOT FIT: {needed}{others}"


def _at_once(plan: Plan, device: int) -> str:
    """Say how many micro-batches are under way at the time, where the batch is cut."""
    schedule = None if plan.strategy is None else plan.strategy.schedule
    if schedule is None or schedule.micro_batches == 1 or plan.memory is None:
        return ""
    count = schedule.micro_batches
    return f" ({plan.memory.at_once[device] * count:.3g} of {count} micro-batches)"


def _gigabytes(nbytes: float) -> str:
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e9:.2g} GB"
