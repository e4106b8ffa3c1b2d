"""Plans whose file has a strategy and no tasks: they are lowered again with the estimator that the plan names.

Best known plans of benchmark problems are stored so, since task graphs are large and follow from the rest.  So are
large folded plans (`topoplan_engine.lowering.folding`), with their times, loads of links and memory: a file that listed
all tasks of 100,000 devices would have a terabyte.  They are folded again when they are read.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import attrs

from topoplan.errors import TopoplanError, TopoplanWarning
from topoplan.model.plan import Plan
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan.model.timeline import Timeline
from topoplan.plugin.components import Estimator, Kind, Simulator
from topoplan.plugin.host import Host
from topoplan.plugin.simulate import Simulate
from topoplan.search.protocol import State
from topoplan_engine.blame import naming_plugins
from topoplan_engine.checked_prices import build_costs
from topoplan_engine.experiment import Choice, with_machines
from topoplan_engine.guarded import build_simulate, runs_all_to_alls
from topoplan_engine.lowering import Lowering
from topoplan_engine.precision import at_speed
from topoplan_engine.provenance import recorded_name
from topoplan_engine.simulation.deferred import DeferredTaskGraph, simulated_words
from topoplan_engine.simulation.folds import FoldedStates, folded_taskgraph
from topoplan_engine.simulation.gradients import recorded_components
from topoplan_engine.training_costs import training_costs

__all__ = [
    "folded_again",
    "is_folded",
    "kept_of",
    "lowering_of",
    "recorded_simulator",
    "summarised",
    "with_tasks",
    "without_tasks",
]

#: Tasks of the largest plan that is folded, or kept, whose file lists them all: about 100 MB.
_MOST_LISTED = 1 << 20
#: Two times of one plan that differ by more than this share are those of two programs.
_ROUNDING = 1e-6


def without_tasks(plan: Plan) -> Plan:
    """Return a plan with its model, strategy, fabric and provenance; in place of its tasks is one of no time."""
    tasks = _no_tasks(plan.cluster.n_devices)
    return attrs.evolve(plan, taskgraph=tasks, timeline=None, recording=None, history=None, memory=None)


def kept_of(plan: Plan) -> Plan:
    """Return what is kept of a plan for its own sake: not its tasks where these are many, and follow from the rest."""
    if plan.taskgraph.n_tasks <= _MOST_LISTED or plan.strategy is None or plan.graph is None or is_folded(plan):
        return plan
    return without_tasks(plan)


def is_folded(plan: Plan) -> bool:
    """Return whether one task stands for each class of a plan's tasks."""
    return (
        isinstance(plan.taskgraph, DeferredTaskGraph)
        and plan.timeline is not None
        and bool(simulated_words(plan.timeline))
    )


def summarised(plan: Plan) -> Plan:
    """Return a large folded plan without its tasks; others as they are.

    Its timeline has one task of the whole time, and its strategy no placements: they follow from its stages.
    """
    times = plan.timeline
    if times is None or not is_folded(plan) or plan.taskgraph.n_tasks <= _MOST_LISTED:
        return plan
    columns = {field.name: getattr(times, field.name) for field in attrs.fields(Timeline)[2:]}
    timeline = Timeline(start=[0.0], finish=[times.makespan], **columns)
    strategy = plan.strategy if plan.strategy is None else attrs.evolve(plan.strategy, placements=())
    return attrs.evolve(plan, taskgraph=_no_tasks(plan.cluster.n_devices), timeline=timeline, strategy=strategy)


def _no_tasks(n_devices: int) -> TaskGraph:
    return TaskGraph(
        kind=[TaskKind.FORWARD],
        device=[0],
        seconds=[0.0],
        size=[0],
        src=[-1],
        dst=[-1],
        group=[-1],
        group_ptr=[0],
        group_members=[],
        succ_ptr=[0, 0],
        succ=[],
        op=[-1],
        n_devices=n_devices,
    )


