"""The search space of a model on a mesh: the signatures of each operator along each axis.

Each axis of a mesh has a role.  Along *data* only samples are cut.  Along *model* any sound signature is possible.
Along *expert*, operators with experts are cut by experts or by samples, and all others by samples: devices with
different samples use each other's experts (Lepikhin et al., GShard, ICLR 2021).  A joint signature of an instruction
has one signature for each axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import NamedTuple

import attrs
import numpy as np

from topoplan import Cluster, Problem, TopoplanError
from topoplan.model.graph import Operator, OperatorGraph
from topoplan.model.sharding import (
    PARTIAL,
    PENDING_GRADIENT,
    REPLICATED,
    MeshSharding,
    Sharding,
    Signature,
    arguments,
    shard,
)
from topoplan_engine.experts import expert_dims
from topoplan_engine.sharding.signatures import signatures
from topoplan_spmd_planning.program import Instruction, Program, Verb, write_down

__all__ = ["Joint", "Kind", "Mesh", "MeshProgram", "Outline", "Role", "mesh_program", "meshes", "outline"]


class Role(StrEnum):
    """The role of an axis of a mesh."""

    DATA = "data"
    MODEL = "model"
    EXPERT = "expert"


class Kind(StrEnum):
    """The kind of a value."""

    OUTPUT = "output"
    """The output of an operator."""
    WEIGHT = "weight"
    """A parameter."""
    DATA = "data"
    """Data or a constant, which has no gradient."""


@attrs.frozen
class Mesh:
    """The number of devices along each axis, and the role of the axis."""

    sizes: tuple[int, ...]
    roles: tuple[Role, ...]

    def __str__(self) -> str:
        if len(self.sizes) == 1:
            return str(self.sizes[0])
        return " x ".join(f"{role} {size}" for role, size in zip(self.roles, self.sizes, strict=True))

    @property
    def data(self) -> tuple[int, ...]:
        """The axes of samples: one or none."""
        return tuple(axis for axis, role in enumerate(self.roles) if role is Role.DATA)

    def pieces(self, forms: MeshSharding) -> dict[int, int]:
        """Return the number of slices along each axis of a tensor."""
        sizes: dict[int, int] = {}
        for form, size in zip(forms, self.sizes, strict=True):
            if form.sliced:
                sizes[form.axis] = sizes.get(form.axis, 1) * size
        return sizes


@attrs.frozen
class Joint:
    """A signature for each axis of a mesh, and the resulting shardings of inputs and outputs.

    Attributes:
        rules: the signatures, by axis.
        degrees: of the cut of the operator; none if it runs none.
    """

    rules: tuple[Signature, ...]
    degrees: tuple[int, ...] = attrs.field(eq=False)
    inputs: tuple[MeshSharding, ...] = attrs.field(init=False)
    outputs: tuple[MeshSharding, ...] = attrs.field(init=False)

    @inputs.default
    def _inputs(self) -> tuple[MeshSharding, ...]:
        return tuple(zip(*(rule.inputs for rule in self.rules), strict=True))

    @outputs.default
    def _outputs(self) -> tuple[MeshSharding, ...]:
        return tuple(zip(*(rule.outputs for rule in self.rules), strict=True))


class LargestPart(NamedTuple):
    """The largest values of an operator's parts: seconds of both passes, and bytes; and ``kept`` of the first part."""

    forward: float
    backward: float
    memory: float
    kept: float | None


@attrs.frozen
class Outline:
    """A model as instructions, independent of the mesh.

    Attributes:
        program: instructions, with every signature that an axis can have.
        kinds: kind of each value.
        owner: for each value that is read, the operator that uses it; else -1.
        user: for each value, the last instruction that uses it and the index of the argument, or (-1, -1).
        experts: (n_ops) the dimension of experts in each operator, or -1.
        equal: for each instruction, the first one that has the same signatures on every mesh, as in an equal layer.
        largest_parts: prices so far, by operator and degrees of its cut.
    """

    program: Program[Signature]
    kinds: tuple[Kind, ...]
    owner: tuple[int, ...]
    user: tuple[tuple[int, int], ...]
    experts: tuple[int, ...]
    equal: tuple[int, ...]
    largest_parts: dict[tuple[int, tuple[int, ...]], LargestPart] = attrs.field(factory=dict, init=False, eq=False)


