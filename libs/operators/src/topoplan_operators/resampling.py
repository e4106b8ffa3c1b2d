"""Operators that give an image other sizes: transposed convolution, padding, and resizing.

Where the output has a whole number of elements for each of the input, or the other way round, a part makes a block of
the output from the elements under it and a few neighbors.  Then positions can be cut.  Otherwise no axis map says
which elements a part needs, and positions stay whole.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Dimension, Operator, Tensor, Term
from topoplan_operators.handle import Handle, every_axis, plain
from topoplan_operators.spatial import Pads, in_groups, loops

__all__ = ["padded", "resized", "transposed_convolution"]

#: FLOPs of an element that is weighed and added.
_WEIGHED = 2


def transposed_convolution(
    x: Handle,
    out: int,
    kernel: Sequence[int],
    *,
    stride: Sequence[int],
    padding: Pads,
    output_padding: Sequence[int],
    bias: bool,
    groups: int = 1,
    dilation: Sequence[int] | None = None,
) -> Operator:
    """Return a transposed convolution of ``x`` (samples, channels, positions ...) to ``out`` channels.

    Dimensions are those of `topoplan_operators.spatial.convolution`, with blocks of ``stride`` positions in place of
    output positions, where these are a multiple of it; otherwise with output positions that cannot be cut.  FLOPs are
    those of every input position with the whole kernel, as PyTorch's `FlopCounterMode` counts.

    Args:
        x: see above.
        out: output channels.
        kernel, stride, dilation: of every axis of positions; dilation is 1 unless given.
        padding: output positions that are cut off before and behind every axis.
        output_padding: output positions that are added behind every axis.
        bias: whether it has a bias, a weight tensor of its own.
        groups: of channels; those of a group of the output see the same group of the input.

    Raises:
        TopoplanError: shapes do not fit, or groups do not divide channels.
    """
    kind = f"conv_transpose{len(kernel)}d"
    samples, channels, *positions = x.shape
    if groups < 1 or out < 1 or channels % groups or out % groups:
        raise TopoplanError(f"{kind}: {groups} groups do not divide {channels} and {out} channels")
    windows, sizes = _sizes(kind, x, kernel, stride, dilation or [1] * len(kernel), output_padding, padding)
    blocks, reads, makes = _blocks(positions, sizes, stride, windows, padding)
    dims = list(loops(samples, channels, out, blocks, groups))
    for dim, axis in enumerate(reads, 2):
        dims[dim] = dims[dim] if axis.dim >= 0 else attrs.evolve(dims[dim], role=None)
    i = len(dims) - 1
    output_channels = in_groups(out, groups)
    kernel_channels = Axis(out, 1) if groups == 1 else Axis(out // groups, i - 1)
    input_channels = Axis(channels, i) if groups == 1 else in_groups(channels, groups)
    weights = [Tensor("kernel", (input_channels, kernel_channels, *map(Axis, kernel)))]
    work = [Term(2 * math.prod(kernel) * math.prod(positions) / math.prod(blocks), tuple(range(len(dims))))]
    if bias:
        weights.append(Tensor("bias", (output_channels,)))
        work.append(Term(math.prod(sizes) / math.prod(blocks), tuple(range(i))))
    return Operator(
        name="",
        kind=kind,
        dims=tuple(dims),
        inputs=(Tensor("x", (Axis(samples, 0), input_channels, *reads), x.itemsize),),
        weights=tuple(weights),
        outputs=(Tensor("y", (Axis(samples, 0), output_channels, *makes), x.itemsize),),
        work=tuple(work),
        linear_in=tuple((factor, *((2,) if bias else ())) for factor in (0, 1)),
    )


def _sizes(
    kind: str,
    x: Handle,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    output_padding: Sequence[int],
    padding: Pads,
) -> tuple[list[int], list[int]]:
    """Return the windows of a transposed convolution with their gaps, and the sizes of its output."""
    positions = x.shape[2:]
    if {len(kernel), len(stride), len(dilation), len(output_padding), len(padding)} != {len(positions)} or not kernel:
        raise TopoplanError(f"{kind}: input of shape {x.shape} is not (samples, channels, positions ...)")
    windows = [(k - 1) * d + 1 for k, d in zip(kernel, dilation, strict=True)]
    sizes = [
        (size - 1) * s + window + more - low - high
        for size, s, window, more, (low, high) in zip(positions, stride, windows, output_padding, padding, strict=True)
    ]
    if min((*sizes, *stride, *windows)) < 1:
        raise TopoplanError(f"{kind}: windows of {windows} and padding do not fit an input of {positions}")
    return windows, sizes


def _blocks(
    positions: Sequence[int], sizes: Sequence[int], stride: Sequence[int], windows: Sequence[int], padding: Pads
) -> tuple[list[int], list[Axis], list[Axis]]:
    """Return iterations along every axis of positions, and the axes by which they read the input and make the output.

    An axis of the input that follows no dimension is read as a whole, and its positions cannot be cut.
    """
    blocks, reads, makes = [], [], []
    columns = zip(positions, sizes, stride, windows, padding, strict=True)
    for dim, (size, target, s, window, (low, _)) in enumerate(columns, 2):
        if target % s:
            blocks.append(target)
            reads.append(Axis(size))
            makes.append(Axis(target, dim))
            continue
        first, last = -((window - 1 - low) // s), (s - 1 + low) // s
        blocks.append(target // s)
        reads.append(Axis(size, dim, offset=first, extent=last - first + 1))
        makes.append(Axis(target, dim, scale=s, extent=s))
    return blocks, reads, makes


def padded(x: Handle, pads: Pads, *, constant: bool = True) -> Operator:
    """Return ``x`` with elements before and behind every axis; it computes nothing.

    Dimensions: ``n`` samples, ``a1``, ... of the output.  Axes that get copies of elements (not ``constant``) cannot
    be cut.

    Raises:
        TopoplanError: a number is negative, or there is none for some axis.
    """
    if len(pads) != len(x.shape) or min((min(sides) for sides in pads), default=0) < 0:
        raise TopoplanError(f"pad: {list(pads)} do not fit a tensor of shape {x.shape}")
    shape = tuple(size + low + high for size, (low, high) in zip(x.shape, pads, strict=True))
    is_whole = [not constant and low + high > 0 for low, high in pads]
    axes = tuple(
        Axis(size) if whole else Axis(size, dim, offset=-low)
        for dim, (size, whole, (low, _)) in enumerate(zip(x.shape, is_whole, pads, strict=True))
    )
    return Operator(
        name="",
        kind="pad",
        dims=_dims(shape, is_whole),
        inputs=(Tensor("x", axes, x.itemsize),),
        outputs=(plain("y", Handle(shape, x.itemsize), *range(len(shape))),),
        linear_in=((0,),),
    )


def resized(x: Handle, shape: Sequence[int], *, order: int, nearby: int = 0, local: bool = True) -> Operator:
    """Return ``x`` interpolated to another shape.

    Dimensions: ``n`` samples, ``a1``, ... of the smaller of both sizes of an axis, where that divides the other one;
    otherwise of the output, and the axis cannot be cut.  FLOPs are a product and a sum for each element that an
    output element is made of: ``order + 1`` along every axis that changes; none where the nearest is copied.

    Args:
        x: see above.
        shape: of the output.
        order: of the polynomials: 0 nearest, 1 linear, 3 cubic.
        nearby: elements on either side that are needed where the nearest one is copied.
        local: an element depends on those at its place alone; not so where corners are put on corners.

    Raises:
        TopoplanError: the number of axes differs.
    """
    if len(shape) != len(x.shape):
        raise TopoplanError(f"resize: {tuple(shape)} has not as many axes as {x.shape}")
    reads, makes, sizes, is_whole = [], [], [], []
    for dim, (before, after) in enumerate(zip(x.shape, shape, strict=True)):
        larger, smaller = max(before, after), min(before, after)
        fits, ratio = before == after or (local and larger % smaller == 0), larger // smaller
        if before == after or not fits:
            reads.append(Axis(before, dim if fits else -1))
            makes.append(Axis(after, dim))
        elif after > before:
            halo = (order + 1) // 2 + nearby
            reads.append(Axis(before, dim, offset=-halo, extent=2 * halo + 1))
            makes.append(Axis(after, dim, scale=ratio, extent=ratio))
        else:
            halo = int(order > 1)
            reads.append(Axis(before, dim, scale=ratio, offset=-halo, extent=ratio + 2 * halo))
            makes.append(Axis(after, dim))
        sizes.append(smaller if fits else after)
        is_whole.append(not fits)
    changed = sum(before != after for before, after in zip(x.shape, shape, strict=True))
    each = _WEIGHED * (order + 1) ** changed * math.prod(shape) / math.prod(sizes)
    return Operator(
        name="",
        kind="resize",
        dims=_dims(sizes, is_whole),
        inputs=(Tensor("x", tuple(reads), x.itemsize),),
        outputs=(Tensor("y", tuple(makes), x.itemsize),),
        work=(Term(each, tuple(range(len(shape)))),) if order else (),
        linear_in=((0,),),
    )


def _dims(sizes: Sequence[int], is_whole: Sequence[bool]) -> tuple[Dimension, ...]:
    """Return a dimension for every axis; those that are whole cannot be cut."""
    return tuple(
        attrs.evolve(dim, role=None) if whole else dim for dim, whole in zip(every_axis(sizes), is_whole, strict=True)
    )
