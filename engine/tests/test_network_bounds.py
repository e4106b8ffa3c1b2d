"""The bound on all wirings, beside every wiring of small clusters."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topoplan.model.problem import Demand
from topoplan_engine import ClusterOptions
from topoplan_engine.experiment import build_cluster
from topoplan_engine.network.bounds import fabric_lower_bound, least_hops


def demand_of(matrix, groups=(), sizes=()):
    members = [sorted(group) for group in groups]
    return Demand(
        group_ptr=np.cumsum([0, *map(len, members)]),
        group_members=[host for group in members for host in group],
        group_bytes=list(sizes),
        matrix=np.asarray(matrix, dtype=float),
    )


def wirings(hosts, degree):
    """Every wiring in which each host has ``degree`` links out, all to different hosts: the targets of each host."""
    choices = [itertools.combinations([h for h in range(hosts) if h != host], degree) for host in range(hosts)]
    yield from itertools.product(*map(list, choices))


def hops_from(wiring, source):
    """Hops to every host that a breadth-first search reaches."""
    hops, level = {source: 0}, [source]
    while level:
        level = [to for to in dict.fromkeys(t for host in level for t in wiring[host]) if to not in hops]
        hops.update(dict.fromkeys(level, max(hops.values()) + 1))
    return hops


def test_the_search_of_the_reference_counts_hops():
    line_back = [(1,), (2,), (0,), (0, 1)]
    assert hops_from(line_back, 0) == {0: 0, 1: 1, 2: 2}
    assert hops_from(line_back, 3) == {3: 0, 0: 1, 1: 1, 2: 2}
    assert len(list(wirings(4, 2))) == 3**4


@pytest.mark.parametrize("degree", [1, 2])
@settings(max_examples=15)
@given(data=st.data())
def test_no_wiring_of_four_hosts_takes_fewer_link_bytes(degree, data):
    cells = data.draw(st.lists(st.integers(0, 9), min_size=16, max_size=16))
    matrix = np.array(cells, dtype=float).reshape(4, 4) * (1 - np.eye(4))
    least = (matrix * least_hops(matrix, np.full(4, degree))).sum()
    best = np.inf
    for wiring in wirings(4, degree):
        far = [hops_from(wiring, host) for host in range(4)]
        taken = sum(matrix[i, j] * far[i].get(j, np.inf) for i in range(4) for j in range(4) if matrix[i, j])
        best = min(best, taken)
    assert least <= best
    cluster = build_cluster(ClusterOptions(servers=4, degree=degree))
    speed = cluster.interface_bandwidth[0] * degree
    assert fabric_lower_bound(demand_of(matrix), cluster) <= best / speed


def test_a_host_sends_no_faster_than_its_interfaces():
    cluster = build_cluster(ClusterOptions(servers=4, degree=2, interface_bandwidth_gbps=8.0))
    matrix = np.zeros((4, 4))
    matrix[0, 1] = 4e9
    assert fabric_lower_bound(demand_of(matrix), cluster) == pytest.approx(2.0)


def test_all_reduces_leave_their_members():
    cluster = build_cluster(ClusterOptions(servers=4, degree=1, interface_bandwidth_gbps=8.0))
    demand = demand_of(np.zeros((4, 4)), [range(4)], [1e9])
    assert fabric_lower_bound(demand, cluster) == pytest.approx(2 * 3 / 4)


def test_far_hosts_take_more_links():
    """One host sends the same to all others over one interface: 1 + 2 + 3 hops, which four hosts' links share."""
    cluster = build_cluster(ClusterOptions(servers=4, degree=1, interface_bandwidth_gbps=8.0))
    matrix = np.zeros((4, 4))
    matrix[:] = 1e9
    np.fill_diagonal(matrix, 0.0)
    assert fabric_lower_bound(demand_of(matrix), cluster) == pytest.approx(4 * (1 + 2 + 3) / 4)


def test_nothing_to_send_takes_no_time():
    assert fabric_lower_bound(demand_of(np.zeros((4, 4))), build_cluster(ClusterOptions(servers=4))) == 0.0
