"""Straight pipelines and sizes of stages on machines of more devices than can be looked at one by one."""

from __future__ import annotations

import itertools
import math

import attrs
import numpy as np
import pytest
from pipeline_models import Costs, switch_problem

from topoplan import Cluster
from topoplan.search.stopping import Stopped
from topoplan_engine.interrupt import Stop, obeyed
from topoplan_pipeline_planning.layers import Layers
from topoplan_samples.graphs import layer_graph
from topoplan_searcher_pipeline import DapplePipeline, planning
from topoplan_searcher_pipeline.dynamic import ends_of
from topoplan_searcher_pipeline.machine import Machine, coarse_sizes
from topoplan_searcher_pipeline.planning import baselines
from topoplan_searcher_pipeline.search import _planner_of, plan_pipelines

SECONDS = [3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0]


def chain(seconds):
    count = len(seconds)
    zeros = np.zeros(count)
    before = np.tri(count, k=-1, dtype=bool)
    return Layers(
        seconds=np.cumsum(seconds),
        parameters=zeros,
        activations=zeros,
        crossing=zeros,
        before=before,
        closed=np.tri(count, dtype=bool),
    )


def machine(hosts, devices):
    return Machine(host=np.repeat(np.arange(hosts), devices), outside=np.ones(hosts), inside=np.ones(hosts), memory=1e9)


def slowest(cuts):
    return max(sum(SECONDS[a:b]) for a, b in itertools.pairwise([*cuts, len(SECONDS)]))


