"""Hosts whose insides are modelled, beside what NICs, links inside and links of the fabric take by hand.

Data of S bytes takes S over the rate of the slowest link on its way; an all-reduce of n devices passes 2 (n-1) / n S.
"""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Fabric, HostLink, HostModel, HostNode, TopoplanError
from topoplan_engine.host_models import with_inside, with_parts
from topoplan_engine.network.host_paths import host_paths
from topoplan_engine.network.host_ways import ways_through, zigzag
from topoplan_engine.network.machine import MachineNetwork, network_of
from topoplan_engine.network.tables import Network
from topoplan_samples.tasks import collective, task_graph, transfer
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid

GIB = 1 << 30
NVLINK, SLOT, NIC = 400e9, 60e9, 50e9


def host(devices=4, *, cross_rail="nvlink", owned=True, mesh=False):
    """Return devices on a switch, each with a NIC of its own."""
    nodes = (*(HostNode.DEVICE,) * devices, HostNode.SWITCH, *(HostNode.NIC,) * devices)
    inside = [HostLink(device, devices, NVLINK) for device in range(devices)]
    if mesh:
        inside = [HostLink(a, b, NVLINK) for a in range(devices) for b in range(a)]
    slots = [HostLink(device, devices + 1 + device, SLOT) for device in range(devices)]
    owners = tuple((device,) if owned else () for device in range(devices))
    return HostModel(
        device=None,
        nodes=nodes,
        links=(*inside, *slots),
        nic_bandwidth=NIC,
        nic_owners=owners,
        cross_rail=cross_rail,
    )


def cluster(hosts, model=None, latency=0.0):
    model = model or host()
    made = Cluster.uniform(
        n_hosts=hosts,
        devices_per_host=model.n_devices,
        inside_bandwidth=NVLINK,
        interfaces=model.n_nics,
        interface_bandwidth=NIC,
        latency=latency,
    )
    return attrs.evolve(made, host=model)


def both_ways(pairs):
    return [*pairs, *((b, a) for a, b in pairs)]


def one_switch(made):
    nics = int(made.interfaces[0])
    pairs = [(h, made.n_hosts) for h in range(made.n_hosts) for _ in range(nics)]
    return Fabric.from_links(
        name="one",
        n_hosts=made.n_hosts,
        n_switches=1,
        links=both_ways(pairs),
        bandwidth=NIC,
        latency=made.latency,
    )


def rails(made, spines):
    """Return a leaf for each NIC, and spines that join any two leaves; rails alone without spines."""
    hosts, nics = made.n_hosts, int(made.interfaces[0])
    pairs = [(h, hosts + nic) for h in range(hosts) for nic in range(nics)]
    pairs += [(hosts + leaf, hosts + nics + spine) for leaf in range(nics) for spine in range(spines)]
    return Fabric.from_links(
        name="rails",
        n_hosts=hosts,
        n_switches=nics + spines,
        links=both_ways(pairs),
        bandwidth=NIC,
        latency=made.latency,
        max_paths=8,
    )


def seconds(made, fabric, *tasks, simulator=None):
    simulate = (simulator or Fluid()).build()
    return simulate.makespan(task_graph(tasks, n_devices=made.n_devices), fabric, made)


def test_a_host_without_an_inside_is_one_endpoint():
    made = attrs.evolve(cluster(2), host=None)
    assert type(network_of(one_switch(made), made)) is Network
    chip = attrs.evolve(cluster(2, host(1)), host=host(1))
    assert type(network_of(one_switch(chip), chip)) is Network
    assert type(network_of(one_switch(cluster(2)), cluster(2))) is MachineNetwork


@pytest.mark.parametrize(
    "simulator", [Fluid(), Fluid(level="stepped"), Flexnet()], ids=["coupled", "stepped", "flexnet"]
)
def test_one_flow_is_held_to_its_nic(simulator):
    made = cluster(2)
    spent = seconds(made, one_switch(made), transfer(1, 6, GIB), simulator=simulator)
    assert spent == pytest.approx(GIB / NIC, rel=0.01)


