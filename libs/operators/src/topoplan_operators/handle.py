"""Handles: references to existing tensors, as arguments of functions that build operators."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from topoplan.model.graph import Axis, Dimension, Role, Tensor

__all__ = ["Handle", "every_axis", "plain", "whole"]


@attrs.frozen
class Handle:
    """A tensor of an unfinished model.

    Attributes:
        shape: sizes of its axes, outermost (samples) first.
        itemsize: bytes of one element.
        producer: index of the operator that produces it; -1 for data of the training set.
        output: its index among the outputs of the producer.
    """

    shape: tuple[int, ...]
    itemsize: int = 4
    producer: int = -1
    output: int = 0


def plain(name: str, x: Handle, *dims: int) -> Tensor:
    """Return ``x`` as a tensor whose k-th axis follows dimension ``dims[k]`` element by element (-1: whole)."""
    axes = tuple(Axis(size, dim) for size, dim in zip(x.shape, dims, strict=True))
    return Tensor(name, axes, x.itemsize)


def whole(name: str, x: Handle, sample: int = -1) -> Tensor:
    """Return ``x`` as a tensor that every part reads as a whole, except that samples follow ``sample``."""
    return plain(name, x, sample, *[-1] * (len(x.shape) - 1))


def every_axis(shape: Sequence[int]) -> tuple[Dimension, ...]:
    """Return one dimension per axis: samples ``n`` first, then attributes ``a1``, ``a2``, ..."""
    dimensions = (Dimension(f"a{k}", size, Role.ATTRIBUTE) for k, size in enumerate(shape[1:], 1))
    return (Dimension("n", shape[0], Role.SAMPLE), *dimensions)
