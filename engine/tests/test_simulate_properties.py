"""What must hold of every simulator: proofs beside results, and changes that may not matter.

Monotonicity is tested for a single message or collective only: task graphs have scheduling anomalies (Graham,
SIAM J. Appl. Math. 17, 1969), so that less work can take longer.
"""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Fabric
from topoplan_engine.simulation.bounds import collective_bound
from topoplan_samples.fabrics import star
from topoplan_samples.tasks import collective, compute, task_graph, transfer
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid

SIMULATORS = {
    "coupled": Fluid().build(),
    "stepped": Fluid(level="stepped").build(),
    "coupled server": Fluid(collective="parameter-server").build(),
    "flexnet": Flexnet().build(),
    "flexnet forward": Flexnet(ring_direction="forward").build(),
    "flexnet server": Flexnet(collective="parameter-server").build(),
}
SETTINGS = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
every = pytest.mark.parametrize("simulate", SIMULATORS.values(), ids=SIMULATORS)
sizes = st.integers(1, 200_000_000)
speeds = st.sampled_from([1.25e8, 1.25e9, 3.1e9, 1.25e10])
ALMOST = 1 + 1e-9


def mesh(hosts, bandwidth, latency=1e-6):
    links = [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
    return Fabric.from_links(name="mesh", n_hosts=hosts, links=links, bandwidth=bandwidth, latency=latency)


def circle(hosts, bandwidth, latency=1e-6, rings=True):
    links = sorted({(h, (h + step) % hosts) for h in range(hosts) for step in (1, hosts - 1)})
    rings = {hosts: ((1,), (hosts - 1,)) if hosts > 2 else ((1,),)} if rings else {}
    return Fabric.from_links(
        name="circle", n_hosts=hosts, links=links, bandwidth=bandwidth, latency=latency, rings=rings
    )


def spines(hosts, bandwidth, latency=1e-6):
    """Two leaves, two spines: two paths between hosts of different leaves."""
    links = [(h, hosts + h % 2) for h in range(hosts)]
    links += [(hosts + leaf, hosts + 2 + spine) for leaf in range(2) for spine in range(2)]
    return Fabric.from_links(
        name="spines",
        n_hosts=hosts,
        n_switches=4,
        links=links + [(b, a) for a, b in links],
        bandwidth=bandwidth,
        latency=latency,
        max_paths=2,
    )


fabrics = st.sampled_from([star, mesh, circle, spines])


@st.composite
def work(draw, devices, most=12):
    """A random task graph; every task may wait for earlier ones."""
    tasks, edges = [], []
    device = st.integers(0, devices - 1)
    for t in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from(["compute", "transfer", "transfer", "collective", "collective"]))
        size = draw(st.sampled_from([1, 8936, 60_000, 1_000_000, 20_000_000]))
        if kind == "compute":
            tasks.append(compute(draw(device), draw(st.sampled_from([0.0, 1e-5, 1e-3]))))
        elif kind == "transfer":
            tasks.append(transfer(draw(device), draw(device), size))
        else:
            seconds = draw(st.sampled_from([0.0, 1e-4]))
            members = draw(st.sampled_from([range(devices)]) | st.sets(device, min_size=1))
            tasks.append(collective(sorted(members), size, seconds))
        edges += [(s, t) for s in draw(st.sets(st.integers(0, t - 1), max_size=2))] if t else []
    return task_graph(tasks, edges, devices)


def single(kind, hosts, size):
    task = transfer(0, hosts - 1, size) if kind == "transfer" else collective(range(hosts), size)
    return task_graph([task], n_devices=hosts)


@every
@SETTINGS
@given(st.sampled_from(["transfer", "all-reduce"]), fabrics, st.integers(2, 6), sizes, sizes, speeds)
def test_more_bytes_take_no_less_time(simulate, kind, shape, hosts, one, other, speed):
    """Of one transfer; of one all-reduce beyond those that are sent in one round."""
    least = 18_000 * hosts if kind == "all-reduce" else 0
    fabric, cluster = shape(hosts, speed), Cluster.uniform(n_hosts=hosts)
    less, more = sorted([one + least, other + least])
    times = [simulate.makespan(single(kind, hosts, size), fabric, cluster) for size in (less, more)]
    assert times[0] <= times[1] * ALMOST


