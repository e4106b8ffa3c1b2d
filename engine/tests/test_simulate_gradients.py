"""Barriers and parameter servers: the rewritten task graphs and what they do to the iteration time."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Plan, TaskKind
from topoplan_engine.simulation.gradients import as_simulated, server_origin, with_barriers, with_parameter_server
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