def with_tasks(plan: Plan, host: Host, where: str) -> Plan:
    """Return a plan that `without_tasks` or `summarised` made with its tasks again, and any other one as it is.

    Raises:
        TopoplanError: it names no estimator, or one that is not installed; the message begins with ``where``.
    """
    tasks = plan.taskgraph
    emptied = tasks.n_tasks == 1 and tasks.op[0] < 0 and tasks.seconds[0] == 0 and tasks.kind[0] == TaskKind.FORWARD
    if not emptied or plan.strategy is None or plan.graph is None or not plan.graph.operators:
        return plan
    lowering = lowering_of(plan, host, where)
    if plan.timeline is not None:
        choice = recorded_simulator(plan, host) or Choice("fluid")
        try:
            with naming_plugins(host):
                simulate = build_simulate(choice.make(host, Simulator), host)
                lowering = lowering_of(plan, host, where, one_task=runs_all_to_alls(simulate))
                folded = folded_again(plan, simulate, lowering)
        except TopoplanError as error:
            raise TopoplanError(f"{where}: {error}") from None
        if folded is not None and folded.timeline is not None:
            _compare(plan.timeline.makespan, folded.timeline.makespan, where)
            return folded
    memory = lowering.memory_use(plan.strategy)
    return attrs.evolve(plan, taskgraph=lowering.lower(plan.strategy), timeline=None, memory=memory)


def folded_again(plan: Plan, simulate: Simulate, lowering: Lowering) -> Plan | None:
    """Return a plan with tasks and times that are folded; None where a simulator runs all tasks of it.

    Raises:
        TopoplanError: two devices that must communicate cannot.
    """
    assert plan.strategy is not None
    strategy, state = plan.strategy, State(plan.strategy, plan.fabric)
    folds = FoldedStates(simulate, lowering, plan.cluster)
    folded = folds.iteration(state)
    if folded is None:
        return None

    def whole() -> TaskGraph:
        return lowering.lower(strategy)

    return attrs.evolve(plan, taskgraph=folded_taskgraph(folded, whole), timeline=folds.timeline(state, whole))


def _compare(stored: float, simulated: float, where: str) -> None:
    """Warn where the time of a file is not what this program simulates."""
    if abs(simulated - stored) > _ROUNDING * stored:
        note = f"{where}: has an iteration of {stored:.6g} s, which this version simulates as {simulated:.6g} s"
        warnings.warn(TopoplanWarning(note), stacklevel=2)


def recorded_simulator(plan: Plan, host: Host | None = None) -> Choice | None:
    """Return the simulator that a plan was made with, under the draw that its timeline is of; None if it names none.

    Where several distributions of ``host`` have one of its name, the choice names the recorded one.
    """
    record = plan.provenance
    try:
        component = next(part for part in record.get("components", ()) if part["kind"] == Kind.SIMULATOR.value)
        seed = record.get("iteration_time", {}).get("timeline_seed")
        options = {**component["options"], **({} if seed is None else {"seed": seed})}
        name = str(component["name"]) if host is None else recorded_name(host, component)
        return Choice(name, options)
    except (StopIteration, KeyError, TypeError, AttributeError):  # a record of another program, or none
        return None


def lowering_of(plan: Plan, host: Host, where: str, *, one_task: bool = False) -> Lowering:
    """Return what lowers strategies of a plan's model, priced as the plan says; ``one_task``: see `Lowering`.

    Raises:
        TopoplanError: it does not say how, or its estimator is not installed or finds something wrong.
    """
    estimators = [part for part in recorded_components(plan) if part.get("kind") == Kind.ESTIMATOR.value]
    if plan.graph is None or not estimators or not isinstance(estimators[0].get("options"), Mapping):
        raise TopoplanError(f"{where}: has a strategy, but no tasks, and names no estimator that prices them")
    speedup = plan.provenance.get("precision_speedup")
    try:
        with naming_plugins(host):
            estimator = host.make(Estimator, recorded_name(host, estimators[0]), estimators[0]["options"])
            cluster = with_machines(plan.cluster, host)
            costs = build_costs(estimator, plan.graph, cluster)
            costs = at_speed(estimator, costs, plan.graph, speedup if isinstance(speedup, float | int) else None)
    except TopoplanError as error:
        raise TopoplanError(f"{where}: {error}") from None
    return Lowering(plan.graph, cluster, training_costs(costs, plan.graph), one_task=one_task)
