"""Hybrid plans that are searched: no slower than stated ones; estimates have the order of simulated plans."""

from __future__ import annotations

import itertools
import json
import math

import attrs
import numpy as np
import pytest

from topoplan import Host, Problem, TopoplanError, optimize, stated_plan
from topoplan_engine.kernels.jit import kernel
from topoplan_engine.keywords import experiment_of
from topoplan_engine.lowering import Lowering
from topoplan_engine.search.setup import set_up_search
from topoplan_frontend_huggingface import HuggingFace
from topoplan_operators import GraphBuilder
from topoplan_samples.long_tail import at_night
from topoplan_samples.problems import state_of
from topoplan_searcher_stated.balancing import balance
from topoplan_searcher_stated.construct import Rules, strategy_of
from topoplan_searcher_stated.estimates import Estimates, estimates_of
from topoplan_searcher_stated.grid import data_degrees, shapes
from topoplan_searcher_stated.settings import Settings
from topoplan_searcher_stated.small_model import small_model

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "intermediate_size": 1024,
    "vocab_size": 2048,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
}
MIXTURE = {
    **CONFIG,
    "architectures": ["MixtralForCausalLM"],
    "model_type": "mixtral",
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
OPTIONS = {"servers": 2, "gpus_per_server": 2, "batch_size": 8, "device": "h100", "precision": "bf16"}


def model(folder, config):
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return HuggingFace(config=str(path))


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return model(tmp_path_factory.mktemp("llama"), CONFIG)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory):
    return model(tmp_path_factory.mktemp("mixture"), MIXTURE)


def problem_of(frontend) -> Problem:
    return set_up_search(Host.discover(), experiment_of(frontend, **OPTIONS)).problem


@pytest.mark.slow
def test_it_is_no_slower_than_any_plan_of_one_kind(llama):
    found = optimize(llama, searchers=["hybrid:shortlist=6"], **OPTIONS).plan
    for plan in ("tp=4", "pp=4", "", "tp=2,pp=2", "pp=2,zero=1", "tp=2,pp=2,schedule=zb-h1"):
        stated = stated_plan(llama, plan, **OPTIONS)
        assert found.timeline.makespan <= stated.timeline.makespan * (1 + 1e-9), plan


def kendall(a, b) -> float:
    """Kendall's tau of two lists, where pairs that are equal in either count for nothing."""
    signs = [np.sign((a[i] - a[j]) * (b[i] - b[j])) for i, j in itertools.combinations(range(len(a)), 2)]
    return float(np.mean(signs))


def grid(dense: bool) -> list[Settings]:
    plans = [
        Settings(tp=tp, pp=pp, micro_batch=b, schedule=schedule, recompute=recompute, zero=zero)
        for tp, pp, b in ((1, 1, 2), (2, 2, 1), (1, 2, 2), (4, 1, 4))
        for schedule in (("1f1b", "zb-h1", "interleaved:2") if pp == 2 else ("1f1b",))
        for recompute, zero in (("none", 1), ("full", 0))
    ]
    extra = [Settings(cp=2, pp=2), Settings(cp=2, cp_comm="ring")] if dense else [Settings(ep=4), Settings(ep=2, pp=2)]
    return [*plans, *extra, Settings(zero=3), Settings(zero=3, tp=2, micro_batch=2), Settings(pp=2, layers="1+3")]


@pytest.mark.slow
@pytest.mark.parametrize("name", at_night(["llama", "mixture"], "mixture"))
def test_estimates_have_the_order_of_simulated_plans_and_their_memory(name, request):
    problem = problem_of(request.getfixturevalue(name))
    fabric = state_of(problem).fabric
    estimates = Estimates(problem, fabric, Rules(problem.graph))
    simulate = Host.discover().make("simulator", "fluid").build()
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    simulated, planned = [], []
    for plan in grid(name == "llama"):
        strategy, _ = strategy_of(plan, problem.graph, 4)
        estimate = estimates.of(plan)
        simulated.append(simulate.makespan(lowering.lower(strategy), fabric, problem.cluster, math.inf))
        planned.append(estimate.seconds)
        assert estimate.memory == pytest.approx(lowering.memory(strategy).max(), rel=0.03), plan
    assert kendall(simulated, planned) > 0.9
    assert planned[int(np.argmin(simulated))] <= 1.03 * min(planned)


def test_a_small_model_has_each_kind_of_layer_once(llama):
    graph = problem_of(llama).graph
    small = small_model(graph)
    assert small.layers == (0, 1, 1, 1)
    assert small.behind == 2
    assert len(small.operators) < len(graph.operators)


