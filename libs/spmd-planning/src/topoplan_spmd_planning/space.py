"""The search space of a model on a mesh: the signatures of each operator along each axis.

Each axis of a mesh has a role.  Along *data* only samples are cut.  Along *model* any sound signature is possible.
Along *expert*, operators with experts are cut by experts or by samples, and all others by samples: devices with
different samples use each other's experts (Lepikhin et al., GShard, ICLR 2021).  A joint signature of an instruction
has one signature for each axis.

A plan for a trainer has meshes of its `topoplan.Restriction` alone, whose axes are for less: signatures and storages
that it does not allow are left out here, conversions in `topoplan_spmd_planning.mesh_prices`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from enum import StrEnum
from functools import partial
from typing import NamedTuple

import attrs
import numpy as np

from topoplan import AxisUse, Cluster, Problem, Restriction, TopoplanError
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
from topoplan_engine.equal_operators import first_equal
from topoplan_engine.experts import expert_dims
from topoplan_engine.sharding.signatures import signatures
from topoplan_engine.training import GradientFlow, gradient_flow
from topoplan_spmd_planning.known import Known
from topoplan_spmd_planning.program import Instruction, Program, Verb, write_down

__all__ = ["Joint", "Kind", "Mesh", "MeshProgram", "Outline", "mesh_program", "meshes", "outline"]


class Kind(StrEnum):
    """The kind of a value."""

    OUTPUT = "output"
    """The output of an operator."""
    WEIGHT = "weight"
    """A parameter."""
    FROZEN = "frozen"
    """A parameter that is not trained: it has no gradient."""
    DATA = "data"
    """Data, a constant, or an output to which no gradient flows back: it has no gradient."""

    @property
    def parameter(self) -> bool:
        """Whether it is a parameter, trained or not."""
        return self in (Kind.WEIGHT, Kind.FROZEN)


@attrs.frozen
class Mesh:
    """The number of devices along each axis, and the role of the axis."""

    sizes: tuple[int, ...]
    roles: tuple[AxisUse, ...]

    def __str__(self) -> str:
        if len(self.sizes) == 1 and self.roles[0] is AxisUse.MODEL:
            return str(self.sizes[0])
        return " x ".join(f"{role} {size}" for role, size in zip(self.roles, self.sizes, strict=True))

    @property
    def data(self) -> tuple[int, ...]:
        """The axes of samples: one or none."""
        return tuple(axis for axis, role in enumerate(self.roles) if role is AxisUse.DATA)

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
    """

    rules: tuple[Signature, ...]
    inputs: tuple[MeshSharding, ...] = attrs.field(init=False, eq=False)
    outputs: tuple[MeshSharding, ...] = attrs.field(init=False, eq=False)

    @inputs.default
    def _inputs(self) -> tuple[MeshSharding, ...]:
        return tuple(zip(*(rule.inputs for rule in self.rules), strict=True))

    @outputs.default
    def _outputs(self) -> tuple[MeshSharding, ...]:
        return tuple(zip(*(rule.outputs for rule in self.rules), strict=True))


class Cuts(NamedTuple):
    """The cuts of an operator on a mesh: distinct degrees, and the ``number`` of those that each signature makes."""

    degrees: tuple[tuple[int, ...], ...]
    number: tuple[int, ...]


