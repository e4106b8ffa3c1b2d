"""SPMD programs: which sharding every device has of every tensor, on a mesh of devices.

If all devices run every operator, each on its share, tensors change shardings between operators.  An `SpmdProgram`
holds, for every operator and every axis of a mesh of devices, the signature that it runs under, and the sharding in
which everything is stored that no operator makes; `topoplan_engine.sharding.programs` derives the reshardings.

The mesh numbers devices with its last axis fastest: on (2, 4) the second axis joins devices 0-3 and 4-7.
Along each axis shardings are those of `topoplan.model.sharding`; where two axes slice one axis of a tensor, the later
one slices the slices of the earlier one.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from topoplan.arrays import I32, i32, ints
from topoplan.errors import TopoplanError
from topoplan.model.sharding import MeshSharding, Signature

__all__ = ["SpmdProgram"]


@attrs.frozen(kw_only=True, cache_hash=True)
class SpmdProgram:
    """What every device does.

    Attributes:
        mesh: devices along each axis.
        rules: (n_ops) signatures of each operator, one for every axis of the mesh.
        stored: (n_ops) for every argument of each operator (inputs, then weights) its shardings along the axes, where
            no operator makes it; empty where one does.
        sharded_state: whether devices with equal parameters share what the optimizer and the gradients need of memory
            (ZeRO's second stage, Rajbhandari et al., SC 2020); as much is sent as without.
        gathers_again: whether parameters that are stored in slices and gathered for use are given back after the
            forward pass of their layer and gathered again for the backward one (ZeRO's third stage; FSDP2's
            ``reshard_after_forward``), those of the next layer on their way.  Else they stay until that or the last.
        gradient_bucket_bytes: gradients that are summed for all devices share one all-reduce, in the order of the
            backward pass, until they have so many bytes; it starts when the last of them is there.  0: each by itself.
    """

    mesh: tuple[int, ...] = attrs.field(converter=ints)
    rules: tuple[tuple[Signature, ...], ...]
    stored: tuple[tuple[MeshSharding, ...], ...]
    sharded_state: bool = False
    gathers_again: bool = False
    gradient_bucket_bytes: int = 0

    def __attrs_post_init__(self) -> None:
        if not self.mesh or min(self.mesh) < 1:
            raise TopoplanError(f"program: a mesh of {self.mesh} devices (at least one along each of its axes)")
        if self.gradient_bucket_bytes < 0:
            raise TopoplanError(f"program: gradient buckets of {self.gradient_bucket_bytes} bytes (must be at least 0)")

    @property
    def n_devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.mesh)

    def made(self, op: int, output: int) -> MeshSharding:
        """Return the shardings in which an operator makes an output."""
        return tuple(rule.outputs[output] for rule in self.rules[op])

    def wanted(self, op: int, argument: int) -> MeshSharding:
        """Return the shardings in which an operator wants an argument."""
        return tuple(rule.inputs[argument] for rule in self.rules[op])

    def degrees(self, op: int, n_dims: int) -> tuple[int, ...]:
        """Return the cut of an operator that its signatures make."""
        degrees = [1] * n_dims
        for rule, size in zip(self.rules[op], self.mesh, strict=True):
            if rule.dim >= 0:
                degrees[rule.dim] *= size
        return tuple(degrees)

    def part_of_place(self, op: int, n_dims: int) -> I32:
        """(D,) the part of an operator that each place of the mesh runs, the last axis being the fastest."""
        place = np.unravel_index(np.arange(self.n_devices), self.mesh)
        along = [np.zeros(self.n_devices, dtype=np.int64) for _ in range(n_dims)]
        for rule, size, position in zip(self.rules[op], self.mesh, place, strict=True):
            if rule.dim >= 0:
                along[rule.dim] = along[rule.dim] * size + position
        if not n_dims:
            return i32(np.zeros(self.n_devices))
        return i32(np.ravel_multi_index(along, self.degrees(op, n_dims)))