@kernel
def divide(layers, n_layers, room, counts):
    """Call `balance`, which kernels alone can."""
    balance(layers, n_layers, room, counts)


def balanced_by(seconds, chunks, nbytes=None, per_byte=0.0):
    n_layers, counts = len(seconds) - 1, np.empty(chunks, dtype=np.int64)
    layers = np.array([seconds, nbytes or [0.0] * len(seconds), [per_byte] * len(seconds)])
    divide(layers, n_layers, np.empty((chunks, n_layers + 1)), counts)
    return counts.tolist()


def test_layers_are_balanced_by_seconds():
    counts = balanced_by([1.0] * 126 + [1.5], 16)
    assert sum(counts) == 126
    assert max([*counts[:-1], counts[-1] + 1.5]) == 8
    for seconds, balanced in (([1.0] * 8, [2, 2, 2, 1]), ([3.0, 1.0, 1.0, 1.0, 1.0, 0.0], [1, 4])):
        assert balanced_by(seconds, len(balanced)) == balanced


def test_layers_are_balanced_by_what_is_sent_where_that_takes_longer():
    """Of five layers of 1 s the third makes 1 byte, the others 5: at 1 s a byte the border is behind the third."""
    seconds, nbytes = [1.0] * 5 + [0.0], [5.0, 5.0, 1.0, 5.0, 0.0, 0.0]
    assert balanced_by(seconds, 2) == [2, 3]
    assert balanced_by(seconds, 2, nbytes, per_byte=1.0) == [3, 2]
    assert balanced_by(seconds, 2, nbytes, per_byte=0.5) == [2, 3]
    assert balanced_by(seconds, 3, nbytes, per_byte=1.0) == [1, 2, 2]


def test_shapes_cut_experts_and_positions(llama, mixture):
    dense = shapes(problem_of(attrs.evolve(llama, sequence_length=2048)), 4)
    assert {plan.cp for plan in dense} == {1, 2, 4}
    assert {plan.ep for plan in dense} == {1}
    assert {plan.ep for plan in shapes(problem_of(mixture), 4)} == {1, 2, 4}


def test_shapes_have_whole_experts_beside_those_that_tensor_parallelism_cuts(mixture):
    problem = problem_of(mixture)
    whole = [plan for plan in shapes(problem, 4) if plan.etp and plan.micro_batch == 1]
    assert {(plan.tp, plan.ep, plan.pp) for plan in whole} == {
        *((2, 1, 1), (2, 2, 1), (2, 4, 1), (4, 1, 1), (4, 2, 1), (4, 4, 1)),
        *((2, 1, 2), (2, 2, 2)),
    }
    for plan in whole:
        strategy, degrees = strategy_of(plan, problem.graph, 4)
        assert strategy.why_invalid(problem.graph, 4) is None
        assert data_degrees(plan, 4) == (degrees.of("ep"), degrees.of("dp") * degrees.shard)
    assert not any(plan.etp for plan in shapes(problem_of("alexnet"), 8))


def test_a_model_that_cannot_be_divided_is_refused():
    b = GraphBuilder("single", 16)
    b.linear(b.input((8,)), 8)
    with pytest.raises(TopoplanError, match="searcher hybrid: model 'single' has no layers or blocks"):
        optimize(b.build(), searchers=["hybrid:without-layers=false"], servers=1, gpus_per_server=4)


@pytest.mark.slow
def test_auto_proposes_hybrid_plans_and_of_blocks_where_a_pipeline_is_the_best(llama):
    result = optimize(llama, searchers=["auto"], budget=40, **OPTIONS).result
    assert not any("hybrid" in line for line in result.left_out)
    result = optimize("ncf", searchers=["auto"], budget=30, servers=1, gpus_per_server=4).result
    assert any(line.startswith("hybrid: not asked, for no pipeline was the best plan") for line in result.left_out)


def test_estimates_of_one_problem_are_made_once(llama):
    """A search without a trainer's limits follows one that keeps to them; another network has estimates of its own."""
    problem = problem_of(llama)
    fabric, rules = state_of(problem).fabric, Rules(problem.graph)
    first = estimates_of(problem, fabric, rules, [1])
    free = attrs.evolve(problem, restriction=None)
    assert estimates_of(free, attrs.evolve(fabric), Rules(problem.graph), [1, 2]) is first
    assert estimates_of(free, fabric, Rules(problem.graph, whole_tables=True), [1]) is not first
    slower = attrs.evolve(fabric, link_bandwidth=fabric.link_bandwidth / 2)
    assert estimates_of(problem, slower, rules, [1]) is not estimates_of(problem, fabric, rules, [1])
