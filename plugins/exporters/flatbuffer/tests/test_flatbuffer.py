"""The files we write hold what the packet simulator needs, and no file we read breaks anything."""

from __future__ import annotations

import itertools

import attrs
import flatbuffers
import flatbuffers.table
import numpy as np
import pytest
from flatbuffers import number_types as number
from hypothesis import example, given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Fabric, Plan, TaskGraph, TaskKind, Timeline, TopoplanError
from topoplan.testing import reference
from topoplan_exporter_flatbuffer import Flatbuffer
from topoplan_exporter_flatbuffer.encode import encode
from topoplan_exporter_flatbuffer.schema import Rows, flatten, unflatten
from topoplan_exporter_flatbuffer.wire import decode
from topoplan_samples.tasks import compute, task_graph

WRITE = Flatbuffer().write
read = Flatbuffer().read
GBPS = 1e9 / 8


def tasks(n=4, members=None, n_devices=None):
    """Forward on every device, a message to the next device's backward, one all-reduce after them."""
    rows = np.arange(n)
    kind = np.append(np.repeat([TaskKind.FORWARD, TaskKind.TRANSFER, TaskKind.BACKWARD], n), TaskKind.COLLECTIVE)
    transfer, ring = kind == TaskKind.TRANSFER, kind == TaskKind.COLLECTIVE
    after = (rows + 1) % n
    members = list(range(n)) if members is None else members
    return TaskGraph(
        kind=kind,
        device=np.where(transfer | ring, -1, np.append(np.tile(rows, 3), -1)),
        seconds=np.append(np.repeat([0.5e-3, 0.0, 1e-3], n), 0.25e-3),
        size=np.where(transfer, 1_000_000, np.where(ring, 4_000_000, 0)),
        src=np.where(transfer, np.tile(rows, 4)[: len(kind)], -1),
        dst=np.where(transfer, np.tile(after, 4)[: len(kind)], -1),
        group=np.where(ring, 0, -1),
        group_ptr=[0, len(members)],
        group_members=members,
        succ_ptr=np.append(np.arange(3 * n + 1), 3 * n),
        succ=np.concatenate([rows + n, after + 2 * n, np.full(n, 3 * n)]),
        op=np.full(len(kind), -1),
        n_devices=n if n_devices is None else n_devices,
    )


def star(n=4, count=1):
    links = [(a, b) for host in range(n) for a, b in ((host, n), (n, host)) for _ in range(count)]
    return Fabric.from_links(name="star", n_hosts=n, n_switches=1, links=links, bandwidth=100 * GBPS, latency=1e-6)


def ring(n=4, rings=None):
    links = sorted({link for h in range(n) for link in ((h, (h + 1) % n), ((h + 1) % n, h))})
    return Fabric.from_links(name="ring", n_hosts=n, links=links, bandwidth=100 * GBPS, latency=1e-6, rings=rings)


def plan(fabric=None, taskgraph=None, **changes):
    fabric = fabric or star()
    cluster = Cluster.uniform(n_hosts=fabric.n_hosts, interface_bandwidth=100 * GBPS)
    return attrs.evolve(Plan(cluster=cluster, fabric=fabric, taskgraph=taskgraph or tasks(fabric.n_hosts)), **changes)


def columns_of(made):
    return decode(WRITE(made), "test")


def test_a_fabric_of_more_switches_than_the_file_has_bytes_is_read_again():
    """BCube of two hosts and 16 levels has half a million switches, and few of them have links."""
    links = [(0, 2), (2, 0), (1, 2), (2, 1)]
    many = {"n_hosts": 2, "n_switches": 1 << 20, "links": links, "bandwidth": 100 * GBPS, "latency": 1e-6}
    written = WRITE(plan(Fabric.from_links(name="wide", **many)))
    assert len(written) < 1 << 20
    assert read(written, "x").fabric.n_switches == 1 << 20


# ── What FlexNetPacket follows unasked ──────────────────────────────────────────────────────────────────

VECTORS = {"conn": 6, "ops": 7, "tasks": 8, "devices": 9, "routes": 10, "rings": 11}


