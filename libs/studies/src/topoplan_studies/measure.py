"""One run, in a process of its own: an experiment in, plain numbers out."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import numpy as np

from topoplan.errors import NoPlanFitsError, TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.plan import Plan
from topoplan.model.problem import Demand
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Experiment
from topoplan_engine.fitting import fullest_device
from topoplan_engine.host_models import slow_link_of_interfaces
from topoplan_engine.network.bounds import any_wiring_bound
from topoplan_engine.network.building import used_interfaces
from topoplan_engine.reporting.notice import compilation_announced
from topoplan_engine.reporting.timeline import breakdown_json
from topoplan_engine.search.optimize import Outcome, optimize
from topoplan_engine.simulation.idle import exposed_communication
from topoplan_engine.simulation.phases import phased_demand
from topoplan_engine.workers import takes_turn
from topoplan_studies.prices import UNSTATED, bill

__all__ = ["REFUSED", "measure", "measure_searchers"]

#: Key of what a searcher says that cannot search a problem.
REFUSED = "refused"


@compilation_announced(is_first=takes_turn)
def measure(host: Host, experiment: Experiment) -> dict[str, Any]:
    """Run an experiment and return what tables need; the same experiment gives the same values, but for seconds.

    ``history`` has rows (evaluations, best cost), with the seconds since the search began between them where the
    search keeps these; ``search_s`` is how long the search took.

    Raises:
        TopoplanError: it cannot be run.
    """
    outcome, lacks = _outcome(experiment, host)
    plan, timeline = outcome.plan, outcome.plan.timeline
    assert timeline is not None
    demand = phased_demand(plan.taskgraph, plan.cluster)
    slow_link = slow_link_of_interfaces(plan.cluster)
    fullest = fullest_device(outcome.memory, plan.cluster.usable_memory)
    return {
        "iteration_time_s": outcome.seconds,
        "draws": max(1, len(outcome.draws.seeds)),
        "standard_deviation_s": outcome.draws.deviation,
        "initial_iteration_time_s": outcome.initial_seconds,
        "plan": outcome.origin.name,
        "aside": None
        if outcome.aside is None
        else {"plan": outcome.aside.entry.origin.name, "iteration_time_s": outcome.aside.draws.mean},
        "exposed_communication_s": exposed_communication(timeline),
        **breakdown_json(plan),
        "lower_bound_s": timeline.bounds.best,
        "bounds": attrs.asdict(timeline.bounds),
        "fabric_lower_bound_s": None if plan.fabric.n_switches else any_wiring_bound(plan, demand),
        "bandwidth_tax": _tax(plan, demand),
        "fits": not lacks,
        "lacks": lacks,
        "memory_bytes": float(outcome.memory[fullest]),
        "memory_capacity_bytes": float(plan.cluster.usable_memory[fullest]),
        "evaluations": outcome.result.evaluations,
        **({"too_large": outcome.result.too_large} if outcome.result.too_large else {}),
        "history": outcome.result.history.tolist(),
        "search_s": outcome.result.elapsed,
        "batch_size": plan.graph.batch_size if plan.graph else None,
        "interfaces": int(plan.cluster.interfaces.min()),
        "interfaces_used": int(used_interfaces(plan.fabric, plan.cluster).max()),
        "interface_bandwidth_gbps": float(plan.cluster.interface_bandwidth.min()) * 8e-9,
        **_most_interfaces(plan.cluster),
        **({} if slow_link is None else {"gbps_behind_interface": slow_link * 8e-9}),
        "devices": _gpus(plan.cluster),
        "parts": [[item.part, item.gbps, item.count] for item in bill(plan.fabric)],
        **({"priced_as": UNSTATED} if plan.fabric.switching is None else {}),
    }


def _most_interfaces(cluster: Cluster) -> dict[str, Any]:
    """Return the most interfaces of a host, and Gbps of one, of hosts that differ in them; nothing where none do."""
    counts, rates = cluster.interfaces, cluster.interface_bandwidth
    if (counts == counts[0]).all() and (rates == rates[0]).all():
        return {}
    return {"most_interfaces": [int(counts.max()), float(rates.max()) * 8e-9]}


def _gpus(cluster: Cluster) -> dict[str, int]:
    """Return how many GPUs of each kind a cluster has; a device may stand for several."""
    counts = Counter(cluster.device_preset)
    return {kind: count * cluster.gpus_per_device for kind, count in sorted(counts.items())}


@compilation_announced(is_first=takes_turn)
def measure_searchers(host: Host, experiment: Experiment) -> dict[str, Any]:
    """`measure`, where searchers are compared: one that cannot search a problem says why, and has no plan that fits.

    Its values are those of the initial strategy, with the error under ``refused``.

    Raises:
        TopoplanError: it cannot be run, whatever the searcher.
    """
    try:
        return measure(host, experiment)
    except TopoplanError as error:
        return {**measure(host, _initial(experiment)), "fits": False, "lacks": str(error), REFUSED: str(error)}


def _initial(experiment: Experiment) -> Experiment:
    """Return the experiment without a search."""
    run = attrs.evolve(experiment.run, budget=0, chains=1, workers=1)
    return attrs.evolve(experiment, searchers=("mcmc",), run=run)


def _outcome(experiment: Experiment, host: Host) -> tuple[Outcome, str]:
    """Return the outcome of a run, and what its plan lacks of memory; if no plan fits, that of the initial strategy.

    Raises:
        TopoplanError: it cannot be run, or nothing fits a hard limit on memory.
    """
    try:
        outcome = optimize(experiment, host=host)
    except NoPlanFitsError as error:
        simulator = experiment.simulator
        if simulator.options.get("memory") == "limit":  # which refuses what does not fit
            raise
        as_it_is = attrs.evolve(simulator, options={**simulator.options, "memory": "ignore"})
        return optimize(attrs.evolve(_initial(experiment), simulator=as_it_is), host=host), str(error)
    return outcome, "" if outcome.memory_ignored else outcome.lacks


def _tax(plan: Plan, demand: Demand) -> float | None:
    """Return the bytes that leave hosts over the bytes that they have to send, the bandwidth tax (TopoOpt, NSDI 2023).

    If no host forwards for others, it is 1 plus what the simulator adds for headers.  None if nothing is sent.
    """
    assert plan.timeline is not None
    sizes = np.diff(demand.group_ptr)
    bytes_asked = float(demand.matrix.sum() + (2 * (sizes - 1) * demand.group_bytes).sum())
    links = plan.fabric.links
    bytes_sent = float(plan.timeline.link_bytes[: links.n_links][links.link_src < links.n_hosts].sum())
    return bytes_sent / bytes_asked if bytes_asked > 0 else None
