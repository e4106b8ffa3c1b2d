"""Prices computed by hand."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Axis, Cluster, Dimension, Operator, OperatorGraph, Profile, Role, Tensor, TopoplanError
from topoplan_estimator_profile import Profiled

BATCH = 32


def layer(**changes):
    given = {
        "name": "layer",
        "kind": "layer",
        "dims": (Dimension("sample", BATCH, Role.SAMPLE),),
        "weights": (Tensor("weights", (Axis(1000),), itemsize=1),),
        "outputs": (Tensor("output", (Axis(BATCH, 0), Axis(7)), itemsize=1),),
        "profile": Profile(forward=0.032, backward=0.064, activation_bytes=230.4),
    }
    return Operator(**{**given, **changes})


def costs(operator, cluster=None, **options):
    graph = OperatorGraph(name="test", operators=(operator,), edges=np.zeros((0, 4)), batch_size=BATCH)
    return Profiled(**options).build(graph, cluster or Cluster.uniform(n_hosts=8))


def price(function, degree):
    return function.price(0, (degree,), np.arange(degree, dtype=np.int32))


def test_a_part_takes_its_share():
    prices = price(costs(layer()), 4)
    np.testing.assert_allclose(prices.forward, np.full(4, 0.008))
    np.testing.assert_allclose(prices.backward, np.full(4, 0.016))
    np.testing.assert_allclose(prices.memory, np.full(4, 4 * 1000 + 230.4 / 4))
    np.testing.assert_allclose(prices.kept, np.full(4, 4 * 1000))
    np.testing.assert_allclose(prices.states, [[1000] * 4, [1000] * 4, [2000] * 4])


def test_uneven_parts_take_their_own_shares():
    prices = price(costs(layer()), 3)  # 10, 11 and 11 samples
    np.testing.assert_allclose(prices.forward, [0.010, 0.011, 0.011])


def test_optimizer_state_is_kept_in_memory():
    prices = price(costs(layer(), optimizer_state=2), 1)
    assert prices.memory[0] == pytest.approx(4 * 1000 + 230.4)


def test_slow_devices_take_longer():
    cluster = attrs.evolve(Cluster.uniform(n_hosts=2), device_speed=[1.0, 0.5])
    prices = price(costs(layer(), cluster), 2)
    np.testing.assert_allclose(prices.forward, [0.016, 0.032])
    other_order = costs(layer(), cluster).price(0, (2,), np.array([1, 0], dtype=np.int32))
    np.testing.assert_allclose(other_order.forward, [0.032, 0.016])


def test_gpus_of_one_device_share_its_samples():
    prices = price(costs(layer(), Cluster.uniform(n_hosts=2, gpus_per_device=3)), 2)  # 16 samples: 6, 5 and 5
    np.testing.assert_allclose(prices.forward, np.full(2, 0.006))


@pytest.mark.parametrize(
    ("operator", "degree", "message"),
    [
        (layer(profile=None), 1, "operator 'layer': was not profiled"),
        (layer(), 33, "size 32 cannot be cut into 33"),
        (layer(dims=(Dimension("sample", BATCH),)), 2, "cannot be cut"),
    ],
)
def test_what_has_no_price_is_refused(operator, degree, message):
    function = costs(operator, Cluster.uniform(n_hosts=64))
    assert not function.supports(0, (degree,))
    with pytest.raises(TopoplanError, match=message):
        price(function, degree)
