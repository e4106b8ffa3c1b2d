"""Barriers and parameter servers: the rewritten task graphs and what they do to the iteration time."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Plan, TaskKind
from topoplan_engine.simulation.gradients import (
    as_simulated,
    server_origin,
    with_barriers,
    with_parameter_server,
    with_serial_sums,
)
from topoplan_samples.fabrics import star
from topoplan_samples.tasks import collective, compute, task_graph, transfer
from topoplan_simulator_flexnet import Flexnet
from topoplan_simulator_fluid import Fluid

HOSTS = 3
CLUSTER = Cluster.uniform(n_hosts=HOSTS)


def data_parallel(size=30_000_000):
    """Two layers on three devices: forward 0, 1, backward 1, 0, and an all-reduce behind each backward."""
    passes = [(TaskKind.FORWARD, 0), (TaskKind.FORWARD, 1), (TaskKind.BACKWARD, 1), (TaskKind.BACKWARD, 0)]
    tasks = [compute(device, kind=kind, op=op) for kind, op in passes for device in range(HOSTS)]
    tasks += [collective([0, 1, 2], size, op=1), collective([1, 2, 0], size, op=0)]
    edges = [(task, task + HOSTS) for task in range(9)]
    edges += [(6 + d, 12) for d in range(HOSTS)] + [(9 + d, 13) for d in range(HOSTS)]
    return task_graph(tasks, edges, HOSTS, op_names=("a", "b"))


def edges_of(taskgraph):
    return {(t, s) for t in range(taskgraph.n_tasks) for s in taskgraph.successors(t).tolist()}


def test_barriers_follow_all_backwards():
    tasks = with_barriers(data_parallel())
    tasks.check()
    barriers = np.flatnonzero(tasks.kind == 3).tolist()
    assert barriers == [14, 15, 16]
    assert tasks.device[barriers].tolist() == [0, 1, 2]
    edges = edges_of(tasks)
    assert {(6 + d, 14 + d) for d in range(3)} | {(9 + d, 14 + d) for d in range(3)} <= edges
    assert {(14 + d, r) for d in range(3) for r in (12, 13)} <= edges
    assert not {(6, 12), (9, 13)} & edges


def test_an_allreduce_inside_the_computation_stays():
    """An all-reduce of the backward pass that another backward waits for must not wait for a barrier."""
    tasks = [compute(0, kind=TaskKind.BACKWARD), collective([0, 1], 1000), compute(0, kind=TaskKind.BACKWARD)]
    tasks = task_graph(tasks, [(0, 1), (1, 2)], n_devices=2)
    rewritten = with_barriers(tasks)
    assert rewritten is tasks  # and where none waits, there is none


def test_server_gathers_and_scatters():
    original = data_parallel()
    tasks = with_parameter_server(original)
    tasks.check()
    assert tasks.kind[[12, 13]].tolist() == [2, 2]
    assert tasks.device[[12, 13]].tolist() == [0, 1]
    assert tasks.src[14:].tolist() == [1, 2, 2, 0, 0, 0, 1, 1]
    assert tasks.dst[14:].tolist() == [0, 0, 1, 1, 1, 2, 2, 0]
    assert (tasks.size[14:] == 30_000_000).all()
    assert server_origin(original)[14:].tolist() == [12, 12, 13, 13, 12, 12, 13, 13]
    edges = edges_of(tasks)
    # Backward of the second layer on device 0 is the server's own; 1 and 2 send.
    assert {(6, 12), (7, 14), (8, 15), (14, 12), (15, 12), (12, 18), (12, 19)} <= edges
    assert (7, 12) not in edges


def test_server_keeps_successors_waiting():
    """What follows the all-reduce on a device waits for the transfer back to it; what runs nowhere, for all."""
    updates = [compute(device, 0.0, TaskKind.UPDATE) for device in (0, 1)]
    tasks = [compute(0, kind=TaskKind.BACKWARD), collective(range(3), 1000), *updates, transfer(1, 2, 5)]
    tasks = task_graph(tasks, [(0, 1), (1, 2), (1, 3), (1, 4)], n_devices=3)
    up, down = [5, 6], [7, 8]
    assert edges_of(with_parameter_server(tasks)) == {
        (0, 1),
        (up[0], 1),
        (up[1], 1),
        (1, down[0]),
        (1, down[1]),
        (1, 2),
        (down[0], 3),
        (down[0], 4),
        (down[1], 4),
    }


@pytest.mark.parametrize("simulator", [Fluid, Flexnet])
def test_what_the_options_do(simulator):
    tasks, fabric = data_parallel(), star(HOSTS, latency=0.0)
    one_way = {"ring_direction": "forward"} if simulator is Flexnet else {}  # the closed form below needs it

    def run(**given):
        return simulator(**one_way, **given).build()(tasks, fabric, CLUSTER)

    overlap, barrier = run(), run(gradient_sync="barrier")
    server = run(collective="parameter-server")
    assert overlap.finish[9:12].max() == pytest.approx(4e-3)
    assert overlap.start[12] == pytest.approx(3e-3)
    assert barrier.start[12] == pytest.approx(4e-3)
    assert barrier.makespan == pytest.approx(overlap.makespan + 1e-3, rel=0.02)
    # Two rings at once: 4/3 size each on every link.  Two servers, each receiving and sending twice the size.
    assert barrier.makespan == pytest.approx(4e-3 + 2 * 4 / 3 * 0.03, rel=0.01)
    assert server.makespan > barrier.makespan
    assert server.start[12] == pytest.approx(3e-3)
    assert server.finish.max() == pytest.approx(server.makespan)
    assert server.finish[12] > 3e-3 + 2 * 0.06
    for timeline in (overlap, barrier, server):
        assert len(timeline.start) == tasks.n_tasks
        assert timeline.bounds.best <= timeline.makespan * (1 + 1e-9)


def plan_under(**options):
    """A plan of `data_parallel` with the timeline of a simulator with these options."""
    tasks, fabric = data_parallel(), star(HOSTS, latency=0.0)
    provenance = {"components": [{"kind": "simulator", "name": "fluid", "options": options}]}
    line = Fluid(**options).build()(tasks, fabric, CLUSTER)
    return Plan(cluster=CLUSTER, fabric=fabric, taskgraph=tasks, timeline=line, provenance=provenance)


OPTIONS = [
    {},
    {"gradient_sync": "barrier"},
    {"collective": "parameter-server"},
    {"gradient_sync": "barrier", "collective": "parameter-server"},
    {"collective": "nccl-serial"},
    {"gradient_sync": "barrier", "collective": "nccl-serial"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_was_simulated_takes_as_long_under_the_defaults(options):
    plan = plan_under(**options)
    tasks, origin = as_simulated(plan)
    timeline = Fluid().build()(tasks, plan.fabric, CLUSTER)
    assert timeline.makespan == plan.timeline.makespan
    assert (tasks is plan.taskgraph) == (not options)
    assert origin[:14].tolist() == list(range(14))
    assert set(origin[14:].tolist()) <= {-1, 12, 13}
    # The time of an all-reduce is that of all its tasks.
    for reduce in (12, 13):
        assert plan.timeline.finish[reduce] == timeline.finish[origin == reduce].max()
        assert plan.timeline.start[reduce] == timeline.start[origin == reduce].min()
    again, _ = as_simulated(attrs.evolve(plan, taskgraph=tasks))
    assert again is tasks


@pytest.mark.parametrize("told", [{}, {"components": 7}, {"components": [3, {"kind": "simulator", "options": None}]}])
def test_a_plan_that_does_not_say_how_was_simulated_as_it_is(told):
    plan = attrs.evolve(plan_under(), provenance=told)
    assert as_simulated(plan)[0] is plan.taskgraph


def serial_seconds(tasks, cluster):
    """Seconds that FlexFlow's loop after the event loop adds: over operators, weights and groups, nothing at a time."""
    total = 0.0
    for task in range(tasks.n_tasks):
        if tasks.kind[task] != TaskKind.COLLECTIVE:
            continue
        first, *others = tasks.members(task).tolist()
        longest = 0.0
        for other in others:
            here, there = cluster.device_host[first], cluster.device_host[other]
            inside = cluster.inside_bandwidth[here]
            ports = [cluster.interfaces[host] * cluster.interface_bandwidth[host] for host in (here, there)]
            longest = max(longest, tasks.size[task] / (inside if here == there else min(ports)))
        total += longest
    return total