def vector_length(table, slot):
    """Length of a vector field, None where it is absent."""
    offset = table.Offset(4 + 2 * slot)
    return table.VectorLen(offset) if offset else None


def tables(parent, slot):
    start = parent.Vector(parent.Offset(4 + 2 * slot))
    for index in range(vector_length(parent, slot)):
        yield flatbuffers.table.Table(parent.Bytes, parent.Indirect(start + 4 * index))


def root_of(data):
    return flatbuffers.table.Table(data, number.UOffsetTFlags.py_type(int.from_bytes(data[:4], "little")))


def test_vectors_are_present_even_if_empty():
    lonely = task_graph([compute(0)], n_devices=1)
    alone = Fabric.from_links(name="alone", n_hosts=1, links=[], bandwidth=1.0, latency=0.0)
    root = root_of(WRITE(plan(alone, lonely)))
    assert {name: vector_length(root, slot) for name, slot in VECTORS.items()} == {
        "conn": 0,
        "ops": 0,
        "tasks": 1,
        "devices": 1,
        "routes": 1,
        "rings": None,
    }
    assert [vector_length(task, 5) for task in tables(root, VECTORS["tasks"])] == [0]
    assert [vector_length(route, 2) for route in tables(root, VECTORS["routes"])] == [0]


def test_a_file_without_identifier_and_at_its_root():
    data = WRITE(plan())
    root = root_of(data)
    assert [root.Get(number.Uint32Flags, root.Pos + root.Offset(4 + 2 * slot)) for slot in (0, 1, 2)] == [1, 4, 1]
    assert root.Get(number.Float32Flags, root.Pos + root.Offset(4 + 2 * 5)) == 12_500_000  # 100 Gbps in bytes/ms


def test_devices_and_identifiers():
    columns = columns_of(plan())
    device, task = columns["devices"].values, columns["tasks"].values
    assert device["type"].tolist() == [0] * 4 + [14] * 4
    assert device["deviceproperty"].tolist() == [0, 1, 2, 3, 0 * 5 + 1, 1 * 5 + 2, 2 * 5 + 3, 3 * 5 + 0]
    assert device["nodeid"].tolist() == [0, 1, 2, 3] + [2**64 - 1] * 4
    assert len(set(device["deviceid"].tolist())) == 8
    assert len(set(task["taskid"].tolist())) == 13
    assert set(task["deviceid"][:-1].tolist()) == set(device["deviceid"].tolist())
    assert task["deviceid"][-1] == 0
    assert task["type"].tolist() == [0] * 4 + [5] * 4 + [1] * 4 + [6]
    assert task["runtime"].tolist() == [0.5] * 4 + [0.0] * 4 + [1.0] * 4 + [0.25]
    assert task["xfersize"].tolist() == [0] * 4 + [1_000_000] * 4 + [0] * 4 + [4_000_000]


def test_an_all_reduce_lists_its_members():
    columns = columns_of(plan(taskgraph=tasks(members=[2, 0, 3, 1])))
    following = columns["tasks"].values["nexttasks"]
    assert following.values[following.ptr[12] :].tolist() == [2, 0, 3, 1]


def test_connections_once_per_pair_with_their_links():
    conn = columns_of(plan(star(count=3)))["conn"].values
    assert conn["fromnode"].tolist() == [4] * 4
    assert conn["tonode"].tolist() == [0, 1, 2, 3]
    assert conn["nconn"].tolist() == [3] * 4


def test_every_ordered_pair_has_an_entry():
    fabric = ring(5)
    columns = columns_of(plan(fabric))["routes"].values
    pairs = list(zip(columns["fromnode"].tolist(), columns["tonode"].tolist(), strict=True))
    assert pairs == [(a, b) for a in range(5) for b in range(5)]
    paths = columns["paths"]
    assert np.diff(paths.ptr).tolist() == [0 if a == b else 1 for a, b in pairs]
    hops = paths.values["hopnode"]
    linked = set(zip(fabric.link_src.tolist(), fabric.link_dst.tolist(), strict=True))
    for path, pair in enumerate(pair for pair in pairs if pair[0] != pair[1]):
        nodes = hops.values[hops.ptr[path] : hops.ptr[path + 1]].tolist()
        assert (nodes[0], nodes[-1]) == pair
        assert set(itertools.pairwise(nodes)) <= linked


