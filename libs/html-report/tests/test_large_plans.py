"""Pages stay small and say what they leave out, whatever the plan has."""

from __future__ import annotations

import numpy as np
import pytest

from topoplan import Plan, TaskGraph, TaskKind, Timeline
from topoplan.model.recording import MemoryUse
from topoplan.model.timeline import Bounds
from topoplan.testing import reference
from topoplan_html_report import NamedPlan, report
from topoplan_html_report.limits import LARGEST, Limits
from topoplan_html_report.reduction import reduced
from topoplan_samples.fabrics import star
from topoplan_samples.pages import column, data_of


def large_plan(devices, tasks, names):
    """Return a plan of devices that compute and send at random, none like another, with operators of long names."""
    rng = np.random.default_rng(0)
    each = tasks // devices
    device = np.repeat(np.arange(devices), each)
    sends = rng.random(len(device)) < 0.3
    seconds = rng.exponential(1e-4, len(device))
    finish = seconds.reshape(devices, each).cumsum(axis=1).ravel()
    graph = TaskGraph(
        kind=np.where(sends, TaskKind.TRANSFER, TaskKind.FORWARD),
        device=np.where(sends, -1, device),
        seconds=np.where(sends, 0.0, seconds),
        size=np.where(sends, 1e6, 0),
        src=np.where(sends, device, -1),
        dst=np.where(sends, (device + rng.integers(1, devices, len(device))) % devices, -1),
        group=np.full(len(device), -1),
        collective=np.full(len(device), -1),
        op=rng.integers(0, names, len(device)),
        op_names=tuple(f"model.decoder.layers.{number}.self_attention.projection" for number in range(names)),
        succ_ptr=np.zeros(len(device) + 1),
        succ=[],
        group_ptr=[0],
        group_members=[],
        n_devices=devices,
    )
    fabric = star(devices)
    busy = np.bincount(device[~sends], seconds[~sends], devices)
    end = float(finish.max())
    timeline = Timeline(
        start=finish - seconds,
        finish=finish,
        makespan=end,
        events=len(device),
        device_busy=busy,
        link_bytes=np.full(fabric.n_links, 1e6),
        link_busy=np.full(fabric.n_links, end / 3),
        bounds=Bounds(device=float(busy.max()), link=end / 3, chain=end / 4),
    )
    held = {field: np.zeros(devices) for field in ("gradients", "optimizer", "undivided")}
    memory = MemoryUse(
        weights=rng.permutation(devices) * 1e7, activations=np.zeros(devices), at_once=np.ones(devices), **held
    )
    cluster = reference.cluster(devices)
    return Plan(cluster=cluster, taskgraph=graph, fabric=fabric, timeline=timeline, memory=memory, provenance={})


def page_of(host, plan, copies=1):
    return report([NamedPlan(f"plan {number}", plan) for number in range(copies)], host)


@pytest.fixture(scope="module")
def plan():
    return large_plan(128, 40_000, 6_000)


@pytest.fixture(scope="module")
def data(host, plan):
    (data,) = data_of(page_of(host, plan).decode())["plans"]
    return data


def test_slices_are_at_most_so_many_and_have_the_time_of_their_devices(plan, data):
    iteration = data["iteration"]
    assert len(column(iteration["start"])) == sum(row["slices"] for row in iteration["rows"]) <= Limits().slices
    computes = column(iteration["kind"]) <= TaskKind.BARRIER
    seconds = (column(iteration["finish"]) - column(iteration["start"]))[computes].sum()
    drawn = [row["devices"][0] for row in iteration["rows"] if row["sort"] == "compute"]
    assert seconds == pytest.approx(plan.timeline.device_busy[drawn].sum())
    assert column(iteration["finish"]).max() <= plan.timeline.makespan * (1 + 1e-12)
    longest = np.sort(plan.timeline.finish - plan.timeline.start)[-100:]
    assert len(drawn) == 64
    assert column(iteration["tasks"]).sum() == np.isin(plan.taskgraph.device + plan.taskgraph.src + 1, drawn).sum()
    assert np.isclose((column(iteration["finish"]) - column(iteration["start"]))[:, None], longest).any()


