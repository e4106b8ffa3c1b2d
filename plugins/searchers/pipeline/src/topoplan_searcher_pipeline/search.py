"""The search: it plans in small turns, proposes what it has, and continues with neighbours of the best plans.

Baselines are proposed as soon as they are planned, the dynamic program's plans at its end, neighbours when all these
have been simulated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from topoplan import Candidate, OperatorGraph, Problem, Search, State, Strategy, TopoplanError, Trial
from topoplan.arrays import I64
from topoplan.errors import NoPlanFitsError
from topoplan_engine.fitting import at_least, device_bytes, no_plan_fits, size_text
from topoplan_engine.lowering import Lowering
from topoplan_engine.search.common_restriction import as_run
from topoplan_pipeline_planning.layer_names import layer_states
from topoplan_pipeline_planning.layers import Layers, OperatorColumns, operator_columns, priced_columns
from topoplan_pipeline_planning.states import States
from topoplan_searcher_pipeline import DapplePipeline
from topoplan_searcher_pipeline.columns import Columns, columns_of, cuts_of_branches, states_of
from topoplan_searcher_pipeline.machine import Machine
from topoplan_searcher_pipeline.neighbours import neighbours
from topoplan_searcher_pipeline.planning import Planner, are_slow, baselines
from topoplan_searcher_pipeline.plans import Pipeline, PipelinePlan, devices_of, members_of, memory_of, strategy_of
from topoplan_searcher_pipeline.restricted import limited, plans_of, runnable

__all__ = ["PipelineSearch", "plan_pipelines", "planning_steps"]

#: Local search: number of plans whose neighbours are tried (the best, and the best of each number of stages); how much
#: slower than the best they may be; simulated neighbours of each; and how much slower their stage simulation may be.
_CLIMBING, _WORSE, _TOGETHER, _SLOWER = 5, 1.25, 8, 1.1
#: Neighbours that would take so many times as long as the best plan are not simulated: their stage simulation, times
#: task simulation over stage simulation of the plan that they are neighbours of.  Where none of them is better, stage
#: simulation alone decides, if it says less: what slows a plan down may be what its neighbours mend.
_NEAR = 1.02
#: Plans of the dynamic program whose stage simulation is so many times as slow as the best known plan are not
#: simulated, but for as many as local search begins with.
_KNOWN = 1.05
#: Baselines whose stage simulation is so many times as slow as another one, or as the best known plan, are not
#: simulated, and neither is any other plan.
_HOPELESS = 1.5
#: A plan within this factor of the lower bound (all devices are always busy) is not improved further.
_GOOD_ENOUGH = 1.001


@attrs.frozen(kw_only=True, eq=False)
class Shortlist:
    """The result of planning.

    Attributes:
        planner: the planner of the model and the machine.
        named: the plans of each baseline by its name; the fastest plan of each pipeline.
        plans: those of the dynamic program to simulate task by task.
        complete: the cuts are all antichain states of the model.
        lower_bound: lower bound on the seconds of all plans.
        stopped: a baseline nearly reaches the lower bound, so the dynamic program was not run.
        finished: planning is.
    """

    planner: Planner
    named: Mapping[str, Sequence[PipelinePlan]]
    plans: Sequence[PipelinePlan]
    complete: bool
    lower_bound: float
    stopped: bool = False
    finished: bool = True


def _no_plan() -> float:
    return math.inf


def plan_pipelines(options: DapplePipeline, problem: Problem, *, stop: bool = True) -> Shortlist:
    """Plan without task simulation; with ``stop``, end at a baseline that leaves no device idle.

    Raises:
        TopoplanError: no micro-batch of that size, or no price.
        NoPlanFitsError: nothing fits into memory.
    """
    *_, shortlist = planning_steps(options, problem, stop=stop)
    return shortlist


def planning_steps(
    options: DapplePipeline, problem: Problem, *, stop: bool = True, best_known: Callable[[], float] = _no_plan
) -> Iterator[Shortlist]:
    """Plan as `plan_pipelines` does, in small steps; yield after each what there is, and at last all of it.

    The dynamic program leaves out pipelines that are slower than a plan of other searchers, of which ``best_known``
    says the seconds.  Baselines that take longer than the dynamic program are planned only where no plan is known then.
    """
    states, complete, places, planner = _planner_of(options, problem)
    columns, machine, cluster = planner.columns, planner.machine, problem.cluster
    lower_bound = columns.seconds * float(cluster.device_speed.min() / cluster.device_speed.sum())
    named: dict[str, list[PipelinePlan]] = {}
    so_far = Shortlist(
        planner=planner, named=named, plans=[], complete=complete, lower_bound=lower_bound, finished=False
    )
    yield so_far
    plan_cache, best = dict[Pipeline, PipelinePlan | None](), math.inf
    plans: Sequence[PipelinePlan] | None = None
    samples, fewest_stages = problem.graph.batch_size, planner.least_stages
    for name, make in baselines(lambda: Layers.of(states, _whole(problem, columns)), machine, samples, fewest_stages):
        if plans is None and name != "data_parallel" and are_slow(machine, len(states.closed)):
            plans = plans_of(planner, problem, min(best, best_known()), options.shortlist)
            if plans or min(best, best_known()) < math.inf:
                break
        for pipeline_of_layers in make():
            pipeline = _renumbered(pipeline_of_layers, places)
            if pipeline not in plan_cache:
                plan_cache[pipeline] = planner.fastest(pipeline, min(best, best_known()) * _HOPELESS)
            plan = plan_cache[pipeline]
            if plan is not None:
                named.setdefault(name, []).append(plan)
                best = min(best, plan.seconds)
            yield so_far
        if stop and best <= lower_bound * _GOOD_ENOUGH:
            yield attrs.evolve(so_far, stopped=True, finished=True)
            return
    if plans is None:
        plans = plans_of(planner, problem, min(best, best_known()), options.shortlist)
    if not plans and not named and best_known() == math.inf:
        raise _too_large(planner, list(plan_cache), problem)
    yield attrs.evolve(so_far, plans=plans, finished=True)


def _planner_of(options: DapplePipeline, problem: Problem) -> tuple[States, bool, I64, Planner]:
    """Return the states of a model, whether they are all, their numbers among the cuts of the planner, and that.

    Raises:
        TopoplanError: no micro-batch of that size, or no price.
    """
    graph, cluster, costs = problem.graph, problem.cluster, problem.costs
    options, kinds = limited(options, problem)
    if options.micro_batch > graph.batch_size:
        raise TopoplanError(
            f"searcher pipeline: micro-batch {options.micro_batch} is larger than the batch of "
            f"{graph.batch_size} samples"
        )
    states, complete = _states(options, graph)
    cuts, places = states, np.arange(len(states.closed), dtype=np.int64)
    if complete:
        cuts, places = cuts_of_branches(graph, states, options.max_states)
    columns, machine = columns_of(graph, cluster, costs, cuts), Machine.of(cluster)
    _check_operators(problem, columns)
    if columns.seconds <= 0:
        raise TopoplanError(f"searcher pipeline: model {graph.name!r} takes no time (its operators need prices)")
    planner = Planner(
        columns=columns,
        machine=machine,
        sizes=tuple(columns.replicas.tolist()),
        kinds=kinds,
        micro_batch=options.micro_batch,
        recompute=options.recompute,
    )
    if not planner.micro_batches:
        raise TopoplanError(
            f"searcher pipeline: micro-batch {options.micro_batch} is larger than the {columns.samples} samples that "
            "every operator can be cut into"
        )
    return states, complete, places, planner


def _renumbered(pipeline: Pipeline, places: I64) -> Pipeline:
    """Return a pipeline that is cut between layers, with the numbers of these cuts among all cuts."""
    return attrs.evolve(pipeline, cuts=tuple(int(places[cut - 1]) + 1 if cut else 0 for cut in pipeline.cuts))


def _whole(problem: Problem, columns: Columns) -> OperatorColumns:
    """Return the prices of whole operators on device 0, from ``columns`` where they have those."""
    if problem.cluster.device_speed.argmin():  # they are priced on the slowest device
        return operator_columns(problem.graph, problem.costs)
    return priced_columns(problem.graph, columns.operator_forward[0].tolist(), columns.operator_backward[0].tolist())


class PipelineSearch(Search):
    """Proposes the planner's shortlist, then neighbours of the best plans until none is better."""

    def __init__(self, options: DapplePipeline, problem: Problem) -> None:
        self._options = options
        self._problem = problem
        self._best_cost = math.inf
        self._steps: Iterator[Shortlist] | None = planning_steps(options, problem, best_known=self._known)
        self._shortlist: Shortlist | None = None
        self._asked: list[PipelinePlan] = []
        self._next: list[PipelinePlan] = []
        self._planned: set[PipelinePlan] = set()  # baselines and selected plans that were looked at
        self._proposed_shapes: set[tuple[object, ...]] = set()
        self._simulated: dict[PipelinePlan, float] = {}
        self._proposed: list[tuple[Strategy, PipelinePlan]] = []
        self._expanded: set[tuple[PipelinePlan, bool]] = set()
        self._best: PipelinePlan | None = None

    @property
    def plans(self) -> bool:
        """Whether it has not planned all baselines and the dynamic program's plans yet."""
        return self._steps is not None

    def _known(self) -> float:
        return self._best_cost

    def know_best(self, cost: float) -> None:
        """Take note of the seconds of the best plan so far, of whichever searcher."""
        self._best_cost = cost

    def ask(self) -> Sequence[Candidate]:
        """Take a step of planning, and propose what it brought; or nothing if no neighbour of the best is better.

        Raises:
            TopoplanError: there is no plan.
        """
        if self.state is None:
            return []
        if self._steps is not None and not self._next:
            self._plan_on(self._steps)
        self._asked, self._next = self._next, []
        if not self._asked or self._shortlist is None:
            return []
        planner, graph = self._shortlist.planner, self._problem.graph
        placed = [strategy_of(plan, graph, planner.columns, planner.machine) for plan in self._asked]
        strategies = [as_run(self._problem, strategy) for strategy in placed]
        self._proposed += zip(strategies, self._asked, strict=True)
        return [Candidate(base=State(strategy, self.state.fabric)) for strategy in strategies]

    def _plan_on(self, steps: Iterator[Shortlist]) -> None:
        """Take a step of planning."""
        self._steps = None  # unless this step ends well
        self._shortlist = next(steps)
        fresh = [plan for plan in self._first(self._shortlist, self._best_cost) if plan not in self._planned]
        self._planned.update(fresh)
        self._next += self._new(self._shortlist, fresh)
        if not self._shortlist.finished:
            self._steps = steps
        elif not self._next:
            self._climb(self._shortlist)

    def tell(self, trials: Sequence[Trial]) -> None:
        """Record the costs of plans; continue from the best plan if it is new."""
        for plan, trial in zip(self._asked, trials, strict=False):
            self._simulated[plan] = trial.cost
        self._next = self._asked[len(trials) :]  # there was no time for these
        if self._steps is None and self._shortlist is not None:
            self._climb(self._shortlist)

    def _climb(self, shortlist: Shortlist) -> None:
        """Propose neighbours of the best plans, unless the best is as good as any; then plan on if not all is done."""
        if not self._simulated:
            return
        ranking = sorted(self._simulated, key=lambda plan: self._simulated[plan])
        best = self._simulated[ranking[0]]
        if best <= shortlist.lower_bound * _GOOD_ENOUGH:
            self._best, self._next = ranking[0], []
            return
        if shortlist.stopped:
            self._steps = planning_steps(self._options, self._problem, stop=False, best_known=self._known)
        if best == float("inf"):
            return
        self._best = ranking[0]
        leaders: dict[int, PipelinePlan] = {}
        pipelines: dict[Pipeline, PipelinePlan] = {}
        for plan in ranking:
            if self._simulated[plan] <= best * _WORSE:
                leaders.setdefault(len(plan.pipeline.cuts), plan)
                pipelines.setdefault(plan.pipeline, plan)
        climbing = [*list(pipelines.values())[:_CLIMBING], *list(leaders.values())[:_CLIMBING]]
        self._expand(shortlist, climbing, best, corrected=True)
        if not self._next and best <= self._best_cost * _WORSE:
            self._expand(shortlist, climbing, best, corrected=False)

    def _expand(self, shortlist: Shortlist, climbing: Sequence[PipelinePlan], best: float, *, corrected: bool) -> None:
        """Propose the first neighbours of plans that were not expanded so yet; ``corrected`` as `_NEAR` says."""
        for plan in climbing:
            if (plan, corrected) not in self._expanded:
                self._expanded.add((plan, corrected))
                ratio = plan.seconds / self._simulated[plan]
                winning = best * _NEAR * (ratio if corrected else max(1.0, ratio))
                candidates = neighbours(plan, shortlist.planner, min(plan.seconds * _SLOWER, winning))
                self._next += self._new(shortlist, candidates, _TOGETHER)

    @staticmethod
    def _first(shortlist: Shortlist, known_seconds: float = math.inf) -> list[PipelinePlan]:
        """Return the baselines, and the selected plans that may be faster than a known one; of the first, more may."""
        selected = [
            plan
            for number, plan in enumerate(shortlist.plans)
            if plan.seconds <= known_seconds * (_HOPELESS if number < _CLIMBING else _KNOWN)
        ]
        return [*(plan for plans in shortlist.named.values() for plan in plans), *selected]

    def _new(self, shortlist: Shortlist, plans: Sequence[PipelinePlan], most: int | None = None) -> list[PipelinePlan]:
        """Return the first plans that were not proposed yet."""
        new: list[PipelinePlan] = []
        for plan in runnable(plans, self._problem, shortlist.planner):
            key = (shortlist.planner.shape(plan.pipeline), plan.kind, plan.micro_batches)
            if key not in self._proposed_shapes and (most is None or len(new) < most):
                self._proposed_shapes.add(key)
                new.append(plan)
        return new

    def report(self, strategy: Strategy | None) -> Mapping[str, Any] | None:
        """Return the report of the plan of ``strategy``, or of the best plan if ``strategy`` is None.

        ``speedup`` is the simulated speedup over one device that runs the whole batch; None before the simulation.
        """
        if self._shortlist is None:
            return None
        shortlist, planner = self._shortlist, self._shortlist.planner
        best: PipelinePlan | None = self._best
        if best is None:
            best = min(self._simulated or self._first(shortlist), key=lambda plan: plan.seconds, default=None)
        if strategy is not None:
            best = next((plan for candidate, plan in self._proposed if candidate == strategy), None)
        if best is None:
            return None
        one_device = planner.columns.seconds
        speedups = {plan: one_device / cost for plan, cost in self._simulated.items() if cost < float("inf")}
        return {
            "speedup": speedups.get(best),
            "split": best.pipeline.split,
            "schedule": best.kind,
            "micro_batches": best.micro_batches,
            "planned_iteration_time_s": best.seconds,
            "one_device_s": one_device,
            "layers": planner.columns.n_cuts - 1,
            "all_cuts": shortlist.complete,
            "stages": self._stages(best, planner),
            "baselines": {
                name: max((speedups[plan] for plan in plans if plan in speedups), default=None)
                for name, plans in shortlist.named.items()
            },
        }

    def _stages(self, plan: PipelinePlan, planner: Planner) -> list[dict[str, Any]]:
        columns, machine = planner.columns, planner.machine
        names = [op.name for op in self._problem.graph.operators]
        ends = (*plan.pipeline.cuts[1:], columns.n_cuts - 1)
        return [
            {
                "first": names[members[0]],
                "last": names[members[-1]],
                "start": start,
                "end": end,
                "replication": len(devices),
                "devices": list(devices),
                "recompute": recomputes,
                "operators": [names[op] for op in members],
            }
            for members, devices, start, end, recomputes in zip(
                members_of(plan.pipeline, columns),
                devices_of(plan.pipeline, machine),
                plan.pipeline.cuts,
                ends,
                plan.recompute,
                strict=True,
            )
        ]


