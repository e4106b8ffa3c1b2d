"""Operators on images: convolution, pooling, and flattening for the classifier.

A part that makes some rows of the output reads the rows of the input under its windows, halo included;
`topoplan.model.graph.Axis` says it as scale (stride), offset (padding) and extent (kernel).
"""

from __future__ import annotations

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Dimension, Operator, Role, Tensor, Term
from topoplan_operators.handle import Handle, plain

__all__ = ["Pair", "conv2d", "flat", "pair", "pool2d"]

Pair = int | tuple[int, int]


def pair(value: Pair) -> tuple[int, int]:
    """Return ``(height, width)``; one number stands for both."""
    return (value, value) if isinstance(value, int) else value


def _windows(
    kind: str, x: Handle, kernel: Pair, stride: Pair, padding: Pair
) -> tuple[tuple[int, ...], tuple[Axis, ...]]:
    """Return the output (height, width) and the axes by which dimensions 2 and 3 read the input's."""
    if len(x.shape) != 4:
        raise TopoplanError(f"{kind}: input of shape {x.shape} is not (samples, channels, height, width)")
    sizes, axes = [], []
    for dim, size, k, s, p in zip((2, 3), x.shape[2:], pair(kernel), pair(stride), pair(padding), strict=True):
        if k < 1 or s < 1 or p < 0 or size + 2 * p < k:
            raise TopoplanError(f"{kind}: kernel {k}, stride {s}, padding {p} do not fit an input of {size}")
        sizes.append((size + 2 * p - k) // s + 1)
        axes.append(Axis(size, dim, scale=s, offset=-p, extent=k))
    return tuple(sizes), tuple(axes)


def conv2d(x: Handle, out: int, kernel: Pair, *, stride: Pair, padding: Pair, bias: bool, activation: bool) -> Operator:
    """Return a 2-D convolution of ``x`` (samples, channels, height, width) to ``out`` channels.

    Dimensions: ``n`` samples, ``o`` output channels, ``h``, ``w`` output positions, ``i`` input channels.
    """
    (height, width), windows = _windows("conv2d", x, kernel, stride, padding)
    (kh, kw), (samples, channels) = pair(kernel), x.shape[:2]
    n, o, h, w, i = range(5)
    weights = [Tensor("kernel", (Axis(out, o), Axis(channels, i), Axis(kh), Axis(kw)))]
    if bias:
        weights.append(Tensor("bias", (Axis(out, o),)))
    work = [Term(2 * kh * kw, (n, o, h, w, i))]
    if bias or activation:
        work.append(Term(int(bias) + int(activation), (n, o, h, w)))
    return Operator(
        name="",
        kind="conv2d",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("o", out, Role.PARAMETER),
            Dimension("h", height, Role.ATTRIBUTE),
            Dimension("w", width, Role.ATTRIBUTE),
            Dimension("i", channels, Role.REDUCTION),
        ),
        inputs=(Tensor("x", (Axis(samples, n), Axis(channels, i), *windows), x.itemsize),),
        weights=tuple(weights),
        outputs=(plain("y", Handle((samples, out, height, width), x.itemsize), n, o, h, w),),
        work=tuple(work),
        tags={"flexnet": f"Conv2D_{kh}_{kw}_{out}"},
        linear_in=() if activation else tuple((factor, *((2,) if bias else ())) for factor in (0, 1)),
    )


def pool2d(x: Handle, kernel: Pair, *, stride: Pair, padding: Pair) -> Operator:
    """Return a 2-D pooling of ``x`` (samples, channels, height, width).

    Dimensions: ``n`` samples, ``c`` channels, ``h``, ``w`` output positions.
    """
    (height, width), windows = _windows("pool2d", x, kernel, stride, padding)
    (kh, kw), (samples, channels) = pair(kernel), x.shape[:2]
    n, c, h, w = range(4)
    return Operator(
        name="",
        kind="pool2d",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("c", channels, Role.ATTRIBUTE),
            Dimension("h", height, Role.ATTRIBUTE),
            Dimension("w", width, Role.ATTRIBUTE),
        ),
        inputs=(Tensor("x", (Axis(samples, n), Axis(channels, c), *windows), x.itemsize),),
        outputs=(plain("y", Handle((samples, channels, height, width), x.itemsize), n, c, h, w),),
        work=(Term(kh * kw, (n, c, h, w)),),
        tags={"flexnet": f"Pool2D_{kh}_{kw}"},
    )


def flat(x: Handle) -> Operator:
    """Return ``x`` (samples, channels, height, width) as (samples, channels * height * width).

    Dimensions: ``n`` samples, ``c`` channels; positions stay together because they lie behind channels.
    """
    if len(x.shape) != 4:
        raise TopoplanError(f"flat: input of shape {x.shape} is not (samples, channels, height, width)")
    samples, channels, height, width = x.shape
    area = height * width
    return Operator(
        name="",
        kind="flat",
        dims=(Dimension("n", samples, Role.SAMPLE), Dimension("c", channels, Role.ATTRIBUTE)),
        inputs=(plain("x", x, 0, 1, -1, -1),),
        outputs=(Tensor("y", (Axis(samples, 0), Axis(channels * area, 1, scale=area, extent=area)), x.itemsize),),
        tags={"flexnet": "Flat"},
        linear_in=((0,),),
    )
