"""Files of many hosts list the routes that FlexNetPacket asks for; what takes too much memory is refused."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, Fabric, Plan, TopoplanError
from topoplan_exporter_flatbuffer import Flatbuffer, network, pins, tables
from topoplan_exporter_flatbuffer.wire import decode
from topoplan_samples.as_flows import as_flows
from topoplan_samples.fabrics import star
from topoplan_samples.tasks import collective, task_graph, transfer

WRITE = Flatbuffer().write


def fabric():
    """Hosts on a circle: neighbours and those 3 and 4 apart are linked; hosts 2 apart have two rings."""
    links = {link for h in range(8) for j in (1, 3, 4) for link in ((h, (h + j) % 8), ((h + j) % 8, h))}
    rings = {8: ((1,), (7,)), 4: ((1, 1), (7, 3), (7, 7)), 2: ((4,), (1, 3))}
    return Fabric.from_links(
        name="circle", n_hosts=8, links=sorted(links), bandwidth=1.25e10, latency=1e-6, max_paths=4, rings=rings
    )


def plan(transfers, groups, made=None):
    """All transfers, and all-reduces of the groups, begin at once."""
    tasks = [*(transfer(a, b, 8_000_000) for a, b in transfers), *(collective(group, 8_000_000) for group in groups)]
    made = made or fabric()
    cluster = Cluster.uniform(n_hosts=8, interface_bandwidth=float(made.link_bandwidth[0]))
    return Plan(cluster=cluster, fabric=made, taskgraph=task_graph(tasks, n_devices=8))


@pytest.fixture
def many_hosts(monkeypatch):
    """Eight hosts are many."""
    for module in (network, pins):
        monkeypatch.setattr(module, "ALL_PAIRS", 4)


def listed(data):
    routes = decode(data, "x")["routes"].values
    return set(zip(routes["fromnode"].tolist(), routes["tonode"].tolist(), strict=True))


def test_routes_of_messages_are_listed_both_ways(many_hosts):
    data = WRITE(plan([(1, 3), (0, 2)], []))
    assert listed(data) == {(1, 3), (3, 1), (0, 2), (2, 0)}


def test_routes_of_the_rings_of_all_reduces_are_listed(many_hosts):
    """Of groups that are written as all-reduces, which the program runs over the routes in the order of members."""
    data = WRITE(plan([], [[0, 3, 5]], made=star(8)))
    ring = {(0, 3), (3, 5), (5, 0)}
    assert listed(data) == ring | {(b, a) for a, b in ring}


@pytest.mark.parametrize("transfers", [[], [(1, 3), (0, 2), (5, 7)]])
def test_rings_take_the_paths_and_the_time_of_a_file_with_all_routes(transfers, monkeypatch):
    made = plan(transfers, [[1, 3, 5, 7], [0, 2, 4, 6]])
    whole = WRITE(made)
    for module in (network, pins):
        monkeypatch.setattr(module, "ALL_PAIRS", 4)
    part = WRITE(made)
    assert len(listed(part)) < len(listed(whole))
    times = []
    for data in (whole, part):
        found = Flatbuffer().read(data, "x")
        times.append(as_flows(level="stepped").makespan(found.taskgraph, found.fabric, found.cluster))
    assert times[1] == pytest.approx(times[0], rel=1e-9)


def test_a_file_of_a_thousand_hosts_is_small():
    tasks = task_graph(
        [*(transfer(a, a + 1, 1000) for a in range(1023)), collective(list(range(1024)), 10**6)], n_devices=1024
    )
    made = Plan(cluster=Cluster.uniform(n_hosts=1024, interface_bandwidth=1e9), fabric=star(1024), taskgraph=tasks)
    data = WRITE(made)
    assert len(listed(data)) == 2 * 1024
    assert len(data) < 1_000_000
    again = Flatbuffer().read(data, "x")
    assert (again.taskgraph.src[:1023] == np.arange(1023)).all()


def test_collectives_that_take_too_many_messages_are_refused(monkeypatch):
    monkeypatch.setattr(tables, "MOST_TASKS", 40)
    with pytest.raises(
        TopoplanError,
        match=r"1 collectives, the largest of 4 devices, have to be written out as up to 96 messages, .* "
        r"more than 40 tasks .*\(plan with fewer servers, or smaller groups\)",
    ):
        WRITE(plan([], [[1, 3, 5, 7]]))


def test_too_many_tasks_are_refused(monkeypatch):
    monkeypatch.setattr(tables, "MOST_TASKS", 2)
    with pytest.raises(TopoplanError, match=r"^flatbuffer: 3 tasks take .*\(plan with fewer servers or micro"):
        WRITE(plan([(0, 1), (1, 2), (2, 3)], []))


def test_too_many_paths_are_refused_before_they_are_all_made(monkeypatch):
    monkeypatch.setattr(network, "MOST_PATHS", 20)
    with pytest.raises(TopoplanError, match=r"the routes of 56 pairs of hosts have more than 20 paths, 4 for a pair"):
        WRITE(plan([(0, 1)], [], made=fabric()))
