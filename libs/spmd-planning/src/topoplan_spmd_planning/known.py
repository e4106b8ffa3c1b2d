"""What is known of a model on all meshes: most of it holds for several, and is derived once.

    instruction, roles of axes ─► joint signatures, for any sizes ─► those that are even and have a price on a mesh
                                                                   └► forms of values ─► their conversions, columns

Meshes whose instructions have the same signatures share the tuples of them, so that the identity of tuples tells what
else the meshes share.
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, TypeVar

import attrs

from topoplan.model.costs import PartCosts
from topoplan_spmd_planning.columns import Columns, forms_of, unpriced_columns
from topoplan_spmd_planning.program import Program

__all__ = ["Known", "LargestPart"]

T = TypeVar("T")


class LargestPart(NamedTuple):
    """The largest values of an operator's parts: seconds of both passes, and bytes; and ``kept`` of the first part."""

    forward: float
    backward: float
    memory: float
    kept: float | None


def _of_each() -> defaultdict[int, dict[tuple[int, ...], bool]]:
    return defaultdict(dict)


@attrs.define(eq=False)
class Known:
    """What is known of one model, whichever meshes it was asked for.

    Attributes:
        facts: what `fact` has derived; objects whose identity stands in a key are among them, so that they stay.
        parts: prices so far, by operator and degrees of its cut.
        supported: whether the estimator has a price: of each operator, by degrees.
        runs: how often the kernel has searched.
        largest_parts: by the identity of what the estimator answered, as long as that exists.
    """

    facts: dict[Hashable, Any] = attrs.field(factory=dict, init=False)
    parts: dict[tuple[int, tuple[int, ...]], LargestPart] = attrs.field(factory=dict, init=False)
    supported: dict[int, dict[tuple[int, ...], bool]] = attrs.field(factory=_of_each, init=False)
    runs: int = attrs.field(default=0, init=False)
    largest_parts: dict[int, tuple[weakref.ref[PartCosts], LargestPart]] = attrs.field(factory=dict, init=False)

    def fact(self, key: Hashable, derive: Callable[[], T]) -> T:
        """Return what a key stands for, which is derived when it is first asked for."""
        try:
            fact: T = self.facts[key]
        except KeyError:
            fact = self.facts[key] = derive()
        return fact

    def one(self, value: T) -> T:
        """Return the first of equal values, whose identity stands for it."""
        return self.fact(("one", value), lambda: value)

    def largest(self, part: PartCosts) -> LargestPart:
        """Return the largest values of a price; estimators may give the same one for equal operators."""
        entry = self.largest_parts.get(id(part))
        if entry is None or entry[0]() is not part:
            largest = LargestPart(
                float(part.forward.max()),
                float(part.backward.max()),
                float(part.memory.max()),
                None if part.kept is None else float(part.kept[0]),
            )
            entry = self.largest_parts[id(part)] = weakref.ref(part), largest
        return entry[1]

    def forms(self, program: Program[Any]) -> list[tuple[Any, ...]]:
        """Return the forms of all values; equal ones are the same tuple on all meshes."""
        return self.fact(("forms", *_signatures(program)), lambda: [self.one(forms) for forms in forms_of(program)])

    def columns(self, program: Program[Any], subject: str) -> Columns:
        """Return the columns of a program without prices; see `unpriced_columns`."""
        forms = self.forms(program)
        return self.fact(("columns", *_signatures(program)), lambda: unpriced_columns(program, forms, subject))


def _signatures(program: Program[Any]) -> Iterable[int]:
    """Return what identifies the signatures of all instructions."""
    return (id(instruction.signatures) for instruction in program.instructions)