def test_flows_of_several_devices_use_all_nics():
    made = cluster(2)
    flows = [transfer(device, 4 + device, GIB) for device in range(4)]
    assert seconds(made, one_switch(made), *flows) == pytest.approx(GIB / NIC, rel=1e-6)
    to_one = [transfer(device, 4, GIB) for device in range(4)]
    assert seconds(made, one_switch(made), *to_one) == pytest.approx(4 * GIB / NIC, rel=1e-6)


def test_a_nic_of_the_host_is_shared():
    made = cluster(2, host(owned=False))
    network = network_of(one_switch(made), made)
    assert network.inside.own_nics.tolist() == [0, 1, 2, 3], "the nearest one"
    shared = attrs.evolve(host(owned=False), nodes=host().nodes[:6], links=host().links[:5], nic_owners=((),))
    single = cluster(2, shared)
    flows = [transfer(device, 4 + device, GIB) for device in range(4)]
    assert seconds(single, one_switch(single), *flows) == pytest.approx(4 * GIB / NIC, rel=1e-6)


def test_inside_a_host_messages_take_the_switch():
    made = cluster(2)
    assert seconds(made, one_switch(made), transfer(0, 3, GIB)) == pytest.approx(GIB / NVLINK, rel=1e-6)


@pytest.mark.parametrize("hosts", [2, 3, 8])
@pytest.mark.parametrize("spines", [0, 4])
def test_a_group_that_fills_hosts_uses_all_nics(hosts, spines):
    made = cluster(hosts)
    n = made.n_devices
    fabric = rails(made, spines) if spines or hosts % 2 == 0 else one_switch(made)
    spent = seconds(made, fabric, collective(range(n), GIB))
    assert spent == pytest.approx(2 * (n - 1) / n * GIB / (4 * NIC), rel=0.01)


def test_one_device_of_each_host_has_one_nic():
    made = cluster(4)
    spent = seconds(made, rails(made, 4), collective(range(0, 16, 4), GIB))
    assert spent == pytest.approx(2 * 3 / 4 * GIB / NIC, rel=0.01)


def test_a_mesh_carries_a_ring_on_all_its_links():
    made = cluster(2, host(5, mesh=True))
    spent = seconds(made, one_switch(made), collective(range(5), GIB))
    assert spent == pytest.approx(2 * 4 / 5 * GIB / (4 * NVLINK), rel=0.01), "four rings share no link"


def links_of(network, src, dst):
    row = network._rows(np.array([src], np.int32), np.array([dst], np.int32))[0]
    paths = network.paths
    path = paths.row_ptr[row]
    return paths.links[paths.path_ptr[path] : paths.path_ptr[path + 1]].tolist()


def test_across_rails_messages_go_over_nvlink_first():
    made = cluster(2)
    network = network_of(rails(made, 4), made)
    links = links_of(network, 0, 6)  # to NIC 2 of the second host
    fabric = network.fabric
    of_fabric = [(int(fabric.link_src[link]), int(fabric.link_dst[link])) for link in links if link < fabric.n_links]
    assert of_fabric == [(0, 2 + 2), (2 + 2, 1)], "by the leaf of its target alone"
    ends = network.inside.ends.tolist()
    first = [ends[link - network.host_links.first] for link in links[:3]]
    assert first == [[0, 4], [4, 2], [2, 7]], "device 0, switch, device 2, its NIC"


def test_by_rule_messages_cross_rails_in_the_fabric():
    made = cluster(2, host(cross_rail="fabric"))
    network = network_of(rails(made, 4), made)
    fabric = network.fabric
    links = [link for link in links_of(network, 0, 6) if link < fabric.n_links]
    assert fabric.link_dst[links[0]] == 2, "leaf 0"
    assert len(links) == 4
    assert fabric.link_src[links[-1]] == 2 + 2, "leaf 2"


