"""From an experiment to what a search needs: components are looked up, built and put together.

Data flow: the host gives components; the frontend builds the graph, the estimator compiles its costs, the
topology gives a way to build its fabrics; `assemble` puts them into a `Problem` with an evaluator, and
`Assembly.searches` builds the searchers of one chain.  Every chain of a search, in whatever process, is
assembled by itself from the same experiment.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, cast

import attrs
import numpy as np

from topoplan.errors import NoPlanFitsError, TopoplanWarning
from topoplan.model.fabric import Fabric
from topoplan.model.interfaces import built
from topoplan.model.problem import Demand, Problem
from topoplan.model.strategy import Strategy
from topoplan.plugin.components import Frontend, Kind, Searcher, Simulate, Simulator, Topology, TopologyContext
from topoplan.plugin.host import Host
from topoplan.search.protocol import Candidate, Search, Trial
from topoplan_engine.experiment import Choice, Experiment, build_cluster, interfaces_unless_given
from topoplan_engine.exporting import read_strategy
from topoplan_engine.fitting import check_fits_somewhere
from topoplan_engine.perturbation import Perturbation
from topoplan_engine.precision import at_speed, in_precision, optimizer_of
from topoplan_engine.search.bests import Keep
from topoplan_engine.search.evaluator import Evaluator, Memory
from topoplan_engine.search.perturbed import perturbed
from topoplan_engine.search.space import Space
from topoplan_engine.sharding.programs import check_strategy

__all__ = ["Assembly", "assemble", "chosen_components", "named"]


@attrs.frozen(kw_only=True, eq=False)
class Assembly:
    """An experiment, put together.

    Attributes:
        strategy: where the search starts.
        simulate, simulator, policy: the built simulator, its component, and what it does about memory.
        topology, topology_options: as chosen.
        searchers: (component, options), in the order of their turns.
        evaluator: has priced nothing yet.
        keep: which searchers construct, and whether the result is what they constructed: where users want it, and no
            searcher goes from one strategy to the next beside them.
    """

    problem: Problem
    strategy: Strategy
    simulate: Simulate
    simulator: Simulator
    policy: Memory
    topology: Topology
    topology_options: Any
    searchers: tuple[tuple[Searcher, Any], ...]
    evaluator: Evaluator
    seed: int
    keep: Keep

    def rng(self) -> np.random.Generator:
        """Return a new stream that draws what the topology draws, as `searches` gives it to every chain."""
        return np.random.default_rng(self.seed).spawn(1)[0]

    def searches(self, chain: int = 0) -> tuple[np.random.Generator, list[tuple[str, Search]]]:
        """Build the searchers of one chain.

        One stream of random numbers draws the first fabric, the same for all chains; every searcher of
        every chain has its own, so that adding a searcher or a chain changes no other's draws.

        Returns:
            The stream of the first fabric, and (axis, search) in the order of their turns.
        """
        count = len(self.searchers)
        fabric_rng, *rngs = np.random.default_rng(self.seed).spawn(1 + count)
        if chain:
            rngs = np.random.default_rng([self.seed, chain]).spawn(count)
        return fabric_rng, [
            (component.axis, self._built(component, options, rng))
            for (component, options), rng in zip(self.searchers, rngs, strict=True)
        ]

    def _built(self, component: Searcher, options: Any, rng: np.random.Generator) -> Search:
        """Build a searcher; one that finds no plan that fits leaves the others of its axis to search on."""
        try:
            return component.build(options, self.problem, rng)
        except NoPlanFitsError as error:
            if sum(other.axis == component.axis for other, _ in self.searchers) == 1:
                raise
            warnings.warn(TopoplanWarning(f"{error}; the other searchers go on"), stacklevel=2)
            return _Nothing()


class _Nothing:
    """A searcher that proposes nothing."""

    def ask(self) -> list[Candidate]:
        return []

    def tell(self, trials: Sequence[Trial]) -> None:
        pass

    def adopt(self, trial: Trial) -> None:
        pass


def assemble(host: Host, experiment: Experiment, perturbation: Perturbation | None = None) -> Assembly:
    """Put an experiment together; its costs are wrong as ``perturbation`` says, if there is one.

    Raises:
        TopoplanError: something in the experiment is wrong.
    """
    used = chosen_components(host, experiment)
    (frontend, model_options), (topology, topology_options), (estimator, estimator_options), *rest = used
    (simulator, simulator_options), *searchers = rest
    cluster = build_cluster(interfaces_unless_given(experiment.cluster, [topology]), host)
    graph = in_precision(frontend.build(model_options, experiment.run.batch_size), experiment.run.precision)
    graph = attrs.evolve(graph, optimizer=experiment.run.optimizer or optimizer_of(graph))
    costs = estimator.build(estimator_options, graph, cluster)
    costs = at_speed(estimator, costs, graph, experiment.run.precision_speedup)
    problem = Problem(
        graph=graph,
        cluster=cluster,
        costs=costs,
        space=Space(graph, cluster, costs),
        topology=topology.name,
        build_fabric=_fabric_builder(topology, topology_options, cluster),
        reconfigurable=topology.follows_demand,
    )
    if perturbation is not None:
        problem = perturbed(problem, perturbation)
    policy = cast("Simulator", simulator).memory(simulator_options)
    if experiment.run.strategy is None:
        strategy = problem.space.initial()
    else:
        strategy = read_strategy(host, experiment.run.strategy, graph)
    check_strategy(strategy, graph, cluster.n_devices)
    if policy != "ignore":
        kept_whole = all(component.whole_batch or component.axis == "network" for component, _ in searchers)
        check_fits_somewhere(problem, whole_batch=kept_whole and strategy.keeps_whole_batch)
    simulate = simulator.build(simulator_options)
    return Assembly(
        problem=problem,
        strategy=strategy,
        simulate=simulate,
        simulator=simulator,
        policy=policy,
        topology=topology,
        topology_options=topology_options,
        searchers=tuple(searchers),
        evaluator=Evaluator(problem, simulate, policy, experiment.run.draws, getattr(simulator_options, "seed", 0)),
        seed=experiment.run.seed,
        keep=_keep(experiment, [component for component, _ in searchers]),
    )


def _keep(experiment: Experiment, searchers: Sequence[Searcher]) -> Keep:
    of_strategies = [searcher for searcher in searchers if searcher.axis == "strategy"]
    return Keep(
        constructing={number: one.name for number, one in enumerate(searchers) if one.constructs},
        constructed=experiment.run.keep == "constructed" and all(one.constructs for one in of_strategies),
    )


def named(host: Host, experiment: Experiment) -> Experiment:
    """Add components that the experiment holds themselves to the host, and return it with their names alone.

    Raises:
        TopoplanError: the host has another component of the same name.
    """

    def name_of(choice: Choice) -> Choice:
        if choice.component is None:
            return choice
        host.add(choice.component)
        return Choice(choice.name, choice.options)

    return attrs.evolve(
        experiment,
        model=name_of(experiment.model),
        topology=name_of(experiment.topology),
        estimator=None if experiment.estimator is None else name_of(experiment.estimator),
        simulator=name_of(experiment.simulator),
        searchers=tuple(map(name_of, experiment.searchers)),
    )


def chosen_components(host: Host, experiment: Experiment) -> list[tuple[Any, Any]]:
    """Return frontend, topology, estimator, simulator and searchers, each with its options.

    Raises:
        TopoplanError: a component or an option is unknown or wrong.
    """
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
        return built(topology, options, TopologyContext(cluster=cluster, demand=demand, rng=rng))

    return build
