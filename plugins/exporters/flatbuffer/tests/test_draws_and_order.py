"""Links, paths and messages are listed so that FlexNetPacket runs them as the plan means it."""

from __future__ import annotations

import itertools

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routes_from_nodes import routes_from_nodes

from topoplan import Cluster, Fabric, LinkKind, Plan, TaskKind
from topoplan.testing import reference
from topoplan_exporter_flatbuffer import Flatbuffer
from topoplan_exporter_flatbuffer.network import MOST_COPIES, copies
from topoplan_exporter_flatbuffer.wire import decode
from topoplan_samples.tasks import compute, task_graph

WRITE = Flatbuffer().write
read = Flatbuffer().read


def nothing_sent(n):
    """One task on the first of n devices."""
    return task_graph([compute(0)], n_devices=n)


def columns_of(made):
    return decode(WRITE(made), "test")


def shared(*weights):
    """Two hosts with a path over each of so many others, of these shares."""
    n = 2 + len(weights)
    links = [(a, b) for a in (0, 1) for b in range(2, n)]
    made = Fabric.from_links(
        name="theta",
        n_hosts=n,
        links=links + [(b, a) for a, b in links],
        bandwidth=1.25e10,
        latency=1e-6,
        max_paths=4,
    )
    ways = {(0, 1): [(0, via, 1) for via in range(2, n)]}
    return attrs.evolve(made, routes=routes_from_nodes(made, ways, {(0, 1): weights}))


def listed(made):
    """Nodes of the paths from host 0 to host 1, as listed, and their chances."""
    routes = columns_of(made)["routes"].values
    paths = routes["paths"]
    rows = range(paths.ptr[1], paths.ptr[2])
    hops = paths.values["hopnode"]
    return [hops.values[hops.ptr[row] : hops.ptr[row + 1]].tolist() for row in rows], paths.values["chance"][rows]


@pytest.mark.parametrize(
    ("weights", "times"),
    [((0.5, 0.5), (1, 1)), ((0.25, 0.75), (1, 3)), ((0.6, 0.3, 0.1), (6, 3, 1)), ((0.99, 0.01), (1, 0))],
)
def test_paths_are_listed_as_often_as_their_shares_ask(weights, times):
    """It draws all of them alike, whatever their chance."""
    fabric = shared(*weights)
    cluster = Cluster.uniform(n_hosts=fabric.n_hosts, interface_bandwidth=1.25e10)
    made = Plan(cluster=cluster, fabric=fabric, taskgraph=nothing_sent(fabric.n_hosts))
    nodes, chance = listed(made)
    assert nodes == [[0, 2 + via, 1] for via, count in enumerate(times) for _ in range(count)]
    assert chance.tolist() == pytest.approx([1 / sum(times)] * sum(times))
    again = read(WRITE(made), "x").fabric.routes
    row = again.pairs.tolist().index([0, 1])
    found = again.weight[again.pair_ptr[row] : again.pair_ptr[row + 1]]
    assert found.tolist() == pytest.approx([count / sum(times) for count in times if count])
    assert np.diff(again.pair_ptr).max() <= len(weights)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6))
def test_copies_meet_any_shares(parts):
    share = np.array(parts) / sum(parts)
    times = copies(share)
    assert 1 <= times.sum() <= MOST_COPIES
    assert np.abs(times / times.sum() - share).max() <= 1 / MOST_COPIES


def test_senders_begin_with_different_receivers():
    made = reference.plan()
    n = made.fabric.n_hosts
    assert "dialect" not in made.graph.tags
    everybody = [(a, b) for a in range(n) for b in range(n) if a != b]
    moved = np.arange(n, n + len(everybody))
    graph = attrs.evolve(
        made.taskgraph,
        kind=np.append(np.zeros(n), np.full(len(moved), TaskKind.TRANSFER)),
        device=np.append(np.arange(n), np.full(len(moved), -1)),
        seconds=np.zeros(n + len(moved)),
        size=np.append(np.zeros(n), np.full(len(moved), 1000)),
        src=np.append(np.full(n, -1), [a for a, _ in everybody]),
        dst=np.append(np.full(n, -1), [b for _, b in everybody]),
        group=np.full(n + len(moved), -1),
        group_ptr=[0],
        group_members=[],
        succ_ptr=np.append(np.arange(n + 1) * (n - 1), np.full(len(moved), n * (n - 1))),
        succ=moved,
        op=np.full(n + len(moved), -1),
        micro_batch=None,
        collective=np.full(n + len(moved), -1),
    )
    sent = attrs.evolve(made, taskgraph=graph, timeline=None)

    def receivers(one):
        following = columns_of(one)["tasks"].values["nexttasks"]
        return [
            [everybody[t - n - 1][1] for t in following.values[a:b]]
            for a, b in itertools.pairwise(following.ptr[: n + 1])
        ]

    assert receivers(sent) == [[(host + ahead) % n for ahead in range(1, n)] for host in range(n)]
    listed_order = [[b for b in range(n) if b != host] for host in range(n)]
    assert receivers(attrs.evolve(sent, graph=attrs.evolve(sent.graph, tags={"dialect": "flexnet"}))) == listed_order
    assert receivers(attrs.evolve(sent, graph=None)) == listed_order


@pytest.mark.parametrize("gbps", [57.0, 100.0, 142.0])
def test_lanes_of_interfaces_are_links_of_their_own_speed(gbps):
    whole = shared(0.5, 0.5)
    lanes = {"link_kind": np.full(8, LinkKind.LANE), "link_bandwidth": np.full(8, gbps * 1.25e8)}
    cluster = Cluster.uniform(n_hosts=4, interface_bandwidth=1.25e10)
    columns = columns_of(Plan(cluster=cluster, fabric=attrs.evolve(whole, **lanes), taskgraph=nothing_sent(4)))
    assert columns["netbw"].tolist() == [np.float32(gbps * 1.25e5)]
    assert columns["conn"].values["nconn"].tolist() == [1] * 4
