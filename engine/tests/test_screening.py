"""Proposals that are rejected before they are candidates: a search is the same as by ask and tell, bit for bit."""

from __future__ import annotations

import gc
import signal
import weakref

import numpy as np
import pytest

from topoplan import Candidate, Host, Search, State
from topoplan.errors import PluginError
from topoplan.search.protocol import Run
from topoplan_engine import ClusterOptions, problem_on
from topoplan_engine.experiment import build_cluster
from topoplan_engine.guarded import build_search
from topoplan_engine.lowering import Lowering
from topoplan_engine.search import change_bounds
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.limits import Limits
from topoplan_engine.search.recorder import SearchRecorder
from topoplan_engine.search.whole_run import drive
from topoplan_samples.models import model_problem
from topoplan_searcher_mcmc import Mcmc
from topoplan_searcher_mcmc.chain import Chain
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid


class AskedAndTold(Search):
    """A chain of which the driver knows ask and tell alone."""

    follows = True

    def __init__(self, chain):
        self.chain = chain
        self.ask, self.tell, self.adopt = chain.ask, chain.tell, chain.adopt

    def ask(self):
        raise NotImplementedError

    reached = property(lambda self: self.chain.reached)
    acceptance = property(lambda self: self.chain.acceptance)


def search(problem, simulate, made, memory="ignore", budget=400, **limits):
    """Search; return all that is the same whenever it runs."""
    recorder, evaluator = SearchRecorder(), Evaluator(problem, simulate, memory)
    run = Run(problem=problem, budget=budget, seed=0, searchers=("mcmc",))
    limits = Limits(budget=budget, **limits)
    rng = np.random.default_rng(1)
    result = drive(run, evaluator, problem.space.initial(), [("strategy", made)], rng, recorder=recorder, limits=limits)
    return {
        "rows": [(row.evaluation, row.current, row.best, row.accepted) for row in recorder.rows()],
        "history": result.history[:, [0, 2]].tolist(),
        "best": (result.best.strategy.key, result.best_cost, result.rank),
        "shortlist": [(entry.state.strategy.key, entry.cost) for entry in result.shortlist],
        "counts": (result.evaluations, result.acceptance, result.ended_by),
    }


@pytest.mark.by_day(2)
@pytest.mark.parametrize(
    ("simulator", "topology", "options", "limits"),
    [
        (Fluid, "bigswitch", {"block": 0, "temperature": "absolute"}, {}),
        (Fluid, "bigswitch", {}, {"patience": 60}),
        (Flexnet, "bigswitch", {"hosts": "neighbouring", "reset_every": 7}, {}),
        (Fluid, "fattree", {"propagation": 0.9}, {"budget": 100}),
    ],
    ids=["as FlexNet", "patience", "flexnet", "fat-tree"],
)
def test_a_screened_search_is_the_search_by_ask_and_tell(simulator, topology, options, limits, monkeypatch):
    problem = model_problem(Host.discover(), "dlrm", servers=4, topology=topology)
    asked = AskedAndTold(Chain(Mcmc(**options), problem, np.random.default_rng(3)))
    slow = search(problem, simulator().build(), asked, **limits)
    monkeypatch.delattr(Chain, "ask")
    monkeypatch.setattr(Chain, "__abstractmethods__", frozenset())
    guarded = build_search(Mcmc(**options), problem, np.random.default_rng(3))
    assert search(problem, simulator().build(), guarded, **limits) == slow
    assert 0 < slow["counts"][1] < 0.9  # some are rejected


@pytest.mark.slow
def test_a_search_that_forgets_what_changes_cost_is_the_same(monkeypatch):
    problem = model_problem(Host.discover(), "dlrm", servers=4)
    runs = []
    for entries in (50_000, 7):
        monkeypatch.setattr(change_bounds, "_ENTRIES", entries)
        runs.append(search(problem, Fluid().build(), Chain(Mcmc(), problem, np.random.default_rng(5))))
    assert runs[0] == runs[1]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["limit", "penalty"])
def test_where_the_first_state_exceeds_memory_the_search_is_the_same(policy):
    problem = model_problem(Host.discover(), "dlrm", servers=4)
    evaluator = Evaluator(problem, Fluid().build(), "ignore")
    capacity = 0.95 * evaluator.memory(problem.space.initial()).max()
    object.__setattr__(problem.cluster, "device_memory", np.full(4, capacity))
    chains = [Chain(Mcmc(), problem, np.random.default_rng(4)) for _ in range(2)]
    slow, fast = (search(problem, Fluid().build(), made, policy) for made in (AskedAndTold(chains[0]), chains[1]))
    assert fast == slow


class OneAfterTheOther(Search):
    """Proposes that nothing changes; ``act`` is called at the third proposal."""

    def __init__(self, act=lambda: None, rejected=None):
        self.act, self.rejected, self.proposed = act, rejected, 0

    def ask(self):
        raise AssertionError("it is alone, so that it is screened")

    def ask_screened(self, rejects, most):
        for _ in range(most):
            self.proposed += 1
            if self.proposed == 3:
                self.act()
            assert rejects(self.state, {}, np.inf) is False  # without a cutoff nothing is
        return (most if self.rejected is None else self.rejected), []


