"""Machines by the names that tables give accelerators and systems."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from topoplan.errors import TopoplanError, shown

__all__ = ["check_precision", "cluster_of", "hardware_of"]

#: Kind of device, as stacks name it -> machine; a name that has two of them is of the first.
_MACHINES = {
    "GB300": "gb300-nvl72",
    "GB200": "gb200-nvl72",
    "B300": "dgx-b300",
    "B200": "dgx-b200",
    "H200": "dgx-h200",
    "H100": "dgx-h100",
    "H800": "hgx-h800",
    "A100": "dgx-a100",
}
#: Devices whose names have one of these in them, and which are others.
_OTHERS = ("GH200",)
_RACK = 72


def hardware_of(name: str, column: str) -> str:
    """Return the kind of device of a system or accelerator, as the names of stacks begin.

    Raises:
        TopoplanError: kernels of none such were measured; the message names the column.

    Examples:
        >>> hardware_of("NVIDIA Blackwell Ultra GPU (B300-SXM-270GB)", "accelerator")
        'B300'
    """
    word = name.upper()
    if not any(name_part in word for name_part in _OTHERS):
        for kind in _MACHINES:
            if re.search(rf"{kind}(?![0-9])", word):
                return kind
    raise TopoplanError(f"{column}: {shown(name)}: its kernels were not measured (have: {', '.join(_MACHINES)})")


def cluster_of(hardware: str, devices: int) -> Mapping[str, Any]:
    """Return the options of a cluster of a kind of device.

    Of a rack of 72 GPUs, runs whose devices are no multiple of 72 use 64, or as many as divide them.

    Examples:
        >>> cluster_of("GB200", 256)
        {'machine': 'gb200-nvl72:gpus=64'}
    """
    machine = _MACHINES[hardware]
    if not machine.endswith("nvl72") or devices % _RACK == 0:
        return {"machine": machine}
    return {"machine": f"{machine}:gpus={max(size for size in range(1, 65) if devices % size == 0)}"}


def check_precision(hardware: str, precision: str) -> None:
    """Raise `TopoplanError` where a kind of device has no products in a precision.

    Examples:
        >>> check_precision("B200", "fp4")
    """
    without = {"fp8": ("A100",), "fp4": ("A100", "H800", "H100", "H200")}
    if hardware in without.get(precision, ()):
        raise TopoplanError(f"precision: {hardware} has no products in {precision}")
