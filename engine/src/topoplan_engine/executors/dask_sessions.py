"""Sessions in Dask workers: something that keeps state between requests, and outlives the worker that it is in.

A session's state lies in one worker process, which answers its requests as tasks of Dask.  Every task is sent all
requests so far.  A worker that has answered those before answers the last one; any other worker, because the one that
had the session was lost, answers all of them from the first on.  Since a session depends on nothing but its arguments
and its requests, it comes to the same state.

A task is meant for the worker that has the session.  If that one dies while no other worker is there, Dask keeps the
task for it for ever; so it is sent once more, for any worker.
"""

from __future__ import annotations

import contextlib
import pickle
import queue
import uuid
from collections.abc import Callable
from concurrent.futures import CancelledError
from typing import Any

import attrs

from topoplan.errors import TopoplanError, exception_line
from topoplan_engine.blame import naming_plugins
from topoplan_engine.executors.dask_workers import ANSWERS, LOST, Workers
from topoplan_engine.executors.remote import check_versions, one_at_a_time
from topoplan_engine.interrupt import Stop
from topoplan_engine.packing import sendable, unpacked

__all__ = ["DaskSession"]

#: Seconds between two looks at whether the user has stopped it.
_POLL = 0.1


class DaskSession:
    """A session that a Dask cluster has.

    Args:
        client: of the cluster.
        workers: that the cluster has.
        what: is said in messages.
        plugins, versions: of the host, which workers must have, too.
        make: makes the server, ``make(host, stop, *arguments)``, which is called with requests.
        arguments: of ``make``.
    """

    def __init__(
        self,
        client: Any,
        workers: Workers,
        what: str,
        plugins: bytes,
        versions: tuple[tuple[str, str], ...],
        make: Any,
        arguments: Any,
    ) -> None:
        self._client, self._workers, self._what = client, workers, what
        self._name = uuid.uuid4().hex
        self._start = pickle.dumps((plugins, versions, make, arguments))
        self._requests: list[bytes] = []
        self._future: Any = None
        self._place = ""  # the address of the worker that has the session
        self._stopped: set[str] = set()  # addresses of workers that were asked to stop
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def send(self, request: Any) -> None:
        """Send a request, which `answer` answers."""
        self._requests.append(pickle.dumps(request))
        self._submit()

    def _submit(self) -> None:
        """Have the worker that has the session answer the last request; any worker, where it is not known."""
        place = {"workers": [self._place], "allow_other_workers": True} if self._place else {}
        self._future = self._client.submit(_answer, self._name, self._start, tuple(self._requests), pure=False, **place)
        self._future.add_done_callback(self._done.put)

    def answer(self, stop: Stop) -> Any:
        """Return the answer; pass on that the user wants to stop, meanwhile.

        Raises:
            TopoplanError: the cluster was lost.
            Exception: that the session raised.
        """
        while True:
            with contextlib.suppress(queue.Empty):
                self._done.get(timeout=_POLL)
            if self._future.done():
                with contextlib.suppress(TimeoutError):  # the worker died with the answer: Dask asks for it again
                    self._place, answer, error = self._outcome()
                    break
            if self._client.status != "running":
                raise TopoplanError(LOST)
            if stop.wanted:
                self._pass_on_stop()
            if self._place and self._workers.left_alone({self._future: self._place}):
                self._future.cancel()
                self._place = ""
                self._submit()
        if error is not None:
            raise error
        return answer

    def _outcome(self) -> tuple[str, Any, Exception | None]:
        """Return what `_answer` returned.

        Raises:
            TimeoutError: the cluster has lost it.
            TopoplanError: workers cannot answer, or the cluster was lost.
        """
        from distributed import KilledWorker

        try:
            outcome: tuple[str, Any, Exception | None] = self._future.result(timeout=ANSWERS)
        except TimeoutError:
            raise
        except KilledWorker:
            raise TopoplanError(f"{self._what}: every Dask worker that had them died (out of memory?)") from None
        except (CancelledError, OSError):
            raise TopoplanError(LOST) from None
        except Exception as error:  # of Dask itself: the worker cannot import this package, for example
            raise TopoplanError(f"{self._what}: a Dask worker cannot run them: {exception_line(error)}") from None
        return outcome

    def _pass_on_stop(self) -> None:
        """Have every worker stop the session, also one that came after the first was asked."""
        workers = [address for address in self._workers.addresses() if address not in self._stopped]
        if workers:
            self._stopped.update(workers)
            self._client.run(_stop, self._name, workers=workers, on_error="ignore")

    def close(self) -> None:
        """Have the workers forget the session."""
        if self._client.status == "running":
            with contextlib.suppress(Exception):  # the result is there; what is left goes with the worker
                self._client.run(_forget, self._name, on_error="ignore")


@attrs.define
class _Session:
    """A session in the worker that has it."""

    server: Callable[[Any], Any]
    answered: int = 0
    last: Any = None


_sessions: dict[str, _Session] = {}
_stops: dict[str, Stop] = {}


def _answer(name: str, start: bytes, requests: tuple[bytes, ...]) -> tuple[str, Any, Exception | None]:
    """Answer the last of all requests of a session so far; return the worker's address, the answer, and an error."""
    from distributed import get_worker

    address = str(get_worker().address)
    try:
        with one_at_a_time:
            plugins, versions, make, arguments = pickle.loads(start)
            check_versions(plugins, versions)
            host = unpacked(plugins)
            with naming_plugins(host):
                if name not in _sessions:
                    stop = _stops.setdefault(name, Stop())
                    _sessions[name] = _Session(make(host, stop, *arguments))
                session = _sessions[name]
                for request in requests[session.answered :]:
                    session.last = session.server(pickle.loads(request))
                    session.answered += 1
            return address, session.last, None
    except Exception as error:
        return address, None, sendable(error)


def _stop(name: str) -> None:
    """Have a session end what it does; in the thread of the worker's loop, while another one computes."""
    _stops.setdefault(name, Stop()).wanted = True


def _forget(name: str) -> None:
    _sessions.pop(name, None)
    _stops.pop(name, None)
