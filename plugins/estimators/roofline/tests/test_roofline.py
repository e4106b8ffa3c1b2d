"""Prices computed by hand from FLOPs, bytes and the data sheet."""

from __future__ import annotations

import re
import subprocess
import sys

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Dimension, Operator, Role, Term, TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan.model.machine import HostModel
from topoplan.options import structure
from topoplan_engine.precision import in_precision
from topoplan_estimator_roofline import Roofline
from topoplan_machine_nvidia import DEVICES
from topoplan_samples.graphs import linear_operator, tensor

IDEAL = {"compute_efficiency": 1.0, "memory_efficiency": 1.0, "kernel_overhead_us": 0.0}


def hosts(**given):
    machines = {device.name.lower(): HostModel(device=device) for device in DEVICES}
    return attrs.evolve(Cluster.uniform(**given), machines=machines)


def linear(name, batch, inside, outside):
    return linear_operator(name, batch, inside, outside, bias=True)


def relu(name, batch, size):
    return Operator(
        name=name,
        kind="relu",
        dims=(Dimension("s", batch, Role.SAMPLE), Dimension("c", size, Role.ATTRIBUTE)),
        inputs=(tensor("x", (batch, size), (0, 1)),),
        outputs=(tensor("y", (batch, size), (0, 1)),),
        work=(Term(1.0, (0, 1)),),
        saved=("y",),
    )


def embedding(name, batch, bag, rows, width):
    return Operator(
        name=name,
        kind="embedding",
        dims=(Dimension("s", batch, Role.SAMPLE), Dimension("d", width, Role.PARAMETER)),
        inputs=(tensor("index", (batch, bag), (0, -1), 8),),
        weights=(tensor("table", (rows, width), (-1, 1)),),
        outputs=(tensor("y", (batch, width), (0, 1)),),
        work=(Term(float(bag), (0, 1)),),
        traffic=(Term(8.0 * bag, (0,)), Term(4.0 * bag, (0, 1)), Term(4.0, (0, 1))),
    )


def chain(*operators):
    edges = [(i, 0, i + 1, 0) for i in range(len(operators) - 1)]
    return OperatorGraph(
        name="test", operators=operators, edges=np.array(edges, dtype=np.int32).reshape(-1, 4), batch_size=64
    )


def costs(graph, cluster, **options):
    return Roofline(**options).build(graph, cluster)


def price(function, op, degrees):
    return function.price(op, degrees, np.arange(int(np.prod(degrees)), dtype=np.int32))


def test_large_product_is_bound_by_the_peak():
    graph = chain(linear("a", 4096, 4096, 4096), linear("b", 4096, 4096, 4096))
    prices = price(costs(graph, hosts(n_hosts=4), **IDEAL), 1, (4, 1, 1))
    seconds = 2 * 1024 * 4096 * 4096 / 19.5e12
    np.testing.assert_allclose(prices.forward, np.full(4, seconds))
    np.testing.assert_allclose(prices.backward, 2 * prices.forward)


def test_elementwise_operator_is_bound_by_memory():
    graph = chain(linear("a", 1024, 8, 1000), relu("r", 1024, 1000))
    prices = price(costs(graph, hosts(n_hosts=2), **IDEAL), 1, (2, 1))
    np.testing.assert_allclose(prices.forward, np.full(2, 2 * 512 * 1000 * 4 / 1555e9))
    np.testing.assert_allclose(prices.backward, 2 * prices.forward)
    np.testing.assert_allclose(prices.memory, np.full(2, 512 * 1000 * 4))


def test_training_data_need_no_gradient():
    graph = chain(relu("reshape", 64, 100), linear("a", 64, 100, 100), relu("r", 64, 100))
    function = costs(graph, hosts(n_hosts=1), **IDEAL)
    ratios = [
        price(function, op, (1,) * len(graph.operators[op].dims)).backward
        / price(function, op, (1,) * len(graph.operators[op].dims)).forward
        for op in range(3)
    ]
    np.testing.assert_allclose(np.ravel(ratios), [0, 2, 2])
    first = costs(chain(linear("a", 64, 100, 100)), hosts(n_hosts=1), **IDEAL)
    prices = price(first, 0, (1, 1, 1))
    np.testing.assert_allclose(prices.backward, prices.forward)


