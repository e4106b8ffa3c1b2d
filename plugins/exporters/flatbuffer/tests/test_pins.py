"""Rings of sub-groups in a file: each of their transfers has the ring's path alone, as far as pairs go."""

from __future__ import annotations

import itertools
from collections import Counter

import attrs
import numpy as np
import pytest

from topoplan import Cluster, Fabric, Plan, TaskKind
from topoplan_engine.replay import between_ends
from topoplan_exporter_flatbuffer import Flatbuffer
from topoplan_exporter_flatbuffer.pins import RING_SHARE
from topoplan_exporter_flatbuffer.wire import decode
from topoplan_samples.as_flows import as_flows
from topoplan_samples.tasks import collective, task_graph, transfer

WRITE = Flatbuffer().write
read = Flatbuffer().read
HOSTS = 8
#: Neighbours and opposite hosts are linked; hosts 2 apart are joined by two rings of different paths, each of 2 links.
RINGS = {8: ((1,), (7,)), 4: ((1, 1), (7, 3), (7, 7)), 2: ((4,), (1, 3))}
JUMPS = (1, 3, 4)


def fabric(rings=None, hosts=HOSTS):
    links = {link for h in range(hosts) for j in JUMPS for link in ((h, (h + j) % hosts), ((h + j) % hosts, h))}
    return Fabric.from_links(
        name="circle",
        n_hosts=hosts,
        links=sorted(links),
        bandwidth=1.25e10,
        latency=1e-6,
        max_paths=4,
        rings=RINGS if rings is None else rings,
    )


def plan(transfers, groups, made=None, size=8_000_000):
    """All transfers, and all-reduces of the groups, begin at once."""
    made = made or fabric()
    tasks = [*(transfer(a, b, size) for a, b in transfers), *(collective(group, size) for group in groups)]
    taskgraph = task_graph(tasks, n_devices=made.n_hosts)
    cluster = Cluster.uniform(n_hosts=made.n_hosts, interface_bandwidth=1.25e10)
    return Plan(cluster=cluster, fabric=made, taskgraph=taskgraph)


def seconds(plan, level="stepped"):
    return as_flows(level=level).makespan(plan.taskgraph, plan.fabric, plan.cluster)


def paths_taken(data):
    """Paths of each transfer of a file, in the order of its tasks."""
    columns = decode(data, "x")
    routes, devices, tasks = (columns[name].values for name in ("routes", "devices", "tasks"))
    hops = routes["paths"].values["hopnode"]
    nodes = [tuple(hops.values[a:b].tolist()) for a, b in itertools.pairwise(hops.ptr.tolist())]
    of = [nodes[a:b] for a, b in itertools.pairwise(routes["paths"].ptr.tolist())]
    named = dict(zip(devices["deviceid"].tolist(), devices["deviceproperty"].tolist(), strict=True))
    return [of[named[device]] for device in tasks["deviceid"][tasks["type"] == 5].tolist()]


def test_each_transfer_of_a_ring_has_its_path_alone():
    data = WRITE(plan([], [[1, 3, 5, 7]]))
    # The first jump comes last, as in FlexNet; rounds of three rings, whose second one goes 1, 4, 3.
    ring = [(1, 2, 3), (3, 4, 5), (5, 6, 7), (7, 0, 1)]
    other = [(1, 4, 3), (3, 6, 5), (5, 0, 7), (7, 2, 1)]
    back = [(1, 0, 7), (3, 2, 1), (5, 4, 3), (7, 6, 5)]
    assert paths_taken(data) == [[path] for path in (ring + other + back) * 6]


def test_a_pair_that_messages_use_keeps_its_paths():
    transfers = [(1, 3), (0, 2)]
    data = WRITE(plan(transfers, [[1, 3, 5, 7]]))
    plain = paths_taken(WRITE(plan(transfers, [])))
    taken = paths_taken(data)
    assert len(plain[0]) > 1
    assert taken[:2] == plain
    assert all(len(paths) == 1 for paths in taken[2:])