def test_rails_without_a_spine_are_crossed_over_nvlink_whatever_the_rule():
    for rule in ("nvlink", "fabric"):
        made = cluster(2, host(cross_rail=rule))
        spent = seconds(made, rails(made, 0), transfer(0, 6, GIB), transfer(2, 6, GIB))
        assert spent == pytest.approx(2 * GIB / NIC, rel=1e-6), "both share NIC 2"


def test_a_nic_whose_cable_is_gone_is_passed_by():
    made = cluster(2)
    whole = rails(made, 4)
    kept = (whole.link_src != 0) | (whole.link_dst != 2)
    columns = {f"link_{name}": getattr(whole, f"link_{name}")[kept] for name in ("src", "dst", "count", "bandwidth")}
    columns |= {f"link_{name}": getattr(whole, f"link_{name}")[kept] for name in ("latency", "kind")}
    fabric = attrs.evolve(whole, **columns)
    assert seconds(made, fabric, transfer(0, 4, GIB)) == pytest.approx(GIB / NIC, rel=1e-6)


def test_latency_is_that_of_the_links_on_the_way():
    made = cluster(2, latency=2e-6)
    assert seconds(made, rails(made, 4), transfer(0, 6, 1)) == pytest.approx(4e-6, rel=1e-3), "to the leaf, and from it"


def test_hosts_that_are_joined_to_each_other_forward():
    made = cluster(4)
    ring = [(h, (h + 1) % 4) for h in range(4) for _ in range(2)]
    fabric = Fabric.from_links(
        name="ring", n_hosts=4, links=both_ways(ring), bandwidth=NIC, latency=0.0, rings_along_links=True
    )
    assert seconds(made, fabric, transfer(0, 9, GIB)) == pytest.approx(GIB / NIC, rel=1e-6), "over a host on the way"
    n = made.n_devices
    spent = seconds(made, fabric, collective(range(n), GIB))
    assert spent == pytest.approx(2 * (n - 1) / n * GIB / (4 * NIC), rel=0.01), "two cables each way round"


def test_bytes_on_nics_are_those_that_leave_hosts():
    made = cluster(4)
    fabric = rails(made, 4)
    graph = task_graph([collective(range(16), GIB), transfer(0, 9, GIB)], n_devices=16)
    timeline = Fluid().build()(graph, fabric, made)
    leaving = timeline.link_bytes[fabric.link_src < 4].sum()
    assert leaving == pytest.approx(4 * 2 * 15 / 16 * GIB + GIB, rel=1e-6)


def test_a_zigzag_ends_half_way_round():
    for count in (2, 4, 8, 72):
        assert sorted(zigzag(count, 3)) == list(range(count))
        assert zigzag(count, 0)[-1] == count // 2
    used = [pair for first in range(8) for pair in zip(zigzag(8, first), zigzag(8, first)[1:], strict=False)]
    assert len(set(used)) == len(used) == 56, "no link of a mesh twice"


def test_devices_that_are_not_joined_are_named():
    broken = attrs.evolve(host(2), links=host(2).links[:2])
    with pytest.raises(TopoplanError, match=r"no links lead from device 0 to nic 3 of a host \(join them\)"):
        host_paths(broken)


@pytest.mark.parametrize("hosts", [1, 3])
def test_a_device_reaches_itself_over_no_link(hosts):
    made = cluster(hosts)
    assert seconds(made, one_switch(made), transfer(1, 1, GIB)) == 0.0


def random_tasks(made, seed):
    """Return transfers and all-reduces between random devices, some of which wait for others."""
    rng = np.random.default_rng(seed)
    tasks = []
    for _ in range(24):
        if rng.random() < 0.3:
            members = rng.permutation(made.n_devices)[: rng.integers(2, made.n_devices + 1)]
            tasks.append(collective(members.tolist(), int(rng.integers(1, GIB))))
        else:
            src, dst = rng.choice(made.n_devices, 2, replace=False).tolist()
            tasks.append(transfer(src, dst, int(rng.integers(1, GIB))))
    edges = [(a, b) for b in range(24) for a in rng.choice(b, min(b, 1), replace=False).tolist() if rng.random() < 0.5]
    return task_graph(tasks, edges, n_devices=made.n_devices)


