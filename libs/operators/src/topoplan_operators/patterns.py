"""Axes that hold several dimensions, said by patterns: ``"n q (h g) d"`` has heads ``h`` and ``g`` in one axis.

Patterns are those of einops (Rogozhnikov, ICLR 2022): one word for a dimension that is an axis, several in parentheses,
the outermost first, for dimensions that lie in one axis.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Tensor
from topoplan_operators.handle import Handle

__all__ = ["followed", "shape_of", "solved"]


def solved(patterns: Sequence[tuple[str, Handle]], fixed: Mapping[str, int] = MappingProxyType({})) -> dict[str, int]:
    """Return the sizes of the dimensions that patterns name, as `followed` reads them.

    Args:
        patterns: pattern and tensor; each axis has at most one dimension whose size is not yet known.
        fixed: sizes that are given.

    Raises:
        TopoplanError: a shape does not fit its pattern.
    """
    sizes = dict(fixed)
    for pattern, x in patterns:
        groups = _groups(pattern)
        if len(groups) != len(x.shape):
            raise TopoplanError(f"shape {x.shape} has not the axes {pattern}")
        for size, dims in zip(x.shape, groups, strict=True):
            product = math.prod(sizes.get(dim, 1) for dim in dims)
            unknown = [dim for dim in dims if dim not in sizes]
            if product < 1 or size % product or size < product or (size != product and not unknown):
                raise TopoplanError(
                    f"shape {x.shape} is not {pattern}: {' x '.join(dims)} is {size}, but has {product}"
                )
            sizes.update((dim, size // product) for dim in unknown)
    return sizes


def followed(name: str, x: Handle, pattern: str, numbers: Mapping[str, int], sizes: Mapping[str, int]) -> Tensor:
    """Return ``x`` as a tensor whose axes are flattened dimensions, e.g. ``"n q (h g) d"``.

    An axis in parentheses follows the first of its dimensions, with all elements of the others at once.

    Args:
        name: of the tensor.
        x: of the shape that the pattern gives.
        pattern: dimensions of every axis, outermost first.
        numbers: dimension -> its number in the iteration space.
        sizes: of all dimensions.
    """
    axes = []
    for size, (first, *inner_dims) in zip(x.shape, _groups(pattern), strict=True):
        inner = math.prod(sizes[dim] for dim in inner_dims)
        axes.append(Axis(size, numbers[first], scale=inner, extent=inner))
    return Tensor(name, tuple(axes), x.itemsize)


def shape_of(pattern: str, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape that a pattern gives; see `followed`."""
    return tuple(math.prod(sizes[dim] for dim in dims) for dims in _groups(pattern))


def _groups(pattern: str) -> list[list[str]]:
    return [group.strip("()").split() for group in re.findall(r"\([^)]*\)|\S+", pattern)]
