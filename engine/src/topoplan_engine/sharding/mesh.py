"""Resharding on a mesh: the collectives along its axes that bring a tensor from one sharding to another."""

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple

import attrs
import numpy as np

from topoplan.arrays import I64, i64
from topoplan.model.sharding import REPLICATED, Holding, MeshSharding, Sharding
from topoplan_engine.sharding.resharding import CollectiveStep, convert

__all__ = ["AnyMeshStep", "MeshStep", "any_mesh_steps", "exchanges", "mesh_groups", "mesh_steps"]


@attrs.frozen
class MeshStep:
    """One collective in every group of devices along some axes of the mesh.

    Attributes:
        step: the collective.
        axes: of the mesh.
        share: the part of the whole tensor that each group has; 1 if no other axis slices it.
    """

    step: CollectiveStep
    axes: tuple[int, ...]
    share: float

    @property
    def free(self) -> bool:
        """Whether nothing is sent."""
        return self.step.free


def mesh_steps(
    source: MeshSharding,
    target: MeshSharding,
    mesh: tuple[int, ...],
    *,
    any_order: bool = False,
    stored: bool = False,
) -> tuple[tuple[MeshStep, ...], tuple[MeshStep, ...]] | None:
    """Return the steps from ``source`` to ``target`` on a mesh, and those of the gradients; None if there are none.

    Axes of the mesh come one after the other, in the first order in which slices of slices are joined before the
    slices that they belong to; axes along which everything is summed come together.  An all-to-all comes after what
    makes slices of sums, and before what gathers slices: it then sends the least.  With ``any_order`` an all-to-all
    may make slices that a later axis slices, too: which ones devices then have, their order says, not that of axes.
    With ``stored`` this is a weight that is stored in slices of the slices that its operator uses, whatever the order
    of axes, as in PyTorch's FSDP2 beside tensor parallelism: joining them gives back the slice of the operator.
    """
    steps = any_mesh_steps(source, target, any_order, stored)
    if steps is None:
        return None
    forward, backward = (
        tuple(MeshStep(step, axes, 1 / math.prod(mesh[axis] for axis in sliced)) for step, axes, sliced in pass_steps)
        for pass_steps in steps
    )
    return forward, backward


class AnyMeshStep(NamedTuple):
    """A step on meshes of any size: its collective, its axes, and the other axes that slice the tensor."""

    step: CollectiveStep
    axes: tuple[int, ...]
    sliced: tuple[int, ...]


@functools.lru_cache(maxsize=1 << 16)
def any_mesh_steps(
    source: MeshSharding, target: MeshSharding, any_order: bool = False, stored: bool = False
) -> tuple[tuple[AnyMeshStep, ...], tuple[AnyMeshStep, ...]] | None:
    """Return the steps of `mesh_steps`, which depend on the sizes of axes by their shares alone."""
    summed = _summed_axes(source, target)
    for order in itertools.permutations(_smallest_first(source, target, summed)):
        current = list(source)
        forward: list[AnyMeshStep] = []
        backward: list[AnyMeshStep] = []
        for axis in order:
            axes = summed if axis in summed else (axis,)
            conversion = convert(current[axis], target[axis])
            in_order = not current[axis].sliced or not (any_order if target[axis].sliced else stored)
            if conversion is None or (in_order and any(_sliced_again(current, target, each) for each in axes)):
                break
            sliced = tuple(k for k, sharding in enumerate(current) if k not in axes and sharding.sliced)
            forward += [AnyMeshStep(step, axes, sliced) for step in conversion.forward]
            backward[:0] = [AnyMeshStep(step, axes, sliced) for step in conversion.backward]
            for each in axes:
                current[each] = target[each]
        else:
            return tuple(forward), tuple(backward)
    return None


def _smallest_first(source: MeshSharding, target: MeshSharding, summed: tuple[int, ...]) -> list[int]:
    """Return axes, of those that are summed together the first, in the order that sends the least."""
    axes = [axis for axis in range(len(source)) if axis not in summed[1:]]
    if not exchanges(source, target):
        return axes
    # What makes slices is -1: a device has less by it; what gathers them is 1.
    growth = [before.sliced - after.sliced for before, after in zip(source, target, strict=True)]
    return sorted(axes, key=lambda axis: growth[axis])


def exchanges(source: MeshSharding, target: MeshSharding) -> bool:
    """Say whether devices exchange slices along an axis of a mesh, as tokens travel to their experts."""
    return any(before.sliced and after.sliced and before != after for before, after in zip(source, target, strict=True))


def _summed_axes(source: MeshSharding, target: MeshSharding) -> tuple[int, ...]:
    """Return the axes along which a tensor, or the gradient of a parameter, is summed for every device."""
    pending = (Holding.PARTIAL, Holding.PENDING_GRADIENT)
    first = next((sharding for sharding in source if sharding.holding in pending), source[0])
    return tuple(
        axis
        for axis, (before, after) in enumerate(zip(source, target, strict=True))
        if after == REPLICATED and before.holding in pending and before == first
    )


def _sliced_again(current: list[Sharding], target: MeshSharding, axis: int) -> bool:
    """Say whether slices that ``axis`` makes or joins are, or would be, sliced again by a later axis."""
    before, after = current[axis], target[axis]
    changed = {sharding.axis for sharding in (before, after) if sharding.sliced and before != after}
    return any(sharding.sliced and sharding.axis in changed for sharding in current[axis + 1 :])


@functools.lru_cache(maxsize=64)
def mesh_groups(mesh: tuple[int, ...], axes: tuple[int, ...]) -> I64:
    """Return the groups of devices along ``axes`` of a mesh, (groups, members), members ascending; read-only."""
    numbers = np.arange(int(np.prod(mesh))).reshape(mesh)
    fixed = [axis for axis in range(len(mesh)) if axis not in axes]
    members = int(np.prod([mesh[axis] for axis in axes]))
    return i64(numbers.transpose(*fixed, *axes).reshape(-1, members))
