"""Strategies that name some operators of a model only."""

from __future__ import annotations

from collections.abc import Mapping

from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan.model.placement import Placement
from topoplan.model.strategy import PlacedStrategy

__all__ = ["IncompleteStrategyError", "names_of"]

#: Names that a message lists.
_LISTED = 12


class IncompleteStrategyError(TopoplanError):
    """A file says nothing about some operators; what it says of the others comes along.

    Exporters raise it, and `topoplan_engine.exporting.read_strategy` completes the strategy where users ask for that.

    Attributes:
        name: of the file.
        placements: position of an operator in the graph -> its placement.
        missing: names of the other operators.
    """

    def __init__(self, name: str, graph: OperatorGraph, placements: Mapping[int, Placement]) -> None:
        self.name, self.placements = name, placements
        self.missing = [op.name for index, op in enumerate(graph.operators) if index not in placements]
        super().__init__(
            f"{name}: says nothing about {names_of(self.missing)} (every operator of {graph.name!r} needs an entry; "
            "`--strategy-rest data-parallel` makes the others data parallel)"
        )

    def completed(self, fallback: PlacedStrategy) -> PlacedStrategy:
        """Return the strategy with the placements of ``fallback`` for the operators that the file does not name."""
        return PlacedStrategy(
            tuple(self.placements.get(index, placement) for index, placement in enumerate(fallback.placements))
        )


def names_of(operators: list[str]) -> str:
    """List names for a message, of many the first ones and their number."""
    more = len(operators) - _LISTED
    return ", ".join(operators[:_LISTED]) + (f" and {more} more" if more > 0 else "")