@every
@SETTINGS
@given(st.sampled_from(["transfer", "all-reduce"]), fabrics, st.integers(2, 6), sizes, speeds, st.floats(1, 50))
def test_faster_links_take_no_more_time(simulate, kind, shape, hosts, size, speed, factor):
    tasks, cluster = single(kind, hosts, size), Cluster.uniform(n_hosts=hosts)
    slow, fast = (simulate.makespan(tasks, shape(hosts, speed * by), cluster) for by in (1.0, factor))
    assert fast <= slow * ALMOST


@pytest.mark.by_day(2)
@every
@SETTINGS
@given(fabrics, st.integers(2, 6), st.integers(1, 2), sizes, speeds, st.data())
def test_an_allreduce_takes_no_less_than_its_alpha_beta_bound(simulate, shape, hosts, per_host, size, speed, data):
    device = st.integers(0, hosts * per_host - 1)
    members = sorted(data.draw(st.sets(device, min_size=2) | st.just(range(hosts * per_host))))
    tasks = task_graph([collective(members, size)], n_devices=hosts * per_host)
    fabric = shape(hosts, speed)
    cluster = Cluster.uniform(n_hosts=hosts, devices_per_host=per_host, inside_bandwidth=2e10)
    bound = simulate(tasks, fabric, cluster).bounds.collective
    assert bound > 0 or size < len(members)  # whole bytes per member
    assert bound <= simulate(tasks, fabric, cluster).makespan * ALMOST


def test_the_alpha_beta_bound_is_the_known_one():
    """1 us to the switch, 1 us from it, and 2 (m-1)/m S/b."""
    tasks = task_graph([collective(range(8), 80_000_000)], n_devices=8)
    expected = 2e-6 + 2 * 7 / 8 * 80e6 / 1.25e9
    assert collective_bound(tasks, star(8, 1.25e9), Cluster.uniform(n_hosts=8)) == pytest.approx(expected, rel=1e-9)
    timeline = SIMULATORS["stepped"](tasks, star(8, 1.25e9), Cluster.uniform(n_hosts=8))
    assert timeline.bounds.collective == pytest.approx(expected, rel=1e-9)
    assert timeline.makespan < 1.01 * expected


def test_alpha_beta_bounds_of_one_group_add_up_and_those_of_disjoint_groups_do_not():
    cluster, fabric = Cluster.uniform(n_hosts=8), star(8, 1.25e9, latency=0.0)
    half, other = collective(range(4), 10**8), collective(range(4, 8), 10**8)
    once, same, apart = (
        collective_bound(task_graph(tasks, n_devices=8), fabric, cluster)
        for tasks in ([half], [half, half], [half, other])
    )
    assert same == pytest.approx(2 * once)
    assert apart == pytest.approx(once)


def test_a_group_without_anything_to_send_bounds_nothing():
    tasks = task_graph([collective([3], 10**9), collective(range(8), 0)], n_devices=8)
    assert collective_bound(tasks, star(8, 1.25e9), Cluster.uniform(n_hosts=8)) == 0.0


@every
@SETTINGS
@given(fabrics, st.integers(2, 5), st.integers(1, 2), speeds, st.data())
def test_no_task_graph_takes_less_than_its_bounds(simulate, shape, hosts, per_host, speed, data):
    tasks = data.draw(work(hosts * per_host))
    cluster = Cluster.uniform(n_hosts=hosts, devices_per_host=per_host, inside_bandwidth=2e10)
    timeline = simulate(tasks, shape(hosts, speed), cluster)
    for name, bound in attrs.asdict(timeline.bounds).items():
        assert bound <= timeline.makespan * ALMOST + 1e-12, name


