"""Samples and tokens a second, and MFU: counted by hand, and of what they say they are."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Dimension, HostModel, Operator, OperatorGraph, Role, Term
from topoplan_engine.precision import in_precision
from topoplan_engine.throughput import model_flops, peak_flops, sequence_length, throughput
from topoplan_machine_nvidia import DEVICES
from topoplan_operators import GraphBuilder, dense
from topoplan_samples.graphs import tensor


def hosts(**given):
    machines = {device.name.lower(): HostModel(device=device) for device in DEVICES}
    return attrs.evolve(Cluster.uniform(**given), machines=machines)


def decoder(batch=8, positions=32, width=64):
    """A layer of attention and one matrix, with what is no matrix product beside them."""
    b = GraphBuilder("decoder", batch)
    x = b.input((positions, width))
    x = b.add(x, b.attention(x, x, x, width, 4))
    b.softmax(b.relu(b.linear(x, 128, bias=False)))
    return b.build()


def test_model_flops_are_three_times_the_products_of_the_forward_pass():
    batch, positions, width = 8, 32, 64
    tokens = batch * positions
    softmax = 5 * batch * 4 * positions * positions  # counted with the attention that it is part of
    projections = 4 * 2 * tokens * width * width
    scores = 2 * 2 * batch * positions * positions * width
    linear = 2 * tokens * width * 128
    assert model_flops(decoder()) == 3 * (projections + scores + softmax + linear)


#: Tensors of a cell as frontends write it: what it sums over is no dimension of its iteration space.
CELL = (("x", (8, 64), (0, -1)), ("y", (8, 64), (0, -1)), ("w", (64, 64), (-1, -1)))


def test_cells_that_share_their_weights_all_multiply():
    """Two steps of a recurrence with a matrix of 64 x 64: the second has the weight of the first as an input."""
    x, y, w = (tensor(name, sizes, dims) for name, sizes, dims in CELL)
    first = Operator(
        name="first",
        kind="cell",
        dims=(Dimension("s", 8, Role.SAMPLE),),
        inputs=(x,),
        weights=(w,),
        outputs=(y,),
        work=(Term(2.0 * 64 * 64, (0,)),),
    )
    second = attrs.evolve(first, name="second", inputs=(x, w), weights=(), tags={"shared": "w"})
    graph = OperatorGraph(name="cells", operators=(first, second), edges=[(0, 0, 1, 0)], batch_size=8)
    assert model_flops(graph) == 3 * 2 * (2 * 8 * 64 * 64)


def test_throughput_of_a_model_with_sequences():
    graph = in_precision(decoder(), "bf16")
    cluster = hosts(n_hosts=2, devices_per_host=4, device_preset="H100")
    assert peak_flops(cluster, "bf16") == 8 * 989.4e12
    rates = throughput(graph, cluster, 0.5)
    assert (rates.samples_per_s, rates.sequence_length, rates.tokens_per_s) == (16.0, 32, 512.0)
    assert rates.mfu == pytest.approx(model_flops(graph) / (0.5 * 8 * 989.4e12))
    assert "bf16 peak of all H100" in rates.assumption
    slow = attrs.evolve(cluster, device_speed=np.full(8, 0.5))
    assert throughput(graph, slow, 0.5).mfu == pytest.approx(2 * rates.mfu)
    assert throughput(graph, attrs.evolve(cluster, gpus_per_device=4), 0.5).mfu == pytest.approx(rates.mfu / 4)


def test_conventions_of_utilization_differ_by_what_they_count():
    """Causal attention: (q + 1) / 2 of all keys; HFU: the forward passes of a plan's regions once more."""
    b = GraphBuilder("causal", 4)
    q, k, v = (b.input((16, 2, 8)) for _ in range(3))
    b.scaled_dot_product_attention(q, k, v, causal=True)
    graph, cluster = in_precision(b.build(), "bf16"), hosts(n_hosts=1, device_preset="H100")
    rates = throughput(graph, cluster, 1.0)
    assert rates.mfu_full_attention / rates.mfu == pytest.approx(16 / 8.5)
    assert model_flops(graph, full_attention=True) == 4 * 2 * 2 * 2 * 16 * 16 * 8  # inputs are data: no gradients
    assert rates.hfu == rates.mfu
    assert throughput(decoder(), cluster, 1.0).mfu_full_attention is None


def test_what_is_not_known_is_not_said():
    b = GraphBuilder("images", 4)
    b.pool2d(b.input((3, 8, 8)), 2, stride=2)
    rates = throughput(b.build(), hosts(n_hosts=1), 1.0)
    assert (rates.samples_per_s, rates.sequence_length, rates.tokens_per_s) == (4.0, None, None)
    assert (rates.mfu, rates.assumption) == (None, "")
    strange = attrs.evolve(hosts(n_hosts=1), device_preset=("TPU",))
    assert throughput(decoder(), strange, 1.0).mfu is None
    assert throughput(decoder(), hosts(n_hosts=1, device_preset="V100"), 1.0, precision="bf16").mfu is None
    assert throughput(decoder(), hosts(n_hosts=1), 1.0, precision="unknown").mfu is None
    assert throughput(decoder(), strange, 1.0, device="A100-40").mfu is not None


def test_sequences_are_those_of_attention_or_of_tokens():
    b = GraphBuilder("tokens", 4)
    indices = b.input((16,), itemsize=8)
    b.append(dense.token_embedding(indices, 100, 8), [indices], "tokens")
    assert sequence_length(b.build()) == 16
    assert sequence_length(decoder(positions=24)) == 24