@pytest.mark.parametrize("simulator", [Fluid, Flexnet])
@pytest.mark.parametrize("per_host", [1, HOSTS])
def test_serial_sums_are_added_to_the_timeline_without_them(simulator, per_host):
    tasks = data_parallel()
    cluster = Cluster.uniform(n_hosts=HOSTS // per_host, devices_per_host=per_host, inside_bandwidth=7e10)
    fabric = star(HOSTS // per_host, latency=0.0)
    compute = tasks.device >= 0
    without = attrs.evolve(tasks, size=np.where(compute, tasks.size, 0))
    plain = simulator().build()(without, fabric, cluster)
    serial = simulator(collective="nccl-serial").build()
    timeline = serial(tasks, fabric, cluster)
    ends = plain.finish[compute].max()
    assert timeline.makespan == pytest.approx(ends + serial_seconds(tasks, cluster), rel=1e-6)
    assert serial.makespan(tasks, fabric, cluster) == timeline.makespan
    assert serial.makespan(tasks, fabric, cluster, timeline.makespan) in (timeline.makespan, np.inf)
    assert not timeline.link_bytes.any()
    assert (timeline.device_busy == plain.device_busy).all()
    assert timeline.start[12] == ends
    assert timeline.start[13] == timeline.finish[12]


def test_sums_that_others_wait_for_stay_on_the_network():
    tasks = task_graph(
        [collective([0, 1], 1_000_000), compute(0, 1e-3), collective([0, 1], 1_000_000)], [(0, 1), (1, 2)], 2
    )
    rewritten = with_serial_sums(tasks, Cluster.uniform(n_hosts=2))
    assert rewritten.kind.tolist() == [TaskKind.COLLECTIVE, TaskKind.FORWARD, TaskKind.UPDATE, TaskKind.BARRIER]
    assert edges_of(rewritten) == {(0, 1), (0, 3), (1, 3), (3, 2)}
