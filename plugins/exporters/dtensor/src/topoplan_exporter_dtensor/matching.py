"""Finds the module of each operator, by name, and checks that every parameter of a module belongs to an operator.

The name of an operator is that of its module (``layers.0.attention.wq``), or that with underscores for dots; names that
differ are given as a mapping.  A parameter belongs to the operator of its module, whose weights are in the order of the
module's parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from topoplan import TopoplanError
from topoplan_exporter_dtensor.reader import Document, OperatorLayout, TensorLayout

__all__ = ["Match", "aligned", "match_modules"]


@attrs.frozen
class Match:
    """A module, its name, its operator and the operator's number."""

    name: str
    module: Any
    number: int
    operator: OperatorLayout

    @property
    def parameters(self) -> Iterator[tuple[str, Any, TensorLayout]]:
        """Names and parameters of the module, and where the plan has them."""
        owned = [(key, value) for key, value in self.module.named_parameters(recurse=False)]
        for (key, value), weight in zip(owned, self.operator.weights, strict=True):
            yield key, value, weight


def match_modules(model: Any, document: Document, names: Mapping[str, str]) -> Sequence[Match]:
    """Return the modules that have operators, in the order of operators.

    Args:
        model: a ``torch.nn.Module``.
        document: placements.
        names: name of a module -> name of its operator, where these differ.

    Raises:
        TopoplanError: names that do not exist, a parameter of no operator, or weights of another shape.
    """
    numbers = {operator.name: number for number, operator in enumerate(document.operators)}
    modules = dict(model.named_modules())
    for name, operator_name in names.items():
        if name not in modules:
            raise TopoplanError(f"names: the model has no module {name!r}")
        if operator_name not in numbers:
            raise TopoplanError(f"names: the plan has no operator {operator_name!r} (for module {name!r})")
    matches = []
    for name, module in modules.items():
        candidates = (names[name],) if name in names else (name, name.replace(".", "_"))
        number = next((numbers[candidate] for candidate in candidates if candidate in numbers), None)
        owned = [(key, tuple(value.shape)) for key, value in module.named_parameters(recurse=False)]
        if number is None:
            if owned:
                raise TopoplanError(
                    f"module {name!r}: its parameter {owned[0][0]!r} belongs to no operator of the plan for "
                    f"{document.model!r} (give names={{{name!r}: 'its operator'}})"
                )
            continue
        operator = document.operators[number]
        shapes = [weight.shape for weight in operator.weights]
        if shapes != [shape for _, shape in owned]:
            raise TopoplanError(
                f"module {name!r}: has parameters {_listed([shape for _, shape in owned])}, operator {operator.name!r} "
                f"has weights {_listed(shapes)}"
            )
        matches.append(Match(name, module, number, operator))
    return sorted(matches, key=lambda match: match.number)


def aligned(
    placements: Sequence[str], operator_shape: Sequence[int], module_shape: Sequence[int]
) -> tuple[str, ...] | None:
    """Return placements for a tensor that a module has in another view than its operator; None if there are none.

    An axis of the operator's tensor may be several axes of the module's (heads and channels), or one of several.  A cut
    goes to the first of them, as in a view; a cut of another one than the first has no equal.
    """
    first_of: dict[int, int] = {}
    mine = theirs = 0
    while mine < len(operator_shape) and theirs < len(module_shape):
        first_of[mine] = theirs
        operator_size, module_size = operator_shape[mine], module_shape[theirs]
        mine, theirs = mine + 1, theirs + 1
        while operator_size != module_size:
            if operator_size < module_size and mine < len(operator_shape):
                operator_size *= operator_shape[mine]
                mine += 1
            elif module_size < operator_size and theirs < len(module_shape):
                module_size *= module_shape[theirs]
                theirs += 1
            else:
                return None
    if mine < len(operator_shape) or theirs < len(module_shape):
        return None
    words = []
    for word in placements:
        axis = int(word[6:-1]) if word.startswith("Shard") else -1
        if axis >= 0 and axis not in first_of:
            return None
        words.append(word if axis < 0 else f"Shard({first_of[axis]})")
    return tuple(words)


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return ", ".join(" x ".join(map(str, shape)) or "of one element" for shape in shapes) or "none"
