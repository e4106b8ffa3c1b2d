"""Which device sends which part of a tensor to which, from the mesh of one stage to that of another.

Each receiver gets each byte of its share once, from one device that has it.  Where several have it and several want
it, or parts of it, the first of those that want it ask the first one, the next ones the next one, in equal numbers.  So
equal meshes send from each place to the same place, as the tensor-parallel ranks of two pipeline stages do.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from topoplan.arrays import I64
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
    have, copy_of_source = _distinct(slices_of(tensor.shape, source, source_mesh.sizes))
    want, copy_of_target = _distinct(slices_of(tensor.shape, target, target_mesh.sizes))
    low = np.maximum(have[0][:, None], want[0][None])
    overlap = np.maximum(np.minimum(have[1][:, None], want[1][None]) - low, 0).prod(axis=2)
    h, w = np.nonzero(overlap)
    copies, askers = copy_of_source.shape[1], copy_of_target.shape[1]
    # Requests for one slice, number by number: those that have it serve as many each.
    requests = np.bincount(h, minlength=len(copy_of_source))
    number = np.arange(len(h)) - (np.cumsum(requests) - requests)[h]
    asked = (number[:, None] * askers + np.arange(askers)) * copies // (requests[h] * askers)[:, None]
    senders, receivers = np.take_along_axis(copy_of_source[h], asked, axis=1), copy_of_target[w]
    # A device that has what it wants asks no other.
    devices = source_mesh.devices[copy_of_source[h]]
    same = devices[:, None, :] == target_mesh.devices[receivers][:, :, None]
    local = same.any(axis=2)
    senders = np.where(local, np.take_along_axis(copy_of_source[h], same.argmax(axis=2), axis=1), senders)
    nbytes = np.broadcast_to((overlap[h, w] * tensor.itemsize)[:, None], receivers.shape)
    order = np.lexsort((senders.ravel(), receivers.ravel()))
    return Routes(*(column.ravel()[order] for column in (senders, receivers, nbytes, local)))


def _distinct(slices: I64) -> tuple[I64, I64]:
    """Return the (2, k, axes) different slices, and the (k, copies) places that have each."""
    _, places, axes = slices.shape
    rows = slices.transpose(1, 0, 2).reshape(places, -1)
    different, number = np.unique(rows, axis=0, return_inverse=True)
    order = np.argsort(number.ravel(), kind="stable")
    return different.reshape(-1, 2, axes).transpose(1, 0, 2), order.reshape(len(different), -1)
