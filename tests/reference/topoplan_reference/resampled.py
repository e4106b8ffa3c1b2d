"""What operators that give an image other sizes compute, in numpy; see `operators`."""

from __future__ import annotations

import itertools

import numpy as np

from topoplan_operators import Handle, resampling
from topoplan_reference.operators import Bounds, Case

__all__ = ["resampling_cases"]


def spread(
    x: np.ndarray,
    w: np.ndarray,
    first: int,
    sizes: tuple[int, ...],
    *,
    stride: int,
    dilation: int,
    low: int,
    groups: int,
) -> np.ndarray:
    """A transposed convolution, weight by weight: what ``x`` from position ``first`` on adds to the output."""
    inputs, outputs = x.shape[1] // groups, w.shape[1]
    y = np.zeros((len(x), groups * outputs, *sizes))
    for g, k, m in itertools.product(range(groups), *map(range, w.shape[2:])):
        of_group = slice(g * inputs, (g + 1) * inputs)
        made = np.einsum("ncij,co->noij", x[:, of_group], w[of_group, :, k, m])
        i, rows = landing(x.shape[2], first * stride + k * dilation - low, stride, sizes[0])
        j, columns = landing(x.shape[3], first * stride + m * dilation - low, stride, sizes[1])
        y[:, g * outputs : (g + 1) * outputs, rows, columns] += made[:, :, i, j]
    return y


def landing(count: int, first: int, stride: int, size: int) -> tuple[slice, slice]:
    """Positions of an input that add to some of the output, and those: the first adds to ``first``."""
    inside = [place for place in range(count) if 0 <= first + place * stride < size]
    begin, end = (inside[0], inside[-1] + 1) if inside else (0, 0)
    return slice(begin, end), slice(first + begin * stride, first + end * stride, stride) if inside else slice(0)


def transposed_case(channels: int, out: int, kernel: int, *, low: int, groups: int = 1, **sizes: int) -> Case:
    """From 4 x 4, with as much cut off behind as before."""
    stride, dilation = sizes.get("stride", 1), sizes.get("dilation", 1)
    op = resampling.transposed_convolution(
        Handle((2, channels, 4, 4)),
        out,
        (kernel, kernel),
        stride=(stride, stride),
        padding=[(low, low)] * 2,
        output_padding=[sizes.get("behind", 0)] * 2,
        bias=False,
        groups=groups,
        dilation=(dilation, dilation),
    )
    numbers = {"stride": stride, "dilation": dilation}

    def whole(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray]:
        return (spread(x, w, 0, op.outputs[0].shape[2:], low=low, groups=groups, **numbers),)

    def part(bounds: Bounds, x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray]:
        start, stop = bounds["g"] if groups > 1 else (0, 1)
        axis, made = op.inputs[0].axes[2], op.outputs[0].axes[2]
        if axis.dim < 0:
            return (spread(x, w, 0, op.outputs[0].shape[2:], low=low, groups=stop - start, **numbers),)
        lengths = tuple((bounds[name][1] - bounds[name][0]) * made.scale for name in "hw")
        return (spread(x, w, axis.offset, lengths, low=low, groups=stop - start, **numbers),)

    return Case(op, whole, part, differentiable=channels < 3)


def interpolated(x: np.ndarray, axis: int, ratio: int) -> np.ndarray:
    """Linear, pixels at half positions, zeros beyond the ends; the first and the last element are such neighbors."""
    x = np.moveaxis(x, axis, 0)
    places = (np.arange((len(x) - 2) * ratio) + 0.5) / ratio + 0.5
    low = np.floor(places).astype(int)
    share = (places - low).reshape(-1, *[1] * (x.ndim - 1))
    return np.moveaxis(x[low] * (1 - share) + x[low + 1] * share, 0, axis)


def resampling_cases() -> dict[str, Case]:
    x = Handle((2, 3, 4, 6))
    pads = [(0, 0), (0, 0), (1, 2), (3, 0)]
    border = [(0, 0), (0, 0), (1, 1), (0, 0)]

    def part_of_pad(bounds: Bounds, x: np.ndarray) -> tuple[np.ndarray]:
        return (x,)

    def mirrored(x: np.ndarray) -> tuple[np.ndarray]:
        return (np.pad(x, border, "reflect"),)

    return {
        "transposed convolution": transposed_case(2, 3, 4, stride=2, low=1),
        "transposed convolution with positions behind": transposed_case(2, 3, 3, stride=2, low=1, behind=1),
        "transposed convolution whose windows do not overlap": transposed_case(2, 2, 2, stride=2, low=0),
        "transposed convolution with gaps": transposed_case(2, 2, 2, stride=3, low=0, behind=1),
        "transposed convolution whose positions are whole": transposed_case(2, 3, 3, stride=2, low=0),
        "grouped transposed convolution": transposed_case(4, 6, 3, low=1, groups=2),
        "dilated transposed convolution": transposed_case(2, 3, 3, low=2, dilation=2),
        "pad with zeros": Case(resampling.padded(x, pads), lambda x: (np.pad(x, pads),), part_of_pad),
        "pad with copies": Case(resampling.padded(x, border, constant=False), mirrored),
        "resize to the nearest": Case(resampling.resized(x, (2, 3, 8, 6), order=0), lambda x: (x.repeat(2, 2),)),
        "resize to less": Case(resampling.resized(x, (2, 3, 4, 2), order=1), lambda x: (x[..., 1::3],)),
        "resize linearly": Case(
            resampling.resized(x, (2, 3, 12, 6), order=1),
            lambda x: (interpolated(np.pad(x, border), 2, 3),),
            lambda _, x: (interpolated(x, 2, 3),),
        ),
    }
