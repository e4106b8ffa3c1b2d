"""Executors: chosen by name, with one line for what is wrong; Dask workers give what processes give."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time

import attrs
import pytest
import worker_jobs
from kept_searches import without_clock

from topoplan import Host, TopoplanError
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.executors import Processes, dask, executor_from, run_jobs
from topoplan_engine.executors.dask import Dask


def test_an_executor_is_chosen_by_name():
    assert executor_from("processes", 3) == Processes(workers=3)
    assert executor_from("processes:workers=2", 3) == Processes(workers=2)
    assert executor_from("dask:address=tcp://10.0.0.1:8786", 3) == Dask(address="tcp://10.0.0.1:8786")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("proceses", "--executor: no executor 'proceses'; did you mean 'processes'?"),
        ("processes:workers=0", "executor processes: workers: 0 is too small (at least 1)"),
        ("dask:adress=x", "executor dask: no option 'adress'; did you mean 'address'?"),
        ("dask", "executor dask: which scheduler? (write dask:address=tcp://HOST:8786)"),
        ("dask:scheduler-file=none.json", "executor dask: scheduler-file: no file none.json"),
        (
            "dask:scheduler-file=none.json,address=tcp://a:1",
            "executor dask: address and scheduler-file are both given (name one scheduler)",
        ),
    ],
)
def test_what_is_wrong_is_one_line(run, comparison, monkeypatch, text, message):
    pytest.importorskip("distributed")
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    status, out, err = run("compare", "small.toml", "--executor", text)
    assert (status, out) == (2, "")
    assert err == f"error: {message}\n"


def test_without_the_package_the_line_says_what_to_install(run, comparison, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    status, _, err = run("compare", "small.toml", "--executor", "dask:address=tcp://127.0.0.1:1")
    assert (status, err) == (
        2,
        "error: executor dask: needs the package distributed: pip install 'topoplan-engine[dask]'\n",
    )


@pytest.fixture(scope="module")
def cluster():
    """Return a Dask cluster of two processes, which start again when they are killed."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0") as cluster:
        yield cluster


def pids(cluster):
    """Return the processes of a cluster's workers that are past their start: Dask gives up one that dies before."""
    processes = [nanny.process for nanny in cluster.workers.values()]
    return [process.pid for process in processes if process is not None and process.status.name == "running"]


def jobs(cluster, work, on_result=lambda number, result: None):
    """Run jobs on a cluster; return their results by number, and whether it was interrupted."""
    results = {}

    def finish(number, result):
        results[number] = result
        on_result(number, result)

    executor = Dask(address=cluster.scheduler_address)
    stopped = run_jobs(Host.discover(), worker_jobs.run, work, [f"job {job}" for job in work], executor, finish)
    return results, stopped


@pytest.mark.slow
def test_dask_workers_run_jobs(cluster):
    assert jobs(cluster, [9, 0, 3]) == ({0: 81, 1: 0, 2: 9}, False)


@pytest.mark.slow
def test_a_job_that_fails_is_named_and_later_ones_are_not_started(cluster):
    with pytest.raises(TopoplanError, match=r"^job late: is late$"):
        jobs(cluster, [1, "late", "early", 2])
    with pytest.raises(TopoplanError, match=r"^a worker process: UnicodeDecodeError: .*nothing"):
        jobs(cluster, [1, "breaks"])


@pytest.mark.slow
def test_a_job_that_kills_every_worker_is_named(cluster, monkeypatch):
    monkeypatch.setattr(cluster.scheduler, "allowed_failures", 1)
    with pytest.raises(TopoplanError, match=r"^job dies: every Dask worker that ran it died \(out of memory\?\)$"):
        jobs(cluster, ["dies", 1])


@pytest.mark.slow
def test_ctrl_c_lets_jobs_finish_and_a_second_one_does_not(cluster):
    def stop(number, result):
        os.kill(os.getpid(), signal.SIGINT)

    results, stopped = jobs(cluster, [0, 40, 1, 2, 3, 4], stop)
    assert stopped
    assert {0, 1} <= results.keys() < {0, 1, 2, 3, 4, 5}

    def stop_twice(number, result):
        stop(number, result)
        stop(number, result)

    assert jobs(cluster, [0, 6000, 6000], stop_twice) == ({0: 0}, True)


