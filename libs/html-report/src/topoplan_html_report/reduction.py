"""Fewer slices than tasks: the longest stay as they are, the others join runs of the same kind.

    lanes of tasks ─► the longest ─► between them, tasks of one lane, one kind and one short stretch of time: one run

A run is as long as its tasks together, so the time that a lane is busy stays the same; where in the stretch it was
busy does not.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from topoplan.arrays import F64, I64

__all__ = ["Slices", "reduced"]

#: The share of slices that are the longest tasks, and the stretches that an iteration has at first.
_LONGEST, _STRETCHES = 0.25, 1 << 15


@attrs.frozen(eq=False)
class Slices:
    """(n,) slices in the order of their rows, then by start.

    Attributes:
        task: place, among what was given, of the slice, or of the longest task of a run.
        start, finish: seconds.
        tasks: number of tasks that each stands for.
        summed: sum over these of the values that were given.
        marked: whether any of these was marked.
        stretch: seconds of the stretches that runs are made in; 0 where every task has its slice.
    """

    task: I64
    start: F64
    finish: F64
    tasks: I64
    summed: F64
    marked: Any
    stretch: float


def reduced(row: I64, lane: I64, start: F64, finish: F64, kind: Any, value: F64, marked: Any, most: int) -> Slices:
    """Return ``most`` slices or little more, of (n,) tasks; no two of a lane overlap where its tasks do not.

    Args:
        row: ascending.
        lane: of its row.
        start: seconds; ascending in each row.
        finish: seconds.
        kind: only tasks of one kind join a run.
        value: what is summed over the tasks of a run.
        marked: flags; of a run it is set where that of any task is.
        most: slices.
    """
    count = len(row)
    if count <= most:
        return Slices(np.arange(count), start, finish, np.ones(count, dtype=np.int64), value, marked, 0.0)
    seconds, ends = finish - start, float(finish.max())
    is_single = np.zeros(count, dtype=bool)
    is_single[np.argsort(-seconds, kind="stable")[: int(most * _LONGEST)]] = True
    # A task of its own ends the run before it.
    own_lane = row * (int(lane.max()) + 1) + lane
    order = np.lexsort((start, own_lane))
    segment = np.zeros(count, dtype=np.int64)
    segment[order] = np.cumsum(is_single[order])
    short = np.flatnonzero(~is_single)
    short = short[np.lexsort((start[short], segment[short], own_lane[short]))]
    stretches = _STRETCHES
    while True:
        stretch = np.minimum((start[short] * (stretches / ends)).astype(np.int64), stretches - 1) if ends else short * 0
        places = np.stack([own_lane[short], segment[short], stretch, kind[short].astype(np.int64)])
        by_kind = np.lexsort((places[3], places[2], places[1], places[0]))
        places = places[:, by_kind]
        begins = np.append(True, (places[:, 1:] != places[:, :-1]).any(axis=0))
        if stretches == 1 or begins.sum() + is_single.sum() <= most:
            break
        stretches //= 2
    return _with_runs(
        row,
        start,
        finish,
        value,
        marked,
        np.flatnonzero(is_single),
        short[by_kind],
        begins,
        places[:3],
        ends / stretches,
    )


def _with_runs(
    row: I64,
    start: F64,
    finish: F64,
    value: F64,
    marked: Any,
    single_tasks: I64,
    short: I64,
    begins: Any,
    places: I64,
    stretch: float,
) -> Slices:
    """Return the slices of tasks that stand alone, and of runs: ``rest`` from each place that ``begins`` to the next.

    Runs of one place, which are of different kinds, stand behind each other.
    """
    first = np.flatnonzero(begins)
    seconds = finish[short] - start[short]
    length = np.add.reduceat(seconds, first)
    opens = np.append(True, (places[:, first[1:]] != places[:, first[:-1]]).any(axis=0))
    group = np.cumsum(opens) - 1
    opening = np.flatnonzero(opens)
    earliest = np.minimum.reduceat(np.minimum.reduceat(start[short], first), opening)
    latest = np.maximum.reduceat(np.maximum.reduceat(finish[short], first), opening)
    before = np.cumsum(length) - length
    run_start = np.minimum(earliest[group] + before - before[opening][group], latest[group])
    run = np.cumsum(begins) - 1
    longest = short[np.lexsort((-seconds, run))[first]]
    tasks = np.concatenate([np.ones(len(single_tasks), dtype=np.int64), np.diff(np.append(first, len(short)))])
    slices = Slices(
        task=np.concatenate([single_tasks, longest]),
        start=np.concatenate([start[single_tasks], run_start]),
        finish=np.concatenate(
            [finish[single_tasks], np.minimum(run_start + length, np.maximum(latest[group], run_start))]
        ),
        tasks=tasks,
        summed=np.concatenate([value[single_tasks], np.add.reduceat(value[short], first)]),
        marked=np.concatenate([marked[single_tasks], np.logical_or.reduceat(marked[short], first)]),
        stretch=stretch,
    )
    order = np.lexsort((slices.start, row[slices.task]))
    chosen = {name: getattr(slices, name)[order] for name in ("task", "start", "finish", "tasks", "summed", "marked")}
    return attrs.evolve(slices, **chosen)
