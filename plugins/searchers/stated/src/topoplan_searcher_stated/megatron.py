"""Megatron-LM's rules as signatures: how every operator of a transformer is cut along the axes of a mesh.

Along the tensor axis (Shoeybi et al., 2019) tables of words are cut by vocabulary, which makes terms of a sum, and
matrices by columns: each device makes its slice of the output channels.  What follows works on such slices, heads or
channels, up to a matrix that sums over them, cut by rows, or a loss.  A matrix is cut so only if all that follows it
ends so: a router, whose choice is of all experts, stays whole.  With sequence parallelism (Korthikanti et al., 2022)
everything between is cut by positions: sums are reduce-scattered, and gathered before the next columns.

Along the data axis samples are cut, along the context axis positions, where attention has all keys and values
(Llama 3, arXiv:2407.21783, section 3.3.2), or all positions of some heads (Jacobs et al., DeepSpeed Ulysses, 2023).
Along the axis of experts each device has some of them, and of the rest
its samples.

Where there are fewer heads of keys and values than tensor-parallel devices, several devices have the same ones, each
with its share of their heads of queries, and sum the gradients of what makes them.

Nothing is known of names or models: iteration spaces, roles and signatures say it all.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from enum import Enum, auto
from typing import NamedTuple

from topoplan import Operator, OperatorGraph, Role, TopoplanError
from topoplan.model.sharding import PARTIAL, REPLICATED, Sharding, Signature
from topoplan_engine.equal_operators import first_equal, layers_of
from topoplan_engine.experts import expert_dims
from topoplan_engine.sharding.signatures import queries_signature, routing_signature, signatures
from topoplan_engine.sharding.slots import slot_dims

__all__ = [
    "Tokens",
    "copied_expert_rules",
    "copied_operators",
    "copies_of_heads",
    "expert_rules",
    "heads_dim",
    "position_rules",
    "positions_dims",
    "queries_rules",
    "reads_rows",
    "routed_rules",
    "sample_rules",
    "tensor_rules",
]

_signatures = functools.lru_cache(maxsize=4096)(signatures)

#: Axis of positions in a tensor of (samples, positions, channels).
_POSITIONS = 1


class Tokens(Enum):
    """Which tokens devices have along an axis of experts, as the other operators are cut there."""

    OWN = auto()
    """Tokens of their samples or positions, which they dispatch themselves."""
    POSITIONS = auto()
    """Those of their positions, by sequence parallelism."""
    ALL = auto()


class _Made(NamedTuple):
    """How a tensor is made, and by which matrices it is in slices of channels."""

    form: Sharding
    columns: frozenset[int]


def sample_rules(graph: OperatorGraph) -> list[Signature]:
    """Return signatures that cut samples, where an operator has any."""
    return _cut_each(graph, [op.sample_dim for op in graph.operators])


def position_rules(graph: OperatorGraph, *, by_heads: bool = False) -> list[Signature]:
    """Return signatures that cut positions, where an operator has any; ``by_heads``: attention by heads (Ulysses)."""
    slots, positions = slot_dims(graph), positions_dims(graph)
    heads = [heads_dim(op) if by_heads else -1 for op in graph.operators]
    dims = (next((dim for dim in several if dim >= 0), -1) for several in zip(heads, slots, positions, strict=True))
    cut = _cut_each(graph, list(dims))
    return [routing_signature(op) or rule for op, rule in zip(graph.operators, cut, strict=True)]


def heads_dim(op: Operator) -> int:
    """Return the dimension of heads of keys and values of an attention that is one operator; -1 for any other one."""
    if op.kind != "scaled_dot_product_attention":
        return -1
    return next(number for number, dim in enumerate(op.dims) if dim.name == "h")


#: The last graph, and its answers by size.
_copies: tuple[OperatorGraph | None, dict[int, int]] = (None, {})


def copies_of_heads(graph: OperatorGraph, size: int) -> int:
    """Return how many of ``size`` tensor-parallel devices have the same heads of keys and values: 1 if none are copied.

    All attention has as many heads, each head of keys and values as many of queries that they can share, and what makes
    heads is cut by them.
    """
    global _copies
    if _copies[0] is not graph:
        _copies = graph, {}
    if size not in _copies[1]:
        _copies[1][size] = _copies_of_heads(graph, size)
    return _copies[1][size]


def _copies_of_heads(graph: OperatorGraph, size: int) -> int:
    heads = {
        (op.dims[h].size, op.dims[h + 1].size)
        for op in graph.operators
        if queries_signature(op) and (h := heads_dim(op)) >= 0
    }
    if len(heads) != 1:
        return 1
    ((groups, queries),) = heads
    if size <= groups or size % groups or queries % (size // groups):
        return 1
    rules = tensor_rules(graph, size, sequence=False)
    by_heads = [
        rule.dim == h
        for rule, op in zip(rules, graph.operators, strict=True)
        if queries_signature(op) and (h := heads_dim(op)) >= 0
    ]
    return size // groups if all(by_heads) else 1


def copied_operators(graph: OperatorGraph, rules: Sequence[Signature]) -> frozenset[int]:
    """Return the operators that make keys and values, from the matrices that read what all devices have.

    Args:
        graph: the model.
        rules: along the tensor axis.

    Raises:
        TopoplanError: a matrix makes queries, too, and cannot be copied without them.
    """
    sources = {(v, k): u for u, _, v, k in graph.edges.reshape(-1, 4).tolist()}

    def makers(readers: list[tuple[int, int]]) -> set[int]:
        operators_found: set[int] = set()
        while readers:
            maker = sources.get(readers.pop())
            if maker is not None and maker not in operators_found:
                operators_found.add(maker)
                activations = [k for k in range(len(graph.operators[maker].inputs)) if rules[maker].inputs[k].sliced]
                readers += [(maker, k) for k in activations]
        return operators_found

    attention = [index for index, op in enumerate(graph.operators) if queries_signature(op) is not None]
    copied = makers([(op, k) for op in attention for k in (1, 2)])
    if operators_of_both := copied & makers([(op, 0) for op in attention]):
        name = graph.operators[min(operators_of_both)].name
        raise TopoplanError(
            f"plan: operator {name!r} makes queries, keys and values at once: heads of keys and values cannot be "
            "copied (tp of at most their number)"
        )
    return frozenset(copied)


def queries_rules(graph: OperatorGraph, rules: Sequence[Signature], copied: Collection[int]) -> list[Signature]:
    """Return signatures along an axis of devices that have the same heads of keys and values: queries are divided."""
    return [
        queries_signature(op) or (_signatures(op)[-1] if index in copied else rule)
        for index, (op, rule) in enumerate(zip(graph.operators, rules, strict=True))
    ]


def expert_rules(graph: OperatorGraph, base: Sequence[Signature], tokens: Tokens = Tokens.OWN) -> list[Signature]:
    """Return signatures along an axis of experts: each device has some of them.

    Tokens reach their experts by all-to-alls (Lepikhin et al., GShard, ICLR 2021).  Where all devices have all tokens,
    each works on those of its experts, and what they make is added up.

    Args:
        graph: the model.
        base: signatures of all else.
        tokens: which ones devices have then.
    """
    rules = list(base)
    for index, (op, dim) in enumerate(zip(graph.operators, expert_dims(graph), strict=True)):
        if tokens is Tokens.POSITIONS:
            rules[index] = routing_signature(op) or rules[index]
        if dim < 0:
            continue
        rule = _cut(op, dim)
        exchanged = all(form.sliced for form in (*rule.inputs, *rule.outputs))
        if rule.dim == dim and (exchanged or tokens is Tokens.ALL):
            rules[index] = rule
    return rules


def copied_expert_rules(graph: OperatorGraph, base: Sequence[Signature]) -> list[Signature]:
    """Return signatures along an axis of devices that have the same experts, each for the tokens of its positions.

    Args:
        graph: the model.
        base: signatures of all else, which cut positions between matrices.

    Raises:
        TopoplanError: tokens are not dispatched to slots of experts, which devices could have shares of.
    """
    slots, experts = slot_dims(graph), expert_dims(graph)
    for op, slot, dim in zip(graph.operators, slots, experts, strict=True):
        if dim >= 0 and op.weights and slot < 0:
            raise TopoplanError(f"plan: operator {op.name!r}: its experts have no slots for tokens (leave etp out)")
    return [
        routing_signature(op) or (_cut(op, slot) if slot >= 0 else rule)
        for op, slot, rule in zip(graph.operators, slots, base, strict=True)
    ]


def routed_rules(graph: OperatorGraph, base: Sequence[Signature]) -> list[Signature]:
    """Return signatures along a tensor axis beside one of experts: devices dispatch the tokens of their positions.

    Each sends its own to the experts, and those that have parts of an expert gather what came for it: devices exchange
    the tokens once, not once for each part.

    Args:
        graph: the model.
        base: signatures of all else, which cut positions between matrices.

    References:
        ``MoEAlltoAllTokenDispatcher`` of Megatron-LM.
    """
    return [routing_signature(op) or rule for op, rule in zip(graph.operators, base, strict=True)]


def positions_dims(graph: OperatorGraph) -> list[int]:
    """(n_ops) the dimension that counts the positions of an operator's output; -1 where none does.

    Positions are the second axis of data, and every axis that follows it from operator to operator: queries of scores
    are positions, slots of experts are none.
    """
    sources = {(v, k): u for u, _, v, k in graph.edges.reshape(-1, 4).tolist()}
    axis_of: list[int] = []
    dims: list[int] = []
    for index, op in enumerate(graph.operators):
        followed = [axis.dim for axis in op.outputs[0].axes]
        dim = -1
        for k, tensor in enumerate(op.inputs):
            source = sources.get((index, k))
            axis = _POSITIONS if source is None else axis_of[source]
            if dim < 0 <= axis < len(tensor.axes) and tensor.axes[axis].dim in followed:
                dim = tensor.axes[axis].dim
        if len(followed) < _POSITIONS + 2 or dim < 0 or op.dims[dim].role is not Role.ATTRIBUTE:
            dim = -1
        dims.append(dim)
        axis_of.append(followed.index(dim) if dim >= 0 else -1)
    return dims


def _cut_each(graph: OperatorGraph, dims: Sequence[int]) -> list[Signature]:
    """Return signatures that cut a dimension of each operator; equal operators share theirs."""
    signatures_of: dict[tuple[int, int], Signature] = {}
    rules = []
    for op, first, dim in zip(graph.operators, first_equal(graph), dims, strict=True):
        if (first, dim) not in signatures_of:
            signatures_of[first, dim] = _cut(op, dim)
        rules.append(signatures_of[first, dim])
    return rules


def _cut(op: Operator, dim: int) -> Signature:
    """Return the signature that cuts a dimension, or that of the whole operator."""
    rules = _signatures(op)
    return next((rule for rule in rules if dim >= 0 and rule.dim == dim), rules[-1])


def tensor_rules(graph: OperatorGraph, size: int, *, sequence: bool, whole_tables: bool = False) -> list[Signature]:
    """Return signatures along a tensor axis of ``size`` devices; ``sequence`` cuts positions between matrices.

    A matrix of fewer channels than devices is whole.  So is one whose slices meet an operator that cannot work on them,
    and with it the same matrix of equal layers, and with ``whole_tables`` every table of rows.
    """
    equal = layers_of(graph).first
    positions = positions_dims(graph) if sequence else [-1] * len(graph.operators)
    matrices = _matrices(graph)
    sizes = {
        index: op.dims[rule.dim].size
        for index, (op, rule) in enumerate(zip(graph.operators, matrices, strict=True))
        if rule is not None
    }
    # Of tables the largest is that of the words; positions and segments have few rows, which all devices have.
    words = max((rows for index, rows in sizes.items() if reads_rows(graph.operators[index])), default=0)
    whole = {
        equal[index]
        for index, length in sizes.items()
        if (whole_tables or length < words if reads_rows(graph.operators[index]) else length < size)
    }
    while True:
        rules, conflicts = _walk(graph, matrices, equal, whole, positions)
        limits = {equal[op] for op in conflicts}
        if not limits - whole:
            return rules
        whole |= limits


def _walk(
    graph: OperatorGraph,
    matrices: Sequence[Signature | None],
    equal: Sequence[int],
    whole: set[int],
    positions: Sequence[int],
) -> tuple[list[Signature], set[int]]:
    """Choose signatures from the first operator to the last; return matrices whose slices something cannot take."""
    sources = {(v, k): (u, output) for u, output, v, k in graph.edges.reshape(-1, 4).tolist()}
    tensors: dict[tuple[int, int], _Made] = {}
    rules: list[Signature] = []
    conflicts: set[int] = set()
    for index, first in enumerate(first_equal(graph)):  # signatures are known of one of equal operators
        op = graph.operators[first]
        inputs = {k: tensors[sources[index, k]] for k in range(len(op.inputs)) if (index, k) in sources}
        carried = {k: each for k, each in inputs.items() if each.columns}
        columns: frozenset[int] = frozenset().union(*(each.columns for each in carried.values()))
        rule = _carried(op, carried) if carried else None
        if rule is None:
            conflicts |= columns
            columns = frozenset()
            rule = matrices[index] if equal[index] not in whole else None
            if rule is not None and all(form.sliced for form in rule.outputs):
                columns = frozenset((index,))
            if rule is None:
                rule = _passes_sum(op, inputs) or _cut(op, positions[index])
        rules.append(rule)
        for output, form in enumerate(rule.outputs):
            tensors[index, output] = _Made(form, columns if form.sliced else frozenset())
    return rules, conflicts


def _carried(op: Operator, carried: dict[int, _Made]) -> Signature | None:
    """Return the signature that takes slices of channels as they are, if there is one."""
    for rule in _signatures(op):
        if rule.dim >= 0 and all(rule.inputs[k] == each.form for k, each in carried.items()):
            return rule
    return None


def _passes_sum(op: Operator, inputs: dict[int, _Made]) -> Signature | None:
    """Return the signature that hands terms of a sum on, of an operator that makes less of them than it reads."""
    terms = {k for k, each in inputs.items() if each.form == PARTIAL}
    size = sum(tensor.elements for tensor in op.outputs)
    if len(terms) != 1 or op.weights or sum(op.inputs[k].elements for k in terms) <= size:
        return None
    forms = tuple(PARTIAL if k in terms else REPLICATED for k in range(len(op.inputs)))
    return next((rule for rule in _signatures(op) if rule.dim < 0 and rule.inputs == forms), None)


def _matrices(graph: OperatorGraph) -> list[Signature | None]:
    """Return `_matrix` of all operators, which equal ones share."""
    matrices: list[Signature | None] = []
    for index, first in enumerate(first_equal(graph)):
        matrices.append(_matrix(graph.operators[index]) if first == index else matrices[first])
    return matrices


def _matrix(op: Operator) -> Signature | None:
    """Return the signature that cuts a table of words by vocabulary, or a matrix by columns; None for neither."""
    weights = list(range(len(op.inputs), len(op.inputs) + len(op.weights)))
    tensors = [*op.inputs, *op.weights]
    weights += [k for k, tensor in enumerate(op.inputs) if tensor.name in op.tags.get("shared", "").split()]
    matrices = [k for k in weights if sum(axis.dim >= 0 for axis in tensors[k].axes) > 1]
    for rule in _signatures(op):
        if rule.dim < 0 or not any(rule.inputs[k].sliced for k in matrices):
            continue
        other_items = [form for k, form in enumerate(rule.inputs) if k not in weights]
        if any(form != REPLICATED for form in other_items):
            continue
        role, is_table = op.dims[rule.dim].role, reads_rows(op)
        if role is (Role.REDUCTION if is_table else Role.PARAMETER):
            return rule
    return None


def reads_rows(op: Operator) -> bool:
    """Whether an operator looks rows of a table up: it sums over a dimension that none of its inputs has."""
    summed = {index for index, dim in enumerate(op.dims) if dim.role is Role.REDUCTION}
    return bool(summed) and not any(axis.dim in summed for tensor in op.inputs for axis in tensor.axes)
