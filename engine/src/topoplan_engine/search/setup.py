"""From an experiment to a `SearchSetup`: components are looked up and built.

Data flow: the host gives components; the frontend builds the graph, the estimator compiles its costs, the
topology gives a way to build its fabrics; `set_up_search` puts them into a `Problem` with an evaluator, and
`SearchSetup.searches` builds the searchers of one island.  Every island of a search, in whatever process,
is set up by itself from the same experiment.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import attrs
import numpy as np

from topoplan.errors import PluginError, TopoplanError
from topoplan.model.problem import Problem
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import PlacedStrategy, Strategy
from topoplan.plugin.components import Component, Estimator, Exporter, Frontend, Searcher, Simulator, Topology
from topoplan.plugin.host import Host
from topoplan.plugin.simulate import Simulate
from topoplan.search.protocol import Search
from topoplan.search.stopping import Stopped
from topoplan_engine.checked_prices import build_costs
from topoplan_engine.checked_values import build_graph
from topoplan_engine.experiment import Choice, Experiment, build_cluster, interfaces_unless_given
from topoplan_engine.exporting import read_strategy
from topoplan_engine.fitting import check_fits_somewhere
from topoplan_engine.guarded import build_search, build_simulate
from topoplan_engine.located import locating
from topoplan_engine.perturbation import Perturbation
from topoplan_engine.precision import at_speed, in_fp8, in_run_precision, optimizer_of
from topoplan_engine.search.bests import Keep
from topoplan_engine.search.clocked import Clocked
from topoplan_engine.search.common_restriction import as_run
from topoplan_engine.search.companions import BringsCompanions, PortfolioMember, build_member, companions_of
from topoplan_engine.search.default_estimator import estimator_of
from topoplan_engine.search.evaluator import Evaluator, Memory
from topoplan_engine.search.perturbed import noisy_profile, perturbed
from topoplan_engine.search.problems import problem_on
from topoplan_engine.search.starting import NoSearch, go_on_without, initial_strategy
from topoplan_engine.search.trainer_software import noting_kernels
from topoplan_engine.search.trainers import restricted
from topoplan_engine.sharding.programs import check_strategy
from topoplan_engine.trainer_kernels import check_precision, with_kernels
from topoplan_engine.training_costs import training_costs

__all__ = ["Chosen", "SearchSetup", "chosen_components", "named", "set_up_search"]

#: Bytes of every device where memory is ignored: the most that a cluster may have.
_PLENTY_BYTES = 1e18
#: Passes of data parallelism from which on a plan that is stated is its own start.
_LARGE_START = 1 << 22


@attrs.frozen(kw_only=True, eq=False)
class SearchSetup:
    """The built components of an experiment.

    Attributes:
        experiment: what names them.
        problem: what is searched in.
        strategy: where the search starts.
        simulate, simulator, policy: the built simulator, its component, and its memory policy.
        topology: as chosen.
        searchers: in the order of their turns: those that users chose, and the companions that these bring along.
        n_chosen: how many users chose, or trainers left of what another one brings along.
        companions: which of these came along, by their turns.
        evaluator: has priced strategies to start from at most.
        seed: of the search.
        keep: which searchers construct, and whether the result is what they constructed: if users want it, and all
            strategy searchers construct.
    """

    experiment: Experiment
    problem: Problem
    strategy: Strategy
    simulate: Simulate
    simulator: Simulator
    policy: Memory
    topology: Topology
    searchers: tuple[Searcher, ...]
    n_chosen: int
    companions: frozenset[int]
    evaluator: Evaluator
    formats: tuple[Exporter, ...]
    seed: int
    keep: Keep

    def new_evaluator(self) -> Evaluator:
        """Return an evaluator that has priced nothing."""
        draws, first_draw = self.experiment.run.draws, self.simulator.first_draw
        evaluator = Evaluator(self.problem, self.simulate, self.policy, draws, first_draw, self.formats)
        evaluator.keep_to(self.formats, self.strategy)
        return evaluator

    def rng(self) -> np.random.Generator:
        """Return a new stream for the draws of the topology, as `searches` gives it to every island."""
        return np.random.default_rng(self.seed).spawn(1)[0]

    def searches(
        self,
        island: int = 0,
        restart: int = 0,
        clocked: Clocked = Clocked(),  # noqa: B008 - it is frozen, and nothing ends it
    ) -> tuple[np.random.Generator, list[tuple[str, Search]]]:
        """Build the searchers of one island of one of several independent searches.

        One stream of random numbers draws the first fabric, the same for all islands; every searcher of
        every island has its own, so that adding a searcher or an island changes no other's draws.

        Returns:
            The stream of the first fabric, and (axis, search) in the order of their turns.

        Raises:
            TopoplanError: a searcher cannot search the problem, or finds no plan that fits, and no other one can.

        Where the search must end (`topoplan_engine.interrupt`) while one is built, there is none in its place.
        """
        count, searched = len(self.searchers), self._searched_problem()
        fabric_rng, *rngs = np.random.default_rng(self.seed).spawn(1 + count)
        if island or restart:
            rngs = np.random.default_rng([self.seed, island, *([restart] if restart else [])]).spawn(count)
        built: list[tuple[str, Search]] = []
        errors: dict[int, TopoplanError] = {}
        for turn, (searcher, rng) in enumerate(zip(self.searchers, rngs, strict=True)):
            search: Search = NoSearch()
            if turn >= self.n_chosen:
                members = [search for _, search in built if isinstance(search, PortfolioMember)]
                search = build_member(searcher, searched, rng, members)
            else:
                try:
                    search = clocked.call(functools.partial(build_search, searcher, searched, rng))
                except Stopped:
                    search = NoSearch(searcher.name)
                except TopoplanError as error:
                    errors[turn] = error
            built.append((searcher.axis, search))
        axes = [axis for turn, (axis, _) in enumerate(built) if turn not in errors]
        for turn, refusal in errors.items():
            axis, name = built[turn][0], self.searchers[turn].name
            if turn in self.companions and "strategy" in axes and not isinstance(refusal, PluginError):
                built[turn] = axis, PortfolioMember(None, name=name, refusal=str(refusal))
                continue
            if axis not in axes:  # a network that cannot be wired, say: users named what is no use
                raise refusal
            go_on_without(refusal, axis, NoSearch(), axes)
        return fabric_rng, built

    def _searched_problem(self) -> Problem:
        """Return the problem as searchers see it: planners do not save memory that is ignored."""
        cluster = self.problem.cluster
        if self.policy != "ignore":
            return self.problem
        plenty = np.full(cluster.n_devices, _PLENTY_BYTES)
        return attrs.evolve(self.problem, cluster=attrs.evolve(cluster, device_memory=plenty))


def set_up_search(
    host: Host, experiment: Experiment, perturbation: Perturbation | None = None, same: Problem | None = None
) -> SearchSetup:
    """Build the components of an experiment; ``perturbation`` changes its costs and bandwidths.

    Args:
        same: the problem of an experiment that has the same model, machine and estimator, with what is known of its
            prices.

    Raises:
        TopoplanError: something in the experiment is wrong.
    """
    chosen = chosen_components(host, experiment)
    topology, simulator, searchers = chosen.topology, chosen.simulator, chosen.searchers
    problem = _problem_of(host, experiment, chosen, perturbation) if same is None else same
    graph, cluster = problem.graph, problem.cluster
    problem = restricted(host, experiment, problem)
    policy = simulator.memory_policy
    simulate = build_simulate(simulator, host)
    formats = tuple(choice.make(host, Exporter) for choice, _ in experiment.outputs)
    evaluator = Evaluator(problem, simulate, policy, experiment.run.draws, simulator.first_draw, formats)
    strategy = _stated_strategy(experiment, searchers, problem) or _first_strategy(host, experiment, evaluator)
    check_strategy(strategy, graph, cluster.n_devices)
    evaluator.keep_to(formats, strategy)
    if policy != "ignore":
        kept_whole = all(searcher.whole_batch or searcher.axis == "network" for searcher in searchers)
        staged = isinstance(strategy, StagedStrategy) and strategy.program is None
        check_fits_somewhere(problem, whole_batch=kept_whole and not staged)
    return SearchSetup(
        experiment=experiment,
        problem=problem,
        strategy=strategy,
        simulate=simulate,
        simulator=simulator,
        policy=policy,
        topology=topology,
        searchers=searchers,
        n_chosen=len(chosen.searchers) - chosen.n_companions,
        companions=frozenset(turn for turn, choice in enumerate(chosen.partners) if choice.is_companion),
        evaluator=evaluator,
        formats=formats,
        seed=experiment.run.seed,
        keep=_keep(experiment, searchers),
    )


def _problem_of(host: Host, experiment: Experiment, chosen: Chosen, perturbation: Perturbation | None) -> Problem:
    """Return what an experiment is of, without what trainers run."""
    topology, estimator = chosen.topology, chosen.estimator
    cluster = build_cluster(interfaces_unless_given(experiment.cluster, [topology]), host)
    with locating(experiment.model.source):
        graph = build_graph(chosen.frontend, experiment.run.batch_size)
    graph = in_run_precision(graph, experiment.run.precision)
    if experiment.run.precision == "fp8":
        estimator = in_fp8(estimator)
    check_precision(experiment.run.kernels or "", experiment.run.precision or "")
    graph = noting_kernels(with_kernels(graph, experiment.run.kernels or ""), experiment.run)
    graph = attrs.evolve(graph, optimizer=experiment.run.optimizer or optimizer_of(graph))
    if perturbation is not None:
        estimator = noisy_profile(estimator, perturbation)
    with locating("" if experiment.estimator is None else experiment.estimator.source):
        costs = build_costs(estimator, graph, cluster)
    costs = at_speed(estimator, costs, graph, experiment.run.precision_speedup)
    costs = training_costs(costs, graph)
    problem = problem_on(graph, cluster, costs, topology)
    return problem if perturbation is None else perturbed(problem, perturbation)


def _stated_strategy(experiment: Experiment, searchers: Sequence[Searcher], problem: Problem) -> Strategy | None:
    """Return the strategy that the only searcher states, where data parallelism would take much longer to be priced.

    There is nothing to search from it, and all of its tasks would be simulated.
    """
    passes = 2 * len(problem.graph.operators) * problem.cluster.n_devices
    if len(searchers) != 1 or experiment.run.strategy is not None or passes < _LARGE_START:
        return None
    (searcher,) = searchers
    return searcher.stated_strategy(problem) if isinstance(searcher, StatesStrategy) else None


def _first_strategy(host: Host, experiment: Experiment, evaluator: Evaluator) -> Strategy:
    """Return data parallelism, or what a file says, with the rest data parallel if users want that."""
    run, initial = experiment.run, initial_strategy(evaluator, experiment.run.seed)
    if run.strategy is None:
        initial = as_run(evaluator.problem, initial)
        if run.strategy_rest is not None:
            raise TopoplanError("strategy-rest: no file names some operators only (give --strategy FILE, too)")
        return initial
    fallback = None if run.strategy_rest is None else PlacedStrategy(initial.placements)
    return read_strategy(host, run.strategy, evaluator.problem.graph, fallback)


def _keep(experiment: Experiment, searchers: Sequence[Searcher]) -> Keep:
    of_strategies = [searcher for searcher in searchers if searcher.axis != "network"]
    return Keep(
        constructing={number: searcher.name for number, searcher in enumerate(searchers) if searcher.constructs},
        others={
            number: searcher.name
            for number, searcher in enumerate(searchers)
            if searcher.axis != "network" and not searcher.constructs
        },
        constructed=experiment.run.keep == "constructed" and all(searcher.constructs for searcher in of_strategies),
        stated=bool(of_strategies) and all(isinstance(searcher, StatesStrategy) for searcher in of_strategies),
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
        return attrs.evolve(choice, component=None)

    return attrs.evolve(
        experiment,
        model=name_of(experiment.model),
        topology=name_of(experiment.topology),
        estimator=None if experiment.estimator is None else name_of(experiment.estimator),
        simulator=name_of(experiment.simulator),
        searchers=tuple(map(name_of, experiment.searchers)),
    )


@runtime_checkable
class StatesStrategy(Protocol):
    """A searcher that has one strategy to propose, which its options state."""

    def stated_strategy(self, problem: Problem) -> Strategy:
        """Return the strategy."""


@attrs.frozen(kw_only=True)
class Chosen:
    """The components of an experiment, with their options.

    Attributes:
        searchers: in the order of their turns, the companions that some bring along at the end.
        n_companions: how many of them are companions.
        partners: what the others were made of.
    """

    frontend: Frontend
    topology: Topology
    estimator: Estimator
    simulator: Simulator
    searchers: tuple[Searcher, ...]
    n_companions: int
    partners: tuple[Choice, ...]

    @property
    def all(self) -> list[Component]:
        """All of them, in this order."""
        return [self.frontend, self.topology, self.estimator, self.simulator, *self.searchers]


def chosen_components(host: Host, experiment: Experiment) -> Chosen:
    """Make the components that an experiment names.

    Raises:
        TopoplanError: a component or an option is unknown or wrong.
    """
    frontend = experiment.model.make(host, Frontend)
    estimator = estimator_of(host, experiment, frontend)
    topology = experiment.topology.make(host, Topology)
    simulator = experiment.simulator.make(host, Simulator)
    partners = _with_partners(host, experiment.searchers)
    searchers = tuple(choice.make(host, Searcher) for choice in partners)
    companions: tuple[Searcher, ...] = ()
    if any(isinstance(searcher, BringsCompanions) for searcher in searchers):
        cluster = build_cluster(interfaces_unless_given(experiment.cluster, [topology]), host)
        companions = companions_of(host, searchers, topology, cluster.n_devices)
    return Chosen(
        frontend=frontend,
        topology=topology,
        estimator=estimator.make(host, Estimator),
        simulator=simulator,
        searchers=(*searchers, *companions),
        n_companions=len(companions),
        partners=tuple(partners),
    )


def _with_partners(host: Host, choices: tuple[Choice, ...]) -> list[Choice]:
    """Put a strategy searcher before network searchers that came alone."""
    searchers = [choice.find(host, Searcher) for choice in choices]
    if any(searcher.axis != "network" for searcher in searchers):
        return list(choices)
    partners = dict.fromkeys(s.partner for s in searchers if s.partner is not None)
    return [*(Choice(name) for name in partners), *choices]
