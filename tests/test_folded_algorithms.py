"""Folded iterations whose collectives run by chosen algorithms take what whole ones take, on any fabric."""

from __future__ import annotations

import functools
import math
import random

import attrs
import numpy as np
import pytest

from topoplan import Collective, Host, TaskKind, TopoplanError
from topoplan_engine import ClusterOptions, problem_on
from topoplan_engine.experiment import build_cluster
from topoplan_engine.lowering.staged import StagedLowering
from topoplan_engine.network.machine import network_of
from topoplan_engine.simulation.collective_choice import CollectiveChoice
from topoplan_engine.simulation.written_out import written_out
from topoplan_estimator_roofline import Roofline
from topoplan_samples.plans_drawn import LARGE, ONE_PATH, cluster_of, drawn_plan, fabric_of, models_in, some_plans
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings
from topoplan_simulator_fluid.max_min import ALWAYS
from topoplan_simulator_fluid.model import Model

LARGEST = 1e-9
AUTO = "all-reduce=auto;all-gather=auto;reduce-scatter=auto;all-to-all=auto"
#: Every algorithm is among the first of some list; rings stand behind those that some groups cannot run.
CHOICES = [
    AUTO,
    "all-reduce=tree;all-gather=multi-ring;reduce-scatter=multi-ring;all-to-all=staggered",
    "all-reduce=halving-doubling+tree;all-to-all=direct",
    "all-reduce=hierarchical+ring;all-gather=ring;reduce-scatter=ring;all-to-all=pxn+direct",
    "all-reduce=nvls+sharp+ring;all-to-all=pairwise",
    "all-reduce=parameter-server+tree;all-gather=hierarchical+ring;reduce-scatter=hierarchical+ring",
]


@pytest.fixture(scope="module")
def model_of(tmp_path_factory):
    return models_in(tmp_path_factory.mktemp("models"))


def assert_equal(graph, cluster, fabric, strategy, text, protocol="none"):
    """Compare a folded iteration with the whole one; return the folded one, and the algorithms that run."""
    choice = CollectiveChoice(text, protocol)
    one_task = Collective.ALL_TO_ALL in choice.algorithms
    lowering = StagedLowering(graph, cluster, Roofline().build(graph, cluster), one_task=one_task)
    model, network = Model(algorithms=choice, waits=protocol == "none"), network_of(fabric, cluster)
    taskgraph = written_out(lowering.lower(strategy), choice.algorithms).taskgraph
    whole = model.simulate(model.prepare(taskgraph, network)._replace(late_ends=ALWAYS))
    chosen = [key[2].name for key in network.load_rows]
    network = network_of(fabric, cluster)
    folded = lowering.fold(strategy, lambda tasks: model.message_loads(tasks, network), choice.algorithms)
    folded.taskgraph.check()
    assert folded.n_tasks == taskgraph.n_tasks
    outcome, _ = model.simulate_folded(folded, network)
    assert outcome.makespan == pytest.approx(whole.makespan, rel=LARGEST)
    np.testing.assert_allclose(outcome.link_bytes, whole.link_bytes, rtol=LARGEST, atol=1.0)
    assert {key[2].name for key in network.load_rows} == {*chosen}
    return folded, {*chosen}


@pytest.mark.by_day(2)
@pytest.mark.parametrize("text", CHOICES)
def test_folded_plans_with_algorithms_take_what_whole_ones_take(text, model_of):
    plans = some_plans(1000 + 100 * CHOICES.index(text), 2, model_of)
    assert len(plans) == 2
    for protocol, plan in zip(("none", "auto"), plans, strict=True):
        _, chosen = assert_equal(*plan, text, protocol)
        assert chosen


def test_a_plan_without_collectives_folds_where_algorithms_are_chosen(model_of):
    graph, cluster = model_of("dense", 4), cluster_of(2, 1)
    strategy, _ = strategy_of(Settings(pp=2), graph, 2)
    assert_equal(graph, cluster, fabric_of("bigswitch", cluster, {}), strategy, AUTO)


