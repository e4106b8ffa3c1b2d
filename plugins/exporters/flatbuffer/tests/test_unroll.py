"""Collectives written out as transfers: exactly what rings send, in the order that the task graph asks for."""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Collective, Fabric, Plan, TaskGraph, TaskKind, TopoplanError
from topoplan.model.sharding import PENDING_GRADIENT, REPLICATED, arguments, shard
from topoplan.model.spmd import SpmdProgram
from topoplan.testing import reference
from topoplan_engine.lowering import Lowering
from topoplan_engine.program_strategies import overlapped_strategy, program_strategy
from topoplan_engine.sharding.programs import reshards_of, why_invalid
from topoplan_engine.sharding.signatures import signatures
from topoplan_engine.simulation.messages import collective_rounds
from topoplan_exporter_flatbuffer import Flatbuffer
from topoplan_exporter_flatbuffer.network import receivers, shifts
from topoplan_exporter_flatbuffer.unroll import unroll
from topoplan_exporter_flatbuffer.wire import decode
from topoplan_samples.as_flows import as_flows
from topoplan_samples.long_tail import at_night

WRITE = Flatbuffer().write
read = Flatbuffer().read
COMPUTE, TRANSFER, ALLREDUCE, BARRIER = TaskKind.FORWARD, TaskKind.TRANSFER, TaskKind.COLLECTIVE, TaskKind.BARRIER


def graph_of(tasks, edges, groups, n_devices):
    """Make a task graph of (kind, columns) and of edges in any order."""
    empty = {"device": -1, "seconds": 0.0, "size": 0, "src": -1, "dst": -1, "group": -1, "op": -1}
    empty |= {"collective": -1}
    rows = [{**empty, **columns, "kind": int(kind)} for kind, columns in tasks]
    for row in rows:
        if row["kind"] == ALLREDUCE and row["collective"] < 0:
            row["collective"] = Collective.ALL_REDUCE
    successors = [[b for a, b in edges if a == t] for t in range(len(tasks))]
    return TaskGraph(
        **{name: [row[name] for row in rows] for name in (*empty, "kind")},
        group_ptr=np.cumsum([0, *map(len, groups)]),
        group_members=list(itertools.chain(*groups)),
        succ_ptr=np.cumsum([0, *map(len, successors)]),
        succ=list(itertools.chain(*successors)),
        n_devices=n_devices,
    )


def three(collective, **columns):
    """Three devices that compute, a collective of them all, and computing after it."""
    return graph_of(
        [
            *((COMPUTE, {"device": d, "seconds": 1e-3, "op": 0}) for d in range(3)),
            (ALLREDUCE, {"size": 300_000, "group": 0, "collective": collective, "op": 1, **columns}),
            *((COMPUTE, {"device": d, "seconds": 1e-3, "op": 1}) for d in range(3)),
        ],
        [*((d, 3) for d in range(3)), *((3, 4 + d) for d in range(3))],
        [[2, 0, 1]],
        3,
    )


def star(n, gbps=8.0):
    links = [(a, b) for host in range(n) for a, b in ((host, n), (n, host))]
    return Fabric.from_links(name="star", n_hosts=n, n_switches=1, links=links, bandwidth=gbps / 8e-9, latency=1e-6)


def circle(n, jumps, rings=None, gbps=8.0):
    """Return a fabric of hosts that have links to those so many hosts ahead, and behind."""
    links = sorted({link for h in range(n) for j in jumps for link in ((h, (h + j) % n), ((h + j) % n, h))})
    return Fabric.from_links(
        name="circle", n_hosts=n, links=links, bandwidth=gbps / 8e-9, latency=1e-6, rings=rings or {}
    )


def plan_of(taskgraph, fabric, **more):
    cluster = Cluster.uniform(n_hosts=fabric.n_hosts, interface_bandwidth=float(fabric.link_bandwidth[0]))
    return Plan(cluster=cluster, fabric=fabric, taskgraph=taskgraph, **more)


def simulated(plan, level):
    return as_flows(level=level)(plan.taskgraph, plan.fabric, plan.cluster)


def whole(graph):
    return graph.kind == ALLREDUCE


