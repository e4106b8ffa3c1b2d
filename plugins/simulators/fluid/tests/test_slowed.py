"""Devices that compute slower beside messages, by hand: rates change when messages begin and end."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster, TopoplanError
from topoplan.model.taskgraph import Collective
from topoplan_samples.fabrics import star
from topoplan_samples.tasks import collective, compute, task_graph, transfer
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid

#: Bytes that a link carries in a second.
RATE = 1e9
HOSTS = 4


def run(tasks, edges=(), slowdown=0.5, **options):
    graph = attrs.evolve(task_graph(tasks, edges, HOSTS), slowdown=np.full(HOSTS, slowdown) if slowdown else ())
    cluster = Cluster.uniform(n_hosts=HOSTS, latency=0.0, interface_bandwidth=RATE, interfaces=1)
    return Fluid(protocol="none", **options).build()(graph, star(HOSTS, RATE, 0.0), cluster)


@pytest.mark.parametrize("level", ["coupled", "stepped"])
def test_a_message_that_is_longer_slows_the_whole_pass(level):
    """Device 0 sends for 4 s; its pass of 2 s takes 3 s, that of device 2, which has no message, 2 s."""
    timeline = run([transfer(0, 1, 4 * 10**9), compute(0, 2.0), compute(1, 2.0), compute(2, 2.0)], level=level)
    np.testing.assert_allclose(timeline.finish, [4.0, 3.0, 3.0, 2.0])
    np.testing.assert_allclose(timeline.device_busy, [3.0, 3.0, 2.0, 0.0])
    assert timeline.bounds.device == pytest.approx(2.0)


def test_a_message_that_ends_first_slows_a_part_of_the_pass():
    """1.2 s beside the message do 0.8 s of 2 s; the other 1.2 s follow."""
    timeline = run([transfer(0, 1, 12 * 10**8), compute(0, 2.0)])
    np.testing.assert_allclose(timeline.finish, [1.2, 2.4])


def test_a_message_that_begins_later_slows_the_rest():
    """After 1 s of 3 s a message of 1.5 s begins: 1 s of work is done beside it, the last second alone."""
    timeline = run([compute(2, 1.0), transfer(0, 1, 15 * 10**8), compute(0, 3.0)], [(0, 1)])
    np.testing.assert_allclose(timeline.finish, [1.0, 2.5, 3.5])


def test_two_messages_at_once_take_no_more_than_one():
    """Both leave device 0 at half the rate, for 2 s; its pass of 2 s: 4/3 s beside them, 2/3 s alone."""
    timeline = run([transfer(0, 1, 10**9), transfer(0, 2, 10**9), compute(0, 2.0)])
    np.testing.assert_allclose(timeline.finish, [2.0, 2.0, 2.0 + 2.0 / 3.0])


@pytest.mark.parametrize("kind", [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.ALL_TO_ALL])
def test_collectives_slow_their_members(kind):
    """Device 3 is no member.  A pass of 10 s is slower for as long as the collective runs."""
    tasks = [collective([0, 1, 2], 3 * 10**8, kind=kind), *(compute(device, 10.0) for device in range(HOSTS))]
    timeline = run(tasks)
    alone = run(tasks[:1], slowdown=0.0).makespan
    assert timeline.finish[0] == alone
    np.testing.assert_allclose(timeline.finish[1:4], 10.0 + alone - alone / 1.5)
    assert timeline.finish[4] == 10.0


def test_nothing_beside_nothing_is_slower():
    tasks, edges = [compute(0, 1.0), transfer(0, 1, 10**9), compute(1, 1.0)], [(0, 1), (1, 2)]
    assert run(tasks, edges) == run(tasks, edges, slowdown=0.0)


def test_recordings_and_cutoffs_are_of_the_same_iteration():
    graph = attrs.evolve(
        task_graph([transfer(0, 1, 12 * 10**8), compute(0, 2.0), compute(0, 1.0)], [], HOSTS),
        slowdown=np.full(HOSTS, 0.5),
    )
    cluster = Cluster.uniform(n_hosts=HOSTS, latency=0.0, interface_bandwidth=RATE, interfaces=1)
    simulate, fabric = Fluid(protocol="none").build(), star(HOSTS, RATE, 0.0)
    timeline = simulate(graph, fabric, cluster)
    assert timeline.makespan == pytest.approx(3.4)
    assert simulate.record(graph, fabric, cluster)[0] == timeline
    assert simulate.makespan(graph, fabric, cluster, 3.5) == timeline.makespan
    assert simulate.makespan(graph, fabric, cluster, 3.3) == float("inf")


def test_who_knows_no_slowdown_refuses_it():
    words = r"devices compute slower beside messages, slowdown=0.5 \(0, or simulator fluid alone\)"
    with pytest.raises(TopoplanError, match=rf"^simulator fluid: transport=flexnetpacket: {words}$"):
        run([compute(0, 1.0)], transport="flexnetpacket")
    graph = attrs.evolve(task_graph([compute(0, 1.0)], [], HOSTS), slowdown=np.full(HOSTS, 0.5))
    cluster = Cluster.uniform(n_hosts=HOSTS, latency=0.0, interface_bandwidth=RATE, interfaces=1)
    with pytest.raises(TopoplanError, match=rf"^simulator flexnet: {words}$"):
        Flexnet().build()(graph, star(HOSTS, RATE, 0.0), cluster)
