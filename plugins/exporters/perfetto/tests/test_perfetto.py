"""The trace obeys the rules of the format, and says when every task runs and what it waits for."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from itertools import pairwise

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topoplan import Collective, Host, TaskKind, TopoplanError
from topoplan.testing import parametrize_with_checks, reference
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_exporter_perfetto import Perfetto
from topoplan_exporter_perfetto.chrome import microseconds


@parametrize_with_checks(Perfetto)
def test_conformance(check):
    check()


@pytest.fixture(scope="module")
def searched():
    return optimize(
        Experiment(
            model="alexnet",
            cluster=ClusterOptions(servers=4, degree=2),
            topology="topoopt",
            searchers=["mcmc"],
            run=RunOptions(batch_size=64, budget=60, seed=2),
        ),
        host=Host.discover(),
    ).plan


@pytest.fixture(params=["small", "pipelined", "searched"])
def plan(request, searched):
    return {"small": reference.plan, "pipelined": reference.pipelined, "searched": lambda: searched}[request.param]()


def events_of(plan):
    trace = json.loads(Perfetto(format="json").write(plan))
    assert list(trace) == ["displayTimeUnit", "traceEvents"]
    return trace["traceEvents"]


def nanoseconds(number):
    """Read a time as trace processors do."""
    return int(number * 1000)


def span(event):
    start = nanoseconds(event["ts"])
    return start, start + nanoseconds(event["dur"])


def test_every_event_has_what_its_phase_needs(plan):
    common = {"ph", "name", "pid", "tid"}
    needed = {
        "M": {"args"},
        "X": {"cat", "ts", "dur", "args"},
        "s": {"cat", "id", "ts"},
        "f": {"cat", "id", "ts", "bp"},
    }
    for event in events_of(plan):
        assert set(event) == common | needed[event["ph"]]
        assert type(event["pid"]) is type(event["tid"]) is int
        assert event["pid"] >= 1
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0


def test_slices_of_one_thread_do_not_overlap(plan):
    threads = defaultdict(list)
    for event in events_of(plan):
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(span(event))
    for spans in threads.values():
        assert spans == sorted(spans)
        assert all(start >= max(end, begin + 1) for (begin, end), (start, _) in pairwise(spans))


def test_every_thread_and_process_has_a_name(plan):
    events = events_of(plan)
    used = {(event["pid"], event["tid"]) for event in events if event["ph"] != "M"}
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert used == named
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert set(processes) == {pid for pid, _ in used}
    assert all(name.startswith(f"device {pid - 1} (") for pid, name in processes.items())


def test_every_task_is_there_when_it_runs(plan):
    tasks, timeline = plan.taskgraph, plan.timeline
    slices = [event for event in events_of(plan) if event["ph"] == "X"]
    shown = Counter(event["args"]["task"] for event in slices)
    for task in range(tasks.n_tasks):
        members = len(tasks.members(task)) if tasks.kind[task] == TaskKind.COLLECTIVE else 1
        assert shown[task] == members
    assert sum(shown.values()) == len(slices)
    for event in slices:
        task = event["args"]["task"]
        assert span(event) == (round(timeline.start[task] * 1e9), round(timeline.finish[task] * 1e9))
        sort = {TaskKind.TRANSFER: "send", TaskKind.COLLECTIVE: "collective"}.get(tasks.kind[task], "compute")
        assert event["cat"] == sort
        if sort == "compute":
            assert event["pid"] == tasks.device[task] + 1
        elif sort == "send":
            assert (event["pid"], event["args"]["bytes"]) == (tasks.src[task] + 1, tasks.size[task])
    end = max(span(event)[1] for event in slices)
    assert end == round(float(timeline.finish.max()) * 1e9)


def test_compute_of_a_device_adds_up(plan):
    busy = np.zeros(plan.taskgraph.n_devices)
    for event in events_of(plan):
        if event["ph"] == "X" and event["cat"] == "compute":
            start, end = span(event)
            busy[event["pid"] - 1] += end - start
    assert busy * 1e-9 == pytest.approx(plan.timeline.device_busy, abs=1e-9 * plan.taskgraph.n_tasks)


def test_every_dependency_is_a_flow_inside_its_slices(plan):
    events = events_of(plan)
    slices = {}
    for event in events:
        if event["ph"] == "X":
            slices.setdefault((event["pid"], event["tid"]), []).append((span(event), event["args"]["task"]))

    def task_at(event):
        time = nanoseconds(event["ts"])
        spans = slices[event["pid"], event["tid"]]
        (task,) = [task for (start, end), task in spans if start <= time < max(end, start + 1)]
        return task

    flows = defaultdict(dict)
    for event in events:
        if event["ph"] in "sf":
            assert event["ph"] not in flows[event["id"]]
            flows[event["id"]][event["ph"]] = event
    assert all(flow["f"]["bp"] == "e" for flow in flows.values())
    edges = [(task_at(flow["s"]), task_at(flow["f"])) for flow in flows.values()]
    assert sorted(edges) == sorted(reference.edges_of(plan.taskgraph))


def test_equal_plans_give_equal_bytes(plan):
    assert Perfetto(format="json").write(plan) == Perfetto(format="json").write(attrs.evolve(plan))


def test_names_say_what_a_task_does(searched):
    names = {event["name"] for event in events_of(searched) if event["ph"] == "X"}
    assert "conv1 forward" in names
    assert any(name.endswith(Collective.ALL_REDUCE.label) for name in names)


def test_a_plan_without_a_timeline_is_refused():
    with pytest.raises(TopoplanError, match="no timeline"):
        Perfetto().write(attrs.evolve(reference.plan(), timeline=None))


@given(st.integers(0, 10**15))
def test_nanoseconds_survive(number):
    assert nanoseconds(microseconds(number)) == number
