"""One strategy for each model on each network: found alone on the servers of a job, used by all of its jobs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.taskgraph import TaskGraph
from topoplan.plugin.components import Simulator, Topology, TopologyContext
from topoplan.plugin.host import Host
from topoplan.plugin.simulate import Simulate
from topoplan_command_share.shared_cluster import SharedCluster
from topoplan_command_share.union import union
from topoplan_engine.experiment import Choice, build_cluster
from topoplan_engine.guarded import build_simulate
from topoplan_engine.network.building import build_fabric
from topoplan_engine.search.draws import finish_times
from topoplan_engine.search.optimize import Outcome, optimize
from topoplan_studies.clusters import Target
from topoplan_studies.prices import Prices
from topoplan_studies.runspecs import run_specs

__all__ = ["JobPlan", "NetworkPlan", "plans"]


@attrs.frozen(kw_only=True, eq=False)
class JobPlan:
    """One iteration of a model on a network.

    Attributes:
        taskgraph: of the plan.
        alone: seconds that it takes by itself on the network, on the first servers.
        lacks: what the plan lacks of memory; empty if it fits.
    """

    taskgraph: TaskGraph
    alone: float
    lacks: str = ""


@attrs.frozen(kw_only=True, eq=False)
class NetworkPlan:
    """A network with what runs on it.

    Attributes:
        name: as in the study.
        cluster: the whole one, with the interfaces that this network has.
        fabric: that all jobs share; None if each job gets a partition of its own.
        jobs: for each model of the study.
        simulate: runs task graphs.
        first_draw: seed that the simulator was built with; times are means over draws that follow it.
        target: the cost that the network should have; None if the study sets none.
    """

    name: str
    cluster: Cluster
    fabric: AnyFabric | None
    jobs: tuple[JobPlan, ...]
    simulate: Simulate
    first_draw: int
    target: Target | None

    @property
    def fits(self) -> bool:
        """Whether the plans of all models fit into memory."""
        return not any(job.lacks for job in self.jobs)


def plans(
    shared: SharedCluster, host: Host, prices: Prices, measures: Path | None, on_progress: Callable[[str], None]
) -> list[NetworkPlan]:
    """Search the strategies and build the networks; those with a plan that does not fit into memory come last.

    Args:
        shared: what to plan.
        host: where components come from.
        prices: for networks that have to cost as much as others; they do so at the size of the whole cluster.
        measures: folder with the models' measurement files, if they are to price operators.
        on_progress: called after every search with what it was for.

    Raises:
        TopoplanError: a component or file is missing, or a model cannot be planned.
        KeyboardInterrupt: the user stopped a search.
    """
    study = shared.study
    outcomes: dict[tuple[str, str], Outcome] = {}
    whole: dict[str, Cluster] = {}
    targets: dict[str, Target | None] = {}
    for spec in run_specs(study, host, prices, measures):
        servers = shared.jobs[[model.name for model in study.models].index(spec.model)].servers
        options = spec.experiment.cluster
        whole[spec.network], targets[spec.network] = build_cluster(options, host), spec.target
        experiment = attrs.evolve(spec.experiment, cluster=attrs.evolve(options, servers=servers))
        try:
            outcome = optimize(experiment, host=host)
        except TopoplanError as error:
            raise TopoplanError(f"{spec.model} on {servers} servers of {spec.network}: {error}") from None
        if outcome.result.interrupted:
            raise KeyboardInterrupt
        outcomes[spec.model, spec.network] = outcome
        on_progress(f"{spec.model} on {spec.network}")
    simulator = study.simulator.make(host, Simulator)
    first_draw = simulator.first_draw
    networks = []
    for network in study.networks:
        cluster, simulate = whole[network.name], build_simulate(simulator, host)
        fabric = _shared_fabric(shared, network.choice, cluster, host)
        jobs = tuple(
            _job(outcomes[model.name, network.name], fabric, cluster, simulate, first_draw) for model in study.models
        )
        networks.append(
            NetworkPlan(
                name=network.name,
                cluster=cluster,
                fabric=fabric,
                jobs=jobs,
                simulate=simulate,
                first_draw=first_draw,
                target=targets[network.name],
            )
        )
    return sorted(networks, key=lambda network: not network.fits)


def _job(outcome: Outcome, fabric: AnyFabric | None, cluster: Cluster, simulate: Simulate, first_draw: int) -> JobPlan:
    """Time a plan on its own fabric, or on one that it could share."""
    plan, lacks = outcome.plan, "" if outcome.memory_ignored else outcome.lacks
    if fabric is None:
        return JobPlan(taskgraph=plan.taskgraph, alone=outcome.seconds, lacks=lacks)
    first = np.arange(plan.cluster.n_devices, dtype=np.int32)
    whole = union([plan.taskgraph], [first], cluster.n_devices)
    seconds = finish_times(simulate, whole, fabric, cluster, first_draw).max(axis=1).mean()
    return JobPlan(taskgraph=plan.taskgraph, alone=float(seconds), lacks=lacks)


def _shared_fabric(shared: SharedCluster, choice: Choice, cluster: Cluster, host: Host) -> AnyFabric | None:
    """Build the fabric of the whole cluster; None for a topology that follows demand."""
    topology = choice.make(host, Topology)
    if topology.follows_demand:
        return None
    rng = np.random.default_rng(shared.options.seed)
    return build_fabric(topology, TopologyContext(cluster=cluster, demand=None, rng=rng))
