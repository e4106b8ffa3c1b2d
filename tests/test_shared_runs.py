"""A folder of runs that several processes share: each run is done once, and no participant's end loses any."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kept_searches import without_clock

from topoplan_engine.executors.claims import Claims
from topoplan_studies.shared import SharedRuns
from topoplan_studies.store import Store


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def queue(store, claims, found, *, wait=True, count=3):
    """Return a queue of runs ``a``, ``b``, ``c``."""
    return SharedRuns(dict(enumerate("abcdefgh"[:count])), store, claims, found.__setitem__, wait=wait)


def test_runs_are_taken_once_and_results_of_others_are_found(store, monkeypatch):
    monkeypatch.setattr("topoplan_studies.shared._LOOK", 0.0)
    folder = store.folder / "claims"
    with Claims(folder) as one, Claims(folder) as two:
        found_by_one, found_by_two = {}, {}
        first, second = queue(store, one, found_by_one), queue(store, two, found_by_two)
        taken = {first.take(), first.take()}
        third = second.take()
        assert taken | {third} == {0, 1, 2}
        assert (first.take(), second.take()) == (None, None)
        assert not first.finished
        store.put("abc"[third], {}, {"x": 1})
        second.release(third)
        assert first.take() is None
        assert found_by_one == {third: {"x": 1}}
        assert first.finished
        assert not second.finished
        for number in taken:
            store.put("abc"[number], {}, {"x": 2})
            first.release(number)
        assert second.take() is None
        assert found_by_two == {number: {"x": 2} for number in taken}
        assert second.finished


def test_a_run_that_was_finished_just_before_it_is_claimed_is_not_repeated(store):
    with Claims(store.folder / "claims") as claims:
        found = {}
        runs = queue(store, claims, found, count=2)
        store.put("a", {}, {"x": 1})
        assert runs.take() == 1
        assert found == {0: {"x": 1}}
        assert claims.others() == set()
        assert [path.name for path in (store.folder / "claims").glob("*.1")] == ["b.1"]


def test_who_does_not_wait_ends_when_others_do_what_is_left(store):
    folder = store.folder / "claims"
    with Claims(folder) as one, Claims(folder) as two:
        assert two.take("b")
        runs = queue(store, one, {}, wait=False, count=2)
        assert runs.take() == 0
        assert runs.take() is None
        assert runs.finished
        waiting = queue(store, one, {}, count=2)
        assert waiting.take() is None
        assert not waiting.finished


#: A plugin that leaves a file behind for every search that begins, and then takes its time.
COUNTER = """
import os, secrets, time
from pathlib import Path
from topoplan import hookimpl

@hookimpl
def topoplan_run_started(run):
    Path(f"began-{os.getpid()}-{secrets.token_hex(4)}").touch()
    time.sleep(float(os.environ.get("TOPOPLAN_TEST_SLEEP", "0.2")))
"""


@pytest.fixture
def participant(tmp_path, tmp_path_factory, comparison):
    """Start ``topoplan compare`` on the comparison, with words of its own."""
    site = tmp_path_factory.mktemp("counter")
    (site / "counter_plugin.py").write_text(COUNTER)
    folder = site / "counter_plugin-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: counter-plugin\nVersion: 1\n")
    (folder / "entry_points.txt").write_text("[topoplan]\ncounter = counter_plugin\n")
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH", "")]))
    processes = []

    def participant(*words, sleep=0.2):
        process = subprocess.Popen(
            [sys.executable, "-m", "topoplan", "compare", "small.toml", "--json", *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": path, "TOPOPLAN_TEST_SLEEP": str(sleep)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        processes.append(process)
        return process

    yield participant
    for process in processes:
        process.kill()
        process.communicate()


def runs_in(folder):
    """Return the runs of a folder by the names of their files, without what a clock measured."""
    return {path.name: without_clock(json.loads(path.read_text(encoding="utf-8"))) for path in folder.glob("*.json")}


@pytest.mark.slow
def test_three_participants_do_every_run_once_and_all_have_the_report(participant, run, finished, tmp_path):
    _, alone, _ = run("compare", "small.toml", "--json")
    several = [participant("--runs", "new") for _ in range(3)]
    ends = [process.communicate() for process in several]
    assert [process.returncode for process in several] == [0, 0, 0], ends
    assert [without_clock(json.loads(out)) for out, _ in ends] == [without_clock(json.loads(alone))] * 3
    assert len(list(tmp_path.glob("began-*"))) == 8
    assert runs_in(tmp_path / "new") == runs_in(tmp_path / ".topoplan-runs")
    assert list((tmp_path / "new/claims").iterdir()) == []


@pytest.mark.slow
def test_runs_of_a_participant_that_is_killed_are_taken_over(participant, run, finished, tmp_path):
    _, alone, _ = run("compare", "small.toml", "--json")
    doomed = participant("--runs", "new", sleep=600)
    while not list(tmp_path.glob("began-*")):
        assert doomed.poll() is None, doomed.communicate()
        time.sleep(0.05)
    assert len(list((tmp_path / "new/claims").glob("*.1"))) == 1
    os.killpg(doomed.pid, signal.SIGKILL)
    doomed.communicate()
    heir = participant("--runs", "new")
    out, err = heir.communicate()
    assert heir.returncode == 0, err
    assert without_clock(json.loads(out)) == without_clock(json.loads(alone))
    assert len(list(tmp_path.glob("began-*"))) == 9
    assert not list((tmp_path / "new/claims").glob("*.[0-9]"))


@pytest.mark.slow
def test_an_array_task_ends_without_a_report_when_others_do_the_rest(participant, tmp_path):
    slow = participant("--runs", "new", sleep=600)
    while not list(tmp_path.glob("began-*")):
        assert slow.poll() is None, slow.communicate()
        time.sleep(0.05)
    task = participant("--runs", "new", "--no-wait")
    out, err = task.communicate()
    assert (task.returncode, out) == (0, ""), err
    assert "7 of 8 runs are kept in new; other processes do the rest" in err
    assert len(list((tmp_path / "new").glob("*.json"))) == 7
    os.killpg(slow.pid, signal.SIGKILL)  # two SIGINTs so close to each other may arrive as one
    slow.communicate()
    assert json.loads(participant("--runs", "new").communicate()[0])["rows"]


@pytest.mark.slow
def test_jobs_of_submitit_share_the_runs(tmp_path):
    pytest.importorskip("submitit")
    script = Path(__file__).parents[1] / "examples/submitit_study.py"
    words = [sys.executable, str(script), "--cluster", "local"]
    ended = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert [line.partition(":")[0] for line in ended.stdout.splitlines()] == ["switch", "cables"]
    assert len(list((tmp_path / "runs").glob("*.json"))) == 4
    assert list((tmp_path / "runs/claims").iterdir()) == []
