"""`optimize`: run an experiment, from names and options to a plan.

Data flow: `topoplan_engine.search.setup` builds what the experiment names; `topoplan_engine.search.driver.drive`
searches, or
`topoplan_engine.search.islands` does with several chains; the best state is simulated once more as a `Plan`.  The
command line and notebooks call this one function.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Unpack

import attrs
import numpy as np

from topoplan import __version__
from topoplan.arrays import F64
from topoplan.errors import NoPlanFitsError, TopoplanError
from topoplan.model.fabric import Fabric
from topoplan.model.plan import Plan
from topoplan.model.problem import Problem
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.timeline import Timeline
from topoplan.plugin.components import Topology, TopologyContext
from topoplan.plugin.host import Host
from topoplan.plugin.simulate import Simulate
from topoplan.search.protocol import Progress, Run, State
from topoplan_engine.blame import naming_plugins
from topoplan_engine.experiment import Experiment, interfaces_unless_given
from topoplan_engine.exporting import records, strategy_path
from topoplan_engine.fitting import no_plan_fits
from topoplan_engine.interfaces import check_fabric
from topoplan_engine.interrupt import interruptible, obeyed
from topoplan_engine.kernels.clock import clock
from topoplan_engine.keywords import Keywords, Model, experiment_of
from topoplan_engine.network.bounds import any_wiring_bound
from topoplan_engine.network.building import build_fabric
from topoplan_engine.observing import tell
from topoplan_engine.perturbation import Perturbation
from topoplan_engine.provenance import cluster_record, component_record, digests_of, input_files, json_ready
from topoplan_engine.search.bests import Origin, ShortlistEntry
from topoplan_engine.search.clocked import Clocked
from topoplan_engine.search.common_restriction import refusal_of_time
from topoplan_engine.search.companions import writable
from topoplan_engine.search.draws import Draws, Judged, JudgedPlans, judge
from topoplan_engine.search.ends import Ends
from topoplan_engine.search.evaluator import Evaluator, memory_penalty
from topoplan_engine.search.finishing import FINISHING, finished, may_finish, wired
from topoplan_engine.search.foreseen import check_outputs_of
from topoplan_engine.search.has_plan import check_has_plan, nearest_of
from topoplan_engine.search.joint_record import with_moves
from topoplan_engine.search.journal import NoJournal
from topoplan_engine.search.keeping import Keeper
from topoplan_engine.search.least_work import least_seconds
from topoplan_engine.search.limits import LEAST_TIME, limits_of, time_limited, with_patience, with_patience_for
from topoplan_engine.search.located_tables import locating_in
from topoplan_engine.search.recorder import NoRecorder, SearchRecorder
from topoplan_engine.search.restarts import Part, searched
from topoplan_engine.search.result import Result
from topoplan_engine.search.run_folder import Journals, RunFolder
from topoplan_engine.search.setup import SearchSetup, chosen_components, named, set_up_search
from topoplan_engine.search.trainer_software import with_trainer_kernels
from topoplan_engine.search.trainers import for_no_trainer, launchable, recorded_trainers
from topoplan_engine.search.unpriced import UnpricedError
from topoplan_engine.search.whole_run import drive
from topoplan_engine.simulation.draws import record_of
from topoplan_engine.simulation.reconfiguration import BreakEven, HoldsStatic, break_even, rebuilds
from topoplan_engine.throughput import Throughput, priced_precision, throughput
from topoplan_engine.warned import warn, warnings_named

__all__ = ["FreePlan", "Outcome", "optimize", "provenance"]

#: Of a time limit, the share of the search for a trainer; the rest is for the plan that no trainer limits.
_FOR_TRAINERS = 0.7


@attrs.frozen(kw_only=True)
class FreePlan:
    """The fastest plan where no trainer limits the search, beside one for a trainer.

    Attributes:
        trainers: name of what limits the other plan.
        seconds: of its iteration, as the search priced it.
        fits: whether devices hold it.
        refusal: why the trainer cannot run it; empty if it can.
        evaluations: how many candidates it is the best of.
    """

    trainers: str
    seconds: float
    fits: bool
    refusal: str
    evaluations: int


@attrs.frozen(kw_only=True, repr=False)
class Outcome:
    """What `optimize` returns.

    Attributes:
        experiment: what was run.
        plan: the state that is kept, simulated in full: under the draw of paths that is nearest to its mean.
        initial: the state that the search started from, likewise.
        draws, initial_draws: what they take over draws of their paths; a single time where nothing is drawn.
        origin: where the plan's strategy comes from.
        aside: another state to know of: where a constructed plan is kept, the fastest one, if it is faster; where
            the fastest one is kept, the best that was constructed, if that is another one.
        result: costs, number of evaluations and history of the search.
        memory: (D,) bytes that the plan keeps on each device; `Plan.memory` says for what.
        penalty: seconds that exceeding memory adds to the plan's cost; 0 where memory is ignored.
        memory_ignored: the simulator's options say that memory does not matter.
        lacks: what the plan lacks of memory, the nearest that fits, and what would help, in a line; empty if it fits.
        break_even: where the topology's fabrics are rebuilt between phases: what that takes and saves, for the
            plan's strategy, under the draw of paths that `plan` is simulated under.
        throughput: samples and tokens a second, and model FLOPs over the devices' peak.
        fabric_bound: where the network can be wired, seconds below which no wiring that stays gets the plan's
            strategy; None on other networks, and where the plan's fabric is rebuilt between phases.
        free: where the plan is for a trainer, the fastest one that none limits.
        least_seconds: below which no plan of the problem gets (`topoplan_engine.search.least_work`); None if not known.
    """

    experiment: Experiment
    plan: Plan
    initial: Plan
    draws: Draws
    initial_draws: Draws
    origin: Origin
    aside: Judged | None
    result: Result
    memory: F64
    penalty: float
    memory_ignored: bool = False
    lacks: str = ""
    throughput: Throughput | None = None
    break_even: BreakEven | None = None
    fabric_bound: float | None = None
    free: FreePlan | None = None
    least_seconds: float | None = None

    @property
    def timeline(self) -> Timeline:
        """When everything of the plan runs: what `plan` holds, which `optimize` has always simulated."""
        return _simulated(self.plan)

    @property
    def initial_timeline(self) -> Timeline:
        """When everything of the initial state runs."""
        return _simulated(self.initial)

    @property
    def fits(self) -> bool:
        """Whether every device holds what the plan keeps on it, even where the search was to ignore memory."""
        return bool(self.plan.fits)

    @property
    def seconds(self) -> float:
        """Seconds of the plan's iteration, the mean over its draws."""
        return self.draws.mean

    @property
    def initial_seconds(self) -> float:
        """Seconds of the initial state's iteration, likewise."""
        return self.initial_draws.mean

    @property
    def speedup(self) -> float | None:
        """Seconds of the initial state over those of the plan; None where one of both is no result: it does not fit."""
        if not (self.memory_ignored or (self.fits and self.initial.fits)):
            return None
        if self.initial_seconds == math.inf:
            return None  # there was no time to price it
        return self.initial_seconds / self.seconds if self.seconds else 1.0

    def __repr__(self) -> str:
        best, first = self.seconds * 1e3, self.initial_seconds * 1e3
        model = "?" if self.plan.graph is None else self.plan.graph.name
        return f"<Outcome: {model} on {self.plan.fabric.name}, {first:.4f} -> {best:.4f} ms an iteration>"

    def _repr_html_(self) -> str:
        # Reports import this module, so it can find them only when it is asked to show itself.
        return str(importlib.import_module("topoplan_engine.reporting.notebook").outcome_html(self))


