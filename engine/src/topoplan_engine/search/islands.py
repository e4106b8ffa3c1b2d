"""Several chains of one search, in one process or more, that pass on what they reach.

A chain is a whole search with random numbers of its own: strategy and network searchers, an evaluator, a share of
the budget.  All go on for a round; then each looks at its neighbour, and takes over what that one reached
if it is better, strategy and fabric together (the ring of islands of Tanese, "Distributed Genetic Algorithms",
ICGA 1989).  So a good state spreads, but slowly enough for chains to differ.

The result does not depend on the number of processes: a chain sees its own random numbers and what it is
given between rounds, and nothing else; states that are passed on are copied, in one process too.

Data flow: `search` deals the budget; a `Crew` holds some chains and advances them on request, here or at the
other end of a pipe; states, costs and counts come back.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import attrs
import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.problem import PlacementSpace
from topoplan.plugin.host import Host
from topoplan.search.observed import Progress
from topoplan.search.protocol import State
from topoplan_engine.experiment import Experiment
from topoplan_engine.interrupt import Stop, end_with_parent, interruptible
from topoplan_engine.kernels.compiling import clock, seconds
from topoplan_engine.packing import packed, sendable, unpacked
from topoplan_engine.perturbation import Perturbation
from topoplan_engine.search.bests import LAST, Finalist, Origin
from topoplan_engine.search.driver import Result, Walk, first_state, patience_of
from topoplan_engine.search.setup import Assembly, assemble

__all__ = ["search"]

#: Rounds between which chains exchange what they reached.
_ROUNDS = 16

#: Seconds after which one that waits for other processes looks whether the user wants to stop.
_POLL = 0.1


@attrs.frozen(kw_only=True, eq=False)
class _Told:
    """What a chain says after a round.

    Attributes:
        state: the best one, pickled; None where it is no other than it said before.
        cost, origin, rank: of the best state; the chain with the smallest rank has the best of all.
        planning, compiling: seconds so far: of its searchers, and of the process that it runs in.
    """

    state: bytes | None
    cost: float
    origin: Origin
    rank: tuple[bool, bool, float]
    planning: float
    compiling: float
    evaluations: int
    acceptance: float | None
    more: bool


#: A state on its way from one chain to another: pickled, its cost, and where it comes from.
_Passed = tuple[bytes, float, Origin]

#: Proposals that a chain is to make, and the state that it takes over first.
_Order = tuple[int, _Passed | None]


class _Crew(Protocol):
    """Some of the chains."""

    def start(self, orders: Mapping[int, _Order]) -> None:
        """Let chains advance."""

    def finish(self) -> Mapping[int, _Told]:
        """Return what the chains reached that were started."""

    def finalists(self, chain: int) -> bytes:
        """Return `Walk.finalists` and `Walk.reports` of a chain, pickled together."""


class _Here:
    """Chains of this process; each with a problem and an evaluator of its own."""

    def __init__(
        self, host: Host, experiment: Experiment, perturbation: Perturbation | None, chains: Sequence[int], stop: Stop
    ) -> None:
        run, self._stop = experiment.run, stop
        self._walks: dict[int, tuple[Assembly, Walk]] = {}
        self._said: dict[int, State] = {}
        self._origins: dict[int, Origin] = {}
        self._told: dict[int, _Told] = {}
        for chain in chains:
            made = assemble(host, experiment, perturbation)
            started = clock()
            rng, searches = made.searches(chain)
            planning = clock() - started
            first = first_state(made.evaluator, made.strategy, rng)
            patience = patience_of(run.patience, _share(run.budget, run.chains, chain))
            walk = Walk(made.evaluator, first, searches, patience, keep=made.keep, planning=planning)
            self._walks[chain] = (made, walk)

    def start(self, orders: Mapping[int, _Order]) -> None:
        self._told = {}
        for chain, (budget, taken) in orders.items():
            made, walk = self._walks[chain]
            if taken is not None:
                state = _interned(made.problem.space, pickle.loads(taken[0]))
                self._said[chain], self._origins[chain] = state, taken[2]
                walk.adopt(state, *taken[1:])
            more = walk.advance(budget, self._stop)
            self._told[chain] = self._tell(chain, walk, more)

    def _tell(self, chain: int, walk: Walk, more: bool) -> _Told:
        state = walk.best.state
        known = self._said.get(chain) is state
        if not known:
            self._said[chain] = state
            self._origins[chain] = walk.finalist(walk.best).origin
        return _Told(
            state=None if known else pickle.dumps(state),
            cost=walk.best.cost,
            origin=self._origins[chain],
            rank=walk.rank,
            planning=walk.planning,
            compiling=seconds(),
            evaluations=walk.evaluations,
            acceptance=walk.acceptance,
            more=more,
        )

    def finish(self) -> Mapping[int, _Told]:
        return self._told

    def finalists(self, chain: int) -> bytes:
        walk = self._walks[chain][1]
        return pickle.dumps((*walk.finalists(), walk.reports()))


class _There:
    """Chains of another process, at the other end of a pipe."""

    def __init__(
        self,
        plugins: bytes,
        experiment: Experiment,
        perturbation: Perturbation | None,
        chains: Sequence[int],
        stop: Stop,
    ) -> None:
        context = multiprocessing.get_context("spawn")
        self._stop, self._asked_to_stop = stop, False
        self._pipe, far = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(far, plugins, experiment, perturbation, list(chains)), daemon=True
        )
        with _ignoring_interrupts():
            self._process.start()
        far.close()

    def start(self, orders: Mapping[int, _Order]) -> None:
        self._pipe.send(("start", orders))

    def finish(self) -> Mapping[int, _Told]:
        told: Mapping[int, _Told] = self._receive()
        return told

    def finalists(self, chain: int) -> bytes:
        self._pipe.send(("finalists", chain))
        finalists: bytes = self._receive()
        return finalists

    def _receive(self) -> Any:
        try:
            while not self._pipe.poll(_POLL):
                if self._stop.wanted and not self._asked_to_stop:
                    self._pipe.send(("stop", None))
                    self._asked_to_stop = True
            said = self._pipe.recv()
        except (EOFError, OSError):
            raise TopoplanError("chains: a worker process ended early (use --workers 1 to see why)") from None
        if isinstance(said, Exception):
            raise said
        return said

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        self._process.join(timeout=10)
        if self._process.is_alive():
            self._process.terminate()
            self._process.join()


class _FromAfar(Stop):
    """Whether the first process has said so, through the pipe; nothing else comes while chains advance."""

    def __init__(self, pipe: Any) -> None:
        self._pipe, self._said = pipe, False

    @property
    def wanted(self) -> bool:  # type: ignore[override]
        """Look into the pipe, at most once for each proposal."""
        if not self._said and self._pipe.poll():
            self._said = self._pipe.recv()[0] == "stop"
        return self._said


@contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C, as a process that is started here does from its first moment on."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(
    pipe: Any, plugins: bytes, experiment: Experiment, perturbation: Perturbation | None, chains: Sequence[int]
) -> None:
    """Advance chains as asked, until the pipe is closed; Ctrl-C is the first process's, which passes it on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    host: Host | None = None
    crew: _Here | None = None
    while True:
        try:
            order, given = pipe.recv()
        except (EOFError, OSError):
            return
        if order == "stop":  # came too late to stop anything
            continue
        said: Any
        try:
            host = host or unpacked(plugins)
            with host.naming_plugins():
                crew = crew or _Here(host, experiment, perturbation, chains, _FromAfar(pipe))
                if order == "start":
                    crew.start(given)
            said = crew.finish() if order == "start" else crew.finalists(given)
        except Exception as error:
            said = error if isinstance(error, TopoplanError) else sendable(error)
        try:
            pipe.send(said)
        except OSError:  # nobody listens any more
            return


