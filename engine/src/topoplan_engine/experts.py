"""Where a model has experts: the dimension of every operator that counts them.

Nothing is known of names.  Experts are where an operator has a matrix of weights for each index of a dimension: inputs,
weights and outputs all follow it, and of the weights another axis is summed over.  From there the dimension is followed
through the tensors between operators, to where slots are given out to experts and where their answers are combined.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import attrs

from topoplan.model.graph import Operator, OperatorGraph, Tensor
from topoplan_engine.of_graphs import of_last_graphs

__all__ = ["ExpertGroups", "expert_dims", "expert_groups_of", "skew_of", "with_expert_groups", "with_skew"]

#: The tags of a graph that say how uneven its tokens choose experts, and of which groups.
_SKEW, _GROUPS = "skew", "expert groups"


class ExpertGroups(NamedTuple):
    """Groups of equally many experts that follow each other; all experts of a token are in ``chosen`` of them.

    Node-limited routing, ``topk_group`` of ``n_group``: DeepSeek-AI, DeepSeek-V3 Technical Report (2024), 2.1.2.
    """

    total: int = 1
    chosen: int = 1


def with_expert_groups(graph: OperatorGraph, groups: ExpertGroups) -> OperatorGraph:
    """Return a model whose tokens go to experts of some groups alone."""
    return attrs.evolve(graph, tags={**graph.tags, _GROUPS: f"{groups.total} {groups.chosen}"})


def expert_groups_of(graph: OperatorGraph) -> ExpertGroups:
    """Return the groups of a model's experts; all are in one if it says nothing."""
    return ExpertGroups(*map(int, graph.tags[_GROUPS].split())) if _GROUPS in graph.tags else ExpertGroups()


def with_skew(graph: OperatorGraph, skew: float) -> OperatorGraph:
    """Return a model the busiest of whose expert parallel devices has ``skew`` times the mean of tokens."""
    return attrs.evolve(graph, tags={**graph.tags, _SKEW: repr(float(skew))})


def skew_of(graph: OperatorGraph) -> float:
    """Return the tokens of the busiest expert parallel device over the mean, as a model says; 1 if it says nothing."""
    return float(graph.tags.get(_SKEW, 1.0))


@of_last_graphs
def expert_dims(graph: OperatorGraph) -> tuple[int, ...]:
    """(n_ops) the dimension of experts in each operator; -1 if it has none."""
    expert_dim = [_counted(op) for op in graph.operators]
    neighbours: list[list[tuple[int, Tensor, Tensor]]] = [[] for _ in graph.operators]
    for u, output, v, argument in graph.edges.reshape(-1, 4).tolist():
        src, dst = graph.operators[u].outputs[output], graph.operators[v].inputs[argument]
        neighbours[u].append((v, src, dst))
        neighbours[v].append((u, dst, src))
    queue = deque(op for op, dim in enumerate(expert_dim) if dim >= 0)
    while queue:
        op = queue.popleft()
        for neighbour, tensor, same_tensor in neighbours[op]:
            axes = zip(tensor.axes, same_tensor.axes, strict=True)
            dims = [target.dim for source, target in axes if source.dim == expert_dim[op]]
            if expert_dim[neighbour] < 0 and dims and dims[0] >= 0:
                expert_dim[neighbour] = dims[0]
                queue.append(neighbour)
    return tuple(expert_dim)


def _counted(op: Operator) -> int:
    """Return the dimension for each index of which an operator has a matrix of weights, or -1."""
    input_dims, output_dims = _dims(op.inputs), _dims(op.outputs)
    for weight in op.weights:
        dims = _dims([weight])
        if dims & (input_dims - output_dims):
            for dim in sorted(dims & input_dims & output_dims - {op.sample_dim}):
                return dim
    return -1


def _dims(tensors: Iterable[Tensor]) -> set[int]:
    return {axis.dim for tensor in tensors for axis in tensor.axes if axis.dim >= 0}