def _simulated(plan: Plan) -> Timeline:
    if plan.timeline is None:
        raise TopoplanError("a plan of this outcome was not simulated")
    return plan.timeline


def optimize(
    model: Experiment | Model,
    *,
    host: Host | None = None,
    perturbation: Perturbation | None = None,
    on_progress: Callable[[str, Progress], None] = lambda event, progress: None,
    folder: RunFolder | None = None,
    began: float | None = None,
    **options: Unpack[Keywords],
) -> Outcome:
    """Search the best strategy (and network) for a model.

    Args:
        model: a frontend, by name or itself, or an operator graph; or a whole experiment, which then has all options.
        host: where components come from; all installed plugins unless given.
        perturbation: how the costs that the search gets are wrong; the plan's times are then wrong, too.
        on_progress: called with ``"evaluated"`` or ``"new_best"`` and the progress, at intervals, with ``"first"``
            once the initial state is priced, and with ``"planning with <searcher>"`` before a planner that another
            searcher brought along plans.
        folder: of a run, that goes on from what its journals know and writes down the rest.
        began: what `topoplan_engine.kernels.clock.clock` said when the time limit began; now unless given.
        options: what the command line has, under the names that `Keywords` lists.

    Raises:
        TopoplanError: something in the experiment is wrong; nothing was run or written then.
        NoPlanFitsError: no plan can fit the devices, or none was found under a hard limit.
    """
    if isinstance(model, Experiment):
        if options:
            raise TopoplanError(f"optimize: {next(iter(options))!r} beside an Experiment (put it in there)")
        experiment = model
    else:
        experiment = experiment_of(model, **options)
    host = host or Host.discover()
    experiment = named(host, experiment)
    with locating_in(experiment, host), naming_plugins(host):
        return _optimized(experiment, host, perturbation, on_progress, folder, began)