def search(
    host: Host,
    experiment: Experiment,
    on_progress: Callable[[str, Progress], None] = lambda event, progress: None,
    *,
    perturbation: Perturbation | None = None,
) -> Result:
    """Search with ``experiment.run.chains`` chains in up to ``experiment.run.workers`` processes.

    The budget is all chains' together; each of them prices the initial state.  Observers hear of the
    progress after each round.

    Args:
        host: where components come from; other processes have the same ones.
        experiment: what to run.
        on_progress: called with ``"evaluated"`` after a round, and ``"new_best"`` if it found one.
        perturbation: how the costs that it is told are wrong; None for the true ones.

    Raises:
        TopoplanError: something in the experiment is wrong, or a process died.
    """
    run = experiment.run
    workers = min(run.workers, run.chains)
    started = clock() if workers == 1 else time.monotonic()  # others have compiled nothing yet
    with interruptible() as stop:
        if workers == 1:
            here = _Here(host, experiment, perturbation, range(run.chains), stop)
            return _rounds([here], experiment, on_progress, started, stop)
        crews: list[_There] = []
        plugins = packed(host)
        try:
            crews.extend(
                _There(plugins, experiment, perturbation, range(first, run.chains, workers), stop)
                for first in range(workers)
            )
            return _rounds(crews, experiment, on_progress, started, stop)
        finally:
            for crew in crews:
                crew.close()


