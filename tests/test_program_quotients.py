"""One device of an SPMD program stands for all, or one host: iterations take as long as whole ones, to the last bit.

The slow reference is the whole task graph in the same simulator (`topoplan_engine.lowering.spmd_tasks`).  Programs are
those that the searcher proposes, and random ones: any collectives along any axes, in any order, with any dependencies.
"""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import attrs
import numpy as np
import pytest

from topoplan import Candidate, Cluster, Host, State, TopologyContext, Trial
from topoplan.model.taskgraph import Collective, TaskKind
from topoplan_engine import ClusterOptions, problem_on
from topoplan_engine.experiment import build_cluster
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.spmd_host import host_tasks
from topoplan_engine.lowering.spmd_quotient import _FirstDevice, block
from topoplan_engine.lowering.spmd_tasks import _AllDevices
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.sharding.mesh import MeshStep
from topoplan_engine.sharding.programs import Reshard
from topoplan_engine.sharding.resharding import CollectiveStep
from topoplan_engine.simulation.breakdown import time_breakdown
from topoplan_estimator_hidup import Hidup
from topoplan_frontend_hidup import BertSgmoe, VitSwitch
from topoplan_samples.as_flows import as_flows
from topoplan_samples.long_tail import at_night
from topoplan_searcher_spmd import Spmd
from topoplan_searcher_spmd.search import SpmdSearch
from topoplan_simulator_fluid import Fluid
from topoplan_topology_bigswitch import BigSwitch

SMALL = {"layers": 2, "width": 64, "hidden": 128, "heads": 4}
#: Hosts, devices of each, Gbps: one host, one device each, and blocks that axes divide in every way.
CLUSTERS = [(1, 8, 100), (8, 1, 10), (2, 4, 10), (4, 4, 100), (3, 4, 25), (2, 6, 10)]


def problem_of(frontend, hosts, each, gbps, **options):
    graph = frontend(world_size=hosts * each, **options).build(None)
    cluster = Cluster.uniform(
        n_hosts=hosts,
        devices_per_host=each,
        device_memory=32e9,
        inside_bandwidth=130e9,
        interfaces=1,
        interface_bandwidth=gbps * 1e9 / 8,
        latency=1e-5,
    )
    return problem_on(graph, cluster, Hidup().build(graph, cluster), BigSwitch())


def proposals(problem, fabric, shortlist=1):
    """Yield the programs that the searcher proposes on some meshes, with and without overlapped micro-batches."""
    search = SpmdSearch(Spmd(shortlist=shortlist), problem)
    state = State(problem.space.initial(), fabric)
    search.adopt(Trial(state=state, cost=np.inf, demand=lambda: None))
    seconds = 1.0
    while candidates := search.ask():
        for candidate in candidates:
            if candidate.state().strategy.program is not None:
                yield candidate.state().strategy
        search.tell([Trial(state=c.state(), cost=(seconds := seconds + 1), demand=lambda: None) for c in candidates])


def quotient_of(lowering, strategy):
    return lowering.program_quotient(strategy, as_flows().in_turn_bytes)


def kept_apart(problem, fabric, strategy):
    """Compare both lowerings of a program; return how many devices of a host differ."""
    simulate, lowering = (
        as_flows(),
        Lowering(problem.graph, problem.cluster, problem.costs),
    )
    cluster = problem.cluster
    quotient, whole = quotient_of(lowering, strategy), lowering.lower(strategy)
    assert quotient.n_tasks == whole.n_tasks
    assert simulate.program_makespan(quotient, fabric, cluster) == simulate.makespan(whole, fabric, cluster)
    return math.prod(quotient.apart)


@pytest.mark.parametrize(
    ("frontend", "hosts", "each", "gbps"),
    [
        (BertSgmoe, *CLUSTERS[2]),
        *(pytest.param(f, *c, marks=pytest.mark.slow) for c in CLUSTERS for f in (BertSgmoe, VitSwitch)),
    ],
)
def test_one_device_takes_as_long_as_all(frontend, hosts, each, gbps):
    words = {"positions": 8, "words": 60} if frontend is BertSgmoe else {}
    problem = problem_of(frontend, hosts, each, gbps, **SMALL, **words)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    assert 1 in [kept_apart(problem, fabric, strategy) for strategy in proposals(problem, fabric)]


@pytest.mark.slow
@pytest.mark.parametrize("gbps", [10, 400])
def test_messages_of_more_than_a_window(gbps):
    problem = problem_of(BertSgmoe, 4, 4, gbps, layers=2)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    strategies = list(proposals(problem, fabric, shortlist=100))
    assert 1 in [kept_apart(problem, fabric, strategy) for strategy in strategies]
    assert len({strategy.program.mesh for strategy in strategies}) >= 4


