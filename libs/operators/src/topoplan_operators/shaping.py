"""Operators that only move elements: transpose, view, flatten, slice, split, append and take tokens."""

from __future__ import annotations

import math
from collections.abc import Sequence

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Dimension, Operator, Role, Tensor
from topoplan_operators.handle import Handle, plain

__all__ = [
    "append_token",
    "chunk",
    "flatten",
    "permute",
    "runs",
    "select",
    "sliced",
    "split",
    "take_token",
    "transpose",
    "view",
]


def _dimensions(shape: Sequence[int], sample: int = 0) -> tuple[Dimension, ...]:
    """Return one dimension per axis: ``n`` for axis ``sample``, attributes ``a0``, ``a1``, ... for the others."""
    return tuple(
        Dimension("n", size, Role.SAMPLE) if k == sample else Dimension(f"a{k}", size, Role.ATTRIBUTE)
        for k, size in enumerate(shape)
    )


def transpose(x: Handle, first: int, second: int, *, sample: int = 0) -> Operator:
    """Exchange two axes of ``x``, whose samples lie along axis ``sample``."""
    order = list(range(len(x.shape)))
    order[first], order[second] = order[second], order[first]
    return permute(x, order, sample=sample, kind="transpose")


def permute(x: Handle, order: Sequence[int], *, sample: int = 0, kind: str = "permute") -> Operator:
    """Put the axes of ``x``, whose samples lie along axis ``sample``, into another order."""
    output = Handle(tuple(x.shape[k] for k in order), x.itemsize)
    return Operator(
        name="",
        kind=kind,
        dims=_dimensions(x.shape, sample),
        inputs=(plain("x", x, *range(len(order))),),
        outputs=(plain("y", output, *order),),
        linear_in=((0,),),
    )


def view(x: Handle, shape: Sequence[int], *, sample: int = 0) -> Operator:
    """Give ``x``, whose samples lie along axis ``sample``, another shape of as many elements.

    Axes fall into runs that hold the same elements before and after, as short as can be: in (8, 6, 20) to (8, 6, 4, 5)
    these are 8 to 8, 6 to 6, and 20 to 4 x 5.  Of a run, the first axis before and the first after can be cut together,
    into as many slices as divide both; here 4, each of which is 5 elements before.  All other axes of a run are
    undivided: slices of them are no slices on the other side.

    Raises:
        TopoplanError: the shapes differ in elements.
    """
    if math.prod(shape) != math.prod(x.shape) or min((*shape, *x.shape), default=1) < 1:
        raise TopoplanError(f"view: {x.shape} and {tuple(shape)} differ in elements")
    dims: list[Dimension] = []
    before, after = [Axis(size) for size in x.shape], [Axis(size) for size in shape]
    for run, new in runs(x.shape, shape):
        first, second = _leading(run, x.shape), _leading(new, shape)
        size = math.gcd(x.shape[first], shape[second]) if first >= 0 and second >= 0 else 1
        if size == 1 and (len(run), len(new)) != (1, 1):
            continue
        for axes, place in ((before, first), (after, second)):
            inner = axes[place].size // size
            axes[place] = Axis(axes[place].size, len(dims), scale=inner, extent=inner)
        samples = first == sample
        dims.append(Dimension("n" if samples else f"a{first}", size, Role.SAMPLE if samples else Role.ATTRIBUTE))
    return Operator(
        name="",
        kind="view",
        dims=tuple(dims),
        inputs=(Tensor("x", tuple(before), x.itemsize),),
        outputs=(Tensor("y", tuple(after), x.itemsize),),
        linear_in=((0,),),
    )


