"""Plans whose file has a strategy and no tasks: they are lowered again with the estimator that the plan names.

Best known plans of benchmark problems are stored so, since task graphs are large and follow from the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.plan import Plan
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan.plugin.components import Estimator, Kind
from topoplan.plugin.host import Host
from topoplan_engine.blame import naming_plugins
from topoplan_engine.checked_prices import build_costs
from topoplan_engine.experiment import with_machines
from topoplan_engine.lowering import Lowering
from topoplan_engine.precision import at_speed
from topoplan_engine.simulation.gradients import recorded_components
from topoplan_engine.training_costs import training_costs

__all__ = ["lowering_of", "with_tasks", "without_tasks"]


def without_tasks(plan: Plan) -> Plan:
    """Return a plan with its model, strategy, fabric and provenance; in place of its tasks is one of no time."""
    nothing = TaskGraph(
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
        n_devices=plan.cluster.n_devices,
    )
    return attrs.evolve(plan, taskgraph=nothing, timeline=None, recording=None, history=None, memory=None)


def with_tasks(plan: Plan, host: Host, where: str) -> Plan:
    """Return a plan that `without_tasks` made with its tasks again, and any other one as it is.

    Raises:
        TopoplanError: it names no estimator, or one that is not installed; the message begins with ``where``.
    """
    tasks = plan.taskgraph
    emptied = tasks.n_tasks == 1 and tasks.op[0] < 0 and tasks.seconds[0] == 0 and tasks.kind[0] == TaskKind.FORWARD
    if not emptied or plan.strategy is None or plan.graph is None or not plan.graph.operators:
        return plan
    lowering = lowering_of(plan, host, where)
    return attrs.evolve(plan, taskgraph=lowering.lower(plan.strategy), memory=lowering.memory_use(plan.strategy))


def lowering_of(plan: Plan, host: Host, where: str) -> Lowering:
    """Return what lowers strategies of a plan's model, priced as the plan says.

    Raises:
        TopoplanError: it does not say how, or its estimator is not installed or finds something wrong.
    """
    estimators = [part for part in recorded_components(plan) if part.get("kind") == Kind.ESTIMATOR.value]
    if plan.graph is None or not estimators or not isinstance(estimators[0].get("options"), Mapping):
        raise TopoplanError(f"{where}: has a strategy, but no tasks, and names no estimator that prices them")
    speedup = plan.provenance.get("precision_speedup")
    try:
        with naming_plugins(host):
            estimator = host.make(Estimator, str(estimators[0].get("name")), estimators[0]["options"])
            cluster = with_machines(plan.cluster, host)
            costs = build_costs(estimator, plan.graph, cluster)
            costs = at_speed(estimator, costs, plan.graph, speedup if isinstance(speedup, float | int) else None)
    except TopoplanError as error:
        raise TopoplanError(f"{where}: {error}") from None
    return Lowering(plan.graph, cluster, training_costs(costs, plan.graph))
