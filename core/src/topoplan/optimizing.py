"""`optimize`: run an experiment, from names and options to a plan.

Data flow: the host gives components; the frontend builds the graph, the estimator compiles its costs, the
topology its fabric; `topoplan.run.drive` searches; the best state is simulated once more as a `Plan`.
The command line and notebooks call this one function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import attrs
import numpy as np

from topoplan import __version__
from topoplan.arrays import F64
from topoplan.components import Frontend, Kind, Searcher, Simulate, Simulator, Topology, TopologyContext
from topoplan.errors import TopoplanError
from topoplan.evaluate import Evaluator, check_memory, memory_penalty
from topoplan.experiment import Choice, Experiment, build_cluster
from topoplan.exporting import read_strategy, strategy_path
from topoplan.fabric import Fabric
from topoplan.host import Host
from topoplan.plan import Plan
from topoplan.problem import Demand, Problem
from topoplan.run import Progress, Result, Run, drive
from topoplan.search import Search
from topoplan.simulate.breakeven import BreakEven, break_even, rebuilds
from topoplan.space import Space

__all__ = ["Outcome", "optimize", "provenance"]


@attrs.frozen(kw_only=True)
class Outcome:
    """What `optimize` returns.

    Attributes:
        plan: the best state, simulated in full.
        initial: the state that the search started from, likewise.
        result: costs, number of evaluations and history of the search.
        memory: (D,) bytes that the plan keeps on each device.
        penalty: seconds that exceeding memory adds to the plan's cost; 0 where memory is ignored.
        break_even: where the topology's fabrics are rebuilt between phases: what that takes and saves, for the
            plan's strategy.
    """

    plan: Plan
    initial: Plan
    result: Result
    memory: F64
    penalty: float
    break_even: BreakEven | None = None


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
    used = _components(host, experiment)
    (frontend, model_options), (topology, topology_options), (estimator, estimator_options), *rest = used
    (simulator, simulator_options), *chosen = rest
    cluster = build_cluster(experiment.cluster)

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
        strategy = read_strategy(host, experiment.run.strategy, graph)
    strategy.check(graph, cluster.n_devices)

    # One stream for the first fabric, one for each searcher: adding a searcher changes no other's draws.
    fabric_rng, *search_rngs = np.random.default_rng(experiment.run.seed).spawn(1 + len(chosen))
    searches: list[tuple[str, Search]] = [
        (component.axis, component.build(options, problem, rng))
        for (component, options), rng in zip(chosen, search_rngs, strict=True)
    ]
    simulate = simulator.build(simulator_options)
    evaluator = Evaluator(problem, simulate, policy)
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
    record = {**provenance(host, experiment), **_reports(run.searchers, searches)}
    plan = evaluator.plan(result.best, record)
    pays = None
    if topology.static is not None:
        context = TopologyContext(cluster=cluster, demand=evaluator.demand(result.best.strategy), rng=fabric_rng)
        pays = _break_even(simulate, topology, topology_options, context, plan)
    outcome = Outcome(
        plan=plan,
        initial=plan if result.best is result.initial else evaluator.plan(result.initial, record),
        result=result,
        memory=memory,
        penalty=memory_penalty(memory, cluster.device_memory, policy),
        break_even=pays,
    )
    host.hook.topoplan_run_finished(run=run, plans=[outcome.plan])
    return outcome


def _components(host: Host, experiment: Experiment) -> list[tuple[Any, Any]]:
    """Return frontend, topology, estimator, simulator and searchers, each with its options."""
    frontend = host.make(Kind.FRONTEND, experiment.model.name, experiment.model.options)
    preferred = cast("Frontend", frontend[0]).estimator
    chosen = [
        (Kind.TOPOLOGY, experiment.topology),
        (Kind.ESTIMATOR, experiment.estimator or Choice(preferred)),
        (Kind.SIMULATOR, experiment.simulator),
        *((Kind.SEARCHER, choice) for choice in _with_partners(host, experiment.searchers)),
    ]
    return [frontend, *(host.make(kind, choice.name, choice.options) for kind, choice in chosen)]


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


def _break_even(
    simulate: Simulate, topology: Topology, options: Any, context: TopologyContext, plan: Plan
) -> BreakEven | None:
    """Compare the topology's fabric for the plan with those that stay as they are, the plan's own among them if so."""
    assert topology.static is not None
    rebuilt, static = plan.fabric, list(topology.static(options, context))
    if not rebuilds(plan.taskgraph, rebuilt, context.cluster):
        static.append(rebuilt)
        rebuilt = topology.build(options, context)
    if rebuilt.phases is None:
        return None
    return break_even(simulate, plan.taskgraph, rebuilt, static, context.cluster)


def provenance(host: Host, experiment: Experiment) -> Mapping[str, Any]:
    """Record all that is needed to repeat the run; nothing in it depends on time or place.

    Raises:
        TopoplanError: a component or an option is unknown or wrong.
    """
    used = _components(host, experiment)
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
    files += [str(strategy_path(host, experiment.run.strategy))] if experiment.run.strategy else []
    return {
        "topoplan": __version__,
        "seed": experiment.run.seed,
        "budget": experiment.run.budget,
        "batch_size": experiment.run.batch_size,
        "components": components,
        "cluster": _json_ready(attrs.asdict(experiment.cluster)),
        "inputs": {Path(name).name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in files},
    }


def _reports(names: Sequence[str], searches: Sequence[tuple[str, Search]]) -> Mapping[str, Any]:
    """Return what searchers report, by their names, as the provenance holds it; nothing where none does."""
    reports = {
        name: _json_ready(search.report())  # type: ignore[attr-defined]
        for name, (_, search) in zip(names, searches, strict=True)
        if hasattr(search, "report")
    }
    return {"reports": reports} if reports else {}


def _json_ready(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_json_ready(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _json_ready(item) for key, item in value.items()}
    return value
