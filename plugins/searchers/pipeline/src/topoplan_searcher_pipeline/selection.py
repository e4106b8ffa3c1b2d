"""Selects the plans of the dynamic program that are simulated task by task.

Half of them are the fastest by stage simulation.  The others are taken round-robin over the numbers of stages, for
which stage simulation is least exact.  A plan that is not selected stays so when more plans are known, so a stage
simulation may stop when it is certain that its plan is not (`reach`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from topoplan_searcher_pipeline.plans import PipelinePlan

__all__ = ["drop_others", "reach", "select"]


def select(plans: Sequence[PipelinePlan], number: int) -> list[PipelinePlan]:
    """Return at most so many of ``plans``, which are sorted by their seconds; the fastest half first."""
    return [*plans[: number // 2], *(plans[place] for _, place in _others(plans, number))]


def drop_others(plans: Sequence[PipelinePlan], number: int) -> list[PipelinePlan]:
    """Return the selected plans as they are sorted: none of the others is selected later."""
    if len(plans) <= number:
        return list(plans)
    return [plans[place] for place in sorted([*range(number // 2), *(place for _, place in _others(plans, number))])]


def reach(plans: Sequence[PipelinePlan], number: int, stages: int) -> float:
    """Return the seconds at which, or above which, another plan of so many stages is not selected.

    Args:
        plans: known plans, sorted by their seconds.
        number: of plans that are selected.
        stages: of the other plan.
    """
    if len(plans) < number:
        return math.inf
    turn, place = _others(plans, number)[-1]
    equal = [plan.seconds for plan in plans[number // 2 :] if len(plan.pipeline.cuts) == stages]
    if len(equal) < turn - 1:
        return math.inf
    # Its turn comes too late behind as many equal plans as there are turns; the last turn is full where it comes behind
    # the plan that was selected last.
    last = max([plans[place].seconds, *equal[: turn - 1]])
    return min([last, *equal[turn - 1 : turn]])


def _others(plans: Sequence[PipelinePlan], number: int) -> list[tuple[int, int]]:
    """Return the turns and the places of the selected plans that are not in the fastest half, in order."""
    half = number // 2
    turns: dict[int, int] = {}
    order = []
    for place, plan in enumerate(plans[half:], half):
        stages = len(plan.pipeline.cuts)
        turns[stages] = turns.get(stages, 0) + 1
        order.append((turns[stages], place))
    return sorted(order)[: number - half]