def _optimized(
    experiment: Experiment,
    host: Host,
    perturbation: Perturbation | None,
    on_progress: Callable[[str, Progress], None],
    folder: RunFolder | None,
    began: float | None,
) -> Outcome:
    began = clock() if began is None else began
    experiment = launchable(host, with_trainer_kernels(host, writable(host, with_patience(experiment))[0]))[0]
    if records(host, experiment.outputs):
        experiment = attrs.evolve(experiment, run=attrs.evolve(experiment.run, record=True))
    setup = set_up_search(host, experiment, perturbation)
    check_outputs_of(setup)
    experiment = with_patience_for(experiment, setup.problem)
    problem, run = setup.problem, _run_of(setup, experiment)
    keeper = None if folder is None else Keeper(folder, host, setup.evaluator)
    on_best = keeper.note if keeper is not None else lambda rank, state: None

    def report(event: str, progress: Progress) -> None:
        if event in ("evaluated", "new_best"):
            tell(host, f"topoplan_{event}", run=run, progress=progress)
        if keeper is not None:
            keeper.write_now_and_then()
        on_progress(event, progress)

    rng = setup.rng()
    tell(host, "topoplan_run_started", run=run)

    def search(part: Part, on_progress: Callable[[str, Progress], None]) -> Result:
        if experiment.run.chains > 1:
            from topoplan_engine.search import islands  # with executors, which a search of one chain does without

            return islands.search(host, experiment, on_progress, perturbation=perturbation, part=part, on_best=on_best)
        return _driven(setup, run, setup.rng() if part.number else rng, part, on_progress, on_best)

    finisher = may_finish(setup, host)
    limited = 1.0 if problem.restriction is None else _FOR_TRAINERS
    options = time_limited(experiment.run, clock() - began, limited * (1.0 if finisher is None else 1.0 - FINISHING))
    journals = Journals() if folder is None else folder.journals
    result = before = searched(options, journals, search, report)
    check_has_plan(setup, result)
    ends = Ends(began=began, seconds=experiment.run.seconds)
    if finisher is not None:
        result = finished(setup, host, finisher, before, ends.remaining, journals, report)
    judged_plans = _judged_plans(setup, result, ends, journals)
    sources: Mapping[str, Any] = {
        **provenance(host, experiment, perturbation),
        **({"assumptions": dict(problem.costs.assumptions)} if problem.costs.assumptions else {}),
    }
    record: Mapping[str, Any] = {**sources, **_found(judged_plans, result)}
    can_be_wired = finisher is not None and not result.interrupted and wired(setup).reconfigurable
    record = with_moves(record, setup.evaluator, judged_plans.plan.entry.state, before, can_be_wired=can_be_wired)
    outcome = _outcome(setup, result, judged_plans, record, rng, ends, record_all=experiment.run.record)
    if not result.interrupted and (free := _free_plan(host, experiment, setup, perturbation, ends, journals)):
        outcome = _beside(outcome, *free, setup, sources, rng, ends, attrs.evolve(journals, name="free"))
    if keeper is not None:
        keeper.write(outcome.plan)
    tell(host, "topoplan_run_finished", run=run, plans=[outcome.plan])
    return outcome


