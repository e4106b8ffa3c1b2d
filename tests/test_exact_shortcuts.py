"""Shortcuts of pricing change nothing: chains are the same with and without early rejection, and kept pieces give
the same timeline as lowering and simulating from scratch, to the last bit."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Host, State
from topoplan_engine.search.evaluator import Evaluator
from topoplan_samples.long_tail import at_night
from topoplan_samples.models import MODELS, model_problem
from topoplan_searcher_mcmc import Mcmc

TOPOLOGIES = ["bigswitch", "topoopt", "ocs", "fattree", "random", "fully-connected"]
SIMULATORS = ["fluid", "flexnet"]
#: Places of models that simulate quickly: the largest ones run at night.
SMALL = [place for place, name in enumerate(MODELS) if name not in ("inception-v3", "resnet50")]


@pytest.fixture(scope="module")
def host():
    return Host.discover()


def evaluator_of(host, problem, simulator, memory="penalty"):
    component = host.make("simulator", simulator)
    return Evaluator(problem, component.build(), memory)


def start_of(problem, evaluator):
    strategy = problem.space.initial()
    demand = evaluator.demand(strategy) if problem.reconfigurable else None
    return State(strategy, problem.build_fabric(demand, np.random.default_rng(0)))


def searched(host, problem, evaluator, start, steps, seed, full):
    """Run a chain; with ``full``, every candidate is lowered and simulated to the end."""
    search = Mcmc().build(problem, np.random.default_rng(seed))
    search.adopt(evaluator.price(Candidate(base=start)))
    passed, rejected = [], 0
    for _ in range(steps):
        trials = []
        for candidate in search.ask():
            if full:
                trials.append(evaluator.price(attrs.evolve(candidate, cutoff_seconds=float("inf"))))
            else:
                trials.append(evaluator.price(candidate))
                rejected += trials[-1].cost == float("inf")
        search.tell(trials)
        current = search._current
        passed.append((current.cost, tuple(p.key for p in current.state.strategy.placements)))
    return passed, rejected


def early_rejection_leaves_the_chain_as_it_is(host, models, topology, simulator, steps):
    rejected = 0
    for model in models:
        problem = model_problem(host, model, topology, degree=4)
        first, second = (evaluator_of(host, problem, simulator) for _ in range(2))
        start, seed = start_of(problem, first), list(MODELS).index(model)
        quick, left_out = searched(host, problem, first, start, steps, seed, full=False)
        slow, _ = searched(host, problem, second, start, steps, seed, full=True)
        assert quick == slow
        rejected += left_out
    assert rejected > 0


def a_change_gives_the_timeline_of_a_fresh_start(host, model, topologies, simulator, changes):
    rng = np.random.default_rng(3)
    for topology in topologies:
        problem = model_problem(host, model, topology, degree=4)
        evaluator = evaluator_of(host, problem, simulator)
        state = start_of(problem, evaluator)
        for _ in range(changes):
            op = int(rng.integers(len(state.strategy.placements)))
            changed = Candidate(base=state, placements={op: problem.space.random_placement(op, rng)}).state()
            fresh = evaluator_of(host, problem, simulator)
            delta, full = evaluator.plan(changed, {}), fresh.plan(changed, {})
            assert delta.taskgraph == full.taskgraph
            assert delta.timeline == full.timeline
            cost = evaluator.price(Candidate(base=changed)).cost
            assert cost == fresh.price(Candidate(base=changed)).cost
            if rng.random() < 0.5:
                state = changed


# Every model and every topology with both simulators; not every model on every topology.


@pytest.mark.by_day(2)
@pytest.mark.parametrize("simulator", at_night(SIMULATORS, "fluid"))
@pytest.mark.parametrize("place", at_night(range(len(TOPOLOGIES)), 0, 1, 2), ids=TOPOLOGIES.__getitem__)
def test_early_rejection_leaves_the_chain_as_it_is(host, place, simulator):
    models = list(MODELS)[place % 3 :: 3]
    early_rejection_leaves_the_chain_as_it_is(host, models, TOPOLOGIES[place], simulator, steps=12)


@pytest.mark.by_day(2)
@pytest.mark.parametrize("simulator", at_night(SIMULATORS, "fluid"))
@pytest.mark.parametrize("place", at_night(range(len(MODELS)), *SMALL), ids=list(MODELS).__getitem__)
def test_a_change_gives_the_timeline_of_a_fresh_start(host, place, simulator):
    topologies = [TOPOLOGIES[place % 6], TOPOLOGIES[(place + 3) % 6]]
    a_change_gives_the_timeline_of_a_fresh_start(host, list(MODELS)[place], topologies, simulator, changes=4)


@pytest.mark.slow
@pytest.mark.parametrize("simulator", SIMULATORS)
@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_early_rejection_leaves_every_chain_as_it_is(host, topology, simulator):
    early_rejection_leaves_the_chain_as_it_is(host, MODELS, topology, simulator, steps=30)


@pytest.mark.slow
@pytest.mark.parametrize("simulator", SIMULATORS)
@pytest.mark.parametrize("model", MODELS)
def test_every_change_gives_the_timeline_of_a_fresh_start(host, model, simulator):
    a_change_gives_the_timeline_of_a_fresh_start(host, model, TOPOLOGIES, simulator, changes=24)
