"""Worker processes of this machine."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, ClassVar

import attrs

from topoplan.errors import TopoplanError
from topoplan.options import option
from topoplan.plugin.host import Host
from topoplan_engine.executors.base import Executor, Pool, Session
from topoplan_engine.interrupt import Stop
from topoplan_engine.packing import packed
from topoplan_engine.workers import Worker, interrupts_ignored, process_pool, run_job

__all__ = ["Processes"]

#: Processes at most: each takes some 100 MB, whatever it does.
_FOR_EACH_CORE, _LEAST_LIMIT = 4, 16


@attrs.frozen(kw_only=True)
class Processes(Executor):
    """Processes of this machine, which end with the one that started them."""

    name: ClassVar[str] = "processes"

    workers: int = option(1, help="number of processes", minimum=1)

    def pool(self, host: Host, most: int) -> Pool:
        """Start processes that load the components of ``host``."""
        return _ProcessPool(packed(host), self._processes(most))

    def _processes(self, most: int) -> int:
        """Return how many processes to start for ``most`` jobs: more than some for each core only take turns."""
        return min(self.workers, most, max(_LEAST_LIMIT, _FOR_EACH_CORE * (os.cpu_count() or 1)))

    @contextmanager
    def sessions(
        self,
        host: Host,
        what: str,
        make: Callable[..., Any],
        most: int,
        arguments: Callable[[int], Sequence[Any]],
        stop: Stop,
    ) -> Iterator[list[Session]]:
        """Start a process for each session."""
        plugins = packed(host)
        sessions: list[Worker] = []
        lost = f"{what}: a worker process ended early (use --workers 1 to see why)"
        try:
            for each in arguments(self._processes(most)):
                sessions.append(Worker(lost, plugins, make, *each))
            yield list(sessions)
        finally:
            for session in sessions:
                session.close()


class _ProcessPool:
    """The processes, and which jobs they have."""

    def __init__(self, plugins: bytes, workers: int) -> None:
        self._plugins, self._workers = plugins, workers
        self._jobs: dict[Future[Any], tuple[int, str]] = {}
        self._bystanders = multiprocessing.active_children()
        try:
            self._pool = process_pool(workers)
        except BrokenProcessPool:
            raise self._lost() from None

    @property
    def room(self) -> int:
        return self._workers - len(self._jobs)

    @property
    def running(self) -> int:
        return len(self._jobs)

    def start(self, number: int, function: Callable[[Host, Any], Any], name: str, job: Any) -> None:
        try:
            with interrupts_ignored():
                future = self._pool.submit(run_job, self._plugins, function, name, job)
        except BrokenProcessPool:
            raise self._lost() from None
        self._jobs[future] = number, name

    def wait(self, seconds: float) -> Iterator[tuple[int, Any, Exception | None]]:
        for future in wait(self._jobs, timeout=seconds, return_when=FIRST_COMPLETED).done:
            error = future.exception()
            if isinstance(error, BrokenProcessPool):
                raise self._lost() from None
            if error is not None and not isinstance(error, Exception):
                raise error
            number, _ = self._jobs.pop(future)
            yield number, None if error else future.result(), error

    def _lost(self) -> TopoplanError:
        lost = ", ".join(name for _, name in sorted(self._jobs.values()))
        when = f"during one of: {lost}" if lost else "as it started"
        return TopoplanError(f"a worker process died (out of memory?) {when}")

    def close(self, *, at_once: bool) -> None:
        if at_once:
            for process in multiprocessing.active_children():
                if process not in self._bystanders:
                    process.terminate()
        self._pool.shutdown(cancel_futures=True)
