"""The fastest pipelines of a model on a machine, of those that the dynamic program finds for several tasks.

A task is a number of micro-batches and an order of passes.  The tasks with the least to do come first, and show how
fast a pipeline has to be: `topoplan_searcher_pipeline.dynamic` leaves out slower ends of the others.  Where that may
have left out one of the fastest pipelines, those tasks are searched again.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from topoplan.search.stopping import stop_if_wanted
from topoplan_searcher_pipeline.dynamic import SLACK, PipelineEstimate, Task, ends_of

__all__ = ["pipelines"]

#: Pipelines of each number of stages, which take different numbers of devices of hosts; and how much slower than the
#: first one the others may be.
_PIPELINES, _NEARLY = 3, 1.1


def pipelines(tasks: Sequence[Task], best: float, most_stages: int, number: int) -> list[tuple[Task, PipelineEstimate]]:
    """Return the fastest pipelines of some tasks, at most so many, in the order of their seconds.

    Each task has the best pipelines of each number of stages, as far as they are within reach of the best one known.

    Args:
        tasks: of one model on one machine; the best pipeline of each is known to those that follow.
        best: seconds of some plan; infinite if none is known.
        most_stages: stop there.
        number: of pipelines.
    """

    def search(task: Task, limit: float) -> _Found:
        stop_if_wanted()
        ends = ends_of(task, limit, most_stages, _PIPELINES)
        result = _Found(limit, ends.seconds, {})
        followed = list(result.in_reach(best))
        result.estimates.update(zip(followed, ends.follow(followed), strict=True))
        return result

    # The last tasks have the least to do, and usually the fastest pipelines.  They show what is slower than so many.
    results: list[_Found] = []
    times: list[float] = []
    fastest_seconds = best
    for task in reversed(tasks):
        slowest = sorted(times)[number - 1] if len(times) >= number else np.inf
        result = search(task, min(fastest_seconds * SLACK, slowest))
        seconds = result.seconds_in_reach(fastest_seconds)
        times += seconds
        fastest_seconds = min([fastest_seconds, *seconds])
        results.insert(0, result)
    chosen = _fastest(results, best, number)
    if chosen is None:  # some were left out that are among the fastest
        fastest_seconds = best
        for place, task in enumerate(tasks):
            if results[place].limit < fastest_seconds * SLACK:
                results[place] = search(task, fastest_seconds * SLACK)
            fastest_seconds = min([fastest_seconds, *results[place].seconds_in_reach(fastest_seconds)])
        chosen = _fastest(results, best, number)
    assert chosen is not None, "no task has left out a pipeline"
    return [(tasks[place], estimate) for place, estimate in chosen]


class _Found(NamedTuple):
    """The best pipelines of a task.

    Attributes:
        limit: seconds; all that take at most so many are known.
        seconds: of each number of stages, those of the best pipelines, ascending; infinite where there are fewer.
        estimates: by number of stages, from 0, and rank: those that are in reach of the best plan that all tasks know.
    """

    limit: float
    seconds: list[list[float]]
    estimates: dict[tuple[int, int], PipelineEstimate]

    def in_reach(self, best: float) -> Iterator[tuple[int, int]]:
        """Yield the pipelines in reach of ``best`` seconds, and of the best one with as many stages or fewer."""
        for row, ranking in enumerate(self.seconds):
            best = min(best, ranking[0])
            for rank, seconds in enumerate(ranking):
                worst = best * (_NEARLY if rank else SLACK)
                if seconds <= min(worst, self.limit) and seconds < np.inf:
                    yield row, rank

    def seconds_in_reach(self, best: float) -> list[float]:
        """Return the seconds of those pipelines."""
        return [self.seconds[row][rank] for row, rank in self.in_reach(best)]


def _fastest(results: Sequence[_Found], best: float, number: int) -> list[tuple[int, PipelineEstimate]] | None:
    """Return the fastest pipelines of tasks, each with the place of its task; None if some may be missing."""
    pipelines_in_reach: list[tuple[int, PipelineEstimate]] = []
    worst: list[float] = []  # for each task, from the best pipelines of all earlier ones
    for place, result in enumerate(results):
        worst.append(best * SLACK)
        mine = [result.estimates[index] for index in result.in_reach(best)]
        pipelines_in_reach += [(place, estimate) for estimate in mine]
        # A task that has found nothing within a low limit has nothing better than that.
        best = min([best, *(estimate.seconds for estimate in mine)] if mine else [best, result.limit])
    chosen = heapq.nsmallest(number, pipelines_in_reach, key=lambda item: item[1].seconds)
    slowest = chosen[-1][1].seconds if len(chosen) == number else np.inf
    complete = all(result.limit >= min(limit, slowest) for result, limit in zip(results, worst, strict=True))
    return chosen if complete else None
