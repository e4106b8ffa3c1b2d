"""``overlap=hidup``: two micro-batches of one stage take turns, so that what one sends hides behind the other one."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, TaskKind, TopoplanError
from topoplan_samples.fabrics import star
from topoplan_samples.stated import BATCH, lowered
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.settings import Settings
from topoplan_simulator_fluid import Fluid


def exposed(tasks, devices, bandwidth):
    """Return the seconds in which the first device computes nothing, and those in which it computes."""
    cluster = Cluster.uniform(n_hosts=devices, interface_bandwidth=bandwidth, interfaces=1, latency=0)
    seconds = Fluid().build().makespan(tasks, star(devices, bandwidth, 0), cluster, np.inf)
    computes = tasks.seconds[tasks.device == 0].sum()
    return seconds - computes, computes


@pytest.mark.parametrize("sp", [False, True])
def test_what_one_micro_batch_sends_hides_behind_the_other_one(model, sp):
    graph, devices = model("llama"), 4
    plan = {"tp": devices, "sp": sp, "micro_batch": BATCH // 2}
    (plain, _), (turns, strategy) = (lowered(graph, devices, **plan, **more) for more in ({}, {"overlap": "hidup"}))
    assert strategy.program is not None
    assert strategy.micro_batches == 2
    assert str(strategy.order).startswith("rank 0: F0/0 F1/0 F0/1 F1/1")
    for kind in (TaskKind.FORWARD, TaskKind.BACKWARD):
        assert plain.seconds[plain.kind == kind].sum() == pytest.approx(turns.seconds[turns.kind == kind].sum())
    # As fast as it computes, the network sends: nearly all of it can be hidden, but for the first and the last part.
    sent, computes = exposed(plain, devices, 1e12)
    bandwidth = 1e12 * sent / computes
    hidden, exposed_before = exposed(turns, devices, bandwidth)[0], exposed(plain, devices, bandwidth)[0]
    assert hidden < 0.7 * exposed_before


def test_weights_in_slices_are_gathered_once_for_both(model):
    plan = {"dp": 4, "zero": 3, "micro_batch": BATCH // 8}
    (plain, _), (turns, _) = (lowered(model("llama"), 4, **plan, **more) for more in ({}, {"overlap": "hidup"}))
    gathers = [(tasks.collective == 1).sum() for tasks in (plain, turns)]
    assert gathers[1] <= gathers[0] / 2


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"pp": 2}, "pp=2 stages"),
        ({"tp": 2}, f"{BATCH} micro-batches .two take turns: micro-batch={BATCH // 2}"),
        ({"tp": 2, "micro_batch": BATCH // 2, "recompute": "full"}, "has no recompute=full"),
        ({"dp": 2, "zero": 1, "micro_batch": BATCH // 4}, "has no zero=1"),
        ({"tp": 2, "micro_batch": BATCH // 2, "clip": True}, "has no clip=yes"),
    ],
)
def test_what_one_stream_cannot_say_is_named(model, plan, message):
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Settings(**plan, overlap="hidup"), model("llama"), 2)
