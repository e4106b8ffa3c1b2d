"""Promises of estimators: ``build(graph, cluster) -> CostFunction``."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from topoplan import CostFunction, Estimator, MicroBatch, TopoplanError
from topoplan.arrays import I32, i32
from topoplan_testing import reference
from topoplan_testing._common import example

_CUTS = ((1, 1, 1), (2, 1, 1), (4, 1, 1), (1, 2, 1), (1, 4, 1), (2, 2, 1), (1, 1, 2), (1, 1, 4))


def check_there_is_something_it_prices(component: type[Estimator]) -> None:
    """A dense layer of 256 inputs and outputs can be priced under at least one cut."""
    assert list(_supported(_compile(component))), "none of the cuts of the reference problem is supported"


def check_prices_have_one_row_per_part(component: type[Estimator]) -> None:
    """Forward, backward and memory are arrays with one row for every part."""
    costs = _compile(component)
    for op, degrees, devices in _supported(costs):
        price = costs.price(op, degrees, devices)
        for field in ("forward", "backward", "memory"):
            shape = np.shape(getattr(price, field))
            assert shape == devices.shape, f"{field} of {len(devices)} parts has shape {shape}"
        for field, most in (("kept", price.memory), ("weight_gradient", price.backward)):
            share = getattr(price, field)
            assert share is None or share.shape == devices.shape, f"{field} of {len(devices)} parts: {share.shape}"
            assert share is None or (share <= most).all(), f"{field} is more than what it is a part of"
        if price.states is not None:
            assert price.states.shape == (3, len(devices)), f"states of {len(devices)} parts: {price.states.shape}"
            assert price.kept is not None, "states without what is kept"
            assert (price.states.sum(axis=0) == price.kept).all(), "states do not add up to kept"


def check_prices_are_finite(component: type[Estimator]) -> None:
    """Seconds and bytes are finite and not negative."""
    costs = _compile(component)
    for op, degrees, devices in _supported(costs):
        for field, values in attrs.asdict(costs.price(op, degrees, devices)).items():
            if values is not None:
                assert (np.isfinite(values) & (values >= 0)).all(), f"{field} of cut {degrees} is {values}"


def check_same_prices_twice(component: type[Estimator]) -> None:
    """The same question has the same answer, from one cost function and from a second one."""
    costs, second_costs = _compile(component), _compile(component)
    for op, degrees, devices in _supported(costs):
        first = attrs.asdict(costs.price(op, degrees, devices))
        for function in (costs, second_costs):
            prices = attrs.asdict(function.price(op, degrees, devices))
            assert all(np.array_equal(first[key], prices[key]) for key in first), f"prices of cut {degrees} differ"


def check_supported_cuts_are_priced_and_others_refused(component: type[Estimator]) -> None:
    """What is not supported is refused with a `TopoplanError` that names the operator."""
    costs = _compile(component)
    for degrees in _CUTS:
        devices = _devices(degrees)
        if costs.supports(0, degrees):
            costs.price(0, degrees, devices)
            continue
        try:
            costs.price(0, degrees, devices)
        except TopoplanError as error:
            assert "dense1" in str(error), f"the message does not name the operator: {error}"
        else:
            raise AssertionError(f"cut {degrees} is not supported, but has a price")


def check_micro_batches_have_prices(component: type[Estimator]) -> None:
    """A micro-batch has a finite price for each of its parts, or is refused; one micro-batch is the batch."""
    costs, operator = _compile(component), reference.graph().operators[0]
    for op, degrees, devices in _supported(costs):
        whole, only = costs.price(op, degrees, devices), MicroBatch.of(operator, 1)
        assert np.array_equal(costs.price_micro_batch(op, degrees, devices, only).forward, whole.forward), (
            f"the only micro-batch of cut {degrees} is not the batch"
        )
        batch = MicroBatch.of(operator, 2)
        if not costs.supports_micro_batch(op, degrees, batch):
            try:
                costs.price_micro_batch(op, degrees, devices, batch)
            except TopoplanError:
                continue
            raise AssertionError(f"a micro-batch of cut {degrees} is not supported, but has a price")
        price = costs.price_micro_batch(op, degrees, devices, batch)
        for field in ("forward", "backward", "memory"):
            values = getattr(price, field)
            assert np.shape(values) == devices.shape, f"{field} of {len(devices)} parts has shape {np.shape(values)}"
            assert (np.isfinite(values) & (values >= 0)).all(), f"{field} of a micro-batch of cut {degrees}: {values}"


def check_replicas_keep_all_weights(component: type[Estimator]) -> None:
    """Data-parallel parts keep all weights each, as many bytes of gradients, and what `PartCosts.states` says beside.

    Unless `counts_weights` is false; then ``states`` say what they know, or nothing.
    """
    costs, degrees = _compile(component), (4, 1, 1)
    operator = reference.graph().operators[0]
    if not component.counts_weights or not costs.supports(0, degrees):
        return
    price, weights = costs.price(0, degrees, _devices(degrees)), sum(tensor.nbytes for tensor in operator.weights)
    least_bytes = float(np.min(price.memory))
    assert least_bytes >= 2 * weights, (
        f"a replica of {weights} bytes of weights keeps {least_bytes:.6g} bytes (every replica keeps all weights and "
        "as many bytes of gradients, and the optimizer's state; counts_weights = False says that memory is what was "
        "measured)"
    )
    if price.states is not None:
        assert (price.states[:2] == weights).all(), (
            f"states of a replica: {price.states[:2, 0]} bytes of weights and gradients, of {weights} bytes of weights"
        )


def _compile(component: type[Estimator]) -> CostFunction:
    return example(component).build(reference.graph(), reference.cluster())


def _supported(costs: CostFunction) -> Iterator[tuple[int, tuple[int, ...], I32]]:
    for degrees in _CUTS:
        if costs.supports(0, degrees):
            yield 0, degrees, _devices(degrees)


def _devices(degrees: tuple[int, ...]) -> I32:
    return i32(np.arange(int(np.prod(degrees))))
