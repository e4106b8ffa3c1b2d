"""Prices of micro-batches: which parts of the batch they are, and what cost functions say of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from topoplan import CostFunction, Dimension, MicroBatch, Operator, PartCosts, Role
from topoplan.model.graph import Axis, Slices, Tensor


def operator(samples, width=4):
    axes = (Axis(width, 0), Axis(samples, 1))
    dims = (Dimension("c", width, Role.ATTRIBUTE), Dimension("s", samples, Role.SAMPLE))
    return Operator(name="op", kind="relu", dims=dims, outputs=(Tensor("y", axes),))


class Sizes(CostFunction):
    """A second for each kernel and each sample; parts are told apart by their devices' numbers."""

    def __init__(self, samples):
        self.samples = samples

    def supports(self, op, degrees):
        return degrees[1] <= self.samples

    def price(self, op, degrees, devices):
        cut = degrees[1]
        ends = np.cumsum(cut.sizes) if isinstance(cut, Slices) else np.arange(1, cut + 1) * self.samples // cut
        size = np.broadcast_to(np.diff(ends, prepend=0), degrees).ravel()
        return PartCosts(forward=1.0 + size, backward=2.0 + size, memory=1e3 * np.asarray(devices, float))


class Profiled(Sizes):
    linear_in_samples = True


@given(st.integers(1, 40), st.integers(1, 6), st.integers(1, 5), st.integers(1, 3))
def test_parts_are_those_of_the_largest_micro_batch(samples, count, degree, across):
    """A device has ceil(ceil(n / m) / d) samples at most, and pays a kernel for them."""
    costs, batch = Sizes(samples), MicroBatch.of(operator(samples), count)
    cut, devices = (across, degree), np.arange(across * degree, dtype=np.int32)[::-1].copy()
    if count * degree > samples:
        assert not costs.supports_micro_batch(0, cut, batch)
        return
    price = costs.price_micro_batch(0, cut, devices, batch)
    in_batch = samples - (count - 1) * samples // count
    sizes = np.diff([part * in_batch // degree for part in range(degree + 1)])
    if samples % count == 0:
        assert (price.forward.reshape(cut) == 1.0 + sizes).all()
    assert price.forward.max() == 1.0 - (-samples // (count * degree))
    assert (price.memory == 1e3 * devices).all()  # each part on its device


def test_named_slices_have_their_shares():
    costs, batch = Sizes(12), MicroBatch.of(operator(12), 2)
    cut = (1, Slices((8, 4)))
    assert batch.cut(cut) == (1, Slices((6, 4, 2)))
    assert costs.price_micro_batch(0, cut, np.arange(2, dtype=np.int32), batch).forward.tolist() == [5.0, 3.0]
    small = MicroBatch.of(operator(12), 6)  # 8 to 4, as near as two samples come to it
    assert costs.price_micro_batch(0, cut, np.arange(2, dtype=np.int32), small).forward.tolist() == [3.0, 2.0]


def test_profiles_of_layers_divide():
    batch, devices = MicroBatch.of(operator(16), 4), np.arange(2, dtype=np.int32)
    assert Sizes(16).price_micro_batch(0, (1, 2), devices, batch).forward.tolist() == [3.0, 3.0]
    assert Profiled(16).price_micro_batch(0, (1, 2), devices, batch).forward.tolist() == [9.0 / 4, 9.0 / 4]
    assert Profiled(16).supports_micro_batch(0, (1, 16), batch)


def test_what_has_no_samples_runs_whole_each_time():
    batch = MicroBatch(count=8, dim=-1, size=1)
    assert Sizes(16).price_micro_batch(0, (1, 2), np.arange(2, dtype=np.int32), batch).forward.tolist() == [9.0, 9.0]


def test_equal_answers_stay_one():
    """Estimators give equal operators one price; so do their micro-batches, which callers tell apart by identity."""
    costs, batch, devices = Sizes(16), MicroBatch.of(operator(16), 4), np.arange(2, dtype=np.int32)
    price = costs.price(0, (1, 8), batch.devices((1, 2), devices))
    costs.price = lambda *_: price
    assert costs.price_micro_batch(0, (1, 2), devices, batch) is costs.price_micro_batch(1, (1, 2), devices, batch)
