"""Closed forms that both models must give, errors instead of numbers, and the components' promises."""

from __future__ import annotations

import subprocess
import sys

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Fabric, TopoplanError
from topoplan.options import structure
from topoplan_engine.network.kept import NetworkCache
from topoplan_engine.network.tables import Network
from topoplan_samples.fabrics import star
from topoplan_samples.tasks import collective, compute, task_graph, transfer
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_flexnet.model import flexnet_task_count
from topoplan_simulator_fluid import Fluid
from topoplan_simulator_fluid import kernel as fluid_kernel

GBPS = 1e9 / 8


def graph(tasks, edges=(), n_devices=4):
    """Return the graph of tasks that belong to one operator."""
    return task_graph([task._replace(op=0) for task in tasks], edges, n_devices, op_names=("conv1",))


def fast_star(hosts=4):
    return star(hosts, 100 * GBPS)


def circle(hosts=4, rings=None):
    links = [(h, (h + step) % hosts) for h in range(hosts) for step in (1, hosts - 1)]
    return Fabric.from_links(name="circle", n_hosts=hosts, links=links, bandwidth=GBPS, latency=0.0, rings=rings)


def fluid(**options):
    return Fluid(**options).build()


def packets(**options):
    """Return what sends messages as FlexNetPacket does."""
    return Fluid(transport="flexnetpacket", **options).build()


def flexnet(**options):
    return Flexnet(**options).build()


CLUSTER = Cluster.uniform(n_hosts=4)


def test_the_fluid_loop_is_compiled_once_for_all_that_it_runs():
    taskgraph = graph([transfer(0, 1, 1000), collective(range(4), 50_000_000)])
    for simulate in (fluid(), fluid(level="stepped", seed=3), packets()):
        makespan = simulate(taskgraph, fast_star(), CLUSTER).makespan
        assert simulate.makespan(taskgraph, fast_star(), CLUSTER, 2 * makespan) == makespan
    assert len(fluid_kernel._run.signatures) == 1


def test_fluid_lone_transfer_takes_what_store_and_forward_of_packets_takes():
    # h (d + 8/C) + h d + (packets + h - 1) 8936 * 8/C: 12.5 MB at 100 Gbit/s over two links of 1 us
    timeline = packets()(graph([transfer(0, 1, 12_500_000)]), fast_star(), CLUSTER)
    assert timeline.makespan == pytest.approx(1.00483216e-3, rel=1e-9)


@pytest.mark.parametrize("level", ["coupled", "stepped"])
def test_bursts_between_two_hosts_are_served_in_turn(level):
    """The second of two messages of 50 packets ends 50 packets later; of two of 102, the last packets come last."""
    packet = 8936 * 8e-11
    alone = 4e-6 + 2 * 8e-11 + 51 * packet
    bursts = packets(level=level)(graph([transfer(0, 1, 50 * 8936)] * 2), fast_star(), CLUSTER)
    assert sorted(bursts.finish) == pytest.approx([alone, alone + 50 * packet], rel=1e-9)
    longer = packets(level=level)(graph([transfer(0, 1, 102 * 8936)] * 2), fast_star(), CLUSTER)
    assert sorted(longer.finish) == pytest.approx([alone + 153 * packet, alone + 154 * packet], rel=1e-9)


def test_a_burst_waits_to_be_asked_for_behind_the_one_before():
    """Its first packet is sent behind a burst that is queued, and at the next link waits for the last one of that."""
    packet = 8936 * 8e-11
    tasks = [compute(0, 20e-6), transfer(0, 1, 50 * 8936), transfer(0, 1, 50 * 8936)]
    timeline = packets()(graph(tasks, [(0, 2)]), fast_star(), CLUSTER)
    opened = 2e-6 + 2 * 8e-11
    assert timeline.finish[2] == pytest.approx(opened + 4e-6 + 8e-11 + 102 * packet, rel=1e-9)


def test_bursts_to_different_hosts_are_served_in_turn_too():
    timeline = packets()(graph([transfer(0, 1, 50 * 8936), transfer(0, 2, 50 * 8936)]), fast_star(), CLUSTER)
    assert np.ptp(timeline.finish) == pytest.approx(50 * 8936 * 8e-11, rel=1e-9)


