"""Merged and repeated task graphs: what was one stays one, and jobs that share nothing do not feel each other."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Fabric, PlacedStrategy, TaskKind, TopoplanError
from topoplan.testing import reference
from topoplan_command_share.union import union, unroll
from topoplan_engine.lowering import Lowering
from topoplan_engine.search.space import Space
from topoplan_samples.fabrics import star
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid

GRAPH = reference.graph(("dense1", "dense2", "dense3"))
SIMULATORS = {
    "coupled": Fluid().build(),
    "stepped": Fluid(level="stepped").build(),
    "flexnet": Flexnet(ring_direction="forward").build(),
}
every = pytest.mark.parametrize("simulate", SIMULATORS.values(), ids=SIMULATORS)
#: FlexNet's queue leaves the order of equal events to all that is in it.
fluid = pytest.mark.parametrize("simulate", [SIMULATORS["coupled"], SIMULATORS["stepped"]], ids=["coupled", "stepped"])
seeds = st.integers(0, 10_000)


def drawn(seed, hosts=4):
    """One iteration of a random strategy on so many hosts of one device."""
    rng = np.random.default_rng(seed)
    cluster = reference.cluster(hosts)
    space = Space(GRAPH, cluster, reference.Costs())
    strategy = PlacedStrategy(tuple(space.random_placement(op, rng) for op in range(3)))
    return Lowering(GRAPH, cluster, reference.Costs()).lower(strategy)


def islands(kind, *parts):
    """Hosts in parts that are not joined to each other; between two hosts there is one shortest path."""
    hosts = sum(len(part) for part in parts)
    if kind == "mesh":
        links = [(a, b) for part in parts for a in part for b in part if a != b]
    elif kind == "ring":
        links = [(part[i - 1], part[i]) for part in parts for i in range(len(part))]
    else:
        links = [link for n, part in enumerate(parts) for h in part for link in ((h, hosts + n), (hosts + n, h))]
    switches = len(parts) if kind == "star" else 0
    return Fabric.from_links(
        name="cut", n_hosts=hosts, n_switches=switches, links=sorted(links), bandwidth=1e9, latency=1e-6
    )


def far(tasks):
    """Whether a transfer takes more than one link of a ring."""
    return ((tasks.dst - tasks.src)[tasks.kind == TaskKind.TRANSFER] % tasks.n_devices > 1).any()


def edges(tasks):
    return reference.edges_of(tasks)


@given(seeds)
@settings(max_examples=20)
def test_one_job_alone_is_that_job(seed):
    tasks = drawn(seed)
    assert union([tasks], [np.arange(4)], 4) == tasks


@given(seeds, seeds)
@settings(max_examples=30)
def test_tasks_edges_and_groups_of_every_job_are_kept(one, two):
    jobs, rng = [drawn(one), drawn(two, 8)], np.random.default_rng(one)
    places = rng.permutation(16)
    devices = [places[:4], places[4:12]]
    whole = union(jobs, devices, 16)
    whole.check()
    at = 0
    found = edges(whole)
    for job, own in zip(jobs, devices, strict=True):
        rows = slice(at, at + job.n_tasks)
        for column in ("kind", "seconds", "size"):
            assert (getattr(whole, column)[rows] == getattr(job, column)).all()
        for column in ("device", "src", "dst"):
            given_ = getattr(job, column)
            assert (getattr(whole, column)[rows] == np.where(given_ < 0, -1, own[given_])).all()
        mine = [(a - at, b - at) for a, b in found if at <= a < at + job.n_tasks]
        assert mine == edges(job)
        for task in np.flatnonzero(job.kind == TaskKind.COLLECTIVE):
            assert whole.members(at + task).tolist() == own[job.members(task)].tolist()
        assert [whole.op_names[op] for op in whole.op[rows]] == [job.op_names[op] for op in job.op]
        at += job.n_tasks
    assert whole.n_tasks == at


@every
@given(seed=seeds)
@settings(max_examples=10)
def test_a_job_on_other_hosts_of_a_switch_takes_as_long(simulate, seed):
    tasks = drawn(seed)
    alone = simulate(tasks, star(4), reference.cluster(4))
    places = np.random.default_rng(seed).permutation(16)[:4]
    moved = simulate(union([tasks], [places], 16), star(16), reference.cluster(16))
    assert moved.finish == pytest.approx(alone.finish, rel=1e-12)


@pytest.mark.by_day(2)
@fluid
@pytest.mark.parametrize("kind", ["mesh", "ring", "star"])
@given(one=seeds, two=seeds, late=st.floats(0, 0.02))
@settings(max_examples=10)
def test_jobs_on_partitions_of_their_own_are_as_if_alone(simulate, kind, one, two, late):
    places = np.random.default_rng(one).permutation(12)
    jobs = [drawn(one), unroll(drawn(two, 8), 2, late)]
    # The fluid model has one rule of sharing for all links, which it takes from how far messages go at most.
    assume(kind != "ring" or (far(jobs[0]) and far(jobs[1])))
    devices = [np.sort(places[:4]), np.sort(places[4:])]
    fabric = islands(kind, *(own.tolist() for own in devices))
    together = simulate(union(jobs, devices, 12), fabric, reference.cluster(12))
    at = 0
    for job, own in zip(jobs, devices, strict=True):
        alone = simulate(job, islands(kind, range(len(own))), reference.cluster(len(own)))
        finish = together.finish[at : at + job.n_tasks]
        assert finish == pytest.approx(alone.finish, rel=1e-12, abs=1e-12)
        at += job.n_tasks


@every
def test_jobs_that_share_links_feel_each_other(simulate):
    tasks = drawn(3)
    tasks = attrs.evolve(tasks, seconds=tasks.seconds / 100, size=tasks.size * 10)
    assert (tasks.kind == TaskKind.TRANSFER).any()
    pair = Fabric.from_links(
        name="trunk",
        n_hosts=8,
        n_switches=2,
        bandwidth=1e9,
        latency=1e-6,
        links=[link for h in range(8) for link in ((h, 8 + h % 2), (8 + h % 2, h))] + [(8, 9), (9, 8)],
    )
    alone = simulate(union([tasks], [np.arange(4)], 8), pair, reference.cluster(8)).makespan
    both = simulate(union([tasks, tasks], [np.arange(4), np.arange(4, 8)], 8), pair, reference.cluster(8))
    assert both.makespan > alone * 1.04


@fluid
@given(seed=seeds, times=st.integers(1, 4), wait=st.sampled_from([0.0, 0.003]))
@settings(max_examples=15)
def test_iterations_follow_each_other(simulate, seed, times, wait):
    tasks = drawn(seed)
    alone = simulate(tasks, star(4), reference.cluster(4))
    chain = unroll(tasks, times, wait)
    chain.check()
    found = simulate(chain, star(4), reference.cluster(4))
    assert found.makespan == pytest.approx(wait + times * alone.makespan, rel=1e-9)
    for number in range(times):
        finish = found.finish[number * tasks.n_tasks : (number + 1) * tasks.n_tasks]
        assert finish.max() == pytest.approx(wait + (number + 1) * alone.makespan, rel=1e-9)
        start = found.start[number * tasks.n_tasks : (number + 1) * tasks.n_tasks]
        assert start.min() >= wait + number * alone.makespan * (1 - 1e-9)


def test_once_without_waiting_is_the_iteration_itself():
    tasks = drawn(5)
    assert unroll(tasks, 1) is tasks


def test_several_devices_in_a_host():
    """A device that stands for another one of the same kind of host changes nothing."""
    cluster = Cluster.uniform(n_hosts=2, devices_per_host=2, interface_bandwidth=1e9)
    space = Space(GRAPH, cluster, reference.Costs())
    tasks = Lowering(GRAPH, cluster, reference.Costs()).lower(space.initial())
    simulate = SIMULATORS["coupled"]
    wide = Cluster.uniform(n_hosts=4, devices_per_host=2, interface_bandwidth=1e9)
    moved = union([tasks], [np.array([2, 3, 6, 7])], 8)
    assert simulate(moved, star(4), wide).makespan == pytest.approx(simulate(tasks, star(2), cluster).makespan)


def test_bad_devices():
    tasks = drawn(1)
    with pytest.raises(TopoplanError, match="job 1: has 4 devices, but got 3"):
        union([tasks, tasks], [np.arange(4), np.arange(4, 7)], 8)
    for second in ([3, 4, 5, 6], [5, 6, 7, 8], [-1, 4, 5, 6]):
        with pytest.raises(TopoplanError, match=r"different ones of 0 \.\. 7"):
            union([tasks, tasks], [np.arange(4), np.array(second)], 8)


def test_what_an_importer_kept_is_dropped():
    tasks = attrs.evolve(drawn(1), foreign={"id": np.arange(3)})
    assert union([tasks], [np.arange(4)], 4).foreign == {}
    assert unroll(tasks, 2).foreign == {}
