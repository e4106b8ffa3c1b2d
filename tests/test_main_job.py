"""The main job: model + cluster + topology to best strategy to task graph."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from topoplan import Host, TaskKind
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize


@pytest.fixture(scope="module")
def host():
    return Host.discover()


def job(**changes):
    """The README's job on measured times: DLRM on 16 servers with four interfaces each."""
    fields = {
        "model": "dlrm:preset=dlrm16",
        "cluster": ClusterOptions(servers=16, degree=4, interface_bandwidth_gbps=100.0),
        "topology": "topoopt",
        "estimator": "measured:profile=dlrm16",
        "searchers": ["totientperm"],
        "run": RunOptions(budget=1000, seed=1),
        **changes,
    }
    return Experiment(**fields)


@pytest.fixture(scope="module")
def searched(host):
    return optimize(job(), host=host)


@pytest.mark.slow
def test_the_search_beats_where_it_started_or_nothing_does(searched, host):
    seconds, initial = searched.plan.timeline.makespan, searched.initial.timeline.makespan
    assert searched.plan.timeline.bounds.best <= seconds <= initial
    if seconds == initial:
        # With four interfaces the all-reduces of plain data parallelism hide behind the backward pass: the
        # proof is every assignment of degrees to the kinds of layer, 5^5 strategies.
        changes = {"searchers": ["exhaustive:tied=true"], "run": RunOptions(budget=10**6)}
        proof = optimize(job(**changes), host=host)
        assert proof.result.evaluations == 1 + 5**5
        assert proof.plan.timeline.makespan == initial


@pytest.mark.slow
def test_the_search_beats_data_parallelism_on_one_switch(host):
    # Packet simulation confirms this one: FlexNetPacket takes 17.66 ms for the plan and 42.35 ms for data parallelism.
    # It does not confirm what a search of DLRM gains here, 2 to 3 % in the model (seed 8, 1500 proposals): 56.33 ms
    # for the plan, a pipeline of two stages, and 53.41 ms for data parallelism.
    changes = {
        "model": "alexnet",
        "topology": "bigswitch",
        "cluster": ClusterOptions(servers=16, degree=1, interface_bandwidth_gbps=100.0),
        "estimator": "roofline",
        "searchers": ["mcmc"],
        "run": RunOptions(budget=300, seed=1, batch_size=1024),
    }
    outcome = optimize(job(**changes), host=host)
    assert outcome.plan.timeline.makespan < 0.5 * outcome.initial.timeline.makespan


@pytest.mark.slow
def test_the_reported_time_is_that_of_the_reported_state(searched):
    assert searched.plan.timeline.makespan in searched.draws.seconds
    assert searched.plan.timeline.makespan == pytest.approx(searched.seconds, rel=0.005)
    assert searched.seconds + searched.penalty == pytest.approx(searched.result.best_cost, rel=0.02)
    assert searched.seconds <= searched.initial_seconds


