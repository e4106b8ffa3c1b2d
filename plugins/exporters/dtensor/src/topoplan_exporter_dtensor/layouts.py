"""Finds meshes for the devices of operators: as few as possible, so that operators can pass tensors on one mesh.

A placement numbers its parts over the cut dimensions and assigns a device to each.  If the device number (counted among
the participating devices) increases by a fixed *stride* along every cut dimension, it is a mixed-radix number.  Several
such placements fit one mesh, which is cut at the strides of all of them.  Example with eight devices: samples cut into
eight have strides 1..8; samples by two and channels by four have 4..8 and 1..4.  The mesh is (2, 4), and the first
placement cuts its samples along both axes.  DTensor cuts a tensor axis along several mesh axes from left to right, in
the same order.

A placement whose devices have no strides has its own mesh.
"""

from __future__ import annotations

import itertools

import attrs
import numpy as np

from topoplan import Placement
from topoplan.arrays import I32

__all__ = ["Layout", "Mesh", "lay_out"]


@attrs.frozen(eq=False)
class Mesh:
    """A mesh.

    Attributes:
        name: of the mesh.
        devices: an array with one axis for each of its dimensions.
        dim_names: of the dimensions, the slowest one first; d0, d1, ... unless given.
    """

    name: str
    devices: I32
    dim_names: tuple[str, ...] = attrs.field()

    @dim_names.default
    def _numbered(self) -> tuple[str, ...]:
        return tuple(f"d{k}" for k in range(self.devices.ndim))


@attrs.frozen
class Layout:
    """The layout of a placement: for each dimension of a mesh the operator's dimension that it cuts, or -1."""

    mesh: int
    dims: tuple[int, ...]


@attrs.frozen
class _Span:
    """A cut dimension, and the strides that it covers: from ``low`` to ``high``."""

    dim: int
    low: int
    high: int


def lay_out(placements: tuple[Placement, ...]) -> tuple[list[Mesh], list[Layout]]:
    """Return meshes, and the layout of every placement on one of them; the devices of a placement must differ.

    Meshes are in the order of their first operators.  Placements share a mesh if they fit together.
    """
    # Key: devices (ascending) and the strides at which the mesh is cut, or the placement itself.
    grids: list[tuple[tuple[int, ...], set[int]] | Placement] = []
    choices: list[tuple[int, tuple[_Span, ...] | None]] = []
    for placement in placements:
        members = tuple(sorted(placement.devices.tolist()))
        spans = _spans(placement, members)
        if spans is None:
            index = next((k for k, grid in enumerate(grids) if isinstance(grid, Placement) and grid == placement), -1)
            if index < 0:
                index = len(grids)
                grids.append(placement)
        else:
            cuts = {1, len(members), *(span.low for span in spans), *(span.high for span in spans)}
            index = next(
                (
                    k
                    for k, grid in enumerate(grids)
                    if not isinstance(grid, Placement) and grid[0] == members and _fit(grid[1] | cuts)
                ),
                -1,
            )
            if index < 0:
                index = len(grids)
                grids.append((members, set()))
            grid = grids[index]
            assert not isinstance(grid, Placement)
            grid[1].update(cuts)
        choices.append((index, spans))
    meshes = [_mesh(f"mesh{k}", grid) for k, grid in enumerate(grids)]
    layouts = []
    for placement, (index, spans) in zip(placements, choices, strict=True):
        layout = grids[index]
        if spans is None or isinstance(layout, Placement):
            dims = tuple(dim for dim, degree in enumerate(placement.degrees) if degree > 1)
        else:
            dims = tuple(_covering(spans, low) for low, _ in _steps(layout[1]))
        layouts.append(Layout(index, dims))
    return meshes, layouts


def _spans(placement: Placement, members: tuple[int, ...]) -> tuple[_Span, ...] | None:
    """Return the strides of a placement's devices among ``members``; None if they have none."""
    cut = [dim for dim, degree in enumerate(placement.degrees) if degree > 1]
    grid = np.searchsorted(members, placement.devices).reshape([placement.degrees[dim] for dim in cut])
    first = (0,) * len(cut)
    strides = [int(grid[(*first[:k], 1, *first[k + 1 :])] - grid[first]) for k in range(len(cut))]
    spans = np.zeros(grid.shape, dtype=np.int64)
    for stride, index in zip(strides, np.indices(grid.shape), strict=True):
        spans += stride * index
    if min(strides, default=1) < 1 or not np.array_equal(grid, spans):
        return None
    return tuple(_Span(dim, stride, stride * placement.degrees[dim]) for dim, stride in zip(cut, strides, strict=True))


def _fit(cuts: set[int]) -> bool:
    """Say whether a mesh can be cut at all these strides: each must divide the next one."""
    return all(high % low == 0 for low, high in itertools.pairwise(sorted(cuts)))


def _steps(cuts: set[int]) -> list[tuple[int, int]]:
    """Return (low, high) of each dimension of a mesh, the slowest one first; one of a single device has one, too."""
    return [*itertools.pairwise(sorted(cuts))][::-1] or [(1, 1)]


def _mesh(name: str, grid: tuple[tuple[int, ...], set[int]] | Placement) -> Mesh:
    if isinstance(grid, Placement):
        return Mesh(name, grid.devices.reshape([degree for degree in grid.degrees if degree > 1]))
    members, cuts = grid
    return Mesh(name, np.array(members, dtype=np.int32).reshape([high // low for low, high in _steps(cuts)]))


def _covering(spans: tuple[_Span, ...], low: int) -> int:
    """Return the dimension that is cut along the dimension of the mesh with stride ``low``."""
    return next((span.dim for span in spans if span.low <= low < span.high), -1)
