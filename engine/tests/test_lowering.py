"""Lowering against its slow reference, on real operators cut at random."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, CostFunction, Fabric, PartCosts, PlacedStrategy, Placement, TaskGraph, TaskKind
from topoplan_engine.lowering import Lowering
from topoplan_engine.search.space import Space
from topoplan_engine.simulation.phases import phased_demand
from topoplan_operators import GraphBuilder
from topoplan_reference.lowering import reference_lower
from topoplan_samples.tasks import collective, task_graph
from topoplan_simulator_fluid import Fluid


class NumberedCosts(CostFunction):
    """Costs that differ for every operator, part and device, so that a mix-up shows."""

    def supports(self, op, degrees):
        return True

    def price(self, op, degrees, devices):
        parts = np.arange(len(devices))
        return PartCosts(
            forward=1e-3 * (op + 1) + 1e-6 * parts, backward=2e-3 * (op + 1) + 1e-7 * devices, memory=1.0 + parts
        )


def convolutional(batch=8, dialect="standard"):
    b = GraphBuilder("small", batch, dialect)
    x = b.conv2d(b.input((3, 9, 9)), 4, 3, stride=1, padding=1)
    y = b.relu(b.pool2d(x, 3, stride=2))
    z = b.add(b.conv2d(y, 6, 3, padding=1), b.conv2d(y, 6, 1))
    return b.linear(b.flat(z), 10), b


def recommender(batch=8, dialect="standard"):
    b = GraphBuilder("small", batch, dialect)
    tables = [b.embedding(b.input((4,), itemsize=8), 100, 6) for _ in range(3)]
    bottom = b.linear(b.input((5,)), 6)
    return b.linear(b.concat([bottom, *tables]), 4), b


def attending(batch=8, dialect="standard"):
    b = GraphBuilder("small", batch, dialect)
    x = b.input((6, 8))
    t = b.attention(x, x, x, 8, 4)
    return b.linear(t, 12), b


MODELS = {"convolutional": convolutional, "recommender": recommender, "attending": attending}


def columns_equal(one: TaskGraph, other: TaskGraph) -> None:
    for field in attrs.fields(TaskGraph):
        if field.name != "foreign":
            mine, theirs = getattr(one, field.name), getattr(other, field.name)
            same = np.array_equal(mine, theirs) if isinstance(mine, np.ndarray) else mine == theirs
            assert same, field.name


@pytest.mark.parametrize("dialect", ["standard", "flexnet"])
@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**32), per_host=st.sampled_from([1, 2]), gpus_per_device=st.sampled_from([1, 4]))
def test_equals_the_reference(model, dialect, seed, per_host, gpus_per_device):
    graph = MODELS[model](dialect=dialect)[1].build()
    cluster = Cluster.uniform(n_hosts=4 // per_host, devices_per_host=per_host, gpus_per_device=gpus_per_device)
    costs, rng = NumberedCosts(), np.random.default_rng(seed)
    space, lowering = Space(graph, cluster, costs), Lowering(graph, cluster, costs)
    for _ in range(2):  # the second one meets the pieces that the first one left
        strategy = PlacedStrategy(tuple(space.random_placement(op, rng) for op in range(len(graph.operators))))
        strategy.check(graph, cluster.n_devices)
        tasks = lowering.lower(strategy)
        tasks.check()
        columns_equal(tasks, reference_lower(graph, strategy, costs, cluster))


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_uneven_parts_on_any_devices(seed):
    graph = convolutional(batch=7)[1].build()
    cluster, costs, rng = Cluster.uniform(n_hosts=5), NumberedCosts(), np.random.default_rng(seed)
    placements = []
    for op in graph.operators:
        degrees = [int(rng.integers(1, min(d.size, 3) + 1)) if d.role is not None else 1 for d in op.dims]
        placements.append(Placement(degrees, rng.integers(0, 5, int(np.prod(degrees)))))
    strategy = PlacedStrategy(tuple(placements))
    columns_equal(Lowering(graph, cluster, costs).lower(strategy), reference_lower(graph, strategy, costs, cluster))


def test_data_parallel_layers_exchange_no_activations():
    graph = convolutional()[1].build()
    cluster, costs = Cluster.uniform(n_hosts=4), NumberedCosts()
    tasks = Lowering(graph, cluster, costs).lower(Space(graph, cluster, costs).initial())
    assert not (tasks.kind == TaskKind.TRANSFER).any()
    rings = np.flatnonzero(tasks.kind == TaskKind.COLLECTIVE)
    assert len(rings) == sum(len(op.weights) for op in graph.operators)
    assert all(tasks.members(t).tolist() == [0, 1, 2, 3] for t in rings)
    assert tasks.size[rings].sum() == graph.parameter_bytes


def test_demand_counts_what_the_task_graph_moves():
    graph = recommender()[1].build()
    cluster, costs = Cluster.uniform(n_hosts=2, devices_per_host=2), NumberedCosts()
    lowering, rng = Lowering(graph, cluster, costs), np.random.default_rng(3)
    space = Space(graph, cluster, costs)
    for _ in range(10):
        strategy = PlacedStrategy(tuple(space.random_placement(op, rng) for op in range(len(graph.operators))))
        tasks, demand = lowering.lower(strategy), lowering.demand(strategy)
        matrix, forward = np.zeros((2, 2)), np.zeros((2, 2))
        host = cluster.device_host
        for t in np.flatnonzero(tasks.kind == TaskKind.TRANSFER):
            if host[tasks.src[t]] != host[tasks.dst[t]]:
                matrix[host[tasks.src[t]], host[tasks.dst[t]]] += tasks.size[t]
                if tasks.kind[tasks.successors(t)[0]] == TaskKind.FORWARD:
                    forward[host[tasks.src[t]], host[tasks.dst[t]]] += tasks.size[t]
        assert np.array_equal(demand.matrix, matrix)
        assert np.array_equal(demand.forward, forward)
        assert phased_demand(tasks, cluster) == demand
        apart = [
            tasks.size[t]
            for t in np.flatnonzero(tasks.kind == TaskKind.COLLECTIVE)
            if len(set(host[tasks.members(t)])) > 1
        ]
        assert demand.group_bytes.sum() == sum(apart)


def test_gpus_per_device_adds_an_all_reduce_inside_the_host():
    b = GraphBuilder("one", 16, "flexnet")
    b.linear(b.input((4096,)), 4096)
    graph = b.build()
    cluster = Cluster.uniform(n_hosts=4, gpus_per_device=4, inside_bandwidth=25e9)
    costs = NumberedCosts()
    tasks = Lowering(graph, cluster, costs).lower(Space(graph, cluster, costs).initial())
    rings = np.flatnonzero(tasks.kind == TaskKind.COLLECTIVE)
    # FlexNet's numbers at 200 Gb/s: 67,108,864 B take 1.342177 ms.
    assert tasks.seconds[rings[0]] * 1e3 == pytest.approx(1.342177, abs=1e-6)


@pytest.mark.parametrize("gpus", [2, 8])
def test_gpus_of_a_device_sum_as_devices_of_a_host(gpus):
    """One option, one meaning: the rate of a GPU's link, whether GPUs are devices or parts of one."""
    b = GraphBuilder("one", 16)
    b.linear(b.input((16384,)), 16384, bias=False)
    graph, costs = b.build(), NumberedCosts()
    within = Cluster.uniform(n_hosts=1, gpus_per_device=gpus, inside_bandwidth=450e9)
    tasks = Lowering(graph, within, costs).lower(Space(graph, within, costs).initial())
    by_hand = 2 * (gpus - 1) / gpus * 2**30 / 450e9  # eight: 4.176 ms
    summed = tasks.seconds[tasks.kind == TaskKind.COLLECTIVE]
    assert summed.tolist() == pytest.approx([by_hand])
    apart = Cluster.uniform(n_hosts=1, devices_per_host=gpus, inside_bandwidth=450e9)
    ring = task_graph([collective(range(gpus), 2**30)], n_devices=gpus)
    switch = Fabric.from_links(name="s", n_hosts=1, links=[], bandwidth=1, latency=0)
    assert Fluid().build()(ring, switch, apart).makespan == pytest.approx(by_hand, rel=1e-3)
