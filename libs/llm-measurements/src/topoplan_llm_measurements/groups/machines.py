"""Machines by the names that tables give accelerators and systems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from topoplan.errors import TopoplanError, shown

__all__ = ["cluster_of"]

#: Part of a name -> machine, and GPUs that share NVLinks where they are fewer than the machine's; longer names first.
_MACHINES = {
    "GB300": "gb300-nvl72",
    "GB200": "gb200-nvl72",
    "B300": "dgx-b300",
    "B200": "dgx-b200",
    "H200": "dgx-h200",
    "H100": "dgx-h100",
    "A100": "dgx-a100",
}
_RACK = 72


def cluster_of(name: str, devices: int) -> Mapping[str, Any]:
    """Return the options of a cluster.

    Of a rack of 72 GPUs, runs whose devices are no multiple of 72 use 64, or as many as divide them.

    Raises:
        TopoplanError: no machine of the name is known.

    Examples:
        >>> cluster_of("DGX-GB200", 256)
        {'machine': 'gb200-nvl72:gpus=64'}
    """
    machine = next((machine for part, machine in _MACHINES.items() if part in name), None)
    if machine is None:
        raise TopoplanError(f"{shown(name)}: no machine of it is known (have: {', '.join(_MACHINES)})")
    if not machine.endswith("nvl72") or devices % _RACK == 0:
        return {"machine": machine}
    return {"machine": f"{machine}:gpus={max(size for size in range(1, 65) if devices % size == 0)}"}
