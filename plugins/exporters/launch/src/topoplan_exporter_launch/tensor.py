"""How a program cuts operators along its tensor axis, and whether trainers send what it sends.

Trainers cut matrices as Megatron-LM does (Shoeybi et al., 2019): by *columns*, so that every device makes its slice of
the output channels of a whole input, or by *rows*, so that every device makes a term of the output from its slice of
the input.  Between two matrices nothing but sums of terms is sent.  With sequence parallelism (Korthikanti et al.,
2022) operators between them are cut by positions: sums are reduce-scattered, and gathered before the next columns.
"""

from __future__ import annotations

from enum import StrEnum

from topoplan import Operator, OperatorGraph
from topoplan.model.graph import Role
from topoplan.model.sharding import Holding, Sharding
from topoplan.model.spmd import SpmdProgram
from topoplan_engine.experts import expert_dims
from topoplan_exporter_launch.grid import Grid
from topoplan_exporter_launch.meshes import cuts_experts, has_experts
from topoplan_exporter_launch.targets import Target
from topoplan_trainer_plans import PlanLike

__all__ = ["TABLES", "Cut", "check_matrices", "cuts_of", "has_matrix", "is_sent", "positions_dim"]

#: Kinds of operators with a table of words.
TABLES = ("embedding", "token_embedding")
_NORMS = ("layer_norm", "rms_norm")
#: Axis of positions in a tensor of (samples, positions, channels).
_POSITIONS = 1


class Cut(StrEnum):
    """How the weights of an operator are cut."""

    WHOLE = "whole"
    COLUMN = "column"
    ROW = "row"
    POSITIONS = "positions"
    """Weights are whole, and every device has its positions of the input."""
    EXPERTS = "experts"
    """Every device has some of the experts, with their whole matrices."""


def cuts_of(plan: PlanLike, grid: Grid, target: Target) -> tuple[Cut, ...]:
    """Return how each operator's weights are cut along the tensor axis; `Cut.WHOLE` where there are none.

    Raises:
        TopoplanError: an operator is cut in another way, or wants a tensor in a form that trainers do not bring it to.
    """
    graph, _ = target.searched(plan)
    if grid.program is None or not grid.tensor_axes:
        return (Cut.WHOLE,) * len(graph.operators)
    program, axes = grid.program, grid.tensor_axes
    cuts = tuple(
        _cut_of_experts(op, [rules[axis].dim for axis in axes], target)
        if has_experts(op)
        else _cut(op, rules[axes[0]].dim, target)
        for op, rules in zip(graph.operators, program.rules, strict=True)
    )
    for each in grid.tensor_axes:
        _check_messages(graph, program, each, Cut.POSITIONS in cuts, target)
    return cuts


def check_matrices(plan: PlanLike, grid: Grid, cuts: tuple[Cut, ...], target: Target) -> None:
    """Check that every matrix is cut along the tensor axis, if there is one.

    Raises:
        TopoplanError: a matrix is whole.
    """
    graph, _ = target.searched(plan)
    for cut, op in zip(cuts, graph.operators, strict=True):
        if grid.tensor > 1 and cut is Cut.WHOLE and has_matrix(op):
            raise target.refusal(op, f"is whole on {grid.tensor} devices that share the tensors of others")


def _cut(op: Operator, dim: int, target: Target) -> Cut:
    if dim < 0:
        return Cut.WHOLE
    if not op.weights:  # OLMo's normalizations
        return Cut.POSITIONS if op.kind in _NORMS and dim == positions_dim(op) else Cut.WHOLE
    if cuts_experts(op, dim):
        return Cut.EXPERTS
    role = op.dims[dim].role
    if role is Role.REDUCTION:
        return Cut.ROW
    if role is Role.PARAMETER and len(op.weights[0].axes) > 1:
        return Cut.COLUMN
    if role is Role.ATTRIBUTE and not any(axis.dim == dim for weight in op.weights for axis in weight.axes):
        return Cut.POSITIONS if dim == positions_dim(op) else Cut.WHOLE  # of heads, each device has its own
    raise target.refusal(op, f"is cut along {op.dims[dim].name!r}, neither by columns nor by rows of a matrix")


def _cut_of_experts(op: Operator, dims: list[int], target: Target) -> Cut:
    """Return how the matrices of experts are cut: whole where none of the axes cuts them, but tokens, or experts."""
    cuts = {_cut(op, dim, target) for dim in dims if any(axis.dim == dim for w in op.weights for axis in w.axes)}
    return next(iter(cuts - {Cut.EXPERTS}), Cut.EXPERTS)


def has_matrix(op: Operator) -> bool:
    """Say whether an operator has a matrix that trainers cut: by what it sums over, or by what it makes.

    A table of positions has two axes and is no such matrix: every device adds its rows to all channels.
    """
    cut = (Role.REDUCTION, Role.PARAMETER)
    return any(
        len(weight.axes) > 1 and any(axis.dim >= 0 and op.dims[axis.dim].role in cut for axis in weight.axes)
        for weight in op.weights
    )


def positions_dim(op: Operator) -> int:
    """Return the dimension that counts the positions of an operator's first input, -1 if it has none."""
    axes = op.inputs[0].axes if op.inputs else ()
    return axes[_POSITIONS].dim if len(axes) > _POSITIONS + 1 else -1


def _check_messages(graph: OperatorGraph, program: SpmdProgram, axis: int, sequence: bool, target: Target) -> None:
    """Check that along an axis only sums are sent, and with sequence parallelism slices of positions."""
    experts = expert_dims(graph)
    dealt = any(rules[axis].dim == dim >= 0 for rules, dim in zip(program.rules, experts, strict=True))
    for u, out, v, into in graph.edges.reshape(-1, 4).tolist():
        output, target_form = program.made(u, out)[axis], program.wanted(v, into)[axis]
        to_experts = dealt and experts[u] >= 0 and experts[v] >= 0
        routed = sequence and _is_routed(graph.operators[u], graph.operators[v], output, target_form)
        if output == target_form or to_experts or routed or is_sent(output, target_form, sequence=sequence):
            continue
        raise target.refusal(
            graph.operators[v],
            f"wants input {graph.operators[v].inputs[into].name!r} as {_form(target_form)}, "
            f"but {graph.operators[u].name!r} makes {_form(output)}",
        )


def _is_routed(source: Operator, target: Operator, output: Sharding, target_form: Sharding) -> bool:
    """Say whether devices that have parts of experts gather the tokens that they dispatched, or sum the answers."""
    to_whole, from_sum = target_form.holding is Holding.REPLICATED, output.holding is Holding.PARTIAL
    return (source.kind == "dispatch" and output.sliced and to_whole) or (
        target.kind == "combine" and from_sum and target_form.sliced
    )


def is_sent(output: Sharding, target_form: Sharding, *, sequence: bool) -> bool:
    """Say whether trainers bring a tensor from one form to the other."""
    from_sum, to_whole = output.holding is Holding.PARTIAL, target_form.holding is Holding.REPLICATED
    if not sequence:
        return from_sum and to_whole
    if target_form.axis == _POSITIONS:
        return from_sum or output.holding is Holding.REPLICATED
    return output.axis == _POSITIONS and to_whole


def _form(sharding: Sharding) -> str:
    if sharding.sliced:
        return f"slices of axis {sharding.axis}"
    return "terms of a sum" if sharding.holding is Holding.PARTIAL else "a whole tensor"
