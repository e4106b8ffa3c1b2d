"""Tokens on their way to experts: copies that dispatchers send, by hand, and what hides behind another micro-batch."""

from __future__ import annotations

import itertools
import math

import attrs
import numpy as np
import pytest

from topoplan import Cluster, TaskKind, TopoplanError
from topoplan_engine.experts import ExpertGroups
from topoplan_engine.lowering.expert_messages import copies_between, is_chosen
from topoplan_samples.fabrics import star
from topoplan_samples.stated import BATCH, HIDDEN, POSITIONS, lowered
from topoplan_searcher_stated import Stated
from topoplan_searcher_stated.construct import strategy_of
from topoplan_simulator_fluid import Fluid


def test_a_place_is_chosen_unless_all_experts_are_elsewhere():
    assert is_chosen(8, 2, 2) == pytest.approx(13 / 28), "28 pairs of 8 experts; 15 of them are of the other 6"
    assert is_chosen(4, 2, 3) == 1.0, "two experts are not in one other place"
    draws = np.random.default_rng(0).random((20_000, 128)).argsort(axis=1)[:, :8] // 16
    devices = np.mean([len(set(row)) for row in draws.tolist()])
    assert 8 * is_chosen(128, 8, 16) == pytest.approx(devices, rel=0.005), "devices that a token of Qwen3-235B goes to"


@pytest.mark.parametrize("part", [1, 2, 4, 8])
@pytest.mark.parametrize(("groups", "chosen"), [((4, 2), 2), ((4, 2), 4), ((2, 1), 3), ((8, 3), 3), ((4, 4), 2)])
def test_experts_of_some_groups_are_counted_one_by_one(part, groups, chosen):
    """All sets of groups of eight experts are equally many, and all sets of a token's experts in them."""
    size, there, probabilities = 8 // groups[0], set(range(part)), []
    for some in itertools.combinations(range(groups[0]), groups[1]):
        experts = [group * size + k for group in some for k in range(size)]
        sets = list(itertools.combinations(experts, chosen))
        probabilities.append(sum(bool(there & set(each)) for each in sets) / len(sets))
    mean = sum(probabilities) / len(probabilities)
    assert is_chosen(8, chosen, part, ExpertGroups(*groups)) == pytest.approx(mean, rel=1e-12)


def test_a_token_of_deepseek_goes_to_fewer_hosts():
    """Eight groups on eight hosts: all but those of a token get nothing, and with them a third of the bytes."""
    plain, grouped = (copies_between(256, 8, 64, 8, groups) for groups in (ExpertGroups(), ExpertGroups(8, 4)))
    assert grouped[0, 8] / plain[0, 8] == pytest.approx(0.686, abs=0.002)
    assert grouped[0, 1] < plain[0, 1], "experts are closer together, so that a device has several of a token"


@pytest.mark.slow
def test_copies_between_devices_and_between_hosts():
    each = 2 / 4  # experts of a token on each of four devices
    copies = copies_between(8, 2, 4, 2)
    assert copies[0, 1] == pytest.approx(13 / 28 / each)
    assert copies[0, 2] == pytest.approx((1 - 6 / 28) / 2 / each), "6 pairs are of the other host"
    assert copies_between(8, 1, 4, 1) == pytest.approx(1.0), "one expert is in one place"
    assert copies_between(1024, 1, 1024, 8) == pytest.approx(1.0)
    many = copies_between(1024, 8, 1024, 8)
    assert many[0, 1] == pytest.approx(1.0)
    assert math.isclose(many[0, 8], is_chosen(1024, 8, 8) * 16)


@pytest.mark.parametrize("dispatch", [0, 1, 2, 4])
def test_an_all_to_all_sends_each_token_as_often_as_the_dispatcher_says(model, dispatch):
    """Of four experts each token has two: three devices of four on which one of them is in one half of all cases."""
    graph = model("mixtral")
    tasks, strategy = lowered(graph, 4, ep=4, dispatch=dispatch)
    sizes = tasks.size[tasks.kind == TaskKind.TRANSFER]
    tokens = BATCH // 4 // strategy.micro_batches * POSITIONS
    by_experts = tokens * 2 * HIDDEN * 2 // 4
    between_hosts = {0: 1, 1: 1, 2: 5 / 6, 4: 1}[dispatch]  # of six pairs one is of the other host
    assert set(sizes.tolist()) == {by_experts, round(by_experts * between_hosts)}
    if dispatch == 2:
        assert (sizes < by_experts).sum() == 2 * (sizes == by_experts).sum()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dispatch": 1}, r"dispatch=1 with ep=1 \(needs ep of at least 2"),
        ({"ep": 4, "dispatch": 3}, r"dispatch=3 with ep=4"),
    ],
)
def test_dispatchers_that_do_not_fit_are_named(model, options, message):
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Stated(**options), model("mixtral"), 4)


def seconds_of(tasks, devices, bandwidth):
    cluster = Cluster.uniform(n_hosts=devices, interface_bandwidth=bandwidth, interfaces=1, latency=0)
    return Fluid().build().makespan(tasks, star(devices, bandwidth, 0), cluster, np.inf)


@pytest.mark.parametrize(("plan", "hidden"), [({}, 0.9), ({"pp": 2, "schedule": "interleaved:2"}, 0.97)])
def test_tokens_of_one_pass_hide_behind_another_one(model, plan, hidden):
    """Never faster than computing, and faster than in turn: of 8 and 16 passes of a rank 6 and 8 are in pairs."""
    graph, devices = model("mixtral"), 2 * plan.get("pp", 1)
    (plain, _), (paired, strategy) = (
        lowered(graph, devices, ep=2, micro_batch=1, **plan, **more) for more in ({}, {"overlap": "experts"})
    )
    assert strategy.pairs
    np.testing.assert_array_equal(plain.seconds, paired.seconds)
    computes = np.bincount(plain.device[plain.device >= 0], plain.seconds[plain.device >= 0]).max()
    waits = seconds_of(plain, devices, 1e11) - seconds_of(plain, devices, 1e18)
    bandwidth = 1e11 * waits / computes  # messages take as long as computing
    before, after = seconds_of(plain, devices, bandwidth), seconds_of(paired, devices, bandwidth)
    assert computes <= after < hidden * before
    assert seconds_of(paired, devices, 1e18) == pytest.approx(seconds_of(plain, devices, 1e18), rel=0.05)


def test_deepseeks_trainer_sends_tokens_to_experts_in_fp8(model):
    """A channel is a byte and 1/128 of a scale in fp32; gradients of answers go the same way, and answers in bf16."""
    graph = model("mixtral")
    narrow_graph = attrs.evolve(graph, tags={**graph.tags, "kernels": "deepseek"})
    (plain, _), (narrow, strategy) = (lowered(each, 4, ep=4) for each in (graph, narrow_graph))
    # Each token has two experts, and a device one expert of four.
    tokens = BATCH // 4 // strategy.micro_batches * POSITIONS * 2 // 4
    in_bf16, in_fp8 = tokens * HIDDEN * 2, tokens * (HIDDEN + HIDDEN * 4 / 128)
    is_sent = plain.kind == TaskKind.TRANSFER
    assert set(plain.size[is_sent].tolist()) == {in_bf16}
    assert set(narrow.size[is_sent].tolist()) == {in_bf16, in_fp8}
    assert np.sum(narrow.size[is_sent] == in_fp8) == is_sent.sum() / 2
