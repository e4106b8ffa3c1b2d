"""The algebra: what a cut of an operator's iteration space does to its tensors.

Everything that lowering, estimators and exporters need to know about parallelization is derived here
from iteration spaces and axis maps, for every operator alike:

- `part_bounds`: a cut dimension -> which iterations each part runs;
- `slice_elements`: -> how much of a tensor each part holds;
- `replica_groups`: dimensions absent from a tensor -> which parts hold the same slice.  For a weight these
  are its gradient all-reduce groups; for an output cut along a reduction, the holders of partial sums;
- `transfers`: two cuts at the ends of an edge -> the elements between every pair of parts.

Parts are numbered with the last dimension of the iteration space fastest (C order of the degree vector).
The model is FlexFlow's SOAP space (Jia, Zaharia, Aiken: Beyond Data and Model Parallelism for Deep Neural
Networks, MLSys 2019, section 4), with halos, reductions and uneven parts derived instead of special-cased.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import attrs
import numpy as np

from topoplan.arrays import I32, I64, i64
from topoplan.model.graph import Axis, Operator, Role, Slices, Tensor
from topoplan_engine.csr import expand
from topoplan_engine.interrupt import check_size

__all__ = [
    "Transfers",
    "degree_of",
    "equal_slice_elements",
    "multiplies",
    "part_bounds",
    "part_sizes",
    "replica_groups",
    "slice_bounds",
    "slice_elements",
    "transfers",
]


#: Of cuts into at most so many parts, what follows for one axis is kept: searches ask for the same few again and again.
_FEW = 256
#: How many of these are kept.
_KEPT = 1024


@attrs.frozen(eq=False)
class Transfers:
    """What the parts of a producer send to the parts of a consumer: (n,) each, sorted by (dst, src).

    ``elements`` counts tensor elements.  Where the producer holds partial sums, every holder sends and
    the consumer adds them up; in the backward pass the same rows run the other way.
    """

    src: I32
    dst: I32
    elements: I64


def part_bounds(size: int, degree: int) -> tuple[I64, I64]:
    """Return where each of ``degree`` parts of ``size`` iterations starts and stops, (degree,) each.

    Part ``i`` starts at ``i * size // degree``, so that sizes differ by at most one, unless the degree says otherwise
    (`topoplan.model.graph.Slices`).
    """
    if isinstance(degree, Slices):
        stops = np.cumsum(degree.sizes, dtype=np.int64)
        return stops - degree.sizes, stops
    edges = np.arange(degree + 1, dtype=np.int64) * size // degree
    return edges[:-1], edges[1:]


def degree_of(sizes: Sequence[int]) -> int:
    """Return the degree that cuts a dimension into slices of these sizes: a plain one where that makes them so."""
    starts, stops = part_bounds(sum(sizes), len(sizes))
    return len(sizes) if (stops - starts).tolist() == list(sizes) else Slices(sizes)


def part_sizes(op: Operator, degrees: tuple[int, ...]) -> list[I64]:
    """Return for each dimension the (P,) number of iterations that each part runs."""
    grid: list[I64] = []
    parts = math.prod(degrees)
    for index, (dim, degree) in enumerate(zip(op.dims, degrees, strict=True)):
        if type(degree) is int and degree > 0 and dim.size % degree == 0:
            grid.append(np.full(parts, dim.size // degree, dtype=np.int64))
            continue
        starts, stops = part_bounds(dim.size, degree)
        grid.append(_spread(stops - starts, index, degrees))
    return grid


def slice_elements(op: Operator, tensor: Tensor, degrees: tuple[int, ...]) -> I64:
    """Return the (P,) number of elements of ``tensor`` that each part touches."""
    equal, uneven = 1, []  # elements along the axes of which all parts have as many; the others
    for axis in tensor.axes:
        length = _equal_slice(axis, op, degrees)
        if length is None:
            uneven.append(axis)
        else:
            equal *= length
    total = np.full(math.prod(degrees), equal, dtype=np.int64)
    for axis in uneven:
        low, high = _axis_slices(axis, op, degrees)
        total *= _spread(np.maximum(high - low, 0), axis.dim, degrees)
    return total


def equal_slice_elements(op: Operator, tensor: Tensor, degrees: tuple[int, ...]) -> int | None:
    """Return the elements of ``tensor`` that each part touches, if axes alone say that all touch as many; else None."""
    lengths = [_equal_slice(axis, op, degrees) for axis in tensor.axes]
    return None if None in lengths else math.prod(length for length in lengths if length is not None)


def replica_groups(op: Operator, tensor: Tensor, degrees: tuple[int, ...]) -> I64:
    """Return the parts that hold the same slice of ``tensor``.

    Returns:
        (G, R) int64: each row one group, parts ascending; rows ascending by their first part.
    """
    cut = [axis.dim for axis in tensor.axes if axis.dim >= 0]
    parts = np.arange(int(np.prod(degrees, dtype=np.int64))).reshape(degrees)
    order = sorted(cut) + [d for d in range(len(degrees)) if d not in cut]
    groups = int(np.prod([degrees[d] for d in cut], dtype=np.int64))
    return parts.transpose(order).reshape(groups, -1)


def multiplies(op: Operator) -> bool:
    """Return whether ``op`` sums products of tensors that it is given, over loops that none of its outputs follows.

    Such a loop is a reduction, or one that cannot be cut, as the keys of attention.
    """
    if len(op.inputs) < 2:
        return False
    output_dims = {axis.dim for tensor in op.outputs for axis in tensor.axes}
    worked = {dim for term in op.work for dim in term.dims if op.dims[dim].role is None}
    summed = {index for index, dim in enumerate(op.dims) if dim.role is Role.REDUCTION} | worked
    return bool(summed - output_dims)


def transfers(
    producer: Operator,
    output: Tensor,
    producer_degrees: tuple[int, ...],
    consumer: Operator,
    argument: Tensor,
    consumer_degrees: tuple[int, ...],
) -> Transfers:
    """Return the elements that every part of the consumer needs from every part of the producer.

    ``output`` and ``argument`` are the same tensor, with the axis maps of the producer and of the consumer.

    The overlap of two parts is the product over the tensor's axes of the overlap of two intervals, so the whole
    answer is an outer product of small sparse matrices, one per axis; the work is proportional to the number of pairs
    that do overlap.
    """
    src = np.zeros(1, dtype=np.int64)
    dst = np.zeros(1, dtype=np.int64)
    elements = np.ones(1, dtype=np.int64)
    src_stride, dst_stride = _strides(producer_degrees), _strides(consumer_degrees)
    src_free, dst_free = set(range(len(producer_degrees))), set(range(len(consumer_degrees)))
    for src_axis, dst_axis in zip(output.axes, argument.axes, strict=True):
        cuts = (*_cut_of(src_axis, producer, producer_degrees), *_cut_of(dst_axis, consumer, consumer_degrees))
        a, b, overlap = (_kept_overlaps if _is_small(cuts[1]) and _is_small(cuts[3]) else _overlaps)(*cuts)
        a = a * src_stride[src_axis.dim] if src_axis.dim >= 0 else np.zeros_like(a)
        b = b * dst_stride[dst_axis.dim] if dst_axis.dim >= 0 else np.zeros_like(b)
        src_free.discard(src_axis.dim)
        dst_free.discard(dst_axis.dim)
        src = (src[:, None] + a).ravel()
        dst = (dst[:, None] + b).ravel()
        elements = (elements[:, None] * overlap).ravel()
    # Dimensions without an axis: every part with a partial sum sends, every replica of the consumer receives.
    for dim in src_free:
        src, dst, elements = _copies(src, dst, elements, producer_degrees[dim], src_stride[dim], 0)
    for dim in dst_free:
        src, dst, elements = _copies(src, dst, elements, consumer_degrees[dim], 0, dst_stride[dim])
    order = np.lexsort((src, dst))
    return Transfers(src[order].astype(np.int32), dst[order].astype(np.int32), elements[order])


def slice_bounds(op: Operator, tensor: Tensor, degrees: tuple[int, ...]) -> I64:
    """(2, P, axes) where the slice of ``tensor`` that each part of ``op`` touches begins and ends along each axis."""
    slices = [
        np.zeros((2, math.prod(degrees)), dtype=np.int64)
        + (
            np.array([[0], [axis.size]])
            if axis.dim < 0
            else np.stack([_spread(bound, axis.dim, degrees) for bound in _axis_slices(axis, op, degrees)])
        )
        for axis in tensor.axes
    ]
    return np.stack(slices, axis=2) if slices else np.zeros((2, math.prod(degrees), 0), dtype=np.int64)


def _equal_slice(axis: Axis, op: Operator, degrees: tuple[int, ...]) -> int | None:
    """Return how much of ``axis`` every part touches if that follows without looking at the parts, else None.

    So it does for an axis that parts touch as a whole, and for one in equal slices that do not overlap.
    """
    if axis.dim < 0:
        return axis.size
    size, degree = op.dims[axis.dim].size, degrees[axis.dim]
    plain = axis.offset == 0 and axis.scale == axis.extent and axis.size == size * axis.scale
    even = type(degree) is int and degree > 0 and size % degree == 0
    return size // degree * axis.scale if plain and even else None


#: An axis, the size of the dimension that it follows (1 where it follows none), and into how many parts this is cut.
_Cut = tuple[Axis, tuple[int, int]]


def _cut_of(axis: Axis, op: Operator, degrees: tuple[int, ...]) -> _Cut:
    """Return how an axis is cut."""
    return axis, (op.dims[axis.dim].size, degrees[axis.dim]) if axis.dim >= 0 else (1, 1)


def _is_small(dimension: tuple[int, int]) -> bool:
    """Return whether what follows for an axis is kept: a degree with sizes of its own is none of these."""
    return type(dimension[1]) is int and dimension[1] <= _FEW


def _axis_slices(axis: Axis, op: Operator, degrees: tuple[int, ...]) -> tuple[I64, I64]:
    """Return the interval of ``axis`` that each coordinate of its dimension touches; the arrays are read-only."""
    axis, dimension = _cut_of(axis, op, degrees)
    return (_kept_slices if _is_small(dimension) else _slices)(axis, dimension)


def _slices(axis: Axis, dimension: tuple[int, int]) -> tuple[I64, I64]:
    """Return the interval of ``axis`` that each part of a dimension of this size and degree touches."""
    if axis.dim < 0:
        return i64(np.zeros(1)), i64(np.full(1, axis.size))
    starts, stops = part_bounds(*dimension)
    low, high = starts * axis.scale + axis.offset, (stops - 1) * axis.scale + axis.offset + axis.extent
    # As `numpy.clip`, which takes many times as long for few parts.
    return i64(np.minimum(np.maximum(low, 0), axis.size)), i64(np.minimum(np.maximum(high, 0), axis.size))


_kept_slices = functools.lru_cache(_KEPT)(_slices)


def _overlaps(
    src_axis: Axis, src_dimension: tuple[int, int], dst_axis: Axis, dst_dimension: tuple[int, int]
) -> tuple[I64, I64, I64]:
    """Return (source index, target index, overlap) of the intervals that overlap; both lists ascend."""
    (src_low, src_high), (low, high) = _slices(src_axis, src_dimension), _slices(dst_axis, dst_dimension)
    first = np.searchsorted(src_high, low, side="right")
    last = np.searchsorted(src_low, high, side="left")
    counts = np.where(high > low, np.maximum(last - first, 0), 0)
    b, a = expand(first, counts)
    overlap = np.minimum(src_high[a], high[b]) - np.maximum(src_low[a], low[b])
    keep = overlap > 0
    return i64(a[keep]), i64(b[keep]), i64(overlap[keep])


_kept_overlaps = functools.lru_cache(_KEPT)(_overlaps)


def _copies(src: I64, dst: I64, elements: I64, degree: int, to_src: int, to_dst: int) -> tuple[I64, I64, I64]:
    if degree == 1:
        return src, dst, elements
    check_size(len(src) * degree)  # each is a message: copies for copies are the product of both
    shift = np.arange(degree)
    return (
        (src[:, None] + shift * to_src).ravel(),
        (dst[:, None] + shift * to_dst).ravel(),
        np.repeat(elements, degree),
    )


def _strides(degrees: tuple[int, ...]) -> list[int]:
    strides, step = [0] * len(degrees), 1
    for dim in reversed(range(len(degrees))):
        strides[dim] = step
        step *= degrees[dim]
    return strides


def _spread(values: I64, dim: int, degrees: tuple[int, ...]) -> I64:
    """Repeat per-coordinate ``values`` of dimension ``dim`` over all parts."""
    shape = [1] * len(degrees)
    shape[dim] = degrees[dim]
    return np.broadcast_to(values.reshape(shape), degrees).ravel()
