"""Searches hybrid plans: combinations of degrees, micro-batch, schedule, layers, ZeRO, recomputation and layout.

    families of shapes ─► bounds ─► shapes that may be faster: all their plans, as columns ─► neighbours of the best
                      └► the best so far, early                     the best of all, simulated one by one ◄┘
                                                                    ├► one stage of placements (`placed_bodies`)
                                                                    └► stages of unequal size (`divided_search`)

Thousands of plans are estimated in a second (`candidates`), and estimates come close to the simulator, so that they
lead the search, and few plans are simulated: those that may be faster than the best one, of whichever searcher.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from topoplan import Candidate, Problem, Search, StagedStrategy, State, Strategy, TopoplanError, Trial, stop_if_wanted
from topoplan_engine.blocks import layer_numbers
from topoplan_searcher_stated import FEW_DEVICES, Hybrid
from topoplan_searcher_stated.candidates import Candidates, families
from topoplan_searcher_stated.construct import order_of, strategy_of
from topoplan_searcher_stated.degrees import degrees_of, short_words_of, words_of
from topoplan_searcher_stated.divided import DividedPlan, DividedPlans
from topoplan_searcher_stated.divided_search import divided_plans, divided_steps
from topoplan_searcher_stated.estimates import Estimates, estimates_of
from topoplan_searcher_stated.grid import degrees_of_model, layouts, moved_borders, neighbours, shapes
from topoplan_searcher_stated.launchable import launchable_for
from topoplan_searcher_stated.layers import layer_counts, text_of
from topoplan_searcher_stated.placed_bodies import PlacedBodies, PlacedBody, placed_steps
from topoplan_searcher_stated.runners_up import KnownPlans, best_plans, front
from topoplan_searcher_stated.settings import Settings, without_idle_zero

__all__ = ["HybridSearch"]

#: A plan that is proposed, of one kind or another.
_AnyPlan = Settings | DividedPlan | PlacedBody

#: The best plan so far is simulated after the first family of shapes, and then after so many times as many.
_EARLY = 4
#: Shapes of a family whose plans are estimated at once, the fastest first.
_BATCH = 16
#: Plans from which neighbours are estimated, and steps from each.
_CLIMBS, _STEPS = 2, 6
#: A plan is simulated if its estimate is no more than this times the best simulated time.
_NEAR = 1.02
#: All plans of a shape are estimated if its bound is no more than 1 plus this, over devices, times the best estimate;
#: at least `_NEAR`.  On few devices there are few shapes, and all of them are looked at.
_SLACK = 10.0
#: Improvement for which a plan is simulated before all are estimated: at these times, on few devices after any family,
#: which takes longer to be estimated than a plan to be simulated; and on many devices after any family.
_WORTH, _MUCH = 0.98, 0.8
#: Smallest improvement for which a climb continues.
_BETTER = 0.999
#: Plans that are simulated one after the other in the order of their estimates, though none is better, times devices:
#: on many devices, where a simulation takes seconds, few.
_PATIENCE = 4096
#: A patience below which plans are simulated only where their estimate is better than that of the best one.
_FEW = 8


class HybridSearch(Search):
    """Estimates plans in small turns, and proposes the most promising ones one by one."""

    def __init__(self, options: Hybrid, problem: Problem) -> None:
        self._options, self._problem = options, problem
        layers = layer_numbers(problem.graph)
        self._n_layers = layers.n_layers
        #: Degrees that are searched: in a portfolio no slices of blocks, of which another planner makes better ones.
        in_portfolio = not (layers.named or options.without_layers)
        self._degrees = tuple(name for name in degrees_of_model(problem) if not (in_portfolio and name == "tp"))
        if self._n_layers < 2 and not options.without_layers:
            raise TopoplanError(
                f"searcher hybrid: model {problem.graph.name!r} has no layers or blocks to divide among stages "
                "(what spmd and pipeline find needs none)"
            )
        self._rules, self._launchable = launchable_for(problem)
        self._candidates: Candidates | None = None
        self._estimates: Estimates | None = None
        self._steps: Iterator[_AnyPlan | None] | None = None
        self._simulated: dict[Settings, float] = {}
        self._divided: DividedPlans | None = None
        self._simulated_divided: dict[DividedPlan, float] = {}
        self._bodies: PlacedBodies | None = None
        self._simulated_bodies: dict[PlacedBody, float] = {}
        self._plan_of: dict[bytes, _AnyPlan] = {}
        self._asked: _AnyPlan | None = None
        #: How many plans had been simulated, and what was said of the best of them.
        self._listed: tuple[int, Mapping[str, Any]] = -1, {}
        self._passed_over = self._in_vain = 0
        self._patience = max(1, _PATIENCE // problem.cluster.n_devices)
        self._best_cost = math.inf

    @property
    def plans(self) -> bool:
        """Whether plans are still being estimated."""
        return self._steps is not None

    def adopt(self, trial: Trial) -> None:
        """Plan for the fabric of the first ``trial``."""
        super().adopt(trial)
        if self._candidates is None:
            problem = self._problem
            all_shapes = [
                attrs.evolve(shape, grads=self._launchable.grads, sp=self._launchable.sp if shape.tp > 1 else shape.sp)
                for shape in shapes(problem, self._n_layers)
                if (shape.tp == 1 or "tp" in self._degrees) and self._launchable.may_run(shape)
            ]
            sizes = sorted({shape.micro_batch for shape in all_shapes})
            runs = None if problem.restriction is None else self._launchable.runs
            self._estimates = estimates_of(problem, trial.state.fabric, self._rules, sizes)
            self._candidates = Candidates(
                self._estimates,
                float(problem.cluster.usable_memory.min()),
                runs,
                problem.cluster.n_devices,
            )
            if self._options.divided:
                self._divided = divided_plans(problem, trial.state.fabric, self._launchable.grads)
            if self._options.placed and problem.cluster.n_devices <= FEW_DEVICES and problem.restriction is None:
                self._bodies = PlacedBodies(problem)
            self._steps = self._all_steps(self._candidates, all_shapes)

    def ask(self) -> Sequence[Candidate]:
        """Estimate some plans; propose one where it is time to."""
        if self.state is None or self._steps is None:
            return []
        plan = next(self._steps, self)
        if plan is self:
            self._steps = None
        if plan is None or isinstance(plan, HybridSearch):
            return []
        try:
            strategy = self._strategy(plan)
        except TopoplanError:  # heads, positions or channels do not divide
            self._take(plan, math.inf)
            return []
        self._plan_of[strategy.key] = plan
        self._asked = plan
        return [Candidate(base=State(strategy, self.state.fabric), cutoff_seconds=self._cutoff(plan))]

    def _cutoff(self, plan: _AnyPlan) -> float:
        """Return the seconds from which on a plan does not matter: of a body, those of the best one."""
        return min(self._simulated_bodies.values(), default=math.inf) if isinstance(plan, PlacedBody) else math.inf

    def _strategy(self, plan: _AnyPlan) -> StagedStrategy:
        if isinstance(plan, PlacedBody):
            assert self._bodies is not None
            return self._bodies.strategy(plan)
        if isinstance(plan, DividedPlan):
            assert self._divided is not None
            return self._divided.strategy(plan)
        return strategy_of(plan, self._problem.graph, self._problem.cluster.n_devices, self._rules)[0]

    def _take(self, plan: _AnyPlan, cost: float) -> None:
        """Take note of the simulated seconds of a plan."""
        if isinstance(plan, PlacedBody):
            self._simulated_bodies[plan] = cost
        elif isinstance(plan, DividedPlan):
            self._simulated_divided[plan] = cost
        else:
            self._simulated[plan] = cost

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take the price of the last proposal."""
        for trial in trials:
            assert self._asked is not None
            self._take(self._asked, trial.cost if trial.fits else math.inf)
            if trial.fits:
                self._best_cost = min(self._best_cost, trial.cost)

    def know_best(self, cost: float) -> None:
        """Take note of the seconds of the best plan so far, of whichever searcher."""
        self._best_cost = min(self._best_cost, cost)

    def report(self, strategy: Strategy | None) -> Mapping[str, Any] | None:
        """Return the plan in the words of ``--plan``, its estimate, and how many were estimated and simulated."""
        settings = self._plan_of.get(strategy.key) if strategy is not None else self._best_of_all()
        if settings is None:
            return None
        if not isinstance(settings, Settings):
            return self._report_of(settings)
        degrees = degrees_of(settings, self._problem.graph, self._problem.cluster.n_devices)
        return {
            "plan": words_of(settings, degrees),
            "short": self._words(settings),
            "micro_batches": degrees.micro_batches,
            "planned_iteration_time_s": self._estimated([settings])[0],
            "plans_estimated": 0 if self._candidates is None else self._candidates.estimated,
            "plans_simulated": sum(cost < math.inf for cost in self._simulated.values()),
            "plans_estimated_slower": self._passed_over,
            **self._runners_up(),
        }

    def _best_of_all(self) -> _AnyPlan | None:
        costs: dict[_AnyPlan, float] = dict(self._simulated.items())
        costs.update(self._simulated_divided.items())
        costs.update(self._simulated_bodies.items())
        best = min(costs, key=costs.__getitem__, default=None)
        return None if best is None or costs[best] == math.inf else best

    def _report_of(self, plan: DividedPlan | PlacedBody) -> Mapping[str, Any]:
        """Return the report of a plan that ``--plan`` does not say."""
        assert self._candidates is not None
        if isinstance(plan, PlacedBody):
            assert self._bodies is not None
            of_kind = {"stages": "one, whose operators are placed one by one", "micro_batches": 1}
            seconds = self._bodies.seconds(plan)
        else:
            assert self._divided is not None
            of_kind = {"stages": self._divided.words(plan), "micro_batches": plan.micro_batches}
            (seconds,) = self._divided.seconds([plan])
        costs = [*self._simulated.values(), *self._simulated_divided.values(), *self._simulated_bodies.values()]
        return {
            **of_kind,
            "planned_iteration_time_s": seconds,
            "plans_estimated": self._candidates.estimated + (self._divided.estimated if self._divided else 0),
            "plans_simulated": sum(cost < math.inf for cost in costs),
            "plans_estimated_slower": self._passed_over,
            **self._runners_up(),
        }

    def _runners_up(self) -> Mapping[str, Any]:
        """Return the best plans, and the front of time and memory, for all reports of one state of the search."""
        key = len(self._simulated)
        if self._listed[0] != key and self._estimates is not None and self._candidates is not None:
            plans = KnownPlans(
                simulated={plan: cost for plan, cost in self._simulated.items() if cost < math.inf},
                estimated=self._candidates.ranking(),
                usable=float(self._problem.cluster.usable_memory.min()),
                estimate=self._estimates.of,
                parts=self._estimates.parts,
                words=self._words,
            )
            self._listed = key, {"best_plans": best_plans(plans), "front": front(plans)}
        return self._listed[1]

    def _words(self, plan: Settings) -> str:
        return short_words_of(plan, degrees_of(plan, self._problem.graph, self._problem.cluster.n_devices))

    def _best_simulated(self) -> Settings | None:
        costs = {plan: cost for plan, cost in self._simulated.items() if cost < math.inf}
        return min(costs, key=lambda plan: costs[plan], default=None)

    # ── What is estimated, and when what is simulated ───────────────────────────────────────────────────────

    def _all_steps(self, candidates: Candidates, all_shapes: Sequence[Settings]) -> Iterator[_AnyPlan | None]:
        """Yield None after some estimates, and plans to simulate."""
        if self._bodies is not None:
            yield from self._bodies.planned()
        cluster, early = self._problem.cluster, 1
        slack = max(_NEAR, 1.0 + _SLACK / cluster.n_devices)
        for number, family in enumerate(families(all_shapes)):
            placed = [attrs.evolve(shape, layout=layout) for shape in family for layout in layouts(shape, cluster)]
            bounds = candidates.bounds(placed)
            yield None
            order = bounds.argsort(kind="stable")
            for first in range(0, len(order), _BATCH):
                batch = order[first : first + _BATCH]
                batch = batch[bounds[batch] < min(_NEAR * self._best_cost, slack * candidates.seconds)]
                if not len(batch):
                    break
                stop_if_wanted()
                candidates.add_shapes([placed[shape] for shape in batch.tolist()])
                yield None
            worth = _WORTH if self._patience >= _FEW else _MUCH
            if number + 1 >= early and candidates.best:
                early, worth = _EARLY * (number + 1), _WORTH
            if candidates.seconds < worth * self._best_cost:
                yield from self._proposed(candidates.ranking()[:1])
        yield from self._climbs(candidates)
        yield from self._proposed(candidates.ranking())
        if not self._known_to_fit and candidates.smallest is not None:
            yield candidates.smallest[1]
        if self._bodies is not None:
            yield from placed_steps(self._bodies, lambda: self._best_cost, self._simulated_bodies)
        if self._divided is not None:
            most = 2 * self._options.shortlist
            yield from divided_steps(self._divided, lambda: self._best_cost, self._simulated_divided, most)
        yield from self._climbs_by_simulation()

    @property
    def _known_to_fit(self) -> bool:
        return any(cost < math.inf for cost in self._simulated.values())

    def _proposed(self, plans: Sequence[Settings]) -> Iterator[Settings]:
        """Yield those of some plans, the fastest first, that may be faster than the best, until several are not."""
        for plan, seconds in zip(plans, self._estimated(plans), strict=True):
            if plan in self._simulated:
                continue
            if seconds > self._near():
                self._passed_over += 1
            elif len(self._simulated) < self._options.shortlist and self._in_vain < self._patience:
                best = self._best_cost
                yield plan
                self._in_vain = 0 if self._best_cost < _BETTER * best else self._in_vain + 1

    def _near(self) -> float:
        """Return the estimate up to which a plan may be faster than the best one.

        On many devices it is one that says so if it is off as much as that of the best simulated plan.
        """
        best = self._best_simulated()
        if best is None or self._patience >= _FEW:
            return _NEAR * self._best_cost
        (estimated,) = self._estimated([best])
        return _BETTER * self._best_cost * min(_NEAR, estimated / self._simulated[best])

    def _climbs(self, candidates: Candidates) -> Iterator[None]:
        """Estimate neighbours of the best plans, and continue from better ones."""
        for start in candidates.ranking()[:_CLIMBS]:
            current = start
            for _ in range(_STEPS):
                plans = list(self._neighbours(current))
                seconds = self._estimated([current, *plans])
                yield None
                best = min(range(len(seconds)), key=seconds.__getitem__)
                if seconds[best] >= _BETTER * seconds[0]:
                    break
                current = plans[best - 1]

    def _climbs_by_simulation(self) -> Iterator[Settings | None]:
        """Simulate neighbours of the best simulated plan that are estimated to be near it."""
        plans_done: set[Settings] = set()
        while (best := self._best_simulated()) is not None and best not in plans_done:
            plans_done.add(best)
            plans = list(self._neighbours(best))
            seconds = dict(zip(plans, self._estimated(plans), strict=True))
            yield None
            close = [plan for plan in seconds if seconds[plan] <= _NEAR * self._best_cost]
            yield from self._proposed(sorted(close, key=lambda plan: seconds[plan]))

    def _estimated(self, plans: Sequence[Settings]) -> list[float]:
        """Return the estimated seconds of plans; infinite for those that do not fit, run or go together."""
        assert self._candidates is not None
        stop_if_wanted()
        return self._candidates.add(plans)

    def _neighbours(self, plan: Settings) -> Iterator[Settings]:
        stop_if_wanted()
        moved = moved_borders(self._counts(plan)) if plan.pp > 1 else ()
        layers = [*self._layers(attrs.evolve(plan, layers="")), *map(text_of, moved)]
        for each in neighbours(plan, layers, layouts(plan, self._problem.cluster), self._degrees):
            each = without_idle_zero(each, self._problem.cluster.n_devices)
            if each.pp > 1 and not each.layers:
                yield from (attrs.evolve(each, layers=option) for option in self._layers(each))
            else:
                yield each

    def _counts(self, plan: Settings) -> Sequence[int]:
        try:
            return layer_counts(self._problem.graph, order_of(plan.schedule, plan.pp, 2 * plan.pp), plan.layers)
        except TopoplanError:
            return ()

    def _layers(self, plan: Settings) -> tuple[str, ...]:
        """Return layers of chunks: equally many if that goes, and such that the slowest chunk is fastest."""
        assert self._candidates is not None
        return self._candidates.layers(plan)
