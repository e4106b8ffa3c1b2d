"""HiDup's cost model: counts by hand, prices from counts, and noise."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, TopoplanError
from topoplan.model.taskgraph import Collective
from topoplan_engine.sharding.resharding import CollectiveCosts
from topoplan_estimator_hidup import Hidup
from topoplan_estimator_hidup.flops import flops
from topoplan_operators import (
    GraphBuilder,
    Handle,
    dense,
    experts,
    losses,
    normalization,
    pointwise,
    products,
    shaping,
    spatial,
)

X = Handle((4, 6, 8))
COUNTS = {
    "tanh": (pointwise.elementwise("tanh", [X]), 3 * 192),
    "relu": (pointwise.elementwise("relu", [X]), 192),
    "linear": (dense.linear(X, 5, bias=True, activation=False), 3 * 4 * 6 * 8 * 5),
    "sum": (losses.total(X), 192),
    "add": (pointwise.elementwise("add", [X, Handle((1, 6, 8))]), 192),
    "chunk": (shaping.chunk(X, 2, 1), 192),
    "view": (shaping.view(X, (4, 48)), 192),
    "transpose": (shaping.transpose(X, 0, 1), 192),
    "bmm": (products.einsum("bnm,bmp->bnp", [X, Handle((4, 8, 5))], kind="bmm"), 3 * 4 * 6 * 8 * 5),
    "matmul": (
        products.einsum("becm,emp->becp", [Handle((4, 2, 3, 8))], [Handle((2, 8, 5))], kind="matmul"),
        3 * 4 * 2 * 3 * 8 * 5,
    ),
    "softmax": (pointwise.softmax(X), 5 * 192),
    "log_softmax": (pointwise.softmax(X, log=True), 15 * 192),
    "dropout": (pointwise.elementwise("dropout", [X]), 20 * 192),
    "layer_norm": (normalization.layer_norm(X), 10 * 192),
    "gating": (experts.gating(X, 3, 5, 2), 10 * 192 * 3 * 5),
    "append_token": (shaping.append_token(X), 4 * 8),
    "take_token": (shaping.take_token(X), 4 * 8),
    "dispatch": (products.einsum("bsd,bsec->becd", [X, Handle((4, 6, 2, 3))]), 3 * 4 * 6 * 8 * 2 * 3),
    # scores and answers, and softmax; projections are left out
    "attention": (dense.multihead_attention(X, X, X, 2), 6 * 4 * 6 * 8 * 4 + 5 * 4 * 6 * 4),
    "embedding": (dense.token_embedding(Handle((4, 6)), 100, 8), 192),
    "nll_loss": (losses.nll_loss(Handle((4, 10, 6)), Handle((4, 6))), 240),
    "conv2d": (
        spatial.conv2d(Handle((4, 3, 8, 8)), 5, 4, stride=4, padding=0, bias=True, activation=False),
        3 * 4 * 3 * 5 * 8 * 8,
    ),
    "flatten": (shaping.flatten(Handle((4, 6, 2, 2)), 2), 96),
    # HiDup knows none: FLOPs of the operator
    "pool2d": (spatial.pool2d(Handle((4, 6, 2, 2)), 2, stride=2, padding=0), 4 * 6 * 4),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts(name):
    op, count = COUNTS[name]
    assert flops(op) == count


def costs_of(cluster=None, **given):
    b = GraphBuilder("model", 8)
    x = b.linear(b.input((16,)), 32, bias=False)
    b.relu(x)
    return Hidup(preset="released", device_flops=1000, **given).build(b.build(), cluster or Cluster.uniform(n_hosts=2))


def test_operators_take_their_count_over_the_rate():
    costs = costs_of(optimizer_state=1)
    whole = costs.price(0, (1, 1, 1), np.zeros(1, np.int32))
    assert whole.forward.tolist() == [pytest.approx(3 * 8 * 16 * 32 / 1000)]
    assert whole.backward.tolist() == [pytest.approx(2 * 3 * 8 * 16 * 32 / 1000)]
    # weight, gradient and one state of the optimizer, and the output
    assert whole.memory.tolist() == [3 * 4 * 16 * 32 + 4 * 8 * 32]
    halves = costs.price(0, (2, 1, 1), np.arange(2, dtype=np.int32))
    assert halves.forward.tolist() == pytest.approx([whole.forward[0] / 2] * 2)
    assert halves.memory.tolist() == [3 * 4 * 16 * 32 + 4 * 4 * 32] * 2


def test_collectives_take_bytes_of_the_whole_tensor_over_their_bandwidth():
    costs = costs_of(all_gather_bytes_per_s=100, all_reduce_bytes_per_s=50, latency_us=1e6)
    assert isinstance(costs, CollectiveCosts)
    assert costs.n_devices == 2
    assert costs.collective(Collective.ALL_GATHER, 300) == pytest.approx(3 + 1)
    assert costs.collective(Collective.ALL_REDUCE, 300) == pytest.approx(6 + 1)


def test_slow_devices_take_longer():
    slow = Cluster.uniform(n_hosts=2)
    slow = type(slow)(
        **{
            field: getattr(slow, field)
            for field in (
                "device_host",
                "device_preset",
                "device_memory",
                "inside_bandwidth",
                "interfaces",
                "interface_bandwidth",
                "latency",
                "gpus_per_device",
            )
        },
        device_speed=[1.0, 0.5],
    )
    price = costs_of(slow).price(0, (2, 1, 1), np.arange(2, dtype=np.int32))
    assert price.forward[1] == pytest.approx(2 * price.forward[0])


def test_noise_is_bounded_whole_and_repeatable():
    def rates(**given):
        costs = costs_of(Cluster.uniform(n_hosts=100), latency_us=0.0, **given)
        return [
            costs.price(0, (1, 1, 1), np.zeros(1, np.int32)).forward[0],
            costs.price(1, (1, 1), np.zeros(1, np.int32)).forward[0],
            costs.n_devices,
            *(10**9 / costs.collective(kind, 10**9) for kind in list(Collective)[:4]),
        ]

    exact, noisy = rates(), rates(noise=0.2, noise_seed=1)
    assert noisy == rates(noise=0.2, noise_seed=1)
    assert noisy != rates(noise=0.2, noise_seed=2)
    ratios = [a / b for a, b in zip(noisy, exact, strict=True)]
    # times are the quotient of two noisy numbers
    assert all(0.8 / 1.2 - 0.01 < ratio < 1.2 / 0.8 + 0.01 for ratio in ratios[:2])
    assert all(0.8 - 0.01 < ratio < 1.2 + 0.01 for ratio in ratios[2:])
    assert len({round(ratio, 6) for ratio in ratios}) == len(ratios)
    assert isinstance(noisy[2], int)


@pytest.mark.parametrize(("degrees", "message"), [((1, 1), "2 degrees for 3"), ((9, 1, 1), "cannot be cut into 9")])
def test_bad_cuts_are_refused(degrees, message):
    with pytest.raises(TopoplanError, match=message):
        costs_of().price(0, degrees, np.zeros(9, np.int32))