def test_only_everybody_runs_on_the_table_of_rings():
    """With one, FlexNetPacket takes the members of any group for the first hosts."""
    served = ring(8, {8: ((1,), (7,))})

    def types(fabric, members):
        return set(columns_of(plan(fabric, tasks(8, members=members)))["tasks"].values["type"].tolist())

    assert types(ring(8), [1, 3, 5, 7]) == {0, 1, 5, 6}  # no table: rings in listed order, over the routes
    assert types(served, list(range(8))) == {0, 1, 5, 6}
    for members in ([1, 3, 5, 7], [0, 1, 5], list(range(8))[::-1]):
        assert types(served, members) == {0, 1, 4, 5}
    table = columns_of(plan(served, tasks(8, members=[0, 1, 5])))["rings"].values
    assert table["ringsz"].tolist() == [8]


def test_a_timeline_gives_transfers_their_time():
    made = plan()
    count = made.taskgraph.n_tasks
    line = Timeline(
        start=np.zeros(count),
        finish=np.full(count, 0.004),
        makespan=0.004,
        device_busy=np.zeros(4),
        link_bytes=np.zeros(8),
        link_busy=np.zeros(8),
        bounds=reference.plan().timeline.bounds,
        events=0,
    )
    assert columns_of(attrs.evolve(made, timeline=line))["tasks"].values["runtime"].tolist()[3:9] == [
        0.5,
        *[4.0] * 4,
        1.0,
    ]


def test_operators_of_the_model():
    ops = columns_of(reference.plan())["ops"].values
    assert ops["name"] == ("dense1", "dense2")
    assert ops["type"].tolist() == [5, 5]


# ── What the format cannot say ──────────────────────────────────────────────────────────────────────────


def test_several_devices_in_a_host():
    cluster = Cluster.uniform(n_hosts=2, devices_per_host=2)
    with pytest.raises(TopoplanError, match=r"devices_per_host is 2, .*--gpus-per-device"):
        WRITE(plan(star(2), tasks(4), cluster=cluster))


def test_one_way_links():
    fabric = Fabric.from_links(name="way", n_hosts=3, links=[(0, 1), (1, 2), (2, 0)], bandwidth=1e9, latency=0.0)
    with pytest.raises(TopoplanError, match="link 0 -> 1 has no equal link back"):
        WRITE(plan(fabric, tasks(3)))


def test_links_that_are_no_whole_number_of_interfaces():
    made = plan()
    with pytest.raises(TopoplanError, match="link 0 -> 4 of 100 Gbps is no whole number of interfaces of 80 Gbps"):
        WRITE(attrs.evolve(made, cluster=Cluster.uniform(n_hosts=4, interface_bandwidth=80 * GBPS)))


def test_a_message_of_a_host_to_itself():
    graph = tasks()
    with pytest.raises(TopoplanError, match="stays on one host"):
        WRITE(plan(taskgraph=attrs.evolve(graph, dst=graph.src)))


# ── Reading ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("fabric", [star(), star(4, 2), ring(), ring(4, {4: ((1,), (3,))})], ids=str)
def test_reading_gives_what_was_written(fabric):
    made = plan(fabric)
    found = read(WRITE(made), "x.fbuf")
    assert found.taskgraph == made.taskgraph
    assert attrs.evolve(found.fabric, name=fabric.name, routes=None) == fabric
    assert (found.fabric.routes is None) == (fabric.n_switches == 1)
    assert found.cluster.interface_bandwidth.tolist() == [100 * GBPS] * 4
    assert WRITE(found) == WRITE(made)