def test_every_pair_has_a_way_back():
    """FlexNetPacket looks for one of each transfer."""
    data = WRITE(plan([(1, 3)], [[1, 3, 5, 7], [0, 2, 4, 6], [0, 4]]))
    routes = decode(data, "x")["routes"].values
    pairs = zip(routes["fromnode"].tolist(), routes["tonode"].tolist(), strict=True)
    assert all(count > 0 for (a, b), count in zip(pairs, np.diff(routes["paths"].ptr), strict=True) if a != b)


def test_where_no_pair_is_left_rings_share_theirs_with_messages():
    everybody = [(a, b) for a in range(HOSTS) for b in range(HOSTS) if a != b]
    plain = {(paths[0][0], paths[0][-1]): paths for paths in paths_taken(WRITE(plan(everybody, [])))}
    taken = paths_taken(WRITE(plan(everybody, [[1, 3, 5, 7]])))
    ways = {(paths[0][0], paths[0][-1]): paths for paths in taken}
    assert ways.keys() == plain.keys()
    assert ways[0, 2] == plain[0, 2]
    # Two rings go from 1 to 3: (1, 2, 3) and (1, 4, 3).  They get two of three draws, of 16 at most.
    assert set(ways[1, 3]) == set(plain[1, 3]) | {(1, 2, 3), (1, 4, 3)}
    own = 1 / len(plain[1, 3])
    for path, count in Counter(ways[1, 3]).items():
        share = (1 - RING_SHARE) * own * (path in plain[1, 3]) + RING_SHARE / 2 * (path in {(1, 2, 3), (1, 4, 3)})
        assert count / len(ways[1, 3]) == pytest.approx(share, abs=1 / 32)


@pytest.mark.parametrize("transfers", [[], [(1, 3), (3, 1), (0, 2), (5, 7), (2, 6)]], ids=["rings", "beside messages"])
@pytest.mark.parametrize("groups", [[[1, 3, 5, 7]], [[0, 4], [1, 5]], [[0, 2, 4, 6], [1, 3, 5, 7], [3, 7]]], ids=str)
def test_a_file_of_sub_groups_takes_as_long_as_its_plan(transfers, groups):
    made = plan(transfers, groups)
    data = WRITE(made)
    again = read(data, "x")
    assert set(again.taskgraph.kind.tolist()) == {TaskKind.TRANSFER, TaskKind.BARRIER}
    assert seconds(again) == pytest.approx(seconds(made), rel=1e-6)
    assert WRITE(again) == data


def test_a_group_without_a_ring_is_written_out():
    made = plan([], [[0, 1, 2, 3, 4]], fabric({6: ((1,), (5,))}, hosts=6))
    again = read(WRITE(made), "x")
    assert (again.taskgraph.kind == TaskKind.TRANSFER).sum() == 8 * 5
    assert seconds(again) == pytest.approx(seconds(made), rel=1e-6)


def test_the_routes_of_a_plan_stay_its_own():
    made = plan([(1, 3)], [[1, 3, 5, 7]])
    before = attrs.evolve(made.fabric)
    WRITE(made)
    assert made.fabric == before
    assert made.fabric.routes is None


def test_on_another_network_transfers_are_those_of_their_paths():
    transfers = [(1, 3), (0, 2)]
    made = plan(transfers, [[1, 3, 5, 7]])
    again = read(WRITE(made), "x")
    named = again.taskgraph
    meant = between_ends(named, again.fabric, again.cluster)
    moved = np.flatnonzero(named.kind == TaskKind.TRANSFER)
    ends = list(zip(meant.src[moved].tolist(), meant.dst[moved].tolist(), strict=True))
    assert ends == [*transfers, *[(1, 3), (3, 5), (5, 7), (7, 1)] * 2, (1, 7), (3, 1), (5, 3), (7, 5)] + (
        [*[(1, 3), (3, 5), (5, 7), (7, 1)] * 2, (1, 7), (3, 1), (5, 3), (7, 5)] * 5
    )
    assert ends != list(zip(named.src[moved].tolist(), named.dst[moved].tolist(), strict=True))
    assert between_ends(meant, made.fabric, again.cluster) is meant