#: Of a random collective: all-to-alls are what groups wait for.
KINDS = [Collective.ALL_TO_ALL] * 4 + [Collective.ALL_REDUCE, Collective.ALL_GATHER, Collective.REDUCE_SCATTER]


def write_random(writer, mesh, seed):
    """Tell a writer to add a random program; return how many operators it has."""
    rng = np.random.default_rng(seed)
    axes = [some for count in range(1, len(mesh) + 1) for some in itertools.combinations(range(len(mesh)), count)]
    seconds, done = rng.choice([1e-6, 5e-5, 1e-4, 1e-3], 3), []
    for op in range(rng.integers(3, 30)):
        before = [done[k] for k in sorted(set(rng.integers(0, len(done), rng.integers(0, 3)).tolist()))] if done else []
        if rng.random() < 0.45:
            each = np.full(math.prod(mesh), rng.choice(seconds) * (1 if rng.random() < 0.5 else rng.random()))
            done.append(writer.compute(TaskKind.FORWARD, op, 0, each, before))
            continue
        drawn = [(KINDS[rng.integers(len(KINDS))], axes[rng.integers(len(axes))]) for _ in range(rng.integers(1, 3))]
        steps = [MeshStep(CollectiveStep(kind), some, 1.0) for kind, some in drawn]
        nbytes = int(10 ** rng.uniform(1, 7.5)) if rng.random() < 0.7 else 2 ** int(rng.integers(4, 24))
        done.append(writer.exchange(Reshard(0, 0, -1, False, nbytes, (op,), (), ()), steps, 0, before))
    return op + 1


def random_cluster(rng):
    """Return a mesh and a cluster of up to 96 devices whose hosts are blocks of it."""
    while True:
        mesh = tuple(rng.choice([2, 2, 3, 4, 4, 6, 8], rng.integers(1, 4)).tolist())
        hosts = int(rng.integers(1, 97))
        if math.prod(mesh) > 96 or math.prod(mesh) % hosts:
            continue
        cluster = Cluster.uniform(
            n_hosts=hosts,
            devices_per_host=math.prod(mesh) // hosts,
            inside_bandwidth=float(rng.choice([130e9, 20e9])),
            interfaces=1,
            interface_bandwidth=float(rng.choice([1, 10, 100, 1000])) * 1e9 / 8,
            latency=float(rng.choice([0, 1e-6, 1e-5, 1e-3])),
        )
        if block(mesh, cluster) is not None:
            return mesh, cluster


def random_iteration(seed, transport="flexnetpacket"):
    """Return the quotient of a random program, and the timelines of that and of the whole task graph."""
    mesh, cluster = random_cluster(np.random.default_rng((seed, 1)))
    fabric = BigSwitch().build(TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0)))
    program = SimpleNamespace(mesh=mesh, n_devices=math.prod(mesh))
    simulate = as_flows() if transport == "flexnetpacket" else Fluid(transport=transport).build()
    first, every = _FirstDevice(program, 1, block(mesh, cluster), simulate.in_turn_bytes), _AllDevices(program, 1)
    names = tuple(f"operator {op}" for op in range(write_random(first, mesh, seed)))
    write_random(every, mesh, seed)
    quotient, whole = first.quotient(names), every.taskgraph(names)
    assert quotient.n_tasks == whole.n_tasks
    return quotient, simulate.program_timeline(quotient, fabric, cluster, None), simulate(whole, fabric, cluster)


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 2000), marks=pytest.mark.slow)])
def test_random_programs_take_as_long_as_all_their_tasks_in_flexnetpacket(monkeypatch, seeds):
    monkeypatch.setattr("topoplan_simulator_fluid.programs._QUEUE", np.inf)
    iterations = [random_iteration(seed) for seed in seeds]
    for seed, (_, one, whole) in zip(seeds, iterations, strict=True):
        assert one.makespan == whole.makespan, seed
        np.testing.assert_allclose(one.link_bytes, whole.link_bytes, rtol=1e-12)
        assert attrs.asdict(one.bounds) == pytest.approx(attrs.asdict(whole.bounds), rel=1e-12)
    devices = np.array([math.prod(quotient.apart) for quotient, _, _ in iterations])
    assert np.mean(devices > 1) > 0.2
    assert np.mean(devices == 1) > 0.2


@pytest.mark.parametrize("seeds", at_night([range(20), range(20, 2000)], range(20)))
def test_random_programs_take_as_long_as_all_their_tasks(seeds):
    """On the wire no messages wait for each other: one device stands for all, but for rounding."""
    for seed in seeds:
        quotient, one, whole = random_iteration(seed, "wire")
        assert set(quotient.apart) <= {1}
        assert one.makespan == pytest.approx(whole.makespan, rel=1e-12), seed
        np.testing.assert_allclose(one.link_bytes, whole.link_bytes, rtol=1e-12)


