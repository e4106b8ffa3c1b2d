"""`run_jobs`: independent jobs side by side, with Ctrl-C and failures handled in the same way by every executor."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import attrs

from topoplan.plugin.host import Host
from topoplan_engine.executors.base import Executor, JobQueue, Pool
from topoplan_engine.interrupt import Stop, interruptible

__all__ = ["run_jobs"]

#: Seconds between two checks for an interrupt while nothing finishes.
_POLL = 0.1

_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


@attrs.frozen
class _InOrder:
    """Jobs that are started one after the other."""

    numbers: deque[int]

    def take(self) -> int | None:
        return self.numbers.popleft() if self.numbers else None

    @property
    def finished(self) -> bool:
        return not self.numbers


def run_jobs(
    host: Host,
    function: Callable[[Host, _Job], _Result],
    jobs: Sequence[_Job],
    names: Sequence[str],
    executor: Executor,
    on_result: Callable[[int, _Result], None],
    queue: JobQueue | None = None,
) -> bool:
    """Run ``function(host, job)`` for each job in the workers of an executor; say whether the user stopped it.

    Results depend neither on the executor nor on the order in which jobs finish, if ``function`` takes all randomness
    from the job.  Ctrl-C lets the jobs under way finish and starts no further ones; a second one stops at once.

    Args:
        host: provides the components; workers load the same ones.
        function: of a module that workers can import.
        jobs: one or more.
        names: of the jobs, for messages.
        executor: where they run.
        on_result: called in this process with the number of a job and its result, as soon as it is finished.
        queue: which jobs are started, and when; None for all, in their order.

    Raises:
        TopoplanError: a job failed, which the message names, or a worker was lost.  Jobs under way finish before; of
            several failures that of the first job is raised.
    """
    queue = queue or _InOrder(deque(range(len(jobs))))
    failures: dict[int, Exception] = {}

    def start_more(pool: Pool, stop: Stop) -> None:
        for _ in range(pool.room):
            if stop.wanted or failures or (number := queue.take()) is None:
                return
            pool.start(number, function, names[number], jobs[number])

    with interruptible() as stop:
        pool, at_once = executor.pool(host, len(jobs)), True
        try:
            while True:
                start_more(pool, stop)
                if pool.running:
                    for number, result, error in pool.wait(_POLL):
                        if error is None:
                            on_result(number, result)
                        else:
                            failures[number] = error
                elif stop.wanted or failures or queue.finished:
                    break
                else:
                    time.sleep(_POLL)
            at_once = False
        except KeyboardInterrupt:  # the second Ctrl-C, or an end that was asked for in another way (`terminable`)
            stop.wanted = True
        finally:
            pool.close(at_once=at_once)
        stopped = stop.wanted
    if failures:
        raise failures[min(failures)]
    return stopped
