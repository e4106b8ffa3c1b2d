"""All-reduces among hosts of several devices, beside what links between and inside hosts take by hand.

A ring of n devices puts 2 (n-1) / n of the data on each link that it crosses.  With k devices on each of m hosts it
leaves a host once, and is inside it k - 1 times: rings that start at each of the devices load their links with
(k-1) / k of that.
"""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, Fabric, TopologyContext
from topoplan_directconnect.construct import construct
from topoplan_engine.network.routing import paths
from topoplan_engine.network.tables import Network
from topoplan_samples.tasks import collective, task_graph
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid
from topoplan_topology_bigswitch import BigSwitch
from topoplan_topology_fattree import FatTree

GBPS = 1e9 / 8
GIB = float(2**30)
LEVELS = ("coupled", "stepped")


def cluster(hosts, devices, *, gbps=400.0, degree=8, inside_gbps=3600.0, latency=0.0):
    return Cluster.uniform(
        n_hosts=hosts,
        devices_per_host=devices,
        interfaces=degree,
        interface_bandwidth=gbps * GBPS,
        inside_bandwidth=inside_gbps * GBPS,
        latency=latency,
    )


def on_switch(made):
    return BigSwitch().build(TopologyContext(cluster=made, demand=None, rng=np.random.default_rng(0)))


def seconds(made, fabric, groups=None, simulator=None, size=2**30):
    groups = groups or [range(made.n_devices)]
    tasks = task_graph([collective(list(group), size) for group in groups], n_devices=made.n_devices)
    return (simulator or Fluid().build())(tasks, fabric, made).makespan


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("hosts", "devices"), [(2, 8), (8, 8), (5, 3), (3, 2)])
def test_a_ring_leaves_a_host_once(level, hosts, devices):
    made, n = cluster(hosts, devices), hosts * devices
    by_hand = 2 * (n - 1) / n * GIB / (8 * 400 * GBPS)
    assert seconds(made, on_switch(made), simulator=Fluid(level=level).build()) == pytest.approx(by_hand, rel=2e-3)


def test_devices_may_be_listed_in_any_order():
    made = cluster(4, 4)
    listed = seconds(made, on_switch(made))
    assert seconds(made, on_switch(made), [np.arange(16).reshape(4, 4).T.ravel()]) == listed
    assert seconds(made, on_switch(made), [[*range(15, -1, -1)]]) == pytest.approx(listed, rel=1e-9)


@pytest.mark.parametrize("devices", [2, 8])
def test_slow_links_inside_hosts_carry_what_passes_a_device(devices):
    """Two hosts, 100 Gbps a device inside: (k-1)/k of 2 (n-1)/n of the data, each way."""
    made, n = cluster(2, devices, inside_gbps=100.0), 2 * devices
    by_hand = (devices - 1) / devices * 2 * (n - 1) / n * GIB / (100 * GBPS)
    assert seconds(made, on_switch(made)) == pytest.approx(by_hand, rel=2e-3)


