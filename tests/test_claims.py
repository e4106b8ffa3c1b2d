"""Claims in a shared folder: one participant gets a job, a dead one loses it, and no clocks are compared."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading

import pytest

from topoplan import TopoplanError
from topoplan_engine.executors.claims import Claims


class Clock:
    """Seconds that a test sets."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(params=["links", "no links"])
def folder(request, tmp_path, monkeypatch):
    """Return a folder on a file system with hard links, and one without."""
    if request.param == "no links":

        def link(source, target):
            raise OSError(errno.EOPNOTSUPP, "not supported")

        monkeypatch.setattr(os, "link", link)
    return tmp_path / "claims"


def test_one_of_two_gets_a_job_until_it_is_released(folder):
    with Claims(folder) as one, Claims(folder) as two:
        assert one.take("a")
        assert not two.take("a")
        assert two.take("b")
        assert (one.others(), two.others()) == ({"b"}, {"a"})
        one.release("a")
        assert two.take("a")
    assert list(folder.iterdir()) == []


def test_of_many_threads_exactly_one_gets_each_job(folder):
    wins, barrier = [], threading.Barrier(8)
    with Claims(folder) as first:
        participants = [first, *(Claims(folder).__enter__() for _ in range(7))]

        def claim(participant):
            barrier.wait()
            wins.extend(job for job in map(str, range(40)) if participant.take(job))

        threads = [threading.Thread(target=claim, args=(participant,)) for participant in participants]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(wins, key=int) == list(map(str, range(40)))
        for participant in participants[1:]:
            participant.__exit__(None, None, None)


DEAD = """
import os, sys
from pathlib import Path
from topoplan_engine.executors.claims import Claims
Claims(Path(sys.argv[1])).__enter__().take("a")
os._exit(9)
"""


def test_claims_of_a_process_of_this_machine_that_died_are_stale_at_once(tmp_path):
    subprocess.run([sys.executable, "-c", DEAD, tmp_path], check=False)
    assert sorted(path.name.rpartition(".")[2] for path in tmp_path.iterdir()) == ["1", "alive"]
    with Claims(tmp_path) as claims:
        assert claims.others() == set()
        assert [path.name for path in tmp_path.glob("*.alive")] == [f"{claims.name}.alive"]
        assert claims.take("a")
        assert (tmp_path / "a.2").exists()
    assert list(tmp_path.iterdir()) == []


def elsewhere(monkeypatch, name="another machine"):
    monkeypatch.setattr("topoplan_engine.executors.claims._machine", lambda: name)


def test_claims_of_another_machine_are_stale_when_its_file_does_not_change(folder, monkeypatch):
    clock = Clock()
    with monkeypatch.context() as patch:
        elsewhere(patch)
        dead = Claims(folder, heartbeat=1e9)
        dead.__enter__().take("a")
    with Claims(folder, expires=60, clock=clock) as claims:
        assert not claims.take("a")
        clock.now = 59.0
        assert not claims.take("a")
        assert claims.others() == {"a"}
        os.utime(dead._own)  # it lives
        assert not claims.take("a")
        clock.now = 118.0
        assert not claims.take("a")
        clock.now = 119.0
        assert claims.take("a")
        assert dead.take("a") is False  # it was only suspended, and somebody else has the job now
    dead.__exit__(None, None, None)
    assert list(folder.iterdir()) == []


def test_files_of_dead_participants_of_other_machines_go_when_somebody_has_watched_them_long_enough(
    folder, monkeypatch
):
    clock = Clock()
    with monkeypatch.context() as patch:
        elsewhere(patch)
        dead, alive = (Claims(folder, heartbeat=1e9).__enter__() for _ in range(2))
    (folder / "unreadable.alive").write_text("{")
    everything = {"unreadable.alive", f"{dead.name}.alive", f"{alive.name}.alive"}
    for seconds, left in ((59.0, everything), (60.0, {f"{alive.name}.alive"})):
        with Claims(folder, expires=60, clock=clock):
            clock.now += seconds
            os.utime(alive._own, (clock.now, clock.now))
        assert {path.name for path in folder.iterdir()} == left
    alive.__exit__(None, None, None)


def test_a_participant_that_was_taken_for_dead_writes_its_file_again_and_keeps_its_claims(folder, monkeypatch):
    clock = Clock()
    with monkeypatch.context() as patch:
        elsewhere(patch)
        suspended = Claims(folder, heartbeat=1e9).__enter__()
        suspended.take("a")
    with Claims(folder, expires=60, clock=clock) as watching:
        assert watching.others() == {"a"}
        clock.now = 59.0
        suspended._own.unlink()  # a third one has watched it for longer
        assert watching.others() == {"a"}
        clock.now = 118.0
        assert suspended.take("b")
        assert watching.others() == {"a", "b"}
        assert not watching.take("b")
        suspended.release("a")
        assert watching.take("a")
        suspended.__exit__(None, None, None)
    assert list(folder.iterdir()) == []


def test_where_machines_cannot_be_told_apart_no_process_counts_as_dead_at_once(folder, monkeypatch):
    elsewhere(monkeypatch, None)
    monkeypatch.setattr("topoplan_engine.executors.claims._alive", lambda pid: False)
    with Claims(folder) as one, Claims(folder) as two:
        assert one.take("a")
        assert not two.take("a")
        assert two.others() == {"a"}


@pytest.mark.parametrize("skew", [-1e6, 1e6])
def test_a_clock_that_is_wrong_by_days_changes_nothing(folder, monkeypatch, skew):
    clock = Clock()
    with monkeypatch.context() as patch:
        elsewhere(patch)
        other = Claims(folder, heartbeat=1e9).__enter__()
        other.take("a")
    touched = 1_700_000_000 + skew
    os.utime(other._own, (touched, touched))
    with Claims(folder, expires=60, clock=clock) as claims:
        for clock.now in range(0, 600, 50):
            touched += 5
            os.utime(other._own, (touched, touched))
            assert not claims.take("a")
    other.__exit__(None, None, None)


def test_a_participant_shows_that_it_lives(tmp_path):
    with Claims(tmp_path, heartbeat=0.01) as claims:
        os.utime(claims._own, (0, 0))
        for _ in range(500):
            if claims._own.stat().st_mtime:
                break
            threading.Event().wait(0.01)
        assert claims._own.stat().st_mtime
        claims._own.unlink()  # somebody cleans up
        for _ in range(500):
            if claims._own.exists():
                break
            threading.Event().wait(0.01)
        assert claims._own.exists()


def test_a_claim_that_cannot_be_read_is_stale_after_a_while(tmp_path):
    clock = Clock()
    (tmp_path / "a.1").write_text("{")
    with Claims(tmp_path, expires=60, clock=clock) as claims:
        assert not claims.take("a")
        clock.now = 60.0
        assert claims.take("a")


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TopoplanError, match=r"file/claims: no claims can be written \(Not a directory\)$"):
        Claims(tmp_path / "file" / "claims").__enter__()