@pytest.mark.parametrize(
    ("kind", "rounds", "share"), [(Collective.ALL_REDUCE, 4, 100_000), (Collective.REDUCE_SCATTER, 2, 200_000)]
)
def test_a_ring_of_three(kind, rounds, share):
    found = unroll(three(kind), whole(three(kind)), [(1,)], 3)
    made = found.taskgraph
    close = 4 + 4 * rounds - 1
    a_round, waits = [TRANSFER] * 3 + [BARRIER], [-1] * 3 + [3]  # the last round ends with the collective
    assert made.kind.tolist() == [0, 0, 0, BARRIER, *a_round * rounds, 0, 0, 0]
    assert made.device.tolist() == [0, 1, 2, 3, *waits * rounds, 0, 1, 2]
    assert (found.joins, made.n_devices, set(made.collective.tolist())) == (1, 4, {-1})
    assert made.src.tolist() == [-1] * 4 + [2, 0, 1, -1] * rounds + [-1] * 3
    assert made.dst.tolist() == [-1] * 4 + [0, 1, 2, -1] * rounds + [-1] * 3
    assert made.size.tolist() == [0] * 4 + [share, share, share, 0] * rounds + [0] * 3
    assert found.origin.tolist() == [0, 1, 2, *[3] * (close - 2), 4, 5, 6]
    assert made.op.tolist() == [0, 0, 0, *[1] * (close + 1)]
    flows = made.kind == TRANSFER
    assert found.part[flows].tolist() == [1 / rounds] * 3 * rounds
    assert found.ring.tolist() == np.where(flows, 0, -1).tolist()
    expected = [[3], [3], [3], [4, 5, 6]]
    for join in range(7, close, 4):
        expected += [[join]] * 3 + [[join + 1, join + 2, join + 3]]
    expected += [[close]] * 3 + [[close + 1, close + 2, close + 3], [], [], []]
    assert [made.successors(t).tolist() for t in range(made.n_tasks)] == expected


def test_several_rings_share_the_bytes():
    graph = three(Collective.ALL_REDUCE)
    made = unroll(graph, whole(graph), [(1, 2, 1)], 3).taskgraph
    flows = made.kind == TRANSFER
    assert made.size[flows].tolist() == [33_334] * 36
    assert made.src[flows][:9].tolist() == [2, 0, 1] * 3
    assert made.dst[flows][:9].tolist() == [0, 1, 2, 1, 2, 0, 0, 1, 2]
    # Each waits for its own transfers only.
    joins = np.flatnonzero(made.kind == BARRIER)
    assert joins.tolist() == [3, 13, 14, 15, 25, 26, 27, 37, 38, 39, 49]
    for place, join in enumerate(joins[1:4].tolist()):
        before = [4 + 3 * place + i for i in range(3)]
        assert [made.successors(t).tolist() for t in before] == [[join]] * 3
        assert made.successors(join).tolist() == [t + 12 for t in before]


def test_time_inside_hosts_passes_before_the_first_byte():
    graph = three(Collective.ALL_REDUCE, seconds=0.5)
    found = unroll(graph, whole(graph), [(1,)], 3)
    assert found.joins == 2  # one that takes time must not hold up those that take none
    joins = np.flatnonzero(found.taskgraph.kind == BARRIER)
    assert found.taskgraph.device[joins].tolist() == [4, 3, 3, 3, 3]
    assert found.taskgraph.seconds[joins].tolist() == [0.5, 0.0, 0.0, 0.0, 0.0]
    assert not found.taskgraph.seconds[found.taskgraph.kind == TRANSFER].any()
    plan = plan_of(graph, star(3))
    again = read(WRITE(plan), "x")
    assert simulated(again, "stepped").makespan == pytest.approx(simulated(plan, "stepped").makespan, rel=1e-7)


