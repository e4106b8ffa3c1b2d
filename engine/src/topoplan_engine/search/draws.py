"""Iteration times over draws of equal paths: the shortlisted state with the best mean, and its time.

If messages have several equal paths, each takes one at random, and a simulated time is one draw of many.  A search
that prices every candidate under one draw settles on a state that is lucky in it.  So, before a plan is returned, the
shortlist of the search is priced under draws that the search has not used, and the best mean wins.  The reported time
of the winner is the mean over draws that did not choose it.  So many of them are taken that it is known to a quarter
of a percent, unless that takes longer than the search or than most searches: large task graphs are simulated less often
(`MOST_TASKS`).  The states beside it, the initial one first of all, are priced under the same draws, or a few of them
if they are clearly slower (`_CLEAR`).

Data flow: `judge` asks an evaluator for the times of a shortlist (`topoplan_engine.search.bests`) and returns a
`JudgedPlans`; it asks for no draw if nothing is drawn.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from topoplan.arrays import F64
from topoplan.model.cluster import Cluster
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.taskgraph import TaskGraph
from topoplan.plugin.simulate import Simulate
from topoplan.search.protocol import Candidate, State, Trial
from topoplan.search.stopping import Stopped
from topoplan_engine.interrupt import Stop, obeyed
from topoplan_engine.search.bests import Origin, ShortlistEntry
from topoplan_engine.search.clocked import Clocked
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.simulation.draws import AT_LEAST, FEW, MOST_TASKS, REPORTING, SOME_TASKS, Draws, reported_draws

__all__ = ["Draws", "Judged", "JudgedPlans", "finish_times", "judge", "mean_trial"]

#: Draws that choose from the shortlist, counted from those of the search.
_CHOOSING = range(1000, 1008)

#: How many times as long as the best a state takes under one draw that no other draws make it the best.
_CLEAR = 1.5


@attrs.frozen(kw_only=True, eq=False)
class Judged:
    """A shortlisted state, its times, and the memory part of its cost.

    Attributes:
        penalty: seconds that exceeding memory adds.
        fits: the state fits into the memory of every device.
    """

    entry: ShortlistEntry
    draws: Draws
    penalty: float
    fits: bool

    @property
    def cost(self) -> float:
        """Mean seconds, the memory penalty included."""
        return self.draws.mean + self.penalty

    @property
    def rank(self) -> tuple[bool, float]:
        """Sort key, smallest for the best: fits, then cost."""
        return not self.fits, self.cost


@attrs.frozen(kw_only=True, eq=False)
class JudgedPlans:
    """What `judge` returns.

    Attributes:
        plan: the result of the search.
        initial: the state from which it started.
        aside: if constructed plans are preferred, the fastest of all three; else the best constructed state, None
            if there is none.
    """

    plan: Judged
    initial: Judged
    aside: Judged | None


@attrs.frozen
class _Limits:
    """Time for draws, see `judge`, and tasks for all draws of a state."""

    remaining: Callable[[], float] = lambda: math.inf
    clocked: Clocked = attrs.field(factory=Clocked)
    tasks: int = MOST_TASKS

    def draws(self, evaluator: Evaluator, state: State, states: int = 1, tasks: int = MOST_TASKS) -> int:
        """Return how many draws of each of some states have so many tasks, or as many as there may be."""
        return min(self.tasks, tasks) // max(1, evaluator.n_tasks(state) * states)

    def has_draws(self, evaluator: Evaluator, state: State) -> bool:
        """Say whether a state's time is one draw of many; not where there is no time to lower and simulate it again."""

        def is_late() -> bool:
            seconds = self.remaining()
            return seconds < math.inf and evaluator.seconds_in_full(state) > seconds

        if self.clocked.says(is_late):
            return False
        try:
            with obeyed(Stop(), self._left):
                return self.clocked.call(lambda: evaluator.draws(state))
        except Stopped:
            return False

    @property
    def is_up(self) -> bool:
        """Whether there is none left."""
        return self.clocked.says(lambda: self.remaining() <= 0.0)

    def makespans(self, evaluator: Evaluator, state: State, seeds: Sequence[int]) -> F64:
        """(n,) seconds of a state under draws with these seeds.

        Raises:
            Stopped: the time was up.
        """
        with obeyed(Stop(), self._left):
            return self.clocked.call(lambda: evaluator.makespans(state, seeds))

    def _left(self) -> float:
        return math.inf if self.clocked.journal.replaying else self.remaining()