def test_a_changed_plan_is_not_written_as_it_was_read():
    found = read(edited(drambw=put(0, 7.0)), "x")
    assert columns_of(found)["drambw"].tolist() == [7.0]
    slower = attrs.evolve(found.fabric, link_latency=found.fabric.link_latency * 2)  # the file holds no latency
    assert columns_of(attrs.evolve(found, fabric=slower))["drambw"].tolist() == [7.0]
    assert columns_of(attrs.evolve(found, fabric=ring()))["nswitch"].tolist() == [0]  # simulated on another network
    longer = attrs.evolve(found.taskgraph, seconds=found.taskgraph.seconds * 2)
    changed = columns_of(attrs.evolve(found, taskgraph=longer))
    assert changed["drambw"].tolist() == [32 * 1024 * 1024]
    assert changed["tasks"].values["runtime"].tolist() == [1.0] * 4 + [0.0] * 4 + [2.0] * 4 + [0.5]


def edited(**changes):
    """A small file with some columns replaced, and its decoded columns."""
    flat = flatten(columns_of(plan()), "")
    for key, change in changes.items():
        name = key.replace("__", ".")
        flat[name] = np.array(change(flat[name].copy()), dtype=flat[name].dtype)
    return encode(unflatten(flat, ""))


def put(index, value):
    def change(column):
        column[index] = value
        return column

    return change


def test_a_later_connection_replaces_the_earlier():
    def again(column):
        return [*column, column[0]]

    more = edited(conn__fromnode=again, conn__tonode=again, conn__nconn=lambda c: [*c, 7], conn__ptr=put(1, 5))
    assert read(more, "x").fabric.link_count.tolist() == [7, 1, 1, 1, 7, 1, 1, 1]


def test_a_message_on_another_device_is_computing():
    found = read(edited(devices__type=put(4, 12)), "x")
    assert found.taskgraph.kind[4] == TaskKind.FORWARD
    assert (found.taskgraph.device[4], found.taskgraph.n_devices, found.cluster.n_devices) == (4, 5, 5)
    assert found.cluster.device_preset[4] == "NVLINK"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks__type": put(0, 2)}, r"x: tasks\[0\]\.type: 2 \("),
        ({"tasks__type": put(0, 7)}, r"x: tasks\[0\]\.type: 7 \("),
        ({"tasks__type": put(4, 0)}, r"x: tasks\[4\]\.type: 0 \(must be 5 on a network device"),
        ({"tasks__taskid": put(3, 1)}, r"x: tasks\[3\]\.taskid: 1 occurs twice"),
        ({"tasks__deviceid": put(2, 99)}, r"x: tasks\.deviceid: 99 is in no row of devices"),
        ({"tasks__nexttasks": put(0, 99)}, r"x: tasks\.nexttasks: 99 is in no row of tasks"),
        ({"tasks__nexttasks": put(15, 4)}, r"x: tasks\.nexttasks: .* member 4"),
        ({"tasks__runtime": put(1, -1.0)}, r"x: tasks\[1\]\.runtime: -1\.0"),
        ({"tasks__runtime": put(1, np.nan)}, r"x: tasks\[1\]\.runtime: nan"),
        ({"tasks__xfersize": put(4, 2**63)}, r"x: tasks\[4\]\.xfersize: 9223372036854775808"),
        ({"devices__type": put(0, 5)}, r"x: devices\[0\]\.type: 5"),
        ({"devices__deviceid": put(1, 1)}, r"x: devices\[1\]\.deviceid: 1 occurs twice"),
        ({"devices__deviceproperty": put(1, 4)}, r"x: devices\[1\]\.deviceproperty: 4 \(must be a GPU below 4"),
        ({"devices__deviceproperty": put(1, 0)}, "a GPU number occurs twice"),
        ({"devices__deviceproperty": put(5, 24)}, r"x: devices\[5\]\.deviceproperty: 24"),
        ({"conn__tonode": put(0, 5)}, r"x: conn\[0\]: joins node 4 to 5"),
        ({"conn__tonode": put(0, 4)}, r"x: conn\[0\]: joins node 4 to 4"),
        ({"routes__tonode": put(0, 5)}, r"x: routes\[0\]: from node 0 to 5"),
        ({"routes__paths__hopnode": put(0, 1)}, r"x: routes\[1\]\.paths: .* from node 1 to 1 \(must be two of 4 hosts"),
        ({"routes__paths__hopnode": put(2, 4)}, r"x: routes\[1\]\.paths: .* from node 0 to 4 \(must be two of 4 hosts"),
        ({"routes__paths__hopnode": put(1, 2)}, r"x: routes\[1\]\.paths: no connection between nodes 0 and 2"),
        ({"routes__paths__hopnode": put(1, 9)}, r"x: routes\[1\]\.paths: node 9"),
        ({"nnode": put(0, 0)}, "x: nnode 0"),
        ({"nnode": put(0, 2**32 - 1)}, "x: nnode 4294967295"),
        ({"nswitch": put(0, 2**22)}, "x: nnode 4 x ngpupernode 1, nswitch 4194304: too many for"),
        ({"netbw": put(0, 0.0)}, "x: netbw: 0.0"),
        ({"netbw": put(0, np.inf)}, "x: netbw: inf"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_impossible_content_is_named(changes, message):
    with pytest.raises(TopoplanError, match=message):
        read(edited(**changes), "x")


SMALL = WRITE(plan(ring(4, {4: ((1,), (3,))})))


def survives(data):
    """Read ``data``; only a `TopoplanError` of one line that names the file may come out."""
    try:
        found = read(data, "odd.fbuf")
    except TopoplanError as error:
        problem = str(error)
    else:
        found.taskgraph.check()
        return
    assert problem.startswith("odd.fbuf: ")
    assert "\n" not in problem


def test_every_truncation_is_survived():
    for length in range(0, len(SMALL), 7):
        survives(SMALL[:length])


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200))
@example(b"")
@example(b"\x04\0\0\0\x04\0\0\0")
def test_random_bytes_are_survived(data):
    survives(data)


