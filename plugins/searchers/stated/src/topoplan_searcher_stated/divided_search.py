"""The steps of a search for pipelines of unequal stages: two levels, variants, then neighbours of the best."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator

import numpy as np

from topoplan import AnyFabric, Problem
from topoplan_engine.experts import skew_of
from topoplan_searcher_stated.divided import DividedPlan, DividedPlans

__all__ = ["divided_plans", "divided_steps"]

#: Pipelines of each number of micro-batches whose schedules are estimated.
_FOLLOWED = 12
#: A plan is simulated if its estimate is no more than this times the best simulated time.
_NEAR = 1.02
#: Plans that are simulated of the two levels, and of the neighbours of one.
_SIMULATED, _NEIGHBOURS = 16, 8
#: Plans that are simulated of as many stages under one schedule, for their estimates are off in the same way.
_OF_KIND = 2
#: Smallest improvement that counts as one, and plans without any after which no more are simulated.
_BETTER, _PATIENCE = 0.9995, 8
#: Devices of a machine whose stages are planned one by one: beyond, stages of equal size are as many as there are.
_MOST_DEVICES = 128


def divided_plans(problem: Problem, fabric: AnyFabric, grads: str) -> DividedPlans | None:
    """Return the plans of a problem; None where stages are not planned one by one.

    Devices and hosts have to be equal, tokens of experts evenly spread, and plans for no trainer, whose stages are.
    """
    cluster = problem.cluster
    sizes = np.bincount(cluster.device_host)
    columns = (sizes, cluster.inside_bandwidth, cluster.interfaces, cluster.interface_bandwidth, cluster.device_speed)
    equal = all((column == column[0]).all() for column in columns) and len({*cluster.device_preset}) == 1
    few = 1 < cluster.n_devices <= _MOST_DEVICES
    if not equal or not few or problem.restriction is not None or skew_of(problem.graph) > 1:
        return None
    return DividedPlans(problem, fabric, grads)


def divided_steps(
    plans: DividedPlans, best_cost: Callable[[], float], simulated: dict[DividedPlan, float], most: int
) -> Iterator[DividedPlan | None]:
    """Yield None after some estimates, and plans to simulate.

    Args:
        plans: of the problem.
        best_cost: returns the seconds of the best plan so far, of whichever searcher.
        simulated: seconds of the plans that were yielded, written by the caller.
        most: plans that are yielded.
    """
    estimates: dict[DividedPlan, float] = {}
    for divided in plans.planned():
        for plan in divided[:_FOLLOWED]:
            several = list(plans.variants(plan))
            estimates |= dict(zip(several, plans.seconds(several), strict=True))
        yield None
    yield from _proposed(estimates, best_cost, simulated, min(_SIMULATED, most))
    starts: set[DividedPlan] = set()
    while simulated and len(simulated) < most and (best := min(simulated, key=simulated.__getitem__)) not in starts:
        starts.add(best)
        if simulated[best] == math.inf:
            break
        several = list(plans.neighbours(best))
        close = dict(zip(several, plans.seconds(several), strict=True))
        yield None
        yield from _proposed(close, best_cost, simulated, min(_NEIGHBOURS, most - len(simulated)))


def _proposed(
    estimates: dict[DividedPlan, float],
    best_cost: Callable[[], float],
    simulated: dict[DividedPlan, float],
    most: int,
) -> Iterator[DividedPlan]:
    """Yield plans that may be faster than the best one, the fastest first, until several are not."""
    in_vain, of_kind = 0, Counter[tuple[int, str, int]]()
    for plan in sorted(estimates, key=estimates.__getitem__):
        kind = len(plan.stages), plan.schedule, plan.layout
        if plan in simulated or of_kind[kind] == _OF_KIND:
            continue
        if estimates[plan] > _NEAR * best_cost() or in_vain == _PATIENCE or of_kind.total() == most:
            return
        before = best_cost()
        of_kind[kind] += 1
        yield plan
        in_vain = 0 if best_cost() < _BETTER * before else in_vain + 1
