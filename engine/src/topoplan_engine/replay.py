"""`simulate_file`: simulate a task graph from anybody, on its own network or on another one.

A file that is written for a program, and names no simulator itself, is simulated as that program runs it
(`topoplan.Exporter.runs_as`).  `written_seconds` says so of files that were just written.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric, LinkKind
from topoplan.model.plan import Plan
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.recording import MemoryLevels, Recording
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.model.timeline import Timeline
from topoplan.plugin.components import Exporter, Kind, Simulator, Topology, TopologyContext
from topoplan.plugin.host import Host
from topoplan.plugin.simulate import Simulate
from topoplan_engine.blame import naming_plugins
from topoplan_engine.experiment import Choice, with_collectives
from topoplan_engine.exporting import read_plan, runs_as
from topoplan_engine.files import read_file
from topoplan_engine.guarded import build_simulate, runs_all_to_alls
from topoplan_engine.network.building import build_fabric
from topoplan_engine.provenance import component_record
from topoplan_engine.rebuilding import folded_again, is_folded, lowering_of, recorded_simulator
from topoplan_engine.simulation.draws import REPORTING, Draws, draws_of_tasks, reported_of
from topoplan_engine.simulation.gradients import recorded_components
from topoplan_engine.work import RateOptions, priced

__all__ = ["between_ends", "draws_of", "simulate_file", "simulator_of", "written_seconds"]


def simulate_file(
    path: Path | str,
    *,
    topology: Choice | str | None = None,
    simulator: Choice | str | None = None,
    interface_bandwidth_gbps: float | None = None,
    latency_us: float | None = None,
    degree: int | None = None,
    collective: Sequence[str] = (),
    protocol: str | None = None,
    rates: RateOptions | None = None,
    seed: int = 0,
    record: bool = False,
    host: Host | None = None,
) -> Plan:
    """Read a task graph and simulate one iteration of it.

    Args:
        path: a file that an installed exporter can read.
        topology: network to put the file's hosts on; its own when None.
        simulator: simulator and options; None for the one that the file's plan was made with, under the draw of equal
            paths that its timeline is of.  Where the file does not say, it is the one that its format names
            (``Exporter.runs_as``), whose options also hold for a simulator of this name if they are not stated; else
            ``fluid``.
        interface_bandwidth_gbps, latency_us, degree: override what the file says of every host's
            interfaces and of every link.
        collective, protocol: algorithms of collectives, as ``--collective`` and ``--protocol`` say them.
        rates: of tasks that say their work and no time; the provenance says which, under ``rates``.
        seed: of the topology's randomness.
        record: the plan holds a recording, too, if the simulator can make one; a recording of the file's does not stay.
        host: where components come from; all installed plugins unless given.

    Returns:
        The plan as read, with the network it ran on, its timeline, and the simulator in its provenance.

    Raises:
        TopoplanError: the file is not right, or its tasks cannot run (cycle, unreachable pair).
    """
    host = host or Host.discover()
    plan = read_plan(host, Path(path))
    plan, rates_text = _checked(plan, rates, host, str(path))
    plan = _with_links(plan, interface_bandwidth_gbps, latency_us, degree)
    if topology is not None:
        plan = _on_topology(plan, topology, host, seed)
    choice = with_collectives(_simulator(host, Path(path), plan, simulator), collective or (), protocol)
    component = choice.make(host, Simulator)
    try:
        with naming_plugins(host):
            simulate = build_simulate(component, host)
            timeline, recording = _run(plan, simulate, host, str(path), record=record)
    except TopoplanError as error:
        raise TopoplanError(f"{path}: {error}") from None
    if recording is not None:
        recording = attrs.evolve(recording, memory=_memory_levels(attrs.evolve(plan, timeline=timeline), host))
    components = [part for part in recorded_components(plan) if part.get("kind") != Kind.SIMULATOR.value]
    provenance = {**plan.provenance, "components": [*components, component_record(host, component)]}
    if rates_text:
        provenance["rates"] = rates_text
    return attrs.evolve(plan, timeline=timeline, recording=recording, provenance=provenance)


def _checked(plan: Plan, rates: RateOptions | None, host: Host, where: str) -> tuple[Plan, str]:
    """Return a plan with tasks in range that have seconds, and their rates if they had none; folded ones stay."""
    if is_folded(plan):
        return plan, ""
    plan.taskgraph.check(where)
    return priced(plan, rates, host)


def _run(plan: Plan, simulate: Simulate, host: Host, where: str, *, record: bool) -> tuple[Timeline, Recording | None]:
    """Simulate a plan; a folded one again so, and without a recording, if the simulator can."""
    from topoplan_engine.simulation.recording import simulated

    folded = None
    if is_folded(plan):
        folded = folded_again(plan, simulate, lowering_of(plan, host, where, one_task=runs_all_to_alls(simulate)))
    if folded is None or folded.timeline is None:
        return simulated(simulate, plan.taskgraph, plan.fabric, plan.cluster, record=record)
    return folded.timeline, None


def draws_of(plan: Plan, *, host: Host | None = None) -> Draws | None:
    """Return what a simulated plan takes under draws of equal paths, by the simulator that it names.

    They are those that a search reports of it: as many as its file says.  None where it draws nothing, and where the
    file says no number and the draws would take long.
    """
    host = host or Host.discover()
    component = simulator_of(plan, host).make(host, Simulator)
    simulate, reported = build_simulate(component, host), reported_of(plan.provenance)
    seed = None if reported is None else reported.first_seed
    with naming_plugins(host):
        return draws_of_tasks(
            simulate,
            plan.taskgraph,
            plan.fabric,
            plan.cluster,
            first_draw=component.first_draw if seed is None else seed - REPORTING[0],
            count=None if reported is None else reported.taken,
        )


def written_seconds(exporter: Exporter, path: Path | str, *, host: Host | None = None) -> tuple[str, Draws] | None:
    """Return what runs a file as the program that it is written for does, and its iteration times under each draw.

    There is one where nothing is drawn.

    None if the format of the file names no such simulator.

    Args:
        exporter: what wrote the file.
        path: a task graph that was written.
        host: where components come from; all installed plugins unless given.
    """
    host = host or Host.discover()
    if not exporter.runs_as:
        return None
    choice = Choice.parse(exporter.runs_as, "simulator")
    with naming_plugins(host):
        plan = exporter.read(read_file(Path(path)), str(path))
        component = choice.make(host, Simulator)
        simulate = build_simulate(component, host)
        draws = draws_of_tasks(simulate, plan.taskgraph, plan.fabric, plan.cluster, first_draw=component.first_draw)
        if draws is None:
            draws = Draws(seconds=[simulate.makespan(plan.taskgraph, plan.fabric, plan.cluster)])
    return choice.text, draws


def _simulator(host: Host, path: Path, plan: Plan, asked: Choice | str | None) -> Choice:
    """Return the simulator that is asked for, that the plan records, or that its format names."""
    named = runs_as(host, path)
    recorded = recorded_simulator(plan, host)
    if asked is None:
        return recorded or named or Choice("fluid")
    choice = Choice.parse(asked, "simulator", allow_code=True) if isinstance(asked, str) else asked
    if recorded is None and named is not None and named.name == choice.name:
        return attrs.evolve(choice, options={**named.options, **choice.options})
    return choice


def _memory_levels(plan: Plan, host: Host) -> MemoryLevels:
    """Return memory over time where the plan names its estimator, and that gives the same tasks; else no rows."""
    nothing = MemoryLevels(time=[], device=[], kind=[], nbytes=[])
    if plan.graph is None or plan.strategy is None or plan.timeline is None:
        return nothing
    try:
        one_task = bool((plan.taskgraph.collective == Collective.ALL_TO_ALL).any())
        lowering = lowering_of(plan, host, "plan", one_task=one_task)
        tasks = lowering.lower(plan.strategy)
        if not (np.array_equal(tasks.kind, plan.taskgraph.kind) and np.array_equal(tasks.op, plan.taskgraph.op)):
            return nothing
        return lowering.memory_levels(plan.strategy, tasks, plan.timeline)
    except (TopoplanError, KeyError, TypeError):  # it is not installed, or its files are not here
        return nothing


def _with_links(
    plan: Plan, interface_bandwidth_gbps: float | None, latency_us: float | None, degree: int | None
) -> Plan:
    """Return a plan with other interfaces, and with the same network of other links; what is None stays."""
    cluster, fabric = plan.cluster, plan.fabric
    if interface_bandwidth_gbps is not None:
        if not 0 < interface_bandwidth_gbps < float("inf"):
            raise TopoplanError(f"--interface-bandwidth-gbps {interface_bandwidth_gbps}: must be positive and finite")
        speed = interface_bandwidth_gbps * 1e9 / 8
        fabric = fabric.map_wirings(lambda wiring: _at_speed(wiring, speed))
        cluster = attrs.evolve(cluster, interface_bandwidth=np.full(cluster.n_hosts, speed))
    if latency_us is not None:
        if not 0 <= latency_us < float("inf"):
            raise TopoplanError(f"--latency-us {latency_us}: must be finite and not negative")
        seconds = latency_us * 1e-6
        fabric = fabric.map_wirings(lambda wiring: attrs.evolve(wiring, link_latency=np.full(wiring.n_links, seconds)))
        cluster = attrs.evolve(cluster, latency=seconds)
    if degree is not None:
        cluster = attrs.evolve(cluster, interfaces=np.full(cluster.n_hosts, degree))
    return attrs.evolve(plan, cluster=cluster, fabric=fabric)


def _on_topology(plan: Plan, topology: Choice | str, host: Host, seed: int) -> Plan:
    """Return a plan on a network that is built for its cluster."""
    from topoplan_engine.simulation.phases import phased_demand

    taskgraph = plan.taskgraph if is_folded(plan) else between_ends(plan.taskgraph, plan.fabric, plan.cluster)
    choice = Choice.parse(topology, "topology", allow_code=True) if isinstance(topology, str) else topology
    wired = choice.make(host, Topology)
    demand = phased_demand(taskgraph, plan.cluster) if wired.follows_demand else None
    context = TopologyContext(cluster=plan.cluster, demand=demand, rng=np.random.default_rng(seed))
    return attrs.evolve(plan, taskgraph=taskgraph, fabric=build_fabric(wired, context))


def simulator_of(plan: Plan, host: Host | None = None) -> Choice:
    """Return the simulator that a plan was made with, as its provenance says; ``fluid`` where it says none.

    Where several distributions of ``host`` have one of its name, the choice names the recorded one.
    """
    return recorded_simulator(plan, host) or Choice("fluid")


def _at_speed(fabric: Fabric, speed: float) -> Fabric:
    """Return a fabric whose cables run at ``speed`` bytes/s each; links inside hosts stay."""
    inside = fabric.link_kind == LinkKind.INSIDE
    return attrs.evolve(fabric, link_bandwidth=np.where(inside, fabric.link_bandwidth, fabric.link_count * speed))


def between_ends(taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> TaskGraph:
    """Return the task graph with every transfer between the hosts that its path joins.

    A route may list paths of other hosts than its own (`topoplan_exporter_flatbuffer.pins`): there a pair is no more
    than a name for them.  On another fabric the name means something else.
    """
    if not isinstance(fabric, Fabric) or fabric.routes is None or not len(fabric.routes.links):
        return taskgraph
    routes = fabric.routes
    have = np.flatnonzero(np.diff(routes.pair_ptr) > 0)
    path = routes.pair_ptr[have]  # all paths of a pair have the same ends
    first, last = routes.links[routes.path_ptr[path]], routes.links[routes.path_ptr[path + 1] - 1]
    ends = np.stack([fabric.link_src[first], fabric.link_dst[last]], axis=1)
    foreign = (ends != routes.pairs[have]).any(axis=1)
    if not foreign.any():
        return taskgraph
    hosts, device_host = fabric.n_hosts, cluster.device_host
    meant = np.arange(hosts * hosts)
    named, ends = routes.pairs[have][foreign].astype(np.int64), ends[foreign].astype(np.int64)
    meant[named[:, 0] * hosts + named[:, 1]] = ends[:, 0] * hosts + ends[:, 1]
    moved = np.flatnonzero(taskgraph.kind == TaskKind.TRANSFER)
    pair = device_host[taskgraph.src[moved]].astype(np.int64) * hosts + device_host[taskgraph.dst[moved]]
    moved, pair = moved[meant[pair] != pair], pair[meant[pair] != pair]
    device = np.searchsorted(device_host, np.arange(hosts))  # messages leave from the first device of a host
    src, dst = taskgraph.src.copy(), taskgraph.dst.copy()
    src[moved], dst[moved] = device[meant[pair] // hosts], device[meant[pair] % hosts]
    return attrs.evolve(taskgraph, src=src, dst=dst)
