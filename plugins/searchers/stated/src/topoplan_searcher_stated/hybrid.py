"""Searches hybrid plans: combinations of degrees, micro-batch, schedule, layers, ZeRO, recomputation and layout.

    shapes ─► estimates: the least that saves enough memory ─► variants of the best shapes ─► neighbours of the best
    └► the best so far, early                                                 the best of all, simulated one by one ◄┘

`estimates` takes milliseconds for a plan and comes close to the simulator, so that estimates lead the search, and
few plans are simulated: those that may be faster than the best one, of whichever searcher.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from topoplan import Candidate, Problem, Search, State, Strategy, TopoplanError, Trial, stop_if_wanted
from topoplan_searcher_stated import Hybrid
from topoplan_searcher_stated.balance import balanced_layers
from topoplan_searcher_stated.construct import Rules, order_of, strategy_of
from topoplan_searcher_stated.degrees import degrees_of, short_words_of, words_of
from topoplan_searcher_stated.estimates import Estimates
from topoplan_searcher_stated.grid import LAYOUTS, SCHEDULES, ladders, moved_borders, neighbours, shapes
from topoplan_searcher_stated.launchable import Launchable
from topoplan_searcher_stated.layers import layer_counts, text_of
from topoplan_searcher_stated.settings import Settings
from topoplan_searcher_stated.small_model import layer_numbers

__all__ = ["HybridSearch"]

#: Shapes after which the best plan so far is simulated first; then after twice as many each time.
_EARLY = 8
#: Shapes whose variants are estimated: the fastest, and the fastest were there no bubbles.
_BEAM = 6
#: Plans from which neighbours are estimated, and steps from each.
_CLIMBS, _STEPS = 2, 6
#: A plan is simulated if its estimate is no more than this times the best simulated time.
_NEAR = 1.02
#: Improvement for which a plan is simulated before all are estimated.
_WORTH = 0.98
#: Smallest improvement for which a climb continues.
_BETTER = 0.999


class HybridSearch(Search):
    """Estimates plans in small turns, and proposes the most promising ones one by one."""

    def __init__(self, options: Hybrid, problem: Problem) -> None:
        self._options, self._problem = options, problem
        self._rules, self._n_layers = Rules(problem.graph), layer_numbers(problem.graph).n_layers
        if self._n_layers < 2 and not options.without_layers:
            raise TopoplanError(
                f"searcher hybrid: model {problem.graph.name!r} has no numbered layers to divide among stages "
                "(what spmd and pipeline find needs none)"
            )
        self._launchable = Launchable(problem, self._rules)
        self._estimates: Estimates | None = None
        self._steps: Iterator[Settings | None] | None = None
        self._usable = float(problem.cluster.usable_memory.min())
        #: Seconds by plan; infinite where it does not fit or cannot be built.
        self._seconds: dict[Settings, float] = {}
        self._memory: dict[Settings, float] = {}
        self._simulated: dict[Settings, float] = {}
        self._plan_of: dict[bytes, Settings] = {}
        self._asked: Settings | None = None
        self._passed_over = 0
        self._best_cost = math.inf

    @property
    def plans(self) -> bool:
        """Whether plans are still being estimated."""
        return self._steps is not None

    def adopt(self, trial: Trial) -> None:
        """Plan for the fabric of the first ``trial``."""
        super().adopt(trial)
        if self._estimates is None:
            self._estimates = Estimates(self._problem, trial.state.fabric, self._rules)
            self._steps = self._all_steps()

    def ask(self) -> Sequence[Candidate]:
        """Estimate some plans; propose one where it is time to."""
        if self.state is None or self._steps is None:
            return []
        settings = next(self._steps, self)
        if settings is self:
            self._steps = None
        if not isinstance(settings, Settings):
            return []
        try:
            strategy, _ = strategy_of(settings, self._problem.graph, self._problem.cluster.n_devices, self._rules)
        except TopoplanError:  # heads, positions or channels do not divide
            self._simulated[settings] = math.inf
            return []
        self._plan_of[strategy.key] = settings
        self._asked = settings
        return [Candidate(base=State(strategy, self.state.fabric))]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take the price of the last proposal."""
        for trial in trials:
            assert self._asked is not None
            self._simulated[self._asked] = trial.cost if trial.fits else math.inf
            if trial.fits:
                self._best_cost = min(self._best_cost, trial.cost)

    def know_best(self, cost: float) -> None:
        """Take note of the seconds of the best plan so far, of whichever searcher."""
        self._best_cost = min(self._best_cost, cost)

    def report(self, strategy: Strategy | None) -> Mapping[str, Any] | None:
        """Return the plan in the words of ``--plan``, its estimate, and how many were estimated and simulated."""
        settings = self._plan_of.get(strategy.key) if strategy is not None else self._best_simulated()
        if settings is None:
            return None
        degrees = degrees_of(settings, self._problem.graph, self._problem.cluster.n_devices)
        return {
            "plan": words_of(settings, degrees),
            "short": short_words_of(settings, degrees),
            "micro_batches": degrees.micro_batches,
            "planned_iteration_time_s": self._seconds.get(settings),
            "plans_estimated": len(self._memory),
            "plans_simulated": sum(cost < math.inf for cost in self._simulated.values()),
            "plans_estimated_slower": self._passed_over,
        }

    def _best_simulated(self) -> Settings | None:
        costs = {plan: cost for plan, cost in self._simulated.items() if cost < math.inf}
        return min(costs, key=lambda plan: costs[plan], default=None)

    # ── What is estimated, and when what is simulated ───────────────────────────────────────────────────────

    def _all_steps(self) -> Iterator[Settings | None]:
        """Yield None after some estimates, and plans to simulate."""
        early = _EARLY
        fastest: dict[Settings, Settings] = {}
        for number, degrees in enumerate(shapes(self._problem, self._n_layers)):
            shape = attrs.evolve(degrees, grads=self._launchable.grads)
            layers = self._layers(shape) if self._n_layers % shape.pp else ("",)
            plan = self._fastest(self._climbed_ladders(attrs.evolve(shape, layers=layers[0]))) if layers else None
            if plan is not None:
                fastest[shape] = plan
            yield None
            if number + 1 >= early and fastest:
                early = 2 * (number + 1)
                yield from self._proposed(sorted(fastest.values(), key=self._estimated)[:1])
        yield from self._proposed(self._ranking()[:1])
        beam = sorted(fastest.values(), key=self._estimated)[:_BEAM]
        beam += sorted(fastest.values(), key=self._without_bubbles)[:_BEAM]
        for plan in dict.fromkeys(beam):
            yield from self._variants(plan)
            best = self._ranking()[:1]
            if best and self._estimated(best[0]) < _WORTH * self._best_cost:
                yield from self._proposed(best)
        yield from self._climbs()
        yield from self._proposed(self._ranking())
        if not any(cost < math.inf for cost in self._simulated.values()):
            yield from sorted(self._memory, key=lambda plan: self._memory[plan])[:_CLIMBS]
        yield from self._climbs_by_simulation()

    def _proposed(self, plans: Sequence[Settings]) -> Iterator[Settings]:
        """Yield those of some plans, the fastest first, that may be faster than the best."""
        for plan in plans:
            if plan in self._simulated:
                continue
            if self._seconds[plan] > _NEAR * self._best_cost:
                self._passed_over += 1
            elif len(self._simulated) < self._options.shortlist:
                yield plan

    def _climbs(self) -> Iterator[None]:
        """Estimate neighbours of the best plans, and continue from better ones."""
        for start in self._ranking()[:_CLIMBS]:
            current = start
            for _ in range(_STEPS):
                best = current
                for plan in self._neighbours(current):
                    if self._estimated(plan) < self._estimated(best):
                        best = plan
                    yield None
                if self._estimated(best) >= _BETTER * self._estimated(current):
                    break
                current = best

    def _climbs_by_simulation(self) -> Iterator[Settings | None]:
        """Simulate neighbours of the best simulated plan that are estimated to be near it."""
        plans_done: set[Settings] = set()
        while (best := self._best_simulated()) is not None and best not in plans_done:
            plans_done.add(best)
            close = []
            for plan in self._neighbours(best):
                if self._estimated(plan) <= _NEAR * self._best_cost:
                    close.append(plan)
                yield None
            yield from self._proposed(sorted(close, key=self._estimated))

    def _ranking(self) -> list[Settings]:
        """Return the plans that fit and have the best estimates; of equal ones that which was estimated first."""
        fits = (plan for plan in self._seconds if self._seconds[plan] < math.inf)
        return heapq.nsmallest(4 * self._options.shortlist, fits, key=self._estimated)

    def _climbed_ladders(self, plan: Settings) -> Iterator[Settings]:
        """Yield the first plan of each ladder that fits."""
        devices = self._problem.cluster.n_devices
        for ladder in ladders(plan, devices // (plan.tp * plan.cp * plan.ep * plan.pp)):
            for zero, recompute in ladder:
                saving = attrs.evolve(plan, zero=zero, recompute=recompute)
                if self._fits(saving):
                    yield saving
                    break

    def _fastest(self, plans: Iterator[Settings]) -> Settings | None:
        best = min(plans, key=self._estimated, default=None)
        return best if best is not None and self._estimated(best) < math.inf else None

    def _variants(self, plan: Settings) -> Iterator[None]:
        """Go through schedules and layers of chunks; then through layouts of the fastest of these."""
        best = plan
        for schedule in SCHEDULES if plan.pp > 1 else ("1f1b",):
            for layers in self._layers(attrs.evolve(plan, schedule=schedule, layers="")):
                variant = self._fastest(self._climbed_ladders(attrs.evolve(plan, schedule=schedule, layers=layers)))
                if variant is not None and self._estimated(variant) < self._estimated(best):
                    best = variant
                yield
        for layout in self._layouts(best):
            self._estimated(attrs.evolve(best, layout=layout))
            yield

    def _layouts(self, plan: Settings) -> list[str]:
        """Return layouts that differ in where the devices of a plan lie."""
        cluster = self._problem.cluster
        degrees = {axis: getattr(plan, axis) for axis in ("tp", "cp", "ep", "pp")}
        degrees["dp"] = cluster.n_devices // (plan.tp * plan.cp * plan.pp * plan.ep)
        different: dict[tuple[str, ...], str] = {}
        for layout in LAYOUTS if cluster.n_hosts > 1 else LAYOUTS[:1]:
            different.setdefault(tuple(axis for axis in layout.split("-") if degrees[axis] > 1), layout)
        return list(different.values())

    def _neighbours(self, plan: Settings) -> Iterator[Settings]:
        stop_if_wanted()
        moved = moved_borders(self._counts(plan)) if plan.pp > 1 else ()
        layers = [*self._layers(attrs.evolve(plan, layers="")), *map(text_of, moved)]
        for each in neighbours(plan, layers, self._layouts(plan)):
            if each.pp > 1 and not each.layers:
                yield from (attrs.evolve(each, layers=option) for option in self._layers(each))
            else:
                yield each

    def _counts(self, plan: Settings) -> Sequence[int]:
        try:
            return layer_counts(self._problem.graph, order_of(plan.schedule, plan.pp, 2 * plan.pp), plan.layers)
        except TopoplanError:
            return ()

    @functools.cache  # noqa: B019  of one search, as long as it lives
    def _layers(self, plan: Settings) -> tuple[str, ...]:
        """Return layers of chunks: equally many if that goes, and such that the slowest chunk is fastest."""
        assert self._estimates is not None
        try:
            chunks = order_of(plan.schedule, plan.pp, 2 * plan.pp).n_chunks
            *seconds, tail = self._estimates.layer_seconds(plan)
        except TopoplanError:
            return ()
        if chunks > self._n_layers:
            return ()
        options = [""] if self._n_layers % chunks == 0 else []
        balanced = balanced_layers(seconds, tail, chunks)
        if chunks > 1 and balanced != (self._n_layers // chunks,) * chunks:
            options.append(text_of(balanced))
        return tuple(options)

    # ── Estimates ───────────────────────────────────────────────────────────────────────────────────────────

    def _fits(self, plan: Settings) -> bool:
        """Whether a plan fits into memory; one that cannot be built, or that no trainer runs, does not."""
        assert self._estimates is not None
        if plan not in self._memory:
            stop_if_wanted()
            try:
                self._memory[plan] = self._estimates.memory(plan)
            except TopoplanError:  # degrees, layers, heads or schedule do not go together
                self._memory[plan] = math.inf
            if self._memory[plan] <= self._usable and not self._launchable.runs(plan):
                self._memory[plan] = math.inf
        return self._memory[plan] <= self._usable

    def _estimated(self, plan: Settings) -> float:
        """Return the estimated seconds of a plan that fits; infinite for others."""
        assert self._estimates is not None
        if plan not in self._seconds:
            self._seconds[plan] = self._estimates.seconds(plan) if self._fits(plan) else math.inf
        return self._seconds[plan]

    def _without_bubbles(self, plan: Settings) -> float:
        assert self._estimates is not None
        *layers, tail = self._estimates.layer_seconds(plan)
        degrees = degrees_of(plan, self._problem.graph, self._problem.cluster.n_devices)
        return (sum(layers) + tail) * degrees.micro_batches / plan.pp