def test_tasks_of_a_host_are_joined_as_those_of_all():
    quotient = next(
        q for q, _, _ in map(random_iteration, itertools.count()) if q.apart[0] == 1 < min(q.apart[1:], default=1)
    )
    host, one = host_tasks(quotient), quotient.taskgraph
    assert len(host.task) == host.succ_ptr.size - 1 > one.n_tasks
    assert np.array_equal(host.task[host.first], np.arange(one.n_tasks))
    edges = set(zip(*(ends.tolist() for ends in one.edges()), strict=True))
    tails = np.repeat(np.arange(len(host.task)), np.diff(host.succ_ptr))
    assert {(a, b) for a, b in zip(host.task[tails].tolist(), host.task[host.succ].tolist(), strict=True)} == edges
    devices = host.device[np.isin(host.task, np.flatnonzero(one.device == 0))]
    assert set(devices.tolist()) == set(range(math.prod(quotient.apart)))


@pytest.mark.parametrize(
    ("mesh", "hosts", "each", "inside"),
    [
        ((16,), 4, 4, (4,)),
        ((4, 4), 4, 4, (1, 4)),
        ((2, 8), 4, 4, (1, 4)),
        ((8, 2), 4, 4, (2, 2)),
        ((2, 2, 4), 1, 16, (2, 2, 4)),
        ((4, 6), 2, 12, (2, 6)),
        ((6, 4), 2, 12, (3, 4)),
        ((4, 6), 4, 6, (1, 6)),
        ((6, 4), 4, 6, None),  # a host has a row of four and half of the next one
        ((3, 8), 4, 6, None),
        ((16, 1), 4, 4, None),
    ],
)
def test_a_host_is_a_block_of_the_mesh_or_not(mesh, hosts, each, inside):
    cluster = Cluster.uniform(n_hosts=hosts, devices_per_host=each)
    assert block(mesh, cluster) == inside


def test_groups_that_wait_for_each_other_are_priced_by_one_host(monkeypatch):
    problem = problem_of(BertSgmoe, 4, 4, 100, **SMALL, positions=8, words=60)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    simulate, lowering = (
        as_flows(),
        Lowering(problem.graph, problem.cluster, problem.costs),
    )
    programs = ((s, quotient_of(lowering, s)) for s in proposals(problem, fabric, shortlist=4))
    strategy = next(s for s, q in programs if max(q.apart) > 1)
    expected = simulate.makespan(lowering.lower(strategy), fabric, problem.cluster)
    without_queues = lowering.program_quotient(strategy, 0)
    assert max(without_queues.apart) == 1
    assert simulate.program_makespan(without_queues, fabric, problem.cluster) != expected
    evaluator = Evaluator(problem, simulate, "limit")
    monkeypatch.setattr(evaluator, "_lower", None)
    assert evaluator.price(Candidate(base=State(strategy, fabric))).cost == expected


def test_devices_that_differ_are_lowered_all():
    problem = problem_of(BertSgmoe, 2, 4, 10, **SMALL, positions=8, words=60)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    strategy = next(s for s in proposals(problem, fabric) if len(s.program.mesh) == 1)
    assert quotient_of(Lowering(problem.graph, problem.cluster, problem.costs), strategy) is not None
    slower = attrs.evolve(problem.cluster, device_speed=[1.0] * 7 + [0.5])
    costs = Hidup().build(problem.graph, slower)
    assert quotient_of(Lowering(problem.graph, slower, costs), strategy) is None
    uneven = attrs.evolve(problem.cluster, device_host=[0, 0, 0, 1, 1, 1, 1, 1])
    assert quotient_of(Lowering(problem.graph, uneven, problem.costs), strategy) is None


@pytest.mark.parametrize(
    ("topology", "options", "holds"),
    [
        ("bigswitch", {}, True),
        ("bigswitch", {"level": "stepped"}, False),
        ("bigswitch", {"transport": "flexnetpacket"}, False),
        ("bigswitch", {"gradient_sync": "barrier"}, False),
        ("bigswitch", {"collective": "parameter-server"}, False),
        ("fattree", {}, False),
        ("fully-connected", {}, False),
    ],
)
def test_only_where_all_links_of_a_kind_carry_the_same(topology, options, holds):
    cluster = build_cluster(ClusterOptions(servers=4, gpus_per_server=2, degree=4))
    context = TopologyContext(cluster=cluster, demand=None, rng=np.random.default_rng(0))
    fabric = Host.discover().make("topology", topology).build(context)
    assert Fluid(**options).build().has_program_quotient(fabric, cluster) == holds


