"""Moves of searchers from one strategy to the next: what changes together.

`propagation` copies placements along the edges of a graph, by a walk or to a whole block of neighbours.  `forms` finds
the operators of one form, which models of repeated layers place equally.  `staged` changes the layout, a border, the
micro-batches, ZeRO or the recomputation of a staged strategy; it is imported where one is met, because it needs the
engine.  `cut_estimates` has seconds of operators and edges under cuts, of which `planning` makes strategies to start
from, by `elimination`.
"""

from __future__ import annotations

from topoplan_placement_moves.forms import operators_of_same_form
from topoplan_placement_moves.propagation import Propagation, map_placement

__all__ = ["Propagation", "map_placement", "operators_of_same_form"]
