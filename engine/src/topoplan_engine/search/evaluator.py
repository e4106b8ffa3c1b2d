"""Pricing candidates: lower, simulate, and add what exceeding memory costs.

The evaluator is what the driver puts between ``ask`` and ``tell``.  It keeps what lowering derived, so a
candidate told as a change to one operator derives that operator's pieces only; and what candidates cost, for chains
come back to where they were.  A candidate that must beat a time is not lowered when a floor under its cost
(`topoplan_engine.search.lower_bounds`) is not below it, and not simulated to the end when the simulator can tell
before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from topoplan.arrays import F64
from topoplan.model.memory import MemoryUse
from topoplan.model.plan import Plan
from topoplan.model.problem import Demand, Problem
from topoplan.model.strategy import PlacedStrategy, Strategy
from topoplan.model.taskgraph import TaskGraph
from topoplan.plugin.simulate import Simulate
from topoplan.search.protocol import Candidate, State, Trial
from topoplan_engine.cache import LruCache
from topoplan_engine.lowering import Lowering
from topoplan_engine.search.lower_bounds import Floors
from topoplan_engine.sharding.programs import why_invalid

__all__ = ["Evaluator", "memory_penalty"]

#: FlexFlow's penalty: one millisecond for each megabyte over (simulator.cc).
_PENALTY_SECONDS_PER_BYTE = 1e-3 / 1e6

#: Costs that are kept.
_KEPT = 4096

#: Relative difference between the times of strategies that only number their devices otherwise.
_ROUNDING = 1e-9

Memory = Literal["ignore", "limit", "penalty"]


def memory_penalty(used: F64, capacity: F64, policy: Memory) -> float:
    """Return the seconds that (D,) ``used`` bytes cost on devices of (D,) ``capacity`` bytes."""
    over = float(np.maximum(used - capacity, 0.0).sum())
    if policy == "ignore" or over == 0.0:
        return 0.0
    return over * _PENALTY_SECONDS_PER_BYTE if policy == "penalty" else float("inf")


class Evaluator:
    """Prices candidates of one problem with one simulator.

    Attributes:
        evaluations: how many candidates were priced.
        first_draw: seed of the first draw of paths.
    """

    def __init__(
        self, problem: Problem, simulate: Simulate, memory: Memory, draws: int = 1, first_draw: int = 0
    ) -> None:
        """Price candidates.

        Args:
            problem: what they are states of.
            simulate: runs an iteration.
            memory: what exceeding a device's memory means.
            draws: where messages draw their paths, a candidate costs the mean of so many draws.
            first_draw: the seed of the first one; the others follow.
        """
        self.problem = problem
        self.evaluations = 0
        self.first_draw = first_draw
        # The simulators of the draws after the first.
        self._others = [simulate.with_seed(first_draw + number) for number in range(1, draws)]
        self._simulate = simulate
        self._memory = memory
        self._lowering = Lowering(problem.graph, problem.cluster, problem.costs)
        self._floors: Floors | None = None
        if simulate.lower_bounds:
            self._floors = Floors(self._lowering, simulate.link_seconds, self._penalty)
        # The task graph, and the memory, of the strategy whose key stands beside it.
        self._lowered: tuple[bytes, TaskGraph] | None = None
        self._held: tuple[bytes, F64] | None = None
        # Cost of a state, and whether it fits into memory.
        self._known: LruCache[bytes, tuple[float, bool]] = LruCache(_KEPT)
        # Seconds that strategies of one class take at least on a fabric.
        self._alike: LruCache[tuple[bytes, int], float] = LruCache(_KEPT)

    def price(self, candidate: Candidate, wanted: float = 0.0) -> Trial:
        """Lower and simulate a candidate.

        One that does not fit a hard memory limit costs ``inf``, and so do one whose placements do not fit its
        schedule and one that is proven not to cost less than the time that it must beat.

        Args:
            candidate: with the time that it must beat.
            wanted: seconds below which a candidate that fits into memory is of use, whatever it must beat: the best
                so far may not fit.
        """
        self.evaluations += 1
        state = candidate.state()
        strategy = state.strategy
        key = strategy.key + state.fabric.key
        known = self._known.find(key)
        if known is not None:
            return self._trial(state, *known)
        if why_invalid(strategy, self.problem.graph, self.problem.cluster.n_devices):
            return self._trial(state, float("inf"))
        beat, floor = candidate.cutoff_seconds, 0.0
        if wanted > beat and self.fits(strategy):
            beat = wanted
        if (
            self._floors is not None
            # Floors add up what fragments of placements take and keep, all at once.
            and isinstance(strategy, PlacedStrategy)
            and isinstance(candidate.base.strategy, PlacedStrategy)
            and beat < float("inf")
        ):
            floor = self._floors.floor(candidate, state)
            if floor >= beat:
                return self._trial(state, float("inf"))
        cost = self._cost(state, beat if self._floors else float("inf"), floor)
        if cost == float("inf"):
            return self._trial(state, cost)
        return self._trial(state, *self._known.put(key, (cost, self.fits(strategy))))

    def _cost(self, state: State, beat: float, floor: float) -> float:
        """Return what a state costs, or infinity if that is not below ``beat``; it is not below ``floor``."""
        cost = 0.0
        if self._memory != "ignore":
            cost = self.penalty(state.strategy)
        if cost < float("inf"):
            cost += self._seconds(state, beat - cost, max(floor - cost, 0.0))
        return cost

    def _seconds(self, state: State, beat: float, floor: float) -> float:
        """Simulate a state.

        Strategies that differ only in the numbers of what nothing tells apart take equally long, but for rounding:
        enough to reject one for what another took.
        """
        fabric, cluster = state.fabric, self.problem.cluster
        once = self.evaluations == 1  # folding pays when more are to come
        whole = once or not self._simulate.has_quotient(fabric, cluster)
        alike = None if whole else self._lowering.alike(state.strategy)
        if alike is None:
            return self._unfolded(state, beat, floor)
        key = (fabric.key, alike.classes.key)
        known = self._alike.find(key)
        if known is not None and known * (1 - _ROUNDING) >= beat:
            return float("inf")
        if alike.worth_folding:
            seconds = self._simulate.quotient_makespan(self._lowering.fold(alike), fabric, cluster, beat)
        else:
            seconds = self._unfolded(state, beat, floor)
        self._alike.put(key, min(seconds, beat))
        return seconds

    def _unfolded(self, state: State, beat: float, floor: float) -> float:
        """Simulate a state, under every draw where its messages draw; none of them takes less than ``floor``."""
        given = (self._lower(state.strategy), state.fabric, self.problem.cluster)
        if not self._others or not self.draws(state):
            return self._simulate.makespan(*given, beat)
        count, total = 1 + len(self._others), 0.0
        for number, simulate in enumerate([self._simulate, *self._others]):
            total += simulate.makespan(*given, count * beat - total - (count - 1 - number) * floor)
            if total == float("inf"):
                break
        return total / count

    def _lower(self, strategy: Strategy) -> TaskGraph:
        """Return the task graph of a strategy, which is kept until another one is asked for."""
        if self._lowered is None or self._lowered[0] != strategy.key:
            self._lowered = None  # before the next one is made: both together may be large
            self._lowered = (strategy.key, self._lowering.lower(strategy))
        return self._lowered[1]

    def _trial(self, state: State, cost: float, fits: bool = False) -> Trial:
        return Trial(state=state, cost=cost, demand=lambda: self.demand(state.strategy), fits=fits)

    def _penalty(self, used: F64) -> float:
        return memory_penalty(used, self.problem.cluster.device_memory, self._memory)

    def demand(self, strategy: Strategy) -> Demand:
        """Return what a strategy asks of the network."""
        return self._lowering.demand(strategy)

    def memory(self, strategy: Strategy) -> F64:
        """Return the (D,) bytes that a strategy keeps on each device."""
        if self._held is None or self._held[0] != strategy.key:
            self._held = (strategy.key, self._lowering.memory(strategy))
        return self._held[1]

    def fits(self, strategy: Strategy) -> bool:
        """Say whether every device holds what a strategy keeps on it; true of all where memory is ignored."""
        if self._memory == "ignore":
            return True
        return bool((self.memory(strategy) <= self.problem.cluster.device_memory).all())

    def memory_use(self, strategy: Strategy) -> MemoryUse:
        """Return the same by what it is for."""
        return self._lowering.memory_use(strategy)

    def penalty(self, strategy: Strategy) -> float:
        """Return the seconds that exceeding memory adds to a strategy's cost."""
        return memory_penalty(self.memory(strategy), self.problem.cluster.device_memory, self._memory)

    def draws(self, state: State) -> bool:
        """Say whether the time of a state is one draw of many: some message has several paths to take."""
        fabric, cluster = state.fabric, self.problem.cluster
        if self._simulate.has_quotient(fabric, cluster):  # on a star there is one path each
            return False
        return self._simulate.draws(self._lower(state.strategy), fabric, cluster)

    def makespans(self, state: State, seeds: Sequence[int]) -> F64:
        """(n,) seconds of a state under the draws with these seeds, for a state that draws."""
        given = (self._lower(state.strategy), state.fabric, self.problem.cluster)
        return self._simulate.makespans(*given, seeds)

    def plan(self, state: State, provenance: Mapping[str, Any], seed: int | None = None) -> Plan:
        """Lower and simulate a state once more, in full, as a plan; ``seed`` names a draw of its paths."""
        taskgraph = self._lower(state.strategy)
        simulate = self._simulate if seed is None else self._simulate.with_seed(seed)
        return Plan(
            cluster=self.problem.cluster,
            fabric=state.fabric,
            taskgraph=taskgraph,
            graph=self.problem.graph,
            strategy=state.strategy,
            timeline=simulate(taskgraph, state.fabric, self.problem.cluster),
            memory=self.memory_use(state.strategy),
            provenance=provenance,
        )
