"""How the axes of a value lie in the tensor of an operator, so that views and transposes need no operators.

PyTorch splits, joins and exchanges axes between operators: ``(batch, positions, channels)`` becomes ``(batch, heads,
positions, channels of a head)`` before attention, and goes back after it.  An operator graph that took each step as
an operator would have more views than products.  A `Layout` remembers the tensor that an operator made, and how it is
looked at; most operators apply to the tensor as it is, and their outputs are looked at in the same way.

An axis of the tensor is cut into `Atom` s, and each axis of the view is a sequence of atoms, outermost first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from topoplan_operators import Handle

__all__ = ["Atom", "Layout"]


@attrs.frozen
class Atom:
    """A part of an axis: ``size`` steps of ``stride`` elements along ``axis``; axis -1 repeats what is there."""

    axis: int
    stride: int
    size: int


@attrs.frozen
class Layout:
    """A view on a tensor.

    Attributes:
        handle: the tensor.
        axes: of the view: for each the atoms that it consists of; an axis of size 1 has none.
        sample: axis of the tensor that holds the samples, or None.
        parameter: name of the parameter that the tensor is; empty for what operators make, and data.
        constant: it holds integers, masks or tables, which cost nothing.
    """

    handle: Handle
    axes: tuple[tuple[Atom, ...], ...]
    sample: int | None = None
    parameter: str = ""
    constant: bool = False

    @classmethod
    def of(cls, handle: Handle, sample: int | None = None, *, parameter: str = "", constant: bool = False) -> Layout:
        """Return the tensor as it is."""
        return cls(handle, _identity(handle.shape), sample, parameter, constant)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes of the view."""
        return tuple(math.prod(atom.size for atom in axis) for axis in self.axes)

    @property
    def base(self) -> Layout:
        """The tensor that is looked at, as it is."""
        return Layout.of(self.handle, self.sample, parameter=self.parameter, constant=self.constant)

    @property
    def is_plain(self) -> bool:
        """Whether it is the tensor as it is."""
        return self.shape == self.handle.shape and self.axes == _identity(self.handle.shape)

    @property
    def repeats(self) -> bool:
        """Whether elements occur several times."""
        return any(atom.axis < 0 for axis in self.axes for atom in axis)

    def on(self, handle: Handle, sample: int | None) -> Layout:
        """Return the same view on another tensor of as many axes, which may differ in the size of unsplit axes."""
        if self.is_plain:
            return Layout.of(handle, sample)
        sizes = {
            axis: size
            for axis, (size, old) in enumerate(zip(handle.shape, self.handle.shape, strict=True))
            if size != old
        }
        axes = tuple(
            tuple(
                attrs.evolve(atom, size=sizes.get(atom.axis, atom.size)) for atom in axis if sizes.get(atom.axis) != 1
            )
            for axis in self.axes
        )
        return Layout(handle, axes, sample)

    def permuted(self, order: Sequence[int]) -> Layout:
        """Put the axes into another order."""
        return attrs.evolve(self, axes=tuple(self.axes[k] for k in order))

    def reshaped(self, shape: Sequence[int]) -> Layout | None:
        """Give the view another shape of as many elements; None where an axis is no sequence of atoms."""
        waiting = [atom for axis in reversed(self.axes) for atom in reversed(axis)]
        axes: list[tuple[Atom, ...]] = []
        for size in shape:
            atoms: list[Atom] = []
            missing = size
            while missing > 1:
                if not waiting:
                    return None
                atom = waiting.pop()
                if missing % atom.size == 0:
                    atoms.append(atom)
                    missing //= atom.size
                    continue
                if atom.size % missing:
                    return None
                inner = atom.size // missing
                atoms.append(Atom(atom.axis, atom.stride * inner, missing))
                waiting.append(Atom(atom.axis, atom.stride, inner))
                missing = 1
            axes.append(_joined(atoms))
        return None if waiting else attrs.evolve(self, axes=tuple(axes))

    def unsqueezed(self, axis: int) -> Layout:
        """Insert an axis of size 1."""
        return attrs.evolve(self, axes=(*self.axes[:axis], (), *self.axes[axis:]))

    def expanded(self, shape: Sequence[int]) -> Layout:
        """Repeat along axes of size 1, and along new leading ones, to ``shape``."""
        axes = [()] * (len(shape) - len(self.axes)) + list(self.axes)
        return attrs.evolve(
            self,
            axes=tuple(
                (Atom(-1, 0, size),) if size > 1 and not axis else axis for size, axis in zip(shape, axes, strict=True)
            ),
        )

    def without_repeats(self) -> Layout:
        """Return the view on each element once: axes have no repeating atoms."""
        return attrs.evolve(self, axes=tuple(_joined([atom for atom in axis if atom.axis >= 0]) for axis in self.axes))

    def follows(self, axis: int) -> int:
        """Return the axis of the tensor that an axis of the view is, as a whole; -1 if it is none."""
        atoms = self.axes[axis]
        if len(atoms) == 1 and atoms[0].stride == 1 and atoms[0].axis >= 0:
            return atoms[0].axis if self.handle.shape[atoms[0].axis] == atoms[0].size else -1
        return -1

    def ends_plainly(self, count: int) -> bool:
        """Whether the last ``count`` axes are the last ones of the tensor, in order."""
        rank, last = len(self.axes), len(self.handle.shape)
        return count <= min(rank, last) and all(
            self.follows(rank - k) == last - k or (self.handle.shape[last - k] == 1 and not self.axes[rank - k])
            for k in range(1, count + 1)
        )

    def split(self) -> tuple[tuple[int, ...], Layout] | None:
        """Return the tensor's shape with an axis for each atom, and this view as a permutation of its axes.

        None where the tensor is not covered once by the atoms, in whole.
        """
        atoms = sorted(
            (atom for axis in self.axes for atom in axis if atom.axis >= 0), key=lambda atom: (atom.axis, -atom.stride)
        )
        shape = tuple(atom.size for atom in atoms)
        sizes = [1] * len(self.handle.shape)
        for atom in atoms:
            sizes[atom.axis] *= atom.size
        if tuple(sizes) != self.handle.shape:
            return None
        place = {atom: k for k, atom in enumerate(atoms)}
        axes = tuple(
            tuple(Atom(place[atom], 1, atom.size) if atom.axis >= 0 else atom for atom in axis) for axis in self.axes
        )
        sample = next((k for k, atom in enumerate(atoms) if atom.axis == self.sample), None)
        return shape, attrs.evolve(self, handle=attrs.evolve(self.handle, shape=shape), axes=axes, sample=sample)


def _identity(shape: Sequence[int]) -> tuple[tuple[Atom, ...], ...]:
    return tuple((Atom(axis, 1, size),) if size > 1 else () for axis, size in enumerate(shape))


def _joined(atoms: Sequence[Atom]) -> tuple[Atom, ...]:
    """Join atoms that follow each other within an axis."""
    joined: list[Atom] = []
    for atom in atoms:
        if joined and joined[-1].axis == atom.axis >= 0 and joined[-1].stride == atom.stride * atom.size:
            joined[-1] = Atom(atom.axis, atom.stride, joined[-1].size * atom.size)
        else:
            joined.append(atom)
    return tuple(joined)
