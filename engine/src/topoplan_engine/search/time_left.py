"""How much time a search with a limit has: what its end takes, and how large a candidate may be, or how long take.

The end simulates the plan in full, and draws its paths again.  What both take is not known before, but measured: the
evaluator knows the seconds of a task from the candidates that it priced.
"""

from __future__ import annotations

import math

from topoplan.search.protocol import State, Trial
from topoplan_engine.interrupt import Stop, obeyed
from topoplan_engine.search.evaluator import Evaluator

__all__ = ["TimeLeft"]

#: Share of a time limit that the pricing of one candidate may take; while none is better than the initial strategy;
#: while no plan is known that fits; and while nothing has a price, where no other searcher may have a smaller plan.
_LONGEST, _LONGEST_UNTIL_BETTER, _LONGEST_FIRST, _LONGEST_ALONE = 0.1, 0.2, 0.65, 0.8

#: Share that the pricing of the first state may take where planners propose others; and as it is estimated before
#: anything is priced, when tasks may take so many times as long as is assumed.
_INITIAL, _INITIAL_AS_ESTIMATED, _CAUTION = 0.3, 0.1, 3.0

#: Share of a time limit that the search has, however long its end takes.
_SEARCHED = 0.3

#: Draws of paths that the end takes of the plan and of those beside it, if there are any; share of the limit at most.
_DRAWS, _DRAWN = 24, 0.15

#: Share of a time limit that the end of a state that does not fit may come late.
_GRACE = 0.15

#: How much longer it takes to price a candidate and to simulate it once more, in full, than to price it.
_WITH_ITS_END = 2.5


class TimeLeft:
    """The time limit of one search run."""

    def __init__(self, evaluator: Evaluator, limit: float, *, has_planners: bool) -> None:
        """Begin.

        Args:
            evaluator: of the run.
            limit: seconds; infinite where there is none.
            has_planners: a searcher constructs plans, so that the first state is not the only one to begin with.
        """
        self._evaluator, self._limit, self._has_planners = evaluator, limit, has_planners
        #: The state at the start, once it is priced.
        self.initial: Trial | None = None
        # The best state, with the tasks that its end simulates in full, and those that its draws of paths do.
        self._end: tuple[State | None, float, float] = (None, 0.0, 0.0)

    def seconds(self, elapsed: float, best: Trial) -> float:
        """Return the seconds until the search must end, so that there is time for the end of its best state.

        While nothing has a price, and planners propose what is not known yet, nothing is known of the end either.
        While no plan fits that has one, its end may come late: what fits is worth that.
        """
        is_known = best.cost < math.inf or not self._has_planners
        at_end = self.seconds_at_end(best.state) if is_known else 0.0
        late = 0.0 if best.fits or not self._has_planners else _GRACE * self._limit
        return self._limit - elapsed - max(at_end - late, 0.0)

    def seconds_at_end(self, state: State) -> float:
        """Return the seconds that the end takes for a state: as long as what was measured says."""
        if self._limit == math.inf:
            return 0.0
        pace = self._evaluator.seconds_per_task
        if self._end[0] is not state:
            with obeyed(Stop()):  # else whoever counts tasks would ask here whether there is time
                tasks, in_full = self._evaluator.tasks_in_full(state), self._evaluator.seconds_in_full(state) / pace
            self._end = state, in_full, float(tasks * _DRAWS if self._evaluator.may_draw(state) else 0)
        _, in_full, drawn_tasks = self._end
        return min(in_full * pace + min(drawn_tasks * pace, _DRAWN * self._limit), (1.0 - _SEARCHED) * self._limit)

    def longest(self, best: Trial | None, *, is_portfolio: bool) -> float:
        """Return the seconds that the pricing of one candidate may take, or that of the first state, without a best.

        Where there are no planners, others are no faster to price than the first state.
        """
        if best is None:
            return self._limit * _INITIAL if self._has_planners else math.inf
        if best.cost == math.inf:
            return self._limit * (_LONGEST if is_portfolio else _LONGEST_ALONE)
        return self._limit * self._share(best)

    def _share(self, best: Trial) -> float:
        """Return the share of the limit that the pricing of one candidate may take."""
        if not best.fits:
            return _LONGEST_FIRST
        return _LONGEST_UNTIL_BETTER if best is self.initial else _LONGEST

    def most_tasks(self, elapsed: float, best: Trial | None) -> float:
        """Return how many tasks an iteration may have that is priced; that of the first state, without a best.

        As many as there may be time for; one that takes longer than others of its size is left (`longest`).
        """
        if best is None:
            share = _INITIAL_AS_ESTIMATED / _CAUTION if self._has_planners else 1.0 / _WITH_ITS_END
            return self._limit * share / self._evaluator.seconds_per_task
        seconds_left = max(self._limit - elapsed, 0.0) / _WITH_ITS_END
        return min(self._share(best) * self._limit, seconds_left) / self._evaluator.least_seconds_per_task

    def ends_late(self, elapsed: float, trial: Trial, best: Trial) -> bool:
        """Say whether a trial that is better than the best takes too long to be simulated in full at the end.

        Quotients are priced much faster than all their tasks are simulated.  What takes no longer than the best is as
        good an end as there is.
        """
        if self._limit == math.inf or trial.rank >= best.rank:
            return False
        takes = self._evaluator.seconds_in_full(trial.state)
        return takes > max(self._limit - elapsed, 0.0) and takes > self._evaluator.seconds_in_full(best.state)
