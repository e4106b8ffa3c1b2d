"""The reshardings of an SPMD program, and whether it computes what its graph says.

A tensor that is made once is brought to another sharding once, for all operators that need that sharding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import Operator, OperatorGraph, Tensor
from topoplan.model.sharding import PENDING_GRADIENT, REPLICATED, MeshSharding, Signature, arguments
from topoplan.model.spmd import SpmdProgram
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import Strategy
from topoplan_engine.equal_operators import first_equal
from topoplan_engine.sharding.fitting_stages import why_stages_unfit
from topoplan_engine.sharding.gradient_terms import whole_with_terms
from topoplan_engine.sharding.mesh import MeshStep, mesh_steps
from topoplan_engine.sharding.signatures import queries_signature, routing_signature, signatures
from topoplan_engine.sharding.slots import slot_dims
from topoplan_engine.training import GradientFlow, gradient_flow

__all__ = ["Reshard", "check_strategy", "pieces", "reshards_of", "reshards_under", "why_invalid"]


@attrs.frozen(cache_hash=True)
class Reshard:
    """One resharding: a tensor is brought from one sharding to another.

    Attributes:
        op, output: the tensor: an output of an operator; ``output`` is -1 for an argument that no operator makes.
        argument: number of that argument of ``op``, else -1.
        parameter: whether it is a weight.
        nbytes: of the whole tensor.
        users: operators that need the new sharding, ascending.
        forward, backward: collectives, one after the other; none backward for data and what is not trained, which have
            no gradient.
    """

    op: int
    output: int
    argument: int
    parameter: bool
    nbytes: int
    users: tuple[int, ...]
    forward: tuple[MeshStep, ...]
    backward: tuple[MeshStep, ...]


#: The last program with its graph, and its reshardings: whoever checks a program lowers it next.
_last: tuple[SpmdProgram | None, OperatorGraph | None, tuple[Reshard, ...]] = (None, None, ())


def reshards_of(program: SpmdProgram, graph: OperatorGraph) -> tuple[Reshard, ...]:
    """Return all reshardings, in the order in which they are first needed.

    Raises:
        TopoplanError: a tensor cannot be brought to a sharding that an operator needs.
    """
    global _last
    known_program, known_graph, reshards = _last
    if known_program is not program or known_graph is not graph:
        reshards = tuple(reshards_under(program, graph, gradient_flow(graph)))
        _last = program, graph, reshards
    return reshards


def reshards_under(
    program: SpmdProgram,
    graph: OperatorGraph,
    flow: GradientFlow,
    copies: Collection[tuple[int, int]] = (),
    apart: Collection[tuple[int, int]] = (),
    *,
    any_order: bool = False,
) -> list[Reshard]:
    """Return all reshardings of a part of a model, in the order in which they are first needed.

    Args:
        program: of the part.
        graph: of its operators.
        flow: the gradients of these operators in the whole model.
        copies: (operator, input) that is a copy of a weight of another part, and is summed and stored as a weight.
        apart: (operator, input) that is brought to its sharding for this operator alone, whatever others need.
        any_order: see `topoplan_engine.sharding.mesh.mesh_steps`.

    Raises:
        TopoplanError: a tensor cannot be brought to a sharding that an operator needs.
    """
    sources = {(v, argument): (u, output) for u, output, v, argument in graph.edges.reshape(-1, 4).tolist()}
    readers: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for (v, argument), source_of in sources.items():
        readers.setdefault(source_of, []).append((v, argument))
    users: dict[tuple[int, int, int, MeshSharding, int], list[int]] = {}
    for v, operator in enumerate(graph.operators):
        for k in range(len(arguments(operator))):
            u, output = sources.get((v, k), (v, -1))
            source = program.made(u, output) if output >= 0 else program.stored[v][k]
            target = program.wanted(v, k)
            if source != target:
                reader = v if (v, k) in apart else -1
                users.setdefault((u, output, -1 if output >= 0 else k, target, reader), []).append(v)
    reshards = []
    for (u, output, k, target, _), ops in users.items():
        operator = graph.operators[u]
        tensor = operator.outputs[output] if output >= 0 else arguments(operator)[k]
        source = program.made(u, output) if output >= 0 else program.stored[u][k]
        parameter = output < 0 and (k >= len(operator.inputs) or (u, k) in copies)
        steps = mesh_steps(source, target, program.mesh, any_order=any_order, stored=any_order and parameter)
        if steps is None:
            raise TopoplanError(
                f"program: operator {graph.operators[ops[0]].name!r} wants {tensor.name!r} as {_text(target)}, which "
                f"cannot be made of {_text(source)}"
            )
        forward, backward = steps
        if output >= 0:
            trained = any(flow.inputs[v][argument] for v, argument in readers[u, output] if v in ops)
        elif k < len(operator.inputs):
            trained = parameter and flow.inputs[u][k]
        else:
            trained = flow.weights[u][k - len(operator.inputs)]
        gradient = backward if trained else ()
        distinct = tuple(dict.fromkeys(ops))
        reshards.append(Reshard(u, output, k, parameter, tensor.nbytes, distinct, forward, gradient))
    return reshards


def pieces(program: SpmdProgram, shardings: MeshSharding) -> int:
    """Return into how many slices a tensor with these shardings is cut."""
    return math.prod(size for sharding, size in zip(shardings, program.mesh, strict=True) if sharding.sliced)


def why_invalid(strategy: Strategy, graph: OperatorGraph, n_devices: int) -> str | None:
    """Return why a strategy cannot run on so many devices, or None if it can; see `Strategy.why_invalid`.

    Stages must have samples for all micro-batches and devices.  Programs must also compute what the graph says:
    signatures are sound, slices are even, every tensor can be brought to the shardings that operators need.
    """
    if reason := strategy.why_invalid(graph, n_devices):
        return reason
    if not isinstance(strategy, StagedStrategy):
        return None
    if reason := why_stages_unfit(strategy, graph, n_devices):
        return reason
    if strategy.program is not None:
        return _why_unsound(strategy, strategy.program, graph)
    return None if strategy.is_placed else _why_stages_unsound(strategy, graph)


def check_strategy(strategy: Strategy, graph: OperatorGraph, n_devices: int) -> None:
    """Raise `TopoplanError` unless the strategy fits graph and cluster and, if it is a program, is sound."""
    strategy.check(graph, n_devices)
    if reason := why_invalid(strategy, graph, n_devices):
        raise TopoplanError(f"strategy: {reason}")


def _why_rules_unsound(program: SpmdProgram, graph: OperatorGraph, operators: Sequence[int]) -> str | None:
    """Return which signature of a program of some operators is not sound, or None."""
    sound, equal, slots = set[object](), first_equal(graph), slot_dims(graph)
    rules_of = dict(zip(operators, program.rules, strict=True))
    terms: dict[int, set[int]] = {}
    for number, axis in whole_with_terms(graph, [rules_of.get(number, ()) for number in range(len(graph.operators))]):
        terms.setdefault(number, set()).add(axis)
    for index, number in enumerate(operators):
        op, rules, summed = graph.operators[number], program.rules[index], terms.get(number, set())
        key = equal[number], rules, tuple(rule.dim for rule in rules), program.stored[index], frozenset(summed)
        if key in sound:
            continue
        if reason := _why_operator_unsound(program, index, op, slots[number], summed):
            return f"program: operator {op.name!r}: {reason}"
        sound.add(key)
    return None


def _why_stages_unsound(strategy: StagedStrategy, graph: OperatorGraph) -> str | None:
    # Stages as graphs of their own have reshardings, which are derived here.
    from topoplan_engine.sharding.stage_graphs import stage_graphs

    for number, stage in enumerate(strategy.stages):
        if reason := _why_rules_unsound(stage.program, graph, stage.operators.tolist()):
            return f"stage {number}: {reason}"
    try:
        stage_graphs(strategy, graph)
    except TopoplanError as error:
        return str(error)
    return None


def _why_unsound(strategy: StagedStrategy, program: SpmdProgram, graph: OperatorGraph) -> str | None:
    stage = strategy.stage_of
    if reason := _why_rules_unsound(program, graph, range(len(graph.operators))):
        return reason
    try:
        reshards = reshards_of(program, graph)
    except TopoplanError as error:
        return str(error)
    for reshard in reshards if not strategy.whole_batch else ():
        if reshard.output >= 0 and stage[reshard.op] >= stage[reshard.users[0]]:
            names = [graph.operators[op].name for op in (reshard.op, reshard.users[0])]
            return (
                f"schedule: two-microbatch: {names[1]!r} wants what {names[0]!r} makes in another form, in the same "
                f"stage {stage[reshard.op]} (stages begin with their conversions)"
            )
    return None


#: The signatures of operators; those of a model are asked for with every program.
_signatures = functools.lru_cache(maxsize=1024)(signatures)


def _why_operator_unsound(
    program: SpmdProgram, index: int, op: Operator, slots: int, summed: Collection[int]
) -> str | None:
    """Return why an operator's part of a program is not sound, or None.

    Slices of its dimension of ``slots`` may differ.  Along the axes of the mesh ``summed`` it is whole, and each device
    has a term of the gradients of its weights.
    """
    sound = (*_signatures(op), *_of_groups(program, index, op))
    for rule in program.rules[index]:
        if not any(rule == signature and rule.dim == signature.dim for signature in sound):
            return f"signature {rule} is none that computes the same"
    for number, (dim, degree) in enumerate(zip(op.dims, program.degrees(index, len(op.dims)), strict=True)):
        uneven = dim.size < degree if number == slots else dim.size % degree
        if degree > 1 and (dim.role is None or uneven):
            return f"dimension {dim.name!r} of size {dim.size} has no {degree} equal parts"
    for argument, tensor in enumerate(op.weights, len(op.inputs)):
        if tensor.requires_grad and _sums_no_gradient(program, index, argument, summed):
            return (
                f"weight {tensor.name!r} is stored as {_text(program.stored[index][argument])}, so that its gradients, "
                f"of which each device has a term, are never summed (store it as {PENDING_GRADIENT}, or in slices)"
            )
    for argument, tensor in enumerate(arguments(op)):
        forms = [program.wanted(index, argument)]
        if argument < len(op.inputs):  # slices of a weight that is gathered before it is used may differ
            forms.append(program.stored[index][argument])
        for shardings in forms:
            if reason := _why_uneven(program, tensor, shardings, slots):
                return reason
    for output, tensor in enumerate(op.outputs):
        if reason := _why_uneven(program, tensor, program.made(index, output), slots):
            return reason
    return None


def _of_groups(program: SpmdProgram, index: int, op: Operator) -> tuple[Signature, ...]:
    """Return the signatures that are sound for what the axes of the mesh make of an operator together."""
    routing, queries = routing_signature(op), queries_signature(op)
    if queries is not None:
        axes = list(zip(program.rules[index], program.mesh, strict=True))
        heads = next(number for number, dim in enumerate(op.dims) if dim.name == "h")
        groups = math.prod(size for rule, size in axes if rule.dim == heads)
        copies = math.prod(size for rule, size in axes if rule == queries)
        if groups != op.dims[heads].size or op.dims[heads + 1].size % copies:
            queries = None
    return tuple(each for each in (routing, queries) if each is not None)


def _sums_no_gradient(program: SpmdProgram, index: int, argument: int, summed: Collection[int]) -> bool:
    """Whether devices have a term each of a weight's gradient, for their shares of the operator, which are never added.

    It is read whole along an axis of the mesh that cuts the operator, or its readers (``summed``), and stored so.
    """
    stored = program.stored[index][argument]
    axes = zip(program.rules[index], stored, program.mesh, strict=True) if stored else ()
    return any(
        size > 1 and (rule.dim >= 0 or axis in summed) and rule.inputs[argument] == REPLICATED == sharding
        for axis, (rule, sharding, size) in enumerate(axes)
    )


def _why_uneven(program: SpmdProgram, tensor: Tensor, shardings: MeshSharding, slots: int) -> str | None:
    """Return why a tensor has no equal slices under these shardings, or None if it has; () stands for none.

    Slices along its operator's dimension of slots, if it has one, may differ.
    """
    counts: dict[int, int] = {}
    for sharding, size in zip(shardings, program.mesh, strict=False):
        if sharding.sliced:
            counts[sharding.axis] = counts.get(sharding.axis, 1) * size
    for axis, count in counts.items():
        if axis < len(tensor.axes) and 0 <= slots == tensor.axes[axis].dim and count <= tensor.shape[axis]:
            continue
        if axis >= len(tensor.axes) or tensor.shape[axis] % count:
            return f"tensor {tensor.name!r} of shape {tensor.shape} has no {count} equal slices along axis {axis}"
    return None


def _text(shardings: MeshSharding) -> str:
    return " x ".join(map(str, shardings))