@attrs.frozen
class MeshProgram:
    """A model as instructions on a mesh, with all possible joint signatures."""

    mesh: Mesh
    program: Program[Joint]
    outline: Outline

    def stored(self, forms: MeshSharding) -> MeshSharding:
        """Return the stored sharding of a value that is read with the shardings ``forms``.

        Devices with different samples store the same slice, whose gradient is pending.
        """
        return tuple(PENDING_GRADIENT if axis in self.mesh.data else form for axis, form in enumerate(forms))


def meshes(cluster: Cluster, kind: str, *, experts: bool) -> list[Mesh]:
    """Return the flat mesh and, if ``kind`` is ``all``, every (data, model) mesh and those with an axis of ``experts``.

    Meshes with axes that form a host come first.  They are often the best, so that others are dropped early.
    """
    n_devices = cluster.n_devices
    result = [Mesh((n_devices,), (Role.MODEL,))]
    if kind == "flat":
        return result
    for data in (d for d in range(1, n_devices) if n_devices % d == 0):
        remaining = n_devices // data
        sizes, roles = ((data,), (Role.DATA,)) if data > 1 else ((), ())
        if data > 1:
            result.append(Mesh((*sizes, remaining), (*roles, Role.MODEL)))
        for size in (k for k in range(2, remaining) if experts and remaining % k == 0):
            result.append(Mesh((*sizes, size, remaining // size), (*roles, Role.MODEL, Role.EXPERT)))
            result.append(Mesh((*sizes, size, remaining // size), (*roles, Role.EXPERT, Role.MODEL)))
    host = int(np.bincount(cluster.device_host).max())
    return sorted(result, key=lambda mesh: len(mesh.sizes) > 1 and host not in np.cumprod(mesh.sizes[::-1])[:-1])


def outline(graph: OperatorGraph) -> Outline:
    """Return the outline of a model."""
    program = write_down(graph, signatures, data_first=False)
    count = len(program.values)
    kinds, owner, user = [Kind.DATA] * count, [-1] * count, [(-1, -1)] * count
    for position, instruction in enumerate(program.instructions):
        for value in instruction.outputs if instruction.op >= 0 else ():
            kinds[value] = Kind.OUTPUT
        for k, value in enumerate(instruction.inputs):
            user[value] = position, k
            if kinds[value] is not Kind.OUTPUT:
                owner[value] = instruction.op
                weight = k >= len(graph.operators[instruction.op].inputs)
                kinds[value] = Kind.WEIGHT if weight else Kind.DATA
    experts = expert_dims(graph)
    return Outline(
        program, tuple(kinds), tuple(owner), tuple(user), experts, _equal_instructions(program, user, experts, graph)
    )


def _equal_instructions(
    program: Program[Signature], user: Sequence[tuple[int, int]], experts: Sequence[int], graph: OperatorGraph
) -> tuple[int, ...]:
    """Return `Outline.equal`: signatures depend on the operator, or on that of which a value is an argument."""
    operators = [attrs.evolve(op, name="") for op in graph.operators]

    def described(i: Instruction[Signature]) -> object:
        return (i.verb, i.signatures, operators[i.op], experts[i.op]) if i.op >= 0 else (i.verb, i.signatures)

    first: dict[object, int] = {}
    equal = []
    for position, i in enumerate(program.instructions):
        shapes = tuple(program.values[value].shape for value in (*i.inputs, *i.outputs))
        reader, argument = user[i.outputs[0]] if i.op < 0 and i.outputs else (-1, -1)
        used = (described(program.instructions[reader]), argument) if reader >= 0 else None
        equal.append(first.setdefault((described(i), shapes, used), position))
    return tuple(equal)


def mesh_program(problem: Problem, model: Outline, mesh: Mesh) -> MeshProgram:
    """Return the program of a model on a mesh, with the signatures that are possible and have a price.

    Raises:
        TopoplanError: an instruction has no such signature; the message names it and what its cuts lack.
    """
    instructions = []
    joints: dict[int, list[Joint]] = {}  # of the first of equal instructions
    shared: dict[object, tuple[Joint, ...]] = {}  # of those, the ones that have a price
    for first, i in zip(model.equal, model.program.instructions, strict=True):
        if first not in joints:
            rules_by_axis = tuple(
                _along(role, size, i, model, problem.graph) for role, size in zip(mesh.roles, mesh.sizes, strict=True)
            )
            shapes = tuple(model.program.values[value].shape for value in (*i.inputs, *i.outputs))
            sizes = tuple(dim.size for dim in problem.graph.operators[i.op].dims) if i.op >= 0 else ()
            joints[first] = list(_joint(mesh, rules_by_axis, shapes, sizes))
        priced = tuple(i.op < 0 or problem.costs.supports(i.op, joint.degrees) for joint in joints[first])
        rules = shared.setdefault((first, priced), tuple(itertools.compress(joints[first], priced)))
        if not rules:
            cuts = sorted({joint.degrees for joint in joints[first]})
            raise TopoplanError(f"searcher spmd: model {problem.graph.name!r}: {_why_none(problem, mesh, i, cuts)}")
        instructions.append(Instruction(i.verb, i.name, i.inputs, i.outputs, rules, i.op))
    return MeshProgram(mesh, Program(tuple(instructions), model.program.values), model)


def _samples_rule(op: Operator, rules: Sequence[Signature], size: int) -> Signature:
    """Return the signature that cuts the samples of an operator into equal parts, or the last signature."""
    dim = op.sample_dim
    if size == 1 or dim < 0 or op.dims[dim].size % size:
        return rules[-1]
    return next((rule for rule in rules if rule.dim == dim), rules[-1])


def _along(
    role: Role, size: int, i: Instruction[Signature], model: Outline, graph: OperatorGraph
) -> tuple[Signature, ...]:
    """Return the possible signatures of an instruction along one axis."""
    if role is Role.MODEL:
        return i.signatures
    if i.verb is Verb.LOSS:
        return tuple(Signature((form,), ()) for form in (PARTIAL, REPLICATED))
    if i.verb is Verb.RUN:
        samples = _samples_rule(graph.operators[i.op], i.signatures, size)
        expert = model.experts[i.op] if role is Role.EXPERT else -1
        return (samples, *(rule for rule in i.signatures if rule.dim == expert >= 0))
    reader, argument = model.user[i.outputs[0]]
    user = model.program.instructions[reader]
    if i.verb is Verb.TAKE:
        form = (
            REPLICATED
            if reader < 0
            else _samples_rule(graph.operators[user.op], user.signatures, size).inputs[argument]
        )
        return (Signature((), (form,)),)
    if role is Role.DATA:
        return (Signature((), (REPLICATED,)),)
    slices: list[Sharding] = []
    if reader >= 0 and model.experts[user.op] >= 0:
        axes = arguments(graph.operators[user.op])[argument].axes
        slices = [shard(k) for k, axis in enumerate(axes) if axis.dim == model.experts[user.op]]
    return tuple(Signature((), (form,)) for form in (PENDING_GRADIENT, *slices))


def _joint(
    mesh: Mesh,
    rules_by_axis: Sequence[tuple[Signature, ...]],
    shapes: Sequence[tuple[int, ...]],
    sizes: Sequence[int],
) -> Iterator[Joint]:
    """Yield the joint signatures that have equal slices.

    Args:
        mesh: the mesh.
        rules_by_axis: the signatures of an instruction along each axis.
        shapes: of its inputs and outputs.
        sizes: of the dimensions of its operator; none if it runs none.
    """
    for rules in itertools.product(*rules_by_axis):
        degrees = [1] * len(sizes)
        for rule, size in zip(rules, mesh.sizes, strict=True):
            if sizes and rule.dim >= 0:
                degrees[rule.dim] *= size
        if any(size % degree for size, degree in zip(sizes, degrees, strict=True)):
            continue
        joint = Joint(rules, tuple(degrees))
        cut = (mesh.pieces(forms) for forms in (*joint.inputs, *joint.outputs))
        if not any(shape[k] % n for shape, pieces in zip(shapes, cut, strict=True) for k, n in pieces.items()):
            yield joint


def _why_none(problem: Problem, mesh: Mesh, i: Instruction[Signature], cuts: Sequence[tuple[int, ...]]) -> str:
    """Say why an instruction has no signature on a mesh: no cut is even, or the even ``cuts`` have no price."""
    if not cuts:
        return f"{i.name!r} has no cut into equal parts on mesh {mesh}"
    dims = problem.graph.operators[i.op].dims
    text = " or ".join(
        " x ".join(f"{dim.name}/{degree}" for dim, degree in zip(dims, cut, strict=True) if degree > 1) or "uncut"
        for cut in cuts
    )
    return (
        f"the estimator has no price of operator {i.name!r} cut as mesh {mesh} needs ({text}; use an estimator that "
        "prices every cut, such as roofline, or one with times of these)"
    )
