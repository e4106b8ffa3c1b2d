"""Models whose operators have no layers' numbers: blocks between cuts, and plans of stages of blocks."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from topoplan import Host, TopoplanError, optimize
from topoplan_engine import ClusterOptions, build_cluster, problem_on
from topoplan_engine.blocks import blocks_of, crossing_tensors, layer_numbers, work_of
from topoplan_engine.lowering import Lowering
from topoplan_engine.recomputation import regions_of, words_of_regions
from topoplan_estimator_roofline import Roofline
from topoplan_operators import GraphBuilder
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.candidates import Candidates
from topoplan_searcher_stated.construct import Rules, order_of, strategy_of
from topoplan_searcher_stated.estimates import Estimates
from topoplan_searcher_stated.layers import layer_counts
from topoplan_searcher_stated.settings import Settings
from topoplan_topology_bigswitch import BigSwitch

#: Slow links, so that what is sent decides.
CLUSTER = build_cluster(ClusterOptions(servers=2, interface_bandwidth_gbps=10.0), Host.discover())


def chain(widths, batch=64):
    """A chain of matrices, each with an activation behind it."""
    b = GraphBuilder("chain", batch)
    x = b.input((widths[0],))
    for width in widths[1:]:
        x = b.relu(b.linear(x, width))
    return b.build()


def towers():
    """Two towers of two matrices each, on data of their own, joined before a head."""
    b = GraphBuilder("towers", 64)
    ends = [b.linear(b.relu(b.linear(b.input((16,)), 16)), 16) for _ in range(2)]
    b.linear(b.concat(ends), 8)
    return b.build()


def residual(blocks=3):
    b = GraphBuilder("residual", 64)
    x = b.linear(b.input((16,)), 16)
    for _ in range(blocks):
        x = b.add(x, b.linear(b.relu(b.linear(x, 16)), 16))
    b.linear(x, 4)
    return b.build()


def test_what_crosses_a_cut_is_counted_once():
    assert crossing_tensors(chain([8, 8, 8])) == [1, 1, 1]
    assert crossing_tensors(towers()) == [1, 1, 1, 2, 2, 2, 1]
    assert crossing_tensors(residual(1)) == [1, 2, 2, 2, 1]


def test_blocks_begin_with_weights_and_at_data_of_their_own():
    assert blocks_of(chain([8, 8, 8])) == (0, 0, 1, 1)
    assert blocks_of(towers()) == (0, 0, 1, 2, 2, 3, 3, 4)
    assert blocks_of(residual(1)) == (0, 1, 1, 2, 2, 3)


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        *((name, {"pp": 2}) for name in ("alexnet", "vgg16", "inception-v3", "resnet50", "dlrm", "ncf", "candle-uno")),
        *((name, {"pp": 2, "tp": 2}) for name in ("alexnet", "vgg16", "dlrm")),
        ("vgg16", {"pp": 4, "schedule": "zb-h1"}),
        ("vgg16", {"pp": 2, "schedule": "interleaved:2"}),
    ],
)
def test_any_model_has_pipelines(name, plan):
    graph = Host.discover().make("frontend", name).build(64)
    strategy, _ = strategy_of(Stated(**plan), graph, 8)
    assert strategy.why_invalid(graph, 8) is None
    assert strategy.order.n_ranks == plan["pp"]


def test_stages_that_are_left_out_have_about_equal_work():
    """Of matrices of 8, 1, 1, 1, 1 and 4 units of work the largest half has 8."""
    graph = chain([32, 256, 4, 256, 4, 256, 16])  # products of neighbours: 8, 1, 1, 1, 1, 4 times 1,024
    strategy, _ = strategy_of(Stated(pp=2), graph, 2)
    assert [len(stage.operators) for stage in strategy.stages] == [2, 10]
    stated, _ = strategy_of(Stated(pp=2, layers="4+2"), graph, 2)
    assert [len(stage.operators) for stage in stated.stages] == [8, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pp": 4}, r"model 'chain' has 2 blocks between cuts that few tensors cross \(at most pp=2\)"),
        ({"pp": 2, "layers": "2+2"}, "has 4 blocks, model 'chain' has 2"),
        ({"pp": 2, "layers": "head"}, "is no number of blocks"),
    ],
)
def test_one_line_says_what_would_go(options, message):
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Stated(**options), chain([8, 8, 8]), 4)


@pytest.mark.parametrize("ranks", [3, 5, 7, 16])
def test_unequal_layers_that_do_not_divide_have_about_equal_work(ranks):
    """ResNet-50 has 16 layers of four kinds, of which no trainer says how a pipeline divides them."""
    graph = Host.discover().make("frontend", "resnet50").build(64)
    strategy, _ = strategy_of(Stated(pp=ranks), graph, ranks)
    work = [sum(work_of(graph.operators[op]) for op in stage.operators) for stage in strategy.stages]
    assert len(work) == ranks
    assert max(work) < 2 * sum(work) / ranks
    with pytest.raises(TopoplanError, match=r"has 16 layers \(at most pp=16\)"):
        strategy_of(Stated(pp=17), graph, 17)


def test_blocks_run_again():
    """Of blocks of a matrix and an activation all, or every second one, run again, each by itself."""
    graph = chain([16, 16, 16, 16, 16])
    assert regions_of("full", graph).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert regions_of("every:2", graph).tolist() == [-1, -1, 0, 0, -1, -1, 1, 1]
    for text in ("full", "every:2", "op"):
        assert words_of_regions(regions_of(text, graph).tolist(), graph) == text
    with pytest.raises(TopoplanError, match=r"has 4 blocks \(nearest: every:4\)"):
        regions_of("every:5", graph)


@pytest.mark.parametrize("name", ["vgg16", "inception-v3", "resnet50"])
def test_what_runs_again_is_not_kept(name):
    """Two stages whose blocks run again keep fewer bytes, and run each forward pass twice."""
    graph = Host.discover().make("frontend", name).build(64)
    lowering = Lowering(graph, CLUSTER, Roofline().build(graph, CLUSTER))
    plans = [strategy_of(Stated(pp=2, recompute=text), graph, 2)[0] for text in ("none", "full")]
    kept, again = (lowering.memory(plan).max() for plan in plans)
    seconds, longer = (lowering.lower(plan).seconds.sum() for plan in plans)
    assert again <= kept
    assert seconds < longer < 1.5 * seconds


def test_numbers_that_count_unequal_parts_are_no_layers():
    b = GraphBuilder("stages", 64)
    x = b.input((16,))
    for number, width in enumerate((16, 32, 8)):
        x = b.linear(b.linear(x, width, name=f"layer{number}.a"), width, name=f"layer{number}.b")
    assert layer_numbers(b.build())[1:] == (6, False)
    names = [f"layer{number}.a" for number in range(3)]
    b = GraphBuilder("layers", 64)
    x = b.input((16,))
    for name in names:
        x = b.linear(x, 16, name=name)
    assert layer_numbers(b.build())[1:] == (3, True)


def estimated(graph, plan):
    """Return the estimated and the simulated seconds of a plan."""
    problem = problem_on(graph, CLUSTER, Roofline().build(graph, CLUSTER), BigSwitch())
    fabric, rules = problem.build_fabric(None, np.random.default_rng(0)), Rules(graph)
    estimate = Estimates(problem, fabric, rules).of(plan)
    strategy, _ = strategy_of(plan, graph, problem.cluster.n_devices, rules)
    tasks = Lowering(graph, problem.cluster, problem.costs).lower(strategy)
    simulate = Host.discover().make("simulator", "fluid").build()
    return estimate.seconds, simulate.makespan(tasks, fabric, problem.cluster, math.inf)


def test_messages_wait_for_those_before():
    """64 micro-batches of 4 MB each over 10 Gbps take 0.2 s forward, whatever the stages compute."""
    graph = chain([1024, 1_000_000, 64])
    at_least = 64 * 4e6 / (10e9 / 8)
    seconds, simulated = estimated(graph, Settings(pp=2))
    assert simulated > at_least
    assert seconds == pytest.approx(simulated, rel=0.02)


def test_stages_end_where_little_is_sent():
    """A cut at the widest tensor balances products; its neighbours send 64 times less."""
    graph = chain([4096, 128, 8192, 128, 4096])
    problem = problem_on(graph, CLUSTER, Roofline().build(graph, CLUSTER), BigSwitch())
    estimates = Estimates(problem, problem.build_fabric(None, np.random.default_rng(0)), Rules(graph))
    candidates = Candidates(estimates, math.inf, None, 2)
    assert layer_counts(graph, order_of("1f1b", 2, 64), "") == [2, 2]
    balanced = candidates.layers(Settings(pp=2, micro_batch=32))[-1]
    assert balanced in ("1+3", "3+1")


@pytest.mark.parametrize("name", ["alexnet", "candle-uno"])
def test_it_is_no_slower_than_stated_plans(name):
    options = {"servers": 2, "gpus_per_server": 2, "batch_size": 64}
    found = optimize(name, searchers=["hybrid:joint=no"], **options).seconds
    for words in ("micro-batch=16", "pp=2,micro-batch=4", "pp=2,micro-batch=16,schedule=gpipe", "pp=4,micro-batch=8"):
        assert found <= optimize(name, searchers=[f"stated:{words}"], **options).seconds * (1 + 1e-9)


def test_layers_of_a_chain_of_stages_follow_one_another():
    graph = residual()
    strategy, _ = strategy_of(Stated(pp=3), graph, 3)
    assert all(first.operators.max() < second.operators.min() for first, second in pairwise(strategy.stages))
