"""HiDup's counts of an operator's forward FLOPs.

The counts are relative weights of operators, not the operations of a device: a multiplication with addition counts 3,
the move of an element 1, the random drop of an element 20.  Attention omits its projections.
"""

from __future__ import annotations

import math

from topoplan import Operator

__all__ = ["flops"]

#: Count for every iteration of the iteration space.
PER_ITERATION = {
    "add": 1,
    "bmm": 3,
    "clone": 1,
    "contiguous": 1,
    "divide": 1,
    "dropout": 20,
    "einsum": 3,
    "floor_divide": 1,
    "gating": 10,
    "layer_norm": 10,
    "linear": 3,
    "log_softmax": 15,
    "matmul": 3,
    "multiply": 1,
    "nll_loss": 1,
    "relu": 1,
    "sigmoid": 3,
    "softmax": 5,
    "sqrt": 3,
    "sum": 1,
    "take_token": 1,
    "tanh": 3,
    "transpose": 1,
}
#: Count for every element of the first input, where the iteration space has fewer iterations.
PER_ELEMENT = {"chunk": 1, "flatten": 1, "view": 1}


def flops(op: Operator) -> int:
    """Return HiDup's count, or the operator's own FLOPs if HiDup lacks the operator."""
    sizes = {dim.name: dim.size for dim in op.dims}
    if op.kind in PER_ITERATION:
        return PER_ITERATION[op.kind] * math.prod(op.sizes)
    if op.kind in PER_ELEMENT:
        return PER_ELEMENT[op.kind] * op.inputs[0].elements
    match op.kind:
        case "append_token":
            return sizes["n"] * sizes["c"]
        case "conv2d":
            kernel = op.weights[0].shape[2:]
            return 3 * math.prod(op.sizes) * math.prod(kernel)
        case "multihead_attention":
            scores = sizes["n"] * sizes["q"] * sizes["s"]
            return 6 * scores * sizes["e"] + 5 * scores
        case "token_embedding":
            return op.outputs[0].elements
    return int(sum(term.coefficient * math.prod(op.sizes[dim] for dim in term.dims) for term in op.work))
