"""Island-model search: several search runs, in one or more processes, that exchange their best states.

An island is a whole search run with its own random numbers: strategy and network searchers, an evaluator, and a share
of the budget.  All islands advance by one round.  Then each one looks at its neighbour in a ring and adopts the best
state of that one if it is better, strategy and fabric together (Tanese, "Distributed Genetic Algorithms", ICGA 1989).
A good state therefore spreads, but slowly enough for the islands to differ.

The result does not depend on the number of processes.  An island depends only on its own random numbers and on the
states that it receives between rounds; these states are copied, even within one process.

Data flow: `search` divides the budget; `LocalWorkers` or `RemoteWorkers` hold some islands and advance them on
request, in this process or in a session of an executor; states, costs and counts come back.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any, Protocol

import attrs
import numpy as np

from topoplan.model.problem import PlacementSpace
from topoplan.model.recording import SearchHistory
from topoplan.plugin.host import Host
from topoplan.search.protocol import Progress, State
from topoplan_engine.executors import Processes, Session, executor_from
from topoplan_engine.experiment import Experiment
from topoplan_engine.interrupt import Stop, interruptible
from topoplan_engine.kernels.clock import clock
from topoplan_engine.perturbation import Perturbation
from topoplan_engine.search.bests import LAST, Origin, ShortlistEntry
from topoplan_engine.search.driver import SearchRun
from topoplan_engine.search.journal import NoJournal
from topoplan_engine.search.limits import Ending, Limits, limits_of, share, time_share
from topoplan_engine.search.recorder import NoRecorder, Row, SearchRecorder, history_of
from topoplan_engine.search.restarts import Part
from topoplan_engine.search.result import Result
from topoplan_engine.search.setup import SearchSetup, set_up_search
from topoplan_engine.search.starting import first_state

__all__ = ["search"]

#: Rounds between which islands exchange their best states.
_ROUNDS = 16


@attrs.frozen(kw_only=True, eq=False)
class _Status:
    """Status of one island after a round.

    Attributes:
        state: the pickled best state; None if it has not changed since the last status.
        cost, origin, rank: of the best state; the island with the smallest rank has the best of all.
        initial_cost: of the state at the start, for which there may be time in a later round only.
        planning, elapsed: seconds so far, of its searchers and of its whole search, compilation left out.
        ended_by: what ended the round; the island can still propose candidates if that was the budget or the time.
        unfinished, too_large, left_out: see `topoplan_engine.search.result.Result`.
    """

    state: bytes | None
    cost: float
    origin: Origin
    rank: tuple[bool, bool, float]
    initial_cost: float
    planning: float
    elapsed: float
    evaluations: int
    acceptance: float | None
    ended_by: Ending
    unfinished: str
    too_large: int
    left_out: tuple[str, ...]

    @property
    def more(self) -> bool:
        """Whether another round is worth while."""
        return self.ended_by in ("budget", "time limit")


#: A state that migrates to another island: pickled, with its cost and its origin.
_Migrant = tuple[bytes, float, Origin]

#: The number of proposals of an island in a round, its seconds, and the state that it adopts first.
_Order = tuple[int, float, _Migrant | None]

_OnBest = Callable[[tuple[bool, bool, float], State], None]


class _Workers(Protocol):
    """Some of the islands, in one process."""

    def start(self, orders: Mapping[int, _Order]) -> None:
        """Advance islands by their orders."""

    def finish(self) -> Mapping[int, _Status]:
        """Return the status of each island that `start` advanced."""

    def shortlist(self, island: int) -> bytes:
        """Return `SearchRun.shortlist`, `SearchRun.reports` and the recorder's rows of an island, pickled together."""

    def close(self) -> None:
        """Write what journals have, and end."""