def runs(before: Sequence[int], after: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Return the axes of both shapes that hold the same elements, run by run; one side of the last may be empty."""
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(before) and j < len(after):
        run, new = [i], [j]
        while (had := math.prod(before[k] for k in run)) != (has := math.prod(after[k] for k in new)):
            if had < has:
                run.append(run[-1] + 1)
            else:
                new.append(new[-1] + 1)
        runs.append((run, new))
        i, j = run[-1] + 1, new[-1] + 1
    return [*runs, ([*range(i, len(before))], [*range(j, len(after))])]


def _leading(axes: Sequence[int], shape: Sequence[int]) -> int:
    """Return the first of these axes that has more than one element; the first if none has, and -1 if there is none."""
    return next((k for k in axes if shape[k] > 1), axes[0] if axes else -1)


def flatten(x: Handle, start: int) -> Operator:
    """Join the axes of ``x`` from ``start`` on; the first of them leads, so that it can be cut."""
    if not 0 <= start < len(x.shape):
        raise TopoplanError(f"flatten: axis {start} is none of 0..{len(x.shape) - 1}")
    inner = math.prod(x.shape[start + 1 :])
    flat_axis = Axis(x.shape[start] * inner, start, scale=inner, extent=inner)
    leading = tuple(Axis(size, k) for k, size in enumerate(x.shape[:start]))
    return Operator(
        name="",
        kind="flatten",
        dims=_dimensions(x.shape[: start + 1]),
        inputs=(plain("x", x, *range(start + 1), *[-1] * (len(x.shape) - start - 1)),),
        outputs=(Tensor("y", (*leading, flat_axis), x.itemsize),),
        linear_in=((0,),),
    )


def chunk(x: Handle, parts: int, axis: int) -> Operator:
    """Split ``x`` evenly along ``axis``, which therefore cannot be cut, into several outputs."""
    if parts < 1 or x.shape[axis] % parts:
        raise TopoplanError(f"chunk: {parts} parts do not divide {x.shape[axis]} elements")
    shape = list(x.shape)
    shape[axis] //= parts
    dims = list(_dimensions(shape))
    dims[axis] = Dimension(dims[axis].name, dims[axis].size)
    follow = [-1 if k == axis % len(shape) else k for k in range(len(shape))]
    piece = Handle(tuple(shape), x.itemsize)
    return Operator(
        name="",
        kind="chunk",
        dims=tuple(dims),
        inputs=(plain("x", x, *follow),),
        outputs=tuple(plain(f"y{k}", piece, *follow) for k in range(parts)),
        linear_in=((0,),),
    )


def split(x: Handle, sizes: Sequence[int], axis: int) -> Operator:
    """Split ``x`` along ``axis`` into outputs of these sizes.

    Each output is a stretch of the axis, which a part may have as a whole, in part or not at all; so the axis can be
    cut, other than that of `chunk`.
    """
    rank = len(x.shape)
    if not -rank <= axis < rank or not sizes or min(sizes) < 1 or sum(sizes) != x.shape[axis]:
        raise TopoplanError(f"split: sizes {', '.join(map(str, sizes))} along axis {axis} of {x.shape}")
    axis %= rank
    outputs, start = [], 0
    for k, size in enumerate(sizes):
        axes = [Axis(length, dim) for dim, length in enumerate(x.shape)]
        axes[axis] = Axis(size, axis, offset=-start)
        outputs.append(Tensor(f"y{k}", tuple(axes), x.itemsize))
        start += size
    return Operator(
        name="",
        kind="split",
        dims=_dimensions(x.shape),
        inputs=(plain("x", x, *range(rank)),),
        outputs=tuple(outputs),
        linear_in=((0,),),
    )


def sliced(x: Handle, axis: int, start: int, stop: int, step: int = 1) -> Operator:
    """Return every ``step``-th element of ``x`` along ``axis``, from ``start`` to before ``stop``."""
    rank = len(x.shape)
    if not -rank <= axis < rank or step < 1 or not 0 <= start < stop <= x.shape[axis]:
        raise TopoplanError(f"slice: {start} to {stop} by {step} along axis {axis} of {x.shape}")
    axis %= rank
    shape = list(x.shape)
    shape[axis] = len(range(start, stop, step))
    read = [Axis(length, dim) for dim, length in enumerate(x.shape)]
    read[axis] = Axis(x.shape[axis], axis, scale=step, offset=start)
    return Operator(
        name="",
        kind="slice",
        dims=_dimensions(shape),
        inputs=(Tensor("x", tuple(read), x.itemsize),),
        outputs=(plain("y", Handle(tuple(shape), x.itemsize), *range(rank)),),
        linear_in=((0,),),
    )


def select(x: Handle, axis: int, index: int, *, sample: int = 0) -> Operator:
    """Return the elements of ``x`` at one position of ``axis``, which the output lacks; it is not that of samples."""
    rank = len(x.shape)
    if not 0 <= axis < rank or axis == sample or not 0 <= index < x.shape[axis]:
        raise TopoplanError(f"select: position {index} of axis {axis} of {x.shape}")
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    read = [Axis(length, k - (k > axis)) for k, length in enumerate(x.shape)]
    read[axis] = Axis(x.shape[axis], rank - 1, offset=index)
    return Operator(
        name="",
        kind="select",
        dims=(*_dimensions(shape), Dimension("position", 1)),
        inputs=(Tensor("x", tuple(read), x.itemsize),),
        outputs=(plain("y", Handle(shape, x.itemsize), *range(rank - 1)),),
        linear_in=((0,),),
    )


def append_token(x: Handle) -> Operator:
    """Put one learned token before the positions of ``x`` (samples, positions, channels)."""
    samples, positions, channels = x.shape
    output = Handle((samples, positions + 1, channels), x.itemsize)
    return Operator(
        name="",
        kind="append_token",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("s", positions + 1),
            Dimension("c", channels, Role.ATTRIBUTE),
        ),
        inputs=(Tensor("x", (Axis(samples, 0), Axis(positions, 1, offset=-1), Axis(channels, 2)), x.itemsize),),
        weights=(Tensor("token", (Axis(1), Axis(1), Axis(channels, 2))),),
        outputs=(plain("y", output, 0, 1, 2),),
        linear_in=((0, 1),),
    )


def take_token(x: Handle) -> Operator:
    """Return the first position of ``x`` (samples, positions, channels)."""
    samples, _, channels = x.shape
    return Operator(
        name="",
        kind="take_token",
        dims=(
            Dimension("n", samples, Role.SAMPLE),
            Dimension("c", channels, Role.ATTRIBUTE),
        ),
        inputs=(plain("x", x, 0, -1, 1),),
        outputs=(plain("y", Handle((samples, channels), x.itemsize), 0, 1),),
        linear_in=((0,),),
    )
