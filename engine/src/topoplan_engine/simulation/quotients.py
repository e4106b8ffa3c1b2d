"""What the engine asks of a simulator beyond `topoplan.Simulate`: the time of an iteration from its quotient."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from topoplan.model.cluster import Cluster
from topoplan.model.reconfigurable import AnyFabric
from topoplan_engine.lowering.symmetry.quotient import Quotient, Symmetry

__all__ = ["NoQuotients", "Quotients"]


@runtime_checkable
class Quotients(Protocol):
    """A simulator that can simulate one task for all that nothing tells apart."""

    def has_quotient(self, fabric: AnyFabric, cluster: Cluster) -> bool:
        """Say whether `quotient_makespan` holds on this network."""

    def keeps_symmetry(self, symmetry: Symmetry) -> bool:
        """Say whether parts that nothing tells apart run at the same time, so that one of them stands for all."""

    def quotient_makespan(
        self, quotient: Quotient, fabric: AnyFabric, cluster: Cluster, cutoff_seconds: float = float("inf")
    ) -> float:
        """Return the seconds of an iteration from its quotient, as `topoplan.Simulate.makespan` does from the whole."""


class NoQuotients:
    """What stands for every other simulator."""

    def has_quotient(self, fabric: AnyFabric, cluster: Cluster) -> bool:
        """Say no."""
        return False

    def keeps_symmetry(self, symmetry: Symmetry) -> bool:
        """Say yes: nothing is simulated in another's place."""
        return True

    def quotient_makespan(
        self, quotient: Quotient, fabric: AnyFabric, cluster: Cluster, cutoff_seconds: float = float("inf")
    ) -> float:
        """Refuse: see `has_quotient`."""
        raise NotImplementedError
