"""What a page shows of a recording: the critical path, how busy links are over time, memory over time, the search."""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from topoplan import TaskKind
from topoplan.model.recording import Cause, CriticalPath, LinkUse, MemoryLevels, Recording, SearchHistory
from topoplan_engine.reporting.critical_path import critical_path_rows, path_shares
from topoplan_html_report import NamedPlan, report
from topoplan_samples.pages import column, data_of


@pytest.fixture(scope="module")
def recorded(alexnet):
    """The compute of device 0, then the collective that ends last; one link busy in the second half of the time."""
    tasks, line = alexnet.taskgraph, alexnet.timeline
    own = np.flatnonzero(tasks.device == 0)
    own = own[np.argsort(line.start[own], kind="stable")]
    last = int(np.argmax(np.where(tasks.kind == TaskKind.COLLECTIVE, line.finish, 0)))
    path = [*own[line.finish[own] <= line.start[last] + 1e-12].tolist(), last]
    bandwidth = alexnet.fabric.link_bandwidth[3]
    busy = line.makespan / 2
    return attrs.evolve(
        alexnet,
        recording=Recording(
            links=LinkUse(link=[3], task=[last], start=[busy], finish=[line.makespan], nbytes=[busy * bandwidth]),
            critical=CriticalPath(task=path, cause=np.ones(len(path)), by=[-1, *path[:-1]]),
            memory=MemoryLevels(time=[0, 0, busy], device=[0, 0, 0], kind=[0, 3, 3], nbytes=[10, 20, 5]),
        ),
        history=SearchHistory(
            chain=[0, 0, 1],
            evaluation=[0, 7, 3],
            seconds=[0.0, 0.5, 0.25],
            current=[3.0, np.inf, 2.0],
            best=[3.0, 2.0, 2.0],
            accepted=[1, 0, 1],
        ),
    )


@pytest.fixture(scope="module")
def data(recorded, host):
    (plan,) = data_of(report([NamedPlan("recorded", recorded)], host).decode())["plans"]
    return plan


def test_shares_of_the_path_are_the_iteration(recorded):
    shares = path_shares(recorded)
    assert sum(share.seconds for share in shares) == pytest.approx(recorded.timeline.makespan)
    last = recorded.recording.critical.task[-1]
    name = f"all-reduce of {recorded.taskgraph.op_names[recorded.taskgraph.op[last]]}"
    (network,) = [share for share in shares if share.communicates]
    assert network.name == name
    rows = dict(critical_path_rows(recorded))
    assert rows["critical path"] == f"{len(recorded.recording.critical.task)} tasks"
    assert name in rows["  most of it"]


def test_seconds_of_rebuilds_are_the_networks(recorded):
    path = recorded.recording.critical
    chosen = path.task[[0, -1]]
    rebuilt = attrs.evolve(path, task=chosen, cause=[Cause.START, Cause.REBUILD], by=[-1, 0])
    plan = attrs.evolve(recorded, recording=attrs.evolve(recorded.recording, critical=rebuilt))
    line = recorded.timeline
    gap = line.start[chosen[1]] - line.finish[chosen[0]]
    assert gap > 0
    shares = path_shares(plan)
    assert sum(share.seconds for share in shares) == pytest.approx(line.makespan)
    (rebuild,) = [share for share in shares if share.sort == "rebuild"]
    assert rebuild.communicates
    assert rebuild.seconds == pytest.approx(gap)
    rows = dict(critical_path_rows(plan))
    assert rows["  waits for rebuilds"] == f"{gap * 1e3:.4f} ms, {gap / line.makespan:.1%}"


def test_without_a_recording_there_is_no_path(alexnet):
    assert path_shares(alexnet) == critical_path_rows(alexnet) == []


def test_the_sentence_names_what_is_waited_for(recorded, data):
    (network,) = [share for share in path_shares(recorded) if share.communicates]
    assert f"for the network, most of it for the {network.name} (" in data["headline"]["sentence"]


def test_slices_of_the_path_are_marked(recorded, data):
    marked = column(data["iteration"]["critical"])
    assert marked.sum() == len(recorded.recording.critical.task)


def test_a_link_is_busy_when_it_was(data):
    (row,) = [row for row in data["links"]["rows"] if column(row["levels"]).any()]
    assert column(row["levels"]).tolist() == [0] * 400 + [255] * 400
    by_operator = data["links"]["byOperator"]
    assert len(column(by_operator["operator"])) == 1


def test_the_highest_level_of_many_is_shown(recorded, host):
    n_levels = 5000
    nbytes = np.ones(n_levels)
    nbytes[1234] = 7
    times = np.linspace(0, recorded.timeline.makespan, n_levels)
    levels = MemoryLevels(time=times, device=np.zeros(n_levels), kind=np.full(n_levels, 3), nbytes=nbytes)
    plan = attrs.evolve(recorded, recording=attrs.evolve(recorded.recording, memory=levels))
    (data,) = data_of(report([NamedPlan("many", plan)], host).decode())["plans"]
    shown = data["memory"]["overTime"]
    assert len(shown["seconds"]) < 1000
    assert max(shown["bytes"][3]) == 7
    assert shown["seconds"][shown["bytes"][3].index(7)] == pytest.approx(times[1234])


def test_memory_over_time(data):
    levels = data["memory"]["overTime"]
    assert levels["bytes"][0] == [10, 10]
    assert levels["bytes"][3] == [20, 5]


def test_chains_of_the_search(data):
    first, second = data["search"]["chains"]
    assert first["evaluation"] == [0, 7]
    assert first["current"] == [3.0, None]
    assert second["best"] == [2.0]