def test_hosts_need_not_have_equally_many_devices():
    made = cluster(4, 4)
    by_hand = 2 * (7 - 1) / 7 * GIB / (8 * 400 * GBPS)
    assert seconds(made, on_switch(made), [[0, 1, 2, 4, 5, 8, 12]]) == pytest.approx(by_hand, rel=2e-3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("devices", [1, 2, 8])
def test_topoopt_keeps_its_rings(level, devices):
    """Four rings each way through 16 hosts of eight interfaces, however many devices are behind them."""
    made, n = cluster(16, devices), 16 * devices
    fabric = construct(made, None, rules="paper", paths=4, rng=np.random.default_rng(0))
    by_hand = 2 * (n - 1) / n * GIB / (8 * 400 * GBPS)
    assert seconds(made, fabric, simulator=Fluid(level=level).build()) == pytest.approx(by_hand, rel=2e-3)


def test_half_of_the_devices_of_each_host_keep_the_rings():
    made = cluster(16, 4)
    fabric = construct(made, None, rules="paper", paths=4, rng=np.random.default_rng(0))
    halves = [[4 * host + 2 * half + one for host in range(16) for one in (0, 1)] for half in (0, 1)]
    by_hand = 2 * 2 * 31 / 32 * GIB / (8 * 400 * GBPS)  # both at a time over the same links
    assert seconds(made, fabric, halves) == pytest.approx(by_hand, rel=2e-3)


@pytest.mark.parametrize("simulator", ["coupled", "stepped", "flexnet"])
def test_cycles_of_a_circle_serve_hosts_of_several_devices(simulator):
    hosts, made = 6, cluster(6, 4, degree=2)
    links = [(host, (host + step) % hosts) for host in range(hosts) for step in (1, 5)]
    circle = [*range(hosts)]
    fabric = Fabric.from_links(
        name="f", n_hosts=hosts, links=links, bandwidth=400 * GBPS, latency=0, cycles=[circle, circle[::-1]]
    )
    model = Flexnet().build() if simulator == "flexnet" else Fluid(level=simulator).build()
    by_hand = 2 * 23 / 24 * GIB / (2 * 400 * GBPS)
    assert seconds(made, fabric, simulator=model) == pytest.approx(by_hand, rel=2e-3)


@pytest.mark.parametrize(("hosts", "devices"), [(64, 8), (16, 4)])
def test_on_a_full_fat_tree_as_on_a_switch(hosts, devices):
    made, n = cluster(hosts, devices), hosts * devices
    by_hand = 2 * (n - 1) / n * GIB / (8 * 400 * GBPS)
    tree = FatTree().build(TopologyContext(cluster=made, demand=None, rng=np.random.default_rng(0)))
    assert seconds(made, on_switch(made)) == pytest.approx(by_hand, rel=2e-3)
    assert seconds(made, tree) == pytest.approx(by_hand, rel=5e-3)


def test_rounds_are_those_of_hosts():
    """A byte among 8 hosts of 8 devices: the latency of 2 (8-1) ways between hosts, as a host of one device each."""
    latency = 1e-3
    one, several = (cluster(8, devices, latency=latency) for devices in (1, 8))
    assert seconds(several, on_switch(several), size=64) == pytest.approx(
        seconds(one, on_switch(one), size=64), rel=1e-3
    )


def test_columns_of_a_ring_through_hosts():
    made = cluster(3, 2)
    network = Network(on_switch(made), made)
    network.lower(
        task_graph([collective([*range(6)], 8), collective([0, 2, 4], 8), collective([0, 1], 8)], n_devices=6)
    )
    rings = network.rings_in_full
    assert (rings.members.tolist(), rings.ranks.tolist()) == ([3, 3, 2], [6, 3, 2])
    first = slice(*rings.load_ptr[:2].tolist())
    between = rings.load_links[first] < network.fabric.n_links
    loads = np.unique(rings.load[first][between]).tolist(), np.unique(rings.load[first][~between]).tolist()
    assert loads == ([1 << 20], [1 << 19])  # half of what leaves the host crosses the link of each of its two devices
    assert (~between).sum() == 12


def test_a_ring_waits_for_the_member_before_alone():
    """Racks of four hosts: most members are two links from the next one, and no step waits for the longest way.

    After 2 (m-1) ways in a row data has gone round twice, but for two ways.
    """
    hosts, latency = 16, 1e-5
    made = cluster(hosts, 2, latency=latency)
    tree = FatTree().build(TopologyContext(cluster=made, demand=None, rng=np.random.default_rng(0)))
    ways = paths(tree, np.arange(hosts), np.roll(np.arange(hosts), -1))
    links = np.diff(ways.path_ptr)[ways.pair_ptr[:-1]]  # of the first path of each pair; the others are as long
    by_hand = latency * (2 * links.sum() - (links + np.roll(links, -1)).min())
    assert links.max() > links.min()
    assert seconds(made, tree, size=64) == pytest.approx(by_hand, rel=1e-3)


def test_sixty_four_hosts_of_eight():
    """64 x 8 H100, 1 GiB: 5.36 ms for the bytes, 126 ways of two links on a switch, 2.6 on average on a fat-tree."""
    made = cluster(64, 8, latency=1e-6)
    tree = FatTree().build(TopologyContext(cluster=made, demand=None, rng=np.random.default_rng(0)))
    by_hand = 2 * 511 / 512 * GIB / (8 * 400 * GBPS)
    assert seconds(made, on_switch(made)) == pytest.approx(by_hand + 126 * 2e-6, rel=1e-3)  # 5.61 ms
    assert by_hand + 126 * 2e-6 < seconds(made, tree) < 5.75e-3


@pytest.mark.slow
def test_many_hosts_of_eight():
    """16,384 hosts of 8 devices: what fills the columns grows with devices, not with their pairs."""
    made = cluster(16_384, 8)
    by_hand = 2 * (131_072 - 1) / 131_072 * GIB / (8 * 400 * GBPS)
    assert seconds(made, on_switch(made)) == pytest.approx(by_hand, rel=1e-3)
