"""What the search without a trainer's limits warns of is not said of the plan for the trainer."""

from __future__ import annotations

import warnings

import attrs
import pytest

from topoplan.errors import TopoplanWarning
from topoplan_engine import Choice, ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.search import optimize as module
from topoplan_engine.search.limits import Limits
from topoplan_engine.search.unpriced import UnpricedError
from topoplan_engine.warned import warnings_named


def experiment():
    return Experiment(
        model=Choice("huggingface", {"preset": "llama3-8b", "layers": 1, "sequence-length": 64}),
        cluster=ClusterOptions(servers=1, gpus_per_server=2),
        searchers=["hybrid:divided=false,planners=false"],
        run=RunOptions(batch_size=2, trainers=("megatron",)),
    )


def test_a_free_plan_without_a_time_leaves_the_trainers_plan(monkeypatch):
    driven = module._driven

    def out_of_time(setup, *rest):
        if setup.problem.restriction is None:
            raise UnpricedError("time-limit: no plan could be priced in 1.4 s of search")
        return driven(setup, *rest)

    monkeypatch.setattr(module, "_driven", out_of_time)
    with pytest.warns(TopoplanWarning, match="^free plan: time-limit: no plan could be priced"):
        outcome = optimize(experiment())
    assert outcome.free is None
    assert outcome.origin.name == "constructed by hybrid"


def test_the_free_plan_has_its_own_warnings(monkeypatch):
    driven = module._driven

    def warning(setup, *rest):
        if setup.problem.restriction is None:
            warnings.warn(TopoplanWarning("time-limit: the initial strategy is the result"), stacklevel=1)
        return driven(setup, *rest)

    monkeypatch.setattr(module, "_driven", warning)
    with pytest.warns(TopoplanWarning) as shown:
        assert optimize(experiment()).free is not None
    text = "free plan, which megatron does not limit: time-limit: the initial strategy is the result"
    assert text in [str(each.message) for each in shown]


def test_a_free_plan_that_the_trainer_runs_is_the_plan(monkeypatch):
    """ViT on 8 devices for PyTorch: the free search had a plan of 7.33 ms that it runs, beside one of 8.07 for it."""
    driven, whole = module._driven, optimize(experiment())

    def ended_early(setup, run, rng, part, *rest):
        if setup.problem.restriction is not None:
            part = attrs.evolve(part, limits=Limits(budget=1))
        return driven(setup, run, rng, part, *rest)

    monkeypatch.setattr(module, "_driven", ended_early)
    outcome = optimize(experiment())
    assert outcome.free is not None
    assert outcome.free.refusal == ""
    assert outcome.seconds == pytest.approx(outcome.free.seconds) == pytest.approx(whole.seconds)
    assert (outcome.origin.name, outcome.plan.provenance["origin"]) == ("constructed by hybrid",) * 2


def test_other_warnings_keep_their_words():
    with pytest.warns(UserWarning, match="^other$"), warnings_named("free plan"):
        warnings.warn("other", UserWarning, stacklevel=1)


def test_both_searches_have_one_problem(monkeypatch):
    """The second one knows the prices of the first: of Mixtral on 16 devices it built them anew in half a second."""
    driven, problems = module._driven, []

    def noted(setup, *rest):
        problems.append(setup.problem)
        return driven(setup, *rest)

    monkeypatch.setattr(module, "_driven", noted)
    optimize(experiment())
    limited, free = problems
    assert limited.restriction is not None
    assert free.restriction is None
    assert free.costs is limited.costs
    assert free.graph is limited.graph
