"""The signatures of HiDup's table, as differences from the derived signatures.

`topoplan_engine.sharding.signatures` derives all sound signatures from the iteration space of an operator.  HiDup's
table, written by hand for each operator, has most of them.  It lacks

- partial sums through operators that it does not treat as linear (`SUMS` lists those that it does), and through several
  arguments at once: a sum of partial sums, a product of partial sums with a bias in partial sums;
- cuts of some dimensions (`UNCUT`).

It also has a few rules that do not compute the operator's result (`unsound`).  They are needed to find HiDup's plans.

Source: the rules of ylxdzsw/hidup (annotation of the operators), and section 3 of the paper.
"""

from __future__ import annotations

from collections.abc import Sequence

from topoplan import Operator
from topoplan.model.sharding import PARTIAL, REPLICATED, Signature, arguments, shard
from topoplan_engine.sharding.signatures import signatures

__all__ = ["SUMS", "UNCUT", "released", "unsound"]

#: Kind -> arguments that may be partial sums in HiDup, one at a time.
SUMS: dict[str, tuple[int, ...]] = {
    "bmm": (0, 1),
    "chunk": (0,),
    "clone": (0,),
    "contiguous": (0,),
    "divide": (0,),
    "linear": (0,),
    "matmul": (0, 1),
    "multiply": (0, 1),
    "sum": (0,),
    "transpose": (0,),
    "view": (0,),
}

#: Kind -> dimensions (positions; negative from the end) that HiDup does not cut.
UNCUT: dict[str, tuple[int, ...]] = {
    "conv2d": (2, 3, 4),  # height, width, input channels
    "flatten": (-1,),  # the axis that leads the joined ones
    "matmul": (0, 1, 3, 4),  # all but the rows of the first operand
    "multihead_attention": (1,),  # positions of the query
    "nll_loss": (1,),  # classes
    "token_embedding": (3,),  # rows of the table
    "view": (0, 1, 2, 3, 4, 5),
}


def released(op: Operator) -> tuple[Signature, ...]:
    """Return the signatures of HiDup's table; the replicated one comes last."""
    *rules, replicated = signatures(op)
    return (*(s for s in rules if _in_table(op, s)), *unsound(op), replicated)


def unsound(op: Operator) -> tuple[Signature, ...]:
    """Return the rules of HiDup's table that do not compute the operator's result.

    - The sum of rounded quotients of partial sums is not the rounded quotient of the sum.
    - Slices of attention's joint projection are not heads, and each device would add the whole output bias.
    - A combination of expert outputs that is cut by expert gives partial sums, not slices of positions.
    - The rules for a product of four by three axes number the second operand's axes as if it had four.
    """
    match op.kind:
        case "floor_divide":
            return (Signature((PARTIAL, *[REPLICATED] * (len(arguments(op)) - 1)), (PARTIAL,)),)
        case "multihead_attention":
            masks = [REPLICATED] * (len(op.inputs) - 3)
            weights = (shard(0), shard(0), shard(1), REPLICATED)
            return (Signature((*[shard(2)] * 3, *masks, *weights), (PARTIAL, PARTIAL)),)
        case "einsum" if _combines(op):
            return (Signature((REPLICATED, shard(2)), (shard(1),)),)
        case "matmul":
            return (
                Signature((shard(1), shard(1)), (shard(1),)),
                Signature((REPLICATED, shard(3)), (shard(3),)),
                Signature((shard(3), shard(2)), (PARTIAL,)),
            )
    return ()


def _in_table(op: Operator, signature: Signature) -> bool:
    """Say whether HiDup's table has a derived signature."""
    sums = [k for k, form in enumerate(signature.inputs) if form == PARTIAL]
    if signature.dim >= 0:
        uncut = (4,) if _combines(op) else UNCUT.get(op.kind, ())
        return not sums and signature.dim not in _positions(uncut, len(op.dims))
    number = op.kind == "multiply" and sums == [1] and not op.inputs[1].axes
    return len(sums) == 1 and sums[0] in SUMS.get(op.kind, ()) and not number


def _combines(op: Operator) -> bool:
    """Say whether this product combines expert outputs, ``becd,bsec->bsd``; HiDup's rule for its ``s`` is wrong."""
    axes = [[axis.dim for axis in tensor.axes] for tensor in (*arguments(op), *op.outputs)]
    return op.kind == "einsum" and axes == [[0, 1, 2, 3], [0, 4, 1, 2], [0, 4, 3]]


def _positions(dims: Sequence[int], count: int) -> set[int]:
    return {dim % count for dim in dims if dim < count}
