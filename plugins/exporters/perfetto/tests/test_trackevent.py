"""Perfetto's own format: what is written is read back field by field here, and by the real UI in `test_ui`."""

from __future__ import annotations

import struct
import time
import zlib
from collections import Counter, defaultdict
from itertools import pairwise
from typing import NamedTuple

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from topoplan import Cluster, Host, Plan, TaskGraph, TaskKind
from topoplan.model.recording import MemoryKind
from topoplan.testing import reference
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_exporter_perfetto import Perfetto, trackevent, wire
from topoplan_exporter_perfetto.slices import lanes_of
from topoplan_exporter_perfetto.tracks import busy_links
from topoplan_samples.fabrics import star

WRITE = Perfetto().write
QUIET = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def varint(data, place):
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 127) << shift
        shift, place = shift + 7, place + 1
        if byte < 128:
            return value, place


def fields(data):
    """Read a message: field -> values, numbers or bytes."""
    place, values = 0, defaultdict(list)
    while place < len(data):
        key, place = varint(data, place)
        if key & 7 == 0:
            value, place = varint(data, place)
        elif key & 7 == 1:
            value, place = struct.unpack_from("<Q", data, place)[0], place + 8
        else:
            assert key & 7 == 2
            size, place = varint(data, place)
            value, place = bytes(data[place : place + size]), place + size
            assert len(value) == size
        values[key >> 3].append(value)
    return values


def packets(data):
    """Read the packets of a trace, which are compressed."""
    for outer in map(fields, fields(data)[1]):
        (block,) = outer.pop(50)
        assert not outer
        yield from map(fields, fields(zlib.decompress(block))[1])


class Slice(NamedTuple):
    track: int
    start: int
    end: int
    name: str
    categories: tuple[str, ...]
    arguments: dict
    out: tuple[int, ...]
    into: tuple[int, ...]


class Trace:
    """A trace, read: tracks (number -> name, parent, counter), slices and counters in the order of the file."""

    def __init__(self, data):
        self.tracks, self.slices, self.counters = {}, [], defaultdict(list)
        open_slices = {}
        names = {}
        for packet in packets(data):
            assert packet[10] == [1]
            if 12 in packet:
                assert packet[13] == [3]
                for field, entries in fields(packet[12][0]).items():
                    for entry in map(fields, entries):
                        names[field, entry[1][0]] = entry[2][0].decode()
            for descriptor in map(fields, packet.get(60, [])):
                unit = fields(descriptor[8][0]) if 8 in descriptor else None
                parent = descriptor.get(5, [0])[0]
                assert parent == 0 or self.tracks[parent][3] == [3]  # EXPLICIT
                self.tracks[descriptor[1][0]] = descriptor[2][0].decode(), parent, unit, descriptor.get(11, [])
            for event in map(fields, packet.get(11, [])):
                (track,), (now,) = event[11], packet[8]
                if event[9] == [1]:
                    assert track not in open_slices, "slices of one track overlap"
                    assert packet[13] == [2]
                    notes = [fields(note) for note in event.get(4, [])]
                    arguments = {
                        names[3, note[1][0]]: note[3][0] if 3 in note else names[29, note[17][0]] for note in notes
                    }
                    categories = tuple(names[1, number] for number in event[3])
                    flows = tuple(event.get(47, ())), tuple(event.get(48, ()))
                    open_slices[track] = now, names[2, event[10][0]], categories, arguments, *flows
                elif event[9] == [2]:
                    start, *rest = open_slices.pop(track)
                    self.slices.append(Slice(track, start, now, *rest))
                else:
                    assert event[9] == [4]
                    self.counters[track].append((now, event[30][0]))
        assert not open_slices

    def path(self, track):
        """Return the names of a track and of those above it, from the root on."""
        name, parent, *_ = self.tracks[track]
        return (*(self.path(parent) if parent else ()), name)


@pytest.fixture(scope="module")
def searched():
    return optimize(
        Experiment(
            model="alexnet",
            cluster=ClusterOptions(servers=4, degree=2),
            topology="topoopt",
            searchers=["mcmc"],
            run=RunOptions(batch_size=64, budget=60, seed=2, record=True),
        ),
        host=Host.discover(),
    ).plan


@pytest.fixture(params=["small", "pipelined", "searched"])
def plan(request, searched):
    return {"small": reference.plan, "pipelined": reference.pipelined, "searched": lambda: searched}[request.param]()


def of_devices(trace):
    return [each for each in trace.slices if each.categories[0] in ("compute", "send", "collective")]


def test_every_task_is_there_when_it_runs(plan):
    tasks, timeline, trace = plan.taskgraph, plan.timeline, Trace(WRITE(plan))
    counts = Counter()
    for each in of_devices(trace):
        task = each.arguments["task"]
        counts[task] += 1
        assert (each.start, each.end) == (round(timeline.start[task] * 1e9), round(timeline.finish[task] * 1e9))
        path = trace.path(each.track)
        device = int(path[1].split()[1])
        if each.categories[0] == "compute":
            assert path[2:] in ((), ("compute",))
            assert device == tasks.device[task]
        elif each.categories[0] == "send":
            assert (path[2], device) == ("sends", tasks.src[task])
            assert each.arguments["bytes"] == tasks.size[task]
        else:
            assert path[2] == "collectives"
            assert device in tasks.members(task)
            assert each.arguments["members"] == len(tasks.members(task))
    collective = tasks.kind == TaskKind.COLLECTIVE
    assert [counts[t] for t in range(tasks.n_tasks)] == [
        len(tasks.members(t)) if collective[t] else 1 for t in range(tasks.n_tasks)
    ]


