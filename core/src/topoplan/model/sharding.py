"""Tensor forms and signatures: what holds when every device runs every operator, each on its share.

In such a program (single program, multiple data) a tensor exists on all devices in one of four *forms*: whole on
each (`FULL`), a slice along one axis on each (`gather`), a term of a sum on each (`REDUCE`), or a parameter that each
keeps whole and whose gradient is yet to be summed (`REPLICATE`).  A *signature* of an operator says which forms its
arguments must have and which its outputs then have.

`signatures` derives them, for every operator alike, from the iteration space, the axis maps and the linearity:

- cut one dimension over all devices: what follows it is sliced, everything else is whole;
- if outputs lack the dimension, the devices hold partial sums of them.  That is sound where the operator is linear in
  a set of arguments whose axes follow the dimension; those of the set that do not follow it must be partial sums
  themselves (a bias, which otherwise every device would add);
- cut nothing: partial sums of a set of arguments in which the operator is linear give partial sums of the outputs;
- cut nothing at all: everything is whole.

Forms are those of HiDup (Zhang et al.: Accelerating Large-Scale Distributed Neural Network Training with SPMD
Parallelism, SoCC 2022, section 3), which lists signatures operator by operator.  `topoplan.model.resharding` says how a
tensor comes from one form into another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import StrEnum

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Operator, Tensor

__all__ = ["FULL", "REDUCE", "REPLICATE", "Form", "Holding", "Signature", "arguments", "gather", "parse", "signatures"]


class Holding(StrEnum):
    """What each device holds of a tensor."""

    FULL = "full"
    """All of it."""
    GATHER = "gather"
    """Its slice along one axis; the devices' slices, put together, are the tensor."""
    REDUCE = "reduce"
    """A tensor of full shape; the devices' tensors, added up, are the tensor."""
    REPLICATE = "replicate"
    """All of a parameter, whose gradients on the devices must still be added up."""


@attrs.frozen(cache_hash=True)
class Form:
    """What the devices hold of a tensor; ``axis`` is the axis of slices, -1 for the other holdings."""

    holding: Holding
    axis: int = -1

    def __attrs_post_init__(self) -> None:
        if self.sliced != (self.axis >= 0):
            lacks = "needs the axis that it is sliced along" if self.sliced else f"has no axis, not {self.axis}"
            raise TopoplanError(f"form {self.holding} {lacks}")

    def __str__(self) -> str:
        return f"{self.holding}_{self.axis}" if self.holding is Holding.GATHER else str(self.holding)

    @property
    def sliced(self) -> bool:
        """Whether each device holds a slice."""
        return self.holding is Holding.GATHER

    def fits(self, shape: Sequence[int], n_devices: int) -> bool:
        """Say whether so many devices can hold a tensor of ``shape`` in this form, in equal slices if in slices."""
        return not self.sliced or (self.axis < len(shape) and shape[self.axis] % n_devices == 0)


FULL = Form(Holding.FULL)
REDUCE = Form(Holding.REDUCE)
REPLICATE = Form(Holding.REPLICATE)


def gather(axis: int) -> Form:
    """Return the form of slices along ``axis``."""
    return Form(Holding.GATHER, axis)


def parse(text: str) -> Form:
    """Read a form as ``str`` writes it: ``full``, ``gather_0``, ``reduce``, ``replicate``.

    Raises:
        TopoplanError: it is none.
    """
    if found := re.fullmatch(r"gather_(\d+)", text):
        return gather(int(found[1]))
    for form in (FULL, REDUCE, REPLICATE):
        if text == str(form):
            return form
    raise TopoplanError(f"form {text!r}: is none of full, gather_0, gather_1, ..., reduce, replicate")


@attrs.frozen
class Signature:
    """The forms of an operator's arguments (inputs, then weights) and outputs.

    Attributes:
        dim: the dimension that is cut over all devices; -1 where none is.  It is no part of what is compared.
    """

    inputs: tuple[Form, ...]
    outputs: tuple[Form, ...]
    dim: int = attrs.field(default=-1, eq=False)

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"

    @property
    def sliced(self) -> bool:
        """Whether any argument or output is sliced, so that the devices share the work."""
        return any(form.sliced for form in (*self.inputs, *self.outputs))


def arguments(op: Operator) -> tuple[Tensor, ...]:
    """Return what the operator reads: inputs, then weights."""
    return (*op.inputs, *op.weights)


def signatures(op: Operator) -> tuple[Signature, ...]:
    """Return every signature that iteration space and linearity give, each once; the whole operator comes last."""
    found: dict[Signature, Signature] = {}
    for dim in range(len(op.dims)):
        for signature in _cuts(op, dim):
            found.setdefault(signature, signature)
    for linear in op.linear_in:
        forms = tuple(REDUCE if k in linear else FULL for k in range(len(arguments(op))))
        signature = Signature(forms, (REDUCE,) * len(op.outputs))
        found.setdefault(signature, signature)
    whole = Signature((FULL,) * len(arguments(op)), (FULL,) * len(op.outputs))
    found.pop(whole, None)
    return (*found, whole)


def _cuts(op: Operator, dim: int) -> list[Signature]:
    """Return the signatures of cutting dimension ``dim`` over all devices."""
    if op.dims[dim].role is None:
        return []
    outputs = [_follows(op, tensor, dim) for tensor in op.outputs]
    inputs = [_follows(op, tensor, dim) for tensor in arguments(op)]
    if any(axis is not None and not _even(op, axis, dim) for _, axis in outputs):
        return []
    given = tuple(gather(k) if axis is not None else REDUCE for k, axis in outputs)
    if all(form.sliced for form in given):
        # A device reads its slice, or from the whole what it needs: a window that reaches into others' slices.
        wanted = tuple(gather(k) if axis is not None and _even(op, axis, dim) else FULL for k, axis in inputs)
        return [Signature(wanted, given, dim)]
    if any(axis is not None and not _even(op, axis, dim) for _, axis in inputs):
        return []
    cut = {k for k, (_, axis) in enumerate(inputs) if axis is not None}
    return [
        Signature(
            tuple(
                gather(k) if axis is not None else REDUCE if n in linear else FULL for n, (k, axis) in enumerate(inputs)
            ),
            given,
            dim,
        )
        for linear in op.linear_in
        if cut.intersection(linear)
    ]


def _follows(op: Operator, tensor: Tensor, dim: int) -> tuple[int, Axis | None]:
    """Return the axis of ``tensor`` that follows ``dim``, and its position."""
    return next(((k, axis) for k, axis in enumerate(tensor.axes) if axis.dim == dim), (-1, None))


def _even(op: Operator, axis: Axis, dim: int) -> bool:
    """Say whether equal parts of ``dim`` touch equal slices of ``axis`` that do not overlap."""
    return axis.offset == 0 and axis.scale == axis.extent and axis.size == op.dims[dim].size * axis.scale