def test_small_ones_take_one_round_and_lonely_ones_none():
    small = three(Collective.ALL_REDUCE, size=20_000)
    made = unroll(small, whole(small), [(1,)], 3).taskgraph
    assert made.size[made.kind == TRANSFER].tolist() == [20_000 * 4 // 9] * 3
    lonely = attrs.evolve(three(Collective.ALL_REDUCE, seconds=0.5), group_ptr=[0, 1], group_members=[2])
    found = unroll(lonely, whole(lonely), [(1,)], 3)
    assert found.taskgraph.kind[3] == BARRIER
    assert found.taskgraph.seconds[3] == 0.0  # as in all simulators
    assert np.array_equal(found.taskgraph.succ, lonely.succ)


@st.composite
def taskgraphs(draw, chained=False):
    """A few tasks of every kind, in creation order; groups of 1 to 4 of 5 devices."""
    devices = range(5)
    groups = draw(st.lists(st.permutations(devices).map(list), min_size=1, max_size=3))
    groups = [group[: draw(st.integers(1, 4))] for group in groups]
    tasks, edges = [], []
    for t in range(draw(st.integers(2, 14))):
        kind = draw(st.sampled_from([COMPUTE, TRANSFER, ALLREDUCE, ALLREDUCE]))
        if kind == COMPUTE:
            columns = {"device": draw(st.sampled_from(devices)), "seconds": 1e-6 * draw(st.integers(0, 200))}
        elif kind == TRANSFER:
            src, dst = draw(st.permutations(devices))[:2]
            columns = {"src": src, "dst": dst, "size": draw(st.integers(0, 10**5))}
        else:
            size = draw(st.sampled_from([0, 1, 10_000, 40_000, 60_000, 1_000_003]))
            group = draw(st.integers(0, len(groups) - 1))
            columns = {"size": size, "group": group, "collective": draw(st.sampled_from(list(Collective)[:3]))}
        tasks.append((kind, columns))
        before = draw(st.sets(st.integers(0, t - 1), max_size=3)) if t else set()
        edges += [(a, t) for a in sorted(before | ({t - 1} if chained and t else set()))]
    return graph_of(tasks, edges, groups, 5)


def reached(graph):
    """Sets, as bits, of all that follows each task; tasks must stand in an order that edges keep to."""
    sets = [0] * graph.n_tasks
    for task in reversed(range(graph.n_tasks)):
        for after in graph.successors(task).tolist():
            assert after > task
            sets[task] |= sets[after] | 1 << after
    return sets


def sent(graph):
    flows = graph.kind == TRANSFER
    ends = zip(graph.src[flows].tolist(), graph.dst[flows].tolist(), strict=True)
    total = Counter()
    for pair, size in zip(ends, graph.size[flows].tolist(), strict=True):
        total[pair] += size
    return total


@settings(max_examples=150, deadline=None)
@given(taskgraphs(), st.randoms(use_true_random=False))
def test_what_follows_what_and_what_is_sent_stay_the_same(graph, random):
    ahead = [(1,) if random.random() < 0.5 else (1, len(group) - 1 or 1) for group in split(graph)]
    chosen = whole(graph) & np.array([random.random() < 0.8 for _ in range(graph.n_tasks)])
    found = unroll(graph, chosen, ahead, 7)
    made = found.taskgraph
    made.check()
    before, after = reached(graph), reached(made)
    kept = np.flatnonzero(~chosen).tolist()
    new = {task: int(np.flatnonzero(found.origin == task)[0]) for task in kept}
    for a in kept:
        assert [before[a] >> b & 1 for b in kept] == [after[new[a]] >> new[b] & 1 for b in kept]
    for column in ("kind", "device", "seconds", "size", "src", "dst", "group"):
        assert np.array_equal(getattr(graph, column)[kept], getattr(made, column)[[new[task] for task in kept]])
    edges = list(
        zip(np.repeat(np.arange(made.n_tasks), np.diff(made.succ_ptr)).tolist(), made.succ.tolist(), strict=True)
    )
    assert len(set(edges)) == len(edges)
    # The bytes of rings, member by member.
    wanted = sent(graph)
    for task in np.flatnonzero(chosen).tolist():
        members = graph.members(task).tolist()
        if (n := len(members)) > 1:
            rounds, share = collective_rounds(int(graph.size[task]), n, int(graph.collective[task]))
            rings = ahead[graph.group[task]]
            for i, member in enumerate(members):
                for shift in rings:
                    wanted[member, members[(i + shift) % n]] += rounds * int(-(-share // len(rings)))
    assert sent(made) == wanted
    again = unroll(graph, chosen, ahead, 7)
    assert again.taskgraph == made
    if chosen.any():
        assert (made.device[made.kind == BARRIER] >= 7).all()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(taskgraphs(chained=True))
def test_files_of_tasks_one_after_the_other_take_as_long(graph):
    """Where they overlap, flows of a ring may run ahead of others in the file, and simulators let them wait."""
    plan = plan_of(graph, star(5))
    data = WRITE(plan)
    again = read(data, "x")
    assert WRITE(again) == data
    for level in ("coupled", "stepped"):
        assert simulated(again, level).makespan == pytest.approx(simulated(plan, level).makespan, rel=1e-6)


def split(graph):
    return np.split(graph.group_members, graph.group_ptr[1:-1])


# ── Plans ───────────────────────────────────────────────────────────────────────────────────────────────


def program_plan(fabric, mesh, seed, copies):
    """Return a plan of a random SPMD program that needs collectives, with its timeline."""
    random = np.random.default_rng(seed)
    graph = reference.graph(("a", "b", "c", "d", "e"))
    made = {(v, into) for _, _, v, into in graph.edges.tolist()}
    n = int(np.prod(mesh))

    def pick(choices):
        return choices[random.integers(len(choices))]

    while True:
        rules = tuple(tuple(pick(list(signatures(op))) for _ in mesh) for op in graph.operators)
        stored = tuple(
            tuple(
                ()
                if (index, k) in made
                else tuple(
                    pick([REPLICATED] if k < len(op.inputs) else [PENDING_GRADIENT, shard(0), shard(1)]) for _ in mesh
                )
                for k in range(len(arguments(op)))
            )
            for index, op in enumerate(graph.operators)
        )
        program = SpmdProgram(mesh=mesh, rules=rules, stored=stored)
        strategy = program_strategy(program, graph)
        if why_invalid(strategy, graph, n):
            continue
        begins = {move.users[0] for move in reshards_of(program, graph) if move.output >= 0}
        stage = np.cumsum([op in begins and op > 0 for op in range(len(graph.operators))])
        if copies > 1:
            strategy = overlapped_strategy(program, graph, stage, copies)
        if why_invalid(strategy, graph, n):
            continue
        plan = plan_of(None, fabric, graph=graph, strategy=strategy)
        taskgraph = Lowering(graph, plan.cluster, reference.Costs()).lower(strategy)
        plan = attrs.evolve(plan, taskgraph=taskgraph)
        return attrs.evolve(plan, timeline=simulated(plan, "coupled"))


FABRICS = {
    "star": lambda n: star(n),
    "full": lambda n: circle(n, range(1, n // 2 + 1)),
    "rings": lambda n: circle(n, (1, 3), {n: ((1,), (3,))}),
}


@pytest.mark.by_day(4)
@pytest.mark.parametrize("copies", at_night([1, 2], 2))
@pytest.mark.parametrize("mesh", [(4,), (2, 2), (8,), (2, 4), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("fabric", FABRICS)
def test_files_of_programs_take_as_long_as_their_plans(fabric, mesh, copies):
    n = int(np.prod(mesh))
    plan = program_plan(FABRICS[fabric](n), mesh, seed=7 * n + copies, copies=copies)
    data = WRITE(plan)
    again = read(data, "x")
    assert WRITE(again) == data
    assert again.taskgraph.n_tasks > plan.taskgraph.n_tasks
    for level in ("coupled", "stepped"):
        assert simulated(again, level).makespan == pytest.approx(simulated(plan, level).makespan, rel=1e-6)


def test_transfers_get_their_part_of_a_collective():
    plan = plan_of(three(Collective.ALL_GATHER), star(3))
    plan = attrs.evolve(plan, timeline=simulated(plan, "coupled"))
    taken = (plan.timeline.finish - plan.timeline.start)[3]
    tasks = decode(WRITE(plan), "x")["tasks"].values
    assert tasks["runtime"][tasks["type"] == 5].tolist() == pytest.approx([taken * 1e3 / 2] * 6)
    assert tasks["runtime"][tasks["type"] == 4].tolist() == [0.0] * 3


def test_all_reduces_that_nothing_follows_stay():
    both = graph_of(
        [
            (ALLREDUCE, {"size": 10**6, "group": 0, "collective": Collective.ALL_GATHER}),
            (ALLREDUCE, {"size": 10**6, "group": 0}),
            (ALLREDUCE, {"size": 10**6, "group": 1}),
        ],
        [(0, 1)],
        [[0, 1, 2, 3], [1, 3]],
        4,
    )

    def types(fabric):
        return decode(WRITE(plan_of(both, fabric)), "x")["tasks"].values["type"].tolist()

    rounds = [4, *[5] * 4] * 3 + [4]
    assert types(star(4)) == [*rounds, 6, 6]
    # With a ring table FlexNetPacket would run the smaller one on hosts 0 and 1.
    assert types(circle(4, (1, 2), {4: ((1,),), 2: ((2,),)})) == [*rounds, 6, *[4, 5, 5] * 2, 4]


def test_rings_of_the_fabric_are_those_that_simulators_run():
    graph = graph_of([(COMPUTE, {"device": 0})], [], [[0, 1, 2, 3], [0, 2], [1, 3], [0, 1], [3, 2, 1, 0], [2]], 4)
    fabric = circle(4, (1, 2), {4: ((1,), (1, 2), (3, 0, 2)), 2: ((2,), (1, 1))})
    assert shifts(fabric, graph) == [(1, 3, 1), (1, 1), (1, 1), (1,), (1,), (1,)]
    assert shifts(circle(4, (1, 2), {4: ((1,), (2,))}), graph)[0] == (1,)  # a ring that does not visit everybody


def test_cycles_are_written_out_as_simulators_run_them():
    one = graph_of([(ALLREDUCE, {"size": 10**6, "group": 0})], [], [[0, 1, 2, 3]], 4)
    jumps, cycles = circle(4, (1, 2), {4: ((1,), (3,))}), circle(4, (1, 2))
    cycles = attrs.evolve(cycles, cycles=((0, 1, 2, 3), (3, 2, 1, 0)))
    assert shifts(cycles, one) == [(1, 1)]
    made = [
        unroll(one, whole(one), shifts(fabric, one), 4, receivers(fabric, one)).taskgraph for fabric in (jumps, cycles)
    ]
    assert made[0] == made[1]
    # A path that no jumps can say, in a group that is listed in another order.
    odd = attrs.evolve(circle(4, (1, 2)), cycles=((0, 2, 1, 3),))
    listed = graph_of([(ALLREDUCE, {"size": 10**7, "group": 0})], [], [[1, 0, 3, 2]], 4)
    plan = plan_of(listed, odd)
    again = read(WRITE(plan), "x")
    flows = again.taskgraph.kind == TRANSFER
    pairs = set(zip(again.taskgraph.src[flows].tolist(), again.taskgraph.dst[flows].tolist(), strict=True))
    assert pairs == {(0, 2), (2, 1), (1, 3), (3, 0)}
    assert simulated(again, "coupled").makespan == pytest.approx(simulated(plan, "coupled").makespan, rel=0.02)


def test_rings_that_are_found_along_links_are_written_out():
    one = graph_of([(ALLREDUCE, {"size": 10**7, "group": 0})], [], [[0, 2, 1, 3]], 4)
    fabric = attrs.evolve(circle(4, (1, 3)), rings_along_links=True)
    plan = plan_of(one, fabric)
    again = read(WRITE(plan), "x")
    flows = again.taskgraph.kind == TRANSFER
    pairs = set(zip(again.taskgraph.src[flows].tolist(), again.taskgraph.dst[flows].tolist(), strict=True))
    assert pairs == {(a, (a + step) % 4) for a in range(4) for step in (1, 3)}
    assert simulated(again, "coupled").makespan == pytest.approx(simulated(plan, "coupled").makespan, rel=0.02)


def lowered(plan):
    """Return a plan with the tasks that the engine makes of its strategy."""
    tasks = Lowering(plan.graph, plan.cluster, reference.Costs()).lower(plan.strategy)
    return attrs.evolve(plan, taskgraph=tasks, timeline=reference.timeline(tasks, plan.fabric.n_links))


def test_plans_without_programs_are_written_as_ever():
    for plan, known in ((reference.plan(), "c98468b70602bc0c"), (reference.pipelined(), "0efcafd37899d02c")):
        plan = lowered(plan)
        assert hashlib.sha256(WRITE(plan)).hexdigest()[:16] == known


# ── Joins run on a device that is no GPU ────────────────────────────────────────────────────────────────


def test_joins_run_on_a_cpu():
    columns = decode(WRITE(plan_of(three(Collective.ALL_REDUCE), star(3))), "x")
    devices, tasks = columns["devices"].values, columns["tasks"].values
    assert devices["type"].tolist() == [0, 0, 0, 14, 14, 14, 1]
    assert devices["nodeid"][-1] == 2
    joins = tasks["type"] == 4
    assert set(tasks["deviceid"][joins].tolist()) == {int(devices["deviceid"][-1])}
    assert len(set(devices["deviceid"].tolist())) == 7


def test_a_file_with_joins_can_be_changed_and_written():
    found = read(WRITE(plan_of(three(Collective.ALL_REDUCE), star(3))), "x")
    assert (found.cluster.device_preset[3], found.taskgraph.n_devices) == ("CPU", 4)
    slower = attrs.evolve(found.taskgraph, seconds=found.taskgraph.seconds * 2)
    again = read(WRITE(attrs.evolve(found, taskgraph=slower, fabric=star(3, 16.0))), "y")
    assert again.taskgraph == slower
    assert again.cluster.device_preset == found.cluster.device_preset


def test_messages_of_a_cpu_are_refused():
    found = read(WRITE(plan_of(three(Collective.ALL_REDUCE), star(3))), "x")
    dst = np.where(found.taskgraph.kind == TRANSFER, 3, -1)
    with pytest.raises(TopoplanError, match="device 3 is no GPU"):
        WRITE(attrs.evolve(found, taskgraph=attrs.evolve(found.taskgraph, dst=dst)))
