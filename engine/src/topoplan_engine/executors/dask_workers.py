"""The workers of a Dask cluster, and which of the tasks that were meant for one of them have none.

A pool of jobs and the sessions of a search ask this while they wait.  The scheduler answers; it is asked twice a second
at most.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import typer

from topoplan.errors import TopoplanError

__all__ = ["ANSWERS", "LOOK", "LOST", "Workers"]

#: What is said of a scheduler that is gone.
LOST = "executor dask: the scheduler does not answer any more"

#: Seconds to wait for an answer of the scheduler, and between two looks at its workers.
ANSWERS, LOOK = 10.0, 0.5

#: Seconds until a line says that there are no workers, and after which a task counts as left alone.
_PATIENT, _STRANDED = 10.0, 3.0


class Workers:
    """The workers that a cluster has; who they are is asked for now and then."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._addresses: tuple[str, ...] = ()
        self._looked = self._seen = time.monotonic() - LOOK
        self._reported = False
        # Futures that no worker has, and since when.
        self._stranded: dict[Any, float] = {}

    def addresses(self) -> tuple[str, ...]:
        """Return the addresses of the workers; a line says so if there are none for a while.

        Raises:
            TopoplanError: the scheduler does not answer.
        """
        now = time.monotonic()
        if now - self._looked < LOOK:
            return self._addresses
        try:
            self._addresses = tuple(sorted(self._client.nthreads()))
        except (OSError, RuntimeError, AttributeError):
            raise TopoplanError(LOST) from None
        self._looked = now
        if self._addresses:
            self._seen = now
        elif now - self._seen >= _PATIENT and not self._reported:
            self._reported = True
            where = self._client.scheduler.address
            typer.echo(f"waiting for workers of the Dask scheduler (start some: dask worker {where})", err=True)
        return self._addresses

    def left_alone(self, places: Mapping[Any, str]) -> list[Any]:
        """Return the futures that no worker has had for some time although there are workers.

        Dask gives what was meant for a certain worker to others that are there when that one dies, but to none that
        comes later (``SchedulerState.bulk_schedule_unrunnable_after_adding_worker``).

        Args:
            places: futures under way, each with the address of the worker that it was meant for.

        Raises:
            TopoplanError: the scheduler does not answer.
        """
        present = self.addresses()
        gone = [future for future, address in places.items() if address not in present and not future.done()]
        if not gone or not present:
            self._stranded.clear()
            return []
        at_work, now = self._at_work(), time.monotonic()
        self._stranded = {future: self._stranded.get(future, now) for future in gone if future.key not in at_work}
        return [future for future, since in self._stranded.items() if now - since >= _STRANDED]

    def _at_work(self) -> set[Any]:
        """Return the keys of the futures that workers have.

        Raises:
            TopoplanError: the scheduler does not answer.
        """
        try:
            return {key for keys in self._client.processing().values() for key in keys}
        except (OSError, RuntimeError, AttributeError):
            raise TopoplanError(LOST) from None
