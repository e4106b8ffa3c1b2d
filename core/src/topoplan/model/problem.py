"""What is to be optimized, as every searcher and simulator sees it.

`Problem` gathers the values that do not change during a run.  `Demand` is what one strategy asks of the
network: the traffic that network searchers and demand-following topologies shape a fabric for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

import attrs

from topoplan.arrays import ARRAY_EQ, F64, I32, OneLine, f64, i32
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.graph import OperatorGraph

if TYPE_CHECKING:
    import numpy as np

    from topoplan.model.placement import Placement
    from topoplan.model.reconfigurable import AnyFabric
    from topoplan.model.restriction import Restriction
    from topoplan.model.strategy import Strategy

__all__ = ["Demand", "PlacementSpace", "Problem"]


@attrs.frozen(kw_only=True, repr=False)
class Demand(OneLine):
    """All-reduce groups and a host-to-host traffic matrix, per iteration.

    Attributes:
        group_ptr, group_members: compressed rows, the *hosts* of each all-reduce group, ascending and
            each once; groups within one host are left out, and equal groups are one row.
        group_bytes: (G,) bytes that the group sums per iteration, all its tensors together.
        matrix: (H, H) bytes of point-to-point transfers from row host to column host; diagonal 0.
        forward: (H, H) the part of ``matrix`` that is sent in the forward pass, the rest being sent in the
            backward one; None where that is not known.
    """

    group_ptr: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    group_members: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    group_bytes: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    matrix: F64 = attrs.field(converter=f64, eq=ARRAY_EQ)
    forward: F64 | None = attrs.field(default=None, converter=attrs.converters.optional(f64), eq=ARRAY_EQ)

    @property
    def n_groups(self) -> int:
        """Number of different groups."""
        return len(self.group_bytes)

    def members(self, group: int) -> I32:
        """Hosts of a group, ascending."""
        return self.group_members[self.group_ptr[group] : self.group_ptr[group + 1]]


class PlacementSpace(Protocol):
    """The placements that strategy searchers choose from, and the strategy that they start with."""

    def degrees(self, op: int) -> tuple[tuple[int, ...], ...]:
        """Return the degree vectors of operator ``op`` that can be priced; never empty."""

    def placements(self, op: int) -> Iterator[Placement]:
        """Go through all placements of ``op``, in a fixed order."""

    def place(self, degrees: tuple[int, ...], start: int) -> Placement:
        """Return the placement of ``degrees`` on the device set of that number; the first one is 0."""

    def random_placement(self, op: int, rng: np.random.Generator) -> Placement:
        """Draw a placement of ``op``."""

    def intern(self, placement: Placement) -> Placement:
        """Return the one object that stands for this placement, so that equal ones compare by identity."""

    def initial(self) -> Strategy:
        """Return the strategy that searches start with."""


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Problem(OneLine):
    """Everything that is fixed while searching.

    Attributes:
        graph, cluster: the model and the machine.
        costs: prices parts of operators.
        space: the placements that strategy searchers choose from.
        topology: name of the topology.
        build_fabric: builds the topology's own fabric for a demand (which it may ignore).
        demand: returns what a strategy asks of the network, before it is priced; a strategy that does not fit the graph
            or the cluster is a `TopoplanError`.  Of a priced one `Trial.demand` has it.
        reconfigurable: the fabric may follow demand, so a searcher of the network has something to decide.
        restriction: what the trainer runs that the plan is for; None where it is for none in particular.
    """

    graph: OperatorGraph
    cluster: Cluster
    costs: CostFunction
    space: PlacementSpace
    topology: str
    build_fabric: Callable[[Demand | None, np.random.Generator], AnyFabric]
    demand: Callable[[Strategy], Demand]
    reconfigurable: bool
    restriction: Restriction | None = None
