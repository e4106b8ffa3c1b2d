"""Worker processes: `run_jobs` runs independent jobs side by side; a `Worker` answers requests over a pipe.

All workers have three things in common.  They ignore Ctrl-C, which the first process handles.  They end with the one
that started them, however that one ends.  And what they raise arrives in the first process as an exception that it can
read (`topoplan_engine.packing.sendable`).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

from topoplan.errors import TopoplanError
from topoplan.plugin.host import Host
from topoplan_engine.blame import naming_plugins
from topoplan_engine.interrupt import interruptible
from topoplan_engine.packing import packed, sendable, unpacked

__all__ = ["Worker", "run_jobs"]

#: Seconds between two checks for an interrupt while the first process waits for workers.
_POLL = 0.1

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")
_host = cache(unpacked)


def run_jobs(
    host: Host,
    function: Callable[[Host, _Job], _Result],
    jobs: Sequence[_Job],
    names: Sequence[str],
    workers: int,
    on_result: Callable[[int, _Result], None],
) -> bool:
    """Run ``function(host, job)`` for each job in worker processes; say whether the user stopped it.

    Results depend neither on the number of workers nor on the order in which jobs finish, if ``function`` takes all
    randomness from the job.  Ctrl-C lets the jobs under way finish and starts no further ones; a second one stops at
    once.

    Args:
        host: provides the components; workers load the same ones.
        function: of a module that workers can import.
        jobs: one or more; started in this order.
        names: of the jobs, for messages.
        workers: number of processes.
        on_result: called in this process with the number of a job and its result, as soon as it is finished.

    Raises:
        TopoplanError: a job failed, which the message names, or a process died.  Jobs under way finish before; of
            several failures that of the first job is raised.
    """
    plugins, queue = packed(host), deque(enumerate(jobs))
    running: dict[Future[_Result], int] = {}
    failures: dict[int, Exception] = {}
    bystanders = multiprocessing.active_children()
    context = multiprocessing.get_context("spawn")
    processes = min(workers, len(jobs))
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_start)
    with interruptible() as stop:
        try:
            _start_processes(pool, processes)
            while True:
                while queue and len(running) < workers and not stop.wanted and not failures:
                    index, job = queue.popleft()
                    with _interrupts_ignored():
                        running[pool.submit(_run, plugins, function, names[index], job)] = index
                if not running:
                    break
                _collect(running, failures, on_result)
        except BrokenProcessPool:
            lost = ", ".join(names[index] for index in sorted(running.values()))
            when = f"during one of: {lost}" if lost else "as it started"
            raise TopoplanError(f"a worker process died (out of memory?) {when}") from None
        except KeyboardInterrupt:  # the second Ctrl-C
            for process in multiprocessing.active_children():
                if process not in bystanders:
                    process.terminate()
        finally:
            pool.shutdown(cancel_futures=True)
        stopped = stop.wanted
    if failures:
        raise failures[min(failures)]
    return stopped


def _collect(
    running: dict[Future[_Result], int], failures: dict[int, Exception], on_result: Callable[[int, _Result], None]
) -> None:
    """Wait a while for running jobs, and move those that have finished to ``on_result`` or ``failures``."""
    for future in wait(running, timeout=_POLL, return_when=FIRST_COMPLETED).done:
        try:
            on_result(running[future], future.result())
        except BrokenProcessPool:
            raise
        except Exception as error:
            failures[running[future]] = error
        del running[future]


def _start_processes(pool: ProcessPoolExecutor, processes: int) -> None:
    """Start all processes of a pool, each with a call that does nothing.

    A pool does not watch a process that it starts together with a job until something wakes the pool.  If such a
    process died at once, nobody would know before another job is finished.
    """
    with _interrupts_ignored():
        for _ in range(processes):
            pool.submit(_ready)


def _ready() -> None:
    """Do nothing, in a worker."""


def _run(plugins: bytes, function: Callable[[Host, _Job], _Result], name: str, job: _Job) -> _Result:
    """Run a job in a worker: in a thread, because a search in the main one would handle Ctrl-C and end early."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_run_named, plugins, function, name, job).result()


def _run_named(plugins: bytes, function: Callable[[Host, _Job], _Result], name: str, job: _Job) -> _Result:
    """Run a job; an error names the job and, if a plugin caused it, the plugin."""
    try:
        host = _host(plugins)
        with naming_plugins(host):
            return function(host, job)
    except TopoplanError as error:
        raise TopoplanError(f"{name}: {error}") from None
    except Exception as error:
        raise sendable(error) from None


class Worker:
    """A process that answers requests, one after the other, at the other end of a pipe."""

    def __init__(self, lost: str, serve: Callable[..., None], *args: Any) -> None:
        """Start a process that calls ``serve(pipe, *args)``; ``lost`` is the message if it ends before it answers."""
        self._lost = lost
        context = multiprocessing.get_context("spawn")
        self._pipe, far_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(serve, far_end, *args), daemon=True)
        with _interrupts_ignored():
            self._process.start()
        far_end.close()

    def send(self, request: Any) -> None:
        """Send a request.

        Raises:
            TopoplanError: the process has ended.
        """
        try:
            self._pipe.send(request)
        except OSError:
            raise TopoplanError(self._lost) from None

    def answer(self, while_waiting: Callable[[], None]) -> Any:
        """Return what the process answers; ``while_waiting`` is called now and then until it does.

        Raises:
            TopoplanError: the process has ended.
            Exception: that the process sent for an answer.
        """
        try:
            while not self._pipe.poll(_POLL):
                while_waiting()
            answer = self._pipe.recv()
        except (EOFError, OSError):
            raise TopoplanError(self._lost) from None
        if isinstance(answer, Exception):
            raise answer
        return answer

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


def _serve(serve: Callable[..., None], pipe: Any, *args: Any) -> None:
    _start()
    serve(pipe, *args)


@contextmanager
def _interrupts_ignored() -> Iterator[None]:
    """Ignore Ctrl-C: a process that is started meanwhile does so from its first moment on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _start() -> None:
    """Prepare a worker: Ctrl-C is the first process's, and the worker ends when that one is gone.

    A worker that waits for work at a queue does not notice that nobody is left to give it any.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
