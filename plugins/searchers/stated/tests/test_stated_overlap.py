"""``overlap=hidup``: two micro-batches of one stage take turns, so that what one sends hides behind the other one."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, TaskKind, TopoplanError
from topoplan_engine import ClusterOptions, build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.pass_orders import is_in_twos
from topoplan_estimator_roofline import Roofline
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


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "interleaved:2"])
def test_two_micro_batches_run_each_pass_of_a_pipeline_at_the_same_time(model, schedule):
    graph, plan = model("llama"), {"tp": 2, "pp": 2, "schedule": schedule}
    (plain, _), (turns, strategy) = (lowered(graph, 4, **plan, **more) for more in ({}, {"overlap": "hidup"}))
    assert strategy.pairs
    assert is_in_twos(strategy.order)
    assert sorted(plain.seconds) == sorted(turns.seconds)
    assert plain.size.sum() == turns.size.sum()
    # Half of the iteration nothing is computed: a longer bubble costs less than what hides.
    exposed_before, computes = exposed(plain, 4, 3e8)
    assert exposed_before > computes
    assert exposed(turns, 4, 3e8)[0] < 0.9 * exposed_before


def test_gradients_are_summed_behind_the_backward_passes_of_both(model):
    graph = model("llama")
    tasks, strategy = lowered(graph, 4, dp=2, pp=2, overlap="hidup")
    cluster = Cluster.uniform(n_hosts=4, interface_bandwidth=1e9, interfaces=1, latency=0)
    timeline = Fluid().build()(tasks, star(4, 1e9, 0), cluster)
    for task in np.flatnonzero(tasks.kind == TaskKind.COLLECTIVE):
        backward = (tasks.kind == TaskKind.BACKWARD) & (tasks.op == tasks.op[task])
        backward &= np.isin(tasks.device, tasks.members(task))
        assert backward.sum() == 2 * strategy.micro_batches
        assert timeline.start[task] >= timeline.finish[backward].max()


def test_two_micro_batches_at_a_time_keep_the_activations_of_both(model):
    """The first rank of two has four micro-batches in flight for two, and gradients of activations of two for one."""
    graph = model("llama")
    cluster = build_cluster(ClusterOptions(servers=2, device="h100"))
    lowering = Lowering(graph, cluster, Roofline().build(graph, cluster))
    plans = {"pp": 2}, {"pp": 2, "micro_batch": 2}, {"pp": 2, "overlap": "hidup"}
    one, double, twos = (lowering.memory_use(strategy_of(Settings(**plan), graph, 2)[0]) for plan in plans)
    assert twos.activations.tolist() == double.activations.tolist() == (2 * one.activations).tolist()


def test_weights_in_slices_are_gathered_once_for_both(model):
    plan = {"dp": 4, "zero": 3, "micro_batch": BATCH // 8}
    (plain, _), (turns, _) = (lowered(model("llama"), 4, **plan, **more) for more in ({}, {"overlap": "hidup"}))
    gathers = [(tasks.collective == 1).sum() for tasks in (plain, turns)]
    assert gathers[1] <= gathers[0] / 2


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"pp": 2, "micro_batch": BATCH}, "1 micro-batches .in a pipeline they take turns two by two"),
        ({"tp": 2}, f"{BATCH} micro-batches .two take turns: micro-batch={BATCH // 2}"),
        ({"tp": 2, "micro_batch": BATCH // 2, "recompute": "full"}, "has no recompute=full"),
        ({"dp": 2, "zero": 1, "micro_batch": BATCH // 4}, "has no zero=1"),
        ({"tp": 2, "micro_batch": BATCH // 2, "clip": True}, "has no clip=yes"),
    ],
)
def test_what_one_stream_cannot_say_is_named(model, plan, message):
    with pytest.raises(TopoplanError, match=message):
        strategy_of(Settings(**plan, overlap="hidup"), model("llama"), 2)
