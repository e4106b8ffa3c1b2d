"""What a search of hybrid plans says of those that it did not take: the ten best, and less time against less memory.

    plans, simulated or estimated ─► the ten best ─► estimates of their parts ─► why each lost to the best one
                                                └► the same with other ZeRO, recomputation ─► front of time and memory

Reasons come from estimates, which say parts of all plans in the same way: what the busiest rank of the pipeline
computes, what it waits for between passes of operators, and the rest, which is the bubble and what is left of sums of
gradients.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import attrs

from topoplan import TopoplanError
from topoplan_searcher_stated.settings import Settings

__all__ = ["KnownPlans", "PlanParts", "best_plans", "front"]

#: Plans that are listed, and points of a front.
_LISTED, _POINTS = 10, 12
#: Plans that do not fit and are listed, if they would be faster.
_TOO_LARGE = 3
#: Seconds that are no difference, as a share of the iteration.
_EQUAL = 0.002
_GIB = 2**30


class PlanParts(NamedTuple):
    """Estimated seconds of the busiest rank of a pipeline.

    Attributes:
        computation: of all its passes.
        exchanges: that it waits for in these, of tensor, context and expert parallelism.
        waits: all the rest: the bubble, and what sums of gradients leave.
    """

    computation: float
    exchanges: float
    waits: float


class Estimated(Protocol):
    """Seconds and bytes of a plan."""

    @property
    def seconds(self) -> float:
        """Of an iteration."""

    @property
    def memory(self) -> float:
        """Of the fullest device."""


class KnownPlans(NamedTuple):
    """What a search knows.

    Attributes:
        simulated: seconds of the plans that were simulated and fit.
        estimated: further plans that fit, the fastest first, by estimates.
        usable: bytes of a device.
        estimate: seconds and bytes of a plan; raises `TopoplanError` for one that cannot be built.
        parts: of a plan that can.
        words: of a plan, as ``--plan`` takes it.
    """

    simulated: Mapping[Settings, float]
    estimated: Sequence[Settings]
    usable: float
    estimate: Callable[[Settings], Estimated]
    parts: Callable[[Settings], PlanParts]
    words: Callable[[Settings], str]


def best_plans(search: KnownPlans) -> list[dict[str, Any]]:
    """Return the best plans, the best first: those simulated, then those estimated, then faster ones that do not fit.

    Each has ``plan``, ``seconds``, whether these are ``simulated``, ``memory_gib``, ``fits``, and ``lost_by``: why
    it is not the first.
    """
    plans = sorted(search.simulated, key=lambda plan: search.simulated[plan])[:_LISTED]
    if not plans:
        return []
    further = [plan for plan in search.estimated if plan not in search.simulated]
    plans += further[: _LISTED - len(plans)]
    best = search.parts(plans[0])
    rows = [_row(plan, search, best, first=number == 0) for number, plan in enumerate(plans)]
    return rows + _too_large(search, plans[0])


def front(search: KnownPlans) -> list[dict[str, Any]]:
    """Return plans than which none that is known is both faster and smaller, the fastest first.

    Seconds are simulated where the plan was, as in `best_plans`: the plan of the search is one of them.
    """
    best = sorted(search.simulated, key=lambda plan: search.simulated[plan])[:_LISTED]
    points = []
    for plan in dict.fromkeys([*best, *search.estimated, *itertools.chain.from_iterable(map(_savings, best))]):
        try:
            estimate = search.estimate(plan)
        except TopoplanError:
            continue
        if estimate.memory <= search.usable:
            points.append((search.simulated.get(plan, estimate.seconds), estimate.memory, plan))
    points.sort(key=lambda point: point[:2])
    smallest, chosen = float("inf"), []
    for point in points:
        if point[1] < smallest * (1 - _EQUAL):
            smallest = point[1]
            chosen.append(point)
    step = max(1, -(-len(chosen) // _POINTS))
    return [
        {
            "plan": search.words(plan),
            "seconds": seconds,
            "simulated": plan in search.simulated,
            "memory_gib": nbytes / _GIB,
        }
        for seconds, nbytes, plan in chosen[::step]
    ]


def _row(plan: Settings, search: KnownPlans, best: PlanParts, *, first: bool) -> dict[str, Any]:
    estimate = search.estimate(plan)
    simulated = plan in search.simulated
    return {
        "plan": search.words(plan),
        "seconds": search.simulated[plan] if simulated else estimate.seconds,
        "simulated": simulated,
        "memory_gib": estimate.memory / _GIB,
        "fits": True,
        "lost_by": "" if first else _reason(search.parts(plan), best, plan.pp),
    }


def _reason(parts: PlanParts, best: PlanParts, ranks: int) -> str:
    """Say what of a plan takes more seconds than of the best one, the largest difference first."""
    names = ("computation", "exposed traffic", "bubble" if ranks > 1 else "sums of gradients")
    total = sum(best)
    more = [((mine - best_part) / total, name) for mine, best_part, name in zip(parts, best, names, strict=True)]
    lost = [f"{name} +{share:.1%}" for share, name in sorted(more, reverse=True) if share > _EQUAL]
    return ", ".join(lost) or "messages on links (parts as estimated are no longer)"


def _savings(plan: Settings) -> Iterator[Settings]:
    """Go through the same plan with other ZeRO, recomputation and size of micro-batches."""
    for zero, recompute, size in itertools.product((0, 1, 2, 3), ("none", "selective", "full"), (1, 2)):
        yield attrs.evolve(plan, zero=zero, recompute=recompute, micro_batch=plan.micro_batch * size)


def _too_large(search: KnownPlans, best: Settings) -> list[dict[str, Any]]:
    """Return plans beside the best one that would be faster if they fitted."""
    limit = search.estimate(best).seconds
    rows: list[dict[str, Any]] = []
    for plan in _savings(best):
        try:
            estimate = search.estimate(plan)
        except TopoplanError:
            continue
        seconds, nbytes = estimate.seconds, estimate.memory
        if seconds < limit * (1 - _EQUAL) and nbytes > search.usable:
            lacks = f"memory: {(nbytes - search.usable) / _GIB:.1f} GiB too much"
            row = {"plan": search.words(plan), "seconds": seconds, "simulated": False, "memory_gib": nbytes / _GIB}
            rows.append({**row, "fits": False, "lost_by": lacks})
    return sorted(rows, key=lambda row: row["memory_gib"])[:_TOO_LARGE]