def test_an_interrupt_ends_a_search_that_rejects_all():
    problem = model_problem(Host.discover(), "dlrm", servers=4)
    made = OneAfterTheOther(lambda: signal.raise_signal(signal.SIGINT))
    evaluations, _, ended_by = search(problem, Fluid().build(), made, budget=10_000)["counts"]
    assert ended_by == "interrupt"
    assert evaluations == made.proposed + 1 < 100


def test_more_rejected_proposals_than_were_asked_for_are_an_error(monkeypatch):
    problem = model_problem(Host.discover(), "dlrm", servers=4)
    monkeypatch.setattr(Mcmc, "build", lambda self, problem, rng: OneAfterTheOther(rejected=11))
    guarded = build_search(Mcmc(), problem, np.random.default_rng(0))
    with pytest.raises(PluginError, match=r"counted 11 rejected proposals beside 0 candidates \(must be 10 together"):
        guarded.ask_screened(lambda *proposal: False, 10)


def test_a_wrong_change_is_an_error_of_the_searcher_that_proposes_it(monkeypatch):
    class Misplacing(OneAfterTheOther):
        def ask_screened(self, rejects, most):
            changes = {99: None}
            assert not rejects(self.state, changes, 1.0)
            return 0, [Candidate(base=self.state, placements=changes)]

    problem = model_problem(Host.discover(), "dlrm", servers=4)
    monkeypatch.setattr(Mcmc, "build", lambda self, problem, rng: Misplacing())
    guarded = build_search(Mcmc(), problem, np.random.default_rng(0))
    assert isinstance(guarded, Search)
    with pytest.raises(PluginError, match=r"mcmc.*operator 99"):
        search(problem, Fluid().build(), guarded)


def test_a_bound_is_used_again_for_its_own_change_alone():
    """A candidate with another mapping, or of another state, gets a bound of its own."""
    problem, rng = model_problem(Host.discover(), "dlrm", servers=4), np.random.default_rng(2)
    fabric = problem.build_fabric(None, rng)
    state = State(problem.space.initial(), fabric)
    evaluator, fresh = (Evaluator(problem, Fluid().build(), "ignore") for _ in range(2))
    cutoff = 1.1 * fresh.price(Candidate(base=state)).cost
    assert evaluator.price(Candidate(base=state)).cost * 1.1 == cutoff
    for _ in range(40):
        asked, priced = ({op: problem.space.random_placement(op, rng)} for op in rng.integers(3, size=2).tolist())
        evaluator.rejects(state, asked, cutoff)
        for changes in (priced, asked):
            candidate = Candidate(base=state, placements=changes, cutoff_seconds=cutoff)
            assert evaluator.price(candidate).cost == fresh.price(candidate).cost


def measured_problem(host):
    """DLRM on 16 hosts, with times that its authors measured, in which the optimizer takes none."""
    graph = host.make("frontend", "dlrm", {"preset": "dlrm16", "dialect": "flexnet"}).build(None)
    cluster = build_cluster(ClusterOptions(servers=16, gpus_per_device=4))
    costs = host.make("estimator", "measured", {"profile": "dlrm16"}).build(graph, cluster)
    return problem_on(graph, cluster, costs, host.make("topology", "bigswitch"))


def test_what_is_not_rejected_costs_less_than_its_cutoff():
    """The quotient of a class that was never met is simulated, so that no candidate is made of what it rejects."""
    problem, rng = measured_problem(Host.discover()), np.random.default_rng(3)
    state = State(problem.space.initial(), problem.build_fabric(None, rng))
    evaluator, fresh = (Evaluator(problem, Fluid().build(), "ignore") for _ in range(2))
    cutoff, answers = 1.01 * evaluator.price(Candidate(base=state)).cost, []
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    for op in range(len(state.strategy.placements)):
        changes = {op: problem.space.random_placement(op, rng)}
        candidate = Candidate(base=state, placements=changes, cutoff_seconds=cutoff)
        if lowering.symmetry(candidate.state().strategy).rejects:
            answers.append(evaluator.rejects(state, changes, cutoff))
            assert answers[-1] == (fresh.price(candidate).cost >= cutoff)
    assert len(answers) > len(state.strategy.placements) / 2
    assert {*answers} == {True, False}


def test_memory_of_a_search_is_free_when_it_has_ended():
    """Nothing refers to itself: else a process that searches again and again would grow until Python looks for it."""
    problem, simulate = model_problem(Host.discover(), "dlrm", servers=4), Fluid().build()
    evaluator, rng = Evaluator(problem, simulate, "ignore"), np.random.default_rng(1)
    run = Run(problem=problem, budget=50, seed=0, searchers=("mcmc",))
    chain = Mcmc().build(problem, np.random.default_rng(0))
    gc.disable()
    try:
        drive(run, evaluator, problem.space.initial(), [("strategy", chain)], rng)
        alive = weakref.ref(evaluator)
        del evaluator, chain
        assert alive() is None
    finally:
        gc.enable()
