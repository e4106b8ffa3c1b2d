"""Operators that sum over whole axes: sum and mean, and with it global pooling."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import Axis, Operator, Role, Tensor, Term
from topoplan_operators.handle import Handle, every_axis, plain

__all__ = ["REDUCTIONS", "reduced"]

REDUCTIONS = ("mean", "sum")


def reduced(kind: str, x: Handle, axes: Sequence[int], *, keep: bool = False) -> Operator:
    """Return the sum or mean of ``x`` over ``axes``; a part with some of what is summed holds partial sums.

    A mean of parts is divided by the number of all elements, so that its partial sums add up, too.

    Args:
        kind: one of `REDUCTIONS`.
        x: samples first; they may be summed over.
        axes: negative ones count from the end.
        keep: leave axes of one element in their place.

    Raises:
        TopoplanError: an axis does not exist, or comes twice.
    """
    rank = len(x.shape)
    summed = sorted(axis % rank if -rank <= axis < rank else -1 for axis in axes)
    if not summed or -1 in summed or len({*summed}) < len(summed):
        raise TopoplanError(f"{kind}: axes {', '.join(map(str, axes))} of a tensor of {rank} axes")
    dims = tuple(
        attrs.evolve(dim, role=Role.REDUCTION) if k in summed and dim.role is not Role.SAMPLE else dim
        for k, dim in enumerate(every_axis(x.shape))
    )
    output = tuple(
        Axis(1) if k in summed else Axis(size, k) for k, size in enumerate(x.shape) if keep or k not in summed
    )
    return Operator(
        name="",
        kind=kind,
        dims=dims,
        inputs=(plain("x", x, *range(rank)),),
        outputs=(Tensor("y", output, x.itemsize),),
        work=(Term(1, tuple(range(rank))),),
        linear_in=((0,),),
    )
