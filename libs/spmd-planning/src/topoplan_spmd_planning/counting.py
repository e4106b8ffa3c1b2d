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
import numpy as np

from topoplan_spmd_planning.columns import Columns
from topoplan_spmd_planning.program import Program, R
from topoplan_spmd_planning.repeats import equal_instructions

__all__ = ["StateCount", "most_states"]

#: Greatest number of expanded states of a group; the others are dropped, which only lowers the bound.
_OF_A_GROUP = 32

#: Columns that it reads.
_COLUMNS = (
    *("signature_at", "input_at", "place", "value", "needs_at", "needs", "output_at", "output_place", "makes_at"),
    *("makes", "freed_at", "freed"),
)

#: Forms that an input must have: the place of its slot, its legal conversions, and the code of the form.
_Need = tuple[int, list[list[bool]], int]


@attrs.frozen
class StateCount:
    """The cut with the most states: a lower bound on their number, and the name of the next instruction."""

    states: int
    name: str


@attrs.frozen
class _Group:
    """Live values whose forms depend on each other, and their possible combinations of forms, as keys of states."""

    values: frozenset[int] = frozenset()
    states: tuple[int, ...] = (0,)


def most_states(program: Program[R], columns: Columns) -> StateCount:
    """Return the cut with the greatest number of counted states."""
    rules, numbers = _Rules(columns), equal_instructions(columns)
    successors: dict[tuple[int, tuple[int, ...]], tuple[int, ...]] = {}
    groups: list[_Group] = []
    largest = StateCount(1, "")
    for cut, instruction in enumerate(program.instructions):
        states = math.prod(len(group.states) for group in groups)
        if states > largest.states:
            largest = StateCount(states, instruction.name)
        untouched_groups = [group for group in groups if group.values.isdisjoint(instruction.inputs)]
        union = _union([group for group in groups if not group.values.isdisjoint(instruction.inputs)])
        values = union.values.union(instruction.outputs)
        live = frozenset(value for value in values if program.values[value].last > cut)
        case = numbers[cut], union.states
        if case not in successors:
            successors[case] = tuple(dict.fromkeys(rules.next_states(union.states, cut)))
        groups = [*untouched_groups, _Group(live, successors[case])]
    return largest


def _union(groups: Sequence[_Group]) -> _Group:
    """Return the union of several groups; no two have a bit of a key in common."""
    combinations = itertools.product(*(group.states for group in groups))
    return _Group(
        values=frozenset().union(*(group.values for group in groups)),
        states=tuple(map(sum, itertools.islice(combinations, _OF_A_GROUP))),
    )


class _Rules:
    """Signatures and conversions on keys as numbers of any length: one word of `Columns` is the next 64 bits."""

    def __init__(self, columns: Columns) -> None:
        self._bits = columns.bits
        self._code, self._slot = (1 << columns.bits) - 1, (1 << 2 * columns.bits) - 1
        self._legal = np.isfinite(columns.forward).tolist()
        self._lists: dict[str, list[int]] = {name: getattr(columns, name).tolist() for name in _COLUMNS}

    def next_states(self, states: Sequence[int], cut: int) -> Iterator[int]:
        """Yield the states after an instruction, under each of its signatures."""
        freed = ~sum(self._slot << place for place in self._part("freed", cut))
        rules = list(self._rules(cut))
        for state in states:
            for needs, output_bits in rules:
                key = self._converted(state, needs)
                if key >= 0:
                    yield (key & freed) + output_bits

    def _part(self, name: str, cut: int, offsets: str = "") -> list[int]:
        return self._lists[name][slice(*self._lists[f"{offsets or name}_at"][cut : cut + 2])]

    def _rules(self, cut: int) -> Iterator[tuple[list[_Need], int]]:
        """Yield for each signature of an instruction what it needs, and the bits of a key that its outputs set."""
        lists = self._lists
        places, outputs = self._part("place", cut, "input"), self._part("output_place", cut, "output")
        legal = [self._legal[value] for value in self._part("value", cut, "input")]
        for signature in range(*lists["signature_at"][cut : cut + 2]):
            needs, makes = lists["needs_at"][signature], lists["makes_at"][signature]
            targets, codes = lists["needs"][needs : needs + len(places)], lists["makes"][makes : makes + len(outputs)]
            output_bits = sum(code << place for place, code in zip(outputs, codes, strict=True) if place >= 0)
            yield list(zip(places, legal, targets, strict=True)), output_bits

    def _converted(self, key: int, needs: Sequence[_Need]) -> int:
        """Return the key after the conversions that an instruction needs; -1 if one does not exist."""
        bits, code = self._bits, self._code
        for place, legal, target in needs:
            low, high = key >> place & code, key >> place + bits & code
            if target in (low, high):
                continue
            if high or not legal[low][target]:
                return -1
            pair = low << bits | target if target < low else target << bits | low
            key += pair - low << place
        return key
