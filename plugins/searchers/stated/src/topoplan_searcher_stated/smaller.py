"""The nearest plan that fits, of one that does not: it differs in the fewest settings, and is the fastest of these.

settings that save memory, alone ─► in pairs ─► in threes    each: estimates ─► those that fit, the fastest first
                                                                 └► memory of what is lowered, of one at a time
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import attrs

from topoplan import Problem, TopoplanError
from topoplan.model.reconfigurable import AnyFabric
from topoplan_engine.lowering import Lowering
from topoplan_searcher_stated.candidates import Candidates
from topoplan_searcher_stated.construct import strategy_of
from topoplan_searcher_stated.degrees import short_words_of
from topoplan_searcher_stated.estimates import Estimates
from topoplan_searcher_stated.launchable import launchable_for
from topoplan_searcher_stated.settings import Settings

__all__ = ["nearest_that_fits"]

#: Settings that change together, at most, and plans whose memory is looked at in full.
_TOGETHER, _LOOKED_AT = 3, 3


def nearest_that_fits(plan: Settings, problem: Problem, fabric: AnyFabric) -> str:
    """Return the nearest plan that fits the same devices, in the words of ``--plan``; empty if none was found.

    Args:
        plan: that does not fit.
        problem: its model and machine.
        fabric: between its hosts.
    """
    widest = max(plan.tp, problem.cluster.n_devices // problem.cluster.n_hosts)
    usable = float(problem.cluster.usable_memory.min())
    rules, launchable = launchable_for(problem)
    runs = None if problem.restriction is None else launchable.runs
    estimates = Estimates(problem, fabric, rules, [plan.micro_batch])
    candidates = Candidates(estimates, usable, runs, problem.cluster.n_devices)
    lowering = Lowering(problem.graph, problem.cluster, problem.costs)
    for together in range(1, _TOGETHER + 1):
        plans = list(dict.fromkeys(_changed(plan, together, widest)))
        pairs = sorted(zip(candidates.add(plans), range(len(plans)), strict=True))
        for _, number in [pair for pair in pairs if pair[0] < float("inf")][:_LOOKED_AT]:
            try:
                strategy, degrees = strategy_of(plans[number], problem.graph, problem.cluster.n_devices, rules)
            except TopoplanError:  # heads, positions or channels do not divide
                continue
            if (lowering.memory(strategy) <= problem.cluster.usable_memory).all():
                return short_words_of(plans[number], degrees)
    return ""


def _changed(plan: Settings, together: int, widest: int) -> Iterator[Settings]:
    """Go through plans that save memory in so many settings, with tensor parallel groups of ``widest`` at most."""
    steps = _steps(plan, widest)
    for names in itertools.combinations(steps, together):
        for changes in itertools.product(*(steps[name] for name in names)):
            merged = {key: value for change in changes for key, value in change.items()}
            yield attrs.evolve(plan, **merged)


def _steps(plan: Settings, widest: int) -> dict[str, list[dict[str, Any]]]:
    """Return by setting what may take its place; more devices for a part of the model are fewer of its copies."""
    steps: dict[str, list[dict[str, Any]]] = {
        "zero": [{"zero": level} for level in (1, 2, 3) if level > plan.zero],
        "recompute": [{"recompute": words} for words in ("selective", "full") if words != plan.recompute],
        "micro_batch": [{"micro_batch": size} for size in (plan.micro_batch // 2, 1) if 0 < size < plan.micro_batch],
    }
    if plan.recompute == "full":
        steps["recompute"] = []
    for axis in ("tp", "pp", "ep", "cp"):
        layers: dict[str, Any] = {"layers": ""} if axis == "pp" else {}
        degrees = [factor * getattr(plan, axis) for factor in (2, 4, 8)]
        steps[axis] = [{axis: each, "dp": None, **layers} for each in degrees if axis != "tp" or each <= widest]
    return {name: changes for name, changes in steps.items() if changes}
