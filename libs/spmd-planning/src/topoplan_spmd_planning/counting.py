"""A lower bound on the states of a program, counted before the search.

A search without a beam expands every state with every instruction.  The forms of two live values are independent as
long as no instruction has used both.  Live values therefore form groups, and the number of states at a cut is the
product of the numbers of states of its groups.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import attrs

from topoplan_spmd_planning.columns import Columns, forms_of
from topoplan_spmd_planning.program import Program, R

__all__ = ["Crowd", "most_states"]

#: Greatest number of expanded states of a group; the others are dropped, which only lowers the bound.
_OF_A_GROUP = 32

#: Codes of the forms that each live value of a group is there in.
_State = tuple[tuple[int, ...], ...]

#: Of a signature: the codes of the forms of its inputs, and those of each output alone.
_Codes = tuple[list[int], list[tuple[int, ...]]]


@attrs.frozen
class Crowd:
    """The cut with the most states: a lower bound on their number, and the name of the next instruction."""

    states: int
    name: str


@attrs.frozen
class _Group:
    """Live values whose forms depend on each other, and their possible combinations of forms."""

    values: tuple[int, ...] = ()
    states: tuple[_State, ...] = ((),)


def most_states(program: Program[R], columns: Columns) -> Crowd:
    """Return the cut with the greatest number of counted states."""
    codes = [{form: 1 + number for number, form in enumerate(forms)} for forms in forms_of(program)]
    groups: list[_Group] = []
    crowd = Crowd(1, "")
    for cut, instruction in enumerate(program.instructions):
        states = math.prod(len(group.states) for group in groups)
        if states > crowd.states:
            crowd = Crowd(states, instruction.name)
        rules: list[_Codes] = [
            (
                [codes[v][form] for v, form in zip(instruction.inputs, rule.inputs, strict=True)],
                [(codes[v][form],) for v, form in zip(instruction.outputs, rule.outputs, strict=True)],
            )
            for rule in instruction.signatures
        ]
        union = _union([group for group in groups if not set(instruction.inputs).isdisjoint(group.values)])
        values = (*union.values, *instruction.outputs)
        live = [index for index, value in enumerate(values) if program.values[value].last > cut]
        next_states = {
            tuple(forms[index] for index in live): None
            for state in union.states
            for forms in _next_states(dict(zip(union.values, state, strict=True)), instruction.inputs, rules, columns)
        }
        groups = [group for group in groups if set(instruction.inputs).isdisjoint(group.values)]
        groups.append(_Group(tuple(values[index] for index in live), tuple(next_states)))
    return crowd


def _union(groups: Sequence[_Group]) -> _Group:
    """Return the union of several groups."""
    combinations = itertools.product(*(group.states for group in groups))
    return _Group(
        values=tuple(value for group in groups for value in group.values),
        states=tuple(tuple(itertools.chain(*parts)) for parts in itertools.islice(combinations, _OF_A_GROUP)),
    )


def _next_states(
    state: dict[int, tuple[int, ...]],
    inputs: Sequence[int],
    rules: Sequence[_Codes],
    columns: Columns,
) -> Iterator[_State]:
    """Yield the forms of the values of ``state``, then of the outputs, after an instruction under each signature."""
    for needs, makes in rules:
        forms = dict(state)
        for value, target in zip(inputs, needs, strict=True):
            shardings = forms[value]
            if target in shardings:
                continue
            if len(shardings) > 1 or columns.forward[value, shardings[0], target] == math.inf:
                break
            forms[value] = (min(shardings[0], target), max(shardings[0], target))
        else:
            yield (*forms.values(), *makes)
