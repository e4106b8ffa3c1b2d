"""Fabrics that are rebuilt between phases: which task is in which phase, and what rebuilding adds to the time."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Fabric, PlacedStrategy, ReconfigurableFabric, TaskGraph, TaskKind, TopoplanError
from topoplan.testing import reference
from topoplan_engine.lowering import Lowering
from topoplan_engine.search.space import Space
from topoplan_engine.simulation.phases import excerpt, phased_makespan, segments, task_phases
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid

HOSTS = 8
CLUSTER = reference.cluster(HOSTS)
GRAPH = reference.graph(("dense1", "dense2", "dense3"))
SPACE = Space(GRAPH, CLUSTER, reference.Costs())
LOWERING = Lowering(GRAPH, CLUSTER, reference.Costs())
SIMULATORS = {
    "coupled": Fluid().build(),
    "stepped": Fluid(level="stepped").build(),
    "barrier": Fluid(gradient_sync="barrier").build(),
    "server": Fluid(collective="parameter-server").build(),
    "flexnet": Flexnet().build(),
}
every = pytest.mark.parametrize("simulate", SIMULATORS.values(), ids=SIMULATORS)
seeds = st.integers(0, 10_000)


def circulant(*steps, rings=None):
    links = [(h, (h + s) % HOSTS) for h in range(HOSTS) for step in steps for s in (step, -step)]
    return Fabric.from_links(name="c", n_hosts=HOSTS, links=links, bandwidth=1e9, latency=1e-6, rings=rings)


RINGS = circulant(1, 1, rings={HOSTS: ((1,), (HOSTS - 1,))})
NEAR, FAR = circulant(1, 2), circulant(1, 3)


def phased(forward, backward, reduce, delay=1e-3):
    return ReconfigurableFabric(forward=forward, backward=backward, reduce=reduce, delay=delay)


def drawn(seed):
    """A random strategy, lowered."""
    rng = np.random.default_rng(seed)
    return LOWERING.lower(PlacedStrategy(tuple(SPACE.random_placement(op, rng) for op in range(3))))


DATA_PARALLEL = LOWERING.lower(SPACE.initial())


def slow_phases(tasks):
    """Task by task, as the definition says."""
    before = [[] for _ in range(tasks.n_tasks)]
    for task, after in reference.edges_of(tasks):
        before[after].append(task)
    known = {}

    def phase(task):
        if task not in known:
            own = {TaskKind.BACKWARD: 1, TaskKind.UPDATE: 1}.get(tasks.kind[task], 0)
            ends = (TaskKind.UPDATE, TaskKind.BARRIER)
            if tasks.kind[task] == TaskKind.COLLECTIVE and all(
                tasks.kind[after] in ends for after in tasks.successors(task)
            ):
                own = 2
            known[task] = max([own, *(phase(other) for other in before[task])])
        return known[task]

    return [phase(task) for task in range(tasks.n_tasks)]


def scrambled(seed):
    """A random directed graph without cycles of tasks of all kinds; only its order matters."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, 30))
    edges = np.argwhere(np.triu(rng.random((count, count)) < 0.15, 1))
    place = rng.permutation(count)
    edges = place[edges] if len(edges) else np.zeros((0, 2), dtype=int)
    edges = edges[np.argsort(edges[:, 0], kind="stable")]
    kind = rng.integers(0, 6, count)
    reduces, moves = kind == TaskKind.COLLECTIVE, kind == TaskKind.TRANSFER
    return TaskGraph(
        kind=kind,
        device=np.where(reduces | moves, -1, 0),
        seconds=np.zeros(count),
        size=np.ones(count),
        src=np.where(moves, 0, -1),
        dst=np.where(moves, 1, -1),
        group=np.where(reduces, np.cumsum(reduces) - 1, -1),
        group_ptr=2 * np.arange(reduces.sum() + 1),
        group_members=np.tile([0, 1], reduces.sum()),
        succ_ptr=np.concatenate([[0], np.cumsum(np.bincount(edges[:, 0], minlength=count))]),
        succ=edges[:, 1],
        op=np.zeros(count),
        n_devices=2,
    )


@given(seeds)
@settings(max_examples=100)
def test_phases_are_as_defined(seed):
    tasks = scrambled(seed)
    assert task_phases(tasks).tolist() == slow_phases(tasks)


