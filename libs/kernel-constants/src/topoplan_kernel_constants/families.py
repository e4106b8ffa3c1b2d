"""Families of kernels that have constants of their own, and the measured rows of each.

A family is a precision and what the library has other kernels for: how the rows of matrices are aligned, the pass of a
convolution, attention forward or backward.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import attrs
import numpy as np

from topoplan.arrays import F64
from topoplan_kernel_constants.attention import Attention
from topoplan_kernel_constants.tables import column, has, names, table
from topoplan_kernel_constants.tiles import Products

__all__ = [
    "CONVOLUTION_ROLES",
    "ITEM",
    "ROLES",
    "Measured",
    "alignment",
    "attention_rows",
    "convolution_products",
    "convolution_rows",
    "convolution_shapes",
    "linear_products",
    "product_rows",
    "product_shapes",
]

#: Bytes of an element.
ITEM = {"fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "bf16-grouped": 2, "fp8": 1, "fp4": 0.5}
#: Products of a linear layer: of its output, of its data's gradient, of its weight's gradient.
ROLES = ("forward", "data", "weight")
CONVOLUTION_ROLES = ROLES
#: Elements to which rows are aligned at best, where the library has kernels for less; others have the same for all.
_ALIGNED = {"bf16": 8, "fp16": 8, "tf32": 4}


@attrs.frozen(eq=False)
class Measured:
    """Measured kernels of a family: the work, coordinates for neighbours (n, d), and (n,) seconds.

    ``shape`` (n,) is equal for rows of one layer, which are held out together.
    """

    work: Products | Attention
    shapes: F64
    seconds: F64
    layer: np.ndarray[tuple[int], np.dtype[np.int64]]


def alignment(mode: str, role: str, m: F64, n: F64, k: F64) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the power of two, up to what the library asks for, that divides the rows of all three matrices.

    Rows lie as those of a linear layer do: forward (m, k), (n, k); data (m, k), (k, n); weight (k, m), (k, n).
    """
    most = _ALIGNED.get(mode, 1)
    first = m if role == "weight" else k
    second = k if role == "forward" else n
    powers = [np.gcd(np.asarray(rows).astype(np.int64), most) for rows in (first, second, n)]
    smallest_power = np.minimum.reduce(powers)
    return np.where(smallest_power >= most, most, 1) if mode == "tf32" else smallest_power


def linear_products(mode: str, role: str, batch: F64, m: F64, n: F64, k: F64) -> Products:
    """Return products of one role."""
    nbytes = ITEM[mode] * batch * (m * k + n * k + m * n)
    return Products(batch, m, n, k, nbytes, np.full(len(m), ROLES.index(role)))


def product_shapes(work: Products) -> F64:
    """Return the coordinates of products."""
    return np.stack([np.log2(x) for x in (work.m, work.n, work.k, work.batch)] + [work.kind * 1.5], axis=1)


def product_rows(device: str) -> Iterator[tuple[str, Measured]]:
    """Yield the families of products: precision and alignment."""
    modes = np.array(names(device, "products", "mode"))
    batch, m, n, k = (column(device, "products", word) for word in ("batch", "rows", "outputs", "inputs"))
    parts: dict[str, list[Measured]] = {}
    for mode in dict.fromkeys(modes.tolist()):
        for role in ROLES:
            seconds = column(device, "products", f"{role}_us") / 1e6
            is_of_mode = (modes == mode) & np.isfinite(seconds)
            rows = m / batch if mode == "bf16-grouped" else m
            sizes = {"forward": (rows, n, k), "data": (rows, k, n), "weight": (n, k, rows)}[role]
            order = alignment(mode, role, *sizes)
            for each in np.unique(order[is_of_mode]).tolist():
                places = np.flatnonzero(is_of_mode & (order == each))
                work = linear_products(mode, role, batch[places], *(size[places] for size in sizes))
                measured = Measured(work, product_shapes(work), seconds[places], places)
                parts.setdefault(f"{mode}/{each}", []).append(measured)
    for name, pieces in parts.items():
        yield name, _joined(pieces)


def _joined(pieces: list[Measured]) -> Measured:
    fields = zip(*(attrs.astuple(piece.work, recurse=False) for piece in pieces), strict=True)
    work = Products(*map(np.concatenate, fields))
    columns = (np.concatenate([getattr(piece, word) for piece in pieces]) for word in ("shapes", "seconds", "layer"))
    return Measured(work, *columns)


