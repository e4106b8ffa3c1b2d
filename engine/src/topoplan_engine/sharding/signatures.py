"""The signatures of an operator: under which shardings devices that share its work compute the same.

`signatures` derives them, for every operator alike, from the iteration space, the axis maps and the linearity:

- cut one dimension over all devices: what follows it is sliced, everything else is whole;
- if outputs lack the dimension, the devices hold partial sums of them.  That is sound if the operator is linear in
  a set of arguments whose axes follow the dimension; those of the set that do not follow it must be partial sums
  themselves (a bias, which otherwise every device would add);
- cut nothing: partial sums of a set of arguments in which the operator is linear give partial sums of the outputs;
- cut nothing at all: everything is whole.

HiDup (Zhang et al., SoCC 2022, section 3) lists signatures operator by operator instead.
"""

from __future__ import annotations

from topoplan.model.graph import Axis, Operator, Tensor
from topoplan.model.sharding import PARTIAL, REPLICATED, Signature, arguments, shard

__all__ = ["signatures"]


def signatures(op: Operator) -> tuple[Signature, ...]:
    """Return every signature that iteration space and linearity give, each once; the whole operator comes last."""
    found: dict[Signature, Signature] = {}
    for dim in range(len(op.dims)):
        for signature in _cuts(op, dim):
            found.setdefault(signature, signature)
    for linear in op.linear_in:
        forms = tuple(PARTIAL if k in linear else REPLICATED for k in range(len(arguments(op))))
        signature = Signature(forms, (PARTIAL,) * len(op.outputs))
        found.setdefault(signature, signature)
    whole = Signature((REPLICATED,) * len(arguments(op)), (REPLICATED,) * len(op.outputs))
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
    given = tuple(shard(k) if axis is not None else PARTIAL for k, axis in outputs)
    if all(form.sliced for form in given):
        # A device reads its slice, or from the whole what it needs: a window that reaches into others' slices.
        wanted = tuple(shard(k) if axis is not None and _even(op, axis, dim) else REPLICATED for k, axis in inputs)
        return [Signature(wanted, given, dim)]
    if any(axis is not None and not _even(op, axis, dim) for _, axis in inputs):
        return []
    cut = {k for k, (_, axis) in enumerate(inputs) if axis is not None}
    return [
        Signature(
            tuple(
                shard(k) if axis is not None else PARTIAL if n in linear else REPLICATED
                for n, (k, axis) in enumerate(inputs)
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