def _run_of(setup: SearchSetup, experiment: Experiment) -> Run:
    """Return the search about to start, as observers receive it."""
    return Run(
        problem=setup.problem,
        budget=experiment.run.budget,
        seed=experiment.run.seed,
        searchers=tuple(searcher.name for searcher in setup.searchers),
        patience=experiment.run.patience,
        time_limit=experiment.run.seconds,
    )


def _driven(
    setup: SearchSetup,
    run: Run,
    rng: np.random.Generator,
    part: Part,
    on_progress: Callable[[str, Progress], None],
    on_best: Callable[[tuple[bool, bool, float], State], None],
) -> Result:
    """Run a search of one chain; ``rng`` draws its first fabric."""
    options, started = setup.experiment.run, clock()

    def elapsed() -> float:
        return clock() - started

    recorder = SearchRecorder(options.restarts) if options.record else NoRecorder()
    evaluator = setup.new_evaluator() if part.number else setup.evaluator
    with closing(part.journals.open(part.number, 0)) as journal:

        def left() -> float:
            return math.inf if journal.replaying else part.limits.seconds - elapsed()

        with interruptible() as stop, obeyed(stop, left):
            searches = setup.searches(restart=part.number, clocked=Clocked(journal, stop, elapsed))[1]
        planning = elapsed()
        return drive(
            run,
            evaluator,
            setup.strategy,
            searches,
            rng,
            on_progress,
            setup.keep,
            planning,
            recorder,
            limits=part.limits,
            journal=journal,
            interrupted=stop.wanted,
            on_best=lambda search_run: on_best(search_run.rank, search_run.best.state),
        )


def _free_plan(
    host: Host,
    experiment: Experiment,
    limited: SearchSetup,
    perturbation: Perturbation | None,
    ends: Ends,
    journals: Journals,
) -> tuple[FreePlan, Result] | None:
    """Search once more without the restriction of a trainer, with the same searchers; None if there is none.

    ``limited`` is the set-up of the search that kept to it.
    """
    restriction = limited.problem.restriction
    if restriction is None:
        return None
    setup = set_up_search(host, for_no_trainer(experiment), perturbation, limited.problem)
    options = setup.experiment.run
    run = Run(problem=setup.problem, budget=options.budget, seed=options.seed, searchers=())
    limits = limits_of(options.patience, options.budget, max(ends.remaining, LEAST_TIME * ends.seconds))
    part = Part(limits=limits, journals=attrs.evolve(journals, name="free"))
    try:
        with warnings_named(f"free plan, which {restriction.name} does not limit"):
            result = _driven(setup, run, setup.rng(), part, lambda event, progress: None, lambda rank, state: None)
    except NoPlanFitsError:
        return None
    except UnpricedError as error:
        warn(f"free plan: {error}")
        return None
    strategy = result.best.strategy
    free = FreePlan(
        trainers=restriction.name,
        seconds=result.best_cost,
        fits=setup.evaluator.fits(strategy),
        refusal=refusal_of_time(limited.problem, restriction, strategy),
        evaluations=result.evaluations,
    )
    return free, result


def _beside(
    outcome: Outcome,
    free: FreePlan,
    result: Result,
    setup: SearchSetup,
    sources: Mapping[str, Any],
    rng: np.random.Generator,
    ends: Ends,
    journals: Journals,
) -> Outcome:
    """Return an outcome beside its free plan; that itself where the trainer runs it, and it is faster."""
    if free.fits and not free.refusal and (free.seconds < outcome.result.best_cost or not outcome.fits):
        judged_plans = _judged_plans(setup, result, ends, journals)
        record = {**sources, **_found(judged_plans, result)}
        outcome = _outcome(setup, result, judged_plans, record, rng, ends, record_all=setup.experiment.run.record)
    return attrs.evolve(outcome, free=free)


