"""Barriers and parameter servers are written as they were simulated."""

from __future__ import annotations

import attrs
import pytest

from topoplan import Cluster, Fabric, Plan, TaskGraph, TaskKind
from topoplan.testing import reference
from topoplan_engine.replay import simulate_file
from topoplan_exporter_flatbuffer import Flatbuffer
from topoplan_simulator_fluid import Fluid

WRITE = Flatbuffer().write
read = Flatbuffer().read
HOSTS = 4


def star():
    links = [(h, HOSTS) for h in range(HOSTS)] + [(HOSTS, h) for h in range(HOSTS)]
    return Fabric.from_links(name="star", n_hosts=HOSTS, n_switches=1, links=links, bandwidth=1.25e10, latency=1e-6)


def mesh():
    links = [(a, b) for a in range(HOSTS) for b in range(HOSTS) if a != b]
    rings = {4: ((1,), (3,)), 2: ((2,),)}
    return Fabric.from_links(name="mesh", n_hosts=HOSTS, links=links, bandwidth=1.25e10, latency=1e-6, rings=rings)


def two_layers():
    """Two backward passes on each of four devices, and an all-reduce behind each: of all, and of two of them."""
    seconds = [1e-3 * (1 + d % 2) for _ in range(2) for d in range(HOSTS)]
    return TaskGraph(
        kind=[TaskKind.BACKWARD] * 8 + [TaskKind.COLLECTIVE] * 2,
        device=[*range(HOSTS), *range(HOSTS), -1, -1],
        seconds=[*seconds, 0.0, 0.0],
        size=[0] * 8 + [40_000_000, 10_000_000],
        src=[-1] * 10,
        dst=[-1] * 10,
        group=[-1] * 8 + [0, 1],
        group_ptr=[0, 4, 6],
        group_members=[0, 1, 2, 3, 0, 2],
        succ_ptr=[0, 2, 4, 6, 8, 9, 10, 11, 12, 12, 12],
        succ=[4, 8, 5, 8, 6, 8, 7, 8, 9, 9, 9, 9],
        op=[-1] * 10,
        n_devices=HOSTS,
    )


@pytest.mark.parametrize("sync", ["overlap", "barrier"])
@pytest.mark.parametrize("collective", ["ring", "parameter-server"])
@pytest.mark.parametrize("fabric", [star(), mesh()], ids=["star", "rings"])
def test_gradients_are_written_as_they_were_simulated(fabric, sync, collective):
    graph, cluster = two_layers(), Cluster.uniform(n_hosts=HOSTS, interface_bandwidth=1.25e10)
    options = {"level": "stepped", "gradient_sync": sync, "collective": collective}
    line = Fluid(**options).build()(graph, fabric, cluster)
    told = {"components": [{"kind": "simulator", "options": options}]}
    plan = Plan(cluster=cluster, fabric=fabric, taskgraph=graph, timeline=line, provenance=told)
    again = read(WRITE(plan), "x")
    plain = Fluid(level="stepped").build()
    assert plain.makespan(again.taskgraph, again.fabric, again.cluster) == pytest.approx(line.makespan, rel=1e-6)
    barriers = again.taskgraph.device[again.taskgraph.kind == TaskKind.BARRIER]
    assert ((barriers < HOSTS).sum() == HOSTS) == (sync == "barrier")
    assert (TaskKind.UPDATE in again.taskgraph.kind) == (collective == "parameter-server")


@pytest.mark.parametrize("option", ["gradient-sync=barrier", "collective=parameter-server"])
def test_a_replayed_file_is_written_as_it_was_replayed(option, tmp_path):
    given, written = tmp_path / "given.fbuf", tmp_path / "written.fbuf"
    data = WRITE(reference.plan())
    given.write_bytes(data)
    replayed = simulate_file(given, simulator=f"fluid:{option}")
    written.write_bytes(WRITE(replayed))
    assert simulate_file(written).timeline.makespan == pytest.approx(replayed.timeline.makespan, rel=1e-6)
    assert WRITE(attrs.evolve(simulate_file(given), timeline=None)) == data
