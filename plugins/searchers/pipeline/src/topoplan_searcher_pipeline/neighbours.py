"""The neighbourhood of a pipeline, for the local search from the planner's best pipelines."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import numpy as np

from topoplan.search.stopping import stop_if_wanted
from topoplan_searcher_pipeline.columns import Columns
from topoplan_searcher_pipeline.machine import Machine
from topoplan_searcher_pipeline.planning import Planner
from topoplan_searcher_pipeline.plans import Pipeline, PipelinePlan

__all__ = ["neighbours"]

#: A cut moves by at most so many cuts in each direction.
_CUTS_EACH_SIDE = 2


def neighbours(plan: PipelinePlan, planner: Planner, cutoff: float) -> list[PipelinePlan]:
    """Return the neighbours that fit and take less than ``cutoff`` seconds (stage simulation), the fastest first.

    A neighbour has another schedule, another number of micro-batches, one moved cut, two stages merged, one device
    moved to the previous or the next stage, or one device more or less in use.
    """
    steps = [(plan.pipeline, kind, count) for kind, count in _schedules(plan, planner)]
    pipelines = [*_pipelines(plan.pipeline, planner.columns), *_device_moves(plan.pipeline, planner.machine)]
    steps += [(variant, plan.kind, plan.micro_batches) for variant in pipelines]
    different = {}
    for pipeline, kind, count in steps:
        stop_if_wanted()
        different[planner.shape(pipeline), kind, count] = pipeline, kind, count
    plans = []
    for step in different.values():
        stop_if_wanted()
        plans.append(planner.plan(*step, cutoff))
    return sorted(
        (plan_ for plan_ in plans if plan_ is not None and plan_.seconds < cutoff),
        key=lambda plan_: plan_.seconds,
    )


def _schedules(plan: PipelinePlan, planner: Planner) -> Iterator[tuple[str, int]]:
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
        stop_if_wanted()
        for cut in _nearest_cuts(columns, cuts[stage - 1], cuts[stage], ends[stage]):
            yield attrs.evolve(pipeline, cuts=(*cuts[:stage], cut, *cuts[stage + 1 :]))
        union = tuple(a + b for a, b in zip(counts[stage - 1], counts[stage], strict=True))
        if columns.follows(cuts[stage - 1], ends[stage]):
            yield Pipeline((*cuts[:stage], *cuts[stage + 1 :]), (*counts[: stage - 1], union, *counts[stage + 1 :]))


def _device_moves(pipeline: Pipeline, machine: Machine) -> Iterator[Pipeline]:
    """Yield what one moved device makes; of hosts that are equal and have equal devices of all stages, the last one."""
    counts = pipeline.counts
    idle_counts = np.bincount(machine.host) - np.sum(counts, axis=0)
    equal = dict(zip(zip(machine.kinds, *counts, strict=True), range(len(idle_counts)), strict=True))
    for stage, devices in enumerate(counts):
        for host in equal.values():
            count = devices[host]
            if idle_counts[host]:
                yield _move_device(pipeline, host, None, stage)
            if count and sum(devices) > 1:
                for receiver in (None, *range(max(stage - 1, 0), stage), *range(stage + 1, len(counts))[:1]):
                    yield _move_device(pipeline, host, stage, receiver)


def _move_device(pipeline: Pipeline, host: int, source: int | None, target: int | None) -> Pipeline:
    """Move a device of a host from stage ``source`` to stage ``target``; None is the set of idle devices."""
    new_counts = [list(counts) for counts in pipeline.counts]
    if source is not None:
        new_counts[source][host] -= 1
    if target is not None:
        new_counts[target][host] += 1
    return attrs.evolve(pipeline, counts=tuple(tuple(counts) for counts in new_counts))


def _nearest_cuts(columns: Columns, start: int, cut: int, end: int) -> list[int]:
    """Return the cuts nearest to ``cut`` (in seconds), between a stage's start and the next stage's end."""
    candidates = [c for c in columns.between(start, end) if c != cut]
    seconds = columns.forward[0] + columns.backward[0]
    lower = sorted((c for c in candidates if seconds[c] <= seconds[cut]), key=lambda c: seconds[cut] - seconds[c])
    higher = sorted((c for c in candidates if seconds[c] > seconds[cut]), key=lambda c: seconds[c] - seconds[cut])
    return lower[:_CUTS_EACH_SIDE] + higher[:_CUTS_EACH_SIDE]
