"""One experiment for each batch size, each in a process of its own; finished rows survive an interruption."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import attrs

from topoplan import Experiment, TopoplanError, optimize
from topoplan.errors import NoPlanFitsError
from topoplan.interrupt import interruptible

__all__ = ["Row", "row_of", "rows_of"]

#: Seconds between two looks at whether the user wants to stop.
_LOOK = 0.2


@attrs.frozen(kw_only=True)
class Row:
    """What is told of one batch size.

    Attributes:
        batch_size: samples of an iteration.
        seconds: of one iteration; None where there is no plan.
        speedup, split, baselines: as the searcher reports them (speedups of the latter alone); None and empty where it
            does not.
        fits: whether a plan fits into memory; None where there is none for another reason.
        problem: why there is no plan, or what it lacks; empty if there is one that fits.
    """

    batch_size: int
    seconds: float | None = None
    speedup: float | None = None
    split: str | None = None
    baselines: Mapping[str, float | None] = attrs.field(factory=dict)
    fits: bool | None = None
    problem: str = ""


def row_of(experiment: Experiment) -> Row:
    """Run an experiment; what is wrong with it becomes a row, too."""
    batch_size = experiment.run.batch_size
    assert batch_size is not None
    try:
        # In a thread, because a search in the main one takes Ctrl-C for itself and would end early.
        with ThreadPoolExecutor(1) as thread:
            outcome = thread.submit(optimize, experiment).result()
    except TopoplanError as error:
        fits = False if isinstance(error, NoPlanFitsError) else None
        return Row(batch_size=batch_size, fits=fits, problem=str(error))
    plan = outcome.plan
    assert plan.timeline is not None
    told: dict[str, Any] = {}
    for report in plan.provenance.get("reports", {}).values():
        told.update(report)
    return Row(
        batch_size=batch_size,
        seconds=plan.timeline.makespan,
        fits=outcome.fits,
        problem="" if outcome.memory_ignored else outcome.lacks,
        speedup=told.get("speedup"),
        split=told.get("split"),
        baselines={k: v for k, v in (told.get("baselines") or {}).items() if v is None or isinstance(v, float)},
    )


def rows_of(
    experiments: Sequence[Experiment], jobs: int, on_progress: Callable[[Row], None] = lambda row: None
) -> tuple[list[Row], bool]:
    """Run experiments and return their rows in order, and whether the user stopped: then some are missing.

    Args:
        experiments: with a batch size each.
        jobs: processes.
        on_progress: called with every row as it is finished.

    Raises:
        TopoplanError: a process died.
    """
    found: dict[int, Row] = {}
    left = deque(enumerate(experiments))
    running: dict[Future[Row], int] = {}
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(left)), mp_context=context, initializer=_start_worker)
    with interruptible() as stop:
        try:
            while True:
                while left and len(running) < jobs and not stop.wanted:
                    index, experiment = left.popleft()
                    running[pool.submit(row_of, experiment)] = index
                if not running:
                    break
                for future in wait(running, timeout=_LOOK, return_when=FIRST_COMPLETED).done:
                    index = running.pop(future)
                    found[index] = future.result()
                    on_progress(found[index])
        except BrokenProcessPool:
            raise TopoplanError("sweep: a worker process died (out of memory? use --jobs 1)") from None
        except KeyboardInterrupt:  # the second one
            for process in multiprocessing.active_children():
                process.terminate()
        finally:
            pool.shutdown(cancel_futures=True)
        stopped = stop.wanted
    return [found[index] for index in sorted(found)], stopped


def _start_worker() -> None:
    """Prepare a process: Ctrl-C is the parent's, who lets the rows under way finish."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
