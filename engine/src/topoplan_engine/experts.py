"""Where a model has experts: the dimension of every operator that counts them.

Nothing is known of names.  Experts are where an operator has a matrix of weights for each index of a dimension: inputs,
weights and outputs all follow it, and of the weights another axis is summed over.  From there the dimension is followed
through the tensors between operators, to where slots are given out to experts and where their answers are combined.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from topoplan.model.graph import Operator, OperatorGraph, Tensor

__all__ = ["expert_dims"]


def expert_dims(graph: OperatorGraph) -> tuple[int, ...]:
    """(n_ops) the dimension of experts in each operator; -1 where it has none."""
    found = [_counted(op) for op in graph.operators]
    edges = graph.edges.reshape(-1, 4).tolist()
    beside: list[list[tuple[int, Tensor, Tensor]]] = [[] for _ in graph.operators]
    for u, out, v, into in edges:
        made, read = graph.operators[u].outputs[out], graph.operators[v].inputs[into]
        beside[u].append((v, made, read))
        beside[v].append((u, read, made))
    queue = deque(op for op, dim in enumerate(found) if dim >= 0)
    while queue:
        op = queue.popleft()
        for other, here, there in beside[op]:
            dims = [b.dim for a, b in zip(here.axes, there.axes, strict=True) if a.dim == found[op]]
            if found[other] < 0 and dims and dims[0] >= 0:
                found[other] = dims[0]
                queue.append(other)
    return tuple(found)


def _counted(op: Operator) -> int:
    """Return the dimension for each index of which an operator has a matrix of weights, or -1."""
    read, made = _followed(op.inputs), _followed(op.outputs)
    for weight in op.weights:
        dims = _followed([weight])
        if dims & (read - made):
            for dim in sorted(dims & read & made - {op.sample_dim}):
                return dim
    return -1


def _followed(tensors: Iterable[Tensor]) -> set[int]:
    return {axis.dim for tensor in tensors for axis in tensor.axes if axis.dim >= 0}
