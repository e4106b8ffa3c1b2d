"""Seconds of single kernels of one kind of device, by fitted constants and measured neighbours."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files

import attrs
import numpy as np

from topoplan.arrays import F64
from topoplan_kernel_constants import attention, tiles
from topoplan_kernel_constants.attention import Attention
from topoplan_kernel_constants.families import (
    CONVOLUTION_KINDS,
    ITEM,
    ROLES,
    Measured,
    alignment,
    attention_rows,
    convolution_products,
    convolution_rows,
    convolution_shapes,
    linear_products,
    product_rows,
    product_shapes,
)
from topoplan_kernel_constants.fitting import least
from topoplan_kernel_constants.neighbours import Neighbours
from topoplan_kernel_constants.passes import Curves
from topoplan_kernel_constants.sheets import faster, moved, rates_of, sheet
from topoplan_kernel_constants.steps import Steps
from topoplan_kernel_constants.tables import bench

__all__ = ["Kernels", "families_of", "fit", "modelled", "stored_constants"]

_ROUNDS = 24
#: Kernels of a family below which only its floor and its rates are fitted, and all else is that of the other device.
_FEW = 100


def families_of(device: str) -> Iterator[tuple[str, Measured]]:
    """Yield all families of a device with what was measured; of a device without tables none."""
    if not sheet(device).is_measured:
        return
    yield from product_rows(device)
    yield from convolution_rows(device)
    yield from attention_rows(device)


def modelled(device: str, constants: F64, work: tiles.Products | Attention) -> F64:
    """Return the seconds of the model alone, without neighbours."""
    processors = sheet(device).processors
    if isinstance(work, Attention):
        return attention.seconds_of(constants, work, processors)
    return tiles.seconds_of(constants, work, processors)


def fit(device: str, family: str, measured: Measured) -> F64:
    """Return the constants of a family: those with the least mean of |log(model / measured)|.

    They begin with those of the device that this one is like.  Of few kernels only the floor and rates are fitted.
    """
    start = _start(device, family, measured)
    free = np.arange(len(start))
    if sheet(device).like and len(measured.seconds) < _FEW:
        free = np.r_[1, free[rates_of(family)]]

    def whole(part: F64) -> F64:
        constants = start.copy()
        constants[free] = part
        return constants

    def loss(part: F64) -> float:
        return float(np.abs(np.log(modelled(device, whole(part), measured.work) / measured.seconds)).mean())

    return whole(least(loss, start[free], _ROUNDS))


def _start(device: str, family: str, measured: Measured) -> F64:
    """Return constants to begin with."""
    of = sheet(device)
    if of.like:
        constants = moved(stored_constants(of.like)[family], family, of.like, device)
        if constants is not None:
            return constants
    peak = of.flops[family.partition("/")[0].partition("-")[0]]
    if isinstance(measured.work, Attention):
        return attention.start(peak, of.bandwidth)
    return tiles.start(peak, of.bandwidth, CONVOLUTION_KINDS if "convolution" in family else len(ROLES))


@cache
def stored_constants(device: str) -> Mapping[str, F64]:
    """Return the fitted constants of a device's own tables, by family."""
    text = files(__package__).joinpath(device, "constants.json").read_text()
    return {name: np.array(values) for name, values in json.loads(text).items()}


@attrs.frozen(eq=False)
class _Family:
    """A family that answers: its constants, and its neighbours."""

    constants: F64
    near: Neighbours


def _families(device: str) -> Mapping[str, _Family]:
    """Return the families of a device: its own, and those of the device that it is like, at its rates."""
    families: dict[str, _Family] = {}
    if like := sheet(device).like:
        for name, family in _families(like).items():
            constants = moved(family.constants, name, like, device)
            if constants is not None:
                families[name] = _Family(constants, family.near)
    if sheet(device).is_measured:
        rows = dict(families_of(device))
        for name, values in stored_constants(device).items():
            of = rows[name]
            logs = np.log(of.seconds / modelled(device, values, of.work))
            families[name] = _Family(values, Neighbours(of.shapes, logs))
    if "fp8/1" in families and "fp4" in sheet(device).flops and "fp4/1" not in families:
        families["fp4/1"] = _Family(faster(families["fp8/1"].constants, "fp8", "fp4", device), families["fp8/1"].near)
    return families


@attrs.frozen(eq=False)
class Kernels:
    """Kernels of one kind of device.

    >>> h100 = Kernels.of("h100")
    >>> 600 < 2 * 8192**3 / h100.product("bf16", "forward", 1, 8192, 8192, 8192) / 1e12 < 850  # TFLOP/s
    True

    Attributes:
        device: the kind.
        counted: the device whose launches, passes over memory and steps were measured.
        families: by name.
        curves: of passes over memory.
        steps: of optimizers.
        gaps: microseconds that a kernel of one element takes in a stream, in a graph, and the host to launch it.
    """

    device: str
    counted: str
    families: Mapping[str, _Family]
    curves: Curves
    steps: Steps
    gaps: Mapping[str, float]

    @staticmethod
    @cache
    def of(device: str) -> Kernels:
        """Return the kernels of a device that `topoplan_kernel_constants.sheets` has."""
        counted = device
        while sheet(counted).like:
            counted = sheet(counted).like
        faster = sheet(device).bandwidth / sheet(counted).bandwidth
        curves, steps = Curves.of(counted, faster), Steps.of(counted, faster)
        return Kernels(device, counted, _families(device), curves, steps, bench(counted)["kernel_us"])

    def product(self, mode: str, role: str, batch: float, m: float, n: float, k: float) -> float:
        """Return the seconds of a product of m x k by k x n, or of a batch of them; see `families.alignment`."""
        sizes = [np.array([float(size)]) for size in (m, n, k)]
        family = f"{mode}/{alignment(mode, role, *sizes)[0]}"
        work = linear_products(mode, role, np.array([float(batch)]), *sizes)
        return self._seconds(family, work, product_shapes)

    def convolution(self, mode: str, role: str, of: Mapping[str, float]) -> float:
        """Return the seconds of one pass of a convolution; see `families.convolution_products`."""
        columns = {word: np.array([float(value)]) for word, value in of.items()}
        work = convolution_products(mode, role, columns)
        return self._seconds(f"{mode}/convolution/{role}", work, lambda each: convolution_shapes(each, columns))

    def attention(self, mode: str, role: str, *sizes: float) -> float:
        """Return the seconds of attention: samples, heads, kv_heads, queries, keys, channels, 1 where it is causal."""
        work = Attention(*(np.array([float(size)]) for size in (*sizes, ITEM[mode], role == "backward")))
        shared = "-shared" if sizes[1] != sizes[2] else ""
        family = self.families[f"{mode}/attention{shared}/{role}"]
        base = modelled(self.device, family.constants, work)
        return float((base * np.exp(family.near.logs(work.shapes())))[0])

    def moving(self, mode: str, kind: str, direction: str, rows: float, row: float) -> float:
        """Return the seconds of a pass over memory; see `passes.Curves.seconds`."""
        return self.curves.seconds("bf16" if mode in ("bf16", "fp16") else "fp32", kind, direction, rows, row)

    def _seconds(self, name: str, work: tiles.Products, shapes: Callable[[tiles.Products], F64]) -> float:
        family = self.families[name]
        base = modelled(self.device, family.constants, work)
        return float((base * np.exp(family.near.logs(shapes(work))))[0])