def test_bursts_of_different_senders_collide_in_queues():
    """Three bursts of 50 packets to one host come one packet of each in turn, over a link of four hosts."""
    packet = 8936 * 8e-11
    timeline = packets()(graph([transfer(h, 3, 50 * 8936) for h in range(3)]), fast_star(), CLUSTER)
    first = 4e-6 + 3 * 8e-11 + 8e-11
    assert timeline.finish.max() == pytest.approx(first + 151 * packet, rel=1e-4)
    assert timeline.finish.min() == pytest.approx(first + 149 * packet, rel=1e-4)


@pytest.mark.parametrize("level", ["coupled", "stepped"])
def test_fluid_ring_of_four(level):
    """Six rounds of 12.5 MB over one link of 100 Gbit/s and 1 us: 6.0127 ms in the packet simulator."""
    links = [(a, b) for a in range(4) for b in range(4) if a != b]
    mesh = Fabric.from_links(name="mesh", n_hosts=4, links=links, bandwidth=100 * GBPS, latency=1e-6)
    timeline = packets(level=level)(graph([collective(range(4), 50_000_000)]), mesh, CLUSTER)
    assert timeline.makespan == pytest.approx(6.0127e-3, abs=5e-8)


@pytest.mark.parametrize("level", ["coupled", "stepped"])
def test_fluid_small_allreduce_is_one_round(level):
    simulate = packets(level=level)
    below = simulate(graph([collective(range(4), 54_000)]), fast_star(), CLUSTER).makespan
    above = simulate(graph([collective(range(4), 54_001)]), fast_star(), CLUSTER).makespan
    # Measured with the packet simulator: 3.4 us plus latency and 20.6 us plus latency for six rounds.
    assert above == pytest.approx(6 * below, rel=1e-6)


@pytest.mark.parametrize("level", ["coupled", "stepped"])
def test_long_transfers_starve_beside_a_ring_on_one_switch(level):
    """FlexNetPacket: the ring ends at 16.45 ms, the transfers at 20.42 ms; with equal shares they would at 10.7 ms."""
    hosts = 16
    rows = [transfer(h, (h + 5) % hosts, 67_000_000) for h in range(hosts)]
    rows.append(collective(range(hosts), 100_000_000))
    taskgraph = graph(rows, n_devices=hosts)
    simulate = packets(level=level)
    finish = simulate(taskgraph, fast_star(hosts), Cluster.uniform(n_hosts=hosts)).finish * 1e3
    assert finish[:-1] == pytest.approx(20.42, rel=0.01)
    assert finish[-1] == pytest.approx(16.45, rel=0.07)


