"""Worker processes: plugins that were added in the first one are there, too, and no worker outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import types

import attrs
import cloudpickle
import pytest
import worker_jobs
from idle_search import IdleSearch

from topoplan import Host, Searcher, TopoplanError, hookimpl
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.executors import Processes, run_jobs
from topoplan_engine.experiment import Choice
from topoplan_engine.packing import packed, unpacked
from topoplan_samples.long_tail import at_night

#: Other processes need not find this module: its classes are sent whole, as those of a notebook are.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
SMALL = Experiment(
    model="alexnet",
    cluster=ClusterOptions(servers=2, interface_bandwidth_gbps=10.0),
    run=RunOptions(batch_size=16, budget=4, seed=1, chains=2, workers=2),
)


class Still(IdleSearch):
    """Reports the process that it runs in."""

    def report(self, strategy):
        return {"pid": os.getpid()}


def own(summary="s", build=lambda *_: Still()):
    """Return a searcher that exists in this process alone."""
    members = {"__doc__": summary, "name": "still", "build": build, "axis": "strategy", "constructs": True}
    return type(Searcher)("Own", (Searcher,), {"__module__": "__main__", **members})


@pytest.mark.slow
def test_chains_in_workers_have_the_components_of_this_process():
    report = optimize(attrs.evolve(SMALL, searchers=[own()])).plan.provenance["reports"]["still"]
    assert report["pid"] != os.getpid()


def test_plugins_are_sent_too():
    plugin = types.SimpleNamespace(topoplan_searchers=hookimpl(lambda: [own()]))
    host = Host()
    host.add(plugin, name="mine")
    assert unpacked(packed(host)).get("searcher", "still").summary == "s"


def test_what_cannot_be_sent_is_told_with_what_to_do():
    host = Host()
    held = threading.Lock()
    host.add(own(build=lambda *_: held))
    with pytest.raises(TopoplanError, match=r"plugin 'searcher-still' cannot be sent.*use one worker"):
        packed(host)


def test_a_replaced_component_is_replaced_in_workers_too():
    host = Host()
    host.add(own())
    host.add(own("second"), replace=True)
    assert unpacked(packed(host)).get("searcher", "still").summary == "second"


@pytest.mark.parametrize(
    ("how", "message"),
    [
        pytest.param(
            "raises",
            r"^searcher 'still' \(plugin 'mine'\): build raised ZeroDivisionError: by zero$",
            marks=pytest.mark.slow,
        ),
        ("dies", r"^chains: a worker process ended early \(use --workers 1 to see why\)$"),
    ],
)
def test_a_worker_that_fails_is_one_line(capfd, how, message):
    first = os.getpid()

    def fail(*given):
        if how == "raises":
            raise ZeroDivisionError("by zero")
        if os.getpid() != first:
            os.kill(os.getpid(), signal.SIGKILL)
        return Still()

    host = Host.discover()
    host.add(own(build=fail), name="mine")
    with pytest.raises(TopoplanError, match=message):
        optimize(attrs.evolve(SMALL, searchers=Choice("still")), host=host)
    assert "Traceback" not in capfd.readouterr().err


PARENT = """
import multiprocessing, sys, time
from concurrent.futures import ProcessPoolExecutor
from topoplan_engine.workers import _start as start

def pid(_):
    import os
    return os.getpid()

if __name__ == "__main__":
    pool = ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"), initializer=start)
    print(*pool.map(pid, range(1)), flush=True)
    time.sleep(60)
"""


@pytest.mark.by_day(2)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the system for processes")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_outlives_its_parent(tmp_path, number):
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT))
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        workers = {int(word) for word in parent.stdout.readline().split()}
        parent.send_signal(number)
    assert workers
    for _ in range(200):
        if not any(_alive(pid) for pid in workers):
            return
        time.sleep(0.05)
    raise AssertionError(f"still there: {workers}")


def _alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
        return stat.read().rpartition(")")[2].split()[0] != "Z"


def jobs(work, workers):
    """Run jobs; return their results by number, and whether it was interrupted."""
    results = {}
    stopped = run_jobs(
        Host(), worker_jobs.run, work, [f"job {job}" for job in work], Processes(workers=workers), results.__setitem__
    )
    return results, stopped


@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_have_their_results_whatever_finishes_first(workers):
    assert jobs([9, 0, 3], workers) == ({0: 81, 1: 0, 2: 9}, False)


@pytest.mark.parametrize("workers", at_night([1, 2], 1))
def test_the_first_job_that_fails_is_named_even_if_a_later_one_fails_sooner(workers):
    with pytest.raises(TopoplanError, match=r"^job late: is late$"):
        jobs([1, "late", "early", 2], workers)


@pytest.mark.slow
def test_an_exception_of_any_class_comes_back():
    with pytest.raises(UnicodeDecodeError, match="nothing"):
        jobs([1, "breaks"], 2)


def test_jobs_of_a_process_that_dies_are_named():
    with pytest.raises(TopoplanError, match=r"^a worker process died .* during one of: job 6000, job dies$"):
        jobs([6000, "dies"], 2)  # the first one is under way for a minute, unless it is ended


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_and_keeps_what_is_finished():
    results = {}

    def stop_twice(number, result):
        results[number] = result
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    assert run_jobs(Host(), worker_jobs.run, [0, 6000, 6000], ["a", "b", "c"], Processes(workers=2), stop_twice)
    assert results == {0: 0}  # the others, of a minute each, would have finished
