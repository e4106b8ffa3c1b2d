"""What an iteration would take with a little more bandwidth, compute or interfaces: simulated again, never guessed.

    plan ─► simulator of its provenance ─► the plan's own time? ─► three changed inputs ─► their times

A plan that was imported, or that its simulator does not repeat, gets the reason in place of a time.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.plan import Plan
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.taskgraph import TaskGraph
from topoplan.plugin.components import Kind, Simulator, Topology, TopologyContext
from topoplan.plugin.host import Host
from topoplan.plugin.simulate import Simulate
from topoplan_engine.guarded import build_simulate, runs_all_to_alls
from topoplan_engine.network.building import build_fabric
from topoplan_engine.provenance import recorded_name
from topoplan_engine.rebuilding import folded_again, is_folded, lowering_of
from topoplan_engine.replay import between_ends, simulator_of
from topoplan_engine.search.perturbed import at_bandwidth
from topoplan_engine.simulation.gradients import recorded_components
from topoplan_engine.simulation.phases import phased_demand

__all__ = ["MORE", "Change", "what_if"]

#: How much more bandwidth and compute is tried, as a share.
MORE = 0.1
#: Relative difference up to which a simulator repeats a plan's time.
_ROUNDING = 1e-9
#: Why a change is not tried.
_LISTED = "tried where all tasks of a plan are listed"


@attrs.frozen(kw_only=True)
class Change:
    """One change to what an iteration has.

    Attributes:
        name: what there is more of.
        seconds: of the iteration then; None where it could not be simulated.
        remark: why it could not, or what else to know; else empty.
    """

    name: str
    seconds: float | None = None
    remark: str = ""


def what_if(plan: Plan, host: Host) -> list[Change]:
    """Simulate a plan with more bandwidth, with more compute, and with one more interface at each host.

    Strategy and task graph stay.  Bandwidth is that of all links of the fabric; inside hosts nothing changes.  With
    one more interface the topology of the plan wires its hosts anew.

    Args:
        plan: with a timeline.
        host: knows the simulator and the topology that the plan names.
    """
    names = (f"{MORE:.0%} more bandwidth", f"{MORE:.0%} more compute", "one more interface per host")
    fabric, cluster = plan.fabric, plan.cluster
    faster = attrs.evolve(cluster, interface_bandwidth=cluster.interface_bandwidth * (1 + MORE))
    if is_folded(plan):
        wider = attrs.evolve(plan, fabric=at_bandwidth(fabric, 1 + MORE), cluster=faster)
        return [_folded(names[0], wider, host), *(Change(name=name, remark=_LISTED) for name in names[1:])]
    try:
        simulate = _simulator(plan, host)
    except TopoplanError as error:
        return [Change(name=name, remark=str(error)) for name in names]
    tasks = plan.taskgraph
    computes = tasks.device >= 0
    quicker = attrs.evolve(tasks, seconds=np.where(computes, tasks.seconds / (1 + MORE), tasks.seconds))
    return [
        _simulated(names[0], simulate, tasks, at_bandwidth(fabric, 1 + MORE), faster),
        _simulated(names[1], simulate, quicker, fabric, cluster),
        _one_more_interface(names[2], simulate, plan, host),
    ]


def _folded(name: str, plan: Plan, host: Host) -> Change:
    """Simulate a folded plan, whose network was changed."""
    try:
        simulate = build_simulate(simulator_of(plan, host).make(host, Simulator), host)
        one_task = runs_all_to_alls(simulate)
        folded = folded_again(plan, simulate, lowering_of(plan, host, "plan", one_task=one_task))
    except TopoplanError as error:
        return Change(name=name, remark=str(error))
    if folded is None or folded.timeline is None:
        return Change(name=name, remark=_LISTED)
    return Change(name=name, seconds=folded.timeline.makespan)


def _simulator(plan: Plan, host: Host) -> Simulate:
    """Return the simulator that the plan names.

    Raises:
        TopoplanError: it is not installed, or does not repeat the plan's time.
    """
    if plan.timeline is None:
        raise TopoplanError("the plan has no timeline")
    choice = simulator_of(plan, host)
    simulate = build_simulate(choice.make(host, Simulator), host)
    seconds = simulate.makespan(plan.taskgraph, plan.fabric, plan.cluster)
    if abs(seconds - plan.timeline.makespan) > _ROUNDING * plan.timeline.makespan:
        raise TopoplanError(
            f"simulator {choice.name} says {seconds * 1e3:.4f} ms for this plan, its timeline "
            f"{plan.timeline.makespan * 1e3:.4f} ms (topoplan simulate FILE -x … writes both alike)"
        )
    return simulate


def _simulated(name: str, simulate: Simulate, tasks: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> Change:
    try:
        return Change(name=name, seconds=simulate.makespan(tasks, fabric, cluster))
    except TopoplanError as error:
        return Change(name=name, remark=str(error))


def _one_more_interface(name: str, simulate: Simulate, plan: Plan, host: Host) -> Change:
    """Simulate on what the plan's topology builds where each host has one more interface."""
    record = next((part for part in recorded_components(plan) if part.get("kind") == Kind.TOPOLOGY.value), None)
    if record is None:
        return Change(name=name, remark="the plan does not name the topology that wired its hosts")
    try:
        options = record.get("options")
        topology = host.make(Topology, recorded_name(host, record), options if isinstance(options, Mapping) else {})
        tasks = between_ends(plan.taskgraph, plan.fabric, plan.cluster)
        wider = attrs.evolve(plan.cluster, interfaces=plan.cluster.interfaces + 1)
        today, then = (_built(plan, topology, tasks, cluster) for cluster in (plan.cluster, wider))
        if today == then:
            return Change(name=name, remark=f"topology {topology.name} has no use for it: it builds the same network")
        seconds = simulate.makespan(tasks, then, wider)
        same = simulate.makespan(tasks, today, plan.cluster)
    except TopoplanError as error:
        return Change(name=name, remark=str(error))
    assert plan.timeline is not None
    wired = f"wired by {topology.name} for this plan"
    if abs(same - plan.timeline.makespan) > _ROUNDING * same:
        wired += f", which takes {same * 1e3:.4f} ms with the interfaces of today"
    return Change(name=name, seconds=seconds, remark=wired)


def _built(plan: Plan, topology: Topology, tasks: TaskGraph, cluster: Cluster) -> AnyFabric:
    seed = plan.provenance.get("seed", 0)
    rng = np.random.default_rng(seed if isinstance(seed, int) and seed >= 0 else 0).spawn(1)[0]
    demand = phased_demand(tasks, cluster) if topology.follows_demand else None
    return build_fabric(topology, TopologyContext(cluster=cluster, demand=demand, rng=rng))