def test_a_search_prices_programs_by_one_device(monkeypatch):
    problem = problem_of(BertSgmoe, 2, 4, 10, **SMALL, positions=8, words=60)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    strategy = next(proposals(problem, fabric))
    evaluator = Evaluator(problem, as_flows(), "limit")
    whole = []
    monkeypatch.setattr(evaluator, "_lower", lambda strategy: whole.append(strategy))
    trial = evaluator.price(Candidate(base=State(strategy, fabric)))
    assert 0 < trial.cost < np.inf
    assert not evaluator.draws(trial.state)
    assert not whole
    assert np.isinf(evaluator._seconds(trial.state, trial.cost, 0.0))


def test_tasks_of_the_first_device_are_those_of_the_whole():
    problem = problem_of(BertSgmoe, 2, 4, 10, **SMALL, positions=8, words=60)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    for strategy in proposals(problem, fabric):
        one, whole = quotient_of(lowering, strategy).taskgraph, lowering.lower(strategy)
        first, mine = np.flatnonzero(whole.device == 0), np.flatnonzero(one.device == 0)
        for column in ("kind", "seconds", "op"):
            assert np.array_equal(getattr(whole, column)[first], getattr(one, column)[mine])
        collective = np.flatnonzero(one.kind == TaskKind.COLLECTIVE)
        with_first = [t for t in np.flatnonzero(whole.kind == TaskKind.COLLECTIVE) if 0 in whole.members(t)]
        assert whole.size[with_first].tolist() == one.size[collective].tolist()
        assert [whole.members(t).tolist() for t in with_first] == [one.members(t).tolist() for t in collective]


def test_a_plan_says_the_same_before_and_after_its_tasks_are_made():
    problem = problem_of(BertSgmoe, 2, 4, 10, **SMALL, positions=8, words=60)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    strategy = next(s for s in proposals(problem, fabric) if not s.whole_batch)
    simulate = as_flows()
    plan = Evaluator(problem, simulate, "limit").plan(State(strategy, fabric), {})
    breakdown = time_breakdown(plan.taskgraph, plan.timeline)
    whole = Lowering(problem.graph, problem.cluster, problem.costs).lower(strategy)
    timeline = simulate(whole, fabric, problem.cluster)
    assert plan.taskgraph.n_tasks == whole.n_tasks
    assert plan.timeline.makespan == timeline.makespan
    assert attrs.asdict(plan.timeline.bounds) == pytest.approx(attrs.asdict(timeline.bounds), rel=1e-12)
    for column in ("device_busy", "link_bytes", "link_busy"):
        np.testing.assert_allclose(getattr(plan.timeline, column), getattr(timeline, column), rtol=1e-12)
    expected = time_breakdown(whole, timeline)
    assert attrs.asdict(breakdown) == pytest.approx(attrs.asdict(expected), rel=1e-9, abs=1e-15)
    assert plan.taskgraph == whole
    assert whole == plan.taskgraph
    assert np.array_equal(plan.timeline.start, timeline.start)
    assert np.array_equal(plan.timeline.finish, timeline.finish)
    assert attrs.evolve(plan.taskgraph, op_names=()).n_tasks == whole.n_tasks


def test_long_queues_are_simulated_once(monkeypatch):
    problem = problem_of(BertSgmoe, 4, 4, 100, **SMALL, positions=8, words=60)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    lowering, simulate = (
        Lowering(problem.graph, problem.cluster, problem.costs),
        as_flows(),
    )
    quotient = quotient_of(lowering, next(s for s in proposals(problem, fabric) if s.program.mesh == (16,)))
    everywhere = simulate.program_timeline(quotient, fabric, problem.cluster, None)
    monkeypatch.setattr("topoplan_simulator_fluid.programs._QUEUE", 4)
    once = simulate.program_timeline(quotient, fabric, problem.cluster, None)
    assert once.makespan == pytest.approx(everywhere.makespan, rel=1e-12)
    np.testing.assert_allclose(once.link_bytes, everywhere.link_bytes, rtol=1e-12)
    assert attrs.asdict(once.bounds) == pytest.approx(attrs.asdict(everywhere.bounds), rel=1e-12)
    assert once.events < everywhere.events


def test_a_plan_with_another_field_keeps_its_breakdown():
    problem = problem_of(BertSgmoe, 2, 4, 10, **SMALL, positions=8, words=60)
    fabric = problem.build_fabric(None, np.random.default_rng(0))
    plan = Evaluator(problem, as_flows(), "limit").plan(State(next(proposals(problem, fabric)), fabric), {})
    breakdown = time_breakdown(plan.taskgraph, plan.timeline)
    evolved = attrs.evolve(plan.timeline, events=plan.timeline.events + 1)
    assert evolved.events == plan.timeline.events + 1
    again = time_breakdown(plan.taskgraph, evolved)
    assert attrs.asdict(again) == pytest.approx(attrs.asdict(breakdown), rel=1e-9, abs=1e-15)
    assert attrs.asdict(time_breakdown(attrs.evolve(plan.taskgraph), plan.timeline)) == attrs.asdict(breakdown)