def _states(options: DapplePipeline, graph: OperatorGraph) -> tuple[States, bool]:
    """Return the states between which stages may be cut, and whether they are all antichain states of the model."""
    if options.cuts == "operators":
        return states_of(graph, options.max_states)
    try:
        return layer_states(graph), False
    except TopoplanError as error:
        raise TopoplanError(f"searcher pipeline: cuts=layers: {error}") from None


def _check_operators(problem: Problem, columns: Columns) -> None:
    """Raise if an operator with its weights fits into no device, because stages do not cut weights."""
    room = float(problem.cluster.usable_memory.min())
    if (columns.operator_kept <= room).all():
        return
    for index, op in enumerate(problem.graph.operators):
        undivided = (1,) * len(op.dims)
        if not op.weights or not problem.costs.supports(index, undivided):
            continue
        persistent_bytes = problem.costs.price(index, undivided, np.zeros(1, dtype=np.int32)).kept
        if persistent_bytes is not None and persistent_bytes[0] > room:
            raise NoPlanFitsError(
                f"searcher pipeline: model {problem.graph.name!r}: no pipeline fits: operator {op.name!r} keeps "
                f"{size_text(persistent_bytes[0])} for its weights, gradients and optimizer state, a device has "
                f"{size_text(room)}, and stages keep weights whole; "
                "what would help: searchers that cut weights (-s spmd, -s mcmc), or "
                f"devices of at least {at_least(device_bytes(persistent_bytes[0], problem.cluster))}"
            )


