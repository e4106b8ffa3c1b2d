"""Barriers and parameter servers are written as they were simulated."""

from __future__ import annotations

import attrs
import pytest

from topoplan import Cluster, Fabric, Plan, TaskKind
from topoplan.testing import reference
from topoplan_engine.replay import simulate_file
from topoplan_exporter_flatbuffer import Flatbuffer
from topoplan_samples.as_flows import as_flows
from topoplan_samples.fabrics import star
from topoplan_samples.tasks import collective, compute, task_graph

WRITE = Flatbuffer().write
read = Flatbuffer().read
HOSTS = 4


def mesh():
    links = [(a, b) for a in range(HOSTS) for b in range(HOSTS) if a != b]
    rings = {4: ((1,), (3,)), 2: ((2,),)}
    return Fabric.from_links(name="mesh", n_hosts=HOSTS, links=links, bandwidth=1.25e10, latency=1e-6, rings=rings)


def two_layers():
    """Two backward passes on each of four devices, and an all-reduce behind each: of all, and of two of them."""
    tasks = [compute(device, 1e-3 * (1 + device % 2), TaskKind.BACKWARD) for _ in range(2) for device in range(HOSTS)]
    tasks += [collective(range(HOSTS), 40_000_000), collective([0, 2], 10_000_000)]
    edges = [(0, 4), (0, 8), (1, 5), (1, 8), (2, 6), (2, 8), (3, 7), (3, 8), (4, 9), (5, 9), (6, 9), (7, 9)]
    return task_graph(tasks, edges, HOSTS)


@pytest.mark.parametrize("sync", ["overlap", "barrier"])
@pytest.mark.parametrize("collective", ["ring", "parameter-server"])
@pytest.mark.parametrize("fabric", [star(HOSTS, 1.25e10), mesh()], ids=["star", "rings"])
def test_gradients_are_written_as_they_were_simulated(fabric, sync, collective):
    graph, cluster = two_layers(), Cluster.uniform(n_hosts=HOSTS, interface_bandwidth=1.25e10)
    options = {"level": "stepped", "gradient_sync": sync, "collective": collective}
    line = as_flows(**options)(graph, fabric, cluster)
    told = {"components": [{"kind": "simulator", "options": options}]}
    plan = Plan(cluster=cluster, fabric=fabric, taskgraph=graph, timeline=line, provenance=told)
    again = read(WRITE(plan), "x")
    plain = as_flows(level="stepped")
    assert plain.makespan(again.taskgraph, again.fabric, again.cluster) == pytest.approx(line.makespan, rel=1e-6)
    barriers = again.taskgraph.device[again.taskgraph.kind == TaskKind.BARRIER]
    assert ((barriers < HOSTS).sum() == HOSTS) == (sync == "barrier")
    assert (TaskKind.UPDATE in again.taskgraph.kind) == (collective == "parameter-server")


@pytest.mark.parametrize("option", ["gradient-sync=barrier", "collective=parameter-server"])
def test_a_replayed_file_is_written_as_it_was_replayed(option, tmp_path):
    given, written = tmp_path / "given.fbuf", tmp_path / "written.fbuf"
    data = WRITE(reference.plan())
    given.write_bytes(data)
    replayed = simulate_file(given, simulator=f"fluid:transport=flexnetpacket,{option}")
    written.write_bytes(WRITE(replayed))
    assert simulate_file(written).timeline.makespan == pytest.approx(replayed.timeline.makespan, rel=0.01)
    assert WRITE(attrs.evolve(simulate_file(given), timeline=None)) == data


@pytest.mark.parametrize("sync", ["overlap", "barrier"])
def test_serial_sums_are_written_as_they_were_simulated(sync):
    options = {"gradient_sync": sync, "collective": "nccl-serial"}
    graph, cluster, fabric = two_layers(), Cluster.uniform(n_hosts=HOSTS, interface_bandwidth=1.25e10), mesh()
    line = as_flows(**options)(graph, fabric, cluster)
    told = {"components": [{"kind": "simulator", "options": options}]}
    again = read(WRITE(Plan(cluster=cluster, fabric=fabric, taskgraph=graph, timeline=line, provenance=told)), "x")
    assert as_flows().makespan(again.taskgraph, again.fabric, again.cluster) == pytest.approx(line.makespan, rel=1e-6)
    assert (again.taskgraph.kind == TaskKind.UPDATE).sum() == 2