@pytest.mark.parametrize(("hosts", "rounding"), [(16, 1e-9), (54, 1e-5)])
@pytest.mark.parametrize("pp", [1, 2])
def test_a_tree_on_a_full_fat_tree_takes_what_one_switch_takes_and_its_latency(hosts, rounding, pp, model_of):
    """By hand: a full fat-tree carries what hosts send, on up to four links more than through one switch.

    Members of a tree of n hosts are no deeper than log2(n) steps rounded up, which an all-reduce goes up and down;
    the first micro-batch passes pp - 1 stages forward and as many back.  Paths of 54 hosts carry ninths of a message,
    which are rounded.
    """
    graph, choice, seconds = model_of("dense", 2, 432), CollectiveChoice("all-reduce=tree", "none"), {}
    for latency in (0.0, 1e-6):
        cluster = attrs.evolve(cluster_of(hosts, 2), latency=latency)
        strategy, _ = strategy_of(Settings(tp=2, pp=pp, micro_batch=1), graph, cluster.n_devices)
        lowering, model = StagedLowering(graph, cluster, Roofline().build(graph, cluster)), Model(algorithms=choice)
        for name, options in (("bigswitch", {}), ("fattree", {"paths": 400})):
            network = network_of(fabric_of(name, cluster, options), cluster)
            loads = functools.partial(model.message_loads, network=network)
            folded = lowering.fold(strategy, loads, choice.algorithms)
            seconds[name, latency] = model.simulate_folded(folded, network)[0].makespan
            assert {key[2].name for key in network.load_rows} == {"tree"}
            sums = int((folded.taskgraph.kind == TaskKind.COLLECTIVE).sum())
    assert seconds["fattree", 0.0] == pytest.approx(seconds["bigswitch", 0.0], rel=rounding)
    micro_batches, depth = strategy.micro_batches, math.ceil(math.log2(hosts))
    steps = 2 * depth * sums + 2 * (pp - 1) * micro_batches
    assert 0 < seconds["fattree", 1e-6] - seconds["bigswitch", 1e-6] <= 4e-6 * steps * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_two_hundred_folded_plans_with_algorithms(part, model_of):
    plans = some_plans(100_000 * (part + 1), 20, model_of)
    assert len(plans) == 20
    for number, plan in enumerate(plans):
        draw = random.Random(number)
        assert_equal(*plan, draw.choice(CHOICES), draw.choice(["none", "none", "auto"]))


@pytest.mark.slow
@pytest.mark.parametrize("topology", sorted(ONE_PATH))
def test_plans_with_algorithms_of_hundreds_of_devices(topology, model_of):
    """128 to 512 devices, four and eight a host."""
    plans = some_plans(5000, 3, model_of, topology=topology, sizes=LARGE, batch=512)
    assert len(plans) == 3
    for number, plan in enumerate(plans):
        assert_equal(*plan, CHOICES[(number + len(topology)) % len(CHOICES)])


def test_rings_and_algorithms_together_load_the_links_that_each_has(model_of):
    """Links that have equal loads from rings differ by the loads of an algorithm."""
    plan = drawn_plan(1195, model_of, topology="fully-connected")
    assert plan is not None
    assert_equal(*plan, "all-reduce=halving-doubling")


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    ("machine", "plan", "text", "names"),
    [
        ("dgx-h100", {"zero": 3}, "all-gather=multi-ring;reduce-scatter=multi-ring", "multi-ring"),
        ("dgx-h100", {"tp": 8, "sp": False}, "all-reduce=nvls+ring", "nvls ring"),
        ("dgx-h100", {"tp": 4, "pp": 2}, "all-reduce=sharp+ring;all-gather=hierarchical", "sharp hierarchical"),
        ("dgx-a100", {"tp": 4, "zero": 1}, "all-gather=ring+hierarchical;reduce-scatter=hierarchical", "hierarchical"),
        ("dgx-b200", {"tp": 8, "ep": 2}, "all-to-all=pxn;all-reduce=tree", "pxn tree"),
    ],
)
@pytest.mark.parametrize("topology", ["bigswitch", "rail-optimized"])
def test_groups_of_machines_use_nics_and_switches_folded_as_whole(machine, plan, text, names, topology, model_of):
    graph = model_of("experts" if "ep" in plan else "dense", 2, 64)
    host = Host.discover()
    cluster = build_cluster(ClusterOptions(machine=machine, servers=4), host)
    problem = problem_on(graph, cluster, Roofline().build(graph, cluster), host.make("topology", topology))
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    strategy, _ = strategy_of(Settings(**plan), graph, cluster.n_devices)
    folded, chosen = assert_equal(graph, cluster, fabric, strategy, text)
    assert {*names.split()} <= chosen
    assert folded.taskgraph.n_tasks < 0.6 * folded.n_tasks


def test_a_group_that_no_algorithm_can_run_is_named(model_of):
    plan = drawn_plan(1000, model_of)
    assert plan is not None
    with pytest.raises(TopoplanError, match=r"all-reduce of .*nvls.*in one"):
        assert_equal(*plan, "all-reduce=nvls")
    graph, cluster, fabric, strategy = plan
    lowering, choice = (
        StagedLowering(graph, cluster, Roofline().build(graph, cluster)),
        CollectiveChoice("all-reduce=nvls"),
    )
    model, network = Model(algorithms=choice), network_of(fabric, cluster)
    folded = lowering.fold(strategy, lambda tasks: model.message_loads(tasks, network), choice.algorithms)
    with pytest.raises(TopoplanError, match=r"all-reduce of .*nvls.*in one"):
        model.simulate_folded(folded, network)
