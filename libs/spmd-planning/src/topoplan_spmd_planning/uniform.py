"""Plans in which equal layers are planned equally: one signature and one storage for the same operator of all layers.

The recursion knows no layers, and its plan may treat some otherwise: at the ends of the model, where memory is full, or
where two signatures cost the same.  Such a plan is hard to read, and no trainer launches it.

Layers depend on each other by the tensor between them.  If that has one sharding behind every layer, each is a problem
of its own, and equal ones have equal answers; so the model is planned once for each sharding of it (`by_boundary`).
What a plan still does otherwise in some layer, at the ends of the model, is then asked to be in all layers as it is in
one of them (`variants`), and the rest of the model is planned again around it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import attrs

from topoplan import OperatorGraph
from topoplan.model.spmd import SpmdProgram
from topoplan_engine.equal_operators import layers_of
from topoplan_spmd_planning.planning import Solution
from topoplan_spmd_planning.program import Instruction, Program
from topoplan_spmd_planning.space import Cuts, Joint, MeshProgram, Outline

__all__ = ["Repeats", "by_boundary", "is_uniform", "repeats_of", "variants"]

#: Kinds of layers whose plan is asked of all layers, at most: the most frequent ones.
_VARIANTS = 4


class Repeats(NamedTuple):
    """The instructions of equal layers.

    Attributes:
        first: (n) the first of the instructions that are the same of equal layers; -1 of one that has no equal.
        layer: (n) text that names the layer.
        boundary: the first of the instructions that make the largest tensor between layers; -1 if there is none.
    """

    first: tuple[int, ...]
    layer: tuple[str, ...]
    boundary: int


def repeats_of(outline: Outline, graph: OperatorGraph) -> Repeats:
    """Return the instructions of equal layers: operators, and what is read for one of their arguments."""
    layers = layers_of(graph)
    first: dict[object, int] = {}
    keys: list[object] = []
    texts = []
    for position, instruction in enumerate(outline.program.instructions):
        op, argument = instruction.op, -1
        if op < 0 and instruction.outputs:
            reader, argument = outline.user[instruction.outputs[0]]
            op = outline.program.instructions[reader].op if reader >= 0 else -1
        in_layer = op >= 0 and bool(layers.layer[op])
        keys.append((layers.first[op], argument, instruction.verb) if in_layer else position)
        texts.append(layers.layer[op] if in_layer else "")
        first.setdefault(keys[-1], position)
    counts = Counter(keys)
    firsts = tuple(first[key] if counts[key] > 1 else -1 for key in keys)
    return Repeats(firsts, tuple(texts), _boundary(outline, firsts, texts))


def _boundary(outline: Outline, first: Sequence[int], layer: Sequence[str]) -> int:
    """Return `Repeats.boundary`."""
    nbytes: Counter[int] = Counter()
    for position, instruction in enumerate(outline.program.instructions):
        for value in instruction.inputs:
            producer = outline.program.values[value].producer
            if layer[producer] != layer[position] and first[producer] >= 0:
                nbytes[first[producer]] += outline.program.values[value].nbytes
    return nbytes.most_common(1)[0][0] if nbytes else -1


def by_boundary(model: MeshProgram, repeats: Repeats) -> Iterator[MeshProgram]:
    """Yield programs in which the tensor behind every layer has one sharding, for each that it can have."""
    if repeats.boundary < 0:
        return
    facts, signatures = model.outline.known, model.program.instructions[repeats.boundary].signatures
    for form in dict.fromkeys(rule.outputs[0] for rule in signatures):
        instructions = list(model.program.instructions)
        cuts = list(model.cuts)
        for position, (instruction, first) in enumerate(zip(model.program.instructions, repeats.first, strict=True)):
            rows = [k for k, rule in enumerate(instruction.signatures) if rule.outputs and rule.outputs[0] == form]
            if first == repeats.boundary and rows:
                key = ("making", id(instruction.signatures), form)
                rules = facts.fact(key, partial(_chosen, instruction.signatures, rows))
                instructions[position] = attrs.evolve(instruction, signatures=rules)
                cuts[position] = Cuts(model.cuts[position].degrees, tuple(model.cuts[position].number[k] for k in rows))
        yield attrs.evolve(model, program=Program(tuple(instructions), model.program.values), cuts=tuple(cuts))


def _chosen(signatures: Sequence[Joint], rows: Sequence[int]) -> tuple[Joint, ...]:
    return tuple(signatures[k] for k in rows)


def variants(model: MeshProgram, repeats: Repeats, solution: Solution[Joint]) -> Iterator[MeshProgram]:
    """Yield programs in which equal layers can only do what some layer does in a plan; none if all do the same."""
    rules = {position: rule for stage in solution.stages for position, rule in stage.computations}
    chosen: dict[int, Counter[Joint]] = {}
    of_layer: dict[str, dict[int, Joint]] = {}
    for position, first in enumerate(repeats.first):
        if first >= 0:
            chosen.setdefault(first, Counter())[rules[position]] += 1
            of_layer.setdefault(repeats.layer[position], {}).setdefault(first, rules[position])
    if all(len(counter) == 1 for counter in chosen.values()):
        return
    usual = {first: counter.most_common(1)[0][0] for first, counter in chosen.items()}
    mixed = [first for first, counter in chosen.items() if len(counter) > 1]
    kinds = Counter(tuple((usual | layer)[first] for first in mixed) for layer in of_layer.values())
    for kind, _ in kinds.most_common(_VARIANTS):
        yield _with(model, repeats, usual | dict(zip(mixed, kind, strict=True)))


def _with(model: MeshProgram, repeats: Repeats, rules: Mapping[int, Joint]) -> MeshProgram:
    """Return a program whose instructions of equal layers have one signature each; others keep all."""
    facts = model.outline.known
    instructions: list[Instruction[Joint]] = []
    cuts: list[Cuts] = []
    for instruction, of_each, first in zip(model.program.instructions, model.cuts, repeats.first, strict=True):
        if first >= 0 and rules[first] in instruction.signatures:
            number = instruction.signatures.index(rules[first])
            rule = instruction.signatures[number]
            single_rule = facts.fact(("alone", id(rule)), partial(_alone, rule))
            instruction = attrs.evolve(instruction, signatures=single_rule)
            of_each = Cuts((of_each.degrees[of_each.number[number]],), (0,))
        instructions.append(instruction)
        cuts.append(of_each)
    return attrs.evolve(model, program=Program(tuple(instructions), model.program.values), cuts=tuple(cuts))


def _alone(rule: Joint) -> tuple[Joint]:
    return (rule,)


def is_uniform(program: SpmdProgram, graph: OperatorGraph) -> bool:
    """Say whether a program cuts and stores the operators of equal layers equally."""
    first = layers_of(graph).first
    return all(
        program.rules[op] == program.rules[first_op] and program.stored[op] == program.stored[first_op]
        for op, first_op in enumerate(first)
    )
