"""Resharding on a mesh: the collectives along its axes that bring a tensor from one sharding to another."""

from __future__ import annotations

import itertools
import math

import attrs
import numpy as np

from topoplan.arrays import I64
from topoplan.model.sharding import REPLICATED, Holding, MeshSharding, Sharding
from topoplan_engine.sharding.resharding import CollectiveStep, convert

__all__ = ["MeshStep", "mesh_groups", "mesh_steps"]


@attrs.frozen
class MeshStep:
    """One collective in every group of devices along some axes of the mesh.

    Attributes:
        step: what they do.
        axes: of the mesh.
        share: the part of the whole tensor that each group has; 1 where no other axis slices it.
    """

    step: CollectiveStep
    axes: tuple[int, ...]
    share: float

    @property
    def free(self) -> bool:
        """Whether nothing is sent."""
        return self.step.free


def mesh_steps(
    given: MeshSharding, wanted: MeshSharding, mesh: tuple[int, ...]
) -> tuple[tuple[MeshStep, ...], tuple[MeshStep, ...]] | None:
    """Return what makes ``wanted`` of ``given`` on a mesh, and the same for gradients; None where it cannot be made.

    Axes of the mesh come one after the other, in the first order in which slices of slices are put together before
    those that they are slices of; axes along which everything is summed come together.
    """
    together = _summed(given, wanted)
    for order in itertools.permutations([axis for axis in range(len(mesh)) if axis not in together[1:]]):
        now = list(given)
        forward: list[MeshStep] = []
        backward: list[MeshStep] = []
        for axis in order:
            axes = together if axis in together else (axis,)
            conversion = convert(now[axis], wanted[axis])
            if conversion is None or any(_inside(now, wanted, each) for each in axes):
                break
            others = (now[k] for k in range(len(mesh)) if k not in axes)
            sizes = (size for k, size in enumerate(mesh) if k not in axes)
            share = 1 / math.prod(size for form, size in zip(others, sizes, strict=True) if form.sliced)
            forward += [MeshStep(step, axes, share) for step in conversion.forward]
            backward[:0] = [MeshStep(step, axes, share) for step in conversion.backward]
            for each in axes:
                now[each] = wanted[each]
        else:
            return tuple(forward), tuple(backward)
    return None


def _summed(given: MeshSharding, wanted: MeshSharding) -> tuple[int, ...]:
    """Return the axes along which a tensor, or the gradient of a parameter, is summed for everybody."""
    return tuple(
        axis
        for axis, (here, there) in enumerate(zip(given, wanted, strict=True))
        if there == REPLICATED
        and here.holding in (Holding.PARTIAL, Holding.PENDING_GRADIENT)
        and here == given[_first(given)]
    )


def _first(given: MeshSharding) -> int:
    """Return the first axis that a tensor is replicated or in partial sums along, or else 0."""
    return next((k for k, form in enumerate(given) if form.holding in (Holding.PARTIAL, Holding.PENDING_GRADIENT)), 0)


def _inside(now: list[Sharding], wanted: MeshSharding, axis: int) -> bool:
    """Say whether slices that ``axis`` makes or joins are, or would be, sliced again by a later axis."""
    touched = {form.axis for form in (now[axis], wanted[axis]) if form.sliced and now[axis] != wanted[axis]}
    return any(form.sliced and form.axis in touched for form in now[axis + 1 :])


def mesh_groups(mesh: tuple[int, ...], axes: tuple[int, ...]) -> I64:
    """Return the groups of devices along ``axes`` of a mesh, (groups, members), members ascending."""
    numbers = np.arange(int(np.prod(mesh))).reshape(mesh)
    others = [axis for axis in range(len(mesh)) if axis not in axes]
    members = int(np.prod([mesh[axis] for axis in axes]))
    return numbers.transpose(*others, *axes).reshape(-1, members)
