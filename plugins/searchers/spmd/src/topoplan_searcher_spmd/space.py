"""A model on a mesh: along the first axis samples are cut, along the last one everything is searched.

A flat mesh has the last axis alone.  On a mesh of two, every operator runs on its share of the samples, and devices
that have the same samples share the work by any sound signature: slices of weights, of experts, of positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

import attrs

from topoplan import Problem
from topoplan.forms import FULL, REPLICATE, Form, Signature, arguments, signatures
from topoplan.graph import Operator, OperatorGraph
from topoplan_searcher_hidup.program import Instruction, Program, Verb, write_down

__all__ = ["Kind", "Written", "data_rule", "meshes", "written"]


class Kind(Enum):
    """What a value is."""

    MADE = auto()
    """The output of an operator."""
    WEIGHT = auto()
    """A parameter."""
    GIVEN = auto()
    """Data or a constant, which has no gradient."""


@attrs.frozen
class Written:
    """A model as instructions for a mesh.

    Attributes:
        mesh: devices along each axis.
        program: instructions, with the signatures along the last axis that can be had.
        data: (n_ops) signatures along the axis of samples; whole where the mesh has none.
        forms: of each value along the axis of samples.
        kinds: of each value.
        owner: of each value that is read, the operator that it is for; else -1.
    """

    mesh: tuple[int, ...]
    program: Program
    data: tuple[Signature, ...]
    forms: tuple[Form, ...]
    kinds: tuple[Kind, ...]
    owner: tuple[int, ...]

    @property
    def sizes(self) -> tuple[int, int]:
        """Devices along the axis of samples, 1 where there is none, and along the last one."""
        return (self.mesh[0] if len(self.mesh) > 1 else 1), self.mesh[-1]

    def axes(self, *forms: Form) -> tuple[Form, ...]:
        """Return (samples, last) forms for the axes that the mesh has."""
        return forms[-len(self.mesh) :]

    def rules(self, op: int, rule: Signature) -> tuple[Signature, ...]:
        """Return an operator's signatures for the axes that the mesh has."""
        return (self.data[op], rule)[-len(self.mesh) :]

    def degrees(self, op: Operator, index: int, rule: Signature) -> tuple[int, ...]:
        """Return the cut of an operator."""
        degrees = [1] * len(op.dims)
        for one, size in zip((self.data[index], rule), self.sizes, strict=True):
            if one.dim >= 0:
                degrees[one.dim] *= size
        return tuple(degrees)


def meshes(n_devices: int, kind: str) -> Iterator[tuple[int, ...]]:
    """Yield the flat mesh, then (samples, rest) for every divisor, if ``all`` are asked for."""
    yield (n_devices,)
    if kind == "all":
        yield from ((d, n_devices // d) for d in range(2, n_devices) if n_devices % d == 0)


def data_rule(op: Operator, size: int) -> Signature:
    """Return the signature that cuts an operator's samples, in equal parts; the whole one where there is none."""
    *found, whole = signatures(op)
    dim = op.sample_dim
    if size == 1 or dim < 0 or op.dims[dim].size % size:
        return whole
    return next((rule for rule in found if rule.dim == dim), whole)


def written(problem: Problem, mesh: tuple[int, ...]) -> Written:
    """Write a model down for a mesh, with the signatures that its devices can have and the estimator can price."""
    graph = problem.graph
    program = write_down(graph, signatures, mesh[-1])
    size = mesh[0] if len(mesh) > 1 else 1
    data = tuple(data_rule(op, size) for op in graph.operators)
    kinds, owner, forms = _values(program, graph, data)
    bare = Written(mesh, program, data, forms, kinds, owner)
    kept = tuple(
        attrs.evolve(i, signatures=tuple(s for s in i.signatures if _fits(bare, problem, i, s)))
        for i in program.instructions
    )
    return attrs.evolve(bare, program=Program(kept, program.values))


def _values(
    program: Program, graph: OperatorGraph, data: tuple[Signature, ...]
) -> tuple[tuple[Kind, ...], tuple[int, ...], tuple[Form, ...]]:
    """Return kind, owner and form along the axis of samples of every value."""
    count = len(program.values)
    kinds, owner, forms = [Kind.GIVEN] * count, [-1] * count, [FULL] * count
    for instruction in program.instructions:
        if instruction.op < 0:
            continue
        op, rule = graph.operators[instruction.op], data[instruction.op]
        for value, form in zip(instruction.outputs, rule.outputs, strict=True):
            kinds[value], forms[value] = Kind.MADE, form
        for k, value in enumerate(instruction.inputs):
            if kinds[value] is not Kind.MADE:
                owner[value] = instruction.op
                kinds[value] = Kind.WEIGHT if k >= len(op.inputs) else Kind.GIVEN
                reads = program.instructions[program.values[value].born].verb is Verb.READ
                forms[value] = REPLICATE if reads else rule.inputs[k]
    return tuple(kinds), tuple(owner), tuple(forms)


def _fits(bare: Written, problem: Problem, instruction: Instruction, rule: Signature) -> bool:
    """Say whether slices of samples can be cut again as a signature wants, and the estimator can price that."""
    size, rest = bare.sizes
    sample_wise: tuple[Form, ...]
    if instruction.op >= 0:
        op, outer = problem.graph.operators[instruction.op], bare.data[instruction.op]
        degrees = bare.degrees(op, instruction.op, rule)
        if any(dim.size % degree for dim, degree in zip(op.dims, degrees, strict=True)):
            return False
        if not problem.costs.supports(instruction.op, degrees):
            return False
        sample_wise = (*outer.inputs, *outer.outputs)
        shapes = [tensor.shape for tensor in (*arguments(op), *op.outputs)]
    else:
        values = (*instruction.inputs, *instruction.outputs)
        sample_wise = tuple(bare.forms[value] for value in values)
        shapes = [bare.program.values[value].shape for value in values]
    for outer_form, form, shape in zip(sample_wise, (*rule.inputs, *rule.outputs), shapes, strict=True):
        if form.sliced:
            pieces = rest * (size if outer_form == form else 1)
            if shape[form.axis] % pieces:
                return False
    return True