def test_straight_pipelines_of_many_devices_have_the_least_slowest_stage_on_consecutive_devices():
    found = dict(baselines(lambda: chain(SECONDS), machine(256, 4), 1024))
    assert list(found) == ["data_parallel", "straight"]
    straight = list(found["straight"]())
    assert [len(pipeline.cuts) for pipeline in straight] == [2, 4, 8]
    for pipeline in straight:
        stages = len(pipeline.cuts)
        ways = itertools.combinations(range(1, len(SECONDS)), stages - 1)
        assert slowest(pipeline.cuts) == min(slowest((0, *way)) for way in ways)
        devices = np.array(pipeline.counts)
        assert (devices.sum(axis=1) == 1024 // stages).all()
        assert (devices.sum(axis=0) == 4).all()
        assert ((devices == 0) | (devices == 4)).all()


def test_straight_pipelines_of_many_layers_are_those_of_large_machines():
    """HPGO's take 1,022 maxima of all pairs of layers on 512 devices: 80 layers of a transformer took minutes."""
    layers = chain([1.0, 2.0] * 600)
    found = dict(baselines(lambda: layers, machine(64, 8), 512))
    assert list(found) == ["data_parallel", "straight"]
    straight = list(found["straight"]())
    assert [len(pipeline.cuts) for pipeline in straight] == [2, 4, 8, 16, 32, 64, 128, 256]
    assert straight[0].cuts == (0, 600)  # both halves take equally long
    assert list(dict(baselines(lambda: chain([1.0] * 100), machine(64, 8), 512))) == [
        "data_parallel",
        "straight",
        "hpgo",
    ]


@pytest.mark.parametrize(("hosts", "are_planned"), [(8, True), (72, False)])
def test_baselines_that_take_longer_than_the_dynamic_program_are_planned_where_no_plan_is_known(
    monkeypatch, hosts, are_planned
):
    """On 512 devices they took 4 of the 5 CPU seconds before the first plan of DLRM, which none of them became."""
    planned = []
    monkeypatch.setattr(planning, "straight_pipeline", lambda *arguments: planned.append(arguments))
    monkeypatch.setattr(planning, "shortlist", lambda *arguments: [])
    layers = 6
    graph = layer_graph([(k, k + 1) for k in range(layers - 1)], [2_000_000] * layers, [100] * layers, 4 * hosts)
    costs = Costs([1e-3] * layers, [2e-3] * layers, [100.0] * layers, [6e6] * layers)
    cluster = Cluster.uniform(n_hosts=hosts, interface_bandwidth=1e9, interfaces=1, latency=0.0)
    shortlist = plan_pipelines(DapplePipeline(), switch_problem(graph, cluster, costs))
    assert bool(planned) is are_planned
    assert max(len(plan.pipeline.cuts) for plan in shortlist.plans) > 1


def test_the_dynamic_program_looks_at_a_few_hundred_numbers_of_devices_at_most():
    for devices in (512, 1024, 16384, 100_000):
        sizes = coarse_sizes(devices, tuple(1 << k for k in range(14)))
        assert sizes == (tuple(1 << k for k in range(14)) if devices == 512 else sizes)
        assert devices // sizes[0] <= 512


def test_straight_pipelines_have_as_many_stages_as_their_weights_need(monkeypatch):
    """Llama 3.1 405B keeps 6.5 TB for its weights: 128 stages, where the time of rows of 2,021 cuts ended at 64."""
    monkeypatch.setattr(planning, "_MOST_STAGES", 4)
    monkeypatch.setattr(planning, "_MOST_MAXIMA", 0)
    for least, stages in ((1, [2, 4]), (5, [2, 4, 8])):
        found = dict(baselines(lambda: chain(SECONDS), machine(256, 4), 1024, least))
        assert [len(pipeline.cuts) for pipeline in found["straight"]()] == stages


@pytest.mark.parametrize(("gigabytes", "stages"), [(4.0, 1), (0.9, 4), (0.11, 30)])
def test_the_fewest_stages_are_those_whose_devices_hold_all_weights(gigabytes, stages):
    """Eight layers keep 400 MB each: 3.2 GB over the memory of a device, rounded up."""
    layers = 8
    graph = layer_graph([(k, k + 1) for k in range(layers - 1)], [2_000_000] * layers, [100] * layers, 64)
    costs = Costs([1e-3] * layers, [2e-3] * layers, [100.0] * layers, [4e8] * layers)
    cluster = Cluster.uniform(n_hosts=8, interface_bandwidth=1e9, interfaces=1, latency=0.0)
    planner = _planner_of(DapplePipeline(), switch_problem(graph, cluster, costs))[-1]
    planner = attrs.evolve(planner, machine=attrs.evolve(planner.machine, memory=gigabytes * 1e9))
    assert planner.least_stages == stages
    if stages > 4:
        assert planner.plans_of(math.inf, 4) == []


def test_the_dynamic_program_is_left_in_the_middle_of_a_task():
    """A task takes seconds on 16,384 devices: of a limit of 60 s 76 had passed."""
    layers = 6
    graph = layer_graph([(k, k + 1) for k in range(layers - 1)], [2_000_000] * layers, [100] * layers, 16)
    costs = Costs([1e-3] * layers, [2e-3] * layers, [100.0] * layers, [6e6] * layers)
    cluster = Cluster.uniform(n_hosts=4, interface_bandwidth=1e9, interfaces=1, latency=0.0)
    task = _planner_of(DapplePipeline(), switch_problem(graph, cluster, costs))[-1].tasks()[0]
    with obeyed(Stop(), remaining=lambda: 0.0), pytest.raises(Stopped):
        ends_of(task, math.inf, 4, 3)


def test_prices_of_micro_batches_are_left_between_operators():
    """Of 1,200 operators in 15,360 samples they took 36 CPU seconds: whatever the limit."""

    class SlowKernels(Costs):
        linear_in_samples = False

    graph = layer_graph([(0, 1)], [2_000_000] * 2, [100] * 2, 16)
    costs = SlowKernels([1e-3] * 2, [2e-3] * 2, [100.0] * 2, [6e6] * 2)
    cluster = Cluster.uniform(n_hosts=4, interface_bandwidth=1e9, interfaces=1, latency=0.0)
    planner = _planner_of(DapplePipeline(), switch_problem(graph, cluster, costs))[-1]
    with obeyed(Stop(), remaining=lambda: 0.0), pytest.raises(Stopped):
        planner.columns.at(8)
