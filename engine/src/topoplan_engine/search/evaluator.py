"""Pricing candidates: lower, simulate, and add what exceeding memory costs.

The driver prices candidates between ``ask`` and ``tell``.  Lowering caches fragments, so that a candidate that changes
one operator derives the fragments of that operator only.  Costs are cached, because searches come back to states.
If a lower bound on the cost of a candidate (`topoplan_engine.search.lower_bounds`) reaches its cutoff, it is not
lowered; if a bound of the simulator does, its simulation is stopped early.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs
import numpy as np

from topoplan.arrays import F64
from topoplan.model.placement import Placement
from topoplan.model.plan import Plan
from topoplan.model.problem import Demand, Problem
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.recording import MemoryUse
from topoplan.model.strategy import PlacedStrategy, Strategy
from topoplan.model.taskgraph import TaskGraph
from topoplan.model.timeline import Timeline
from topoplan.plugin.components import Exporter
from topoplan.plugin.simulate import Simulate
from topoplan.search.protocol import Candidate, State, Trial
from topoplan_engine.cache import LruCache
from topoplan_engine.guarded import runs_all_to_alls, with_algorithms
from topoplan_engine.interrupt import OversizeError, TooLargeError, check_size
from topoplan_engine.kernels.clock import clock, seconds_of_routing
from topoplan_engine.lowering import Lowering
from topoplan_engine.network.star import HasInterfaces
from topoplan_engine.search.change_bounds import ChangeBounds, CostBound
from topoplan_engine.search.class_seconds import ClassSeconds
from topoplan_engine.search.lower_bounds import NO_BOUND, IncrementalLowerBound, LowerBound
from topoplan_engine.sharding.programs import why_invalid
from topoplan_engine.simulation.deferred import DeferredTaskGraph
from topoplan_engine.simulation.folds import MOST_WRITTEN, FoldedStates, folded_taskgraph
from topoplan_engine.simulation.recording import simulated
from topoplan_engine.states import state_key

if TYPE_CHECKING:
    from topoplan_engine.lowering.folding.layout import FoldedIteration

__all__ = ["Evaluator", "memory_penalty"]

#: What each byte costs that exceeds the memory of a device, in seconds.  FlexFlow's penalty is one millisecond for each
#: megabyte (simulator.cc).
_SECONDS_PER_BYTE = {"ignore": 0.0, "limit": float("inf"), "penalty": 1e-3 / 1e6}

#: Entries of each cache.
_ENTRIES = 4096

#: Seconds that a task of an iteration takes to be lowered and simulated, until some were; and iterations of how many
#: tasks tell.
_SECONDS_PER_TASK, _TELLING = 1e-6, 50_000

#: How much longer an iteration takes as a plan, with its bounds and what is reported of it, than to be priced.
_IN_FULL = 1.5

#: Parts of operators from which on the tasks of placements are counted before anything is made of them, and how much
#: less than their simulation the bytes of so many tasks take, and their classes where a quotient stands for them.
_LARGE, _LIGHTER = 1 << 20, 8

Memory = Literal["ignore", "limit", "penalty"]


def memory_penalty(used: F64, capacity: F64, policy: Memory) -> float:
    """Return the seconds that (D,) ``used`` bytes cost on devices of (D,) ``capacity`` bytes."""
    excess = float(np.maximum(used - capacity, 0.0).sum())
    if policy == "ignore" or excess == 0.0:
        return 0.0
    return excess * _SECONDS_PER_BYTE[policy]


class Evaluator:
    """Prices candidates of one problem with one simulator.

    Attributes:
        evaluations: how many candidates were priced.
        first_draw: seed of the first draw of paths.
        seconds_per_task: how long the slowest iteration so far took to be lowered and simulated, for each of its tasks.
        least_seconds_per_task: the same of the fastest.
    """

    def __init__(
        self,
        problem: Problem,
        simulate: Simulate,
        memory: Memory,
        draws: int = 1,
        first_draw: int = 0,
        formats: Sequence[Exporter] = (),
        collectives: str = "",
        lowering: Lowering | None = None,
    ) -> None:
        """Price candidates.

        Args:
            problem: what they are states of.
            simulate: runs an iteration.
            memory: policy for exceeding a device's memory.
            draws: if messages draw their paths, a candidate costs the mean of so many draws.
            first_draw: the seed of the first one; those of the others follow.
            formats: what the plan is to be written in; strategies that one of them cannot say have no cost.
            collectives: algorithms of the states that it prices itself; others have an evaluator like this one each.
            lowering: of the problem, which is shared where it writes the same tasks.
        """
        self._arguments = problem, simulate, memory, draws, first_draw, formats
        self._collectives = collectives
        # Those of states with other algorithms of collectives.
        self._variants: dict[str, Evaluator] = {}
        if collectives:
            simulate = with_algorithms(simulate, collectives)
        self.problem = problem
        self.evaluations, self.first_draw = 0, first_draw
        # Iterations that showed how long a task takes, and the fastest of them.
        self._paces, self._fastest_pace = 0, math.inf
        self.seconds_per_task = self.least_seconds_per_task = _SECONDS_PER_TASK
        self._formats = [each for each in formats if type(each).unwritable_part is not Exporter.unwritable_part]
        self._further_draws = [simulate.with_seed(first_draw + number) for number in range(1, draws)]
        self._simulate = simulate
        self._memory_policy = memory
        one_task = runs_all_to_alls(simulate)
        if lowering is None or lowering.one_task != one_task:
            lowering = Lowering(problem.graph, problem.cluster, problem.costs, one_task=one_task)
        self._lowering = lowering
        self._classes = ClassSeconds(lowering, simulate, problem.cluster)
        self._folds = FoldedStates(simulate, self._lowering, problem.cluster)
        self._lower_bound: IncrementalLowerBound | None = None
        if simulate.lower_bounds:
            of_star = simulate.interfaces if isinstance(simulate, HasInterfaces) else None
            self._lower_bound = IncrementalLowerBound(
                self._lowering, simulate.link_seconds, _SECONDS_PER_BYTE[memory], of_star
            )
        self._change_bounds = ChangeBounds()
        self._begin_caches()

    def _begin_caches(self) -> None:
        # The last task graph and the last memory, with the key of their strategy.
        self._last_taskgraph: tuple[bytes, TaskGraph] | None = None
        self._last_memory: tuple[bytes, F64] | None = None
        self._may_be_large = len(self.problem.graph.operators) * self.problem.cluster.n_devices >= _LARGE
        # By state: cost, and whether it fits into memory.
        self._costs: LruCache[bytes, tuple[float, bool]] = LruCache(_ENTRIES)
        # What `price_in_full` simulated, and the key of its state.
        self._keeps_timeline = False
        self._timeline: tuple[bytes, Timeline | None] = b"", None
        # Whether no quotient is simulated in the place of an iteration.
        self._is_whole = False
        # By state: seconds that it took to be priced, under one draw of paths, up to its end.
        self._seconds_of: LruCache[bytes, float] = LruCache(_ENTRIES)
        # The state that the last change leads to, by its key, and the class of its strategy.
        self._last_class: tuple[bytes, int | None] = (b"", None)
        # Formats that can never say some kinds of strategies.
        self._limiting: list[Exporter] = []
        # By strategy: why the trainer that plans are for cannot run it, or a format cannot say it.
        self._refusals: dict[bytes, str] = {}
        # By strategy: why its iteration cannot be simulated.
        self._oversize: dict[bytes, str] = {}

    def price(self, candidate: Candidate, fitting_cutoff: float = 0.0) -> Trial:
        """Lower and simulate a candidate.

        The cost is ``inf`` in four cases: the candidate exceeds a hard memory limit, its placements do not match its
        schedule, `refusal` says that it is of no use, or a lower bound on its cost reaches the cutoff.

        Args:
            candidate: with its cutoff.
            fitting_cutoff: cutoff of a candidate that fits into memory, if that is larger: the best state so far may
                not fit.
        """
        self.evaluations += 1
        state = candidate.state()
        if (evaluator := self._of(state)) is not self:
            base = attrs.evolve(candidate.base, collectives=state.collectives)
            return evaluator.price(attrs.evolve(candidate, base=base), fitting_cutoff)
        strategy = state.strategy
        key = state_key(state)
        cached = self._costs.find(key)
        if cached is not None:
            return self._trial(state, *cached)
        if why_invalid(strategy, self.problem.graph, self.problem.cluster.n_devices) or self.refusal(strategy):
            return self._trial(state, float("inf"))
        cutoff, bound = candidate.cutoff_seconds, NO_BOUND
        if fitting_cutoff > cutoff and self.fits(strategy):
            cutoff = fitting_cutoff
        if (
            self._lower_bound is not None
            # The bound sums fragments of placements that run without an order.
            and isinstance(strategy, PlacedStrategy)
            and isinstance(candidate.base.strategy, PlacedStrategy)
            and cutoff < float("inf")
        ):
            with contextlib.suppress(TooLargeError):  # the state that it changes, which the bound lowers
                bound = self._lower_bound.of(candidate, state)
            if bound.seconds >= cutoff:
                return self._trial(state, float("inf"))
        try:
            cost = self._cost(state, cutoff if self._lower_bound else float("inf"), bound)
        except OversizeError as error:
            self._oversize[strategy.key] = str(error)
            raise
        if cost == float("inf"):
            return self._trial(state, cost)
        return self._trial(state, *self._costs.put(key, (cost, bound.fits or self.fits(strategy))))

    def price_in_full(self, candidate: Candidate, fitting_cutoff: float = 0.0) -> Trial:
        """Price a candidate that is to be the plan: `plan` need not simulate it once more."""
        evaluator = self._of(candidate.state())
        evaluator._keeps_timeline = True
        try:
            return self.price(candidate, fitting_cutoff)
        finally:
            evaluator._keeps_timeline = False

    def price_alone(self, candidate: Candidate, fitting_cutoff: float = 0.0) -> Trial:
        """Price the only candidate of a search: what it has in common with others is not looked for, if it is small.

        Its quotient would save less time than it takes to find, and kernels to be compiled that nothing else needs.
        """
        evaluator, strategy = self._of(candidate.state()), candidate.state().strategy
        if not isinstance(strategy, PlacedStrategy) or self._lowering.n_tasks(strategy) > _TELLING:
            return self.price(candidate, fitting_cutoff)
        evaluator._is_whole = True
        try:
            return self.price(candidate, fitting_cutoff)
        finally:
            evaluator._is_whole = False

    def _of(self, state: State) -> Evaluator:
        """Return the evaluator of states whose collectives have the algorithms of this one."""
        if state.collectives == self._collectives:
            return self
        if state.collectives not in self._variants:
            variant = Evaluator(*self._arguments, state.collectives, self._lowering)
            variant._limiting = self._limiting
            self._variants[state.collectives] = variant
        return self._variants[state.collectives]

    def runs(self, state: State) -> tuple[Simulate, AnyFabric, TaskGraph]:
        """Return what runs a state, on which fabric, and its tasks, one for each class where it is folded."""
        evaluator = self._of(state)
        folded = evaluator._folds.iteration(state)
        tasks = evaluator._lower(state.strategy) if folded is None else folded.taskgraph
        return evaluator._simulate, state.fabric, tasks

    def keep_to(self, formats: Sequence[Exporter], start: Strategy) -> None:
        """Give no cost to strategies of kinds that formats can never say, but for those whose kind the start has."""
        self._limiting = [each for each in formats if each.unwritable and not isinstance(start, each.unwritable)]

    def refusal(self, strategy: Strategy) -> str:
        """Say why no trainer or format that plans are for can run or say a strategy; empty if it can, or for none."""
        restriction, graph = self.problem.restriction, self.problem.graph
        for each in self._limiting:
            if isinstance(strategy, each.unwritable):
                return f"{each.name}: the format cannot say strategies of this kind ({type(strategy).__name__})"
        if restriction is None and not self._formats:
            return ""
        if strategy.key not in self._refusals:
            why = "" if restriction is None else restriction.refusal(graph, self.problem.cluster, strategy)
            texts = (
                f"{each.name}: {part}" for each in self._formats if (part := each.unwritable_part(graph, strategy))
            )
            self._refusals[strategy.key] = why or next(texts, "")
        return self._refusals[strategy.key]

    def oversize(self, strategy: Strategy) -> str:
        """Say why the iteration of a strategy, which was to be priced, cannot be simulated; empty if it can."""
        texts = (each._oversize.get(strategy.key, "") for each in (self, *self._variants.values()))
        return next(filter(None, texts), "")

    def rejects(self, base: State, placements: Mapping[int, Placement], cutoff: float) -> bool:
        """Say whether a change to a state is known to cost no less than ``cutoff`` seconds, without lowering it.

        The quotient of a small one is simulated.  Nothing is counted as priced.  A candidate of this very mapping may
        be priced next: what is known of it by then is used again.
        """
        if (evaluator := self._of(base)) is not self:
            return evaluator.rejects(base, placements, cutoff)
        if self._lower_bound is None or cutoff == float("inf") or not isinstance(base.strategy, PlacedStrategy):
            return False
        key = self._change_bounds.key(base, placements)
        bound = self._change_bounds.of(key)
        if bound.seconds < cutoff and not bound.exact:
            bound = self._change_bounds.put(key, self._bound_of_change(self._lower_bound, base, placements, cutoff))
        return bound.seconds >= cutoff

    def _bound_of_change(
        self, bounds: IncrementalLowerBound, base: State, placements: Mapping[int, Placement], cutoff: float
    ) -> CostBound:
        """Return what is known of the cost of a changed state; more is derived as long as it is below the cutoff."""
        seconds = bounds.proposed(base, placements, cutoff).seconds
        if seconds >= cutoff:
            return CostBound(seconds, False)
        key = bounds.key()
        cached = self._costs.find(key)
        if cached is not None:
            return CostBound(cached[0], True)
        class_bound = None
        if self._classes.has_quotient(base.fabric):
            class_key = self._classes.class_of(bounds.placement_key(), bounds.numbers())
            self._last_class = (key, class_key)
            if class_key is not None:
                class_bound = self._classes.early(base.fabric, class_key, bounds.numbers(), cutoff)
        return CostBound(seconds if class_bound is None else max(seconds, class_bound.seconds), False)

    def seconds_in_full(self, state: State) -> float:
        """Return about how many seconds `plan` takes for a state; hardly any where one device stands for all."""
        if (evaluator := self._of(state)) is not self:
            return evaluator.seconds_in_full(state)
        if self._timeline[0] == state_key(state):
            return 0.0
        tasks = self.tasks_in_full(state)
        seconds = self._seconds_of.find(state_key(state)) if tasks else None
        return _IN_FULL * (self.seconds_per_task * tasks if seconds is None else seconds)

    def tasks_in_full(self, state: State) -> int:
        """Return about how many tasks `plan` simulates for a state."""
        return 0 if self._of(state)._folds.iteration(state) is not None else self._lowering.n_tasks(state.strategy)

    def tasks_of(self, strategy: Strategy) -> int:
        """Return about how many tasks an iteration of a strategy has, were it not folded."""
        return self._lowering.n_tasks(strategy)

    def may_draw(self, state: State) -> bool:
        """Say whether messages may draw their paths, without lowering the state: on one switch there is one each."""
        return self._classes.may_draw(state.fabric)

    def pass_over(self, count: int) -> None:
        """Count candidates as priced that were rejected before."""
        self.evaluations += count

    def recall(self, candidate: Candidate, cost: float, fits: bool) -> Trial:
        """Take the price that `price` gave for a candidate at this place of the same search.

        Nothing is lowered or simulated, and later prices are those that they would be.
        """
        self.evaluations += 1
        state = candidate.state()
        costs = self._of(state)._costs
        if costs.find(state_key(state)) is None and cost < float("inf"):
            costs.put(state_key(state), (cost, fits))
        return self._trial(state, cost, fits)

    def _cost(self, state: State, cutoff: float, bound: LowerBound) -> float:
        """Return the cost of a state, or infinity if it reaches the cutoff."""
        cost = 0.0
        if self._may_be_large and isinstance(state.strategy, PlacedStrategy):
            check_size(self._lowering.n_tasks(state.strategy) // _LIGHTER)
        if self._memory_policy != "ignore" and not bound.fits:
            cost = self.penalty(state.strategy)
        if cost < float("inf"):
            cost += self._seconds(state, cutoff - cost, max(bound.seconds - cost, 0.0))
        return cost

    def _seconds(self, state: State, cutoff: float, bound: float) -> float:
        """Simulate a state, or its quotient if it has one.

        Strategies of one class have one quotient, to the last bit, which is simulated once.  Where it would hardly be
        shorter, states are simulated whole; they take equally long, but for rounding, so that one rejects others.
        """
        fabric = state.fabric
        folded = self._folds.seconds(state)
        if folded is not None:
            return folded if folded < cutoff else float("inf")
        class_key = self._class_key(state) if not self._is_whole and self._classes.has_quotient(fabric) else None
        if class_key is None:
            return self._whole_seconds(state, cutoff, bound)
        class_bound = self._classes.find(fabric, class_key)
        if class_bound is None or (class_bound.seconds < cutoff and not class_bound.exact):
            symmetry = self._lowering.symmetry(state.strategy, self._classes.in_turn_bytes)
            if symmetry is None:
                return self._whole_seconds(state, cutoff, bound)
            if not symmetry.worthwhile:
                seconds = self._whole_seconds(state, cutoff, bound)
                self._classes.note(fabric, class_key, min(seconds, cutoff))
                return seconds
            class_bound = self._classes.simulated(symmetry, fabric, class_key, cutoff)
        return class_bound.seconds if class_bound.seconds < cutoff else float("inf")

    def _class_key(self, state: State) -> int | None:
        """Return the class of a state's strategy, None if it has none; that of the last change is kept."""
        key, class_key = self._last_class
        if class_key is not None and key == state_key(state):
            return class_key
        return self._lowering.class_key(state.strategy, self._classes.in_turn_bytes)

    def _whole_seconds(self, state: State, cutoff: float, bound: float) -> float:
        """Simulate a state, under every draw if its messages draw; ``bound`` is a lower bound on each of them."""
        started, routed = clock(), seconds_of_routing()
        iteration = (self._lower(state.strategy), state.fabric, self.problem.cluster)
        if not self._further_draws or not self.draws(state):
            if self._keeps_timeline:
                timeline = self._simulate(*iteration)
                self._timeline = state_key(state), timeline
                seconds = float(timeline.makespan)
            else:
                seconds = float(self._simulate.makespan(*iteration, cutoff))
            took = clock() - started
            if not self.problem.reconfigurable:  # else so many networks come and go that paths are looked for again
                took -= seconds_of_routing() - routed
            self._note_pace(iteration[0].n_tasks, took)
            if seconds < float("inf"):
                self._seconds_of.put(state_key(state), took)
            return seconds
        count, total = 1 + len(self._further_draws), 0.0
        for number, simulate in enumerate([self._simulate, *self._further_draws]):
            # The mean stays below the cutoff only if this draw does, the later ones being at their bound.
            total += simulate.makespan(*iteration, count * cutoff - total - (count - 1 - number) * bound)
            if total == float("inf"):
                break
        return total / count

    def _note_pace(self, tasks: int, seconds: float) -> None:
        """Take note of how long an iteration took to be priced."""
        if tasks >= _TELLING:
            pace = seconds / tasks
            self.seconds_per_task = max(self.seconds_per_task if self._paces else 0.0, pace)
            self._paces += 1
            self._fastest_pace = min(self._fastest_pace, pace)
            # The first one routes what all that follow find: of one alone nothing is known of how fast they can be.
            if self._paces > 1:
                self.least_seconds_per_task = self._fastest_pace

    def _lower(self, strategy: Strategy) -> TaskGraph:
        """Return the task graph of a strategy; that of the last one is cached."""
        if self._last_taskgraph is None or self._last_taskgraph[0] != strategy.key:
            self._last_taskgraph = None  # before the next one is made: both together may be large
            self._last_taskgraph = (strategy.key, self._lowering.lower(strategy))
        return self._last_taskgraph[1]

    def _trial(self, state: State, cost: float, fits: bool = False) -> Trial:
        return Trial(state=state, cost=cost, demand=lambda: self.demand(state.strategy), fits=fits)

    def demand(self, strategy: Strategy) -> Demand:
        """Return what a strategy asks of the network."""
        return self._lowering.demand(strategy)

    def memory(self, strategy: Strategy) -> F64:
        """Return the (D,) peak bytes of a strategy on each device; those of the last one are cached."""
        if self._last_memory is None or self._last_memory[0] != strategy.key:
            self._last_memory = (strategy.key, self._lowering.memory(strategy))
        return self._last_memory[1]

    def fits(self, strategy: Strategy) -> bool:
        """Say whether a strategy fits into the memory of every device; true of all if memory is ignored."""
        if self._memory_policy == "ignore":
            return True
        return bool((self.memory(strategy) <= self.problem.cluster.usable_memory).all())

    def memory_use(self, strategy: Strategy) -> MemoryUse:
        """Return the bytes of `memory` by their use."""
        return self._lowering.memory_use(strategy)

    def penalty(self, strategy: Strategy) -> float:
        """Return the seconds that exceeding memory adds to a strategy's cost."""
        return memory_penalty(self.memory(strategy), self.problem.cluster.usable_memory, self._memory_policy)

    def draws(self, state: State) -> bool:
        """Say whether the time of a state is one draw of many: some message has several paths to take."""
        if (evaluator := self._of(state)) is not self:
            return evaluator.draws(state)
        if self._folds.iteration(state) is not None or not self.may_draw(state):
            return False
        return self._simulate.draws(self._lower(state.strategy), state.fabric, self.problem.cluster)

    def n_tasks(self, state: State) -> int:
        """Return how many tasks an iteration of a state has."""
        evaluator = self._of(state)
        folded = evaluator._folds.iteration(state)  # whose tasks are not listed one by one
        return evaluator._lower(state.strategy).n_tasks if folded is None else folded.n_tasks

    def makespans(self, state: State, seeds: Sequence[int]) -> F64:
        """(n,) seconds of a state under the draws with these seeds, for a state that draws."""
        evaluator = self._of(state)
        tasks = evaluator._lower(state.strategy)
        return evaluator._simulate.makespans(tasks, state.fabric, self.problem.cluster, seeds)

    def plan(
        self, state: State, provenance: Mapping[str, Any], seed: int | None = None, *, record: bool = False
    ) -> Plan:
        """Lower and simulate a state once more, in full, as a plan.

        Args:
            state: a strategy and its fabric.
            provenance: of the plan.
            seed: names a draw of its paths.
            record: the plan holds a recording, too, if the simulator can make one, and its tasks can be listed.
        """
        if (evaluator := self._of(state)) is not self:
            return evaluator.plan(state, provenance, seed, record=record)
        cluster, recording = self.problem.cluster, None
        folded = self._folds.iteration(state)
        if record and folded is not None and folded.n_tasks <= MOST_WRITTEN:
            folded = None
        if folded is not None:
            taskgraph, timeline = self._deferred(state, folded)
        else:
            taskgraph = self._lower(state.strategy)
            key, recorded = self._timeline
            if recorded is not None and seed is None and not record and key == state_key(state):
                timeline = recorded
            else:
                simulate = self._simulate if seed is None else self._simulate.with_seed(seed)
                timeline, recording = simulated(simulate, taskgraph, state.fabric, cluster, record=record)
        if recording is not None:
            levels = self._lowering.memory_levels(state.strategy, taskgraph, timeline)
            recording = attrs.evolve(recording, memory=levels)
        return Plan(
            cluster=cluster,
            fabric=state.fabric,
            taskgraph=taskgraph,
            graph=self.problem.graph,
            strategy=state.strategy,
            timeline=timeline,
            recording=recording,
            memory=self.memory_use(state.strategy),
            provenance=provenance,
        )

    def unsimulated_plan(self, state: State, provenance: Mapping[str, Any], *, with_memory: bool) -> Plan:
        """Return a state as a plan without a timeline, perhaps without memory; its tasks are made when asked for."""
        strategy, cluster = state.strategy, self.problem.cluster
        taskgraph = DeferredTaskGraph.of(
            lambda: self._of(state)._lower(strategy),
            n_tasks=self._lowering.n_tasks(strategy),
            n_devices=cluster.n_devices,
            op_names=tuple(op.name for op in self.problem.graph.operators),
        )
        return Plan(
            cluster=cluster,
            fabric=state.fabric,
            taskgraph=taskgraph,
            graph=self.problem.graph,
            strategy=strategy,
            memory=self.memory_use(strategy) if with_memory else None,
            provenance=provenance,
        )

    def _deferred(self, state: State, folded: FoldedIteration) -> tuple[TaskGraph, Timeline]:
        """Return the task graph and timeline of a state that is folded; tasks are made if asked for."""

        def whole() -> TaskGraph:
            return self._lower(state.strategy)

        return folded_taskgraph(folded, whole), self._folds.timeline(state, whole)
