"""Promises of searchers: ``build(problem, rng) -> Search``, driven by ask and tell."""

from __future__ import annotations

import functools
from collections.abc import Callable

import attrs
import numpy as np

from topoplan import Candidate, OperatorGraph, PlacedStrategy, Placement, Problem, Searcher, State, TopoplanError, Trial
from topoplan.errors import shown
from topoplan_testing import landscape
from topoplan_testing._common import example, global_randomness_untouched
from topoplan_testing._hardware import rewiring_fault

_BUDGET = 300


def check_same_seed_same_search(component: type[Searcher]) -> None:
    """A generator in the same state gives the same candidates in the same order."""
    (_, first), (_, second) = _same_search(component), _search(component)
    same = [
        a.state.strategy == b.state.strategy and a.state.fabric == b.state.fabric
        for a, b in zip(first, second, strict=False)
    ]
    assert len(first) == len(second), f"two searches asked for {len(first)} and {len(second)} candidates"
    assert all(same), f"two searches differ at candidate {same.index(False)}"


def check_global_randomness_is_untouched(component: type[Searcher]) -> None:
    """Randomness comes from the generator that it is given, alone."""
    with global_randomness_untouched():
        _search(component)


def check_candidates_can_be_built(component: type[Searcher]) -> None:
    """Strategies fit the graph and the cluster; fabrics are the topology's hardware, wired anew."""
    problem, trials = _search(component, strict=True)
    own_fabric = landscape.start(problem).fabric
    assert trials, "the searcher asks for nothing"
    for number, trial in enumerate(trials):
        try:
            trial.state.strategy.check(problem.graph, problem.cluster.n_devices)
        except TopoplanError as error:
            raise AssertionError(f"candidate {number}: {error}") from None
        fault = rewiring_fault(trial.state.fabric, own_fabric, problem.cluster)
        assert not fault, f"candidate {number}: {fault}"


def check_only_its_axis_moves(component: type[Searcher]) -> None:
    """A candidate changes placements or the fabric, as the searcher's `axis` says; of a joint one either or both."""

    def price(candidate: Candidate) -> Trial:
        if component.axis == "strategy":
            assert candidate.fabric is None, "a searcher of the strategy axis proposes a fabric"
        elif component.axis == "network":
            assert not candidate.placements, "a searcher of the network axis proposes placements"
        return landscape.trial(candidate.state())

    _search(component, price)


def check_a_fixed_network_stays(component: type[Searcher]) -> None:
    """Where the network cannot be rewired, no candidate has a fabric; or the searcher refuses the problem."""

    def price(candidate: Candidate) -> Trial:
        assert candidate.fabric is None, "proposes a fabric, though Problem.reconfigurable is false"
        return landscape.trial(candidate.state())

    fixed = attrs.evolve(landscape.problem(), reconfigurable=False)
    try:
        example(component).build(fixed, np.random.default_rng(5))
    except TopoplanError:
        return
    _search(component, price, problem=fixed)


def check_beats_chance(component: type[Searcher]) -> None:
    """The best of 300 candidates is better than half of all states drawn at random, or than the initial one."""
    problem, trials = _same_search(component)
    best = min((trial.cost for trial in trials), default=0.0)  # check_candidates_can_be_built tells why there is none
    first = landscape.start(problem)
    if component.axis == "network":
        limit = landscape.trial(first).cost
        assert best <= limit, f"the best of {len(trials)} fabrics costs {best} s, the initial ring {limit} s"
        return
    rng = np.random.default_rng(7)
    draws = ([problem.space.random_placement(op, rng) for op in (0, 1)] for _ in range(101))
    median = float(np.median([landscape.trial(State(PlacedStrategy(tuple(p)), first.fabric)).cost for p in draws]))
    assert best < median, f"the best of {len(trials)} candidates costs {best} s, the median of random ones {median} s"


def check_infinite_costs_are_survived(component: type[Searcher]) -> None:
    """A search goes on when its candidates turn out to be infeasible."""
    _search(component, lambda candidate: attrs.evolve(landscape.trial(candidate.state()), cost=float("inf")))


def check_shortened_batches_are_survived(component: type[Searcher]) -> None:
    """A search goes on when the budget ended a batch early."""
    _search(component, keep=lambda count: (count + 1) // 2)


def _why_wrong(candidate: Candidate, graph: OperatorGraph) -> str:
    """Say what of a candidate is no placement of an operator; empty if all is."""
    indices = range(len(graph.operators))
    for op, placement in candidate.placements.items():
        if op not in indices or not isinstance(placement, Placement):
            return f"placements {{{op!r}: {shown(placement)}}} (must map indices from 0 to {indices[-1]} to Placement)"
        if reason := graph.operators[op].why_invalid(placement.degrees):
            return f"{shown(placement)} for operator {op}: {reason}"
    return ""


def _search(
    component: type[Searcher],
    price: Callable[[Candidate], Trial] = lambda candidate: landscape.trial(candidate.state()),
    keep: Callable[[int], int] = lambda count: count,
    strict: bool = False,
    problem: Problem | None = None,
) -> tuple[Problem, list[Trial]]:
    """Search as the driver does; return all trials.  What is no candidate ends it, ``strict`` with an error."""
    problem = problem or landscape.problem()
    search = example(component).build(problem, np.random.default_rng(5))
    search.adopt(landscape.trial(landscape.start(problem)))
    trials: list[Trial] = []
    while len(trials) < _BUDGET:
        candidates = list(search.ask())[: _BUDGET - len(trials)]
        reasons = [reason for candidate in candidates if (reason := _why_wrong(candidate, problem.graph))]
        assert not (reasons and strict), f"ask proposed {reasons[0]}"
        if not candidates and search.plans:
            continue
        if reasons or not candidates:
            break
        batch = [price(candidate) for candidate in candidates[: keep(len(candidates))]]
        search.tell(batch)
        trials += batch
    return problem, trials


@functools.lru_cache(maxsize=1)  # checks of one component follow each other
def _same_search(component: type[Searcher]) -> tuple[Problem, list[Trial]]:
    """Return a search that several checks look at; none of them changes it."""
    return _search(component)