def test_every_group_size_has_rings(searched, host):
    exporter = host.get("exporter", "flatbuffer")
    plan = exporter().read(exporter().write(searched.plan), "plan.fbuf")
    taskgraph = plan.taskgraph
    sizes = {len(taskgraph.members(t)) for t in np.flatnonzero(taskgraph.kind == TaskKind.COLLECTIVE)}
    assert sizes - {1} <= set(plan.fabric.rings)
    for size in sizes - {1}:
        for jumps in plan.fabric.rings[size]:
            assert sum(jumps) % (16 // size) == 0
            assert np.gcd(sum(jumps), 16) == 16 // size


def test_the_fabric_keeps_every_host_within_its_interfaces(searched):
    fabric = searched.plan.fabric
    assert (np.bincount(fabric.link_src, weights=fabric.link_count, minlength=16) <= 4).all()
    assert (np.bincount(fabric.link_dst, weights=fabric.link_count, minlength=16) <= 4).all()


def test_classic_alexnet_strategy(host):
    """FlexFlow's AlexNet example: uneven channels over three devices, halves of images on four."""
    from pathlib import Path

    file = Path(__file__).parents[1] / "examples" / "alexnet.strategy"
    outcome = optimize(
        Experiment(
            model="alexnet",
            cluster=ClusterOptions(servers=1, gpus_per_server=4),
            run=RunOptions(budget=0, batch_size=64, strategy=str(file)),
        ),
        host=host,
    )
    placed = {
        op.name: placement
        for op, placement in zip(outcome.plan.graph.operators, outcome.plan.strategy.placements, strict=True)
    }
    assert placed["conv2"].devices.tolist() == [0, 2, 1, 3]
    assert sorted(placed["conv2"].degrees, reverse=True)[:2] == [2, 2]
    assert placed["flat1"].devices.tolist() == [0, 2]
    assert placed["linear1"].devices.tolist() == [0, 2, 3]
    assert placed["linear2"].devices.tolist() == [0, 1, 2]
    assert placed["linear3"].devices.tolist() == [0]
    # linear1's 4096 channels over three devices: weights are sharded, so nothing is all-reduced.
    graph, taskgraph = outcome.plan.graph, outcome.plan.taskgraph
    rings = taskgraph.kind == TaskKind.COLLECTIVE
    reduced = {graph.operators[op].name for op in taskgraph.op[rings]}
    assert "linear1" not in reduced
    assert "conv2" in reduced
    exporter = host.get("exporter", "strategy")
    text = exporter().write(outcome.plan)
    assert exporter().read_strategy(text, "again", graph) == outcome.plan.strategy
    assert 0 < outcome.plan.timeline.bounds.best <= outcome.plan.timeline.makespan


@pytest.mark.slow
@pytest.mark.parametrize("simulator", ["fluid", "flexnet"])
def test_other_searchers_never_beat_exhaustive(host, simulator):
    def best(searcher, budget):
        experiment = Experiment(
            model="dlrm:arch-sparse-feature-size=256,arch-embedding-size=100000,"
            "arch-mlp-bot=4096-256,arch-mlp-top=64-4096-1",
            cluster=ClusterOptions(servers=2, interface_bandwidth_gbps=25.0),
            simulator=simulator,
            searchers=[searcher],
            run=RunOptions(budget=budget, batch_size=256, seed=2),
        )
        return optimize(experiment, host=host)

    all_of_them = best("exhaustive", 10**6)
    assert all_of_them.result.evaluations == 1 + 2000
    assert all_of_them.plan.timeline.makespan < all_of_them.initial.timeline.makespan
    assert best("random", 300).plan.timeline.makespan >= all_of_them.plan.timeline.makespan
    assert best("mcmc", 500).plan.timeline.makespan == all_of_them.plan.timeline.makespan


@pytest.mark.parametrize("option", ["gradient-sync=barrier", "collective=parameter-server", "memory=limit"])
@pytest.mark.parametrize("simulator", ["fluid", "flexnet"])
def test_options_of_flexflows_simulator(host, simulator, option):
    def time(simulator):
        experiment = Experiment(
            model="alexnet",
            cluster=ClusterOptions(servers=4, interface_bandwidth_gbps=10.0),
            simulator=simulator,
            run=RunOptions(budget=0, batch_size=64),
        )
        return optimize(experiment, host=host).plan.timeline.makespan

    plain, changed = time(simulator), time(f"{simulator}:{option}")
    if option == "memory=limit":
        assert changed == plain
    else:
        assert changed > plain


@pytest.mark.slow
def test_devices_and_hosts_may_differ(host):
    from topoplan_engine.options import HostGroup

    def time(*groups, gbps=10.0):
        experiment = Experiment(
            model="alexnet",
            cluster=ClusterOptions(servers=4, hosts=groups, interface_bandwidth_gbps=gbps),
            run=RunOptions(budget=0, batch_size=64),
        )
        return optimize(experiment, host=host).plan.timeline

    equal = time(HostGroup(servers=4))
    narrow = time(HostGroup(servers=3), HostGroup(servers=1, interface_bandwidth_gbps=1.0))
    assert narrow.makespan > equal.makespan
    # A slow device computes for as long as the others where the network is fast, and is left out where it is slow.
    mixed = (HostGroup(servers=3), HostGroup(servers=1, speed=0.5))
    slower, fast = time(*mixed, gbps=4000.0), time(HostGroup(servers=4), gbps=4000.0)
    assert slower.device_busy[3] == pytest.approx(slower.device_busy[0], rel=0.1)
    assert slower.makespan > fast.makespan
    assert time(*mixed).device_busy[3] == 0.0


FRONTENDS = ("alexnet", "candle-uno", "dlrm", "inception-v3", "moe", "ncf", "resnet50", "transformer", "vgg16")
TOPOLOGIES = ("bigswitch", "fattree", "fully-connected", "random", "topoopt")


def is_quick(model, topology):
    """Say whether a pair runs on each save: small models on one switch, the smallest on all networks."""
    return model == "alexnet" or (topology == "bigswitch" and model not in ("inception-v3", "resnet50"))


@pytest.mark.by_day(3)
@pytest.mark.parametrize(
    ("model", "topology"),
    [
        # Every topology and every small model on each save, all pairs at night.
        pytest.param(*pair, marks=[] if is_quick(*pair) else pytest.mark.slow)
        for pair in itertools.product(FRONTENDS, TOPOLOGIES)
    ],
)
def test_every_model_runs_on_every_topology(host, model, topology):
    experiment = Experiment(
        model=model,
        cluster=ClusterOptions(servers=4, gpus_per_server=2, degree=2),
        topology=topology,
        run=RunOptions(budget=3, batch_size=64),
    )
    outcome = optimize(experiment, host=host)
    timeline = outcome.plan.timeline
    assert 0 < timeline.bounds.best <= timeline.makespan * (1 + 1e-12)
    assert timeline.makespan <= outcome.initial.timeline.makespan
    assert np.isfinite(timeline.finish).all()
