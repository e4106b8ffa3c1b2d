"""One run, in a process of its own: an experiment in, plain numbers out."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import attrs
import numpy as np

from topoplan.errors import NoPlanFitsError, TopoplanError
from topoplan.model.interfaces import used_interfaces
from topoplan.model.plan import Plan
from topoplan.model.problem import Demand
from topoplan.plugin.components import Topology
from topoplan.plugin.host import Host
from topoplan_engine.experiment import Choice, Experiment
from topoplan_engine.interrupt import end_with_parent
from topoplan_engine.network.bounds import fabric_lower_bound
from topoplan_engine.packing import INSTALLED, unpacked
from topoplan_engine.search.optimize import Outcome, optimize
from topoplan_engine.simulation.phases import phased_demand
from topoplan_studies.prices import bill

__all__ = ["measure", "start_worker"]

_host = cache(unpacked)


def start_worker() -> None:
    """Prepare a worker process: Ctrl-C is the parent's, who lets the run under way finish."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()


def measure(name: str, experiment: Experiment, plugins: bytes = INSTALLED) -> dict[str, Any]:
    """Run an experiment and return what tables need; the same experiment gives the same values.

    Args:
        name: of the run, for messages.
        experiment: what to run.
        plugins: where components come from, `topoplan_engine.packing.packed`.

    Raises:
        TopoplanError: it cannot be run.
    """
    host = _host(plugins)
    try:
        # In a thread, because a search in the main one takes Ctrl-C for itself and would end early.
        with ThreadPoolExecutor(1) as thread:
            outcome, lacks = thread.submit(_outcome, experiment, host).result()
    except TopoplanError as error:
        raise TopoplanError(f"{name}: {error}") from None
    plan, timeline = outcome.plan, outcome.plan.timeline
    assert timeline is not None
    topology = host.get(Topology, experiment.topology.name)
    fullest = int(np.argmax(outcome.memory / plan.cluster.device_memory))
    return {
        "iteration_time_s": outcome.seconds,
        "draws": max(1, len(outcome.draws.seeds)),
        "standard_deviation_s": outcome.draws.deviation,
        "initial_iteration_time_s": outcome.initial_seconds,
        "plan": outcome.origin.name,
        "aside": None
        if outcome.aside is None
        else {"plan": outcome.aside.entry.origin.name, "iteration_time_s": outcome.aside.draws.mean},
        "exposed_communication_s": timeline.exposed_communication,
        "lower_bound_s": timeline.bounds.best,
        "bounds": attrs.asdict(timeline.bounds),
        "fabric_lower_bound_s": _any_wiring(plan),
        "bandwidth_tax": _tax(plan),
        "fits": not lacks,
        "lacks": lacks,
        "memory_bytes": float(outcome.memory[fullest]),
        "memory_capacity_bytes": float(plan.cluster.device_memory[fullest]),
        "evaluations": outcome.result.evaluations,
        "batch_size": plan.graph.batch_size if plan.graph else None,
        "interfaces": int(plan.cluster.interfaces.min()),
        "interfaces_used": int(used_interfaces(plan.fabric, plan.cluster).max()),
        "interface_bandwidth_gbps": float(plan.cluster.interface_bandwidth.min()) * 8e-9,
        "parts": [[item.part, item.gbps, item.count] for item in bill(plan.fabric, topology.switching)],
    }


def _outcome(experiment: Experiment, host: Host) -> tuple[Outcome, str]:
    """Return what a run gives, and what it lacks of memory; where no plan fits, the initial strategy as it is.

    Raises:
        TopoplanError: it cannot be run, or nothing fits a hard limit on memory.
    """
    try:
        outcome = optimize(experiment, host=host)
    except NoPlanFitsError as error:
        simulator = experiment.simulator
        if simulator.options.get("memory") == "limit":  # which refuses what does not fit
            raise
        as_it_is = Choice(simulator.name, {**simulator.options, "memory": "ignore"})
        run = attrs.evolve(experiment.run, budget=0, chains=1, workers=1)
        first = attrs.evolve(experiment, simulator=as_it_is, searchers=("mcmc",), run=run)
        return optimize(first, host=host), str(error)
    return outcome, "" if outcome.memory_ignored else outcome.lacks


def _any_wiring(plan: Plan) -> float | None:
    """Return seconds that the plan's strategy takes at least on any wiring of the hosts' interfaces.

    That is the larger of its compute and of the network time of its demand (`topoplan_engine.network.bounds`).  None
    for a
    network of switches, of which the bound does not speak.
    """
    assert plan.timeline is not None
    if plan.fabric.n_switches:
        return None
    return max(plan.timeline.bounds.device, fabric_lower_bound(_demand(plan), plan.cluster))


def _demand(plan: Plan) -> Demand:
    return phased_demand(plan.taskgraph, plan.cluster)


def _tax(plan: Plan) -> float | None:
    """Return the bytes that leave hosts over the bytes that they have to send, the bandwidth tax (TopoOpt, NSDI 2023).

    Where no host forwards for others it is 1, and what the simulator adds for headers.  None where nothing is sent.
    """
    assert plan.timeline is not None
    demand = _demand(plan)
    sizes = np.diff(demand.group_ptr)
    asked = float(demand.matrix.sum() + (2 * (sizes - 1) * demand.group_bytes).sum())
    links = plan.timeline.link_bytes[: plan.fabric.n_links]
    left = float(links[plan.fabric.link_src < plan.fabric.n_hosts].sum())
    return left / asked if asked > 0 else None
