"""What an executor offers: a pool that jobs run in, and sessions that keep state between requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol

from topoplan.plugin.host import Host
from topoplan_engine.interrupt import Stop

__all__ = ["Executor", "JobQueue", "Pool", "Session"]


class Pool(Protocol):
    """Workers that run jobs, each by itself."""

    @property
    def room(self) -> int:
        """How many further jobs can start at once."""

    @property
    def running(self) -> int:
        """How many jobs have started and not been returned by `wait`."""

    def start(self, number: int, function: Callable[[Host, Any], Any], name: str, job: Any) -> None:
        """Start ``function(host, job)`` in a worker; ``name`` is for messages."""

    def wait(self, seconds: float) -> Iterable[tuple[int, Any, Exception | None]]:
        """Return (number, result, error) of the jobs that have finished; where there is none, wait for one a while.

        Raises:
            TopoplanError: a worker was lost in a way that running jobs do not survive.
        """

    def close(self, *, at_once: bool) -> None:
        """End the workers, or leave those that belong to others; ``at_once`` gives up what is running."""


class Session(Protocol):
    """Something in a worker that keeps state, and answers one request after the other."""

    def send(self, request: Any) -> None:
        """Send a request.

        Raises:
            TopoplanError: the worker has ended.
        """

    def answer(self, stop: Stop) -> Any:
        """Return the answer to the last request; pass on that the user wants to stop, meanwhile.

        Raises:
            TopoplanError: the worker has ended.
            Exception: that the session raised.
        """


class Executor(ABC):
    """A place where jobs run.  A subclass is a frozen attrs class, and its fields are options.

    Attributes:
        name: chooses it, as in ``--executor NAME:KEY=VALUE``.
    """

    name: ClassVar[str]

    @abstractmethod
    def pool(self, host: Host, most: int) -> Pool:
        """Start workers with the components of ``host`` for up to ``most`` jobs at a time.

        Raises:
            TopoplanError: there are none, or a plugin of the host cannot be sent to them.
        """

    @abstractmethod
    def sessions(
        self,
        host: Host,
        what: str,
        make: Callable[..., Any],
        most: int,
        arguments: Callable[[int], Sequence[Any]],
        stop: Stop,
    ) -> AbstractContextManager[list[Session]]:
        """Start sessions, which end with the context.

        Args:
            host: provides the components; workers load the same ones.
            what: is done in them, for messages.
            make: of a module that workers can import; ``make(host, stop, *arguments)`` returns what is called with
                requests.  It depends on nothing but its arguments and these, so that it can be repeated.
            most: sessions at most.
            arguments: gives those of each session, for the number of sessions that there are to be.
            stop: whether the user wants to stop, before there are any.

        Raises:
            TopoplanError: there are no workers, or a plugin of the host cannot be sent to them.
            KeyboardInterrupt: the user has stopped it before there were any.
        """


class JobQueue(Protocol):
    """The numbers of the jobs that are still to be started."""

    def take(self) -> int | None:
        """Return the number of a job to start, or None if there is none at the moment."""

    @property
    def finished(self) -> bool:
        """Whether `take` will never again return a number."""
