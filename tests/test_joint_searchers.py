"""Searchers that move strategy and network in one candidate take part in everything that searches can have."""

from __future__ import annotations

import json
import os

import attrs
import numpy as np
import pytest
from kept_searches import WIRED, journals, with_run

from topoplan import Candidate, Host, PlacedStrategy, Search, Searcher, TopoplanError
from topoplan.testing import checks_for
from topoplan_engine import optimize
from topoplan_engine.experiment import Choice
from topoplan_engine.search.runs import begun, resumed
from topoplan_engine.search.setup import set_up_search
from topoplan_samples.cheats import BY_NAME


@attrs.frozen
class Together(Searcher):
    """Changes one placement, and wires the network for the strategy that comes of it."""

    name = "together"
    axis = "joint"

    def build(self, problem, rng):
        return TogetherSearch(problem, rng)


class TogetherSearch(Search):
    def __init__(self, problem, rng):
        self.problem, self.rng = problem, rng

    def adopt(self, trial):
        self.current = trial

    def ask(self):
        base, fabric = self.current.state, None
        if not isinstance(base.strategy, PlacedStrategy):
            return []
        op = int(self.rng.integers(len(self.problem.graph.operators)))
        changes = {op: self.problem.space.random_placement(op, self.rng)}
        if self.problem.reconfigurable:
            fabric = self.problem.build_fabric(self.problem.demand(base.strategy.with_changes(changes)), self.rng)
        return [Candidate(base=base, placements=changes, fabric=fabric, cutoff_seconds=self.current.cost)]

    def tell(self, trials):
        for trial in trials:
            if trial.cost < self.current.cost:
                self.current = trial


def host():
    host = Host.discover()
    host.add(Together, name="mine")
    return host


WIDE = attrs.evolve(WIRED, cluster=attrs.evolve(WIRED.cluster, servers=6))
ALONE = attrs.evolve(WIDE, searchers="together")
STUDY = """
title = "Both"
budget = 6
seeds = "1..2"
searchers = ["together", "mcmc+relink"]

[cluster]
servers = 4
degree = 2

[[model]]
use = "alexnet"
batch-size = 64

[[network]]
use = "topoopt"

[[network]]
use = "bigswitch"
"""


@pytest.mark.slow
def test_a_joint_searcher_keeps_the_promises_of_searchers():
    checks = {name: check for name, check in checks_for(Together).items() if name not in BY_NAME}
    assert {"check_only_its_axis_moves", "check_a_fixed_network_stays"} <= checks.keys()
    for check in checks.values():
        check()


def test_the_kit_finds_one_that_rewires_a_fixed_network():
    class Always(TogetherSearch):
        def __init__(self, problem, rng):
            super().__init__(attrs.evolve(problem, reconfigurable=True), rng)

    unfit = type("Unfit", (Together,), {"build": lambda self, problem, rng: Always(problem, rng)})
    with pytest.raises(AssertionError, match="proposes a fabric, though Problem"):
        checks_for(unfit)["check_a_fixed_network_stays"]()


@pytest.mark.slow
def test_it_moves_both_alone_and_beside_searchers_of_each_axis():
    outcome = optimize(ALONE, host=host())
    assert outcome.seconds < outcome.initial_seconds
    first = optimize(with_run(ALONE, budget=0), host=host())
    assert outcome.plan.strategy != first.plan.strategy
    beside = optimize(attrs.evolve(WIDE, searchers=("mcmc", "together", "relink")), host=host())
    assert beside.seconds < outcome.initial_seconds
    fixed = optimize(attrs.evolve(ALONE, topology="bigswitch"), host=host())  # it moves the strategy alone
    start = optimize(with_run(attrs.evolve(ALONE, topology="bigswitch"), budget=0), host=host())
    assert fixed.plan.fabric == start.plan.fabric


def test_the_demand_of_a_strategy_is_that_of_its_trial():
    setup = set_up_search(host(), with_run(ALONE, budget=0))
    problem, rng = setup.problem, np.random.default_rng(2)
    strategies = [problem.space.initial()]
    for op in range(4):
        strategies.append(strategies[-1].with_changes({op: problem.space.random_placement(op, rng)}))
    for strategy in strategies:
        assert problem.demand(strategy) == setup.evaluator.demand(strategy)
    with pytest.raises(TopoplanError, match="3 placements"):
        problem.demand(PlacedStrategy(strategies[0].placements[:3]))


@pytest.mark.slow
def test_chains_and_a_resumed_run_end_as_they_would_have(tmp_path):
    chains = with_run(ALONE, chains=2, budget=40)
    with begun(tmp_path / "whole", host(), chains) as folder:
        whole = optimize(folder.experiment, host=host(), folder=folder)
    for journal in (tmp_path / "whole").glob("prices-*.csv"):
        os.truncate(journal, journal.stat().st_size // 2)
    with resumed(tmp_path / "whole", host()) as folder:
        again = optimize(folder.experiment, host=host(), folder=folder)
    assert again.plan.strategy == whole.plan.strategy
    assert again.plan.fabric == whole.plan.fabric
    assert again.result.evaluations == whole.result.evaluations
    assert journals(tmp_path / "whole")


@pytest.mark.slow
def test_it_is_compared_with_others(run, monkeypatch, tmp_path):
    discover = Host.discover

    def with_plugin(**how):
        found = discover(**how)
        found.add(Together, name="mine")
        return found

    monkeypatch.setattr(Host, "discover", with_plugin)
    (tmp_path / "study.toml").write_text(STUDY)
    status, out, _ = run("compare", "study.toml", "--json")
    assert status == 0
    for problem in json.loads(out)["problems"]:
        names = [one["searcher"] for one in problem["searchers"]]
        assert names[0] == "together"
        assert all(len(one["runs"]) == 2 for one in problem["searchers"])


def test_a_joint_searcher_needs_no_partner():
    assert set_up_search(host(), with_run(ALONE, budget=0)).experiment.searchers == (Choice("together"),)