@pytest.mark.slow
def test_other_versions_are_refused(cluster, monkeypatch):
    monkeypatch.setattr("topoplan_engine.executors.dask.versions_of", lambda host: (("topoplan-searcher-mcmc", "9"),))
    with pytest.raises(TopoplanError, match=r"^a Dask worker has topoplan-searcher-mcmc .* in place of 9 \(install"):
        jobs(cluster, [1])


class Killer(threading.Thread):
    """Kills the workers of a cluster, one after the other, until it has killed enough."""

    def __init__(self, cluster, count, every):
        super().__init__(daemon=True)
        self.cluster, self.count, self.every, self.killed = cluster, count, every, 0

    def run(self):
        while self.killed < self.count:
            time.sleep(self.every)
            alive = pids(self.cluster)
            if alive:
                try:
                    os.kill(alive[self.killed % len(alive)], signal.SIGKILL)
                except ProcessLookupError:
                    continue
                self.killed += 1


@pytest.mark.slow
def test_a_study_and_a_sweep_are_the_same_where_workers_are_killed(run, cluster, finished):
    dask = f"dask:address={cluster.scheduler_address}"
    here = run("compare", "small.toml", "--json")
    killer = Killer(cluster, 2, 1.0)
    killer.start()
    there = run("compare", "small.toml", "--json", "--executor", dask, "--runs", "new")
    assert here[0] == there[0] == 0, there[2]
    assert without_clock(json.loads(here[1])) == without_clock(json.loads(there[1]))
    words = ("sweep", "alexnet", "-s", "mcmc", "--budget", "300", "--batch-sizes", "16,32,64,128", "--json")
    one = run(*words, "-j", "1")
    two = run(*words, "--executor", dask)
    killer.join()
    assert one[:2] == two[:2], two[2]
    assert len(json.loads(two[1])["rows"]) == 4
    assert killer.killed == 2


CHAINS = Experiment(
    model="alexnet",
    cluster=ClusterOptions(servers=4, interface_bandwidth_gbps=10.0),
    run=RunOptions(batch_size=64, budget=800, seed=1, chains=4),
)


def on(experiment, executor):
    """Return the experiment with its chains on an executor."""
    return attrs.evolve(experiment, run=attrs.evolve(experiment.run, executor=executor))


def what_it_found(outcome):
    """Return all that a search gives, but for the seconds that it took."""
    result = outcome.result
    return (
        pickle.dumps(result.best.strategy),
        result.best_cost,
        result.evaluations,
        result.acceptance,
        result.history[:, [0, 2]].tolist(),
        outcome.seconds,
        outcome.plan.provenance,
    )


@pytest.mark.slow
def test_chains_are_the_same_where_workers_are_killed(cluster):
    here, rounds = optimize(CHAINS), []

    def kill_now_and_then(event, progress):
        rounds.extend([progress.evaluations] * (event == "evaluated"))
        if event == "evaluated" and len(rounds) in (4, 10):
            os.kill(pids(cluster)[0], signal.SIGKILL)

    there = optimize(on(CHAINS, f"dask:address={cluster.scheduler_address}"), on_progress=kill_now_and_then)
    assert what_it_found(there) == what_it_found(here)
    assert len(rounds) == 17


def test_an_executor_of_chains_that_is_none_is_told_before_anything_runs(run):
    status, _, err = run("optimize", "alexnet", "--executor", "dsk")
    assert (status, err) == (2, "error: --executor: no executor 'dsk'; did you mean 'dask'?\n")


class Future:
    """A future of `Client`."""

    def __init__(self, key, address):
        self.key, self.address, self.state, self.callbacks = key, address, "pending", []

    def done(self):
        return self.state != "pending"

    def add_done_callback(self, function):
        self.callbacks.append(function)

    def finish(self):
        self.state = "finished"
        for function in self.callbacks:
            function(self)

    def cancel(self):
        self.state = "cancelled"

    def result(self, timeout):
        if self.state != "finished":
            raise TimeoutError
        return self.key, None


class Client:
    """A client of Dask whose workers go and come as a test says, with jobs that they never take over by themselves."""

    status = "running"

    def __init__(self, *workers):
        self.workers, self.futures = list(workers), []

    def nthreads(self):
        return dict.fromkeys(self.workers, 1)

    def processing(self):
        return {
            worker: [f.key for f in self.futures if f.address == worker and not f.done()] for worker in self.workers
        }

    def submit(self, function, *arguments, workers, allow_other_workers, pure):
        self.futures.append(Future(f"job {len(self.futures)}", *workers))
        return self.futures[-1]


