"""`Lowering`: from strategies to task graphs, memory and demand, with one lowering for each kind of strategy.

    operators on any devices, the whole batch at once         `placements.PlacementLowering`   FlexFlow, FlexNet
    operators on any devices, micro-batches in an order       `pipeline.PipelineLowering`      DAPPLE
    stages with programs on meshes, micro-batches in an order `staged.StagedLowering`          Megatron, Alpa, FSDP
    parts of one program with one communication stream        `programs.ProgramLowering`       HiDup

The first writes its tasks with a compiled kernel (`build`), for a search prices thousands of placements in a second.
All others collect them in `task_columns.TaskColumns`.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from topoplan.arrays import F64, I64
from topoplan.model.cluster import Cluster
from topoplan.model.costs import CostFunction
from topoplan.model.graph import OperatorGraph
from topoplan.model.problem import Demand
from topoplan.model.recording import MemoryLevels, MemoryUse
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import PlacedStrategy, Strategy
from topoplan.model.taskgraph import Collective, TaskGraph
from topoplan.model.timeline import Timeline
from topoplan_engine.lowering.edge_numbers import EdgeNumbers
from topoplan_engine.lowering.fragment_cache import FragmentCache
from topoplan_engine.lowering.memory_levels import Activations, memory_levels
from topoplan_engine.lowering.order import order_of
from topoplan_engine.lowering.pieces import Pieces

if TYPE_CHECKING:
    from topoplan_engine.lowering.folding.layout import FoldedIteration
    from topoplan_engine.lowering.folding.patterns import MessageLoads
    from topoplan_engine.lowering.pipeline import PipelineLowering
    from topoplan_engine.lowering.placements import PlacementLowering
    from topoplan_engine.lowering.programs import ProgramLowering
    from topoplan_engine.lowering.staged import StagedLowering
    from topoplan_engine.lowering.symmetry.quotient import Quotient, Symmetry

__all__ = ["Lowering", "StrategyLowering"]


class StrategyLowering(ABC):
    """Lowers all strategies of one kind."""

    @abstractmethod
    def lower(self, strategy: Any) -> TaskGraph:
        """Return the task graph of one iteration.

        Raises:
            TopoplanError: a placement that the cost function cannot price.
        """

    @abstractmethod
    def n_tasks(self, strategy: Any) -> int:
        """Return about how many tasks `lower` makes, without making them."""

    def class_key(self, strategy: Any, in_turn_bytes: int) -> int | None:
        """Return a number that is equal for strategies with one quotient, to the last bit; None if there is none.

        Args:
            strategy: to lower.
            in_turn_bytes: see `symmetry`.
        """
        return None

    def symmetry(self, strategy: Any, in_turn_bytes: int) -> Symmetry | None:
        """Return the classes of parts that nothing tells apart if all devices are alike; None if there are none.

        Args:
            strategy: to lower.
            in_turn_bytes: messages of no more bytes from one device to the same other one are served in turn.
        """
        return None

    @abstractmethod
    def memory(self, strategy: Any) -> F64:
        """Return the (D,) bytes that each device holds during the iteration: the most at a time."""

    def resting_memory(self, strategy: Any) -> F64:
        """Return the (D,) bytes of the parts of a placed strategy alone, without gradients of activations.

        A sum over parts, and no more than `memory`; the same where there is no such sum.
        """
        return self.memory(strategy)

    def holds_gradients(self, strategy: Any) -> bool:
        """Return whether `memory` may be more than `resting_memory`; True where that says nothing of the peak."""
        return True

    @abstractmethod
    def memory_use(self, strategy: Any) -> MemoryUse:
        """Return the same as `memory` by what it is for, in whole bytes."""

    @abstractmethod
    def activations(self, strategy: Any, taskgraph: TaskGraph, timeline: Timeline) -> Activations:
        """Return the bytes of activations over time, in a simulated iteration of what `lower` returns."""

    @abstractmethod
    def demand(self, strategy: Any) -> Demand:
        """Return what the strategy asks of the network, host by host."""


class Lowering:
    """Lowers strategies of every kind, of one graph on one cluster with one cost function.

    Attributes:
        graph, cluster, costs: what is lowered, and for what.
        one_task: all-to-alls of programs are one task each, which a simulator runs by an algorithm, rather than a
            transfer for each pair of members.
        pieces: the fragments of placed strategies, by number.
    """

    def __init__(self, graph: OperatorGraph, cluster: Cluster, costs: CostFunction, *, one_task: bool = False) -> None:
        self.graph, self.cluster, self.costs, self.one_task = graph, cluster, costs, one_task
        self._fragments = FragmentCache(graph, cluster, costs)
        self.pieces = Pieces(self._fragments)

    def lower(self, strategy: Strategy) -> TaskGraph:
        """See `StrategyLowering.lower`."""
        return self._of(strategy).lower(strategy)

    def n_tasks(self, strategy: Strategy) -> int:
        """See `StrategyLowering.n_tasks`."""
        return self._of(strategy).n_tasks(strategy)

    def class_key(self, strategy: Strategy, in_turn_bytes: int = 0) -> int | None:
        """See `StrategyLowering.class_key`."""
        return self._of(strategy).class_key(strategy, in_turn_bytes)

    def class_key_of_numbers(self, numbers: I64, in_turn_bytes: int = 0) -> int | None:
        """Return the key of a placed strategy whose fragments have these numbers (`Pieces.numbers`).

        None where devices may update weights in steps of their own: `class_key` looks closer.  None, too, where not
        everything is trained.
        """
        if self._fragments.optimizer_costs is not None or not self._fragments.passes.everything:
            return None
        return self._placements.class_keys.of_numbers(numbers, in_turn_bytes)

    def symmetry(self, strategy: Strategy, in_turn_bytes: int = 0) -> Symmetry | None:
        """See `StrategyLowering.symmetry`."""
        return self._of(strategy).symmetry(strategy, in_turn_bytes)

    def symmetry_of_numbers(self, numbers: I64, in_turn_bytes: int = 0) -> Symmetry | None:
        """Return `symmetry` of a placed strategy with these fragments that `class_key_of_numbers` has a key for."""
        return self._placements.symmetry_of_numbers(numbers, in_turn_bytes)

    def placement_key(self, strategy: Strategy) -> int | None:
        """Return a number that is equal for strategies that differ in the numbers of their devices only.

        None for a kind of strategy that says more than its placements.
        """
        return self.pieces.placement_key(strategy) if isinstance(strategy, PlacedStrategy) else None

    def memory(self, strategy: Strategy) -> F64:
        """See `StrategyLowering.memory`."""
        return self._of(strategy).memory(strategy)

    def resting_memory(self, strategy: Strategy) -> F64:
        """See `StrategyLowering.resting_memory`."""
        return self._of(strategy).resting_memory(strategy)

    def holds_gradients(self, strategy: Strategy) -> bool:
        """See `StrategyLowering.holds_gradients`."""
        return self._of(strategy).holds_gradients(strategy)

    def memory_use(self, strategy: Strategy) -> MemoryUse:
        """See `StrategyLowering.memory_use`."""
        return self._of(strategy).memory_use(strategy)

    def memory_levels(self, strategy: Strategy, taskgraph: TaskGraph, timeline: Timeline) -> MemoryLevels:
        """Return the bytes on every device over time, in a simulated iteration of what `lower` returns."""
        lowering = self._of(strategy)
        return memory_levels(lowering.memory_use(strategy), lowering.activations(strategy, taskgraph, timeline))

    def demand(self, strategy: Strategy) -> Demand:
        """See `StrategyLowering.demand`."""
        return self._of(strategy).demand(strategy)

    def quotient(self, symmetry: Symmetry) -> Quotient:
        """Return the iteration with one task for each class."""
        from topoplan_engine.lowering.symmetry.quotient import quotient

        return quotient(symmetry, self._fragments.op_names, self.cluster.n_devices)

    def fold(
        self,
        strategy: StagedStrategy,
        loads_of: Callable[[TaskGraph], MessageLoads],
        chosen: Collection[Collective] = (),
    ) -> FoldedIteration:
        """Return one iteration with a task for each class of tasks.

        Args:
            strategy: to lower.
            loads_of, chosen: see `topoplan_engine.lowering.staged.StagedLowering.fold`.
        """
        lowering: StagedLowering = self._of(strategy)  # type: ignore[assignment]
        return lowering.fold(strategy, loads_of, chosen)

    def edges_at(self, ops: Iterable[int]) -> list[int]:
        """Return the edges at any of these operators."""
        return self._fragments.edges_at(ops)

    def edge_numbers(self) -> EdgeNumbers:
        """Return a table, yet empty, for the numbers of the fragments of all edges."""
        fragments = self._fragments
        edges_at = [fragments.edges_at([op]) for op in range(len(fragments.op_names))]
        return EdgeNumbers(edges_at, [(source, target) for _, source, target in fragments.edge_ends])

    def _of(self, strategy: Strategy) -> StrategyLowering:
        """Return the lowering of a strategy: its operators are placed, with an order of passes or without, or not."""
        if strategy.program is not None:
            return self._programs
        if isinstance(strategy, StagedStrategy) and not strategy.is_placed:
            return self._stages
        return self._placements if order_of(strategy) is None else self._pipelines

    @functools.cached_property
    def _placements(self) -> PlacementLowering:
        from topoplan_engine.lowering.placements import PlacementLowering

        return PlacementLowering(self._fragments, self.pieces)

    @functools.cached_property
    def _pipelines(self) -> PipelineLowering:
        from topoplan_engine.lowering.pipeline import PipelineLowering

        return PipelineLowering(self._fragments)

    @functools.cached_property
    def _programs(self) -> ProgramLowering:
        from topoplan_engine.lowering.programs import ProgramLowering

        return ProgramLowering(self.graph, self.cluster, self.costs, one_task=self.one_task)

    @functools.cached_property
    def _stages(self) -> StagedLowering:
        from topoplan_engine.lowering.staged import StagedLowering

        return StagedLowering(self.graph, self.cluster, self.costs, one_task=self.one_task)