def test_moving_data_costs_the_same_both_ways():
    move = attrs.evolve(relu("concat", 64, 100), work=())
    prices = price(costs(chain(linear("a", 64, 8, 100), move), hosts(n_hosts=1)), 1, (1, 1))
    np.testing.assert_allclose(prices.forward, 2 * 64 * 100 * 4 / (0.75 * 1555e9) + 4e-6)
    np.testing.assert_allclose(prices.backward, prices.forward)


@pytest.mark.parametrize(("state", "copies"), [(0, 2), (1, 3), (2, 4)])
def test_memory_of_weights_is_sharded_and_replicated(state, copies):
    graph = chain(linear("a", 64, 30, 20), linear("b", 64, 20, 5))  # which keeps what the first one makes
    function = costs(graph, hosts(n_hosts=8), optimizer_state=state)
    weight = (20 * 30 + 20) * 4
    np.testing.assert_allclose(price(function, 0, (4, 1, 1)).memory, copies * weight + 16 * 20 * 4)
    np.testing.assert_allclose(price(function, 0, (1, 2, 1)).memory, copies * weight / 2 + 64 * 10 * 4)


def test_tables_have_neither_dense_gradient_nor_state():
    graph = chain(embedding("e", 64, 10, 10**7, 256), linear("b", 64, 256, 5))
    prices = price(costs(graph, hosts(n_hosts=2), optimizer_state=2, **IDEAL), 0, (1, 2))
    rows = 64 * 10 * (128 * 4 + 8)  # one for each look-up, with its index
    np.testing.assert_allclose(prices.memory, 1e7 * 128 * 4 + rows + 64 * 128 * 4)
    np.testing.assert_allclose(prices.forward, (64 * 80 + 64 * 128 * 40 + 64 * 128 * 4) / 1555e9)
    np.testing.assert_allclose(prices.backward, prices.forward)


def test_gpus_per_device_divides_samples_and_replicates_weights():
    graph = chain(linear("a", 64, 30, 20))
    one = price(costs(graph, hosts(n_hosts=8), **IDEAL), 0, (8, 1, 1))
    big = price(costs(graph, hosts(n_hosts=2, gpus_per_device=4), **IDEAL), 0, (2, 1, 1))
    for field in ("forward", "backward", "memory"):
        np.testing.assert_allclose(getattr(big, field), getattr(one, field)[:2])


def test_uneven_parts_follow_their_sizes():
    graph = chain(linear("a", 7, 4096, 4096))
    prices = price(costs(graph, hosts(n_hosts=3), **IDEAL), 0, (3, 1, 1))
    sizes = np.array([2, 2, 3])  # starts 0, 7//3 = 2, 14//3 = 4
    moved = 4 * (sizes * 4096 * 2 + 4096 * 4096 + 4096)
    np.testing.assert_allclose(prices.forward, np.maximum(2 * sizes * 4096**2 / 19.5e12, moved / 1555e9))


def test_each_device_has_its_preset_and_speed():
    graph = chain(linear("a", 8192, 4096, 4096))
    cluster = attrs.evolve(hosts(n_hosts=3), device_preset=("V100", "A100-40", "a100-40"), device_speed=[1.0, 1.0, 0.5])
    options = {**IDEAL, "kernel_overhead_us": 7.0}
    flops = 2 * 8192 / 2 * 4096 * 4096
    function = costs(graph, cluster, **options)
    prices = function.price(0, (2, 1, 1), np.array([2, 0], dtype=np.int32))
    np.testing.assert_allclose(prices.forward, [(flops / 19.5e12 + 7e-6) / 0.5, flops / 15.7e12 + 7e-6])
    other = function.price(0, (2, 1, 1), np.array([1, 0], dtype=np.int32))
    np.testing.assert_allclose(other.forward[0], prices.forward[0] / 2)
    as_h200 = costs(graph, cluster, device="h200", precision="bf16", **options)
    prices = as_h200.price(0, (2, 1, 1), np.array([0, 1], dtype=np.int32))
    np.testing.assert_allclose(prices.forward, flops / 989.4e12 + 7e-6)


@settings(max_examples=30, deadline=None)
@given(st.tuples(*[st.integers(1, 9)] * 3), st.tuples(*[st.integers(1, 9)] * 3), st.integers(1, 5))
def test_work_of_the_parts_adds_up(sizes, degrees, share):
    from topoplan_operator_times.work import part_work

    degrees = tuple(min(pair) for pair in zip(sizes, degrees, strict=True))
    op = linear("a", *sizes[:1], *sizes[1:])
    whole = part_work(op, degrees, 1, op.outputs)
    assert whole.flops.sum() == 2 * np.prod(sizes)
    assert whole.flops.shape == whole.traffic.shape == whole.saved.shape == (np.prod(degrees),)
    shared = part_work(op, degrees, share, op.outputs)
    assert (shared.flops <= whole.flops).all()
    assert (shared.flops * share >= whole.flops).all()
    assert (shared.saved <= whole.saved).all()
    np.testing.assert_array_equal(shared.weights, whole.weights)