@pytest.fixture
def pool(monkeypatch):
    """Return a client with one worker and its pool, which has one job and loses no time with waiting."""
    monkeypatch.setattr(dask, "_LOOK", 0.0)
    monkeypatch.setattr(dask, "_STRANDED", 0.0)
    client = Client("a")
    pool = dask._DaskPool(client, b"", ())
    pool.start(7, worker_jobs.run, "seven", 1)
    return client, pool


def test_a_job_whose_last_worker_died_is_started_on_one_that_came_later(pool):
    client, pool = pool
    assert list(pool.wait(0.0)) == []
    assert len(client.futures) == 1  # it is at work
    client.workers = []
    assert list(pool.wait(0.0)) == []
    assert len(client.futures) == 1  # there is nobody
    client.workers = ["b"]
    assert list(pool.wait(0.0)) == []
    assert [(future.address, future.state) for future in client.futures] == [("a", "cancelled"), ("b", "pending")]
    assert pool.running == 1
    client.futures[1].finish()
    assert list(pool.wait(1.0)) == [(7, "job 1", None)]
    assert pool.running == 0


def test_a_job_that_another_worker_took_over_is_left_to_it(pool):
    client, pool = pool
    client.workers, client.futures[0].address = ["b"], "b"
    assert list(pool.wait(0.0)) == []
    assert len(client.futures) == 1
    client.futures[0].finish()
    assert list(pool.wait(1.0)) == [(7, "job 0", None)]


def test_a_job_whose_result_was_lost_with_its_worker_is_done_again(pool):
    client, pool = pool
    client.futures[0].finish()
    client.futures[0].state, client.workers = "lost", ["b"]
    assert list(pool.wait(1.0)) == []
    assert pool.running == 1
    assert list(pool.wait(0.0)) == []
    assert [future.address for future in client.futures] == ["a", "b"]
    client.futures[1].finish()
    assert list(pool.wait(1.0)) == [(7, "job 1", None)]
    assert pool.running == 0


def test_a_job_that_is_lost_again_and_again_is_named(pool):
    client, pool = pool
    said = []
    for worker in "bcdefgh":
        client.workers = [worker]
        said += pool.wait(0.0)
    ((number, result, error),) = said
    assert (number, result) == (7, None)
    assert str(error) == "seven: every Dask worker that ran it died (out of memory?)"
    assert [future.address for future in client.futures] == ["a", "b", "c", "d"]


@pytest.fixture
def one_worker():
    """Return a Dask cluster of one process, which starts again when it is killed, and which ends after a minute."""
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0") as own:
        timer = threading.Timer(60.0, own.close)
        timer.start()
        yield own
        timer.cancel()


@pytest.mark.slow
def test_a_job_is_done_again_where_the_only_worker_died_and_another_one_came(one_worker, tmp_path):
    assert jobs(one_worker, [tmp_path / "died", 3]) == ({0: "again", 1: 9}, False)


@pytest.mark.slow
def test_a_job_is_done_again_where_the_only_worker_died_with_its_result(one_worker, monkeypatch):
    outcome, killed = dask._DaskPool._outcome, []

    def too_late(pool, future, name):
        if not killed:
            killed.extend(pids(one_worker))
            os.kill(killed[0], signal.SIGKILL)
            while killed[0] in pids(one_worker):
                time.sleep(0.05)
            while future.status == "finished":
                time.sleep(0.05)
        return outcome(pool, future, name)

    monkeypatch.setattr(dask._DaskPool, "_outcome", too_late)
    monkeypatch.setattr(dask, "_ANSWERS", 2.0)
    assert jobs(one_worker, [2, 3]) == ({0: 4, 1: 9}, False)
    assert len(killed) == 1


@pytest.mark.slow
def test_a_scheduler_that_ends_is_one_line():
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0") as own:
        timer = threading.Timer(2.0, own.close)
        timer.start()
        with pytest.raises(TopoplanError, match=r"^executor dask: the scheduler does not answer any more"):
            jobs(own, [1, 6000])
        timer.join()


def test_nothing_at_the_address_is_one_line(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("topoplan_engine.executors.dask._ANSWERS", 0.5)
    with pytest.raises(TopoplanError, match=r"^executor dask: no scheduler answers at tcp://127.0.0.1:1: "):
        Dask(address="tcp://127.0.0.1:1").client()
