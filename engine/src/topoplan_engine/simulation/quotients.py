"""What the engine asks of a simulator beyond `topoplan.Simulate`: the time of an iteration from a part of its tasks.

`Quotients` simulate one part for all placed parts that are equal (`topoplan_engine.lowering.symmetry`), `Folds` one
device for all equal devices of stages with programs (`topoplan_engine.lowering.folding`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from topoplan.model.cluster import Cluster
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.taskgraph import Collective, TaskGraph
from topoplan.model.timeline import Timeline
from topoplan_engine.network.tables import Network
from topoplan_engine.simulation.columns import Outcome

if TYPE_CHECKING:
    from topoplan_engine.lowering.folding.layout import FoldedIteration
    from topoplan_engine.lowering.folding.patterns import MessageLoads
    from topoplan_engine.lowering.symmetry.quotient import Quotient

__all__ = ["FoldedRun", "Folds", "Quotients"]


@runtime_checkable
class Quotients(Protocol):
    """A simulator that can simulate one task for all that nothing tells apart.

    Attributes:
        in_turn_bytes: messages of no more bytes from one device to the same other one are served in turn; 0 for none.
    """

    in_turn_bytes: int

    def has_quotient(self, fabric: AnyFabric, cluster: Cluster) -> bool:
        """Say whether `quotient_makespan` holds on this network."""

    def quotient_makespan(
        self, quotient: Quotient, fabric: AnyFabric, cluster: Cluster, cutoff_seconds: float = float("inf")
    ) -> float:
        """Return the seconds of an iteration from its quotient, as `topoplan.Simulate.makespan` does from the whole."""

    def has_single_paths(self, fabric: AnyFabric, cluster: Cluster) -> bool:
        """Say whether all hosts hang on one switch, so that no message draws its path."""


class FoldedRun(NamedTuple):
    """A folded iteration that was run.

    Attributes:
        folded: what was run.
        outcome, prepared, network: when its tasks begin and end, its columns, and where it was run.
    """

    folded: FoldedIteration
    outcome: Outcome
    prepared: Any
    network: Network

    @property
    def makespan(self) -> float:
        """Seconds of the iteration."""
        return float(self.outcome.makespan)


@runtime_checkable
class Folds(Protocol):
    """A simulator that can simulate one task for each class of tasks of a staged strategy.

    Attributes:
        chosen_collectives: collectives that it runs by algorithms.
    """

    @property
    def chosen_collectives(self) -> Collection[Collective]:
        """See above."""

    def has_folds(self, fabric: AnyFabric, cluster: Cluster) -> bool:
        """Say whether `run_folded` holds on this network, but for paths that are drawn."""

    def message_loads(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> MessageLoads:
        """Return what messages that do not wait put on links."""

    def draws(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> bool:
        """See `topoplan.Simulate.draws`."""

    def run_folded(self, folded: FoldedIteration, fabric: AnyFabric, cluster: Cluster) -> FoldedRun:
        """Run a folded iteration."""

    def folded_timeline(self, run: FoldedRun, whole: Callable[[], TaskGraph]) -> Timeline:
        """Return the timeline of a run; starts and ends are those of ``whole``, which is asked when they are."""