@pytest.mark.parametrize("seed", range(6))
def test_bounds_are_never_above_the_time(seed):
    made = cluster(4, latency=1e-6)
    for fabric in (rails(made, 2), rails(made, 0), one_switch(made)):
        graph = random_tasks(made, seed)
        timeline = Fluid().build()(graph, fabric, made)
        assert timeline.bounds.best <= timeline.makespan * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_message_alone_is_no_slower_with_more_or_faster_nics(seed):
    rng = np.random.default_rng(seed)
    src, dst = rng.choice(16, 2, replace=False).tolist()
    slow = cluster(4)
    spent = seconds(slow, rails(slow, 4), transfer(src, dst, GIB))
    fast = attrs.evolve(slow, interface_bandwidth=slow.interface_bandwidth * 1.2)
    wide = attrs.evolve(rails(slow, 4), link_bandwidth=rails(slow, 4).link_bandwidth * 1.2)
    assert seconds(fast, wide, transfer(src, dst, GIB)) <= spent * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_bytes_that_leave_hosts_arrive(seed):
    made = cluster(4)
    fabric = rails(made, 4)
    timeline = Fluid().build()(random_tasks(made, seed), fabric, made)
    leaving, entering = (timeline.link_bytes[end < 4].sum() for end in (fabric.link_src, fabric.link_dst))
    assert leaving == pytest.approx(entering, rel=1e-9)
    for node in range(4, fabric.n_nodes):
        into, out = (timeline.link_bytes[end == node].sum() for end in (fabric.link_dst, fabric.link_src))
        assert into == pytest.approx(out, rel=1e-9), "a switch keeps nothing"


@pytest.mark.parametrize("hosts", [2, 3, 4])
@pytest.mark.parametrize("nics", [2, 3, 4])
def test_a_group_uses_all_nics_where_hosts_have_fewer_than_devices(nics, hosts):
    """By hand: 2 (n - 1) / n S over all NICs of a host."""
    made = cluster(hosts, with_parts(host(8), 8, nics))
    group = collective(range(8 * hosts), GIB)
    by_hand = 2 * (8 * hosts - 1) / (8 * hosts) * GIB / (nics * NIC)
    assert seconds(made, one_switch(made), group) == pytest.approx(by_hand)


@pytest.mark.parametrize("hosts", [2, 3, 5])
@pytest.mark.parametrize(
    ("devices", "nics"), [(8, 2), (8, 4), (8, 6), (6, 4), (4, 2), (8, 3), (8, 5), (8, 7), (6, 3), (6, 5), (4, 3)]
)
def test_rings_over_a_mesh_share_no_link_where_hosts_have_fewer_nics(devices, nics, hosts):
    """By hand: links of the mesh are a fifth faster than NICs, and carry one ring each, as NICs do."""
    mesh = with_inside(host(devices, mesh=True), (devices - 1) * 1.2 * NIC)
    made = cluster(hosts, with_parts(mesh, devices, nics))
    by_hand = 2 * (devices * hosts - 1) / (devices * hosts) * GIB / (nics * NIC)
    assert seconds(made, one_switch(made), collective(range(devices * hosts), GIB)) == pytest.approx(by_hand)


def without_cables(fabric, *cables):
    """Return a network without one cable between each host and switch that are named."""
    count = fabric.link_count.copy()
    for ends in cables:
        count[fabric.link_rows(np.array(ends), np.array(ends[::-1]))] -= 1
    left = np.flatnonzero(count > 0)
    return attrs.evolve(
        fabric,
        link_src=fabric.link_src[left],
        link_dst=fabric.link_dst[left],
        link_count=count[left],
        link_bandwidth=NIC * count[left],
        link_latency=fabric.link_latency[left],
        link_kind=fabric.link_kind[left],
    )