def test_slices_of_the_only_lane_of_a_device_do_not_overlap(data):
    iteration, first = data["iteration"], 0
    starts, finishes = (column(iteration[name]) for name in ("start", "finish"))
    for row in iteration["rows"]:
        own = slice(first, first := first + row["slices"])
        if row["sort"] == "compute":
            assert (starts[own][1:] >= finishes[own][:-1] - 1e-12).all()


def test_what_is_left_out_is_said(data):
    devices, slices = data["iteration"]["said"]
    assert devices.startswith("Of 128 devices that have tasks, in 128 kinds, 64 are drawn, in 64 kinds")
    alone, runs = (column(data["iteration"]["tasks"]) == 1).sum(), (column(data["iteration"]["tasks"]) > 1).sum()
    drawn = column(data["iteration"]["tasks"]).sum()
    assert f"Of {drawn:,} slices {alone:,} are drawn one by one" in slices
    assert f"the other {drawn - alone:,} are drawn as {runs:,} runs" in slices


def test_memory_shows_the_fullest_first(plan, data):
    fullest = int(np.argmax(plan.memory.weights))
    assert data["memory"]["classes"][0]["label"] == f"device {fullest}"
    held = [sum(each["bytes"]) for each in data["memory"]["classes"]]
    assert held == sorted(held, reverse=True)
    assert held == np.sort(plan.memory.weights)[::-1][:14].tolist()
    assert data["memory"]["said"] == "Not drawn: 114 devices that are less full, with 0.0 KiB to 1.1 GiB."
    (row,) = [row["text"] for row in data["summary"] if row["label"] == "memory per device"]
    assert f"(device {fullest})" in row


def test_operators_that_take_longest_have_names(plan, data):
    assert len(data["operators"]) == Limits().names
    numbers = column(data["iteration"]["operator"])
    assert numbers.max() < len(data["operators"])
    longest = int(np.argmax(plan.timeline.finish - plan.timeline.start))
    assert plan.taskgraph.op_names[plan.taskgraph.op[longest]] in data["operators"]


def test_many_plans_share_a_page(host, plan):
    assert len(page_of(host, plan, 3)) <= LARGEST


@pytest.mark.slow
def test_a_million_tasks_on_a_thousand_devices(host):
    page = page_of(host, large_plan(1024, 1_000_000, 100_000))
    assert len(page) <= LARGEST
    (data,) = data_of(page.decode())["plans"]
    assert len(data["iteration"]["said"]) == 2


def test_few_slices_are_as_they_are():
    start = np.arange(4.0)
    slices = reduced(np.zeros(4, int), np.zeros(4, int), start, start + 0.5, np.zeros(4), start, start > 2, 4)
    assert slices.stretch == 0
    assert slices.task.tolist() == [0, 1, 2, 3]


def test_a_run_is_as_long_as_its_tasks_and_no_run_goes_past_a_long_task():
    """Short tasks of two kinds around a long one: two runs before it, two behind it."""
    seconds = np.array([1, 2, 1, 2, 50, 1, 2, 1, 2]) * 1.0
    kind = np.array([0, 1, 0, 1, 0, 0, 1, 0, 1])
    finish = seconds.cumsum()
    zero = np.zeros(9, int)
    slices = reduced(zero, zero, finish - seconds, finish, kind, seconds, np.arange(9) == 3, 5)
    assert slices.tasks.tolist() == [2, 2, 1, 2, 2]
    assert slices.start.tolist() == [0, 2, 6, 56, 58]
    assert slices.finish.tolist() == [2, 6, 56, 58, 62]
    assert slices.summed.tolist() == [2, 4, 50, 2, 4]
    assert slices.marked.tolist() == [False, True, False, False, False]
    assert kind[slices.task].tolist() == [0, 1, 0, 0, 1]
