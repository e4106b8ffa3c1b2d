"""The signatures of an operator: shardings of arguments and outputs under which devices compute the same together.

`signatures` derives them, for every operator alike, from the iteration space, the axis maps and the linearity:

- cut one dimension over all devices: tensors with an axis along it are sliced, all others are whole;
- if outputs lack the dimension, the devices hold partial sums of them.  That is sound if the operator is linear in
  a set of arguments with axes along the dimension; those of the set that have no such axis must be partial sums
  themselves (a bias, which otherwise every device would add).  It is sound, too, along a dimension that the operator
  says it `combines`;
- cut nothing: partial sums of a set of arguments in which the operator is linear give partial sums of the outputs;
- cut nothing at all: everything is whole.

HiDup (Zhang et al., SoCC 2022, section 3) lists signatures operator by operator instead.
"""

from __future__ import annotations

from topoplan.model.graph import Axis, Operator, Tensor
from topoplan.model.sharding import PARTIAL, REPLICATED, Signature, arguments, shard

__all__ = ["queries_signature", "routing_signature", "signatures"]


def signatures(op: Operator) -> tuple[Signature, ...]:
    """Return every signature that iteration space and linearity give, each once; the whole operator comes last."""
    distinct: dict[Signature, None] = {}
    for dim in range(len(op.dims)):
        for signature in _cuts(op, dim):
            distinct.setdefault(signature)
    for linear in op.linear_in:
        shardings = tuple(PARTIAL if k in linear else REPLICATED for k in range(len(arguments(op))))
        distinct.setdefault(Signature(shardings, (PARTIAL,) * len(op.outputs)))
    whole = Signature((REPLICATED,) * len(arguments(op)), (REPLICATED,) * len(op.outputs))
    distinct.pop(whole, None)
    return (*distinct, whole)


def _cuts(op: Operator, dim: int) -> list[Signature]:
    """Return the signatures of cutting dimension ``dim`` over all devices."""
    if op.dims[dim].role is None:
        return []
    outputs = [_follows(op, tensor, dim) for tensor in op.outputs]
    inputs = [_follows(op, tensor, dim) for tensor in arguments(op)]
    if any(axis is not None and not _even(op, axis, dim) for _, axis in outputs):
        return []
    output_shardings = tuple(shard(k) if axis is not None else PARTIAL for k, axis in outputs)
    if all(sharding.sliced for sharding in output_shardings):
        # A device reads its slice; or of the whole tensor a window, which reaches into the slices of others.
        argument_shardings = tuple(
            shard(k) if axis is not None and _even(op, axis, dim) else REPLICATED for k, axis in inputs
        )
        return [Signature(argument_shardings, output_shardings, dim)]
    if any(axis is not None and not _even(op, axis, dim) for _, axis in inputs):
        return []
    cut = {k for k, (_, axis) in enumerate(inputs) if axis is not None}
    linear_sets = [set(linear) for linear in op.linear_in if cut.intersection(linear)]
    return [
        Signature(
            tuple(
                shard(k) if axis is not None else PARTIAL if n in linear else REPLICATED
                for n, (k, axis) in enumerate(inputs)
            ),
            output_shardings,
            dim,
        )
        for linear in linear_sets or ([set[int]()] if dim in op.combines else [])
    ]


def _follows(op: Operator, tensor: Tensor, dim: int) -> tuple[int, Axis | None]:
    """Return the axis of ``tensor`` that follows ``dim``, and its position."""
    return next(((k, axis) for k, axis in enumerate(tensor.axes) if axis.dim == dim), (-1, None))


def _even(op: Operator, axis: Axis, dim: int) -> bool:
    """Say whether equal parts of ``dim`` touch equal slices of ``axis`` that do not overlap."""
    return axis.offset == 0 and axis.scale == axis.extent and axis.size == op.dims[dim].size * axis.scale


def routing_signature(op: Operator) -> Signature | None:
    """Return the signature under which devices route their own positions to slots of their own; None for others.

    Routing counts positions sample by sample.  Devices that have slices of the positions of a sample count those of
    their slice, and fill their share of the slots of every expert, as they do with tokens of different samples.
    """
    positions, slots = shard(1), shard(2)
    names = {dim.name: number for number, dim in enumerate(op.dims)}
    if op.kind == "dispatch":
        return Signature((positions, positions), (slots,), names["c"])
    if op.kind == "combine":
        return Signature((slots, positions, positions), (positions,), names["s"])
    return None


def queries_signature(op: Operator) -> Signature | None:
    """Return the signature that divides the heads of queries of each head of keys and values; None for others.

    Keys and values are whole for it.  It is sound where another axis of the mesh divides the heads of keys and values
    down to one, so that slices of the queries' axis are heads of queries.  Sinks and biases that have a value for each
    head of queries are divided with the heads.
    """
    if op.kind != "scaled_dot_product_attention":
        return None
    heads = next(number for number, dim in enumerate(op.dims) if dim.name == "h")
    place, axis = _follows(op, op.inputs[0], heads)
    queries = op.dims[heads + 1].size
    if axis is None or queries == 1 or axis.scale % queries:
        return None
    beside = [_follows(op, tensor, heads) for tensor in arguments(op)[3:]]  # behind query, keys and values
    divided = [shard(k) if axis is not None and axis.scale == queries else REPLICATED for k, axis in beside]
    return Signature((shard(place), REPLICATED, REPLICATED, *divided), (shard(place),))
