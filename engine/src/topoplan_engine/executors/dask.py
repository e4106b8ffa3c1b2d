"""Workers of a Dask cluster, on as many machines as it has.

Each worker process gets one job at a time, whatever its number of threads, because a search keeps one core busy.
Workers may join and leave at any time: the scheduler starts the jobs of a worker that was lost on another one.  A
worker must have the same versions of the same plugins, which is checked before its first job.
"""

from __future__ import annotations

import importlib
import os
import queue
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import attrs

from topoplan.errors import TopoplanError, exception_line
from topoplan.options import option
from topoplan.plugin.host import Host
from topoplan_engine.executors.base import Executor, Pool, Session
from topoplan_engine.executors.dask_sessions import DaskSession
from topoplan_engine.executors.dask_workers import ANSWERS, LOOK, LOST, Workers
from topoplan_engine.executors.remote import run_remote, versions_of
from topoplan_engine.interrupt import Stop
from topoplan_engine.packing import packed

__all__ = ["Dask"]

#: How often a job that was left without a worker is started again.
_STARTS = 3

_INSTALL = "needs the package distributed: pip install 'topoplan-engine[dask]'"


@attrs.frozen(kw_only=True)
class Dask(Executor):
    """The workers of a Dask cluster."""

    name: ClassVar[str] = "dask"

    address: str = option("", help="of the scheduler, e.g. tcp://10.0.0.1:8786; unset: DASK_SCHEDULER_ADDRESS")
    scheduler_file: Path | None = option(None, help="file that `dask scheduler --scheduler-file` wrote, instead")

    def __attrs_post_init__(self) -> None:
        try:
            importlib.import_module("distributed")
        except ImportError:
            raise TopoplanError(f"executor dask: {_INSTALL}") from None
        if self.address and self.scheduler_file:
            raise TopoplanError("executor dask: address and scheduler-file are both given (name one scheduler)")
        if self.scheduler_file and not self.scheduler_file.is_file():
            raise TopoplanError(f"executor dask: scheduler-file: no file {self.scheduler_file}")
        if not (self.scheduler_file or self._address):
            raise TopoplanError("executor dask: which scheduler? (write dask:address=tcp://HOST:8786)")

    @property
    def _address(self) -> str:
        return self.address or os.environ.get("DASK_SCHEDULER_ADDRESS", "")

    def pool(self, host: Host, most: int) -> Pool:
        """Connect to the scheduler, whose workers load the components of ``host``."""
        return _DaskPool(self.client(), packed(host), versions_of(host))

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
        """Start a session for each of the workers that there are now, which come to the same state elsewhere."""
        client, plugins, versions = self.client(), packed(host), versions_of(host)
        sessions: list[DaskSession] = []
        try:
            workers = Workers(client)
            while not workers.addresses():
                if stop.wanted:
                    raise KeyboardInterrupt
                time.sleep(LOOK)
            for each in arguments(min(most, len(workers.addresses()))):
                sessions.append(DaskSession(client, workers, what, plugins, versions, make, each))
            yield list(sessions)
        finally:
            for session in sessions:
                session.close()
            client.close(timeout=ANSWERS)

    def client(self) -> Any:
        """Connect to the scheduler.

        Raises:
            TopoplanError: nothing answers.
        """
        from distributed import Client

        where = str(self.scheduler_file or self._address)
        try:
            scheduler = {"scheduler_file" if self.scheduler_file else "address": where}
            return Client(**scheduler, timeout=ANSWERS, set_as_default=False, name="topoplan")
        except (OSError, ValueError, KeyError) as error:
            raise TopoplanError(
                f"executor dask: no scheduler answers at {where}: {exception_line(error)} (start one: dask scheduler)"
            ) from None


@attrs.frozen
class _Job:
    """A job under way: what it was started with, the worker that was to run it, and how often it was started again."""

    number: int
    name: str
    arguments: tuple[Any, ...]
    address: str
    starts: int = 0


class _DaskPool:
    """Which worker has which job."""

    def __init__(self, client: Any, plugins: bytes, versions: tuple[tuple[str, str], ...]) -> None:
        self._client, self._given = client, (plugins, versions)
        self._jobs: dict[Any, _Job] = {}
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._workers = Workers(client)
        # Jobs whose results are gone.
        self._lost_results: set[Any] = set()

    @property
    def running(self) -> int:
        return len(self._jobs)

    @property
    def room(self) -> int:
        return len(self._idle())

    def _idle(self) -> list[str]:
        """Return the addresses of workers that have no job."""
        busy = {job.address for job in self._jobs.values()}
        return [address for address in self._workers.addresses() if address not in busy]

    def start(self, number: int, function: Callable[[Host, Any], Any], name: str, job: Any) -> None:
        self._submit(_Job(number, name, (*self._given, function, name, job), self._idle()[0]))

    def _submit(self, job: _Job) -> None:
        # If this worker has gone meanwhile, another one does it.
        future = self._client.submit(
            run_remote, *job.arguments, workers=[job.address], allow_other_workers=True, pure=False
        )
        self._jobs[future] = job
        future.add_done_callback(self._done.put)

    def _start_again(self) -> Iterator[tuple[int, Any, Exception | None]]:
        """Start jobs again that are lost: their results are, or their worker was the last one to go.

        Yields:
            The error of a job that was started too often.
        """
        places = {future: job.address for future, job in self._jobs.items()}
        for future in {*self._lost_results, *self._workers.left_alone(places)}:
            idle = self._idle()
            if not idle:
                return
            job = self._jobs.pop(future)
            self._lost_results.discard(future)
            future.cancel()
            if job.starts == _STARTS:
                yield job.number, None, _killed(job.name)
            else:
                self._submit(attrs.evolve(job, address=idle[0], starts=job.starts + 1))

    def wait(self, seconds: float) -> Iterator[tuple[int, Any, Exception | None]]:
        try:
            future = self._done.get(timeout=seconds)
        except queue.Empty:
            if self._client.status != "running":
                raise self._lost() from None
            yield from self._start_again()
            return
        job = self._jobs.get(future)
        if job is None:  # it was started again
            return
        try:
            result, error = self._outcome(future, job.name)
        except TimeoutError:  # its worker died after it was done
            if self._client.status != "running":
                raise self._lost() from None
            self._lost_results.add(future)
            return
        del self._jobs[future]
        self._lost_results.discard(future)
        yield job.number, result, error

    def _outcome(self, future: Any, name: str) -> tuple[Any, Exception | None]:
        """Return the result of a job, or its error.

        Raises:
            TimeoutError: the cluster has lost the result.
        """
        from distributed import KilledWorker

        try:
            outcome: tuple[Any, Exception | None] = future.result(timeout=ANSWERS)
        except KilledWorker:
            return None, _killed(name)
        except TimeoutError:
            raise
        except (CancelledError, OSError):
            raise self._lost() from None
        except Exception as error:  # of Dask itself: the worker cannot import this package, for example
            return None, TopoplanError(f"{name}: its Dask worker cannot run it: {exception_line(error)}")
        return outcome

    def _lost(self) -> TopoplanError:
        lost = ", ".join(job.name for job in sorted(self._jobs.values(), key=lambda job: job.number))
        during = f", during {lost}" if lost else ""
        return TopoplanError(f"{LOST}{during}")

    def close(self, *, at_once: bool) -> None:
        if at_once and self._client.status == "running":
            self._client.cancel(list(self._jobs), force=True)
        self._client.close(timeout=ANSWERS)


def _killed(name: str) -> TopoplanError:
    return TopoplanError(f"{name}: every Dask worker that ran it died (out of memory?)")