@pytest.mark.parametrize(
    ("network", "cables", "rings"),
    [
        ("switch", [], 8),
        ("switch", [(0, 5)], 7),  # a NIC of the first host
        ("switch", [(0, 5), (0, 5), (3, 5)], 6),  # the host that lost most counts
        ("spines", [(host, 5 + 2) for host in range(5)], 7),  # a leaf
        ("spines", [(0, 5 + 2), (2, 5 + 5)], 7),  # the third ring goes on by another rail
        ("rails", [(0, 5 + 2), (2, 5 + 5)], 6),  # where rails never meet it cannot
    ],
)
@pytest.mark.parametrize("mesh", [False, True])
def test_rings_are_as_many_as_the_nics_that_are_left(network, cables, rings, mesh):
    """By hand: every NIC that is left carries 2 (n-1) / n S over the number of rings."""
    made = cluster(5, host(8, mesh=mesh))
    whole = one_switch(made) if network == "switch" else rails(made, 8 if network == "spines" else 0)
    by_hand = 2 * 39 / 40 * GIB / (rings * NIC)
    everyone = collective(range(40), GIB)
    assert seconds(made, without_cables(whole, *cables), everyone) == pytest.approx(by_hand)


def test_a_group_takes_a_nic_of_others_where_one_of_its_own_failed_and_that_is_faster():
    """By hand: two GPUs of each host have two rings as before, one by a NIC that is idle; of three GPUs two rings."""
    made = cluster(4, host(8))
    left = without_cables(one_switch(made), (0, 4))  # the NIC of the last GPU
    for places, rings in (((3, 7), 2), ((0, 1, 7), 2)):
        members = [host * 8 + place for host in range(4) for place in places]
        by_hand = 2 * (len(members) - 1) / len(members) * GIB / (rings * NIC)
        assert seconds(made, left, collective(members, GIB)) == pytest.approx(by_hand)


@pytest.mark.parametrize(
    "owners",
    ["01230123", "00112233", "01234501", "33221100", "0101", "012012", "01234012", "01234560", "012"],
)
def test_ways_through_a_host_begin_and_end_once_at_every_nic(owners):
    nics = np.array([int(each) for each in owners])
    count = len(set(owners))
    ways = ways_through(nics, count)
    assert sorted(nics[way[0]] for way in ways) == sorted(nics[way[-1]] for way in ways) == list(range(count))
    assert all(sorted(way.tolist()) == list(range(len(nics))) for way in ways)
    used = [link for way in ways for link in zip(way.tolist(), way.tolist()[1:], strict=False)]
    assert (count % 2 and len(nics) % 2) or len(set(used)) == len(used)
    assert ways_through(nics, count + 1) == []


@pytest.mark.parametrize(
    ("joined", "least"),
    [
        ([(leaf, 8 + spine) for leaf in range(8) for spine in range(2)], 4),  # leaves under two spines
        ([(leaf, 8 + leaf // 4) for leaf in range(8)], 4),  # of which each has a half of the rails
        ([(leaf, (leaf + 1) % 8) for leaf in range(8)], 3),  # leaves in a ring
    ],
)
def test_the_nics_are_those_that_a_search_among_all_finds(joined, least):
    model, hosts = host(4), 4
    # Hosts 0 and 1 are on leaves 0 to 3, the others on leaves 4 to 7, a NIC on each.
    ends = [(number, hosts + 4 * (number // 2) + nic) for number in range(hosts) for nic in range(4)]
    ends += [(hosts + a, hosts + b) for a, b in joined]
    links = ends + [(b, a) for a, b in ends]
    fabric = Fabric.from_links(name="rails", n_hosts=hosts, n_switches=10, links=links, bandwidth=NIC, latency=0.0)
    source, target = np.divmod(np.arange(16 * 16), 16)
    away = source // 4 != target // 4
    network, all_searched = (MachineNetwork(fabric, cluster(hosts, model)) for _ in range(2))
    assert network.ports._least_links == least
    all_searched.ports._least_links = 0
    chosen, wanted = (each.ports.choose(source[away], target[away]) for each in (network, all_searched))
    assert np.array_equal(chosen, wanted)
