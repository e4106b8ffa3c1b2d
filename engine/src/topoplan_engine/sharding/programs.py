"""What a program for all devices reshards, and whether it computes what its graph says.

A tensor that is made once is brought to another sharding once, for all operators that want it so.
"""

from __future__ import annotations

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import Operator, OperatorGraph, Tensor
from topoplan.model.sharding import MeshSharding, arguments
from topoplan.model.spmd import SpmdProgram
from topoplan.model.strategy import SpmdStrategy, Strategy
from topoplan_engine.sharding.mesh import MeshStep, mesh_steps
from topoplan_engine.sharding.signatures import signatures

__all__ = ["Reshard", "check_strategy", "reshards_of", "why_invalid"]


@attrs.frozen
class Reshard:
    """A tensor brought from one form into another.

    Attributes:
        op, output: what makes it; ``output`` is -1 for an argument that no operator makes.
        argument: which argument of ``op`` it is in that case, else -1.
        parameter: whether it is a weight.
        nbytes: of the tensor as a whole.
        users: operators that want it so, ascending.
        forward, backward: mesh_steps, one after the other; what no operator makes and is no weight has no gradient.
    """

    op: int
    output: int
    argument: int
    parameter: bool
    nbytes: int
    users: tuple[int, ...]
    forward: tuple[MeshStep, ...]
    backward: tuple[MeshStep, ...]


def reshards_of(program: SpmdProgram, graph: OperatorGraph) -> list[Reshard]:
    """Return everything that changes its form, in the order in which it is first needed.

    Raises:
        TopoplanError: a tensor is wanted in a form that it cannot be brought to.
    """
    sources = {(v, into): (u, out) for u, out, v, into in graph.edges.reshape(-1, 4).tolist()}
    users: dict[tuple[int, int, int, MeshSharding], list[int]] = {}
    for v, op in enumerate(graph.operators):
        for k in range(len(arguments(op))):
            u, out = sources.get((v, k), (v, -1))
            given = program.made(u, out) if out >= 0 else program.stored[v][k]
            wanted = program.wanted(v, k)
            if given != wanted:
                users.setdefault((u, out, -1 if out >= 0 else k, wanted), []).append(v)
    moves = []
    for (u, out, k, wanted), those in users.items():
        op = graph.operators[u]
        tensor = op.outputs[out] if out >= 0 else arguments(op)[k]
        given = program.made(u, out) if out >= 0 else program.stored[u][k]
        found = mesh_steps(given, wanted, program.mesh)
        if found is None:
            raise TopoplanError(
                f"program: operator {graph.operators[those[0]].name!r} wants {tensor.name!r} as {_told(wanted)}, which "
                f"cannot be made of {_told(given)}"
            )
        forward, backward = found
        parameter = out < 0 and k >= len(op.inputs)
        gradient = backward if out >= 0 or parameter else ()
        moves.append(Reshard(u, out, k, parameter, tensor.nbytes, tuple(dict.fromkeys(those)), forward, gradient))
    return moves


def why_invalid(strategy: Strategy, graph: OperatorGraph, n_devices: int) -> str | None:
    """Return why a strategy cannot run on so many devices, or None if it can; see `Strategy.why_invalid`.

    Of an SPMD program that includes that it computes what the graph says: signatures are sound, slices are even, every
    tensor can be brought to the shardings in which it is wanted.
    """
    if reason := strategy.why_invalid(graph, n_devices):
        return reason
    return _why_unsound(strategy, graph) if isinstance(strategy, SpmdStrategy) else None


def check_strategy(strategy: Strategy, graph: OperatorGraph, n_devices: int) -> None:
    """Raise `TopoplanError` unless the strategy fits graph and cluster and, if it is a program, is sound."""
    strategy.check(graph, n_devices)
    if reason := why_invalid(strategy, graph, n_devices):
        raise TopoplanError(f"strategy: {reason}")


def _why_unsound(strategy: SpmdStrategy, graph: OperatorGraph) -> str | None:
    program, schedule = strategy.program, strategy.schedule
    for index, op in enumerate(graph.operators):
        if reason := _why_operator_unsound(program, index, op):
            return f"program: operator {op.name!r}: {reason}"
    try:
        moves = reshards_of(program, graph)
    except TopoplanError as error:
        return str(error)
    for move in moves:
        if move.output >= 0 and schedule.stage[move.op] >= schedule.stage[move.users[0]]:
            names = [graph.operators[op].name for op in (move.op, move.users[0])]
            return (
                f"schedule: duplex: {names[1]!r} wants what {names[0]!r} makes in another form, in the same stage "
                f"{schedule.stage[move.op]} (stages begin with their conversions)"
            )
    return None


def _why_operator_unsound(program: SpmdProgram, index: int, op: Operator) -> str | None:
    for rule in program.rules[index]:
        if not any(rule == sound and rule.dim == sound.dim for sound in signatures(op)):
            return f"signature {rule} is none that computes the same"
    for dim, degree in zip(op.dims, program.degrees(index, len(op.dims)), strict=True):
        if degree > 1 and (dim.role is None or dim.size % degree):
            return f"dimension {dim.name!r} of size {dim.size} has no {degree} equal parts"
    for argument, tensor in enumerate(arguments(op)):
        for shardings in (program.wanted(index, argument), program.stored[index][argument]):
            if reason := _why_uneven(program, tensor, shardings):
                return reason
    for output, tensor in enumerate(op.outputs):
        if reason := _why_uneven(program, tensor, program.made(index, output)):
            return reason
    return None


def _why_uneven(program: SpmdProgram, tensor: Tensor, shardings: MeshSharding) -> str | None:
    """Return why a tensor has no equal slices under these shardings, or None if it has; () stands for none."""
    pieces: dict[int, int] = {}
    for sharding, size in zip(shardings, program.mesh, strict=False):
        if sharding.sliced:
            pieces[sharding.axis] = pieces.get(sharding.axis, 1) * size
    for axis, count in pieces.items():
        if axis >= len(tensor.axes) or tensor.shape[axis] % count:
            return f"tensor {tensor.name!r} of shape {tensor.shape} has no {count} equal slices along axis {axis}"
    return None


def _told(forms: MeshSharding) -> str:
    return " x ".join(map(str, forms))