def _rounds(
    crews: Sequence[_Crew],
    experiment: Experiment,
    on_progress: Callable[[str, Progress], None],
    started: float,
    stop: Stop,
) -> Result:
    """Advance all chains round by round, and pass on what they reach."""
    count = experiment.run.chains
    shares = [_share(experiment.run.budget, count, chain) for chain in range(count)]
    states: list[bytes] = [b""] * count
    told: dict[int, _Told] = {}
    history: list[tuple[float, float]] = []
    taken: dict[int, _Passed] = {}
    first, first_cost, best = b"", float("inf"), 0
    reached: tuple[bool, bool, float] | None = None
    for turn in range(_ROUNDS + 1):  # the first one prices initial states only
        going = [chain for chain in range(count) if chain not in told or told[chain].more or chain in taken]
        orders = {chain: (_share(shares[chain], _ROUNDS, turn - 1) if turn else 0, taken.get(chain)) for chain in going}
        if turn and not any(budget for budget, _ in orders.values()):
            if not going:
                break
            continue
        told |= _advance(crews, orders)
        for chain in going:
            states[chain] = told[chain].state or (taken[chain][0] if chain in taken else states[chain])
        best = min(range(count), key=lambda chain: (told[chain].rank, chain))
        if turn == 0:
            first, first_cost = states[0], told[0].cost
        taken = {
            chain: (states[before], told[before].cost, told[before].origin)
            for chain in range(count)
            for before in [(chain - 1) % count]
            if told[before].rank < told[chain].rank
        }
        progress = _progress(told, first_cost, best, started)
        if reached is None or told[best].rank < reached:
            reached = told[best].rank
            history.append((float(progress.evaluations), told[best].cost))
            if turn:
                on_progress("new_best", progress)
        on_progress("evaluated", progress)
        if stop.wanted:
            break
    last, aside, said = _finalists(crews, range(count), best)
    return Result(
        best=last[-1].state,
        best_cost=last[-1].cost,
        initial=last[-1].state if states[best] == first else pickle.loads(first),
        initial_cost=first_cost,
        finalists=last,
        aside=aside,
        reports=said,
        evaluations=progress.evaluations,
        planning=sum(one.planning for one in told.values()),
        elapsed=progress.elapsed,
        acceptance=progress.acceptance,
        history=np.array(history),
        interrupted=stop.wanted,
    )


def _finalists(
    crews: Sequence[_Crew], chains: Sequence[int], best: int
) -> tuple[tuple[Finalist, ...], Finalist | None, Mapping[str, Mapping[str, Any]]]:
    """Return the last bests of all chains, that of chain ``best`` at the end, and the best one of the other kind.

    A state that several chains had stands there once.  The third value is that chain's `Walk.reports`.
    """
    kept: list[Finalist] = []
    others: list[Finalist] = []
    seen: set[bytes] = set()
    said: Mapping[str, Mapping[str, Any]] | None = None
    for chain in [best, *(chain for chain in chains if chain != best)]:
        last, aside, of_chain = pickle.loads(crews[chain % len(crews)].finalists(chain))
        said = of_chain if said is None else said
        if last[-1].origin.constructed is (kept[0] if kept else last[-1]).origin.constructed:
            for one in reversed(last):
                key = pickle.dumps(one.state)
                if key not in seen:
                    seen.add(key)
                    kept.append(one)
        others += [] if aside is None else [aside]
    order = [kept[0], *sorted(kept[1:], key=lambda one: one.cost)][:LAST]
    return tuple(reversed(order)), min(others, key=lambda one: one.cost, default=None), said or {}


def _advance(crews: Sequence[_Crew], orders: Mapping[int, _Order]) -> dict[int, _Told]:
    """Let all chains named in ``orders`` advance, those of several processes at a time."""
    for number, crew in enumerate(crews):
        crew.start({chain: order for chain, order in orders.items() if chain % len(crews) == number})
    return {chain: one for crew in crews for chain, one in crew.finish().items()}


def _progress(told: Mapping[int, _Told], first_cost: float, best: int, started: float) -> Progress:
    rates = [one.acceptance for one in told.values() if one.acceptance is not None]
    return Progress(
        evaluations=sum(one.evaluations for one in told.values()),
        best=told[best].cost,
        initial=first_cost,
        acceptance=sum(rates) / len(rates) if rates else None,
        elapsed=time.monotonic() - started - max(one.compiling for one in told.values()),
    )


def _share(budget: int, count: int, number: int) -> int:
    """Return part ``number`` of ``count`` of a budget, the first ones one larger where it cannot be divided."""
    return budget // count + (number < budget % count)


def _interned(space: PlacementSpace, state: State) -> State:
    """Return a state that was copied, with the placements that the chain's space holds; all else is as it was."""
    placements = tuple(space.intern(placement) for placement in state.strategy.placements)
    return State(attrs.evolve(state.strategy, placements=placements), state.fabric)
