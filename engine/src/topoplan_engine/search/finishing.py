"""What follows a search: its best plan is improved by a searcher that moves what planners leave alone.

    best state ─► the searcher `joint` and its companions: algorithms of collectives, layout, wiring ─► result

It is a search like any other, from the best state on, in this process, so that a seed has one result for any workers.
Its work is counted: a share of the budget, and few proposals where an iteration is large.  Plans of models without
attention, and those whose operators are placed one by one, are left as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Protocol, runtime_checkable

import attrs
import numpy as np

from topoplan.model.fabric import Fabric
from topoplan.model.problem import Demand, Problem
from topoplan.model.staged import StagedStrategy
from topoplan.plugin.components import Searcher, TopologyContext
from topoplan.plugin.host import Host
from topoplan.search.protocol import Candidate, Progress, Run, Search
from topoplan_engine.experiment import Choice
from topoplan_engine.guarded import TakesAlgorithms, build_search
from topoplan_engine.interfaces import check_fabric
from topoplan_engine.recomputation import ATTENTION
from topoplan_engine.search.bests import Origin
from topoplan_engine.search.companions import build_member, companions_of
from topoplan_engine.search.limits import Limits
from topoplan_engine.search.restarts import Part
from topoplan_engine.search.result import Result
from topoplan_engine.search.run_folder import Journals
from topoplan_engine.search.setup import SearchSetup
from topoplan_engine.search.whole_run import drive

__all__ = ["FINISHING", "Finishes", "Wireable", "finished", "may_finish", "wired"]

#: Proposals, as a share of the budget of the search, and at most; parts of operators in all of them together.
_SHARE, _MOST, _PARTS = 0.15, 24, 2**20
#: Share of a time limit that is for this.
FINISHING = 0.1
#: Keys of a report that hold a plan in the words of ``--plan``.
_WORDS = ("plan", "short")
#: Improvement for which the plan is another one.
_WORTH = 1e-4


@runtime_checkable
class Finishes(Protocol):
    """A searcher whose best plan another one improves at the end."""

    @property
    def finisher(self) -> Choice | None:
        """The searcher that does; None for none."""


@runtime_checkable
class Wireable(Protocol):
    """A topology whose hardware could be wired in several ways, of which it builds one unless it gets a demand."""

    def wired_for(self, context: TopologyContext) -> Fabric:
        """Return the fabric that is the best by an estimate for ``context.demand``; None there for the usual one."""

    @property
    def chooses(self) -> bool:
        """Whether its options leave anything to choose."""


def may_finish(setup: SearchSetup, host: Host) -> Searcher | None:
    """Return the searcher that follows a search; None where none does."""
    choices = [each.finisher for each in setup.searchers[: setup.n_chosen] if isinstance(each, Finishes)]
    choice = next((choice for choice in choices if choice is not None), None)
    attends = any(op.kind in ATTENTION for op in setup.problem.graph.operators)
    is_named = choice is not None and any(each.name == choice.name for each in setup.searchers)
    if choice is None or is_named or not attends or not host.has(Searcher, choice.name):
        return None
    if not isinstance(setup.simulate, TakesAlgorithms) or setup.simulate.algorithms is None:
        choice = attrs.evolve(choice, options={**choice.options, "algorithms": False})
    return choice.make(host, Searcher)


def finished(
    setup: SearchSetup,
    host: Host,
    searcher: Searcher,
    result: Result,
    seconds: float,
    journals: Journals,
    on_progress: Callable[[str, Progress], None],
) -> Result:
    """Improve the best plan of a search.

    Args:
        setup: of the search.
        host: has companions of the searcher.
        searcher: that moves what is left (`may_finish`).
        result: of the search.
        seconds: that are left of a time limit.
        journals: of the run.
        on_progress: of the search.

    Returns:
        The result, with the states that are better behind its own.
    """
    best = result.best
    limits = _limits(setup, seconds)
    is_programs = isinstance(best.strategy, StagedStrategy) and not best.strategy.is_placed
    if result.interrupted or not (is_programs and result.best_cost < math.inf and limits.budget):
        return result
    problem, evaluator = wired(setup), setup.evaluator
    evaluator.recall(Candidate(base=best), result.best_cost, evaluator.fits(best.strategy))
    before, run = evaluator.evaluations + 1, Run(problem=problem, budget=limits.budget, seed=setup.seed, searchers=())
    part = Part(limits=limits, journals=attrs.evolve(journals, name="joint"))
    rng, *rngs = np.random.default_rng([setup.seed, 1]).spawn(2 + _MOST)
    companions = companions_of(host, [searcher], setup.topology, problem.cluster.n_devices)
    searches: list[tuple[str, Search]] = [(searcher.axis, build_search(searcher, problem, rngs[0]))]
    searches += [(each.axis, build_member(each, problem, rngs[1 + k])) for k, each in enumerate(companions)]
    with closing(part.journals.open(0, 0)) as journal:
        more = drive(run, evaluator, best, searches, rng, _after(result, on_progress), limits=limits, journal=journal)
    return _joined(result, more, before, searches[0][1])


def wired(setup: SearchSetup) -> Problem:
    """Return the problem of a search as this one sees it: where the network can be wired, for the demand of a plan."""
    topology, problem = setup.topology, setup.problem
    if not isinstance(topology, Wireable) or not topology.chooses:
        return problem

    def build(demand: Demand | None, rng: np.random.Generator) -> Fabric:
        fabric = topology.wired_for(TopologyContext(cluster=problem.cluster, demand=demand, rng=rng))
        check_fabric(fabric, problem.cluster)
        return fabric

    return attrs.evolve(problem, reconfigurable=True, build_fabric=build)


def _limits(setup: SearchSetup, seconds: float) -> Limits:
    """Return how far it may go: proposals by the budget, and by the parts of operators of each."""
    budget = setup.experiment.run.budget
    parts = len(setup.problem.graph.operators) * setup.problem.cluster.n_devices
    return Limits(
        budget=min(math.ceil(_SHARE * budget), max(1, min(_MOST, _PARTS // parts))), seconds=_time(setup, seconds)
    )


def _time(setup: SearchSetup, remaining: float) -> float:
    """Return the seconds that it may take of those that are left of a time limit."""
    seconds = setup.experiment.run.seconds
    return math.inf if seconds == math.inf else max(0.0, min(FINISHING * seconds, remaining / 2))


def _after(result: Result, on_progress: Callable[[str, Progress], None]) -> Callable[[str, Progress], None]:
    """Return what reports the progress behind that of the search."""

    def report(event: str, progress: Progress) -> None:
        if event in ("evaluated", "new_best"):
            elapsed = result.elapsed + progress.elapsed
            on_progress(event, attrs.evolve(progress, elapsed=elapsed, initial=result.initial_cost))

    return report


def _joined(result: Result, more: Result, before: int, search: Search) -> Result:
    """Return what a search found, with what followed: better states come last, as plans of who constructed the best.

    Args:
        result: of the search.
        more: what followed.
        before: evaluations that its evaluator had made.
        search: knows the layouts of its strategies.
    """
    first, last = result.shortlist[-1].origin, result.best_cost * (1 - _WORTH)
    counted: dict[str, Any] = {
        "evaluations": result.evaluations + more.evaluations - before,
        "elapsed": result.elapsed + more.elapsed,
        "planning": result.planning + more.planning,
        "ended_by": "interrupt" if more.interrupted else result.ended_by,
    }
    if more.best_cost >= last:
        return attrs.evolve(result, **counted)
    entries = [
        attrs.evolve(entry, origin=_relaid(first, search.report(entry.state.strategy)))
        for entry in more.shortlist
        if entry.cost < last
    ]
    rows = more.history[more.history[:, 2] < last].copy()
    rows[:, :2] += (result.evaluations - before, result.elapsed)
    return attrs.evolve(
        result,
        best=more.best,
        best_cost=more.best_cost,
        shortlist=(*result.shortlist, *entries),
        history=np.concatenate([result.history, rows]),
        rank=(result.rank[0], result.rank[1], more.best_cost),
        **counted,
    )


def _relaid(origin: Origin, layout: Mapping[str, Any] | None) -> Origin:
    """Return where a strategy comes from, in the words of another layout if it has one."""
    if layout is None or origin.report is None:
        return origin
    stated = origin.report
    words = {key: _with_layout(str(stated[key]), str(layout["layout"])) for key in _WORDS if key in stated}
    return attrs.evolve(origin, report={**stated, **words})


def _with_layout(words: str, layout: str) -> str:
    """Return a plan in the words of ``--plan``, in another layout.

    >>> _with_layout("dp=4,pp=2,layout=pp-tp-cp-ep-dp,zero=1", "tp-cp-ep-dp-pp")
    'dp=4,pp=2,zero=1,layout=tp-cp-ep-dp-pp'
    """
    return ",".join([*(word for word in words.split(",") if not word.startswith("layout=")), f"layout={layout}"])