def test_every_dependency_is_one_flow(plan):
    trace = Trace(WRITE(plan))
    ends = defaultdict(lambda: [None, None])
    for each in trace.slices:
        for way, flows in enumerate((each.out, each.into)):
            for flow in flows:
                assert ends[flow][way] is None
                ends[flow][way] = each.arguments["task"]
    assert sorted(tuple(flow) for flow in ends.values()) == sorted(reference.edges_of(plan.taskgraph))


def test_slices_of_a_track_follow_each_other(plan):
    last = {}
    for each in Trace(WRITE(plan)).slices:
        assert last.get(each.track, 0) <= each.start <= each.end
        last[each.track] = each.end


def test_the_critical_path_is_the_first_track_and_has_no_gaps(searched):
    trace = Trace(WRITE(searched))
    path = [each for each in trace.slices if each.categories == ("critical",)]
    assert {trace.path(each.track) for each in path} == {("iteration: critical path",)}
    assert [each.arguments["task"] for each in path] == searched.recording.critical.task.tolist()
    assert path[0].start == 0
    assert path[-1].end == round(searched.timeline.makespan * 1e9)
    assert all(a.end == b.start for a, b in pairwise(path))
    assert path[0].arguments["waited for"] == "nothing"
    marked = {each.arguments["task"] for each in of_devices(trace) if "critical" in each.categories}
    assert marked == set(searched.recording.critical.task.tolist())


def test_links_are_busy_as_long_as_rows_say(searched):
    trace, rows = Trace(WRITE(searched)), searched.recording.links
    nbytes, seconds = Counter(), Counter()
    for each in trace.slices:
        if each.categories == ("link",):
            link = trace.path(each.track)[2]
            nbytes[link, each.arguments["task"]] += each.arguments["bytes"]
            seconds[link, each.arguments["task"]] += each.end - each.start
    fabric = searched.fabric
    expected, lasted, pieces = Counter(), Counter(), Counter()
    for row in range(len(rows.link)):
        link, task = int(rows.link[row]), int(rows.task[row])
        key = f"host {fabric.link_src[link]} to host {fabric.link_dst[link]}", task
        expected[key] += rows.nbytes[row]
        lasted[key] += (rows.finish[row] - rows.start[row]) * 1e9
        pieces[key] += 1
    assert nbytes.keys() == expected.keys()
    for key in expected:
        assert nbytes[key] == pytest.approx(expected[key], abs=pieces[key])
    alone = [key for key in expected if pieces[key] == 1]
    assert alone
    for key in alone:
        assert seconds[key] == pytest.approx(lasted[key], abs=1.0)


def test_rates_add_up_to_the_bytes_of_each_link(searched):
    trace, fabric = Trace(WRITE(searched)), searched.fabric
    moved = {}
    for track, values in trace.counters.items():
        if trace.tracks[track][0] == "rate":
            times, rates = np.array(values, dtype=np.float64).T
            assert (np.diff(times) > 0).all()
            assert rates[-1] == 0
            moved[trace.path(track)[2]] = (rates[:-1] * np.diff(times)).sum() * 1e-9
    for link in np.flatnonzero(searched.timeline.link_bytes).tolist():
        name = f"host {fabric.link_src[link]} to host {fabric.link_dst[link]}"
        slack = fabric.link_bandwidth[link] * 2e-9 * len(searched.recording.links.link)
        assert moved.pop(name) == pytest.approx(searched.timeline.link_bytes[link], abs=slack)
    assert not moved


def test_memory_is_what_devices_hold(searched):
    trace = Trace(WRITE(searched))
    for device in range(searched.cluster.n_devices):
        (values,) = (
            values
            for track, values in trace.counters.items()
            if trace.path(track)[1].startswith(f"device {device} ") and trace.tracks[track][0] == "memory"
        )
        assert max(value for _, value in values) == pytest.approx(searched.memory.total[device], abs=2)
        assert values[0][0] == 0
    assert set(MemoryKind) >= set(searched.recording.memory.kind.tolist())


def test_a_plan_without_a_recording_shows_its_tasks(searched):
    trace = Trace(WRITE(attrs.evolve(searched, recording=None)))
    assert len(of_devices(trace)) == len(trace.slices)
    assert not trace.counters
    assert trace.tracks[1][0] == "iteration"


def test_equal_plans_give_equal_bytes(plan):
    assert WRITE(plan) == WRITE(attrs.evolve(plan))


