"""Lowering: (graph, strategy, costs) -> task graph.

`Lowering` is made once for a graph, a cluster and a cost function.  It keeps what one operator's placement
means (`OperatorPiece`) and what two placements at the ends of an edge mean (`EdgePiece`), so that lowering
a strategy that differs in one operator derives only what that operator touches; the rest is assembled
from the kept pieces by one compiled pass (`assemble`).  `reference` lowers the same strategies task by
task in plain Python and is what the tests compare with.
"""

from __future__ import annotations

from topoplan_engine.lowering.lower import Lowering
from topoplan_engine.lowering.pieces import weight_seconds

__all__ = ["Lowering", "weight_seconds"]
