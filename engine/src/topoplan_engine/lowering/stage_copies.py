"""What is written of a stage before it is copied for all micro-batches, and whether the copies fit into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from topoplan.arrays import I64
from topoplan_engine.available import check_memory
from topoplan_engine.lowering.stage_tasks import StageTasks, Variant

__all__ = ["WrittenStage", "check_fits"]

#: Bytes of a task and of an edge while an iteration is written and simulated: twelve columns of eight bytes and the
#: two ends of an edge, each as parts and put together, and what sorts and simulates them.
_TASK, _EDGE = 208, 68


class WrittenStage(NamedTuple):
    """Tasks of one micro-batch of a stage, and the edges between them.

    Attributes:
        tasks: these.
        members: (n,) micro-batches whose tasks are like them.
        tails, heads: of edges.
    """

    tasks: StageTasks
    members: I64
    tails: I64
    heads: I64


def check_fits(stages: Sequence[Mapping[Variant, WrittenStage]]) -> None:
    """Refuse an iteration whose tasks need more memory than there is.

    Raises:
        TopoplanError: they do.
    """
    several = [each for stage in stages for each in stage.values()]
    tasks = sum(each.tasks.n_tasks * len(each.members) for each in several)
    edges = sum(len(each.tails) * len(each.members) for each in several)
    advice = "use fewer micro-batches or devices, or a network of equal racks"
    check_memory(f"plan: {tasks:,} tasks that differ", _TASK * tasks + _EDGE * edges, advice)