def judge(
    evaluator: Evaluator,
    shortlist: Sequence[ShortlistEntry],
    initial: ShortlistEntry,
    aside: ShortlistEntry | None,
    *,
    constructed: bool,
    stop: Stop,
    evaluations: int = MOST_TASKS,
    remaining: Callable[[], float] = lambda: math.inf,
    clocked: Clocked = Clocked(),  # noqa: B008 - it is frozen
) -> JudgedPlans:
    """Choose a shortlisted state by its mean; time it, the initial state and the best state of the other kind.

    Args:
        evaluator: prices states.
        shortlist: states to choose from, the best of the search at the end.
        initial: the state from which the search started.
        aside: the best one of the other kind (`topoplan_engine.search.result.Result`).
        constructed: the shortlist is of constructed states, which are preferred; otherwise the initial state and the
            constructed one win if they are faster in the mean.
        stop: once it is wanted, only the least number of draws is taken.
        evaluations: candidates that the search has priced; draws of large task graphs simulate no more.
        remaining: seconds; without any no more draws are taken, and what has none has that of the search.
        clocked: remembers where there were none.
    """
    best = shortlist[-1]
    searched = evaluations * evaluator.n_tasks(best.state)
    limits = _Limits(remaining, clocked, min(MOST_TASKS, max(SOME_TASKS, searched)))
    draws = functools.cache(functools.partial(limits.has_draws, evaluator))
    baselines = [initial, *([] if aside is None else [aside])]
    rivals = list(shortlist) if constructed else _different([*shortlist, *baselines])
    if len(rivals) > 1 and not limits.is_up and draws(best.state):
        best = _best_of(evaluator, [best, *(entry for entry in rivals if entry is not best)], draws, stop, limits)

    def judged(entry: ShortlistEntry, at_least: int, most: int) -> Judged:
        if entry is initial and entry.cost == math.inf and remaining() < math.inf:
            # There was no time to price it: it is so large that its memory takes long, too.
            return Judged(entry=entry, draws=Draws(seconds=[math.inf]), penalty=0.0, fits=False)
        times = _times(evaluator, entry, draws, at_least, most, stop, limits)
        strategy = entry.state.strategy
        return Judged(entry=entry, draws=times, penalty=evaluator.penalty(strategy), fits=evaluator.fits(strategy))

    most = max(FEW, limits.draws(evaluator, best.state))
    plan = judged(best, min(AT_LEAST, most), most)
    judged_states = {plan.entry.state: plan}
    for entry in baselines:
        if entry.state not in judged_states:
            count = len(plan.draws.seconds)
            most = max(FEW, limits.draws(evaluator, entry.state)) if draws(entry.state) else FEW
            if draws(entry.state) and entry.cost > _CLEAR * plan.cost:
                most = max(FEW, min(count, limits.draws(evaluator, entry.state, tasks=SOME_TASKS)))
            judged_states[entry.state] = judged(entry, min(count, most), most)
    first, fastest = judged_states[initial.state], min(judged_states.values(), key=lambda entry: entry.rank)
    if not constructed:
        return JudgedPlans(plan=fastest, initial=first, aside=None if aside is None else judged_states[aside.state])
    return JudgedPlans(plan=plan, initial=first, aside=fastest)


def mean_trial(evaluator: Evaluator, state: State) -> Trial:
    """Price a state over so many draws that its mean is known well."""
    trial = evaluator.price(Candidate(base=state))
    if trial.cost == float("inf"):
        return trial
    entry = ShortlistEntry(state=state, cost=trial.cost, origin=Origin(""))
    most = max(FEW, _Limits().draws(evaluator, state))
    times = _times(evaluator, entry, evaluator.draws, min(AT_LEAST, most), most, Stop(), _Limits())
    return attrs.evolve(trial, cost=times.mean + evaluator.penalty(state.strategy)) if times.seeds else trial


def finish_times(simulate: Simulate, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster, first_draw: int) -> F64:
    """(n, T) seconds at which each task ends, under the draws that are reported at least; (1, T) if nothing is drawn.

    Args:
        simulate: runs the task graph.
        taskgraph, fabric, cluster: what it runs.
        first_draw: seed that the simulator was built with.
    """
    if not simulate.draws(taskgraph, fabric, cluster):
        return simulate(taskgraph, fabric, cluster).finish[None]
    runs = [simulate.with_seed(first_draw + number) for number in REPORTING[:AT_LEAST]]
    return np.stack([run(taskgraph, fabric, cluster).finish for run in runs])


def _different(shortlist: Sequence[ShortlistEntry]) -> list[ShortlistEntry]:
    """Leave out repetitions of a state."""
    return list({entry.state: entry for entry in reversed(shortlist)}.values())


def _best_of(
    evaluator: Evaluator,
    rivals: Sequence[ShortlistEntry],
    draws: Callable[[State], bool],
    stop: Stop,
    limits: _Limits,
) -> ShortlistEntry:
    """Return the rival with the best mean over the draws that choose, the first of equal ones; the first one draws."""
    ranks: dict[ShortlistEntry, tuple[bool, float]] = {}
    count = limits.draws(evaluator, rivals[0].state, len(rivals))
    seeds = [evaluator.first_draw + number for number in _CHOOSING[: max(FEW, count)]]
    for entry in rivals:
        if ranks and (stop.wanted or limits.is_up):
            break
        if ranks and entry.cost > _CLEAR * rivals[0].cost:
            continue
        cost = entry.cost
        if draws(entry.state):
            try:
                seconds = limits.makespans(evaluator, entry.state, seeds)
            except Stopped:
                return min(ranks, key=lambda rival: ranks[rival], default=entry)
            cost = float(seconds.mean()) + evaluator.penalty(entry.state.strategy)
        ranks[entry] = (not evaluator.fits(entry.state.strategy), cost)
    return min(ranks, key=lambda entry: ranks[entry])


def _times(
    evaluator: Evaluator,
    entry: ShortlistEntry,
    draws: Callable[[State], bool],
    at_least: int,
    most: int,
    stop: Stop,
    limits: _Limits,
) -> Draws:
    """Price a state under enough draws for a precise mean; its only time if nothing is drawn or no time left.

    Draws are taken in batches: the last one may exceed ``most``.
    """
    of_search = [entry.cost - evaluator.penalty(entry.state.strategy) if entry.cost < np.inf else np.inf]
    if limits.is_up or not draws(entry.state):
        return Draws(seconds=of_search)
    times = reported_draws(
        lambda seeds: limits.makespans(evaluator, entry.state, seeds), evaluator.first_draw, at_least, most, stop
    )
    return times if times.seeds else Draws(seconds=of_search, seeds=(evaluator.first_draw,))
