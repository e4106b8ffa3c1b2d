"""Operators that differ in their name alone: what follows from one of them holds for all, and is derived once.

Layers of a model are equal, so a model of hundreds of operators has a few dozen that differ.  `first_equal` finds equal
operators; `layers_of` finds those that are the same operator of equal layers, by the numbers in their names.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import attrs

from topoplan.model.graph import OperatorGraph
from topoplan_engine.of_graphs import of_last_graphs

__all__ = ["Layers", "first_equal", "layers_of"]

#: A number in a name that counts layers: a part of a path (``layers.3.attention``, ``h/3/mlp``), or behind a word for
#: layers (``layer3_linear1``, ``enc3_attention``).  What it counts has a name of its own behind it.
_NUMBER = re.compile(
    r"(?:(?:^|(?<=[./]))|(?:^|(?<=[._/]))(?P<word>layers?|blocks?|h|enc|dec|encoder|decoder|resblocks)[._/]?)"
    r"(?P<number>[0-9]+)(?=(?(word)[._/]|[./]))"
)


@of_last_graphs
def first_equal(graph: OperatorGraph) -> tuple[int, ...]:
    """(n_ops) for each operator, the first one of the graph that differs from it in its name alone."""
    first: dict[object, int] = {}
    return tuple(first.setdefault(attrs.evolve(op, name=""), k) for k, op in enumerate(graph.operators))


class Layers(NamedTuple):
    """The layers of a model.

    Attributes:
        first: (n_ops) for each operator, the first one that is the same in an equal layer; itself outside of layers.
        layer: (n_ops) text that names the layer of each operator; empty outside of layers.
    """

    first: tuple[int, ...]
    layer: tuple[str, ...]


@of_last_graphs
def layers_of(graph: OperatorGraph) -> Layers:
    """Return the layers of a model: operators that differ in the number of a layer alone are the same of equal layers.

    ``layers.0.up`` and ``layers.1.up`` are, if all operators of both layers are equal in turn; ``layers.0.up`` and
    ``layers.0.down`` are not.
    """
    patterns: list[str] = []
    layer: list[str] = []
    operators: dict[str, list[tuple[str, int]]] = {}
    for op, equal in zip(graph.operators, first_equal(graph), strict=True):
        match = _NUMBER.search(op.name)
        layer.append("" if match is None else op.name[: match.end()])
        patterns.append(_NUMBER.sub(lambda number: f"{number['word'] or ''}#", op.name))
        operators.setdefault(layer[-1], []).append((patterns[-1], equal))
    kinds: dict[object, int] = {}
    kind_of = {name: kinds.setdefault(tuple(members), len(kinds)) for name, members in operators.items()}
    first: dict[object, int] = {}
    keys = zip(patterns, first_equal(graph), (kind_of[name] for name in layer), strict=True)
    numbers = [first.setdefault(key, k) if layer[k] else k for k, key in enumerate(keys)]
    return Layers(tuple(numbers), tuple(layer))
