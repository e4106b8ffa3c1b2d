"""Meshes of devices: named axes, and which device stands at each place.

Programs are written for places of a mesh; the mesh says which device that is.  So the order of ranks, which decides
what travels inside of a host and what between hosts, is a value that a search may change.
"""

from __future__ import annotations

import math
from typing import Any

import attrs
import numpy as np

from topoplan.arrays import ARRAY_EQ, I32, OneLine, i32, ints, texts
from topoplan.errors import TopoplanError

__all__ = ["DeviceMesh"]


@attrs.frozen(kw_only=True, repr=False, hash=False)
class DeviceMesh(OneLine):
    """Devices on a grid with named axes, outermost first.

    Attributes:
        axes: names, each once, such as ``("dp", "tp")``.
        sizes: devices along each axis.
        devices: (product of sizes,) the device at each place, the last axis being the fastest: the order of ranks.
            The places' own numbers unless given.

    Examples:
        Four devices in two hosts, whose tensor-parallel groups are the pairs of one host:

        >>> mesh = DeviceMesh(axes=("dp", "tp"), sizes=(2, 2))
        >>> mesh.devices.reshape(mesh.sizes).tolist()
        [[0, 1], [2, 3]]
        >>> mesh = DeviceMesh(axes=("dp", "tp"), sizes=(2, 2), devices=[0, 2, 1, 3])
        >>> mesh.devices.reshape(mesh.sizes).tolist()
        [[0, 2], [1, 3]]
    """

    axes: tuple[str, ...] = attrs.field(converter=texts)
    sizes: tuple[int, ...] = attrs.field(converter=ints)
    devices: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)

    @devices.default
    def _in_order(self) -> Any:
        return np.arange(math.prod(self.sizes))

    def __attrs_post_init__(self) -> None:
        if not self.axes or len(self.axes) != len(self.sizes):
            raise TopoplanError(f"mesh: {len(self.sizes)} sizes for {len(self.axes)} axes (one each, at least one)")
        if len(set(self.axes)) != len(self.axes):
            twice = next(name for name in self.axes if self.axes.count(name) > 1)
            raise TopoplanError(f"mesh: two axes are named {twice!r}")
        for name, size in zip(self.axes, self.sizes, strict=True):
            if size < 1:
                raise TopoplanError(f"mesh: axis {name!r} has {size} devices (must be at least 1)")
        if self.devices.shape != (self.n_devices,):
            places = " x ".join(map(str, self.sizes))
            raise TopoplanError(f"mesh: {self.devices.size} devices for {places} places (one for each place)")
        ascending = np.sort(self.devices)
        if ascending[0] < 0:
            raise TopoplanError(f"mesh: has device {ascending[0]} (must be at least 0)")
        twice_at = np.flatnonzero(ascending[1:] == ascending[:-1])
        if len(twice_at):
            raise TopoplanError(f"mesh: device {ascending[twice_at[0]]} stands at two places")

    def __hash__(self) -> int:
        return hash((self.axes, self.sizes, self.devices.tobytes()))

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return math.prod(self.sizes)
