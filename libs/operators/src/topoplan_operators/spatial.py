"""Operators on images: convolution, pooling, and flattening for the classifier.

A part that makes some rows of the output reads the rows of the input under its windows, halo included;
`topoplan.model.graph.Axis` says it as scale (stride), offset (padding) and extent (kernel).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Dimension, Operator, Role, Tensor, Term
from topoplan_operators.handle import Handle, plain

__all__ = ["Pads", "Pair", "conv2d", "convolution", "flat", "in_groups", "loops", "pair", "pool2d", "pooling"]

Pair = int | tuple[int, int]
#: Of every axis of positions: how many zeros stand before it, and behind it.
Pads = Sequence[tuple[int, int]]
#: Bytes of the place of a window's largest element, for the backward pass, as PyTorch keeps it.
_PLACE_BYTES = 8


def pair(value: Pair) -> tuple[int, int]:
    """Return ``(height, width)``; one number stands for both."""
    return (value, value) if isinstance(value, int) else value


def _windows(
    kind: str,
    x: Handle,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Pads,
    dilation: Sequence[int],
) -> tuple[tuple[int, ...], tuple[Axis, ...]]:
    """Return the positions of the output, and the axes by which dimensions 2, 3, ... read the input's."""
    positions = x.shape[2:]
    if not positions or not len(positions) == len(kernel) == len(stride) == len(padding) == len(dilation):
        names = "height, width" if kind.endswith("2d") else "positions ..."
        raise TopoplanError(f"{kind}: input of shape {x.shape} is not (samples, channels, {names})")
    sizes, axes = [], []
    for dim, size, k, s, (low, high), d in zip(
        range(2, 2 + len(positions)), positions, kernel, stride, padding, dilation, strict=True
    ):
        window = (k - 1) * d + 1
        if k < 1 or s < 1 or d < 1 or min(low, high) < 0 or size + low + high < window:
            pads = str(low) if low == high else f"{low} and {high}"
            numbers = f"kernel {k}, stride {s}, padding {pads}{'' if d == 1 else f', dilation {d}'}"
            raise TopoplanError(f"{kind}: {numbers} do not fit an input of {size}")
        sizes.append((size + low + high - window) // s + 1)
        axes.append(Axis(size, dim, scale=s, offset=-low, extent=window))
    return tuple(sizes), tuple(axes)


def conv2d(
    x: Handle,
    out: int,
    kernel: Pair,
    *,
    stride: Pair,
    padding: Pair,
    bias: bool,
    activation: bool,
    groups: int = 1,
    dilation: Pair = 1,
) -> Operator:
    """Return a 2-D convolution of ``x`` (samples, channels, height, width); see `convolution`."""
    return convolution(
        x,
        out,
        pair(kernel),
        stride=pair(stride),
        padding=[(p, p) for p in pair(padding)],
        bias=bias,
        activation=activation,
        groups=groups,
        dilation=pair(dilation),
    )


def convolution(
    x: Handle,
    out: int,
    kernel: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Pads,
    bias: bool,
    activation: bool,
    groups: int = 1,
    dilation: Sequence[int] | None = None,
) -> Operator:
    """Return a convolution of ``x`` (samples, channels, positions ...) to ``out`` channels.

    Dimensions: ``n`` samples, ``o`` output channels, ``h``, ``w`` output positions, ``i`` input channels.  With groups:
    ``g`` groups in place of ``o``, the positions, then ``o`` and ``i`` in each group.  Channels, which lie behind their
    group in one axis, then follow groups: they can be cut into as many parts as there are groups, and in no other way.

    Args:
        x: see above.
        out: output channels.
        kernel, stride, dilation: of every axis of positions; dilation is 1 unless given.
        padding: zeros before and behind every axis of positions.
        bias: whether it has a bias, a weight tensor of its own.
        activation: whether a function is applied to every output, at one FLOP each.
        groups: of channels; those of a group of the output see the same group of the input.

    Raises:
        TopoplanError: shapes do not fit, or groups do not divide channels.
    """
    kind = f"conv{len(kernel)}d"
    positions, windows = _windows(kind, x, kernel, stride, padding, dilation or [1] * len(kernel))
    samples, channels = x.shape[:2]
    if groups < 1 or out < 1 or channels % groups or out % groups:
        raise TopoplanError(f"{kind}: {groups} groups do not divide {channels} and {out} channels")
    dims = loops(samples, channels, out, positions, groups)
    i = len(dims) - 1
    output_channels = in_groups(out, groups)
    weights = [Tensor("kernel", (output_channels, Axis(channels // groups, i), *map(Axis, kernel)))]
    if bias:
        weights.append(Tensor("bias", (output_channels,)))
    work = [Term(2 * math.prod(kernel), tuple(range(len(dims))))]
    if bias or activation:
        work.append(Term(int(bias) + int(activation), tuple(range(i))))
    input_channels = Axis(channels, i) if groups == 1 else in_groups(channels, groups)
    answer = (Axis(samples, 0), output_channels, *(Axis(size, dim) for dim, size in enumerate(positions, 2)))
    return Operator(
        name="",
        kind=kind,
        dims=dims,
        inputs=(Tensor("x", (Axis(samples, 0), input_channels, *windows), x.itemsize),),
        weights=tuple(weights),
        outputs=(Tensor("y", answer, x.itemsize),),
        work=tuple(work),
        tags={"flexnet": f"Conv2D_{'_'.join(map(str, kernel))}_{out}"} if len(kernel) == 2 else {},
        linear_in=() if activation else tuple((factor, *((2,) if bias else ())) for factor in (0, 1)),
        saved=("x", "y") if activation else None,
    )


def loops(samples: int, channels: int, out: int, positions: Sequence[int], groups: int) -> tuple[Dimension, ...]:
    """Return the iteration space of a convolution."""
    names = _names(len(positions))
    return (
        Dimension("n", samples, Role.SAMPLE),
        Dimension("o", out, Role.PARAMETER) if groups == 1 else Dimension("g", groups, Role.PARAMETER),
        *(Dimension(name, size, Role.ATTRIBUTE) for name, size in zip(names, positions, strict=True)),
        *(() if groups == 1 else (Dimension("o", out // groups),)),
        Dimension("i", channels // groups, Role.REDUCTION if groups == 1 else None),
    )


def in_groups(channels: int, groups: int) -> Axis:
    """Return an axis of channels that follows dimension 1: themselves, or their groups where there are several."""
    inner = channels // groups if groups > 1 else 1
    return Axis(channels, 1, scale=inner, extent=inner)


def _names(count: int) -> tuple[str, ...]:
    """Return the names of the dimensions of positions."""
    return ("h", "w") if count == 2 else tuple("dhw"[-count:]) if count <= 3 else tuple(f"p{k}" for k in range(count))


def pool2d(
    x: Handle, kernel: Pair, *, stride: Pair, padding: Pair | Pads, average: bool = False, dilation: Pair = 1
) -> Operator:
    """Return a 2-D pooling; see `pooling`.

    Args:
        x: (samples, channels, height, width).
        kernel, stride, dilation: of height and width.
        padding: of height and width, or what stands before and behind each.
        average: the mean of a window, which is linear, not its maximum.
    """
    sides = pair(padding) if isinstance(padding, int) else padding
    pads = [(side, side) if isinstance(side, int) else side for side in sides]
    return pooling(x, pair(kernel), stride=pair(stride), padding=pads, average=average, dilation=pair(dilation))


def pooling(
    x: Handle,
    kernel: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Pads,
    average: bool = False,
    dilation: Sequence[int] | None = None,
) -> Operator:
    """Return a pooling of ``x`` (samples, channels, positions ...), of kind ``pool2d`` or ``avg_pool2d``.

    Dimensions: ``n`` samples, ``c`` channels, then the output positions, ``h`` and ``w`` in two dimensions.  Kinds of
    one axis and of three are ``pool1d`` and ``pool3d``.  FLOPs are one for each element of a window.

    Args:
        x: see above.
        kernel, stride, dilation: of every axis of positions; dilation is 1 unless given.
        padding: what stands before and behind every axis of positions.
        average: the mean of a window, which is linear, not its maximum.

    Raises:
        TopoplanError: windows do not fit.
    """
    kind = f"pool{len(kernel)}d"
    positions, windows = _windows(kind, x, kernel, stride, padding, dilation or [1] * len(kernel))
    samples, channels = x.shape[:2]
    dims = (
        Dimension("n", samples, Role.SAMPLE),
        Dimension("c", channels, Role.ATTRIBUTE),
        *(Dimension(name, size, Role.ATTRIBUTE) for name, size in zip(_names(len(kernel)), positions, strict=True)),
    )
    axes = tuple(range(len(dims)))
    return Operator(
        name="",
        kind=f"avg_{kind}" if average else kind,
        dims=dims,
        inputs=(Tensor("x", (Axis(samples, 0), Axis(channels, 1), *windows), x.itemsize),),
        outputs=(plain("y", Handle((samples, channels, *positions), x.itemsize), *axes),),
        work=(Term(math.prod(kernel), axes),),
        tags={"flexnet": f"Pool2D_{kernel[0]}_{kernel[1]}"} if len(kernel) == 2 else {},
        linear_in=((0,),) if average else (),
        saved=("x",),  # also of a mean: frameworks keep it for its shape
        extras=() if average else (plain("places", Handle((samples, channels, *positions), _PLACE_BYTES), *axes),),
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