@given(seeds)
@settings(max_examples=20)
def test_phases_of_a_lowered_iteration(seed):
    tasks = drawn(seed)
    phase = task_phases(tasks)
    assert phase.tolist() == slow_phases(tasks)
    assert set(phase[tasks.kind == TaskKind.FORWARD]) == {0}
    assert set(phase[tasks.kind == TaskKind.BACKWARD]) == {1}
    assert set(phase[tasks.kind == TaskKind.COLLECTIVE]) <= {2}
    sent = np.flatnonzero(tasks.kind == TaskKind.TRANSFER)
    follows = [tasks.kind[tasks.successors(task)[0]] == TaskKind.BACKWARD for task in sent]
    assert phase[sent].tolist() == [int(late) for late in follows]


@given(seeds)
@settings(max_examples=50)
def test_an_excerpt_keeps_its_tasks_and_what_joins_them(seed):
    tasks = scrambled(seed)
    rng = np.random.default_rng(seed)
    rows = np.flatnonzero(rng.random(tasks.n_tasks) < 0.6)
    if not len(rows):
        return
    part = excerpt(tasks, rows)
    part.check()
    assert [part.label(i) for i in range(len(rows))] == [
        tasks.label(t).replace(f"task {t}", f"task {i}") for i, t in enumerate(rows)
    ]
    members = {int(task) for task in rows}
    assert [(rows[a], rows[b]) for a, b in reference.edges_of(part)] == [
        (a, b) for a, b in reference.edges_of(tasks) if a in members and b in members
    ]
    for i, task in enumerate(rows):
        if tasks.kind[task] == TaskKind.COLLECTIVE:
            assert part.members(i).tolist() == tasks.members(task).tolist()


@every
def test_equal_phases_are_a_fabric_that_stays(simulate):
    for seed in range(5):
        tasks = drawn(seed)
        for delay in (0.0, 0.5):
            assert simulate(
                tasks, phased(RINGS, RINGS, circulant(1, 1, rings=RINGS.rings), delay), CLUSTER
            ) == simulate(tasks, RINGS, CLUSTER)


@pytest.mark.by_day(2)
@every
@given(seed=seeds, delay=st.floats(0, 10), three=st.booleans())
@settings(max_examples=10)
def test_time_is_affine_in_the_delay(simulate, seed, delay, three):
    tasks = drawn(seed)
    fabric = phased(NEAR, FAR if three else NEAR, RINGS, delay)
    rebuilt = sum(segment.rebuilt for segment in segments(tasks, fabric, CLUSTER.device_host))
    at_once = simulate(tasks, phased(NEAR, FAR if three else NEAR, RINGS, 0.0), CLUSTER)
    late = simulate(tasks, fabric, CLUSTER)
    assert late.makespan == pytest.approx(at_once.makespan + rebuilt * delay, rel=1e-12)
    assert late.bounds.chain == pytest.approx(at_once.bounds.chain + rebuilt * delay, rel=1e-12)
    assert late.link_bytes.tolist() == at_once.link_bytes.tolist()
    assert simulate.makespan(tasks, fabric, CLUSTER) == late.makespan


@pytest.mark.by_day(2)
@every
@given(seed=seeds)
@settings(max_examples=10)
def test_a_phase_is_what_it_is_alone(simulate, seed):
    tasks = drawn(seed)
    fabric = phased(NEAR, FAR, RINGS, 1e-3)
    whole = simulate(tasks, fabric, CLUSTER)
    time = 0.0
    for segment in segments(tasks, fabric, CLUSTER.device_host):
        alone = simulate(excerpt(tasks, segment.tasks), segment.fabric, CLUSTER)
        time += 1e-3 * segment.rebuilt
        assert whole.start[segment.tasks] == pytest.approx(time + alone.start)
        assert whole.finish[segment.tasks].max() <= time + alone.makespan + 1e-12
        time += alone.makespan
    assert whole.makespan == pytest.approx(time)


