"""Searches in a problem from Python: components as they are, one chain, no experiment."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topoplan.model.problem import Problem
from topoplan.plugin.components import Searcher, Simulator
from topoplan.search.protocol import Run
from topoplan_engine.guarded import build_search, build_simulate
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.result import Result
from topoplan_engine.search.starting import initial_strategy
from topoplan_engine.search.whole_run import drive

__all__ = ["run_searchers"]


def run_searchers(
    problem: Problem, searchers: Sequence[Searcher], simulator: Simulator, *, budget: int = 1000, seed: int = 0
) -> Result:
    """Search in a problem from the initial strategy, and return the fastest state with its seconds.

    The random numbers are those of `topoplan_engine.optimize`, so the same components make the same search.  Unlike
    there, the last states are not priced again under new draws of equal paths, and no observer is called.

    Args:
        problem: what to search in.
        searchers: they take turns.
        simulator: prices states.
        budget: candidates to price after the initial state.
        seed: of all random numbers.
    """
    fabric_rng, *rngs = np.random.default_rng(seed).spawn(1 + len(searchers))
    searches = [
        (searcher.axis, build_search(searcher, problem, rng)) for searcher, rng in zip(searchers, rngs, strict=True)
    ]
    evaluator = Evaluator(problem, build_simulate(simulator), simulator.memory_policy, first_draw=simulator.first_draw)
    names = tuple(searcher.name for searcher in searchers)
    run = Run(problem=problem, budget=budget, seed=seed, searchers=names)
    return drive(run, evaluator, initial_strategy(evaluator, seed), searches, fabric_rng)
