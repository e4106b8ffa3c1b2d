"""`optimize`: run an experiment, from names and options to a plan.

Data flow: the host gives components; the frontend builds the graph, the estimator compiles its costs, the
topology its fabric; `topoplan.run.drive` searches; the best state is simulated once more as a `Plan`.
The command line and notebooks call this one function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import attrs
import numpy as np

from topoplan import __version__
from topoplan.arrays import F64
from topoplan.components import Component, Kind, Searcher, Simulator, Topology, TopologyContext
from topoplan.errors import TopoplanError
from topoplan.evaluate import Evaluator, check_memory, memory_penalty
from topoplan.experiment import Choice, Experiment, build_cluster
from topoplan.exporting import read_strategy
from topoplan.fabric import Fabric
from topoplan.host import Host
from topoplan.plan import Plan
from topoplan.problem import Demand, Problem
from topoplan.run import Progress, Result, Run, drive
from topoplan.search import Search
from topoplan.space import Space

__all__ = ["Outcome", "optimize"]


@attrs.frozen(kw_only=True)
class Outcome:
    """What `optimize` returns.

    Attributes:
        plan: the best state, simulated in full.
        initial: the state that the search started from, likewise.
        result: costs, number of evaluations and history of the search.
        memory: (D,) bytes that the plan keeps on each device.
        penalty: seconds that exceeding memory adds to the plan's cost; 0 where memory is ignored.
    """

    plan: Plan
    initial: Plan
    result: Result
    memory: F64
    penalty: float


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
    """
    host = host or Host.discover()
    used: list[tuple[Component, Any]] = []

    def make(kind: Kind, choice: Choice) -> tuple[Any, Any]:
        component, options = host.make(kind, choice.name, choice.options)
        used.append((component, options))
        return component, options

    cluster = build_cluster(experiment.cluster)
    frontend, model_options = make(Kind.FRONTEND, experiment.model)
    topology, topology_options = make(Kind.TOPOLOGY, experiment.topology)
    estimator, estimator_options = make(Kind.ESTIMATOR, experiment.estimator)
    simulator, simulator_options = make(Kind.SIMULATOR, experiment.simulator)
    chosen = [make(Kind.SEARCHER, choice) for choice in _with_partners(host, experiment.searchers)]

    graph = frontend.build(model_options, experiment.run.batch_size)
    costs = estimator.build(estimator_options, graph, cluster)
    problem = Problem(
        graph=graph,
        cluster=cluster,
        costs=costs,
        space=Space(graph, cluster, costs),
        topology=topology.name,
        build_fabric=_fabric_builder(topology, topology_options, cluster),
        reconfigurable=topology.follows_demand,
    )
    policy = cast("Simulator", simulator).memory(simulator_options)
    check_memory(problem, policy)
    if experiment.run.strategy is None:
        strategy = problem.space.initial()
    else:
        strategy = read_strategy(host, Path(experiment.run.strategy), graph)
    strategy.check(graph, cluster.n_devices)

    # One stream for the first fabric, one for each searcher: adding a searcher changes no other's draws.
    fabric_rng, *search_rngs = np.random.default_rng(experiment.run.seed).spawn(1 + len(chosen))
    searches: list[tuple[str, Search]] = [
        (component.axis, component.build(options, problem, rng))
        for (component, options), rng in zip(chosen, search_rngs, strict=True)
    ]
    evaluator = Evaluator(problem, simulator.build(simulator_options), policy)
    run = Run(
        problem=problem,
        budget=experiment.run.budget,
        seed=experiment.run.seed,
        searchers=tuple(component.name for component, _ in chosen),
    )

    def report(event: str, progress: Progress) -> None:
        hook = host.hook.topoplan_new_best if event == "new_best" else host.hook.topoplan_evaluated
        hook(run=run, progress=progress)
        on_progress(event, progress)

    host.hook.topoplan_run_started(run=run)
    result = drive(run, evaluator, strategy, searches, fabric_rng, report)
    memory = evaluator.memory(result.best.strategy)
    if result.best_cost == float("inf"):
        worst = int(np.argmax(memory - cluster.device_memory))
        raise TopoplanError(
            f"model {graph.name!r}: no strategy that was tried fits: device {worst} would need "
            f"{memory[worst] / 1e9:.1f} GB of {cluster.device_memory[worst] / 1e9:.1f} GB "
            f"(use more servers, or --simulator {simulator.name}:memory=penalty)"
        )
    record = _provenance(host, experiment, used)
    plan = evaluator.plan(result.best, record)
    outcome = Outcome(
        plan=plan,
        initial=plan if result.best is result.initial else evaluator.plan(result.initial, record),
        result=result,
        memory=memory,
        penalty=memory_penalty(memory, cluster.device_memory, policy),
    )
    host.hook.topoplan_run_finished(run=run, plans=[outcome.plan])
    return outcome


def _with_partners(host: Host, choices: tuple[Choice, ...]) -> list[Choice]:
    """Put a strategy searcher before network searchers that came alone."""
    searchers = [cast("Searcher", host.get(Kind.SEARCHER, choice.name)) for choice in choices]
    if any(searcher.axis == "strategy" for searcher in searchers):
        return list(choices)
    partners = dict.fromkeys(s.partner for s in searchers if s.partner is not None)
    return [*(Choice(name) for name in partners), *choices]


def _fabric_builder(
    topology: Topology, options: Any, cluster: Any
) -> Callable[[Demand | None, np.random.Generator], Fabric]:
    def build(demand: Demand | None, rng: np.random.Generator) -> Fabric:
        return topology.build(options, TopologyContext(cluster=cluster, demand=demand, rng=rng))

    return build


def _provenance(host: Host, experiment: Experiment, used: list[tuple[Component, Any]]) -> Mapping[str, Any]:
    """Record all that is needed to repeat the run; nothing in it depends on time or place."""
    components = []
    for component, options in used:
        provider = host.provider(component)
        components.append(
            {
                "kind": component.kind.value,
                "name": component.name,
                "distribution": provider.dist,
                "version": provider.version,
                "options": {key: _json_ready(value) for key, value in attrs.asdict(options).items()},
            }
        )
    files = [
        str(value) for _, options in used for key, value in attrs.asdict(options).items() if key == "file" and value
    ]
    files += [experiment.run.strategy] if experiment.run.strategy else []
    return {
        "topoplan": __version__,
        "seed": experiment.run.seed,
        "budget": experiment.run.budget,
        "batch_size": experiment.run.batch_size,
        "components": components,
        "cluster": _json_ready(attrs.asdict(experiment.cluster)),
        "inputs": {Path(name).name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in files},
    }


def _json_ready(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_json_ready(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _json_ready(item) for key, item in value.items()}
    return value
