"""Stripes: what a host that is one endpoint sends by several interfaces; times by hand."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Fabric, LinkKind
from topoplan_engine.network.tables import Network
from topoplan_samples.tasks import collective, task_graph, transfer
from topoplan_simulator_fluid import Fluid

RATE, SIZE = 1e9, 1 << 26


def wired(n_hosts, n_switches, cables, **options):
    rows = [*cables, *((b, a) for a, b in cables)]
    columns = {"bandwidth": RATE, "latency": 0.0, "max_paths": 64, **options}
    return Fabric.from_links(name="wired", n_hosts=n_hosts, n_switches=n_switches, links=rows, **columns)


def rails(n_hosts, count):
    return wired(n_hosts, count, [(host, n_hosts + rail) for host in range(n_hosts) for rail in range(count)])


def bcube():
    """Four hosts, numbers of two digits; switches 4 and 5 join those that differ in the lower one."""
    return wired(4, 4, [(host, 4 + host // 2) for host in range(4)] + [(host, 6 + host % 2) for host in range(4)])


def seconds(fabric, *tasks, devices=1, **options):
    interfaces = int(np.bincount(fabric.link_src)[0])
    cluster = Cluster.uniform(n_hosts=fabric.n_hosts, devices_per_host=devices, interfaces=interfaces)
    cluster = attrs.evolve(cluster, latency=0.0, interface_bandwidth=np.full(fabric.n_hosts, RATE))
    return Fluid(**options).build().makespan(task_graph(tasks, n_devices=cluster.n_devices), fabric, cluster)


@pytest.mark.parametrize("level", ["coupled", "stepped"])
@pytest.mark.parametrize("count", [2, 4, 8])
def test_a_message_and_a_ring_have_all_rails(count, level):
    fabric = rails(4, count)
    assert seconds(fabric, transfer(0, 1, SIZE), level=level) == pytest.approx(SIZE / (count * RATE), rel=1e-9)
    summed = seconds(fabric, collective([0, 1, 2, 3], SIZE), level=level)
    assert summed == pytest.approx(2 * 3 / 4 * SIZE / (count * RATE), rel=1e-9)


@pytest.mark.parametrize("devices", [1, 8])
@pytest.mark.parametrize(("hosts", "count"), [(3, 2), (10, 8), (64, 8)])
def test_networks_of_switches_that_users_bring_along_are_rails_too(hosts, count, devices):
    """By hand; they look for rings along links between hosts, of which they have none."""
    fabric = attrs.evolve(rails(hosts, count), rings_along_links=True)
    members = range(hosts * devices)
    around = 2 * (len(members) - 1) / len(members) * SIZE / (count * RATE)
    assert seconds(fabric, collective(members, SIZE), devices=devices) == pytest.approx(around, rel=1e-9)
    assert seconds(fabric, transfer(0, devices, SIZE), devices=devices) == pytest.approx(
        SIZE / (count * RATE), rel=1e-9
    )


def test_three_messages_of_a_host_share_all_rails():
    """As those of an all-to-all do: each would draw one of four, and two of them mostly the same."""
    sent = [transfer(0, host, SIZE) for host in (1, 2, 3)]
    assert seconds(rails(4, 4), *sent) == pytest.approx(3 * SIZE / (4 * RATE), rel=1e-9)


def test_stripes_of_one_rail_draw_its_spines():
    """By hand: two units and two spines that all leaves join: no stripe crosses from rail to rail."""
    leaves = [(host, 4 + 2 * (host // 2) + rail) for host in range(4) for rail in range(2)]
    fabric = wired(4, 6, [*leaves, *((4 + leaf, 8 + spine) for leaf in range(4) for spine in range(2))])
    network = Network(fabric, Cluster.uniform(n_hosts=4, interfaces=2))
    rows, shares = network.stripes_of(network.rows_between(np.array([0], np.int32), np.array([2], np.int32)))
    assert shares.tolist() == [[0.5, 0.5]]
    for rail, row in enumerate(rows[0].tolist()):
        paths = range(network.paths.row_ptr[row], network.paths.row_ptr[row + 1])
        ends = [network.paths.links[network.paths.path_ptr[p] : network.paths.path_ptr[p + 1]] for p in paths]
        assert len(ends) == 2
        assert {int(fabric.link_dst[links[0]]) for links in ends} == {4 + rail}
        assert {int(fabric.link_src[links[-1]]) for links in ends} == {6 + rail}


def test_hosts_that_forward_send_by_each_interface_that_leads_there():
    """By hand: host 3 differs from host 0 in both digits, so that both interfaces lead there; host 1 in one."""
    assert seconds(bcube(), transfer(0, 3, SIZE)) == pytest.approx(SIZE / (2 * RATE), rel=1e-9)
    assert seconds(bcube(), transfer(0, 1, SIZE)) == pytest.approx(SIZE / RATE, rel=1e-9)


def test_one_path_and_devices_of_a_chassis_have_no_stripes():
    assert seconds(attrs.evolve(rails(4, 4), max_paths=1), transfer(0, 1, SIZE)) == pytest.approx(SIZE / RATE, rel=1e-9)
    two = rails(4, 2)
    is_inside = np.maximum(two.link_src, two.link_dst) == 4
    inside = attrs.evolve(two, link_kind=np.where(is_inside, LinkKind.INSIDE, LinkKind.NETWORK))
    assert Network(inside, Cluster.uniform(n_hosts=4, interfaces=2)).interfaces.most == 1
