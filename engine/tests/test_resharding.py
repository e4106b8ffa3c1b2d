"""Conversions carried out on arrays: they make the wanted form, and the backward pass is their transpose."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from topoplan import Cluster
from topoplan.model.sharding import PARTIAL, PENDING_GRADIENT, REPLICATED, shard
from topoplan.model.taskgraph import Collective
from topoplan_engine.sharding.resharding import CollectiveCosts, CollectiveStep, Local, Rings, convert, seconds

N = 3
SHAPE = (6, 9, 3)
FORMS = (REPLICATED, PARTIAL, PENDING_GRADIENT, *(shard(axis) for axis in range(len(SHAPE))))
PAIRS = list(itertools.product(FORMS, FORMS))


def held(x, form, rng):
    """What each device holds of ``x`` in a form."""
    if form.sliced:
        return np.split(x, N, form.axis)
    if form == PARTIAL:
        parts = [rng.normal(size=x.shape) for _ in range(N - 1)]
        return [*parts, x - sum(parts)]
    return [x.copy() for _ in range(N)]


def meant(local, form):
    """The tensor of which devices hold these."""
    if form.sliced:
        return np.concatenate(local, form.axis)
    if form == PARTIAL:
        return sum(local)
    assert all(np.allclose(x, local[0]) for x in local)
    return local[0]


def run(step, local):
    """Carry out a collective: what each device has -> what each device gets."""
    match step.collective, step.axes:
        case Collective.ALL_GATHER, (axis,):
            return [np.concatenate(local, axis)] * N
        case Collective.REDUCE_SCATTER, (axis,):
            return np.split(sum(local), N, axis)
        case Collective.ALL_REDUCE, ():
            return [sum(local)] * N
        case Collective.ALL_TO_ALL, (split, joined):
            pieces = [np.split(x, N, split) for x in local]
            return [np.concatenate([pieces[source][k] for source in range(N)], joined) for k in range(N)]
        case Local.SLICE, (axis,):
            return [np.split(x, N, axis)[k] for k, x in enumerate(local)]
        case Local.IDENTITY, ():
            return local
    raise AssertionError(step)


@pytest.mark.parametrize(("given", "wanted"), PAIRS, ids=lambda form: str(form))
def test_the_wanted_form_is_made_of_the_given_one(given, wanted):
    conversion = convert(given, wanted)
    if conversion is None:
        assert given != wanted
        assert wanted in (PARTIAL, PENDING_GRADIENT), "whole tensors and slices can be made of anything"
        return
    rng = np.random.default_rng(0)
    x = rng.normal(size=SHAPE)
    local = held(x, given, rng)
    for step in conversion.forward:
        local = run(step, local)
    np.testing.assert_allclose(meant(local, wanted), x)


@pytest.mark.parametrize(
    ("given", "wanted"), [p for p in PAIRS if p[0] != p[1] and convert(*p)], ids=lambda form: str(form)
)
def test_the_backward_pass_is_the_transpose(given, wanted):
    # <A x, g> = <x, B g>, where x is all that devices hold and A and B are linear.  A slice without a collective
    # passes back zeros around its gradient; a replicated parameter is one tensor, however many devices hold it.
    conversion = convert(given, wanted)
    rng = np.random.default_rng(1)
    x = [rng.normal(size=part.shape) for part in held(np.zeros(SHAPE), given, rng)]
    if given == PENDING_GRADIENT:
        x = [x[0]] * N
    made = x
    for step in conversion.forward:
        made = run(step, made)
    gradient = [rng.normal(size=part.shape) for part in made]
    forward = sum(float((a * b).sum()) for a, b in zip(made, gradient, strict=True))
    back = gradient
    if conversion.forward[-1].collective is Local.SLICE:
        axis = conversion.forward[-1].axes[0]
        zeros = np.zeros_like(gradient[0])
        back = [np.concatenate([g if k == n else zeros for k in range(N)], axis) for n, g in enumerate(gradient)]
    for step in conversion.backward:
        back = run(step, back)
    dots = [float((a * b).sum()) for a, b in zip(x, back, strict=True)]
    assert forward == pytest.approx(dots[0] if given == PENDING_GRADIENT else sum(dots))


def test_names_are_those_of_hidup():
    assert str(CollectiveStep(Collective.ALL_TO_ALL, (1, 0))) == "all_to_all_1_0"
    assert [str(step) for step in convert(shard(0), shard(2)).forward] == ["all_to_all_2_0"]
    assert [str(step) for step in convert(shard(0), shard(2)).backward] == ["all_to_all_0_2"]
    assert [str(step) for step in convert(PENDING_GRADIENT, shard(1)).forward] == ["replicate", "dynamic_slice_1"]
    assert [str(step) for step in convert(PENDING_GRADIENT, shard(1)).backward] == ["all_reduce"]
    assert convert(REPLICATED, REPLICATED).forward == ()


class TestRings:
    def test_one_host(self):
        rings = Rings.of(Cluster.uniform(n_hosts=1, devices_per_host=4, inside_bandwidth=100.0, latency=0.5))
        assert isinstance(rings, CollectiveCosts)
        # three rounds of a quarter each; an all-reduce scatters, then gathers
        assert rings.collective(Collective.ALL_GATHER, 400) == pytest.approx(3 * (1.0 + 0.5))
        assert rings.collective(Collective.REDUCE_SCATTER, 400) == pytest.approx(4.5)
        assert rings.collective(Collective.ALL_REDUCE, 400) == pytest.approx(9.0)
        # a device sends a sixteenth of the tensor to each other one
        assert rings.collective(Collective.ALL_TO_ALL, 400) == pytest.approx(3 * (0.25 + 0.5))

    def test_devices_of_a_host_share_its_interfaces(self):
        cluster = Cluster.uniform(
            n_hosts=2, devices_per_host=2, inside_bandwidth=1e6, interfaces=1, interface_bandwidth=100.0, latency=0.0
        )
        rings = Rings.of(cluster)
        assert rings.collective(Collective.ALL_GATHER, 400) == pytest.approx(3 * 1.0)
        # both devices of a host send a sixteenth to each other device through one interface
        assert rings.collective(Collective.ALL_TO_ALL, 400) == pytest.approx(3 * 25 * 2 / 100)

    def test_conversions_take_one_collective_after_the_other(self):
        rings = Rings(n_devices=2, bandwidth=10.0, shared=1, latency=0.0)
        assert seconds(convert(PARTIAL, REPLICATED).forward, 100, rings) == pytest.approx(10.0)
        assert seconds(convert(PENDING_GRADIENT, shard(0)).forward, 100, rings) == 0
        assert seconds(convert(PENDING_GRADIENT, shard(0)).backward, 100, rings) == pytest.approx(10.0)