def test_packets_are_compressed_some_at_a_time(searched, monkeypatch):
    whole = WRITE(searched)
    monkeypatch.setattr(trackevent, "_TOGETHER", 1000)
    blocks = [zlib.decompress(fields(packet)[50][0]) for packet in fields(WRITE(searched))[1]]
    assert b"".join(blocks) == b"".join(zlib.decompress(fields(packet)[50][0]) for packet in fields(whole)[1])
    assert len(blocks) > 10
    for block in blocks[1:]:  # but for names and tracks
        sizes = [len(packet) for packet in fields(block)[1]]
        assert sum(sizes[:-1]) < 1000


def test_the_exporter_asks_for_a_recording():
    assert Perfetto.records


@QUIET
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.integers(0, 8)), max_size=40))
def test_lanes_hold_one_slice_at_a_time(spans):
    track, start, length = np.array(sorted(spans), dtype=np.int64).reshape(-1, 3).T
    order = np.lexsort((start + length, start, track))
    track, start, end = track[order], start[order], (start + length)[order]
    lane = lanes_of(track, start, end)
    for key in set(zip(track.tolist(), lane.tolist(), strict=True)):
        mine = (track == key[0]) & (lane == key[1])
        assert (start[mine][1:] >= np.maximum(end, start + 1)[mine][:-1]).all()
    for number in set(track.tolist()):
        mine = track == number
        running = [(start[mine] <= t) & (t < np.maximum(end, start + 1)[mine]) for t in range(45)]
        assert lane[mine].max() + 1 == max(int(each.sum()) for each in running)


@QUIET
@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=20), st.data())
def test_messages_by_columns_are_read_one_by_one(values, data):
    column = np.array(values, dtype=np.int64)
    rows = np.array(sorted(data.draw(st.lists(st.integers(0, len(values) - 1), max_size=10))), dtype=np.int64)
    message = wire.within(
        3,
        [wire.flags(1, 7), wire.number(40, column), wire.fixed64(2, column[rows], rows), wire.number(5, rows, rows)],
        len(column),
    )
    sizes = wire.sizes_of(message, len(column))
    buffer = np.zeros(int(sizes.sum()), np.uint8)
    wire.write(buffer, message, np.cumsum(sizes) - sizes)
    read = [fields(inner) for inner in fields(buffer.tobytes())[3]]
    assert [each[40] for each in read] == [[value] for value in values]
    for row, each in enumerate(read):
        assert each[1] == [7]
        assert each.get(2, []) == column[rows[rows == row]].tolist()
        assert each.get(5, []) == [row] * int((rows == row).sum())


def test_rows_of_a_link_without_a_gap_are_one_slice(searched):
    rows = searched.recording.links
    busy = busy_links(rows)
    assert len(busy.task) <= len(rows.task)
    assert busy.nbytes.sum() == pytest.approx(rows.nbytes.sum(), abs=len(rows.task))


def many_tasks(devices=64, steps=783):
    """A hundred thousand tasks: in each step every device computes, and sends to the next one."""
    count = devices * steps
    compute = np.arange(count)
    step, device, source = compute // devices, compute % devices, compute[:-devices]
    sends = np.arange(len(source)) + count
    none = np.full(len(sends), -1)
    target = (step[source] + 1) * devices + (device[source] + 1) % devices
    tails = np.concatenate([source, source, sends])
    heads = np.concatenate([source + devices, sends, target])
    total = count + len(sends)
    zeros = np.zeros(len(sends))
    passes = np.where(step < steps // 2, TaskKind.FORWARD, TaskKind.BACKWARD)
    return TaskGraph(
        kind=np.concatenate([passes, np.full(len(sends), TaskKind.TRANSFER)]),
        device=np.concatenate([device, none]),
        seconds=np.concatenate([np.random.default_rng(0).uniform(5e-5, 2e-4, count), zeros]),
        size=np.concatenate([np.zeros(count, int), np.full(len(sends), 200_000)]),
        src=np.concatenate([np.full(count, -1), device[source]]),
        dst=np.concatenate([np.full(count, -1), (device[source] + 1) % devices]),
        group=np.full(total, -1),
        group_ptr=[0],
        group_members=[],
        succ_ptr=np.concatenate([[0], np.cumsum(np.bincount(tails, minlength=total))]),
        succ=heads[np.argsort(tails, kind="stable")],
        op=np.concatenate([step, step[source]]),
        op_names=tuple(f"layer{number}" for number in range(steps)),
        n_devices=devices,
    )


@pytest.mark.slow
def test_a_hundred_thousand_tasks_take_seconds_and_megabytes():
    tasks, fabric, cluster = many_tasks(), star(64, bandwidth=1.25e10), Cluster.uniform(n_hosts=64)
    assert tasks.n_tasks >= 100_000
    timeline, recording = Host.discover().make("simulator", "fluid").build().record(tasks, fabric, cluster)
    plan = Plan(cluster=cluster, fabric=fabric, taskgraph=tasks, timeline=timeline, recording=recording)
    started = time.process_time()
    data = WRITE(plan)
    seconds = time.process_time() - started
    print(
        f"{tasks.n_tasks} tasks, {len(recording.links.link)} rows of links: {seconds:.2f} s, {len(data) / 1e6:.1f} MB"
    )
    assert seconds < 5
    assert len(data) < 6e6
