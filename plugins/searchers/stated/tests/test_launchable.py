"""Stated and hybrid plans keep to what the trainers of a problem run."""

from __future__ import annotations

import attrs
import pytest

from topoplan import Host, TopoplanError
from topoplan_engine import ClusterOptions, build_cluster, problem_on
from topoplan_estimator_roofline import Roofline
from topoplan_exporter_launch import DeepSpeed, Megatron, Torchtitan
from topoplan_samples import stated_plans
from topoplan_searcher_stated import Hybrid, Stated
from topoplan_searcher_stated.construct import Rules
from topoplan_searcher_stated.hybrid import HybridSearch
from topoplan_searcher_stated.launchable import Launchable, rules_for
from topoplan_searcher_stated.search import StatedSearch
from topoplan_searcher_stated.settings import Settings
from topoplan_topology_bigswitch import BigSwitch

#: What none of them runs, or some do.
PLANS = {
    "dp": Settings(),
    "zero 1": Settings(zero=1),
    "zero 3": Settings(zero=3),
    "pipeline": Settings(pp=2),
    "zero bubble": Settings(pp=2, schedule="zb-h1"),
    "tensor": Settings(tp=4),
    "recomputes": Settings(recompute="full"),
    "too deep": Settings(pp=16),
}


@pytest.fixture(scope="module")
def problem(tmp_path_factory):
    graph = stated_plans.graph(tmp_path_factory.mktemp("models"), "llama")
    cluster = build_cluster(ClusterOptions(servers=4, gpus_per_server=4, device="h100"), Host.discover())
    return problem_on(graph, cluster, Roofline().build(graph, cluster), BigSwitch())


@pytest.mark.parametrize(
    ("exporter", "grads", "expected"),
    [
        (None, "weights", {*PLANS}),
        (Megatron, "weights", {"dp", "zero 1", "zero 3", "pipeline", "tensor", "recomputes"}),
        (Torchtitan, "fp32", {"dp", "zero 3", "pipeline", "zero bubble", "tensor", "recomputes"}),
        (DeepSpeed, "weights", {"dp", "zero 1", "zero 3"}),
    ],
)
def test_what_trainers_run_is_known_before_it_is_estimated(problem, exporter, grads, expected):
    restricted = attrs.evolve(problem, restriction=None if exporter is None else exporter().restriction())
    launchable = Launchable(restricted, Rules(problem.graph))
    assert launchable.grads == grads
    assert {name for name, plan in PLANS.items() if launchable.runs(attrs.evolve(plan, grads=grads))} == expected


class Counted(type(Megatron().restriction())):
    """Counts what it is asked for."""

    def __init__(self, other):
        vars(self).update(vars(other))
        self.asked = 0

    def refusal(self, *question):
        self.asked += 1
        return super().refusal(*question)


def test_plans_that_differ_in_numbers_are_asked_for_once(problem):
    counted = Counted(Megatron().restriction())
    launchable = Launchable(attrs.evolve(problem, restriction=counted), Rules(problem.graph))
    before = counted.asked
    for plan in (Settings(tp=2, pp=2), Settings(tp=4, pp=2, micro_batch=2), Settings(tp=2, pp=4, layers="1+3+3+1")):
        assert launchable.runs(plan)
    assert counted.asked == before + 1


def test_a_search_begins_without_plans_that_nothing_asks_for(problem):
    """One in slices and one with a tensor axis; it built ten, half a CPU second of Mixtral on 16 GPUs for Megatron."""
    counted = Counted(Megatron().restriction())
    search = HybridSearch(Hybrid(), attrs.evolve(problem, restriction=counted))
    assert search is not None
    assert counted.asked == 2


def test_a_stated_plan_is_refused_when_the_search_is_built(problem):
    restricted = attrs.evolve(problem, restriction=DeepSpeed().restriction())
    assert StatedSearch(Stated(zero=1), restricted)
    with pytest.raises(TopoplanError, match=r"^deepspeed: operator '.*' begins stage 1 of a pipeline"):
        StatedSearch(Stated(pp=2), restricted)
    assert Stated.restrictable
    assert Hybrid.restrictable


def test_tables_are_whole_where_the_trainer_leaves_them_so(problem):
    """AutoTP of DeepSpeed cuts matrices, no table of words and no positions between matrices (deepspeed 0.19.8)."""
    restricted = attrs.evolve(problem, restriction=DeepSpeed().restriction())
    launchable = Launchable(restricted, rules_for(restricted))
    assert launchable.sp is False
    assert launchable.runs(Settings(tp=4, sp=False))
    assert launchable.runs(Settings(tp=4, sp=False, zero=3, micro_batch=2))
    assert not Launchable(restricted, Rules(problem.graph)).runs(Settings(tp=4, sp=False))
    strategy = StatedSearch(Stated(tp=4, sp=False), restricted)._strategy
    tables = [index for index, op in enumerate(problem.graph.operators) if op.kind == "token_embedding"]
    matrices = [index for index, op in enumerate(problem.graph.operators) if op.kind == "linear"]
    (stage,) = strategy.stages
    axis = stage.mesh.axes.index("tp")
    assert tables
    assert all(stage.program.rules[index][axis].dim < 0 for index in tables)
    assert any(stage.program.rules[index][axis].dim >= 0 for index in matrices)


def test_shapes_of_a_kind_that_the_trainer_never_runs_are_not_estimated(problem):
    """Llama 3 70B on 64 GPUs for DeepSpeed: 48 CPU seconds went to pipelines and contexts, and no plan was found."""
    shapes = {"pp": Settings(pp=2), "cp": Settings(cp=2), "tp": Settings(tp=2)}
    for exporter, expected in ((DeepSpeed, {"tp"}), (Megatron, {"pp", "cp", "tp"}), (None, {"pp", "cp", "tp"})):
        restricted = attrs.evolve(problem, restriction=None if exporter is None else exporter().restriction())
        launchable = Launchable(restricted, rules_for(restricted))
        assert {name for name, shape in shapes.items() if launchable.may_run(shape)} == expected
