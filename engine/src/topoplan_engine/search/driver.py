"""The driver: the only search loop in the project.

A `SearchRun` prices the initial state, then lets its searchers take turns: each is asked for candidates,
the evaluator prices them, the searcher gets their costs.  When a searcher reaches a state better than all before,
the searchers of *other* axes adopt it.  So do other network searchers, since another fabric for the same
strategy is as good a start for them all; other strategy searchers do not, since a strategy of another kind, a
pipeline say, may leave a chain no way on, and neither do other joint ones.  Where searchers construct their answers and
users want these (`topoplan_engine.search.bests.Keep`), the best is the best of them, and network searchers move the
fabric for it even where the initial state is faster.  The loop ends when the budget is spent or the time is up
(`topoplan_engine.search.limits`), when no searcher proposes anything, when nothing was better for long enough and no
planner is still planning, or when the user interrupts it: the best state so far is then the result all the same.
Several search runs can advance in turn (`topoplan_engine.search.islands`).
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from topoplan.errors import NoPlanFitsError, TopoplanError, TopoplanWarning
from topoplan.model.placement import Placement
from topoplan.model.strategy import Strategy
from topoplan.search.protocol import Candidate, Progress, Search, State, Trial
from topoplan.search.stopping import Stopped
from topoplan_engine.guarded import strategy_fault
from topoplan_engine.interrupt import Stop, TooLargeError, obeyed
from topoplan_engine.kernels.allocator import keep_freed_memory
from topoplan_engine.kernels.clock import clock, cpu_clock
from topoplan_engine.screening import MOST, Screened
from topoplan_engine.search import asking
from topoplan_engine.search.bests import Found, Keep, Origin, ShortlistEntry
from topoplan_engine.search.clocked import Clocked
from topoplan_engine.search.companions import PortfolioMember
from topoplan_engine.search.evaluator import Evaluator
from topoplan_engine.search.journal import NoJournal, checksum
from topoplan_engine.search.limits import Ending, Limits
from topoplan_engine.search.recorder import NoRecorder, Row
from topoplan_engine.search.slices import Slices
from topoplan_engine.search.starting import NoSearch, go_on_without
from topoplan_engine.search.time_left import TimeLeft
from topoplan_engine.search.time_shares import TimeShares
from topoplan_engine.search.unpriced import Unpriced

__all__ = ["SearchRun"]

#: Seconds between two reports of progress.
_REPORT_EVERY = 0.1

#: Share of a time limit for which a planner plans before others have their turns.
_SLICE = 0.02


class SearchRun:
    """One search run.

    Attributes:
        initial: a trial.
        history: rows (evaluations, seconds, best cost), whenever there was a new best state.
        planning: seconds that searchers took to propose, compilation of kernels left out.
        unfinished: what the time limit or the user ended in the middle of; empty if nothing was.
        too_large: see `topoplan_engine.search.result.Result`.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        first: State,
        searchers: Sequence[tuple[str, Search]],
        limits: Limits | None = None,
        on_progress: Callable[[str, Progress], None] = lambda event, progress: None,
        keep: Keep = Keep(),  # noqa: B008 - it is frozen
        planning: float = 0.0,
        recorder: NoRecorder = NoRecorder(),  # noqa: B008 - it has no state
        journal: NoJournal = NoJournal(),  # noqa: B008 - it has no state
        on_best: Callable[[SearchRun], None] = lambda search_run: None,
    ) -> None:
        """Price the state ``first`` and give it to the searchers.

        Args:
            evaluator: prices candidates.
            first: where to start.
            searchers: (axis, search) in the order of their turns.
            limits: their patience ends the run if nothing was better; budget and time are those of `advance`.
            on_progress: called with ``"evaluated"`` at intervals, ``"new_best"`` at improvements, and ``"planning with
                <searcher>"`` before another searcher's planner plans.
            keep: which searchers construct, and whether the best that they constructed is the best.
            planning: seconds that the searchers took to be built.
            recorder: takes note of evaluations.
            journal: knows the prices of the same search, as far as it came before, and takes note of the others.
            on_best: called when there is a new best state.
        """
        keep_freed_memory()
        self._reported = started = clock()
        # It does not refer to the run, whose memory is then free as soon as it has ended.
        self._elapsed: Callable[[], float] = lambda: journal.elapsed(clock() - started + planning)
        self._journal, self._on_best, self._keep, self.planning = journal, on_best, keep, planning
        self._evaluator, self._searchers, self._on_progress = evaluator, searchers, on_progress
        self._limits, self._idle, self._improved_at = limits or Limits(budget=0), 0, 0.0
        self._clock_says: Ending | None = None
        self._clocked = Clocked(journal, Stop(), self._elapsed)
        unbuilt = [search.unfinished for _, search in searchers if isinstance(search, NoSearch) and search.unfinished]
        self.unfinished, self.too_large = f"{unbuilt[0]} was planning" if unbuilt else "", 0
        #: Seconds that the slowest candidate took to be priced; the next one may take as long.
        self._longest = 0.0
        self._time = TimeLeft(evaluator, self._limits.seconds, has_planners=bool(keep.constructing))
        self._shares = TimeShares([search for _, search in searchers], self._limits.seconds)
        #: Planners that are in the middle of a turn, and the states that they get at its end.
        self._slices: dict[int, Slices[list[Candidate]]] = {}
        self._given: dict[int, list[Trial]] = {}
        self._is_portfolio = any(isinstance(search, PortfolioMember) for _, search in searchers)
        self._screened = {n: s for n, (_, s) in enumerate(searchers) if isinstance(s, Screened) and not journal.keeps}
        self._left_out = {number for number, (_, search) in enumerate(searchers) if isinstance(search, NoSearch)}
        self._has_begun, self._is_alone = False, limits is not None and limits.budget == 0 and not journal.keeps
        self.initial = self._time.initial = self._shares.begins_with = self._priced(Candidate(base=first))
        self._has_begun = True
        self._unpriced = None if self.initial.fits else Unpriced(Candidate(base=first), has_first=self.too_large > 0)
        self._found = Found(keep, self.initial)
        self.history = [(1.0, self.elapsed, self.best.cost)]
        self.recorder, self._current = recorder, self.initial.cost
        self._note([self.initial], None, self.initial.cost)
        on_progress("first", self.progress())
        for number in range(len(searchers)):
            self._give(number, self.initial)

    @property
    def best(self) -> Trial:
        """The best state so far; if constructed states are preferred, the best of these (`Keep.prefers`)."""
        return self._found.best

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """Sort key of search runs, smallest for the best: fits, then constructed if that is preferred, then cost."""
        best = self.best
        unfit = not best.fits and not self._keep.stated
        return unfit, self._keep.constructed and not self._found.is_constructed, best.cost

    def advance(self, budget: int, stop: Stop, seconds: float = math.inf) -> Ending:
        """Price up to ``budget`` proposals in ``seconds``, compilation left out; say what ended that.

        Searchers and the evaluator are left where they are at the end of the whole search (`topoplan_engine.interrupt`)
        and of a round of it between two turns.
        """
        self._clocked = attrs.evolve(self._clocked, stop=stop)
        with obeyed(stop, self._seconds_left, self._most_tasks):
            ending = self._advanced(budget, stop, seconds)
            if self._limits.timed and ending != "interrupt" and self._clock_says is None:
                self._journal.finish(self.elapsed)
            if stop.wanted or self._seconds_left() <= 0.5 * self._longest:
                self._leave_slices()
        if ending not in ("interrupt", "budget"):
            self.price_something()
        return ending

    def price_something(self) -> None:
        """Price one state after all where nothing has a price at the end; raise a `TopoplanError` if none has soon."""
        if self._unpriced is None or not self._unpriced.has_first or self.best.cost < math.inf:
            return
        unpriced, self._unpriced = self._unpriced, None
        trial = unpriced.price(self._evaluator, self._limits.seconds, self._name, whole=self._journal.keeps)
        self._take_late(unpriced, trial)
        self._improved()

    def _price_early(self) -> None:
        """Price what was left: something where nothing fits and a part of the limit is over; else the first state."""
        unpriced, before = self._unpriced, self.best
        if unpriced is None or not self._has_limit or self._journal.keeps:
            return
        seconds = self.elapsed, self._limits.seconds
        if before.fits:
            trial = unpriced.price_first(self._evaluator, *seconds)
        else:
            others_plan = self._shares_time and self._shares.alone() is not None
            trial = unpriced.price_early(self._evaluator, *seconds, others_plan=others_plan)
        if trial is not None:
            self._take_late(unpriced, trial)
            self._spread(before, unpriced.number)

    def _take_late(self, unpriced: Unpriced, trial: Trial) -> None:
        """Take the trial of a candidate that was left."""
        if unpriced.number is None:
            self.initial = self._found.initial = self._time.initial = self._shares.begins_with = trial
        else:
            self._found.note(unpriced.number, unpriced.candidate, trial)
            self._shares.know(unpriced.number, trial)
        self.too_large -= 1
        self._found.take(trial)

    @property
    def _has_limit(self) -> bool:
        return self._limits.seconds < math.inf and not self._journal.replaying

    def _seconds_left(self) -> float:
        """Return the seconds until the search must end, so that there is time to simulate its plan in full."""
        return self._time.seconds(self.elapsed, self.best) if self._has_limit else math.inf

    def _most_tasks(self) -> float:
        """Return how many tasks an iteration may have that is priced."""
        best = self.best if self._has_begun else None
        return self._time.most_tasks(self.elapsed, best) if self._has_limit else math.inf

    def _advanced(self, budget: int, stop: Stop, seconds: float) -> Ending:
        remaining, until = budget, self.elapsed + seconds
        self._clock_says = None
        while remaining > 0:
            asked, more = 0, any(map(self._plans, range(len(self._searchers)))) or asking.some_wait(self._searchers)
            for number in range(len(self._searchers)):
                if (ending := self._ending(until, stop)) is not None:
                    return ending
                self._price_early()
                if self._shares_time and not self._shares.has_turn(number, self.elapsed):
                    more = True
                    continue
                started = cpu_clock()
                rejected, candidates = self._proposed_by(number, remaining)
                asked += rejected + len(candidates)
                remaining -= rejected
                remaining -= self._step(number, candidates, until, stop) if candidates else 0
                is_busy = bool(rejected or candidates or self._plans(number))
                self._shares.end_turn(number, cpu_clock() - started, is_busy)
            if asked == 0 and not more:
                return self._ending(until, stop) or "nothing left to propose"
        return self._ending(math.inf, stop) or "budget"

    def _plans(self, number: int) -> bool:
        """Say whether a searcher is planning."""
        return number in self._slices or (number not in self._left_out and self._searchers[number][1].plans)

    @property
    def _shares_time(self) -> bool:
        """Whether members of a portfolio have shares of a time limit instead of turns.

        Without a limit, and where the search is written down to be repeated, a search does not depend on a clock.
        """
        return self._limits.seconds < math.inf and self._is_portfolio and not self._journal.keeps

    def _ending(self, until: float, stop: Stop) -> Ending | None:
        """Return what ends the run now, if anything but its budget does."""
        if stop.wanted:
            return "interrupt"
        if self._idle >= self._limits.patience and not asking.some_hold(self._searchers, self._plans):
            return "patience"
        return self._clock_says if self._is_over(until) else None

    def _is_over(self, until: float) -> bool:
        """Say whether a clock ends the run now, or did so at this place before."""
        if self._clock_says is None:
            patient = self._improved_at + self._limits.patience_seconds
            if min(until, patient) == math.inf:
                return False
            self._clock_says = self._journal.ending()
            if self._clock_says is None and not self._journal.replaying:
                is_late = self.elapsed >= until or (until < math.inf and self._seconds_left() <= 0.5 * self._longest)
                if is_late or self.elapsed >= patient:
                    self._clock_says = "time limit" if is_late else "patience"
                    self._journal.end(self._clock_says, self.elapsed)
        return self._clock_says is not None

    def _proposed_by(self, number: int, most: int) -> tuple[int, list[Candidate]]:
        """Let a searcher propose; return how many proposals were rejected at once, and candidates that were not."""
        search, best = self._searchers[number][1], self.best
        rejected, screening, least_cutoff = 0, 0.0, best.cost if best.fits else math.inf

        def rejects(base: State, placements: Mapping[int, Placement], cutoff: float) -> bool:
            nonlocal screening
            if cutoff < least_cutoff:  # what reaches it may be a new best state all the same
                return False
            called = clock()
            answer = asking.surely_rejects(self._evaluator, base, placements, cutoff)
            screening += clock() - called
            return answer

        def ask() -> Sequence[Candidate]:
            nonlocal rejected
            screened = self._screened.get(number)
            if screened is None:
                return search.ask()
            # Among others a turn is one proposal, unless they share time: the search is that without the short cut.
            together = MOST if len(self._searchers) == 1 or self._shares_time else 1
            patience = max(1, min(self._limits.patience - self._idle, together))
            rejected, candidates = screened.ask_screened(rejects, int(min(most, patience)))
            return candidates

        started = clock()
        candidates = self._asked_of(number, ask)[:most]
        self.planning += clock() - started - screening
        self._idle += asking.planned_in_vain(search)
        if rejected:
            self._pass_over(rejected)
        return rejected, candidates

    def _pass_over(self, count: int) -> None:
        """Count proposals that were rejected at once."""
        row = Row(self.evaluations + 1, self.elapsed, self._current, self.best.cost, False)
        self.recorder.pass_over(row, count)
        self._evaluator.pass_over(count)
        self._idle += count
        self._report_progress()

    def _asked_of(self, number: int, ask: Callable[[], Sequence[Candidate]]) -> list[Candidate]:
        """Ask a searcher; one that finds no plan that fits ends only a run that has no other searcher."""
        axis, search = self._searchers[number]
        if number in self._left_out:
            return []
        if isinstance(search, PortfolioMember) and (planner := search.plans_next):
            self._on_progress(f"planning with {planner}", self.progress())
        try:
            return self._clocked.call(lambda: self._in_slices(number, lambda: list(ask())))
        except Stopped:
            self._leave_planning(number)
            return []
        except NoPlanFitsError as error:
            if not self.best.fits and sum(other_axis == axis for other_axis, _ in self._searchers) == 1:
                raise
            warnings.warn(TopoplanWarning(f"{error}; what else there is goes on"), stacklevel=2)
            return []
        except TopoplanError as error:
            self._leave_out(number, error)
            return []

    def _in_slices(self, number: int, ask: Callable[[], list[Candidate]]) -> list[Candidate]:
        """Ask a planner for a slice of a shared time; nothing if it goes on in its next turn.  Ask others at once."""
        search = self._searchers[number][1]
        if number not in self._slices and not (
            self._shares_time and isinstance(search, PortfolioMember) and search.plans
        ):
            return ask()
        slices, began = self._slices.setdefault(number, Slices(ask)), clock()
        if not slices.go_on(lambda: clock() - began > _SLICE * self._limits.seconds):
            return []
        del self._slices[number]
        candidates = slices.answer()
        for trial in self._given.pop(number, ()):
            self._give(number, trial)
        return candidates

    def _leave_slices(self) -> None:
        """Leave the planners that are in the middle of a turn: the search is over."""
        for number, slices in self._slices.items():
            slices.leave()
            self._leave_planning(number)
        self._slices.clear()

    def _leave_planning(self, number: int) -> None:
        """Give no further turn to a searcher that is left in the middle of something."""
        self._stop_at(f"{self._name(number)} was planning")
        self._left_out.add(number)

    def _name(self, number: int) -> str:
        """Return the name of a searcher, as messages have it."""
        return self._keep.constructing.get(number) or self._keep.others.get(number) or "a searcher of the network"

    def _stop_at(self, doing: str) -> None:
        """Take note that the search ended in the middle of something."""
        self.unfinished = self.unfinished or doing
        if not self._clocked.stop.wanted:
            self._clock_says = self._clock_says or "time limit"

    def _give(self, number: int, trial: Trial) -> None:
        """Let a searcher go on from a state, at the end of its turn."""
        if number in self._slices:
            self._given.setdefault(number, []).append(trial)
        elif number not in self._left_out:
            try:
                self._clocked.call(lambda: self._searchers[number][1].adopt(trial))
            except Stopped:
                self._leave_planning(number)
            except TopoplanError as error:
                self._leave_out(number, error)

    def _leave_out(self, number: int, error: TopoplanError) -> None:
        """Give a searcher that raised an error no further turn; raise it where none is left to go on."""
        self._left_out.add(number)
        axes = [axis for index, (axis, _) in enumerate(self._searchers) if index not in self._left_out]
        go_on_without(error, *self._searchers[number], axes)

    def _step(self, number: int, candidates: Sequence[Candidate], until: float, stop: Stop) -> int:
        """Price candidates, tell their searcher, and give what is worth it to the others; say how many it cost."""
        axis, search = self._searchers[number]
        trials = self._trials(number, candidates, until, stop)
        if stop.wanted:  # what its searcher gets of a part of its candidates is no part of the search
            self._journal.stop()
        started = clock()
        if trials and number not in self._left_out:
            try:
                self._clocked.call(lambda: search.tell(trials))
            except Stopped:
                self._leave_planning(number)
            except TopoplanError as error:
                self._leave_out(number, error)
        self.planning += clock() - started
        self._idle += len(trials)
        self._shares.take(number, trials)
        before = self.best
        for trial in sorted(trials, key=lambda t: t.rank, reverse=True):  # the last bests are then the best of a batch
            self._found.take(trial, self._keep.others.get(number, ""))
        self._spread(before, number)
        reached_trial = search.reached if trials and number not in self._left_out else None
        self._note(trials, reached_trial, before.cost)
        if reached_trial is not None and reached_trial is not self.best:
            for index, (across, peer) in enumerate(self._searchers):
                if across != axis and peer.follows:
                    self._give(index, reached_trial)
        self._report_progress()
        ended = stop.wanted or self._clock_says is not None
        return len(trials) if ended else len(candidates)  # one that is wrong counts, too

    def _spread(self, before: Trial, number: int | None) -> None:
        """Tell searchers of a new best state, if there is one, which that of this number has found; None for none."""
        if self.best is before:
            return
        self._improved()
        axis, finder = ("", None) if number is None else self._searchers[number]
        asking.say_best(self._searchers, finder, self.best)
        for index, (across, peer) in enumerate(self._searchers):
            if peer is not finder and (across != axis or axis == "network"):
                self._give(index, self.best)
        self._on_progress("new_best", self.progress())

    def _report_progress(self) -> None:
        """Report progress if the last report is long ago."""
        if clock() - self._reported >= _REPORT_EVERY:
            self._reported = clock()
            self._on_progress("evaluated", self.progress())

    def _trials(self, number: int, candidates: Sequence[Candidate], until: float, stop: Stop) -> list[Trial]:
        """Price the candidates of a searcher, and leave it out at one whose strategy is wrong."""
        trials: list[Trial] = []
        for candidate in candidates:
            best, began, count, too_large = self.best, clock(), self._evaluator.evaluations, self.too_large
            try:
                cutoff = best.cost if best.fits else math.inf
                trials.append(self._clocked.call(functools.partial(self._priced, candidate, cutoff)))
            except Stopped:
                self._evaluator.evaluations = count
                self._keep_unpriced(number, candidate, clock() - began)
                self._stop_at(f"a candidate of {self._name(number)} was priced")
                break
            except Exception as error:
                fault = strategy_fault(self._searchers[number][1], candidate, self._evaluator.problem, error)
                if fault is None:
                    raise
                self._journal.fail(self.elapsed)
                self._evaluator.evaluations -= 1
                self._leave_out(number, fault)
                break
            self._longest = max(self._longest, clock() - began)
            self._found.note(number, candidate, trials[-1])
            if self.too_large > too_large:
                self._keep_unpriced(number, candidate, clock() - began)
            if stop.wanted or self._is_over(until):
                break
        return trials

    def _keep_unpriced(self, number: int, candidate: Candidate, seconds: float) -> None:
        """Keep a candidate of a planner that took too long; while no plan fits, ask planners that wait, too."""
        if number not in self._keep.constructing:
            return
        if self._unpriced is not None:
            self._unpriced.keep(number, candidate, seconds)
        if not self.best.fits:
            asking.wake_all(self._searchers)

    def adopt(self, state: State, cost: float, origin: Origin) -> None:
        """Go on from a better state that another search run found; ``cost`` in seconds."""
        strategy = state.strategy
        self._found.know(strategy, origin)
        fits = self._evaluator.fits(strategy)
        trial = Trial(state=state, cost=cost, demand=lambda: self._evaluator.demand(strategy), fits=fits)
        before = self.best
        self._found.take(trial)
        self._note([trial], trial, before.cost)
        if self.best is not before:
            self._improved()
        for number in range(len(self._searchers)):
            self._give(number, trial)

    def _note(self, trials: Sequence[Trial], reached_trial: Trial | None, best_cost: float) -> None:
        """Let the recorder take note of trials: which the search moved to, and the best cost before and after each."""
        first, seconds = self.evaluations - len(trials) + 1, self.elapsed
        for number, trial in enumerate(trials):
            new_best = trial is self.best
            if new_best or trial is reached_trial:
                self._current = trial.cost
            best_cost = self.best.cost if new_best else best_cost
            accepted = new_best or trial is reached_trial
            if accepted and self._journal.keeps:
                self._journal.move(float(trial.cost), checksum(trial.state), seconds)
            self.recorder.note(Row(first + number, seconds, self._current, best_cost, accepted), new_best=new_best)

    def _priced(self, candidate: Candidate, fitting_cutoff: float = 0.0) -> Trial:
        """Price a candidate, or recall its price."""
        if not self._journal.keeps:
            return self._priced_now(candidate, fitting_cutoff)
        entry = self._journal.recall()
        if entry is not None:
            trial = self._evaluator.recall(candidate, entry.cost, entry.fits)
            self._journal.check(checksum(trial.state), candidate.cutoff_seconds)
            self.too_large += entry.event == "too large"
            return trial
        before = self.too_large
        trial = self._priced_now(candidate, fitting_cutoff)
        cutoff, check = float(candidate.cutoff_seconds), checksum(trial.state)
        too_large = self.too_large > before
        self._journal.price(float(trial.cost), cutoff, trial.fits, check, self.elapsed, too_large=too_large)
        return trial

    def _priced_now(self, candidate: Candidate, fitting_cutoff: float) -> Trial:
        """Price a candidate; one that there is no time for, or that is too large ever to be simulated, has no cost."""
        price = self._evaluator.price_alone if self._is_alone and not self._has_begun else self._evaluator.price
        stop, count = self._clocked.stop, self._evaluator.evaluations
        best = self.best if self._has_begun else None
        try:
            if not self._has_limit:
                return price(candidate, fitting_cutoff)
            until = self.elapsed + self._time.longest(best, is_portfolio=self._is_portfolio)

            def left() -> float:
                return min(math.inf if best is None else self._seconds_left(), until - self.elapsed)

            with obeyed(stop, left, self._most_tasks):
                if best is None or best.fits:
                    trial = price(candidate, fitting_cutoff)
                else:  # it may be the only one that there is time for
                    trial = self._evaluator.price_in_full(candidate, fitting_cutoff)
                if best is None or not self._time.ends_late(self.elapsed, trial, best):
                    return trial
        except TooLargeError:
            pass
        except Stopped:
            if stop.wanted or (best is not None and self._seconds_left() <= 0.0):
                raise
        self.too_large += 1
        self._evaluator.evaluations = count
        return self._evaluator.recall(candidate, math.inf, False)

    def _improved(self) -> None:
        self._idle, self._improved_at = 0, self.elapsed
        self.history.append((float(self.evaluations), self._improved_at, self.best.cost))
        self._on_best(self)

    def origin(self, strategy: Strategy) -> Origin:
        """Say where a strategy comes from."""
        return self._found.origin(strategy)

    def shortlist_entry(self, trial: Trial) -> ShortlistEntry:
        """Return a trial with its origin, and what its searcher says of it."""
        origin = self.origin(trial.state.strategy)
        if origin.constructed and origin.report is None:
            number = next(number for number, name in self._keep.constructing.items() if name == origin.searcher)
            origin = attrs.evolve(origin, report=self._searchers[number][1].report(trial.state.strategy))
        return ShortlistEntry(state=trial.state, cost=trial.cost, origin=origin)

    def left_out(self) -> tuple[str, ...]:
        """Return the members of the portfolio that took no part in the search, and why, a line for each."""
        return asking.reasons_of([search for _, search in self._searchers])

    def reports(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what searchers say of their plans where none of these could be simulated."""
        searchers = {name: self._searchers[number][1] for number, name in self._keep.constructing.items()}
        return {} if self._found.has_constructed else asking.reports_of(searchers)

    def shortlist(self) -> tuple[tuple[ShortlistEntry, ...], ShortlistEntry | None]:
        """Return the last best states, the best at the end, and the best of the other kind if that is another state.

        Unless constructed states are preferred, the fastest one that each searcher constructed comes first, if it is
        almost as fast: it may have the best mean even if it was not the best under the draw of the search.
        """
        last, second = self._found.shortlist()
        return tuple(map(self.shortlist_entry, last)), None if second is None else self.shortlist_entry(second)

    @property
    def evaluations(self) -> int:
        """Candidates priced so far, the initial state included."""
        return self._evaluator.evaluations

    @property
    def acceptance(self) -> float | None:
        """Acceptance rate of the first searcher that keeps one."""
        return asking.acceptance_of([search for _, search in self._searchers])

    @property
    def elapsed(self) -> float:
        """Seconds so far, with those that the searchers took to be built, without compilation."""
        return self._elapsed()

    def progress(self) -> Progress:
        """Return the progress of the run."""
        return Progress(
            evaluations=self.evaluations,
            best=self.best.cost,
            initial=self.initial.cost,
            acceptance=self.acceptance,
            elapsed=self.elapsed,
            origin=self.origin(self.best.state.strategy).name,
        )
