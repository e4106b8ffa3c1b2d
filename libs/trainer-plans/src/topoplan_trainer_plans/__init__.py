"""What files of trainers are made of, for exporters: a plan, or a strategy that a search proposes and may yet reject.

An exporter that writes a file for a trainer is also the judge of what that trainer runs (`topoplan.Restriction`): what
it can write, the trainer can run.  It needs model, strategy and cluster alone, so that a proposal can be asked for
before anything is lowered or simulated:

    searcher ─► strategy ─► ProposedPlan ─► exporter's write ─► why_not_written: the reason, or empty
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import attrs

from topoplan import Cluster, OperatorGraph, Strategy, TopoplanError

__all__ = ["PlanLike", "ProposedPlan", "why_not_written"]


class PlanLike(Protocol):
    """What an exporter of trainers reads: of a `topoplan.Plan`, or of a `ProposedPlan`."""

    @property
    def graph(self) -> OperatorGraph | None:
        """The model."""

    @property
    def strategy(self) -> Strategy | None:
        """How it is cut and placed."""

    @property
    def cluster(self) -> Cluster:
        """Where it runs."""


@attrs.frozen(eq=False)
class ProposedPlan:
    """A strategy that a search proposes, of a model on a cluster."""

    graph: OperatorGraph
    strategy: Strategy
    cluster: Cluster


def why_not_written(
    write: Callable[[PlanLike], object], graph: OperatorGraph, cluster: Cluster, strategy: Strategy
) -> str:
    """Return why an exporter cannot write a strategy, in its own words; empty if it can.

    ``write`` is the exporter, or the part of it that finds what cannot be said.

    >>> from topoplan.testing import reference
    >>> plan = reference.plan()
    >>> why_not_written(lambda plan: b"file", plan.graph, plan.cluster, plan.strategy)
    ''
    """
    try:
        write(ProposedPlan(graph, strategy, cluster))
    except TopoplanError as error:
        return str(error)
    return ""
