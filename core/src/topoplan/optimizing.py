"""`optimize`: run an experiment, from names and options to a plan.

Data flow: `topoplan.assembly` builds what the experiment names; `topoplan.run.drive` searches, or
`topoplan.chains` does with several chains; the best state is simulated once more as a `Plan`.  The command
line and notebooks call this one function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from topoplan import __version__, chains
from topoplan.arrays import F64
from topoplan.assembly import assemble, chosen_components, named
from topoplan.components import Simulate, Topology, TopologyContext
from topoplan.errors import NoPlanFitsError, TopoplanError, shown
from topoplan.evaluate import memory_penalty
from topoplan.experiment import Experiment, interfaces_unless_given
from topoplan.exporting import strategy_path
from topoplan.fitting import no_plan_fits
from topoplan.host import Host
from topoplan.interfaces import built, check_fabric
from topoplan.network_bounds import fabric_lower_bound
from topoplan.plan import Plan
from topoplan.problem import Demand
from topoplan.records import component_record, json_ready
from topoplan.run import Progress, Result, Run, drive
from topoplan.simulate.breakeven import BreakEven, break_even, rebuilds

__all__ = ["Outcome", "optimize", "provenance"]


@attrs.frozen(kw_only=True)
class Outcome:
    """What `optimize` returns.

    Attributes:
        plan: the best state, simulated in full.
        initial: the state that the search started from, likewise.
        result: costs, number of evaluations and history of the search.
        memory: (D,) bytes that the plan keeps on each device; `Plan.memory` says for what.
        penalty: seconds that exceeding memory adds to the plan's cost; 0 where memory is ignored.
        memory_ignored: the simulator's options say that memory does not matter.
        lacks: what the plan lacks of memory, and what would help, in one paragraph; empty where it fits.
        break_even: where the topology's fabrics are rebuilt between phases: what that takes and saves, for the
            plan's strategy.
        fabric_bound: where the network can be wired, seconds below which no wiring that stays gets the plan's
            strategy; None on other networks, and where the plan's fabric is rebuilt between phases.
    """

    plan: Plan
    initial: Plan
    result: Result
    memory: F64
    penalty: float
    memory_ignored: bool = False
    lacks: str = ""
    break_even: BreakEven | None = None
    fabric_bound: float | None = None

    @property
    def fits(self) -> bool:
        """Whether every device holds what the plan keeps on it, even where the search was to ignore memory."""
        return bool(self.plan.fits)

    @property
    def speedup(self) -> float | None:
        """Seconds of the initial state over those of the plan; None where one of both is no result: it does not fit."""
        first, last = self.initial.timeline, self.plan.timeline
        if first is None or last is None or not (self.memory_ignored or (self.fits and self.initial.fits)):
            return None
        return first.makespan / last.makespan if last.makespan else 1.0


def optimize(
    experiment: Experiment,
    *,
    host: Host | None = None,
    on_progress: Callable[[str, Progress], None] = lambda event, progress: None,
) -> Outcome:
    """Run an experiment.

    Args:
        experiment: what to run.
        host: where components come from; all installed plugins unless given.
        on_progress: called with ``"evaluated"`` or ``"new_best"`` and the progress, at intervals.

    Raises:
        TopoplanError: something in the experiment is wrong; nothing was run or written then.
        NoPlanFitsError: no plan can fit the devices, or none was found under a hard limit.
    """
    if not isinstance(experiment, Experiment):
        raise TopoplanError(
            f"optimize: expected an Experiment, got {shown(experiment)} "
            '(write optimize(Experiment(model="alexnet")), with cluster, topology, searchers as needed)'
        )
    host = host or Host.discover()
    with host.naming_plugins():
        return _optimized(named(host, experiment), host, on_progress)


def _optimized(experiment: Experiment, host: Host, on_progress: Callable[[str, Progress], None]) -> Outcome:
    made = assemble(host, experiment)
    problem, evaluator, policy = made.problem, made.evaluator, made.policy
    graph, cluster = problem.graph, problem.cluster
    rng, searches = made.searches()
    run = Run(
        problem=problem,
        budget=experiment.run.budget,
        seed=experiment.run.seed,
        searchers=tuple(component.name for component, _ in made.searchers),
        patience=experiment.run.patience,
    )

    def report(event: str, progress: Progress) -> None:
        hook = host.hook.topoplan_new_best if event == "new_best" else host.hook.topoplan_evaluated
        hook(run=run, progress=progress)
        on_progress(event, progress)

    host.hook.topoplan_run_started(run=run)
    if experiment.run.chains > 1:
        result, reports = chains.search(host, experiment, report)
    else:
        result = drive(run, evaluator, made.strategy, searches, rng, report)
        reports = [search.report() if hasattr(search, "report") else None for _, search in searches]
    memory = evaluator.memory(result.best.strategy)
    if result.best_cost == float("inf"):
        use = evaluator.memory_use(result.best.strategy)
        raise NoPlanFitsError(
            f"model {graph.name!r}: no strategy that was tried fits: "
            f"{no_plan_fits(problem, result.best.strategy, use)}; or --simulator {made.simulator.name}:memory=penalty, "
            "which ranks strategies that do not fit by what they lack"
        )
    record = {**provenance(host, experiment), **_reports(run.searchers, reports)}
    plan = evaluator.plan(result.best, record)
    pays, bound = None, None
    if made.topology.static is not None or problem.reconfigurable:  # a dense matrix: not of hosts on one switch
        demand = evaluator.demand(result.best.strategy)
    if problem.reconfigurable:
        bound = _fabric_bound(plan, demand)
    if made.topology.static is not None:
        context = TopologyContext(cluster=cluster, demand=demand, rng=rng)
        pays = _break_even(made.simulate, made.topology, made.topology_options, context, plan)
    outcome = Outcome(
        plan=plan,
        initial=plan if result.best is result.initial else evaluator.plan(result.initial, record),
        result=result,
        memory=memory,
        penalty=memory_penalty(memory, cluster.device_memory, policy),
        memory_ignored=policy == "ignore",
        lacks="" if plan.fits or plan.memory is None else no_plan_fits(problem, result.best.strategy, plan.memory),
        break_even=pays,
        fabric_bound=bound,
    )
    host.hook.topoplan_run_finished(run=run, plans=[outcome.plan])
    return outcome


def _fabric_bound(plan: Plan, demand: Demand) -> float | None:
    """Return a time that holds for every wiring of the cluster; the busiest device needs its time on any of them."""
    if plan.fabric.phases is not None or plan.timeline is None:
        return None
    return max(plan.timeline.bounds.device, fabric_lower_bound(demand, plan.cluster))


def _break_even(
    simulate: Simulate, topology: Topology, options: Any, context: TopologyContext, plan: Plan
) -> BreakEven | None:
    """Compare the topology's fabric for the plan with those that stay as they are, the plan's own among them if so."""
    assert topology.static is not None
    rebuilt, static = plan.fabric, list(topology.static(options, context))
    for fabric in static:
        check_fabric(fabric, context.cluster)
    if not rebuilds(plan.taskgraph, rebuilt, context.cluster):
        static.append(rebuilt)
        rebuilt = built(topology, options, context)
    if rebuilt.phases is None:
        return None
    return break_even(simulate, plan.taskgraph, rebuilt, static, context.cluster)


def provenance(host: Host, experiment: Experiment) -> Mapping[str, Any]:
    """Record all that is needed to repeat the run; nothing in it depends on time or place.

    Raises:
        TopoplanError: a component or an option is unknown or wrong.
    """
    used = chosen_components(host, experiment)
    _, (topology, _), *_ = used
    cluster = interfaces_unless_given(experiment.cluster, [topology])
    components = [component_record(host, component, options) for component, options in used]
    files = [
        str(value) for _, options in used for key, value in attrs.asdict(options).items() if key == "file" and value
    ]
    files += [str(strategy_path(host, experiment.run.strategy))] if experiment.run.strategy else []
    run = experiment.run
    told = {
        "patience": run.patience,
        "chains": run.chains if run.chains > 1 else None,
        "precision": run.precision if run.precision != "fp32" else None,
        "precision_speedup": run.precision_speedup,
        "optimizer": run.optimizer,
        "distortion": None if experiment.distortion is None else attrs.asdict(experiment.distortion),
    }
    return {
        "topoplan": __version__,
        "seed": run.seed,
        "budget": run.budget,
        **{key: value for key, value in told.items() if value is not None},
        "batch_size": run.batch_size,
        "components": components,
        "cluster": json_ready(attrs.asdict(cluster)),
        "inputs": {Path(name).name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in files},
    }


def _reports(names: Sequence[str], reports: Sequence[Any]) -> Mapping[str, Any]:
    """Return what searchers report, by their names, as the provenance holds it; nothing where none does."""
    said = {name: json_ready(report) for name, report in zip(names, reports, strict=True) if report is not None}
    return {"reports": said} if said else {}