class LocalWorkers:
    """Islands of this process; each has its own problem and evaluator."""

    def __init__(
        self,
        host: Host,
        experiment: Experiment,
        perturbation: Perturbation | None,
        islands: Sequence[int],
        part: Part,
        stop: Stop,
    ) -> None:
        run, limits, self._stop = experiment.run, part.limits, stop
        self._journals: list[NoJournal] = []
        self._search_runs: dict[int, tuple[SearchSetup, SearchRun]] = {}
        self._last_states: dict[int, State] = {}
        self._origins: dict[int, Origin] = {}
        self._statuses: dict[int, _Status] = {}
        for island in islands:
            setup = set_up_search(host, experiment, perturbation)
            started = clock()
            rng, searches = setup.searches(island, part.number)
            planning = clock() - started
            first = first_state(setup.evaluator, setup.strategy, rng)
            mine = limits_of(
                run.patience, share(limits.budget, run.chains, island), limits.seconds, by_time=run.ends_by_time_alone
            )
            recorder = SearchRecorder(run.chains * run.restarts) if run.record else NoRecorder()
            self._journals.append(part.journals.open(part.number, island))
            search_run = SearchRun(
                setup.evaluator,
                first,
                searches,
                mine,
                keep=setup.keep,
                planning=planning,
                recorder=recorder,
                journal=self._journals[-1],
            )
            self._search_runs[island] = (setup, search_run)

    def start(self, orders: Mapping[int, _Order]) -> None:
        self._statuses = {}
        for island, (budget, seconds, migrant) in orders.items():
            setup, search_run = self._search_runs[island]
            if migrant is not None:
                state = _interned(setup.problem.space, pickle.loads(migrant[0]))
                self._last_states[island], self._origins[island] = state, migrant[2]
                search_run.adopt(state, *migrant[1:])
            ended_by = search_run.advance(budget, self._stop, seconds)
            self._statuses[island] = self._status_of(island, search_run, ended_by)

    def _status_of(self, island: int, search_run: SearchRun, ended_by: Ending) -> _Status:
        state = search_run.best.state
        unchanged = self._last_states.get(island) is state
        if not unchanged:
            self._last_states[island] = state
            self._origins[island] = search_run.shortlist_entry(search_run.best).origin
        return _Status(
            state=None if unchanged else pickle.dumps(state),
            cost=search_run.best.cost,
            origin=self._origins[island],
            rank=search_run.rank,
            initial_cost=search_run.initial.cost,
            planning=search_run.planning,
            elapsed=search_run.elapsed,
            evaluations=search_run.evaluations,
            acceptance=search_run.acceptance,
            ended_by=ended_by,
            unfinished=search_run.unfinished,
            too_large=search_run.too_large,
            left_out=search_run.left_out(),
        )

    def finish(self) -> Mapping[int, _Status]:
        return self._statuses

    def shortlist(self, island: int) -> bytes:
        search_run = self._search_runs[island][1]
        return pickle.dumps((*search_run.shortlist(), search_run.reports(), search_run.recorder.rows()))

    def close(self) -> None:
        for journal in self._journals:
            journal.close()


class RemoteWorkers:
    """Islands in a session of an executor."""

    def __init__(self, session: Session, stop: Stop) -> None:
        self._session, self._stop = session, stop

    def start(self, orders: Mapping[int, _Order]) -> None:
        self._session.send(("start", orders))

    def finish(self) -> Mapping[int, _Status]:
        statuses: Mapping[int, _Status] = self._session.answer(self._stop)
        return statuses

    def shortlist(self, island: int) -> bytes:
        self._session.send(("shortlist", island))
        shortlist: bytes = self._session.answer(self._stop)
        return shortlist

    def close(self) -> None:
        self._session.send(("close", None))
        self._session.answer(self._stop)


def _server(
    host: Host,
    stop: Stop,
    experiment: Experiment,
    perturbation: Perturbation | None,
    islands: Sequence[int],
    part: Part,
) -> Callable[[tuple[str, Any]], Any]:
    """Return what answers the requests of `RemoteWorkers`, in a worker."""
    group = LocalWorkers(host, experiment, perturbation, islands, part, stop)

    def answer(request: tuple[str, Any]) -> Any:
        order, argument = request
        if order == "shortlist":
            return group.shortlist(argument)
        if order == "close":
            return group.close()
        group.start(argument)
        return group.finish()

    return answer