def _outcome(
    setup: SearchSetup,
    result: Result,
    judged_plans: JudgedPlans,
    record: Mapping[str, Any],
    rng: np.random.Generator,
    ends: Ends,
    *,
    record_all: bool,
) -> Outcome:
    """Simulate the chosen states in full, and put together what is known of them.

    Args:
        made: what was searched with.
        result: of the search.
        judged_plans: which of its states is the plan.
        record: provenance of both plans.
        rng: draws what the topology draws, where it was used by the search.
        ends: how much there is of the time limit.
        record_all: the plan holds what happens in its iteration, and what the search did.
    """
    problem, evaluator = setup.problem, setup.evaluator
    entry, aside = judged_plans.plan.entry, judged_plans.aside
    ends.check_before_the_end(evaluator, entry.state)
    plan, draws = _in_full(evaluator, judged_plans.plan, record, record_all=record_all)
    plan = attrs.evolve(plan, history=result.recorded)
    initial, initial_draws, start = plan, draws, judged_plans.initial.entry
    if judged_plans.initial is not judged_plans.plan:
        if ends.has_use_for(evaluator, start):
            initial, initial_draws = _in_full(evaluator, judged_plans.initial, record)
        else:
            # One that there was no time to price is so large that its memory takes long, too.
            is_priced, initial_draws = start.cost < math.inf, judged_plans.initial.draws
            initial = evaluator.unsimulated_plan(start.state, record, with_memory=is_priced)
            if not initial_draws.seeds:  # the price of bytes that do not fit is no time
                excess = evaluator.penalty(start.state.strategy) if is_priced else 0.0
                initial_draws = Draws(seconds=[start.cost - excess])
    pays, bound = _other_networks(setup, plan, draws, rng)
    memory = evaluator.memory(entry.state.strategy)
    return Outcome(
        experiment=setup.experiment,
        plan=plan,
        initial=initial,
        draws=draws,
        initial_draws=initial_draws,
        origin=entry.origin,
        aside=None if aside is None or aside.entry.state is entry.state else aside,
        result=attrs.evolve(result, best=entry.state, best_cost=entry.cost, initial_cost=start.cost),
        memory=memory,
        penalty=memory_penalty(memory, problem.cluster.usable_memory, setup.policy),
        memory_ignored=setup.policy == "ignore",
        throughput=_throughput(plan, draws.mean, problem.costs.assumptions),
        lacks=_lacks(problem, plan, entry),
        break_even=pays,
        fabric_bound=bound,
        least_seconds=least_seconds(problem),
    )


def _lacks(problem: Problem, plan: Plan, entry: ShortlistEntry) -> str:
    """Say what a plan lacks of memory, and what would help; empty if it fits."""
    if plan.fits or plan.memory is None:
        return ""
    return no_plan_fits(problem, entry.state.strategy, plan.memory, nearest_of(entry.origin.report))


def _other_networks(
    setup: SearchSetup, plan: Plan, draws: Draws, rng: np.random.Generator
) -> tuple[BreakEven | None, float | None]:
    """Return what rebuilding the plan's fabric saves, and a bound on all wirings; None where there is no such thing."""
    if plan.strategy is None or not (setup.topology.rebuilds or setup.problem.reconfigurable):
        return None, None  # a demand is a dense matrix: not of hosts on one switch
    pays, bound = None, None
    demand = setup.evaluator.demand(plan.strategy)
    if setup.problem.reconfigurable and isinstance(plan.fabric, Fabric):
        bound = any_wiring_bound(plan, demand)
    if setup.topology.rebuilds:
        context = TopologyContext(cluster=setup.problem.cluster, demand=demand, rng=rng)
        simulate = setup.simulate if draws.nearest is None else setup.simulate.with_seed(draws.nearest)
        pays = _break_even(simulate, setup.topology, context, plan)
    return pays, bound


def _judged_plans(setup: SearchSetup, result: Result, ends: Ends, journals: Journals) -> JudgedPlans:
    """Choose a plan among the last bests of a search, by what they take over draws of their paths."""
    initial = ShortlistEntry(state=result.initial, cost=result.initial_cost, origin=Origin("initial strategy"))
    constructed = setup.keep.constructed and result.shortlist[-1].origin.constructed
    at_end = setup.evaluator.seconds_in_full(result.best) if ends.seconds < math.inf else 0.0
    is_part = ends.seconds < math.inf and not result.interrupted  # else what follows has no clock, or is not the end
    with interruptible() as stop, closing(journals.open_end() if is_part else NoJournal()) as journal:
        clocked = Clocked(journal, stop)
        judged_plans = judge(
            setup.evaluator,
            result.shortlist,
            ends.with_price(setup.evaluator, initial, at_end, clocked) if is_part else initial,
            result.aside,
            constructed=constructed,
            stop=stop,
            evaluations=result.evaluations,
            remaining=lambda: ends.remaining - at_end,
            clocked=clocked,
        )
        journal.finish(0.0)
    return judged_plans


