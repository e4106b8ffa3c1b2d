"""Times on the wire beside hand calculations: bytes over the slowest link, one-way latencies, max-min fair shares."""

import numpy as np
import pytest

from topoplan import Cluster, Host, Topology, TopologyContext
from topoplan.model.taskgraph import Collective
from topoplan_engine.simulation.messages import Transport, collective_rounds, ring_rounds
from topoplan_samples.fabrics import star
from topoplan_samples.tasks import collective, task_graph, transfer
from topoplan_simulator_fluid import Fluid

RATE, LATENCY = 50e9, 1e-6
FLUID = {level: Fluid(level=level).build() for level in ("coupled", "stepped")}


def seconds(tasks, hosts, level="coupled"):
    graph = task_graph(tasks, n_devices=hosts)
    return FLUID[level](graph, star(hosts, RATE, latency=LATENCY), Cluster.uniform(n_hosts=hosts)).finish


@pytest.mark.parametrize("size", [1_000, 1 << 20, 16 << 20, 1 << 30])
@pytest.mark.parametrize("members", [2, 8, 64, 1024, 16384])
def test_an_all_reduce_takes_its_bytes_and_its_rounds(members, size):
    """2 (n-1) rounds of S/n bytes and two links: however small the tensor, however many the members."""
    found = seconds([collective(range(members), size)], members)[0]
    by_hand = 2 * (members - 1) * (size / members / RATE + 2 * LATENCY)
    assert found == pytest.approx(by_hand, rel=1e-9)


@pytest.mark.parametrize("size", [1_000, 1 << 20, 1 << 30])
def test_rounds_one_by_one_take_as_long(size):
    assert seconds([collective(range(16), size)], 16, "stepped")[0] == pytest.approx(
        30 * (size / 16 / RATE + 2 * LATENCY), rel=1e-6
    )


def test_an_all_reduce_puts_its_bytes_on_every_link():
    graph = task_graph([collective(range(64), 1 << 20)], n_devices=64)
    line = FLUID["coupled"](graph, star(64, RATE), Cluster.uniform(n_hosts=64))
    np.testing.assert_allclose(line.link_bytes[: 2 * 64], 2 * 63 / 64 * (1 << 20))


def test_lower_bounds_have_all_bytes_too():
    """The bound of an all-reduce among 1,024 hosts once was that of a single round."""
    graph = task_graph([collective(range(1024), 16 << 20)], n_devices=1024)
    line = FLUID["coupled"](graph, star(1024, RATE), Cluster.uniform(n_hosts=1024))
    assert line.bounds.collective == pytest.approx(2 * 1023 / 1024 * (16 << 20) / RATE + 2e-6, rel=1e-3)


@pytest.mark.parametrize("size", [0, 1, 4096, 1 << 30])
def test_a_message_takes_its_latency_once(size):
    assert seconds([transfer(0, 1, size)], 2)[0] == pytest.approx(2 * LATENCY + size / RATE, rel=1e-9)


def test_shares_are_max_min_fair():
    """Six flows into one host leave 5/6 of a sender's link to its other flow, which takes all of that."""
    tasks = [transfer(0, 2, 1 << 30), *(transfer(host, 1, 1 << 30) for host in (0, 3, 4, 5, 6, 7))]
    found = seconds(tasks, 8)
    assert found[0] == pytest.approx(2 * LATENCY + (1 << 30) / (RATE * 5 / 6), rel=1e-6)
    assert found[1] == pytest.approx(2 * LATENCY + 6 * (1 << 30) / RATE, rel=1e-6)


@pytest.mark.parametrize(("kind", "half"), [(Collective.ALL_GATHER, 2), (Collective.REDUCE_SCATTER, 2)])
def test_half_collectives_go_round_once(kind, half):
    """Their tasks have half of the bytes of the tensor."""
    tensor = 1 << 24
    rounds, share = ring_rounds(tensor // half, 8, int(kind))
    assert (rounds, share) == (7, tensor / 8)


def test_flexnetpacket_keeps_its_rule_for_small_all_reduces():
    """The program sends a small all-reduce in one round; that is a mode, and no physics."""
    assert collective_rounds(1 << 20, 1024, int(Collective.ALL_REDUCE))[0] == 1
    graph = task_graph([collective(range(1024), 1 << 20)], n_devices=1024)
    as_program = Fluid(transport="flexnetpacket").build()
    fabric, cluster = star(1024, RATE), Cluster.uniform(n_hosts=1024)
    assert as_program.makespan(graph, fabric, cluster) < 1e-5 < FLUID["coupled"].makespan(graph, fabric, cluster)
    assert Transport.WIRE == 0


@pytest.mark.parametrize("degree", [3])
def test_flows_of_one_ring_that_draw_one_link_share_it(degree):
    """Both levels see the same collisions on a random graph, where neighbours of a ring are some links apart."""
    cluster = Cluster.uniform(n_hosts=12, interfaces=degree, interface_bandwidth=RATE)
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(1))
    fabric = Host.discover().make(Topology, "random").build(context)
    graph = task_graph([collective(range(12), 1 << 28)], n_devices=12)
    coupled, stepped = (  # a ring draws once at one level, and in each of 22 rounds at the other
        FLUID[level].makespans(graph, fabric, cluster, range(draws)).mean()
        for level, draws in (("coupled", 600), ("stepped", 30))
    )
    assert coupled == pytest.approx(stepped, rel=0.05)
    even = 2 * 11 / 12 * (1 << 28) / RATE
    assert coupled > 1.3 * even
