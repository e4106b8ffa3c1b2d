"""Workers of a Dask cluster, on as many machines as it has.

Each worker process gets one job at a time, whatever its number of threads, because a search keeps one core busy.
Workers may join and leave at any time: the scheduler starts the jobs of a worker that was lost on another one.  A
worker must have the same versions of the same plugins, which is checked before its first job.
"""

from __future__ import annotations

import importlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import attrs
import typer

from topoplan.errors import TopoplanError, exception_line
from topoplan.options import option
from topoplan.plugin.host import Host
from topoplan_engine.executors.base import Executor, Pool
from topoplan_engine.packing import packed, sendable, unpacked
from topoplan_engine.workers import run_named

__all__ = ["Dask"]

#: Seconds to wait for an answer of the scheduler, between two looks at its workers, and until a line says that there
#: are none.
_ANSWERS, _LOOK, _PATIENT = 10, 0.5, 10.0

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

    def client(self) -> Any:
        """Connect to the scheduler.

        Raises:
            TopoplanError: nothing answers.
        """
        from distributed import Client

        where = str(self.scheduler_file or self._address)
        try:
            scheduler = {"scheduler_file" if self.scheduler_file else "address": where}
            return Client(**scheduler, timeout=_ANSWERS, set_as_default=False, name="topoplan")
        except (OSError, ValueError, KeyError) as error:
            raise TopoplanError(
                f"executor dask: no scheduler answers at {where}: {exception_line(error)} (start one: dask scheduler)"
            ) from None


class _DaskPool:
    """Which worker has which job."""

    def __init__(self, client: Any, plugins: bytes, versions: tuple[tuple[str, str], ...]) -> None:
        self._client, self._given = client, (plugins, versions)
        self._jobs: dict[Any, tuple[int, str, str]] = {}
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._workers: tuple[str, ...] = ()
        self._looked = self._seen = time.monotonic() - _LOOK
        self._told = False

    @property
    def running(self) -> int:
        return len(self._jobs)

    @property
    def room(self) -> int:
        return len(self._idle())

    def _idle(self) -> list[str]:
        """Return the addresses of workers that have no job; who they are is asked for now and then."""
        now = time.monotonic()
        if now - self._looked >= _LOOK:
            self._workers, self._looked = self._ask_for_workers(), now
        if self._workers:
            self._seen = now
        elif now - self._seen >= _PATIENT and not self._told:
            self._told = True
            where = self._client.scheduler.address
            typer.echo(f"waiting for workers of the Dask scheduler (start some: dask worker {where})", err=True)
        busy = {address for _, _, address in self._jobs.values()}
        return [address for address in self._workers if address not in busy]

    def _ask_for_workers(self) -> tuple[str, ...]:
        try:
            return tuple(sorted(self._client.nthreads()))
        except (OSError, RuntimeError, AttributeError):
            raise self._lost() from None

    def start(self, number: int, function: Callable[[Host, Any], Any], name: str, job: Any) -> None:
        address = self._idle()[0]
        # If this worker has gone meanwhile, another one does it.
        future = self._client.submit(
            _run, *self._given, function, name, job, workers=[address], allow_other_workers=True, pure=False
        )
        self._jobs[future] = number, name, address
        future.add_done_callback(self._done.put)

    def wait(self, seconds: float) -> Iterator[tuple[int, Any, Exception | None]]:
        try:
            future = self._done.get(timeout=seconds)
        except queue.Empty:
            if self._client.status != "running":
                raise self._lost() from None
            return
        number, name, _ = self._jobs[future]
        result, error = self._outcome(future, name)
        del self._jobs[future]
        yield number, result, error

    def _outcome(self, future: Any, name: str) -> tuple[Any, Exception | None]:
        """Return the result of a job, or its error."""
        from distributed import KilledWorker

        try:
            outcome: tuple[Any, Exception | None] = future.result(timeout=_ANSWERS)
        except KilledWorker:
            return None, TopoplanError(f"{name}: every Dask worker that ran it died (out of memory?)")
        except (CancelledError, OSError):
            raise self._lost() from None
        except Exception as error:  # of Dask itself: the worker cannot import this package, for example
            return None, TopoplanError(f"{name}: its Dask worker cannot run it: {exception_line(error)}")
        return outcome

    def _lost(self) -> TopoplanError:
        lost = ", ".join(name for _, name, _ in sorted(self._jobs.values()))
        during = f", during {lost}" if lost else ""
        return TopoplanError(f"executor dask: the scheduler does not answer any more{during}")

    def close(self, *, at_once: bool) -> None:
        if at_once and self._client.status == "running":
            self._client.cancel(list(self._jobs), force=True)
        self._client.close(timeout=_ANSWERS)


def versions_of(host: Host) -> tuple[tuple[str, str], ...]:
    """Return the distributions that provide a host's components, with their versions."""
    return tuple(sorted({(row.distribution, row.version) for row in host.listing() if row.version}))


#: A worker process with several threads still computes one job at a time.
_one_at_a_time = threading.Lock()


def _run(
    plugins: bytes, versions: tuple[tuple[str, str], ...], function: Callable[[Host, Any], Any], name: str, job: Any
) -> tuple[Any, Exception | None]:
    """Run a job in a worker; return its result or its error, which Dask would write into its log."""
    try:
        with _one_at_a_time:
            _check_versions(plugins, versions)
            return run_named(plugins, function, name, job), None
    except Exception as error:
        return None, sendable(error)


@cache
def _check_versions(plugins: bytes, versions: tuple[tuple[str, str], ...]) -> None:
    """Raise `TopoplanError` where this worker's plugins are not those of the process that sends jobs."""
    installed = dict(versions_of(unpacked(plugins)))
    for distribution, version in versions:
        actual = installed.get(distribution, "(not installed)")
        if actual != version:
            raise TopoplanError(
                f"a Dask worker has {distribution} {actual} in place of {version} (install the same versions there)"
            )