# ── Convolutions ───────────────────────────────────────────────────────────────────────────────────────────

#: Kernels of convolutions have rates of their own: of one pixel, of 3 x 3, larger, strided, of first layers, grouped.
CONVOLUTION_KINDS = 6
_FEW_CHANNELS = 8


def convolution_products(mode: str, role: str, of: Mapping[str, F64]) -> Products:
    """Return convolutions as the products that they are (implicit GEMM).

    Args:
        mode: precision.
        role: pass.
        of: samples, channels, height, width, filters, kernel_h, kernel_w, stride, out_height, out_width, groups.
    """
    area = of["kernel_h"] * of["kernel_w"]
    channels, filters = of["channels"] / of["groups"], of["filters"] / of["groups"]
    pixels, places = of["samples"] * of["out_height"] * of["out_width"], of["samples"] * of["height"] * of["width"]
    m, n, k = {
        "forward": (pixels, filters, channels * area),
        "data": (places, channels, np.maximum(filters * area / of["stride"] ** 2, 1)),
        "weight": (filters, channels * area, pixels),
    }[role]
    elements = places * of["channels"] + pixels * of["filters"] + of["filters"] * channels * area
    kind = np.where(area == 1, 0, np.where((area == 9) & (of["kernel_h"] == of["kernel_w"]), 1, 2))
    kind = np.where(of["stride"] > 1, 3, kind)
    kind = np.where(of["channels"] < _FEW_CHANNELS, 4, kind)
    kind = np.where(of["groups"] > 1, 5, kind)
    return Products(of["groups"], m, n, k, ITEM[mode] * elements, kind)


def convolution_shapes(work: Products, of: Mapping[str, F64]) -> F64:
    """Return the coordinates of convolutions."""
    windows = [np.log2(of["kernel_h"] * of["kernel_w"]), np.log2(of["kernel_h"] / of["kernel_w"]), of["stride"] * 1.5]
    sides = [np.log2(of["groups"]), np.log2(of["height"]) / 2]
    return np.stack([np.log2(x) for x in (work.m, work.n, work.k)] + windows + sides, axis=1)


def convolution_rows(device: str) -> Iterator[tuple[str, Measured]]:
    """Yield the families of convolutions: precision and pass; none where none was measured."""
    if not has(device, "convolutions"):
        return
    words = ("samples", "channels", "side", "filters", "kernel_h", "kernel_w", "stride", "padding", "groups")
    columns = {word: column(device, "convolutions", word) for word in words}
    columns |= {"height": columns["side"], "width": columns["side"]}
    for axis, word in (("kernel_h", "out_height"), ("kernel_w", "out_width")):
        pad = np.where(columns["padding"] > 0, columns[axis] // 2, 0)
        columns[word] = (columns["side"] + 2 * pad - columns[axis]) // columns["stride"] + 1
    modes = np.array(names(device, "convolutions", "mode"))
    for mode in dict.fromkeys(modes.tolist()):
        places = np.flatnonzero(modes == mode)
        of = {word: values[places] for word, values in columns.items()}
        for role in CONVOLUTION_ROLES:
            work = convolution_products(mode, role, of)
            seconds = column(device, "convolutions", f"{role}_us")[places] / 1e6
            yield f"{mode}/convolution/{role}", Measured(work, convolution_shapes(work, of), seconds, places)


# ── Attention ──────────────────────────────────────────────────────────────────────────────────────────────


def attention_rows(device: str) -> Iterator[tuple[str, Measured]]:
    """Yield the families of attention: precision, whether heads share keys, and pass."""
    words = ("samples", "heads", "kv_heads", "queries", "keys", "channels", "causal")
    columns = [column(device, "attention", word) for word in words]
    modes = np.array(table(device, "attention")["mode"])
    shared = columns[1] != columns[2]
    for mode in dict.fromkeys(modes.tolist()):
        for is_shared in (False, True):
            places = np.flatnonzero((modes == mode) & (shared == is_shared))
            if not len(places):
                continue
            for role in ("forward", "backward"):
                constant = [np.full(len(places), float(value)) for value in (ITEM[mode], role == "backward")]
                work = Attention(*(values[places] for values in columns), *constant)
                seconds = column(device, "attention", f"{role}_us")[places] / 1e6
                name = f"{mode}/attention{'-shared' if is_shared else ''}/{role}"
                yield name, Measured(work, work.shapes(), seconds, places)
