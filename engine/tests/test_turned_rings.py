"""Rings the other way round are looked for once for each group, however many task graphs ask for them."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Cluster, Fabric
from topoplan_engine.network import tables
from topoplan_samples.tasks import collective, task_graph


def switch(hosts: int) -> Fabric:
    ends = [(host, hosts) for host in range(hosts)]
    return Fabric.from_links(
        name="switch",
        n_hosts=hosts,
        n_switches=1,
        links=[*ends, *((b, a) for a, b in ends)],
        bandwidth=1e9,
        latency=1e-6,
    )


@pytest.fixture
def looked_for(monkeypatch):
    """List the groups whose stops are looked for one by one."""
    found: list[list[int]] = []

    def noting(pointers, devices, host, stops_of=tables.stops_of):
        found.append(devices.tolist())
        return stops_of(pointers, devices, host)

    monkeypatch.setattr(tables, "stops_of", noting)
    return found


def test_a_group_is_turned_once(looked_for):
    network = tables.Network(switch(4), Cluster.uniform(n_hosts=4))
    groups = [[0, 1, 2, 3], [0, 1, 3], [1, 2, 3]]
    rings = []
    for count in (1, 2, 3, 2):
        tasks = task_graph([collective(group, 1000) for group in groups[:count]], n_devices=4)
        rings.append(network.lower(tasks, backward=True).ring.tolist())
    assert rings == [[0], [0, 1], [0, 1, 2], [0, 1]]
    assert [looked_for.count(group) for group in groups] == [1, 1, 1]


def test_the_other_way_round_begins_with_the_same_device():
    network = tables.Network(switch(4), Cluster.uniform(n_hosts=4))
    members = np.array([2, 0, 3, 1], dtype=np.int32)
    for _ in range(2):
        assert network._backward(members).tolist() == [2, 1, 3, 0]
