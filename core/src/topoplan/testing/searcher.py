"""Promises of searchers: ``build(problem, rng) -> Search``, driven by ask and tell."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.interfaces import check_fabric
from topoplan.model.problem import Problem
from topoplan.plugin.components import Searcher
from topoplan.search.protocol import Candidate, State, Trial
from topoplan.testing import landscape
from topoplan.testing.common import example

__all__ = [
    "check_beats_chance",
    "check_candidates_can_be_built",
    "check_global_randomness_is_untouched",
    "check_infinite_costs_are_survived",
    "check_only_its_axis_moves",
    "check_same_seed_same_search",
    "check_shortened_batches_are_survived",
]

_BUDGET = 300


def check_same_seed_same_search(component: type[Searcher]) -> None:
    """A generator in the same state gives the same candidates in the same order."""
    one, two = (_search(component)[1] for _ in range(2))
    same = [
        a.state.strategy == b.state.strategy and a.state.fabric == b.state.fabric
        for a, b in zip(one, two, strict=False)
    ]
    assert len(one) == len(two), f"two searches asked for {len(one)} and {len(two)} candidates"
    assert all(same), f"two searches differ at candidate {same.index(False)}"


def check_global_randomness_is_untouched(component: type[Searcher]) -> None:
    """Randomness comes from the generator that it is given, alone."""
    before = np.random.get_state()  # noqa: NPY002 - it is the global one that must not be used
    _search(component)
    after = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)), "np.random's own state has changed"


def check_candidates_can_be_built(component: type[Searcher]) -> None:
    """Strategies fit the graph and the cluster; fabrics have its hosts and keep within their interfaces."""
    problem, trials = _search(component)
    assert trials, "the searcher asks for nothing"
    for number, trial in enumerate(trials):
        try:
            trial.state.strategy.check(problem.graph, problem.cluster.n_devices)
        except TopoplanError as error:
            raise AssertionError(f"candidate {number}: {error}") from None
        try:
            check_fabric(trial.state.fabric, problem.cluster)
        except TopoplanError as error:
            raise AssertionError(f"candidate {number}: {error}") from None


def check_only_its_axis_moves(component: type[Searcher]) -> None:
    """A candidate changes placements or the fabric, as the searcher's `axis` says, and never the other."""

    def price(candidate: Candidate) -> Trial:
        if component.axis == "strategy":
            assert candidate.fabric is None, "a searcher of the strategy axis proposes a fabric"
        else:
            assert not candidate.placements, "a searcher of the network axis proposes placements"
        return landscape.trial(candidate.state())

    _search(component, price)


def check_beats_chance(component: type[Searcher]) -> None:
    """The best of 300 candidates is better than half of all states drawn at random, or than the initial one."""
    problem, trials = _search(component)
    best = min(trial.cost for trial in trials)
    first = landscape.start(problem)
    if component.axis == "network":
        reached = landscape.trial(first).cost
        assert best <= reached, f"the best of {len(trials)} fabrics costs {best} s, the initial ring {reached} s"
        return
    rng = np.random.default_rng(7)
    drawn = [landscape.trial(State(landscape.random_strategy(problem, rng), first.fabric)).cost for _ in range(101)]
    median = float(np.median(drawn))
    assert best < median, f"the best of {len(trials)} candidates costs {best} s, the median of random ones {median} s"


def check_infinite_costs_are_survived(component: type[Searcher]) -> None:
    """A search goes on when its candidates turn out to be infeasible."""
    _search(component, lambda candidate: attrs.evolve(landscape.trial(candidate.state()), cost=float("inf")))


def check_shortened_batches_are_survived(component: type[Searcher]) -> None:
    """A search goes on when the budget ended a batch early."""
    _search(component, keep=lambda count: (count + 1) // 2)


def _price(candidate: Candidate) -> Trial:
    return landscape.trial(candidate.state())


def _search(
    component: type[Searcher],
    price: Callable[[Candidate], Trial] = _price,
    keep: Callable[[int], int] = lambda count: count,
) -> tuple[Problem, list[Trial]]:
    """Search as the driver does, until the budget is spent or nothing is asked; return all trials told."""
    problem = landscape.problem()
    search = example(component).build(problem, np.random.default_rng(5))
    search.adopt(landscape.trial(landscape.start(problem)))
    told: list[Trial] = []
    while len(told) < _BUDGET:
        candidates = list(search.ask())[: _BUDGET - len(told)]
        if not candidates:
            break
        trials = [price(candidate) for candidate in candidates[: keep(len(candidates))]]
        search.tell(trials)
        told += trials
    return problem, told
