"""Worker processes: `process_pool` starts some for jobs; a `Worker` answers requests over a pipe.

All workers have three things in common.  They ignore Ctrl-C, which the first process handles.  They end with the one
that started them, however that one ends.  And what they raise arrives in the first process as an exception that it can
read (`topoplan_engine.packing.sendable`).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import resource_tracker
from typing import Any, TypeVar

from topoplan.errors import TopoplanError
from topoplan.plugin.host import Host
from topoplan_engine.blame import naming_plugins
from topoplan_engine.interrupt import Stop
from topoplan_engine.packing import sendable, unpacked

__all__ = ["Worker", "interrupts_ignored", "process_pool", "run_job", "run_named", "takes_turn"]

#: Seconds between two looks at whether the user has stopped it, while the first process waits for an answer.
_POLL = 0.1

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")
_host = cache(unpacked)
#: A semaphore of the pool, of one turn.
_turns: list[Any] = []


def process_pool(processes: int) -> ProcessPoolExecutor:
    """Start processes that run what is submitted to them.

    All of them start at once, each with a call that does nothing: a pool does not watch a process that it starts
    together with a job until something wakes the pool.  If such a process died at once, nobody would know before
    another job is finished.

    Raises:
        BrokenProcessPool: one of them died.
    """
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, spawn, initializer=_start, initargs=(spawn.Semaphore(1),))
    with interrupts_ignored():
        for _ in range(processes):
            pool.submit(_ready)
    return pool


def _ready() -> None:
    """Do nothing, in a worker."""


def run_job(plugins: bytes, function: Callable[[Host, _Job], _Result], name: str, job: _Job) -> _Result:
    """Run a job in a worker: in a thread, because a search in the main one would handle Ctrl-C and end early."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run_named, plugins, function, name, job).result()


def run_named(plugins: bytes, function: Callable[[Host, _Job], _Result], name: str, job: _Job) -> _Result:
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
    """A process with a session (`topoplan_engine.executors.Session`), at the other end of a pipe."""

    def __init__(self, lost: str, plugins: bytes, make: Callable[..., Callable[[Any], Any]], *args: Any) -> None:
        """Start a process that answers requests by what ``make(host, stop, *args)`` returns.

        Args:
            lost: message if it ends before it answers.
            plugins: of the host.
            make: of a module that the process can import.
            args: for ``make``.
        """
        self._lost, self._stopped = lost, False
        context = multiprocessing.get_context("spawn")
        self._pipe, far_end = context.Pipe()
        self._process = context.Process(target=_serve, args=(far_end, plugins, make, args), daemon=True)
        with interrupts_ignored():
            self._process.start()
        far_end.close()

    def send(self, request: Any) -> None:
        """Send a request.

        Raises:
            TopoplanError: the process has ended.
        """
        self._send(("request", request))

    def _send(self, message: tuple[str, Any]) -> None:
        try:
            self._pipe.send(message)
        except OSError:
            raise TopoplanError(self._lost) from None

    def answer(self, stop: Stop) -> Any:
        """Return what the process answers; pass on that the user wants to stop, meanwhile.

        Raises:
            TopoplanError: the process has ended.
            Exception: that the process sent for an answer.
        """
        try:
            while not self._pipe.poll(_POLL):
                if stop.wanted and not self._stopped:
                    self._stopped = True
                    self._send(("stop", None))
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


class _RemoteStop(Stop):
    """A stop request of the first process, sent through the pipe; nothing else is sent while a request is answered."""

    def __init__(self, pipe: Any) -> None:
        self._pipe, self._requested = pipe, False

    @property
    def wanted(self) -> bool:  # type: ignore[override]
        """Poll the pipe; searches read this once for each proposal."""
        if not self._requested and self._pipe.poll():
            self._requested = self._pipe.recv()[0] == "stop"
        return self._requested


def _serve(pipe: Any, plugins: bytes, make: Callable[..., Callable[[Any], Any]], args: Any) -> None:
    """Answer requests until the pipe is closed; the first process handles Ctrl-C and passes it on."""
    _start()
    host: Host | None = None
    server: Callable[[Any], Any] | None = None
    while True:
        try:
            kind, request = pipe.recv()
        except (EOFError, OSError):
            return
        if kind == "stop":  # the request was answered already
            continue
        answer: Any
        try:
            host = host or unpacked(plugins)
            with naming_plugins(host):
                server = server or make(host, _RemoteStop(pipe), *args)
                answer = server(request)
        except Exception as error:
            answer = sendable(error)
        try:
            pipe.send(answer)
        except OSError:  # the first process has closed the pipe
            return


@contextmanager
def interrupts_ignored() -> Iterator[None]:
    """Start processes that ignore Ctrl-C from their first moment on; here it is handled as ever, at the end at latest.

    They inherit that this thread blocks the signal, until `_start` ignores it.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()  # it would unblock the signal
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def takes_turn() -> bool:
    """Say whether this process is the one of its pool that tells what all of them wait for: the first that asks.

    >>> takes_turn()  # in no pool
    True
    """
    return all(turn.acquire(block=False) for turn in _turns)


def _start(*turns: Any) -> None:
    """Prepare a worker: Ctrl-C is the first process's, and the worker ends when that one is gone.

    A worker that waits for work at a queue does not notice that nobody is left to give it any.
    """
    _turns[:] = turns
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
