"""Lowering: (graph, strategy, costs) -> task graph.

    placements ─► fragments ─► PartTable ─► task graph
      fragments.py,      pieces.py, parts.py   build.py (a pipeline: pipeline.py)
      fragment_cache.py            └──────► symmetry/ ─► quotient

`Lowering` is made once for a graph, a cluster and a cost function.  It caches what one operator's placement
contributes (`OperatorFragment`) and what two placements at the ends of an edge contribute (`EdgeFragment`).  To lower
a strategy that differs in one operator, it derives only what that operator touches.  The fragments are joined
into a table of parts, and one compiled pass makes the task graph (`build_taskgraph`).  Stages with programs are written
by `stage_tasks`, which `staged` copies for all micro-batches, and `turns` calls for programs of all devices on one
stream.  `tests/reference` lowers the same strategies task by task in plain Python; tests compare the two.
"""

from __future__ import annotations

from topoplan_engine.lowering.fragments import weight_seconds
from topoplan_engine.lowering.lower import Lowering

__all__ = ["Lowering", "weight_seconds"]
