"""The rules: what is shared, what is sent and when, and models that a rule cannot run."""

from __future__ import annotations

from collections import Counter

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Collective, Host, TaskKind, TopoplanError
from topoplan.plugin.components import Frontend
from topoplan_engine.lowering import Lowering
from topoplan_engine.program_strategies import program_strategy
from topoplan_engine.sharding.programs import why_invalid
from topoplan_engine.simulation.breakdown import time_breakdown
from topoplan_samples.costs import FlatCosts
from topoplan_samples.fabrics import star
from topoplan_samples.graphs import computed_weight
from topoplan_searcher_baseline.rules import RULES, strategy_of
from topoplan_simulator_fluid import Fluid

DEVICES, WIDTH, HIDDEN, EXPERTS, LAYERS = 4, 16, 32, 4, 4
OPTIONS = {"layers": LAYERS, "width": WIDTH, "hidden": HIDDEN, "heads": 2, "positions": 8, "words": 60}


def model(name="bert-sgmoe", **options):
    return Host.discover().make(Frontend, name, options).build(None)


@pytest.fixture(scope="module")
def bert():
    return model(**OPTIONS, world_size=DEVICES, experts=EXPERTS)


def tasks_of(graph, strategy):
    return Lowering(graph, Cluster.uniform(n_hosts=DEVICES), FlatCosts()).lower(strategy)


def parameters(graph, *, experts):
    """Bytes of the weights of experts, or of all other weights."""
    return sum(tensor.nbytes for op in graph.operators for tensor in op.weights if (len(tensor.axes) == 3) == experts)


def counted(tasks):
    collectives = tasks.collective[tasks.kind == TaskKind.COLLECTIVE]
    return Counter(Collective(kind) for kind in collectives.tolist())


@pytest.mark.parametrize("rule", ["ddp", "horovod"])
def test_data_parallelism_replicates_everything_and_sums_all_gradients(bert, rule):
    tasks = tasks_of(bert, strategy_of(rule, bert, DEVICES))
    assert set(counted(tasks)) == {Collective.ALL_REDUCE}
    sent = tasks.size[tasks.collective == Collective.ALL_REDUCE].sum()
    assert sent == parameters(bert, experts=True) + parameters(bert, experts=False)
    assert counted(tasks)[Collective.ALL_REDUCE] == 1  # a small model is one bucket


def test_gradients_of_what_a_weight_is_computed_of_are_summed():
    # Each device has a term of both gradients, from its samples: PyTorch's DDP sums 4 (16 * 2 + 2 * 8) bytes.
    graph = computed_weight(8, 8, 16, 2)
    tasks = tasks_of(graph, strategy_of("ddp", graph, DEVICES))
    assert tasks.size[tasks.collective == Collective.ALL_REDUCE].sum() == 4 * (16 * 2 + 2 * 8)


def test_gradients_share_an_all_reduce_up_to_the_bucket(bert):
    strategy = strategy_of("ddp", bert, DEVICES)
    sizes = {}
    for nbytes in (0, 1, 10_000, 20_000, 10**9):
        program = attrs.evolve(strategy.program, gradient_bucket_bytes=nbytes)
        tasks = tasks_of(bert, program_strategy(program, bert))
        sizes[nbytes] = tasks.size[tasks.collective == Collective.ALL_REDUCE]
        largest = max(tensor.nbytes for op in bert.operators for tensor in op.weights)
        assert (sizes[nbytes][:-1] >= nbytes).all() or nbytes == 10**9
        assert sizes[nbytes].max() < max(nbytes, 1) + largest
    assert len({int(row.sum()) for row in sizes.values()}) == 1
    assert sorted(sizes[0]) == sorted(sizes[1])
    assert len(sizes[1]) > len(sizes[10_000]) > len(sizes[20_000]) > len(sizes[10**9]) == 1


@pytest.mark.parametrize("rule", ["deepspeed-moe", "fastmoe"])
def test_experts_are_shared_and_the_rest_is_summed_at_the_end(bert, rule):
    strategy = strategy_of(rule, bert, DEVICES)
    layers = LAYERS // 2
    tasks = tasks_of(bert, strategy)
    counts = counted(tasks)
    assert counts.pop(Collective.JOIN) == 2 * 4 * layers  # an all-to-all there and back, and for their gradients
    assert counts == {Collective.ALL_REDUCE: 1}
    (reduce,) = np.flatnonzero(tasks.collective == Collective.ALL_REDUCE)
    assert tasks.size[reduce] == parameters(bert, experts=False)
    names = [op.name for op in bert.operators]
    shared = {name for name, rule in zip(names, strategy.program.rules, strict=True) if rule[0].dim == 2}
    assert not any("gating" in name or "dispatch" in name or "combine" in name for name in shared)
    timeline = Fluid().build()(tasks, star(DEVICES, 1.25e5), Cluster.uniform(n_hosts=DEVICES))
    assert timeline.start[reduce] >= timeline.finish[tasks.kind == TaskKind.BACKWARD].max()
    assert time_breakdown(tasks, timeline).overlap_ratio < 1e-9


def test_ddp_hides_what_deepspeed_does_not(bert):
    program = attrs.evolve(strategy_of("ddp", bert, DEVICES).program, gradient_bucket_bytes=10_000)
    tasks = tasks_of(bert, program_strategy(program, bert))
    timeline = Fluid().build()(tasks, star(DEVICES, 1.25e4), Cluster.uniform(n_hosts=DEVICES))
    assert time_breakdown(tasks, timeline).overlap_ratio > 0.1


@pytest.mark.parametrize("name", ["alexnet", "dlrm", "inception-v3", "moe", "ncf", "resnet50", "transformer", "vgg16"])
def test_ddp_runs_other_models(name):
    graph = model(name)
    assert why_invalid(strategy_of("ddp", graph, 2), graph, 2) is None


@pytest.mark.parametrize("name", ["bert-switch", "vit-sgmoe", "vit-switch"])
@pytest.mark.parametrize("rule", RULES)
def test_all_rules_run_the_models_of_hidup(name, rule):
    graph = model(name, world_size=DEVICES, layers=2)
    assert why_invalid(strategy_of(rule, graph, DEVICES), graph, DEVICES) is None


@pytest.mark.parametrize("rule", ["deepspeed-moe", "fastmoe"])
def test_a_model_without_experts_is_one_clear_line(rule):
    with pytest.raises(TopoplanError, match=rf"^searcher baseline: rule={rule}: model '\w+' has no experts to share "):
        strategy_of(rule, model("alexnet"), 2)


def test_experts_that_devices_cannot_share_are_one_clear_line(bert):
    with pytest.raises(TopoplanError, match=r"rule=fastmoe: 8 devices cannot share the 4 experts of 'layer1_expert1'"):
        strategy_of("fastmoe", bert, 8)


def test_a_batch_without_equal_shares_is_one_clear_line(bert):
    with pytest.raises(TopoplanError, match=r"^searcher baseline: rule=ddp: program: operator '\w+': "):
        strategy_of("ddp", bert, 3)
