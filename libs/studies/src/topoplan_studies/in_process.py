"""Jobs in this process, one after the other: for notebooks, whose searchers need then not be sent anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import attrs

from topoplan.errors import TopoplanError
from topoplan.plugin.host import Host
from topoplan_engine.blame import naming_plugins
from topoplan_engine.executors import Executor
from topoplan_engine.executors.base import Session
from topoplan_engine.interrupt import Stop

__all__ = ["InProcess"]


@attrs.frozen
class InProcess(Executor):
    """The process that asks."""

    name: ClassVar[str] = "in-process"

    def pool(self, host: Host, most: int) -> _Calls:
        """Return what calls functions."""
        return _Calls(host)

    def sessions(
        self,
        host: Host,
        what: str,
        make: Callable[..., Any],
        most: int,
        arguments: Callable[[int], Sequence[Any]],
        stop: Stop,
    ) -> AbstractContextManager[list[Session]]:
        """Refuse: runs of a comparison are independent.

        Raises:
            TopoplanError: always.
        """
        raise TopoplanError(f"{what}: needs worker processes")


class _Calls:
    """Calls a function when it is started; the result waits to be fetched."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._results: list[tuple[int, Any, Exception | None]] = []

    @property
    def room(self) -> int:
        return 1 - len(self._results)

    @property
    def running(self) -> int:
        return len(self._results)

    def start(self, number: int, function: Callable[[Host, Any], Any], name: str, job: Any) -> None:
        try:
            with naming_plugins(self._host):
                self._results.append((number, function(self._host, job), None))
        except TopoplanError as error:
            self._results.append((number, None, TopoplanError(f"{name}: {error}")))

    def wait(self, seconds: float) -> Iterator[tuple[int, Any, Exception | None]]:
        results, self._results = self._results, []
        yield from results

    def close(self, *, at_once: bool) -> None:
        """There is nothing to end."""