PLACES = st.integers(0, len(SMALL) // 4 - 1)
VALUES = st.sampled_from([2**31 - 1, 2**31, 2**32 - 1, 2**32 - 4, 0x7FA00000]) | st.integers(0, 300)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(PLACES, VALUES, min_size=1, max_size=4))
def test_mutations_are_survived(changes):
    words = np.frombuffer(SMALL[: len(SMALL) // 4 * 4], dtype="<u4").copy()
    for place, value in changes.items():
        words[place] = value
    survives(words.tobytes())


def test_sharing_a_vector_cannot_blow_up():
    """Many tables that point to one long vector would claim more than the file holds."""
    builder = flatbuffers.Builder(0)
    shared = builder.CreateNumpyVector(np.zeros(50_000, dtype="<u8"))
    places = []
    for _ in range(10_000):
        builder.StartObject(6)
        builder.PrependUOffsetTRelativeSlot(5, shared, 0)
        places.append(builder.EndObject())
    builder.StartVector(4, len(places), 4)
    for place in places:
        builder.PrependUOffsetTRelative(place)
    found = builder.EndVector()
    builder.StartObject(12)
    builder.PrependUOffsetTRelativeSlot(8, found, 0)
    builder.Finish(builder.EndObject())
    with pytest.raises(TopoplanError, match=r"x: tasks\.nexttasks: vectors of 500000000 items"):
        read(bytes(builder.Output()), "x")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**64 - 1), max_size=4), max_size=5), st.text(max_size=5))
def test_columns_survive_the_wire(vectors, text):
    columns = decode(SMALL, "small")
    count = len(vectors)
    columns["tasks"] = Rows(
        np.array([0, count]),
        {
            "type": np.arange(count, dtype="<i2"),
            "taskid": np.array([sum(v) % 2**64 for v in vectors], dtype="<u8"),
            "deviceid": np.zeros(count, dtype="<u8"),
            "runtime": np.linspace(0, 1, count, dtype="<f4"),
            "xfersize": np.full(count, 2**63, dtype="<u8"),
            "nexttasks": Rows(np.cumsum([0, *map(len, vectors)]), np.array([*itertools.chain(*vectors)], dtype="<u8")),
        },
    )
    columns["ops"] = Rows(np.array([0, 1]), {"opid": np.ones(1, "<u8"), "type": np.ones(1, "<u8"), "name": (text,)})
    before, after = flatten(columns, ""), flatten(decode(encode(columns), "x"), "")
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert np.array_equal(value, after[key]), key
