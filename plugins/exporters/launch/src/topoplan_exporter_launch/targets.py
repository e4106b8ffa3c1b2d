"""The tools that plans are written for, and how a message says that one of them cannot run a plan."""

from __future__ import annotations

from typing import Protocol

import attrs

from topoplan import Cluster, Operator, Strategy, TopoplanError
from topoplan.model.graph import OperatorGraph

__all__ = ["Described", "Planned", "Target"]


class Planned(Protocol):
    """What files of trainers are made of: a `topoplan.Plan`, or a strategy that is yet to become one."""

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
class Described:
    """A strategy that a search proposes, of a model on a cluster."""

    graph: OperatorGraph
    strategy: Strategy
    cluster: Cluster


@attrs.frozen
class Target:
    """A tool that runs plans.

    Attributes:
        component: name of the exporter, which begins every message.
        title: the tool's own name.
        expresses: which plans it can run, as the end of a sentence.
    """

    component: str
    title: str
    expresses: str

    def refusal(self, op: Operator, why: str) -> TopoplanError:
        """Return the error that an operator causes; ``why`` continues "operator 'x' "."""
        return TopoplanError(
            f"{self.component}: operator {op.name!r} {why} ({self.title} can express {self.expresses})"
        )

    def unsuited(self, why: str) -> TopoplanError:
        """Return the error that the plan as a whole causes."""
        return TopoplanError(f"{self.component}: {why} ({self.title} can express {self.expresses})")

    def searched(self, plan: Planned) -> tuple[OperatorGraph, Strategy]:
        """Return model and strategy of a plan.

        Raises:
            TopoplanError: it holds neither, or a device of it stands for several GPUs.
        """
        if plan.graph is None or plan.strategy is None:
            raise TopoplanError(f"{self.component}: the plan holds only a task graph (plan a model to get a strategy)")
        if (gpus := plan.cluster.gpus_per_device) > 1:
            raise TopoplanError(
                f"{self.component}: a device of the plan stands for {gpus} GPUs, but every rank is one GPU "
                "(plan with --gpus-per-server instead of --gpus-per-device)"
            )
        return plan.graph, plan.strategy
