"""All runs of a study, in worker processes; finished ones are kept at once and never repeated.

Every run is a process's own affair and takes all randomness from its seed, so results depend neither on the number of
workers nor on the order in which they finish.  Ctrl-C lets the runs under way finish and be kept, then stops; a
second one stops at once.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import attrs

from topoplan.errors import TopoplanError
from topoplan.plugin.host import Host
from topoplan_engine.interrupt import Stop, interruptible
from topoplan_engine.packing import packed
from topoplan_studies.cells import RunSpec
from topoplan_studies.measure import measure, start_worker
from topoplan_studies.store import Store, inputs

__all__ = ["Done", "run_all"]

#: Seconds between two looks at whether the user wants to stop.
_LOOK = 0.2


@attrs.frozen(kw_only=True)
class Done:
    """What `run_all` returns.

    Attributes:
        results: of all cells, in their order; None for those that were not run because the user stopped.
        kept: how many of the cells had been run before.
        interrupted: the user stopped it.
    """

    results: tuple[dict[str, Any] | None, ...]
    kept: int
    interrupted: bool


def run_all(
    cells: Sequence[RunSpec],
    host: Host,
    store: Store,
    jobs: int,
    on_progress: Callable[[int, str], None] = lambda finished, name: None,
) -> Done:
    """Run all cells that the store does not have.

    Args:
        cells: what to run; equal ones are run once.
        host: where components come from, here for the check of all inputs and in the workers.
        store: keeps what is finished.
        jobs: worker processes.
        on_progress: called with the number of finished cells and the name of the one that just did.

    Raises:
        TopoplanError: something is wrong with a cell; what was finished before is kept.
    """
    given = [inputs(host, cell.experiment) for cell in cells]
    keys = [store.key(one) for one in given]
    results = {key: found for key in dict.fromkeys(keys) if (found := store.get(key)) is not None}
    kept = sum(key in results for key in keys)
    on_progress(kept, "")
    first = {key: i for i, key in reversed(list(enumerate(keys)))}
    missing = deque(i for key, i in sorted(first.items(), key=lambda item: item[1]) if key not in results)

    def finish(index: int, result: dict[str, Any]) -> None:
        results[keys[index]] = store.put(keys[index], given[index], result)
        on_progress(sum(key in results for key in keys), str(cells[index]))

    with interruptible() as stop:
        if missing:
            _work(cells, missing, packed(host), min(jobs, len(missing)), finish, stop)
    return Done(results=tuple(results.get(key) for key in keys), kept=kept, interrupted=stop.wanted)


def _work(
    cells: Sequence[RunSpec],
    missing: deque[int],
    plugins: bytes,
    jobs: int,
    finish: Callable[[int, dict[str, Any]], None],
    stop: Stop,
) -> None:
    """Hand one run at a time to each worker, so that there is nothing to call back when the user stops."""
    running: dict[Future[dict[str, Any]], int] = {}
    failed: TopoplanError | None = None
    pool = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"), initializer=start_worker)
    try:
        while True:
            while missing and len(running) < jobs and not stop.wanted and failed is None:
                index = missing.popleft()
                running[pool.submit(measure, str(cells[index]), cells[index].experiment, plugins)] = index
            if not running:
                break
            for future in wait(running, timeout=_LOOK, return_when=FIRST_COMPLETED).done:
                index = running.pop(future)
                try:
                    finish(index, future.result())
                except TopoplanError as error:
                    failed = failed or error
    except BrokenProcessPool:
        lost = ", ".join(str(cells[index]) for index in running.values())
        raise TopoplanError(f"a worker process died (out of memory?) during one of: {lost}") from None
    except KeyboardInterrupt:
        for process in multiprocessing.active_children():
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    if failed is not None:
        raise failed
