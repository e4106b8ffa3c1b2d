"""`simulate_file`: simulate a task graph from anybody, on its own network or on another one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric, LinkKind
from topoplan.model.interfaces import built
from topoplan.model.plan import Plan
from topoplan.model.taskgraph import TaskGraph, TaskKind
from topoplan.plugin.components import Kind, Simulator, Topology, TopologyContext
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Choice
from topoplan_engine.exporting import read_plan
from topoplan_engine.provenance import component_record
from topoplan_engine.simulation.phases import phased_demand

__all__ = ["between_ends", "simulate_file", "simulator_of"]


def simulate_file(
    path: Path | str,
    *,
    topology: Choice | str | None = None,
    simulator: Choice | str | None = None,
    interface_bandwidth_gbps: float | None = None,
    latency_us: float | None = None,
    degree: int | None = None,
    seed: int = 0,
    host: Host | None = None,
) -> Plan:
    """Read a task graph and simulate one iteration of it.

    Args:
        path: a file that an installed exporter can read.
        topology: network to put the file's hosts on; its own when None.
        simulator: simulator and options; None for the one that the file's plan was made with, under the draw of equal
            paths that its timeline is of, and ``fluid`` where the file does not say.
        interface_bandwidth_gbps, latency_us, degree: override what the file says of every host's
            interfaces and of every link.
        seed: of the topology's randomness.
        host: where components come from; all installed plugins unless given.

    Returns:
        The plan as read, with the network it ran on, its timeline, and the simulator in its provenance.

    Raises:
        TopoplanError: the file is not right, or its tasks cannot run (cycle, unreachable pair).
    """
    host = host or Host.discover()
    plan = read_plan(host, Path(path))
    plan.taskgraph.check(str(path))
    cluster, fabric = plan.cluster, plan.fabric
    if interface_bandwidth_gbps is not None:
        if not 0 < interface_bandwidth_gbps < float("inf"):
            raise TopoplanError(f"--interface-bandwidth-gbps {interface_bandwidth_gbps}: must be positive and finite")
        speed = np.full(cluster.n_hosts, interface_bandwidth_gbps * 1e9 / 8)
        # The file's network keeps its shape: every physical link runs at the new speed, but for those inside hosts.
        fabric = _evolved(
            fabric,
            lambda part: {
                "link_bandwidth": np.where(
                    part.link_kind == LinkKind.INSIDE, part.link_bandwidth, part.link_count * speed[0]
                )
            },
        )
        cluster = attrs.evolve(cluster, interface_bandwidth=speed)
    if latency_us is not None:
        if not 0 <= latency_us < float("inf"):
            raise TopoplanError(f"--latency-us {latency_us}: must be finite and not negative")
        seconds = latency_us * 1e-6
        fabric = _evolved(fabric, lambda part: {"link_latency": np.full(part.n_links, seconds)})
        cluster = attrs.evolve(cluster, latency=latency_us * 1e-6)
    if degree is not None:
        cluster = attrs.evolve(cluster, interfaces=np.full(cluster.n_hosts, degree))
    if topology is not None:
        plan = attrs.evolve(plan, taskgraph=between_ends(plan.taskgraph, plan.fabric, plan.cluster))
        choice = Choice.parse(topology, "topology") if isinstance(topology, str) else topology
        wired = host.make(Topology, choice.name, choice.options)
        demand = phased_demand(plan.taskgraph, cluster) if wired.follows_demand else None
        fabric = built(wired, TopologyContext(cluster=cluster, demand=demand, rng=np.random.default_rng(seed)))
    given = simulator_of(plan) if simulator is None else simulator
    choice = Choice.parse(given, "simulator") if isinstance(given, str) else given
    component = host.make(Simulator, choice.name, choice.options)
    try:
        with host.naming_plugins():
            timeline = component.build()(plan.taskgraph, fabric, cluster)
    except TopoplanError as error:
        raise TopoplanError(f"{path}: {error}") from None
    others = [part for part in plan.components if part.get("kind") != Kind.SIMULATOR.value]
    told = {**plan.provenance, "components": [*others, component_record(host, component)]}
    return attrs.evolve(plan, cluster=cluster, fabric=fabric, timeline=timeline, provenance=told)


def simulator_of(plan: Plan) -> Choice:
    """Return the simulator that a plan was made with, as its provenance says; ``fluid`` where it says none."""
    record = plan.provenance
    try:
        made = next(one for one in record.get("components", ()) if one["kind"] == Kind.SIMULATOR.value)
        drawn = record.get("iteration_time", {}).get("timeline_seed")
        return Choice(str(made["name"]), {**made["options"], **({} if drawn is None else {"seed": drawn})})
    except (StopIteration, KeyError, TypeError, AttributeError):  # a record of another program, or none
        return Choice("fluid")


def _evolved(fabric: Fabric, columns: Callable[[Fabric], dict[str, Any]]) -> Fabric:
    """Change columns of a fabric, or of those of its phases."""
    if fabric.phases is None:
        return attrs.evolve(fabric, **columns(fabric))
    forward, backward, reduce = (attrs.evolve(part, **columns(part)) for part in fabric.phases.fabrics)
    return Fabric.from_phases(attrs.evolve(fabric.phases, forward=forward, backward=backward, reduce=reduce))


def between_ends(taskgraph: TaskGraph, fabric: Fabric, cluster: Cluster) -> TaskGraph:
    """Return the task graph with every transfer between the hosts that its path joins.

    A route may list paths of other hosts than its own (`topoplan_exporter_flatbuffer.pins`): there a pair is no more
    than a name for them.  On another fabric the name means something else.
    """
    routes = fabric.routes
    if routes is None or not len(routes.links):
        return taskgraph
    have = np.flatnonzero(np.diff(routes.pair_ptr) > 0)
    path = routes.pair_ptr[have]  # all paths of a pair have the same ends
    first, last = routes.links[routes.path_ptr[path]], routes.links[routes.path_ptr[path + 1] - 1]
    ends = np.stack([fabric.link_src[first], fabric.link_dst[last]], axis=1)
    other = (ends != routes.pairs[have]).any(axis=1)
    if not other.any():
        return taskgraph
    hosts, device_host = fabric.n_hosts, cluster.device_host
    meant = np.arange(hosts * hosts)
    named, ends = routes.pairs[have][other].astype(np.int64), ends[other].astype(np.int64)
    meant[named[:, 0] * hosts + named[:, 1]] = ends[:, 0] * hosts + ends[:, 1]
    moved = np.flatnonzero(taskgraph.kind == TaskKind.TRANSFER)
    pair = device_host[taskgraph.src[moved]].astype(np.int64) * hosts + device_host[taskgraph.dst[moved]]
    moved, pair = moved[meant[pair] != pair], pair[meant[pair] != pair]
    device = np.searchsorted(device_host, np.arange(hosts))  # messages leave from the first device of a host
    src, dst = taskgraph.src.copy(), taskgraph.dst.copy()
    src[moved], dst[moved] = device[meant[pair] // hosts], device[meant[pair] % hosts]
    return attrs.evolve(taskgraph, src=src, dst=dst)