@pytest.mark.by_day(2)
@every
@given(seed=seeds)
@settings(max_examples=10)
def test_order_barriers_and_bounds(simulate, seed):
    tasks = drawn(seed)
    fabric = phased(NEAR, FAR, RINGS, 1e-3)
    times = simulate(tasks, fabric, CLUSTER)
    for task, after in reference.edges_of(tasks):
        assert times.finish[task] <= times.start[after] + 1e-12
    stretches = segments(tasks, fabric, CLUSTER.device_host)
    for one, two in itertools.pairwise(stretches):
        assert times.finish[one.tasks].max() + 1e-3 * two.rebuilt <= times.start[two.tasks].min() + 1e-12
    assert times.makespan == pytest.approx(times.finish.max())
    assert times.bounds.best <= times.makespan * (1 + 1e-9)
    assert (times.link_busy >= times.link_bytes / fabric.links.link_bandwidth * (1 - 1e-9)).all()
    sent = tasks.size[tasks.kind == TaskKind.TRANSFER].sum()
    assert times.link_bytes.sum() >= sent


@pytest.mark.parametrize("name", ["coupled", "flexnet"])
@given(seed=seeds, share=st.floats(0, 2))
@settings(max_examples=20)
def test_a_time_to_beat_changes_no_time_below_it(name, seed, share):
    simulate = SIMULATORS[name]
    tasks, fabric = drawn(seed), phased(NEAR, NEAR, RINGS, 1e-3)
    full = simulate.makespan(tasks, fabric, CLUSTER)
    seconds = simulate.makespan(tasks, fabric, CLUSTER, share * full)
    assert seconds == full or (seconds == float("inf") and full >= share * full)
    if share <= 0.1:
        assert seconds == float("inf")


def test_what_is_left_of_the_time_to_beat_is_passed_on():
    tasks, fabric = drawn(3), phased(NEAR, FAR, RINGS, 1.0)
    given_times = []

    def makespan(part, fabric, cluster, beat):
        given_times.append(beat)
        return 10.0

    count = len(segments(tasks, fabric, CLUSTER.device_host))
    assert count == 3
    assert phased_makespan(makespan, tasks, fabric, CLUSTER, 100.0) == 33.0
    assert given_times == pytest.approx([97.0, 87.0, 77.0])
    assert phased_makespan(makespan, tasks, fabric, CLUSTER, 20.0) == float("inf")


def test_phases_that_send_nothing_take_the_next_wires():
    fabric = phased(NEAR, FAR, RINGS)
    (only,) = segments(DATA_PARALLEL, fabric, CLUSTER.device_host)
    assert only.fabric is RINGS
    assert not only.rebuilt
    assert len(only.tasks) == DATA_PARALLEL.n_tasks
    simulate = SIMULATORS["coupled"]
    assert simulate(DATA_PARALLEL, fabric, CLUSTER).makespan == simulate(DATA_PARALLEL, RINGS, CLUSTER).makespan


def test_one_host_needs_no_wires():
    tasks = DATA_PARALLEL
    alone = attrs.evolve(tasks, device=np.minimum(tasks.device, 0), group_members=np.zeros(len(tasks.group_members)))
    stretches = segments(alone, phased(NEAR, FAR, RINGS), CLUSTER.device_host)
    assert [segment.rebuilt for segment in stretches] == [False]


def test_other_routes_over_the_same_wires_cost_no_delay():
    plain = circulant(1, 1)
    tasks = drawn(3)
    stretches = segments(tasks, phased(plain, plain, RINGS), CLUSTER.device_host)
    assert [segment.rebuilt for segment in stretches] == [False, False]


def test_links_of_the_whole_are_those_of_all_phases():
    fabric = phased(NEAR, FAR, RINGS)
    links = fabric.links
    pairs = {(int(a), int(b)) for a, b in zip(links.link_src, links.link_dst, strict=True)}
    assert pairs == {(h, (h + s) % HOSTS) for h in range(HOSTS) for s in (1, 2, 3, 5, 6, 7)}
    doubled = links.link_bandwidth[(links.link_dst - links.link_src) % HOSTS == 1]
    assert set(doubled) == {2e9}
    assert fabric.name == links.name == "c"
    assert links.links is links


def test_bad_phases():
    with pytest.raises(TopoplanError, match="delay -1"):
        phased(NEAR, FAR, RINGS, -1.0)
    with pytest.raises(TopoplanError, match="delay inf"):
        phased(NEAR, FAR, RINGS, float("inf"))
    with pytest.raises(TopoplanError, match=r"a phase is ReconfigurableFabric \(must be a Fabric\)"):
        phased(NEAR, FAR, phased(NEAR, FAR, RINGS))
    with pytest.raises(TopoplanError, match="other nodes"):
        phased(NEAR, reference.ring(4), RINGS)