def search(
    host: Host,
    experiment: Experiment,
    on_progress: Callable[[str, Progress], None] = lambda event, progress: None,
    *,
    perturbation: Perturbation | None = None,
    part: Part | None = None,
    on_best: _OnBest = lambda rank, state: None,
) -> Result:
    """Search with ``experiment.run.chains`` islands in the workers of an executor.

    All islands share the budget; each of them prices the initial state.  Observers receive the progress after each
    round.

    Args:
        host: provides the components; other processes load the same ones.
        experiment: what to run.
        on_progress: called with ``"evaluated"`` after a round, and ``"new_best"`` if it found one.
        perturbation: how the costs that it gets are wrong; None for the true ones.
        part: which search this is of those that share the experiment's limits; the only one unless given.
        on_best: called with the rank of a new best state, and that state.

    Raises:
        TopoplanError: something in the experiment is wrong, or a process died.
    """
    run = experiment.run
    executor = executor_from(run.executor, run.workers)
    local_only = isinstance(executor, Processes) and executor.workers == 1
    part, began = part or Part(limits=Limits(budget=run.budget, seconds=run.seconds)), clock()

    def arguments(count: int) -> list[tuple[Any, ...]]:
        shares = (range(first, run.chains, count) for first in range(count))
        return [(experiment, perturbation, islands, part) for islands in shares]

    with interruptible() as stop:
        if local_only:
            local = LocalWorkers(host, experiment, perturbation, range(run.chains), part, stop)
            with closing(local):
                return _rounds([local], run.chains, part.limits, on_progress, on_best, stop, began)
        with executor.sessions(host, "chains", _server, run.chains, arguments, stop) as sessions:
            groups = [RemoteWorkers(session, stop) for session in sessions]
            result = _rounds(groups, run.chains, part.limits, on_progress, on_best, stop, began)
            for group in groups:
                group.close()
            return result


def _rounds(
    groups: Sequence[_Workers],
    count: int,
    limits: Limits,
    on_progress: Callable[[str, Progress], None],
    on_best: _OnBest,
    stop: Stop,
    began: float,
) -> Result:
    """Advance all islands round by round, and let each adopt its neighbour's best state if that is better.

    Their time limit counts from ``began``, with the start of workers.
    """
    plan = _Rounds(count, limits, len(groups))
    states: list[bytes] = [b""] * count
    statuses: dict[int, _Status] = {}
    history: list[tuple[float, float, float]] = []
    migrants: dict[int, _Migrant] = {}
    first, first_cost, best = b"", float("inf"), 0
    best_rank: tuple[bool, bool, float] | None = None
    for turn in range(_ROUNDS + 1):  # the first one prices initial states only
        active = [k for k in range(count) if k not in statuses or statuses[k].more or k in migrants]
        orders = {k: (*plan.extent(turn, k, active), migrants.get(k)) for k in active}
        if turn and not any(budget for budget, _, _ in orders.values()):
            if not active:
                break
            continue
        statuses |= _advance(groups, orders)
        for island in active:
            states[island] = statuses[island].state or (migrants[island][0] if island in migrants else states[island])
        best = min(range(count), key=lambda island: (statuses[island].rank, island))
        first = states[0] if turn == 0 else first
        first_cost = min(status.initial_cost for status in statuses.values())
        migrants = _migrants(states, statuses)
        progress = _progress(statuses, first_cost, best)
        plan.note(turn, statuses, max(progress.elapsed, clock() - began))
        if best_rank is None or statuses[best].rank < best_rank:
            best_rank = statuses[best].rank
            history.append((float(progress.evaluations), progress.elapsed, statuses[best].cost))
            on_best(best_rank, pickle.loads(states[best]))
            if turn:
                on_progress("new_best", progress)
        on_progress("evaluated", progress)
        if stop.wanted:
            break
    last, aside, reports, recorded = _shortlist(groups, range(count), best)
    return Result(
        best=last[-1].state,
        best_cost=last[-1].cost,
        initial=last[-1].state if states[best] == first else pickle.loads(first),
        initial_cost=first_cost,
        shortlist=last,
        aside=aside,
        reports=reports,
        history=np.array(history),
        ended_by=_ended_by(statuses, interrupted=stop.wanted),
        recorded=recorded,
        **{name: getattr(progress, name) for name in ("evaluations", "elapsed", "acceptance")},
        **_said_of_all(statuses, statuses[best]),
    )


def _said_of_all(statuses: Mapping[int, _Status], best: _Status) -> dict[str, Any]:
    """Return what a result takes from all islands together, and from the best one."""
    of_all = {name: sum(getattr(status, name) for status in statuses.values()) for name in ("planning", "too_large")}
    return of_all | {name: getattr(best, name) for name in ("rank", "unfinished", "left_out")}


def _migrants(states: Sequence[bytes], statuses: Mapping[int, _Status]) -> dict[int, _Migrant]:
    """Return the best state of the island before each one whose own is worse."""
    return {
        island: (states[before], statuses[before].cost, statuses[before].origin)
        for island in range(len(states))
        for before in [(island - 1) % len(states)]
        if statuses[before].rank < statuses[island].rank
    }


