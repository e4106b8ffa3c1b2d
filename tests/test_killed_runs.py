"""Processes that are killed: their search goes on to the same result, and they leave no other process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kept_searches import SEARCHES, journals

TESTS = Path(__file__).parent
TOPOPLAN = [sys.executable, "-c", "from topoplan.cli import main; main()"]
pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks, and asks the system for processes")
#: Searches that are killed ten times each: all kinds but the one that is killed five times.
KILLED = [name for name in SEARCHES if name != "mcmc"]


def kill(path, name, count):
    """Kill a search so many times, and check that all that were finished are equal."""
    words = [sys.executable, TESTS / "killing.py", path, name, str(count), "7"]
    paths = [str(TESTS), str(TESTS / "samples"), os.environ.get("PYTHONPATH", "")]
    ended = subprocess.run(
        words, env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert report["kills"] == count
    plan, prices = (path / "whole" / "best.json").read_bytes(), journals(path / "whole")
    for number in range(report["runs"]):
        assert (path / str(number) / "best.json").read_bytes() == plan
        assert journals(path / str(number)) == prices


@pytest.mark.slow  # .ci/run runs it all the same
def test_a_search_that_is_killed_five_times_has_the_same_result(tmp_path):
    kill(tmp_path, "mcmc", 5)


@pytest.mark.slow
@pytest.mark.parametrize("name", KILLED)
def test_a_search_that_is_killed_ten_times_has_the_same_result(tmp_path, name):
    kill(tmp_path, name, 10)


def children(process):
    """Return the processes that one started, and those that they started."""
    own = []
    for task in Path(f"/proc/{process}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            own += [child, *children(child)]
    return own


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


SMALL = ["alexnet", "--servers", "4", "--batch-size", "64"]
COMMANDS = {
    "chains": ["optimize", *SMALL, "--budget", "100000000", "--chains", "2", "--workers", "2"],
    "sweep": ["sweep", *SMALL[:3], "--batch-sizes", "64,128,256", "--budget", "100000000", "--jobs", "2"],
    "compare": ["compare", *SMALL, "-n", "bigswitch,fattree", "--budget", "100000000", "--jobs", "2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("name", COMMANDS)
def test_no_worker_is_left_when_a_command_is_killed(tmp_path, name, number):
    with subprocess.Popen(
        [*TOPOPLAN, *COMMANDS[name]], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        until = time.monotonic() + 120
        while len(own := children(process.pid)) < 2 or not at_work(own):
            assert process.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        process.send_signal(number)
    until = time.monotonic() + 30
    while left := [child for child in own if is_alive(child)]:
        assert time.monotonic() < until, left
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_comparison_that_is_asked_to_end_leaves_no_claims(tmp_path, jobs):
    """One that is killed cannot: the next participant removes what it left (`test_claims`)."""
    words = ["compare", "dlrm", "-n", "bigswitch,fattree", "-s", "mcmc", "--budget", "100000000", "--jobs", jobs]
    words += ["--runs", "runs"]
    with subprocess.Popen([*TOPOPLAN, *words], cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as one:
        until = time.monotonic() + 120
        while not list((tmp_path / "runs").glob("claims/*.1")):
            assert one.poll() is None
            assert time.monotonic() < until
            time.sleep(0.1)
        time.sleep(0.5)
        one.send_signal(signal.SIGTERM)
        said = one.communicate(timeout=30)[1].decode()
    assert one.returncode == 130
    assert "interrupted: 0 of 2 runs are kept in runs" in said
    assert "Traceback" not in said
    assert not list((tmp_path / "runs" / "claims").iterdir())


def at_work(processes):
    """Say whether two of these have used a second of processor time, so that they are past their start."""
    ticks = os.sysconf("SC_CLK_TCK")
    seconds = []
    for process in processes:
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:
            continue
        seconds.append((int(fields[11]) + int(fields[12])) / ticks)
    return sum(used > 1.0 for used in seconds) >= 2


@pytest.mark.slow
def test_a_command_that_is_killed_is_resumed_by_a_command(tmp_path):
    words = ["optimize", *SMALL, "--budget", "2000", "-x", "json=plan.json"]
    here = {"cwd": tmp_path, "capture_output": True, "text": True, "check": True}
    whole = subprocess.run([*TOPOPLAN, *words, "--run", "whole"], **here)
    plan = (tmp_path / "plan.json").read_bytes()
    (tmp_path / "plan.json").unlink()
    with subprocess.Popen([*TOPOPLAN, *words, "--run", "a"], cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        journal = tmp_path / "a" / "prices-0-0.csv"
        while not journal.exists() or journal.stat().st_size < 5000:
            assert process.poll() is None
            time.sleep(0.01)
        process.kill()
    assert not (tmp_path / "plan.json").exists()
    again = subprocess.run([*TOPOPLAN, "resume", "a"], **here)
    assert (tmp_path / "plan.json").read_bytes() == plan
    assert unlike_seconds(again.stdout) == unlike_seconds(whole.stdout)


def unlike_seconds(text):
    """Return what was printed without what a clock measured."""
    return [line for line in text.splitlines() if not any(word in line for word in ("/s)", "planned in"))]
