"""The tools that plans are written for, and how a message says that one of them cannot run a plan."""

from __future__ import annotations

import attrs

from topoplan import Cluster, Operator, Strategy, TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan_trainer_plans import PlanLike

__all__ = ["Target", "why_no_ranks"]


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

    def searched(self, plan: PlanLike) -> tuple[OperatorGraph, Strategy]:
        """Return model and strategy of a plan.

        Raises:
            TopoplanError: it holds neither, or a device of it stands for several GPUs.
        """
        if plan.graph is None or plan.strategy is None:
            raise TopoplanError(f"{self.component}: the plan holds only a task graph (plan a model to get a strategy)")
        if why := why_no_ranks(plan.cluster):
            raise TopoplanError(f"{self.component}: {why}")
        return plan.graph, plan.strategy


def why_no_ranks(cluster: Cluster) -> str:
    """Say why a cluster's devices are no ranks, whatever the plan; empty if they are."""
    if cluster.gpus_per_device == 1:
        return ""
    return (
        f"a device of the plan stands for {cluster.gpus_per_device} GPUs, but every rank is one GPU "
        "(plan with --gpus-per-server instead of --gpus-per-device)"
    )