def test_a_long_transfer_starves_beside_a_ring_on_a_full_mesh():
    """FlexNetPacket: the transfer ends at 27.51 ms, the ring at 44.99 ms.

    The transfer's window is down to 2 packets after some 740 of its 961, and a ring flow of 492 restarts every round.
    """
    hosts = 16
    links = [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
    mesh = Fabric.from_links(name="mesh", n_hosts=hosts, links=links, bandwidth=25 * GBPS, latency=1e-6)
    rows = [transfer(8, 9, 8_585_216), collective(range(hosts), hosts * 4_393_212)]
    taskgraph = graph(rows, n_devices=hosts)
    finish = packets()(taskgraph, mesh, Cluster.uniform(n_hosts=hosts)).finish * 1e3
    assert finish == pytest.approx([27.51, 44.99], rel=0.08)


def test_flexnet_latency_is_paid_per_hop():
    timeline = flexnet(segment_bytes=64 << 20)(graph([transfer(0, 1, 4_194_304)]), fast_star(), CLUSTER)
    assert timeline.makespan * 1e3 == pytest.approx(0.337544, abs=1e-6)
    assert timeline.events == 1


def test_flexnet_latency_is_paid_per_segment():
    size = 4 << 20
    timeline = flexnet()(graph([transfer(0, 1, size)]), fast_star(), CLUSTER)
    assert timeline.makespan == pytest.approx(size / (100 * GBPS) + 5e-6, rel=1e-6)
    assert timeline.events == 4


def test_flexnet_ring_is_concurrent_flows():
    simulate = flexnet(segment_bytes=64 << 20)
    tasks = graph([collective(range(4), 4_000_000, seconds=1e-3)])
    assert simulate(tasks, fast_star(), CLUSTER).makespan == pytest.approx(
        1e-3 + 6_000_000 / (100 * GBPS) + 2e-6, rel=1e-6
    )
    assert flexnet_task_count(tasks, Network(fast_star(), CLUSTER)) == 1 + 4 + 1


def test_flexnet_random_directions_are_seeded():
    """On a circle with links of one direction faster than the other, the direction decides."""
    fabric = circle()
    forward = (fabric.link_dst - fabric.link_src) % 4 == 1
    fabric = attrs.evolve(fabric, link_bandwidth=np.where(forward, GBPS, GBPS / 2))
    tasks = graph([collective(range(4), 1_000_000)])
    results = [flexnet(ring_direction="random", seed=s).makespan(tasks, fabric, CLUSTER) for s in range(8)]
    repeats = [flexnet(ring_direction="random", seed=s).makespan(tasks, fabric, CLUSTER) for s in range(8)]
    assert results == repeats
    assert len(set(results)) == 2
    assert min(results) == flexnet().makespan(tasks, fabric, CLUSTER)


def test_two_devices_of_a_host_talk_inside_it():
    cluster = Cluster.uniform(n_hosts=2, devices_per_host=2, inside_bandwidth=1e10)
    fabric = fast_star(2)
    inside = flexnet(segment_bytes=1 << 30)(graph([transfer(0, 1, 10_000_000)]), fabric, cluster)
    assert inside.makespan == pytest.approx(1e-3, rel=1e-6)
    assert not inside.link_bytes.any()
    outside = flexnet(segment_bytes=1 << 30)(graph([transfer(1, 2, 10_000_000)]), fabric, cluster)
    assert outside.makespan == pytest.approx(10_000_000 / (100 * GBPS) + 2e-6, rel=1e-6)
    assert outside.link_bytes.tolist().count(10_000_000.0) == 2


@pytest.mark.parametrize("build", [fluid, flexnet])
def test_a_transfer_to_its_own_device_takes_no_time(build):
    timeline = build()(graph([compute(1, 2e-3), transfer(1, 1, 10**9)], [(0, 1)]), fast_star(), CLUSTER)
    assert timeline.makespan == pytest.approx(2e-3)
    assert timeline.finish[1] == pytest.approx(2e-3)


@pytest.mark.parametrize("level", ["coupled", "stepped"])
def test_an_all_reduce_of_one_device_takes_what_its_gpus_take(level):
    """The 8 GPUs of a device sum 1 GiB at 450 GB/s each in 2 (7/8) 2^30 / 450e9 = 4.176 ms, between 2 ms and 1 ms."""
    sums = 2 * 7 / 8 * 2**30 / 450e9
    tasks = graph([compute(1, 2e-3), collective([1], 2**30, sums), compute(1, 1e-3)], [(0, 1), (1, 2)])
    simulate = fluid(level=level)
    timeline = simulate(tasks, fast_star(), CLUSTER)
    assert timeline.start.tolist() == pytest.approx([0.0, 2e-3, 2e-3 + sums])
    assert timeline.finish[1] - timeline.start[1] == pytest.approx(4.176e-3, rel=1e-3)
    assert timeline.makespan == pytest.approx(3e-3 + sums)
    assert not timeline.link_bytes.any()
    assert timeline.bounds.chain == pytest.approx(3e-3 + sums)
    assert simulate.makespan(tasks, fast_star(), CLUSTER, 0.99 * timeline.makespan) == float("inf")
    assert simulate.makespan(tasks, fast_star(), CLUSTER, 1.01 * timeline.makespan) == timeline.makespan


def test_a_device_computes_while_its_gpus_sum():
    tasks = graph(
        [compute(1, 2e-3), collective([1], 10**9, 5e-3), compute(1, 3e-3), compute(0, 4e-3)], [(0, 1), (0, 2)]
    )
    timeline = fluid()(tasks, fast_star(), CLUSTER)
    assert timeline.finish.tolist() == pytest.approx([2e-3, 7e-3, 5e-3, 4e-3])


@pytest.mark.parametrize(("build", "seconds"), [(fluid, 0.0), (packets, 0.0), (packets, 5.0), (flexnet, 5.0)])
def test_allreduce_of_one_member_without_a_sum_takes_no_time_and_frees_its_successors(build, seconds):
    """The programs of FlexNet end it at once, whatever its device sums."""
    tasks = graph([compute(1, 2e-3), collective([1], 10**10, seconds), compute(1, 1e-3)], [(0, 1), (1, 2)])
    timeline = build()(tasks, fast_star(), CLUSTER)
    assert timeline.makespan == pytest.approx(3e-3)


@pytest.mark.parametrize("build", [fluid, flexnet])
def test_devices_run_first_in_first_out(build):
    """The long task is ready first and keeps the short one waiting."""
    rows = [compute(0, 1e-3), compute(1, 2e-3), compute(2, 5e-3), compute(2, 1e-3)]
    timeline = build()(graph(rows, [(0, 2), (1, 3)]), fast_star(), CLUSTER)
    assert timeline.start.tolist() == pytest.approx([0, 0, 1e-3, 6e-3])
    assert timeline.device_busy.tolist() == pytest.approx([1e-3, 2e-3, 6e-3, 0])


@pytest.mark.parametrize("build", [fluid, flexnet])
def test_rings_of_the_fabric_carry_an_allreduce(build):
    """Two rings around a circle halve the time of one; all links are used."""
    tasks = graph([collective(range(4), 40_000_000)])
    one = build()(tasks, circle(), CLUSTER)
    two = build()(tasks, circle(rings={4: ((1,), (3,))}), CLUSTER)
    assert two.makespan == pytest.approx(one.makespan / 2, rel=1e-3)
    assert (two.link_bytes > 0).all()
    assert (one.link_bytes > 0).sum() == 4


def test_a_ring_of_several_jumps_walks_the_second_first():
    fabric = Fabric.from_links(
        name="jumps",
        n_hosts=6,
        links=[(h, (h + j) % 6) for h in range(6) for j in (1, 2, 5)],
        bandwidth=GBPS,
        latency=0.0,
        rings={2: ((1, 2),)},
    )
    cluster = Cluster.uniform(n_hosts=6)
    timeline = flexnet()(graph([collective([0, 3], 6_000)], n_devices=6), fabric, cluster)
    pairs = {(int(fabric.link_src[i]), int(fabric.link_dst[i])) for i in np.flatnonzero(timeline.link_bytes)}
    assert pairs == {(0, 2), (2, 3), (3, 5), (5, 0)}


def test_a_group_that_is_no_coset_uses_one_ring_over_the_routes():
    fabric = circle(rings={2: ((1, 1),)})
    timeline = flexnet()(graph([collective([0, 1], 8_000)]), fabric, CLUSTER)
    assert timeline.link_bytes.sum() == 2 * 8_000


@pytest.mark.parametrize("build", [fluid, flexnet])
class TestErrors:
    def test_cycle(self, build):
        rows = [compute(0, 1e-3), compute(1, 1e-3), compute(2, 1e-3)]
        tasks = graph(rows, [(0, 1), (1, 2), (2, 1)])
        with pytest.raises(TopoplanError, match=r"task 1 \(forward of conv1 on device 1\), task 2 .*cycle"):
            build()(tasks, fast_star(), CLUSTER)
        with pytest.raises(TopoplanError, match="cycle"):
            build().makespan(tasks, fast_star(), CLUSTER)

    def test_only_three_are_named(self, build):
        rows = [compute(0, 1e-3) for _ in range(6)]
        with pytest.raises(TopoplanError, match=r"task 2 \([^)]*\) and 3 more never run"):
            build()(graph(rows, [(t, (t + 1) % 6) for t in range(6)]), fast_star(), CLUSTER)

    def test_unreachable_transfer(self, build):
        fabric = Fabric.from_links(name="cut", n_hosts=4, links=[(0, 1), (1, 0)], bandwidth=1e9, latency=0.0)
        tasks = graph([transfer(0, 1, 5), transfer(0, 3, 5)])
        with pytest.raises(TopoplanError, match=r"no path from host 0 to host 3 for task 1 \(transfer of conv1"):
            build()(tasks, fabric, CLUSTER)

    def test_unreachable_ring(self, build):
        fabric = Fabric.from_links(name="cut", n_hosts=4, links=[(0, 1), (1, 0)], bandwidth=1e9, latency=0.0)
        tasks = graph([collective([0, 1], 5), collective([0, 1, 2], 5)])
        with pytest.raises(TopoplanError, match=r"no path from host 1 to host 2 for task 1 \(all-reduce of conv1"):
            build()(tasks, fabric, CLUSTER)

    def test_a_simulator_survives_an_error(self, build):
        fabric = Fabric.from_links(name="cut", n_hosts=4, links=[(0, 1), (1, 0)], bandwidth=1e9, latency=0.0)
        simulate = build()
        for _ in range(2):
            with pytest.raises(TopoplanError, match="no path"):
                simulate(graph([collective([1, 0], 5), collective([0, 1, 2], 5)]), fabric, CLUSTER)
        good = graph([collective([1, 0], 10**6), collective([0, 1], 10**6)])
        assert simulate.makespan(good, fabric, CLUSTER) == build().makespan(good, fabric, CLUSTER)

    def test_ring_without_its_link(self, build):
        fabric = circle(rings={4: ((2, 3),)})
        with pytest.raises(TopoplanError, match=r"ring \(2, 3\) of groups of 4 needs a link from host 3 to host 1"):
            build()(graph([collective(range(4), 5)]), fabric, CLUSTER)

    def test_wrong_sizes(self, build):
        with pytest.raises(TopoplanError, match="5 hosts, the cluster 4"):
            build()(graph([compute(0, 1.0)]), fast_star(5), CLUSTER)
        with pytest.raises(TopoplanError, match="9 devices, but the cluster has 4"):
            build()(graph([compute(0, 1.0)], n_devices=9), fast_star(), CLUSTER)


def test_several_paths_are_drawn_by_seed():
    fabric = Fabric.from_links(
        name="spines",
        n_hosts=4,
        n_switches=4,
        links=[(h, 4 + h // 2) for h in range(4)]
        + [(4 + h // 2, h) for h in range(4)]
        + [(4 + a, 6 + b) for a in range(2) for b in range(2)]
        + [(6 + b, 4 + a) for a in range(2) for b in range(2)],
        bandwidth=1e9,
        latency=0.0,
        max_paths=4,
    )
    tasks = graph([transfer(0, 2, 10**7), transfer(1, 3, 10**7)])
    times = [fluid(seed=s).makespan(tasks, fabric, CLUSTER) for s in range(16)]
    assert max(times) == pytest.approx(2 * min(times), rel=0.01)  # on one spine, or on two
    assert times == [fluid(seed=s).makespan(tasks, fabric, CLUSTER) for s in range(16)]


def test_networks_are_kept_and_bounded():
    cache = NetworkCache(size=2)
    fabrics = [star(4, g * GBPS) for g in (1, 2, 3)]
    first = cache.get(fabrics[0], CLUSTER)
    assert cache.get(fabrics[0], CLUSTER) is first
    cache.get(fabrics[1], CLUSTER)
    cache.get(fabrics[2], CLUSTER)
    assert cache.get(fabrics[0], CLUSTER) is not first


def test_known_pairs_are_not_routed_again():
    network = Network(fast_star(), CLUSTER)
    network.lower(graph([transfer(0, 1, 1), collective(range(4), 1)]))
    paths, rings = network.paths, network.rings_in_full
    network.lower(graph([collective(range(4), 9), transfer(0, 1, 7), transfer(2, 3, 7)]))
    assert network.paths is paths
    assert network.rings_in_full is rings


def test_components_are_registered_with_their_defaults():
    assert Fluid().memory_policy == "penalty"
    assert structure(Flexnet, {"memory": "limit"}, "simulator flexnet").memory_policy == "limit"
    assert Flexnet().memory_policy == "ignore"
    with pytest.raises(TopoplanError, match="level"):
        structure(Fluid, {"level": "packets"}, "simulator fluid")


def test_registration_loads_no_kernels():
    code = "import topoplan_simulator_fluid, topoplan_simulator_flexnet, sys; assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