class _Rounds:
    """How far islands advance in each round.

    Each round has its share of the budget and of the time; what an island did not get to because its time was up, it
    gets in the rounds that are left.
    """

    def __init__(self, count: int, limits: Limits, processes: int) -> None:
        self._shares = [share(limits.budget, count, island) for island in range(count)]
        self._seconds, self._processes = limits.seconds, processes
        self._spent = 0.0
        self._before: dict[int, int] = {}
        self._done: dict[int, int] = dict.fromkeys(range(count), 0)

    def extent(self, turn: int, island: int, active: Sequence[int]) -> tuple[int, float]:
        """Return the proposals and the seconds of one of the ``active`` islands in a round."""
        if turn == 0:
            return 0, self._seconds
        if self._seconds == float("inf"):
            return share(self._shares[island], _ROUNDS, turn - 1), self._seconds
        rounds_left = _ROUNDS - turn + 1
        beside = sum(peer % self._processes == island % self._processes for peer in active)
        budget = share(self._shares[island] - self._done[island], rounds_left, 0)
        return budget, time_share(self._seconds, self._spent, rounds_left * beside)

    def note(self, turn: int, statuses: Mapping[int, _Status], elapsed: float) -> None:
        """Take note of what a round did."""
        if turn == 0:
            self._before = {island: status.evaluations for island, status in statuses.items()}
        self._spent = elapsed
        self._done = {island: status.evaluations - self._before[island] for island, status in statuses.items()}


def _ended_by(statuses: Mapping[int, _Status], *, interrupted: bool) -> Ending:
    """Return what ended islands: what ended those that could propose more, if there are any."""
    endings: list[Ending] = ["time limit", "budget", "patience", "nothing left to propose"]
    if interrupted:
        return "interrupt"
    return next(ending for ending in endings if any(status.ended_by == ending for status in statuses.values()))


def _shortlist(
    groups: Sequence[_Workers], islands: Sequence[int], best: int
) -> tuple[tuple[ShortlistEntry, ...], ShortlistEntry | None, Mapping[str, Mapping[str, Any]], SearchHistory | None]:
    """Return the last best states of all islands, that of island ``best`` at the end, and the best of the other kind.

    A state that several islands had is listed once.  The third value is `SearchRun.reports` of island ``best``, the
    last one what recorders have of all islands.
    """
    rows: dict[int, list[Row]] = {}
    entries: list[ShortlistEntry] = []
    asides: list[ShortlistEntry] = []
    state_keys: set[bytes] = set()
    reports: Mapping[str, Mapping[str, Any]] | None = None
    for island in [best, *(island for island in islands if island != best)]:
        last, aside, of_chain, rows[island] = pickle.loads(groups[island % len(groups)].shortlist(island))
        reports = of_chain if reports is None else reports
        if last[-1].origin.constructed is (entries[0] if entries else last[-1]).origin.constructed:
            for entry in reversed(last):
                key = pickle.dumps(entry.state)
                if key not in state_keys:
                    state_keys.add(key)
                    entries.append(entry)
        asides += [] if aside is None else [aside]
    order = [entries[0], *sorted(entries[1:], key=lambda entry: entry.cost)][:LAST]
    history = history_of(rows[island] for island in islands) if any(rows.values()) else None
    return tuple(reversed(order)), min(asides, key=lambda entry: entry.cost, default=None), reports or {}, history


def _advance(groups: Sequence[_Workers], orders: Mapping[int, _Order]) -> dict[int, _Status]:
    """Advance all islands named in ``orders``; several processes advance theirs in parallel."""
    for number, group in enumerate(groups):
        group.start({island: order for island, order in orders.items() if island % len(groups) == number})
    return {island: status for group in groups for island, status in group.finish().items()}


def _progress(statuses: Mapping[int, _Status], first_cost: float, best: int) -> Progress:
    rates = [status.acceptance for status in statuses.values() if status.acceptance is not None]
    return Progress(
        evaluations=sum(status.evaluations for status in statuses.values()),
        best=statuses[best].cost,
        initial=first_cost,
        acceptance=sum(rates) / len(rates) if rates else None,
        elapsed=max(status.elapsed for status in statuses.values()),
        origin=statuses[best].origin.name,
    )


def _interned(space: PlacementSpace, state: State) -> State:
    """Return a copied state with the placements that the island's space holds; all else stays as it is."""
    placements = tuple(space.intern(placement) for placement in state.strategy.placements)
    return attrs.evolve(state, strategy=attrs.evolve(state.strategy, placements=placements))
