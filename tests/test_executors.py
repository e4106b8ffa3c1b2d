"""Executors: chosen by name, with one line for what is wrong; Dask workers give what processes give."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import threading
import time
from contextlib import contextmanager
from importlib.util import find_spec

import attrs
import pytest
import worker_jobs
from kept_searches import without_clock

from topoplan import Host, StagedStrategy, TopoplanError
from topoplan_engine import ClusterOptions, Experiment, RunOptions, optimize
from topoplan_engine.executors import Processes, dask, dask_workers, executor_from, run_jobs
from topoplan_engine.executors.dask import Dask
from topoplan_engine.executors.dask_sessions import DaskSession
from topoplan_engine.experiment import Choice
from topoplan_engine.interrupt import Stop
from topoplan_samples.stated import LLAMA


@pytest.mark.slow
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
    if find_spec("distributed") is None:
        pytest.skip("distributed is not installed")
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


@contextmanager
def local_cluster(count):
    """Start a Dask cluster of processes, which start again when they are killed.

    Dask gives up a process that is not there 15 seconds after it was killed, which a busy machine takes to start one.
    """
    distributed, settings = pytest.importorskip("distributed"), pytest.importorskip("dask").config
    with (
        settings.set({"distributed.deploy.lost-worker-timeout": "1h"}),
        distributed.LocalCluster(
            n_workers=count, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as cluster,
    ):
        yield cluster


@pytest.fixture(scope="module")
def cluster():
    with local_cluster(2) as cluster:
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
def test_hybrid_plans_are_the_same_in_one_process_in_two_and_on_dask(cluster, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA), encoding="utf-8")
    experiment = Experiment(
        model=Choice("huggingface", {"config": str(path)}),
        cluster=ClusterOptions(servers=2, gpus_per_server=4, device="h100"),
        searchers=(Choice("hybrid", {"shortlist": 6}), Choice("mcmc")),
        run=RunOptions(batch_size=32, budget=60, chains=3, precision="bf16"),
    )
    outcomes = [
        optimize(each)
        for each in (
            experiment,
            attrs.evolve(experiment, run=attrs.evolve(experiment.run, workers=2)),
            on(experiment, f"dask:address={cluster.scheduler_address}"),
        )
    ]
    assert isinstance(outcomes[0].plan.strategy, StagedStrategy)
    assert outcomes[0].origin.searcher == "hybrid"
    found = [(outcome.plan.strategy.key, *what_it_found(outcome)[1:]) for outcome in outcomes]
    assert found[0] == found[1] == found[2]


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
def no_waits(monkeypatch):
    """Look at the workers of a cluster every time, and count a task as left alone at once."""
    monkeypatch.setattr(dask_workers, "LOOK", 0.0)
    monkeypatch.setattr(dask_workers, "_STRANDED", 0.0)


@pytest.fixture
def pool(no_waits):
    """Return a client with one worker and its pool, which has one job."""
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


class Answer(Future):
    """A future of `Answering`: how many requests the session has had, or nothing while its result is lost."""

    def __init__(self, key, address, requests):
        super().__init__(key, address)
        self.requests, self.asked = requests, 0

    def result(self, timeout):
        self.asked += 1
        if self.state == "lost":
            self.state = "finished"  # Dask asks for it again
            raise TimeoutError
        return self.address, self.requests, None


class Answering(Client):
    """A client whose workers answer at once what they are sent; what is sent while there are none, nobody takes over.

    A test that would wait for ever fails: the scheduler is gone after a thousand questions.
    """

    questions = 0

    @property
    def status(self):
        self.questions += 1
        return "running" if self.questions < 1000 else "closed"

    def submit(self, function, name, start, requests, *, pure, workers=(), allow_other_workers=True):
        place = next((w for w in (*workers, *self.workers) if w in self.workers), "")
        self.futures.append(Answer(f"request {len(self.futures)}", place, len(requests)))
        if place:
            self.futures[-1].finish()
        return self.futures[-1]

    def run(self, function, name, workers, on_error):
        self.stopped = [*getattr(self, "stopped", []), *workers]


@pytest.fixture
def session(no_waits):
    """Return a client with one worker, and a session there that has answered once."""
    client = Answering("a")
    session = DaskSession(client, dask_workers.Workers(client), "chains", b"", (), print, ())
    session.send("first")
    assert session.answer(Stop()) == 1
    return client, session


def test_a_request_whose_only_worker_died_is_sent_to_one_that_came_later(session):
    client, session = session
    client.workers = []
    session.send("second")
    client.workers = ["b"]
    assert session.answer(Stop()) == 2
    assert [(f.address, f.state) for f in client.futures] == [("a", "finished"), ("", "cancelled"), ("b", "finished")]
    session.send("third")
    assert session.answer(Stop()) == 3
    assert client.futures[-1].address == "b"


def test_an_answer_that_was_lost_with_its_worker_is_waited_for(session):
    client, session = session
    session.send("second")
    client.futures[-1].state = "lost"
    assert session.answer(Stop()) == 2
    assert (client.futures[-1].asked, len(client.futures)) == (2, 2)


def test_a_worker_that_takes_a_session_over_is_told_to_stop_too(session):
    client, session = session
    stop = Stop()
    stop.wanted, client.workers = True, []
    session.send("second")
    client.workers = ["b"]
    assert session.answer(stop) == 2
    assert client.stopped == ["b"]


def test_who_waits_for_the_first_worker_can_stop(no_waits, monkeypatch):
    client, stop = Answering(), Stop()
    client.close = lambda timeout: None
    monkeypatch.setattr(Dask, "client", lambda self: client)
    monkeypatch.setattr(dask, "LOOK", 0.0)

    def looked():
        stop.wanted = client.questions == 3
        if client.status != "running":
            raise OSError
        return {}

    client.nthreads = looked
    sessions = Dask(address="tcp://127.0.0.1:1").sessions(Host.discover(), "sums", worker_jobs.sums, 1, list, stop)
    with pytest.raises(KeyboardInterrupt), sessions:
        pass
    assert client.questions == 4


@pytest.fixture
def one_worker():
    """Return a Dask cluster of one process, which ends after a minute."""
    with local_cluster(1) as own:
        timer = threading.Timer(60.0, own.close)
        timer.start()
        yield own
        timer.cancel()


@pytest.mark.slow
def test_a_job_is_done_again_where_the_only_worker_died_and_another_one_came(one_worker, tmp_path):
    assert jobs(one_worker, [tmp_path / "died", 3]) == ({0: "again", 1: 9}, False)


@pytest.mark.slow
def test_a_session_goes_on_where_the_only_worker_died_and_another_one_came(one_worker, tmp_path):
    executor = Dask(address=one_worker.scheduler_address)
    with executor.sessions(Host.discover(), "sums", worker_jobs.sums, 1, lambda count: [()], Stop()) as (session,):
        sums = []
        for request in (1, 2, tmp_path / "died", 4):
            session.send(request)
            sums.append(session.answer(Stop()))
    assert sums == [1, 3, 3, 7]


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
    monkeypatch.setattr(dask, "ANSWERS", 2.0)
    assert jobs(one_worker, [2, 3]) == ({0: 4, 1: 9}, False)
    assert len(killed) == 1


@pytest.mark.slow
def test_a_scheduler_that_ends_is_one_line():
    with local_cluster(1) as own:
        timer = threading.Timer(2.0, own.close)
        timer.start()
        with pytest.raises(TopoplanError, match=r"^executor dask: the scheduler does not answer any more"):
            jobs(own, [1, 6000])
        timer.join()


def test_nothing_at_the_address_is_one_line(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("topoplan_engine.executors.dask.ANSWERS", 0.5)
    with pytest.raises(TopoplanError, match=r"^executor dask: no scheduler answers at tcp://127.0.0.1:1: "):
        Dask(address="tcp://127.0.0.1:1").client()