def _too_large(planner: Planner, pipelines: Sequence[Pipeline], problem: Problem) -> TopoplanError:
    """Return an error that states the missing memory, for the pipeline that is nearest to fitting."""
    columns, graph = planner.columns, problem.graph
    context = f"searcher pipeline: model {graph.name!r}: "
    nearest: tuple[float, PipelinePlan, int] | None = None
    for pipeline in pipelines:
        for kind, count in planner.schedules(pipeline):
            costs = planner.costs_of(pipeline, count)
            if costs is None or not costs.replicated:
                continue
            peaks = memory_of(costs, kind, count)
            recomputes = (peaks[1] < peaks[0]) & planner.recompute
            requirement = np.where(recomputes, peaks[1], peaks[0])
            stage = int(requirement.argmax())
            if nearest is None or requirement[stage] < nearest[0]:
                nearest = (
                    float(requirement[stage]),
                    PipelinePlan(math.inf, pipeline, kind, count, tuple(recomputes.tolist())),
                    stage,
                )
    if nearest is None:
        return TopoplanError(
            f"{context}a batch of {columns.samples} samples is too small for {planner.machine.n_devices} devices "
            "(use a larger batch or fewer devices)"
        )
    _, plan, stage = nearest
    members = members_of(plan.pipeline, columns)[stage]
    strategy = strategy_of(plan, graph, columns, planner.machine)
    use = Lowering(graph, problem.cluster, problem.costs).memory_use(strategy)
    return NoPlanFitsError(
        f"{context}no pipeline that was tried fits into memory: of the nearest, {plan.pipeline.stages_text} with "
        f"{plan.micro_batches} micro-batches, stage {stage} ({graph.operators[members[0]].name!r} to "
        f"{graph.operators[members[-1]].name!r}) lacks the most: {no_plan_fits(problem, strategy, use)}"
    )
