"""All runs of a study, in the workers of an executor; a finished run is stored at once and never repeated.

A run takes all randomness from its seed, so results depend neither on the executor nor on the order in which
runs finish.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

from topoplan.plugin.host import Host
from topoplan_engine.executors import Executor, run_jobs
from topoplan_studies.measure import measure
from topoplan_studies.runspecs import RunSpec
from topoplan_studies.store import Store, inputs

__all__ = ["StudyRuns", "run_all"]


@attrs.frozen(kw_only=True)
class StudyRuns:
    """What `run_all` returns.

    Attributes:
        results: of all runs, in their order; None for those that were not run because the user stopped.
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
) -> StudyRuns:
    """Run all that the store does not have.

    Args:
        specs: what to run; equal ones are run once.
        host: where components come from, here for the check of all inputs and in the workers.
        store: stores finished runs.
        executor: where they run.
        on_progress: called with the number of finished runs and the name of the one that just did.

    Raises:
        TopoplanError: something is wrong with a run; runs that finished before are stored.
    """
    dependencies = [inputs(host, spec.experiment) for spec in specs]
    keys = [store.key(values) for values in dependencies]
    results = {key: result for key in dict.fromkeys(keys) if (result := store.get(key)) is not None}
    stored = sum(key in results for key in keys)
    on_progress(stored, "")
    first = {key: i for i, key in reversed(list(enumerate(keys)))}
    missing = sorted(i for key, i in first.items() if key not in results)

    def finish(number: int, result: dict[str, Any]) -> None:
        index = missing[number]
        results[keys[index]] = store.put(keys[index], dependencies[index], result)
        on_progress(sum(key in results for key in keys), str(specs[index]))

    interrupted = False
    if missing:
        experiments = [specs[index].experiment for index in missing]
        interrupted = run_jobs(host, measure, experiments, [str(specs[index]) for index in missing], executor, finish)
    return StudyRuns(results=tuple(results.get(key) for key in keys), stored=stored, interrupted=interrupted)
