"""Folded iterations of a problem's states: where one task can stand for many; the last one is kept with its run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import TaskGraph
from topoplan.model.timeline import Timeline
from topoplan.plugin.simulate import Simulate
from topoplan.search.protocol import State
from topoplan_engine.interrupt import OversizeError
from topoplan_engine.lowering import Lowering
from topoplan_engine.simulation.deferred import DeferredTaskGraph
from topoplan_engine.simulation.quotients import FoldedRun, Folds

if TYPE_CHECKING:
    from topoplan_engine.lowering.folding.layout import FoldedIteration
    from topoplan_engine.lowering.folding.patterns import MessageLoads

__all__ = ["MOST_WRITTEN", "FoldedStates", "folded_taskgraph"]

#: Passes of the smallest staged iteration that is folded, and tasks of the smallest one whose draws of paths are left
#: to chance no more: each message loads all of its equal paths.
_FOLDED, _FOLDED_DRAWS = 20_000, 1 << 19

#: Tasks of the largest folded iteration whose whole task graph is made where one asks for it: about 15 GB.
MOST_WRITTEN = 1 << 26


def folded_taskgraph(folded: FoldedIteration, whole: Callable[[], TaskGraph]) -> DeferredTaskGraph:
    """Return the task graph of an iteration that is folded; ``whole`` makes all tasks if one asks for them."""

    def made() -> TaskGraph:
        if folded.n_tasks > MOST_WRITTEN:
            raise TopoplanError(
                f"plan: {folded.n_tasks:,} tasks of all devices cannot be listed one by one (at most "
                f"{MOST_WRITTEN:,}): price it without an output, recording or command that reads tasks"
            )
        return whole()

    first = folded.taskgraph
    return DeferredTaskGraph.of(made, n_tasks=folded.n_tasks, n_devices=first.n_devices, op_names=first.op_names)


class FoldedStates:
    """Folds iterations, if the simulator can run them so."""

    def __init__(self, simulate: Simulate, lowering: Lowering, cluster: Cluster) -> None:
        self._simulate = simulate if isinstance(simulate, Folds) else None
        self._lowering, self._cluster = lowering, cluster
        # The key of the last state, its iteration if it is folded, and what that takes.
        self._last: tuple[bytes, FoldedIteration | None] = b"", None
        self._run: FoldedRun | None = None
        self._timeline: Timeline | None = None

    def iteration(self, state: State) -> FoldedIteration | None:
        """Return one task for each class of tasks of a staged strategy; None where all are simulated.

        Those of small iterations are, and of larger ones, too, as far as they draw paths.
        """
        strategy, fabric = state.strategy, state.fabric
        if not isinstance(strategy, StagedStrategy):
            return None
        count = self._lowering.n_tasks(strategy)
        if count < _FOLDED:
            return None
        key = strategy.key + fabric.key
        if self._last[0] != key:
            iteration: FoldedIteration | None = None
            if reason := self._why_whole(state):
                if count > MOST_WRITTEN:
                    raise OversizeError(
                        f"plan: {count:,} passes of operators, and {MOST_WRITTEN:,} can be run one by one: {reason}"
                    )
            elif (simulate := self._simulate) is not None:

                def loads_of(messages: TaskGraph) -> MessageLoads:
                    return simulate.message_loads(messages, fabric, self._cluster)

                folded = self._lowering.fold(strategy, loads_of, simulate.chosen_collectives)
                if folded.draws and not self._draws(folded, fabric):
                    folded = folded._replace(draws=False, groups=())
                if not folded.draws or folded.n_tasks >= _FOLDED_DRAWS:
                    iteration = folded
            self._run = self._timeline = None
            self._last = key, iteration  # not before: a search may have left the call in the middle
        return self._last[1]

    def _draws(self, folded: FoldedIteration, fabric: AnyFabric) -> bool:
        """Whether an iteration draws paths: rings that would are not run where algorithms are chosen in their place."""
        simulate = self._simulate
        assert simulate is not None
        return not simulate.chosen_collectives or simulate.draws(folded.taskgraph, fabric, self._cluster)

    def _why_whole(self, state: State) -> str:
        """Return why all tasks of a staged strategy are run, and what would fold them; empty where they are folded."""
        strategy, options = state.strategy, "fluid with level=coupled, transport=wire, gradient-sync=overlap"
        assert isinstance(strategy, StagedStrategy)
        if strategy.is_placed:
            return "operators that are placed one by one are not folded (stages of programs are: --plan)"
        if self._simulate is None or not self._simulate.has_folds(state.fabric, self._cluster):
            return (
                f"the simulator folds none with these options, or on this network ({options} folds fabrics that stay)"
            )
        return ""

    def seconds(self, state: State) -> float | None:
        """Return the time of an iteration; None if it is not folded."""
        run = self._of(state)
        return None if run is None else run.makespan

    def timeline(self, state: State, whole: Callable[[], TaskGraph]) -> Timeline:
        """Return the timeline of a state that is folded, of which ``whole`` makes all tasks."""
        run = self._of(state)
        assert run is not None
        assert self._simulate is not None
        if self._timeline is None:
            self._timeline = self._simulate.folded_timeline(run, whole)
        return self._timeline

    def _of(self, state: State) -> FoldedRun | None:
        folded = self.iteration(state)
        if folded is None:  # the run that is kept may be that of a state before
            return None
        if self._run is None and self._simulate is not None:
            self._run = self._simulate.run_folded(folded, state.fabric, self._cluster)
        return self._run
