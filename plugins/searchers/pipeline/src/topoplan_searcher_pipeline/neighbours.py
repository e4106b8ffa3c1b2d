"""Pipelines one step away from a given one: what the search goes on to when it has simulated the planner's best."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from topoplan.model.schedule import ScheduleKind
from topoplan_searcher_pipeline.columns import Columns
from topoplan_searcher_pipeline.machine import Machine
from topoplan_searcher_pipeline.planning import Planner
from topoplan_searcher_pipeline.plans import Pipeline, Planned

__all__ = ["neighbours"]

#: Cuts on each side that a cut is moved to.
_NEAR = 2


def neighbours(plan: Planned, planner: Planner, cutoff: float) -> list[Planned]:
    """Return the plans one step away that fit and may take less than ``cutoff`` seconds, as played, the fastest first.

    A step is another order of passes or number of micro-batches, a cut that moves, two stages that become one, a
    device that goes over to the stage before or behind, or one that idles from now on or no longer.
    """
    steps = [(plan.pipeline, kind, count) for kind, count in _schedules(plan, planner)]
    pipelines = [*_pipelines(plan.pipeline, planner.columns), *_resized(plan.pipeline, planner.machine)]
    steps += [(variant, plan.kind, plan.micro_batches) for variant in pipelines]
    different = {(planner.shape(pipeline), kind, count): (pipeline, kind, count) for pipeline, kind, count in steps}
    plans = [planner.play(*step, cutoff) for step in different.values()]
    return sorted(
        (plan_ for plan_ in plans if plan_ is not None and plan_.seconds < cutoff),
        key=lambda plan_: plan_.seconds,
    )


def _schedules(plan: Planned, planner: Planner) -> Iterator[tuple[ScheduleKind, int]]:
    counts = planner.micro_batches
    index = counts.index(plan.micro_batches)
    for count in (counts[index], *counts[max(index - 1, 0) : index], *counts[index + 1 : index + 2]):
        for kind in planner.kinds if len(plan.pipeline.cuts) > 1 else (plan.kind,):
            if (kind, count) != (plan.kind, plan.micro_batches):
                yield kind, count


def _pipelines(pipeline: Pipeline, columns: Columns) -> Iterator[Pipeline]:
    cuts, counts = pipeline.cuts, pipeline.counts
    ends = (*cuts[1:], columns.n_cuts - 1)
    for stage in range(1, len(cuts)):
        for cut in _near(columns, cuts[stage - 1], cuts[stage], ends[stage]):
            yield attrs.evolve(pipeline, cuts=(*cuts[:stage], cut, *cuts[stage + 1 :]))
        merged = tuple(a + b for a, b in zip(counts[stage - 1], counts[stage], strict=True))
        if columns.follows(cuts[stage - 1], ends[stage]):
            yield Pipeline((*cuts[:stage], *cuts[stage + 1 :]), (*counts[: stage - 1], merged, *counts[stage + 1 :]))


def _resized(pipeline: Pipeline, machine: Machine) -> Iterator[Pipeline]:
    counts = pipeline.counts
    free = np.bincount(machine.host) - np.sum(counts, axis=0)
    for stage, devices in enumerate(counts):
        for host, count in enumerate(devices):
            if free[host]:
                yield _moved(pipeline, host, None, stage)
            if count and sum(devices) > 1:
                for taker in (None, *range(max(stage - 1, 0), stage), *range(stage + 1, len(counts))[:1]):
                    yield _moved(pipeline, host, stage, taker)


def _moved(pipeline: Pipeline, host: int, giver: int | None, taker: int | None) -> Pipeline:
    """Return the pipeline after a device of a host went from one stage, or none, to another, or none."""
    changed = [list(counts) for counts in pipeline.counts]
    if giver is not None:
        changed[giver][host] -= 1
    if taker is not None:
        changed[taker][host] += 1
    return attrs.evolve(pipeline, counts=tuple(tuple(counts) for counts in changed))


def _near(columns: Columns, start: int, cut: int, end: int) -> list[int]:
    """Return the cuts nearest to ``cut``, by seconds, between a stage's start and the next one's end."""
    between = [c for c in columns.between(start, end) if c != cut]
    seconds = columns.forward[0] + columns.backward[0]
    before = sorted((c for c in between if seconds[c] <= seconds[cut]), key=lambda c: seconds[cut] - seconds[c])
    later = sorted((c for c in between if seconds[c] > seconds[cut]), key=lambda c: seconds[c] - seconds[cut])
    return before[:_NEAR] + later[:_NEAR]