class _Layout(NamedTuple):
    """The joint signatures of an instruction on meshes of any sizes; sets of axes, and of conditions, are bit masks.

    Attributes:
        joints: all combinations of the signatures along the axes.
        cut: for each of them, the axes that cut each dimension of the operator.
        conditions: (size, axes) that has to be divided by the devices along these axes.
        needs: for each of the joints, the conditions under which its slices are equal.
    """

    joints: tuple[Joint, ...]
    cut: tuple[tuple[int, ...], ...]
    conditions: tuple[tuple[int, int], ...]
    needs: tuple[int, ...]


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
        restriction: what the trainer runs that plans are for, if they are for one.
        known: what is known so far on several meshes.
    """

    program: Program[Signature]
    kinds: tuple[Kind, ...]
    owner: tuple[int, ...]
    user: tuple[tuple[int, int], ...]
    experts: tuple[int, ...]
    equal: tuple[int, ...]
    restriction: Restriction | None = None
    known: Known = attrs.field(factory=Known, init=False, eq=False, repr=False)


@attrs.frozen
class MeshProgram:
    """A model as instructions on a mesh, with all possible joint signatures.

    Attributes:
        cuts: those that the signatures of each instruction make; none of an instruction that runs no operator.
    """

    mesh: Mesh
    program: Program[Joint]
    outline: Outline
    cuts: tuple[Cuts, ...]

    def stored(self, forms: MeshSharding) -> MeshSharding:
        """Return the stored sharding of a value that is read with the shardings ``forms``.

        Devices with different samples store the same slice, whose gradient is pending.
        """
        return tuple(PENDING_GRADIENT if axis in self.mesh.data else form for axis, form in enumerate(forms))


def meshes(cluster: Cluster, kind: str, *, experts: bool, restriction: Restriction | None = None) -> list[Mesh]:
    """Return the flat mesh and, if ``kind`` is ``all``, every (data, model) mesh and those with an axis of ``experts``.

    Where there is a ``restriction``, its meshes in place of these.  Meshes with axes that form a host come first.  They
    are often the best, so that others are dropped early.
    """
    n_devices = cluster.n_devices
    if restriction is not None:
        result = [
            Mesh(sizes, uses)
            for uses in restriction.meshes
            if (kind == "all" or len(uses) == 1) and (experts or AxisUse.EXPERT not in uses)
            for sizes in _factors(n_devices, len(uses))
        ]
        return _hosts_first(result, cluster)
    result = [Mesh((n_devices,), (AxisUse.MODEL,))]
    if kind == "flat":
        return result
    for data in (d for d in range(1, n_devices) if n_devices % d == 0):
        remaining = n_devices // data
        sizes, roles = ((data,), (AxisUse.DATA,)) if data > 1 else ((), ())
        if data > 1:
            result.append(Mesh((*sizes, remaining), (*roles, AxisUse.MODEL)))
        for size in (k for k in range(2, remaining) if experts and remaining % k == 0):
            result.append(Mesh((*sizes, size, remaining // size), (*roles, AxisUse.MODEL, AxisUse.EXPERT)))
            result.append(Mesh((*sizes, size, remaining // size), (*roles, AxisUse.EXPERT, AxisUse.MODEL)))
    return _hosts_first(result, cluster)


def _hosts_first(result: Sequence[Mesh], cluster: Cluster) -> list[Mesh]:
    host = int(np.bincount(cluster.device_host).max())
    return sorted(result, key=lambda mesh: len(mesh.sizes) > 1 and host not in np.cumprod(mesh.sizes[::-1])[:-1])


def _factors(count: int, axes: int) -> Iterator[tuple[int, ...]]:
    """Yield the sizes of ``axes`` axes of so many devices, at least two along each; of one device, one axis of it."""
    if axes == 1:
        yield (count,)
        return
    for size in (size for size in range(2, count // 2 + 1) if count % size == 0):
        yield from ((size, *sizes) for sizes in _factors(count // size, axes - 1) if min(sizes) > 1)


def outline(graph: OperatorGraph, restriction: Restriction | None = None) -> Outline:
    """Return the outline of a model, for plans that keep to a ``restriction``."""
    program = write_down(graph, signatures, data_first=False)
    count, flow = len(program.values), gradient_flow(graph)
    kinds, owner, user = [Kind.DATA] * count, [-1] * count, [(-1, -1)] * count
    for position, instruction in enumerate(program.instructions):
        for value in instruction.outputs if instruction.op >= 0 else ():
            kinds[value] = Kind.OUTPUT
        for k, value in enumerate(instruction.inputs):
            user[value] = position, k
            if kinds[value] is not Kind.OUTPUT:
                owner[value] = instruction.op
                weight = k - len(graph.operators[instruction.op].inputs)
                trained = weight >= 0 and flow.weights[instruction.op][weight]
                kinds[value] = Kind.DATA if weight < 0 else Kind.WEIGHT if trained else Kind.FROZEN
    _without_gradients(program, kinds, flow)
    experts = expert_dims(graph)
    equal = _equal_instructions(program, user, experts, graph)
    return Outline(program, tuple(kinds), tuple(owner), tuple(user), experts, equal, restriction)


def _without_gradients(program: Program[Signature], kinds: list[Kind], flow: GradientFlow) -> None:
    """Say of outputs to which no gradient flows back that they have none; those without a reader stay."""
    read: dict[int, bool] = {}  # output -> whether some reader gives it a gradient
    for instruction in program.instructions:
        for k, value in enumerate(instruction.inputs if instruction.op >= 0 else ()):
            if kinds[value] is Kind.OUTPUT:
                read[value] = read.get(value, False) or flow.inputs[instruction.op][k]
    for value, has_gradient in read.items():
        if not has_gradient:
            kinds[value] = Kind.DATA


def _equal_instructions(
    program: Program[Signature], user: Sequence[tuple[int, int]], experts: Sequence[int], graph: OperatorGraph
) -> tuple[int, ...]:
    """Return `Outline.equal`: signatures depend on the operator, or on that of which a value is an argument."""
    operators = first_equal(graph)

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
    instructions, cuts, products = [], [], _products(mesh.sizes)
    even: dict[int, _Even] = {}  # of the first of equal instructions
    shared: dict[object, tuple[tuple[Joint, ...], Cuts]] = {}  # of those, the ones that have a price
    supported = model.known.supported
    for first, i in zip(model.equal, model.program.instructions, strict=True):
        if first not in even:
            even[first] = _even(problem.graph, model, mesh, products, first)
        degrees, of_op = even[first].cuts.degrees, supported[i.op]
        for cut in degrees:
            if cut not in of_op:
                of_op[cut] = i.op < 0 or problem.costs.supports(i.op, cut)
        has_price = tuple([of_op[cut] for cut in degrees])
        if (first, has_price) not in shared:
            shared[first, has_price] = _priced(model, first, even[first], has_price)
        rules, i_cuts = shared[first, has_price]
        if not rules:
            raise TopoplanError(
                f"searcher spmd: model {problem.graph.name!r}: {_why_none(problem, mesh, i, sorted(degrees))}"
            )
        instructions.append(Instruction(i.verb, i.name, i.inputs, i.outputs, rules, i.op))
        cuts.append(i_cuts)
    return MeshProgram(mesh, Program(tuple(instructions), model.program.values), model, tuple(cuts))


class _Even(NamedTuple):
    """The joint signatures of an instruction that have equal slices on a mesh, and their cuts.

    Attributes:
        layout: of all joint signatures.
        numbers: those that have equal slices.
    """

    layout: _Layout
    numbers: tuple[int, ...]
    cuts: Cuts


def _even(graph: OperatorGraph, model: Outline, mesh: Mesh, products: Sequence[int], first: int) -> _Even:
    """Return the joint signatures of an instruction that have equal slices on a mesh; ``products``: see `_products`."""
    knowledge, i = model.known, model.program.instructions[first]
    rules_by_axis = [
        knowledge.fact(("axis", first, role, size), partial(_along_once, role, size, i, model, graph))
        for role, size in zip(mesh.roles, mesh.sizes, strict=True)
    ]
    layout = knowledge.fact(
        ("layout", first, *map(id, rules_by_axis)), partial(_layout, rules_by_axis, i, model, graph)
    )
    holds = sum(1 << bit for bit, (size, axes) in enumerate(layout.conditions) if size % products[axes] == 0)
    numbers = [number for number, needs in enumerate(layout.needs) if needs & holds == needs]
    degrees = [tuple([products[axes] for axes in layout.cut[number]]) for number in numbers]
    distinct = {cut: number for number, cut in enumerate(dict.fromkeys(degrees))}
    return _Even(layout, tuple(numbers), Cuts(tuple(distinct), tuple([distinct[cut] for cut in degrees])))


def _products(sizes: Sequence[int]) -> list[int]:
    """Return the devices along each set of axes, given as a bit mask."""
    return [math.prod(size for axis, size in enumerate(sizes) if axes >> axis & 1) for axes in range(1 << len(sizes))]


def _priced(model: Outline, first: int, even: _Even, has_price: Sequence[bool]) -> tuple[tuple[Joint, ...], Cuts]:
    """Return the joint signatures of an instruction on a mesh that have a price, the same tuple on all meshes."""
    layout, numbers, cuts = even
    rows = [row for row, cut in enumerate(cuts.number) if has_price[cut]]
    number = {cut: k for k, cut in enumerate(itertools.compress(range(len(has_price)), has_price))}
    chosen = tuple([numbers[row] for row in rows])
    rules = model.known.fact(
        ("rules", first, id(layout), chosen), lambda: tuple([layout.joints[number] for number in chosen])
    )
    degrees = tuple(itertools.compress(cuts.degrees, has_price))
    return rules, Cuts(degrees, tuple([number[cuts.number[row]] for row in rows]))


def _layout(
    rules_by_axis: Sequence[tuple[Signature, ...]], i: Instruction[Signature], model: Outline, graph: OperatorGraph
) -> _Layout:
    """Return the joint signatures of an instruction, given its signatures along each axis."""
    shapes = [model.program.values[value].shape for value in (*i.inputs, *i.outputs)]
    sizes = [dim.size for dim in graph.operators[i.op].dims] if i.op >= 0 else []
    joints = tuple(Joint(rules) for rules in itertools.product(*rules_by_axis))
    conditions: dict[tuple[int, int], int] = {}
    cut, needs = [], []
    for joint in joints:
        along = _axes_along([rule.dim for rule in joint.rules]) if sizes else {}
        cut.append(tuple(along.get(dim, 0) for dim in range(len(sizes))))
        slices = [(sizes[dim], axes) for dim, axes in along.items()]
        for shape, forms in zip(shapes, (*joint.inputs, *joint.outputs), strict=True):
            slices += [(shape[k], axes) for k, axes in _axes_along([form.axis for form in forms]).items()]
        needs.append(sum(1 << conditions.setdefault(each, len(conditions)) for each in dict.fromkeys(slices)))
    return _Layout(joints, tuple(cut), tuple(conditions), tuple(needs))


def _axes_along(along: Sequence[int]) -> dict[int, int]:
    """Return what the axes of a mesh lie ``along`` (-1: nothing), with the bit mask of those that do."""
    axes: dict[int, int] = {}
    for axis, what in enumerate(along):
        if what >= 0:
            axes[what] = axes.get(what, 0) | 1 << axis
    return axes


def _samples_rule(op: Operator, rules: Sequence[Signature], size: int) -> Signature:
    """Return the signature that cuts the samples of an operator into equal parts, or the last signature."""
    dim = op.sample_dim
    if size == 1 or dim < 0 or op.dims[dim].size % size:
        return rules[-1]
    return next((rule for rule in rules if rule.dim == dim), rules[-1])


def _along_once(
    role: AxisUse, size: int, i: Instruction[Signature], model: Outline, graph: OperatorGraph
) -> tuple[Signature, ...]:
    """Return what `_along` does, the same tuple for axes of all sizes with the same signatures."""
    rules = _along(role, size, i, model, graph)
    # Signatures compare without their dimensions.
    return model.known.fact(("along", rules, tuple(rule.dim for rule in rules)), lambda: rules)


def _along(
    role: AxisUse, size: int, i: Instruction[Signature], model: Outline, graph: OperatorGraph
) -> tuple[Signature, ...]:
    """Return the possible signatures of an instruction along one axis."""
    restriction = model.restriction
    if restriction is not None and i.verb is Verb.RUN:
        op, rules = graph.operators[i.op], _unrestricted(role, size, i, model, graph)
        return tuple(rule for rule in rules if restriction.allows(op, role, rule))
    if restriction is not None and i.verb is Verb.READ and model.kinds[i.outputs[0]].parameter:
        return _storages(role, size, i, model, graph)
    return _unrestricted(role, size, i, model, graph)


def _storages(
    role: AxisUse, size: int, i: Instruction[Signature], model: Outline, graph: OperatorGraph
) -> tuple[Signature, ...]:
    """Return the forms in which the trainer stores a parameter, given those in which its operator may use it."""
    reader, argument = model.user[i.outputs[0]]
    user, restriction = model.program.instructions[reader], model.restriction
    assert restriction is not None
    elements = arguments(graph.operators[user.op])[argument].elements
    used = {rule.inputs[argument] for rule in _along(role, size, user, model, graph)}
    return tuple(
        rule
        for rule in _unrestricted(role, size, i, model, graph)
        if any(restriction.stores(elements, role, rule.outputs[0], form) for form in used)
    )


def _unrestricted(
    role: AxisUse, size: int, i: Instruction[Signature], model: Outline, graph: OperatorGraph
) -> tuple[Signature, ...]:
    """Return the signatures of an instruction along one axis that make sense there, whatever a trainer runs."""
    cuts_samples = role in (AxisUse.DATA, AxisUse.SHARDED_DATA, AxisUse.EXPERT)
    if role is AxisUse.MODEL or not (cuts_samples or i.verb in (Verb.LOSS, Verb.TAKE)):
        return i.signatures
    if i.verb is Verb.LOSS:
        return tuple(Signature((form,), ()) for form in (PARTIAL, REPLICATED))
    if i.verb is Verb.RUN:
        samples = _samples_rule(graph.operators[i.op], i.signatures, size)
        expert = model.experts[i.op] if role is AxisUse.EXPERT else -1
        return (samples, *(rule for rule in i.signatures if rule.dim == expert >= 0))
    reader, argument = model.user[i.outputs[0]]
    user = model.program.instructions[reader]
    if i.verb is Verb.TAKE:
        form = (
            REPLICATED
            if reader < 0 or not cuts_samples
            else _samples_rule(graph.operators[user.op], user.signatures, size).inputs[argument]
        )
        return (Signature((), (form,)),)
    if role is AxisUse.DATA:
        return (Signature((), (REPLICATED,)),)
    if role is AxisUse.SHARDED_DATA:
        return i.signatures
    slices: list[Sharding] = []
    if reader >= 0 and model.experts[user.op] >= 0:
        axes = arguments(graph.operators[user.op])[argument].axes
        slices = [shard(k) for k, axis in enumerate(axes) if axis.dim == model.experts[user.op]]
    return tuple(Signature((), (form,)) for form in (PENDING_GRADIENT, *slices))


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
