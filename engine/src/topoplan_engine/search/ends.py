"""When a run with a time limit must end, and what there is still time for."""

from __future__ import annotations

import math
import warnings

import attrs

from topoplan.errors import TopoplanWarning
from topoplan.search.protocol import Candidate, State
from topoplan.search.stopping import Stopped
from topoplan_engine.interrupt import Stop, obeyed
from topoplan_engine.kernels.clock import clock
from topoplan_engine.search.bests import ShortlistEntry
from topoplan_engine.search.clocked import Clocked
from topoplan_engine.search.evaluator import Evaluator

__all__ = ["Ends"]

#: Share of a time limit that the simulation of the initial state in full may take after it.
_INITIAL = 0.05

#: Tasks of the largest initial state that is simulated in full where it does not fit: no plan is compared with it then.
_LARGEST_START = 1 << 22

#: Share of it that a run may take longer without saying so.
_WORTH_A_WORD = 0.15


@attrs.frozen(kw_only=True)
class Ends:
    """When a run must end.

    Attributes:
        began: reading of the clock at its start.
        seconds: from then on; infinite without a time limit.
    """

    began: float
    seconds: float

    @property
    def remaining(self) -> float:
        """Seconds that are left."""
        return self.seconds - (clock() - self.began)

    def has_time_for(self, evaluator: Evaluator, state: State) -> bool:
        """Say whether a state can be simulated in full, which may take some time more than there is."""
        if self.seconds == math.inf:
            return True
        return evaluator.seconds_in_full(state) <= max(self.remaining, _INITIAL * self.seconds)

    def has_use_for(self, evaluator: Evaluator, start: ShortlistEntry) -> bool:
        """Say whether the initial state is to be simulated in full: there is time, and it fits or is no large one.

        One that `with_price` had no time for is not.
        """
        if not self.has_time_for(evaluator, start.state) or self._lacks_price(evaluator, start):
            return False
        return evaluator.tasks_in_full(start.state) <= _LARGEST_START or evaluator.fits(start.state.strategy)

    def with_price(
        self, evaluator: Evaluator, start: ShortlistEntry, at_end: float, clocked: Clocked
    ) -> ShortlistEntry:
        """Price the initial state where the search had no time to, and there is some left: it may be the best.

        Args:
            evaluator: of the search.
            start: the initial state.
            at_end: seconds that the simulation of the plan takes.
            clocked: remembers whether there was time.
        """
        if self.seconds == math.inf or start.cost < math.inf:
            return start
        if clocked.says(lambda: not self.has_time_for(evaluator, start.state)):
            return start
        if not self._lacks_price(evaluator, start):
            return start
        until = clock() + max(self.remaining - at_end, _INITIAL * self.seconds)
        try:
            with obeyed(Stop(), lambda: math.inf if clocked.journal.replaying else until - clock()):
                trial = clocked.call(lambda: evaluator.price(Candidate(base=start.state)))
        except Stopped:
            return start
        return attrs.evolve(start, cost=trial.cost)

    def _lacks_price(self, evaluator: Evaluator, start: ShortlistEntry) -> bool:
        """Say whether the initial state has no cost for want of time alone."""
        strategy, is_limited = start.state.strategy, self.seconds < math.inf
        return is_limited and start.cost == math.inf and evaluator.fits(strategy) and not evaluator.refusal(strategy)

    def check_before_the_end(self, evaluator: Evaluator, state: State) -> None:
        """Warn if a plan takes longer to be simulated in full than a part of the time limit that is worth a word."""
        if self.seconds == math.inf:
            return
        takes = evaluator.seconds_in_full(state)
        if takes > max(self.remaining, 0.0) + _WORTH_A_WORD * self.seconds:
            tasks = evaluator.tasks_in_full(state)
            warnings.warn(
                TopoplanWarning(
                    f"time-limit: {self.seconds - self.remaining:.3g} of {self.seconds:.3g} s have passed, and to "
                    f"simulate the plan in full takes about {takes:.3g} s more: it has {tasks:,} tasks, and "
                    f"{1e6 * evaluator.seconds_per_task:.2g} s were measured for a million"
                ),
                stacklevel=2,
            )
