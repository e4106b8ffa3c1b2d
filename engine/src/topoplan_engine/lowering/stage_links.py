"""Which device sends which part of a tensor to which, from the mesh of one stage to that of another.

Each receiver gets each byte of its share once, from one device that has it.  Where several have it and several want
it, or parts of it, the first of those that want it ask the first one, the next ones the next one, in equal numbers.  So
equal meshes send from each place to the same place, as the tensor-parallel ranks of two pipeline stages do.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from topoplan.arrays import I32, I64
from topoplan.model.graph import Tensor
from topoplan.model.mesh import DeviceMesh
from topoplan.model.sharding import MeshSharding

__all__ = ["Routes", "routes_between", "slices_of"]


class Routes(NamedTuple):
    """(n,) places in the meshes of sender and receiver, and bytes; those of ``local`` are one device."""

    source: I64
    target: I64
    nbytes: I64
    local: np.ndarray


def slices_of(shape: tuple[int, ...], sharding: MeshSharding, sizes: tuple[int, ...]) -> I64:
    """Return the slice of a tensor that each place of a mesh has.

    Args:
        shape: of the tensor; its slices are even.
        sharding: along each axis of the mesh.
        sizes: of the mesh.

    Returns:
        (2, D, axes) where slices begin and end.

    Examples:
        >>> from topoplan.model.sharding import REPLICATED, shard
        >>> slices_of((8,), (shard(0), REPLICATED), (2, 2))[:, :, 0].tolist()
        [[0, 0, 4, 4], [4, 4, 8, 8]]
    """
    places = math.prod(sizes)
    low = np.zeros((places, len(shape)), dtype=np.int64)
    length = np.broadcast_to(np.array(shape, dtype=np.int64), low.shape).copy()
    for form, size, along in zip(sharding, sizes, np.unravel_index(np.arange(places), sizes), strict=True):
        if form.sliced:
            length[:, form.axis] //= size
            low[:, form.axis] += along * length[:, form.axis]
    return np.stack([low, low + length])


def routes_between(
    tensor: Tensor, source: MeshSharding, source_mesh: DeviceMesh, target: MeshSharding, target_mesh: DeviceMesh
) -> Routes:
    """Return what is sent of a tensor from one mesh to another.

    Args:
        tensor: what is sent.
        source, target: its shardings on both, without terms of sums.
        source_mesh, target_mesh: the devices.
    """
    have, want = (_Slices.of(tensor.shape, *each) for each in ((source, source_mesh), (target, target_mesh)))
    h, w, elements = _overlaps(tensor.shape, have, want)
    copies, askers = have.places.shape[1], want.places.shape[1]
    # Requests for one slice, number by number: those that have it serve as many each.
    requests = np.bincount(h, minlength=len(have.places))
    number = np.arange(len(h)) - (np.cumsum(requests) - requests)[h]
    asked = (number[:, None] * askers + np.arange(askers)) * copies // (requests[h] * askers)[:, None]
    receivers = want.places[w]
    senders = np.take_along_axis(have.places[h], asked, axis=1)
    # A device that has what it wants asks no other.
    place = _place_of(source_mesh.devices, target_mesh.devices)[receivers]
    local = (place >= 0) & (have.slice_of[place] == h[:, None])
    senders = np.where(local, place, senders)
    nbytes = np.broadcast_to((elements * tensor.itemsize)[:, None], receivers.shape)
    order = np.lexsort((senders.ravel(), receivers.ravel()))
    return Routes(*(column.ravel()[order] for column in (senders, receivers, nbytes, local)))


class _Slices(NamedTuple):
    """The different slices of a tensor on a mesh, numbered along its axes, the last one first.

    Attributes:
        pieces: slices along each axis of the tensor.
        places: (k, copies) that have each slice, ascending.
        slice_of: (D,) number of the slice at each place.
    """

    pieces: tuple[int, ...]
    places: I64
    slice_of: I64

    @classmethod
    def of(cls, shape: tuple[int, ...], sharding: MeshSharding, mesh: DeviceMesh) -> _Slices:
        pieces = [1] * len(shape)
        number = [np.zeros(mesh.n_devices, dtype=np.int64) for _ in shape]
        along = np.unravel_index(np.arange(mesh.n_devices), mesh.sizes)
        for form, size, places in zip(sharding, mesh.sizes, along, strict=True):
            if form.sliced:
                pieces[form.axis] *= size
                number[form.axis] = number[form.axis] * size + places
        slice_of = np.zeros(mesh.n_devices, dtype=np.int64)
        for count, row in zip(pieces, number, strict=True):
            slice_of = slice_of * count + row
        order = np.argsort(slice_of, kind="stable")
        return cls(tuple(pieces), order.reshape(math.prod(pieces), -1), slice_of)


def _overlaps(shape: tuple[int, ...], have: _Slices, want: _Slices) -> tuple[I64, I64, I64]:
    """Return the pairs of slices that overlap, in their order, and how many elements they have in common."""
    h, w, elements = np.zeros(1, np.int64), np.zeros(1, np.int64), np.ones(1, np.int64)
    for size, a, b in zip(shape, have.pieces, want.pieces, strict=True):
        # Both divide the axis evenly: cut it at the ends of either.
        cuts = np.unique(np.concatenate([np.arange(a) * (size // a), np.arange(b) * (size // b)]))
        lengths = np.diff(np.append(cuts, size))
        h = (h[:, None] * a + cuts // (size // a)).ravel()
        w = (w[:, None] * b + cuts // (size // b)).ravel()
        elements = (elements[:, None] * lengths).ravel()
    order = np.lexsort((w, h))
    return h[order], w[order], elements[order]


def _place_of(devices: I32, asked: I32) -> I64:
    """Return the place of each of some devices among others; -1 for those that are not there."""
    places = np.full(int(max(devices.max(), asked.max())) + 1, -1, dtype=np.int64)
    places[devices] = np.arange(len(devices))
    places_asked: I64 = places[asked]
    return places_asked