@pytest.mark.parametrize(
    ("device", "precision", "share"),
    [
        ("H100", "bf16", 794.5 / 989),
        ("A100-80", "bf16", 271.2 / 312),
        ("B200", "fp16", 1745 / 2250),
        ("H100", "fp32", 51.51 / 66.9),
        ("A100-80", "fp32", 0.9),
        ("V100", "fp16", 0.9),
    ],
)
def test_kernels_reach_what_was_measured_on_the_device(device, precision, share):
    graph = in_precision(chain(linear("a", 4096, 4096, 4096)), precision)
    cluster = hosts(n_hosts=1, device_preset=device)
    function = costs(graph, cluster, kernel_overhead_us=0.0)
    peak = cluster.device(device).peak_flops[precision]
    flops = 2 * 4096**3 + 4096 * 4096
    np.testing.assert_allclose(price(function, 0, (1, 1, 1)).forward, flops / (share * peak), rtol=1e-3)
    assert function.assumptions["compute_efficiency"] == {device: share}
    assert costs(graph, cluster, compute_efficiency=0.5).assumptions["compute_efficiency"] == {device: 0.5}


@pytest.mark.parametrize(("device", "ratio"), [("h100", 1978.9 / 989.4), ("b200", 2.0)])
def test_products_of_layers_run_in_fp8(device, ratio):
    """A matrix of a layer takes half the time; one outside of layers, and what is no product, as long as before."""
    operators = [linear("layers.0.up", 8192, 8192, 8192), relu("layers.0.relu", 8192, 8192)]
    graph = in_precision(chain(*operators, linear("head", 8192, 8192, 8192)), "bf16")
    options = {"device": device.upper(), "kernel_overhead_us": 0.0}
    before, after = (costs(graph, hosts(n_hosts=1), fp8=fp8, **options) for fp8 in (False, True))
    times = [
        price(before, op, (1,) * len(each.dims)).forward[0] / price(after, op, (1,) * len(each.dims)).forward[0]
        for op, each in enumerate(graph.operators)
    ]
    assert times == pytest.approx([ratio, 1.0, 1.0], rel=1e-9)
    assert after.assumptions["fp8"] == "products of layers with weights"
    assert "fp8" not in before.assumptions


def test_results_cannot_be_changed():
    function = costs(chain(linear("a", 8, 8, 8)), hosts(n_hosts=2))
    with pytest.raises(ValueError, match="read-only"):
        price(function, 0, (2, 1, 1)).forward[0] = 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"device": "A100-81"}, "did you mean 'A100-80'?"),
        ({"device": "A100-80", "fp8": True}, "fp8: A100-80 has no fp8 (it has fp32, tf32, bf16, fp16)"),
        ({"device": "V100", "precision": "bf16"}, "precision: V100 has no bf16 (it has fp32, fp16)"),
    ],
)
def test_wrong_options_are_named(options, told):
    with pytest.raises(TopoplanError, match=re.escape(told)):
        costs(chain(linear("a", 8, 8, 8)), hosts(n_hosts=2), **options)


def test_options_from_text_are_checked():
    assert structure(Roofline, {"compute-efficiency": "0.5", "kernel-overhead-us": ""}, "x").kernel_overhead_us is None
    with pytest.raises(TopoplanError, match=r"compute-efficiency: 1\.5 is too large"):
        structure(Roofline, {"compute-efficiency": "1.5"}, "estimator roofline")


@pytest.mark.parametrize("degrees", [(1, 2), (65, 1, 1), (1, 0, 1)])
def test_illegal_cuts_are_refused(degrees):
    function = costs(chain(linear("a", 64, 8, 8)), hosts(n_hosts=2))
    assert not function.supports(0, degrees)
    with pytest.raises(TopoplanError, match="operator 'a'"):
        function.price(0, degrees, np.zeros(1, dtype=np.int32))
    assert function.supports(0, (64, 8, 8))


def test_the_plugin_itself_is_light():
    code = """
import sys, topoplan_estimator_roofline
sys.exit("topoplan_estimator_roofline.cost" in sys.modules or "numba" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