def _in_full(
    evaluator: Evaluator, judged: Judged, record: Mapping[str, Any], *, record_all: bool = False
) -> tuple[Plan, Draws]:
    """Simulate a state as a plan, under its middle draw; return that, and what it takes over draws."""
    draws = judged.draws
    plan = evaluator.plan(judged.entry.state, record, draws.nearest, record=record_all)
    assert plan.timeline is not None
    if not draws.seeds:
        return plan, Draws(seconds=[plan.timeline.makespan])
    return attrs.evolve(plan, provenance={**record, **record_of(draws)}), draws


def _found(judged_plans: JudgedPlans, result: Result) -> Mapping[str, Any]:
    """Return what the provenance says of where the plan comes from, and what searchers estimated for their plans.

    Reports are of the plan itself unless ``reports_are_of`` says of which other one.
    """
    record: dict[str, Any] = {"origin": judged_plans.plan.entry.origin.name}
    for judged in (judged_plans.plan, judged_plans.aside):
        origin = None if judged is None else judged.entry.origin
        if origin is not None and origin.report is not None and "reports" not in record:
            record["reports"] = {origin.searcher: json_ready(origin.report)}
            if judged is not judged_plans.plan:
                record["reports_are_of"] = origin.name
    if "reports" not in record and result.reports:
        record["reports"] = json_ready(result.reports)
        record["reports_are_of"] = "a plan that was not simulated"
    return record


def _throughput(plan: Plan, seconds: float, assumptions: Mapping[str, Any]) -> Throughput | None:
    """Return what the plan's time means; of costs that say no precision no peak is known."""
    if plan.graph is None:
        return None
    precision, device = priced_precision(assumptions), assumptions.get("device", "")
    return throughput(plan.graph, plan.cluster, seconds, precision=precision, device=device, strategy=plan.strategy)


def _break_even(simulate: Simulate, topology: Topology, context: TopologyContext, plan: Plan) -> BreakEven | None:
    """Compare the topology's fabric for the plan with those that stay as they are, the plan's own among them if so."""
    rebuilt = plan.fabric
    static: list[AnyFabric] = list(topology.static_fabrics(context)) if isinstance(topology, HoldsStatic) else []
    for fabric in static:
        check_fabric(fabric, context.cluster)
    if not rebuilds(plan.taskgraph, rebuilt, context.cluster):
        static.append(rebuilt)
        rebuilt = build_fabric(topology, context)
    if isinstance(rebuilt, Fabric):
        return None
    return break_even(simulate, plan.taskgraph, rebuilt, static or rebuilt.wirings, context.cluster)


def provenance(host: Host, experiment: Experiment, perturbation: Perturbation | None = None) -> Mapping[str, Any]:
    """Record all that is needed to repeat the run; nothing in it depends on time or place.

    Raises:
        TopoplanError: a component or an option is unknown or wrong.
    """
    used = chosen_components(host, experiment)
    cluster = interfaces_unless_given(experiment.cluster, [used.topology])
    components = [component_record(host, component) for component in used.all]
    for record_of_companion in components[len(components) - used.n_companions :]:
        record_of_companion["companion"] = True
    files, run = input_files(used.all), experiment.run
    files += [strategy_path(host, run.strategy)] if run.strategy else []
    record = {
        "time_limit_s": run.seconds if run.time_limit is not None else None,
        "restarts": run.restarts if run.restarts > 1 else None,
        "patience": run.patience,
        "chains": run.chains if run.chains > 1 else None,
        "keep": run.keep if run.keep != "constructed" else None,
        "draws": run.draws if run.draws > 1 else None,
        "precision": run.precision,
        "precision_speedup": run.precision_speedup,
        "kernels": run.kernels,
        "optimizer": run.optimizer,
        **recorded_trainers(host, experiment),
        "distortion": None if perturbation is None else attrs.asdict(perturbation),
    }
    return {
        "topoplan": __version__,
        "seed": run.seed,
        "budget": None if run.ends_by_time_alone else run.budget,
        **{key: value for key, value in record.items() if value is not None},
        "batch_size": run.batch_size,
        "components": components,
        "cluster": cluster_record(cluster),
        "inputs": digests_of(files),
    }