@pytest.mark.parametrize("name", ["coupled", "stepped"])
@SETTINGS
@given(st.integers(3, 6), st.integers(120_000, 200_000_000), speeds)
def test_a_reduce_scatter_takes_no_longer_than_an_allreduce(name, hosts, size, speed):
    """The first half of an all-reduce, sent directly, on one switch; sizes beyond those sent in one round."""
    share = size // hosts
    pairs = [(a, b) for a in range(hosts) for b in range(hosts) if a != b]
    scatter = task_graph([transfer(a, b, share) for a, b in pairs], n_devices=hosts)
    fabric, cluster = star(hosts, speed), Cluster.uniform(n_hosts=hosts)
    whole = SIMULATORS[name].makespan(single("all-reduce", hosts, size), fabric, cluster)
    assert SIMULATORS[name].makespan(scatter, fabric, cluster) <= whole * ALMOST


@pytest.mark.by_day(2)
@every
@SETTINGS
@given(st.integers(2, 6), speeds, st.data())
def test_other_names_of_hosts_change_nothing(simulate, hosts, speed, data):
    """On one switch, with rings walked in the order of the same hosts; FlexNet's order of events looks at names."""
    tasks = data.draw(work(hosts, most=1 if simulate in (SIMULATORS["flexnet"], SIMULATORS["flexnet server"]) else 12))
    name = np.append(data.draw(st.permutations(range(hosts))), -1)
    renamed = attrs.evolve(
        tasks,
        device=name[tasks.device],
        src=name[tasks.src],
        dst=name[tasks.dst],
        group_members=name[tasks.group_members],
    )
    fabric, cluster = star(hosts, speed), Cluster.uniform(n_hosts=hosts)
    here, there = simulate(tasks, fabric, cluster), simulate(renamed, fabric, cluster)
    np.testing.assert_allclose(there.finish, here.finish, rtol=1e-9, atol=1e-15)
    np.testing.assert_allclose(there.device_busy[name[:-1]], here.device_busy, rtol=1e-9)


@every
@SETTINGS
@given(st.integers(2, 6), sizes, speeds)
def test_equal_parts_of_a_task_graph_end_together(simulate, hosts, size, speed):
    """Every host sends to its neighbour and computes the same."""
    tasks = [transfer(a, (a + 1) % hosts, size) for a in range(hosts)] + [compute(a, 1e-4) for a in range(hosts)]
    edges = [(a, hosts + (a + 1) % hosts) for a in range(hosts)]
    timeline = simulate(task_graph(tasks, edges, hosts), star(hosts, speed), Cluster.uniform(n_hosts=hosts))
    for first, last in ((0, hosts), (hosts, 2 * hosts)):
        finish = timeline.finish[first:last]
        np.testing.assert_allclose(finish, finish[0], rtol=1e-12)


@pytest.mark.by_day(2)
@every
@SETTINGS
@given(fabrics, st.integers(3, 6), speeds, st.data())
def test_a_link_that_nothing_uses_changes_nothing(simulate, shape, hosts, speed, data):
    """A link to one more switch, which is on no shortest path."""
    tasks, fabric = data.draw(work(hosts)), shape(hosts, speed)
    cluster = Cluster.uniform(n_hosts=hosts)
    switch, host = fabric.n_nodes, data.draw(st.integers(0, hosts - 1))
    larger = attrs.evolve(
        fabric,
        n_switches=fabric.n_switches + 1,
        link_src=np.append(fabric.link_src, [host, switch]),
        link_dst=np.append(fabric.link_dst, [switch, host]),
        link_count=np.append(fabric.link_count, [1, 1]),
        link_bandwidth=np.append(fabric.link_bandwidth, [speed / 7, speed / 7]),
        link_latency=np.append(fabric.link_latency, [0.0, 0.0]),
        link_kind=np.append(fabric.link_kind, [0, 0]),
    )
    before, after = simulate(tasks, fabric, cluster), simulate(tasks, larger, cluster)
    np.testing.assert_array_equal(after.start, before.start)
    np.testing.assert_array_equal(after.finish, before.finish)
    np.testing.assert_array_equal(after.link_bytes, [*before.link_bytes, 0.0, 0.0])
