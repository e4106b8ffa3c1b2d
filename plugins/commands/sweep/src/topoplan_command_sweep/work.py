"""One experiment for each batch size, each in a process of its own; finished rows survive an interruption."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from typing import Any

import attrs

from topoplan import Host, TopoplanError
from topoplan.errors import NoPlanFitsError
from topoplan_engine import Experiment, optimize
from topoplan_engine.interrupt import end_with_parent, interruptible
from topoplan_engine.packing import packed, unpacked

__all__ = ["Row", "row_of", "rows_of"]

_host = cache(unpacked)
#: Seconds between two looks at whether the user wants to stop.
_LOOK = 0.2


@attrs.frozen(kw_only=True)
class Row:
    """What is told of one batch size.

    Attributes:
        batch_size: samples of an iteration.
        seconds: of one iteration of the plan, as simulated; None where there is no plan.
        plan: where it comes from.
        speedup: as the searcher estimates it; None if it does not, or if it constructed another plan.
        simulated_speedup: what one device takes, as the searcher reports it, over ``seconds``.
        split: the plan in short, as the searcher reports it; empty likewise.
        baselines: speedups of other plans, as the searcher reports them.
        aside, aside_seconds: the other plan to know of (`topoplan.Outcome`), and what it takes as simulated.
        fits: whether a plan fits into memory; None where there is none for another reason.
        problem: why there is no plan, or what it lacks; empty if there is one that fits.
    """

    batch_size: int
    seconds: float | None = None
    plan: str = ""
    speedup: float | None = None
    simulated_speedup: float | None = None
    split: str | None = None
    baselines: Mapping[str, float | None] = attrs.field(factory=dict)
    aside: str | None = None
    aside_seconds: float | None = None
    fits: bool | None = None
    problem: str = ""


def row_of(experiment: Experiment, plugins: bytes | None = None) -> Row:
    """Run an experiment with the plugins of a packed host; what is wrong with it becomes a row, too."""
    host = None if plugins is None else _host(plugins)
    batch_size = experiment.run.batch_size
    assert batch_size is not None
    try:
        # In a thread, because a search in the main one takes Ctrl-C for itself and would end early.
        with ThreadPoolExecutor(1) as thread:
            outcome = thread.submit(optimize, experiment, host=host).result()
    except TopoplanError as error:
        fits = False if isinstance(error, NoPlanFitsError) else None
        return Row(batch_size=batch_size, fits=fits, problem=str(error))
    record, told = outcome.plan.provenance, dict[str, Any]()
    for report in record.get("reports", {}).values():
        told.update(report)
    own = "reports_are_of" not in record
    one, aside = told.get("one_device_s"), outcome.aside
    return Row(
        batch_size=batch_size,
        seconds=outcome.seconds,
        fits=outcome.fits,
        problem="" if outcome.memory_ignored else outcome.lacks,
        plan=outcome.origin.name,
        speedup=told.get("speedup") if own else None,
        simulated_speedup=one / outcome.seconds if one and outcome.seconds else None,
        split=told.get("split") if own else None,
        baselines={k: v for k, v in (told.get("baselines") or {}).items() if v is None or isinstance(v, float)},
        aside=None if aside is None else aside.entry.origin.name,
        aside_seconds=None if aside is None else aside.draws.mean,
    )


def rows_of(
    experiments: Sequence[Experiment],
    jobs: int,
    on_progress: Callable[[Row], None] = lambda row: None,
    host: Host | None = None,
) -> tuple[list[Row], bool]:
    """Run experiments and return their rows in order, and whether the user stopped: then some are missing.

    Args:
        experiments: with a batch size each.
        jobs: processes.
        on_progress: called with every row as it is finished.
        host: where components come from; all installed plugins unless given.

    Raises:
        TopoplanError: a process died.
    """
    plugins = packed(host or Host.discover())
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
                    running[pool.submit(row_of, experiment, plugins)] = index
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
    end_with_parent()
