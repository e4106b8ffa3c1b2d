"""What data sheets say of each kind of device, and whose measured kernels stand for those of another.

A device has tables of its own, or it is like one that has: its kernels are those of the other, with rates multiplied by
the ratio of what both reach (the peak of the data sheet times the best measured share of it) and with its own
bandwidth and multiprocessors.  A family that a device's tables have not (`topoplan_kernel_constants.families`) is taken
from the device that it is like in the same way.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import attrs
import numpy as np

from topoplan.arrays import F64
from topoplan_kernel_constants.tables import bench

__all__ = ["DEVICES", "Sheet", "faster", "moved", "origin", "rates_of", "sheet"]


@attrs.frozen(kw_only=True)
class Sheet:
    """A data sheet.

    Attributes:
        flops: dense FLOP/s by precision; what is missing the device cannot do.
        reached: share of the peak in bf16 that the best of many products reached.
        bandwidth: bytes/s of memory.
        processors: multiprocessors.
        like: the device whose kernels stand for those that were not measured on this one; empty where all were.
        is_measured: whether the package has tables of this device.
        note: what is assumed, for plans.
    """

    flops: Mapping[str, float]
    reached: float
    bandwidth: float
    processors: int
    like: str = ""
    is_measured: bool = False
    note: str = ""

    def rate(self, mode: str) -> float:
        """Return the FLOP/s that the best product reaches; the share is that of bf16 on every matrix unit."""
        return self.flops[mode] * (1.0 if mode == "fp32" else self.reached)


_HOPPER = {"fp32": 66.9e12, "tf32": 494.7e12, "bf16": 989.4e12, "fp8": 1979e12}
_AMPERE = {"fp32": 19.5e12, "tf32": 156e12, "bf16": 312e12}
_BLACKWELL = {"fp32": 75e12, "tf32": 1125e12, "bf16": 2250e12, "fp8": 4500e12, "fp4": 9000e12}
_GRACE = {"fp32": 80e12, "tf32": 1250e12, "bf16": 2500e12, "fp8": 5000e12, "fp4": 10000e12}
#: Blackwell Ultra has half as much again in fp4.
_ULTRA, _GRACE_ULTRA = {**_BLACKWELL, "fp4": 13500e12}, {**_GRACE, "fp4": 15000e12}
_RATIO = "rates times what the best product reaches"
#: Best products: stas00/ml-engineering@744d01e18b79, compute/accelerator/README.md.
_SHEETS = {
    "h100": Sheet(flops=_HOPPER, reached=794.5 / 989, bandwidth=3.35e12, processors=132, is_measured=True),
    "h200": Sheet(
        flops=_HOPPER, reached=794.5 / 989, bandwidth=4.8e12, processors=132, like="h100", note="the chip of the h100"
    ),
    "h800": Sheet(
        flops=_HOPPER, reached=794.5 / 989, bandwidth=3.35e12, processors=132, like="h100", note="the chip of the h100"
    ),
    "a100-pcie": Sheet(
        flops=_AMPERE, reached=252.9 / 312, bandwidth=1.935e12, processors=108, like="h100", is_measured=True
    ),
    "a100-40": Sheet(
        flops=_AMPERE, reached=271.2 / 312, bandwidth=1.555e12, processors=108, like="a100-pcie", note=_RATIO
    ),
    "a100-80": Sheet(
        flops=_AMPERE, reached=271.2 / 312, bandwidth=2.039e12, processors=108, like="a100-pcie", note=_RATIO
    ),
    "b200": Sheet(flops=_BLACKWELL, reached=1745 / 2250, bandwidth=8e12, processors=148, like="h100", is_measured=True),
    "gb200": Sheet(flops=_GRACE, reached=1822 / 2500, bandwidth=8e12, processors=148, like="b200", note=_RATIO),
    "b300": Sheet(flops=_ULTRA, reached=1769 / 2250, bandwidth=8e12, processors=148, like="b200", note=_RATIO),
    "gb300": Sheet(flops=_GRACE_ULTRA, reached=1822 / 2500, bandwidth=8e12, processors=148, like="b200", note=_RATIO),
    "mi300x": Sheet(
        flops={"fp32": 163.4e12, "tf32": 653.7e12, "bf16": 1307e12, "fp8": 2615e12},
        reached=668.4 / 1307,
        bandwidth=5.3e12,
        processors=304,
        like="h100",
        note="one constant, what its best product reaches: no kernel of it was measured",
    ),
}
#: Kinds of devices that are priced.
DEVICES = tuple(_SHEETS)


def sheet(device: str) -> Sheet:
    """Return the data sheet of a kind of device.

    >>> sheet("h200").like
    'h100'
    """
    return _SHEETS[device]


def origin(device: str) -> str:
    """Return whence the kernels of a device are, in words.

    >>> origin("h800")
    'NVIDIA H100 80GB HBM3, torch 2.11.0+cu130, driver 580.159.04, 2026-11-27; h800: the chip of the h100'
    """
    of = sheet(device)
    whence = ", ".join(_source(bench(device))) if of.is_measured else ""
    if not of.like:
        return whence
    prefix = f"{whence}; all else by rates and bandwidth from " if whence else ""
    note = f"; {device}: {of.note}" if of.note else ""
    return f"{prefix}{origin(of.like)}{note}"


def _source(about: Mapping[str, str]) -> list[str]:
    if "source" in about:
        return [about["device"], about["source"]]
    return [about["device"], f"torch {about['torch']}", f"driver {about['driver']}", about["date"]]


def moved(constants: F64, family: str, first: str, second: str) -> F64 | None:
    """Return the constants of a family on another device; None where that one has not the precision.

    The first constant is a bandwidth, and the last ones, or the third of attention, are rates.

    Args:
        constants: logarithms, as `tiles.start` and `attention.start` have them.
        family: whose constants they are.
        first, second: the device that they are of, and the other one.
    """
    mode = family.partition("/")[0].partition("-")[0]
    old, new = sheet(first), sheet(second)
    if mode not in new.flops or mode not in old.flops:
        return None
    after = np.array(constants)
    after[0] += math.log(new.bandwidth / old.bandwidth)
    after[rates_of(family)] += math.log(new.rate(mode) / old.rate(mode))
    return after


def faster(constants: F64, mode: str, narrow: str, device: str) -> F64:
    """Return the constants of a family in a narrower precision, at the ratio of both peaks."""
    after = np.array(constants)
    after[rates_of(mode)] += math.log(sheet(device).flops[narrow] / sheet(device).flops[mode])
    return after


def rates_of(family: str) -> slice:
    """Return where the rates of a family's constants are."""
    return slice(2, 3) if "attention" in family else slice(16, None)
