"""A fabric as a product of rings, switches and full meshes, if it is one.

Node ``(x0, x1, …)`` of a product of sizes ``(n0, n1, …)`` is number ``x0 + n0·(x1 + n1·(…))``, and has the links of
each axis to the nodes that differ from it there alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import attrs
import numpy as np

from topoplan import Cluster, Fabric
from topoplan.arrays import I64

__all__ = ["Axis", "axes_of"]

_MOST_AXES = 3


@attrs.frozen
class Axis:
    """One axis: ``Ring``, ``Switch`` or ``FullyConnected``, its nodes, bytes/s and seconds of a link."""

    shape: str
    size: int
    bandwidth: float
    latency: float


def axes_of(fabric: Fabric, cluster: Cluster) -> tuple[Axis, ...] | str:
    """Return the axes of a network of devices, the innermost first, or why it is no product.

    The devices of a host hang on a switch of the bandwidth inside the host.  Outside, each has its share of what the
    host has: an axis has a link for every device.
    """
    sizes = np.bincount(cluster.device_host, minlength=cluster.n_hosts)
    if (sizes != sizes[0]).any() or (cluster.inside_bandwidth != cluster.inside_bandwidth[0]).any():
        return "hosts differ"
    inside = (Axis("Switch", int(sizes[0]), float(cluster.inside_bandwidth[0]), 0.0),) if sizes[0] > 1 else ()
    if fabric.n_hosts == 1:
        return inside or "one device has no network"
    outside = _switch(fabric) if fabric.n_switches else _grid(fabric)
    if isinstance(outside, str):
        return outside
    return (*inside, *(attrs.evolve(axis, bandwidth=axis.bandwidth / int(sizes[0])) for axis in outside))


def _switch(fabric: Fabric) -> tuple[Axis, ...] | str:
    hosts = np.arange(fabric.n_hosts)
    hub = np.full(fabric.n_hosts, fabric.n_hosts)
    rows = np.concatenate([fabric.link_rows(hosts, hub), fabric.link_rows(hub, hosts)])
    if fabric.n_switches > 1 or fabric.n_links != len(rows) or (rows < 0).any():
        return f"fabric {fabric.name!r} has {fabric.n_switches} switches, but is no star of one"
    if isinstance(axis := _axis(fabric, "Switch", fabric.n_hosts, rows), str):
        return axis
    return (axis,)


def _grid(fabric: Fabric) -> tuple[Axis, ...] | str:
    """Try all products of at most three axes."""
    why = f"fabric {fabric.name!r} is no product"
    for sizes in _factors(fabric.n_hosts, _MOST_AXES):
        for shapes in product(("Ring", "FullyConnected"), repeat=len(sizes)):
            if any(shape == "FullyConnected" and size == 2 for shape, size in zip(shapes, sizes, strict=True)):
                continue  # the same as a ring
            rows = [_rows(fabric, sizes, axis_index, shape) for axis_index, shape in enumerate(shapes)]
            if sum(map(len, rows)) != fabric.n_links or any((each < 0).any() for each in rows):
                continue
            axes = [_axis(fabric, *each) for each in zip(shapes, sizes, rows, strict=True)]
            different = next((axis for axis in axes if isinstance(axis, str)), None)
            if different is None:
                return tuple(axis for axis in axes if isinstance(axis, Axis))
            why = different
    return why


def _factors(number: int, most: int) -> Iterator[tuple[int, ...]]:
    """Go through the ordered factors of at least 2, at most so many, fewest first."""
    yield (number,)
    if most > 1:
        for first in range(2, number // 2 + 1):
            if number % first == 0:
                yield from ((first, *remaining) for remaining in _factors(number // first, most - 1))


def _rows(fabric: Fabric, sizes: tuple[int, ...], axis_index: int, shape: str) -> I64:
    """Return the link rows of one axis, -1 where there is no such link."""
    size, stride = sizes[axis_index], int(np.prod(sizes[:axis_index], dtype=np.int64))
    steps = {1, size - 1} if shape == "Ring" else set(range(1, size))
    nodes = np.arange(fabric.n_hosts)
    x = nodes // stride % size
    return np.concatenate([fabric.link_rows(nodes, nodes + ((x + step) % size - x) * stride) for step in sorted(steps)])


def _axis(fabric: Fabric, shape: str, size: int, rows: I64) -> Axis | str:
    bandwidth, latency = fabric.link_bandwidth[rows], fabric.link_latency[rows]
    if (bandwidth != bandwidth[0]).any() or (latency != latency[0]).any():
        return f"links of fabric {fabric.name!r} differ in bandwidth or latency"
    return Axis(shape, size, float(bandwidth[0]), float(latency[0]))
