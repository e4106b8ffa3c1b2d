"""Which operators a name in a strategy file means.

A file that our own exporter wrote names operators as the model does.  FlexFlow's programs share names: the entry
``linear`` is for every linear operator, ``embedding3`` for the fourth table, and ``mse_loss`` for a loss, which is no
operator here (FlexFlow's ``examples/DLRM/dlrm.cc``).
"""

from __future__ import annotations

import re
from urllib.parse import quote

import attrs

from topoplan import OperatorGraph

__all__ = ["Meaning", "Names", "spell"]

#: Entries of FlexFlow's programs for what is no operator of an operator graph.
_LOSSES = ("mse_loss",)
_NUMBERED = re.compile(r"([a-z_]+)(0|[1-9][0-9]{0,5})")
#: Names that a note lists.
_LISTED = 4


@attrs.frozen
class Meaning:
    """What a name means.

    Attributes:
        operators: their positions in the graph; none for a loss.
        shared: whether the name is one that several operators share; an entry with an operator's own name goes first.
    """

    operators: tuple[int, ...]
    shared: bool = False


class Names:
    """The names of a graph's operators, and those of FlexFlow's programs for them."""

    def __init__(self, graph: OperatorGraph) -> None:
        self.positions = {spell(op.name): index for index, op in enumerate(graph.operators)}
        self._operators = graph.operators
        self._of_kind: dict[str, list[int]] = {}
        for index, op in enumerate(graph.operators):
            self._of_kind.setdefault(op.kind, []).append(index)
        self._borrowed: dict[str, Meaning] = {}

    def meant_by(self, name: str) -> Meaning | None:
        """Return what a name means; None if the model has nothing of that name."""
        if name in self.positions:
            return Meaning((self.positions[name],))
        meaning = self._borrowed_meaning(name)
        if meaning is not None:
            self._borrowed[name] = meaning
        return meaning

    def note(self) -> str:
        """Say what the names meant that are not the model's; empty if there were none."""
        single = [
            f"{name} is {self._operators[meaning.operators[0]].name}"
            for name, meaning in self._borrowed.items()
            if len(meaning.operators) == 1
        ]
        if len(single) > _LISTED:
            single = [single[0], f"and so on to {single[-1]}"]
        several = [
            f"{name} is all {len(meaning.operators)} operators of kind {name}"
            for name, meaning in self._borrowed.items()
            if len(meaning.operators) > 1
        ]
        losses = [
            f"{name} is a loss, which is no operator of the model"
            for name, meaning in self._borrowed.items()
            if not meaning.operators
        ]
        return "; ".join([*several, *single, *losses])

    def _borrowed_meaning(self, name: str) -> Meaning | None:
        if name in _LOSSES:
            return Meaning(())
        if name in self._of_kind:
            return Meaning(tuple(self._of_kind[name]), shared=True)
        if numbered := _NUMBERED.fullmatch(name):
            peers, number = self._of_kind.get(numbered[1], []), int(numbered[2])
            if number < len(peers):
                return Meaning((peers[number],))
        return None


def spell(name: str) -> str:
    """Write a name as one word: blanks (and the sign itself) as ``%`` and two hexadecimal digits per byte."""
    return "".join(quote(c, safe="") if c.isspace() or c == "%" else c for c in name)
