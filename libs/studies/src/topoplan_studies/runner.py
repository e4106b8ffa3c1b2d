"""All runs of a study, in the workers of an executor; a finished run is stored at once and never repeated.

A run takes all randomness from its seed, so results depend neither on the executor nor on the order in which runs
finish.  Processes that use the same folder of runs share the work (`topoplan_studies.shared`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import attrs

from topoplan.plugin.host import Host
from topoplan_engine.executors import Executor, run_jobs
from topoplan_engine.executors.claims import Claims
from topoplan_engine.experiment import Experiment
from topoplan_engine.interrupt import terminable
from topoplan_studies.measure import REFUSED, measure
from topoplan_studies.runspecs import RunSpec
from topoplan_studies.shared import SharedRuns
from topoplan_studies.store import Store, inputs

__all__ = ["StudyRuns", "run_all"]


@attrs.frozen(kw_only=True)
class StudyRuns:
    """What `run_all` returns.

    Attributes:
        results: of all runs, in their order; None for those that were not run: the user stopped, or others do them.
        stored: how many of them the store had.
        interrupted: the user stopped it.
    """

    results: tuple[dict[str, Any] | None, ...]
    stored: int
    interrupted: bool


def run_all(
    specs: Sequence[RunSpec],
    host: Host,
    store: Store,
    executor: Executor,
    on_progress: Callable[[int, str], None] = lambda finished, name: None,
    *,
    measured: Callable[[Host, Experiment], dict[str, Any]] = measure,
    wait: bool = True,
) -> StudyRuns:
    """Run all that the store does not have.

    Args:
        specs: what to run; equal ones are run once.
        host: where components come from, here for the check of all inputs and in the workers.
        store: stores finished runs.
        executor: where they run.
        on_progress: called with the number of finished runs and the name of the one that just did.
        measured: does a run.  A refusal (`measure_searchers`) is not stored: what is missing may be installed.
        wait: for runs that other processes do, which share the store.

    Raises:
        TopoplanError: something is wrong with a run; runs that finished before are stored.
    """
    keys = [store.key(inputs(host, spec.experiment)) for spec in specs]
    weights, first = Counter(keys), {key: i for i, key in reversed(list(enumerate(keys)))}
    names_of_files = store.names()
    results = {key: result for key in weights if key in names_of_files and (result := store.get(key)) is not None}
    finished = stored = sum(weights[key] for key in results)
    on_progress(finished, "")
    missing = [first[key] for key in weights if key not in results]

    def add(number: int, result: dict[str, Any]) -> None:
        nonlocal finished
        index = missing[number]
        results[keys[index]] = result
        finished += weights[keys[index]]
        on_progress(finished, str(specs[index]))

    interrupted = False
    if missing:
        experiments, names = [specs[index].experiment for index in missing], [str(specs[index]) for index in missing]
        with terminable(), Claims(store.make() / "claims") as claims:
            queue = SharedRuns(dict(enumerate(keys[index] for index in missing)), store, claims, add, wait=wait)

            def finish(number: int, result: dict[str, Any]) -> None:
                if REFUSED not in result:
                    result = store.put(keys[missing[number]], inputs(host, experiments[number]), result)
                add(number, result)
                queue.release(number)

            interrupted = run_jobs(host, measured, experiments, names, executor, finish, queue)
    return StudyRuns(results=tuple(results.get(key) for key in keys), stored=stored, interrupted=interrupted)
