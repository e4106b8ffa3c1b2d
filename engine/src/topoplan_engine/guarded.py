"""Searches and simulators whose calls are checked; an error is one line that names the component."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np

from topoplan.errors import (
    FabricError,
    PluginError,
    TopoplanError,
    TopoplanWarning,
    calling,
    exception_line,
    expect,
    printing_aside,
    shown,
)
from topoplan.model.cluster import Cluster
from topoplan.model.problem import Problem
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.recording import Recording
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import Strategy
from topoplan.model.taskgraph import TaskGraph
from topoplan.model.timeline import Bounds, Timeline
from topoplan.plugin.components import Component, Searcher, Simulator
from topoplan.plugin.host import Host
from topoplan.plugin.simulate import Simulate
from topoplan.search.protocol import Candidate, Search, Trial
from topoplan_engine.allowed import Allowed, why_misplaced
from topoplan_engine.interrupt import TooLargeError, raise_if_interrupted
from topoplan_engine.screening import Rejects, Screened
from topoplan_engine.simulation.collective_choice import CollectiveChoice

__all__ = [
    "FindsAlgorithms",
    "KnowsBest",
    "PlansInVain",
    "SaysLeftOut",
    "TakesAlgorithms",
    "TakesTurns",
    "build_search",
    "build_simulate",
    "runs_all_to_alls",
    "strategy_fault",
    "with_algorithms",
]

#: Why a simulator has no algorithms of collectives.
RINGS_ALONE = (
    "the simulator runs rings of the network alone (fluid with transport=wire and collective=ring runs others)"
)
#: What an operator's index may be.
_INTEGERS = (int, np.integer)
#: By so much sums that are added in another order may differ.
_ROUNDING = 1e-6


def build_search(searcher: Searcher, problem: Problem, rng: np.random.Generator) -> Search:
    """Build a searcher; every call of it is checked."""
    search = searcher.build(problem, rng)
    guarded = _GuardedScreenedSearch if isinstance(search, Screened) else _GuardedSearch
    return guarded(search, _who(searcher), Allowed(problem, searcher.axis))


@runtime_checkable
class FindsAlgorithms(Protocol):
    """A simulator whose options name algorithms of collectives, which are components."""

    @property
    def runs_all_to_alls(self) -> bool:
        """Whether an all-to-all may be one task."""

    def with_host(self, host: Host) -> Simulate:
        """Return the same simulator, which finds algorithms in a host."""


def runs_all_to_alls(simulate: Simulate) -> bool:
    """Return whether a simulator runs all-to-alls that are one task each, so that they need no list of transfers."""
    return isinstance(simulate, FindsAlgorithms) and simulate.runs_all_to_alls


@runtime_checkable
class TakesAlgorithms(Protocol):
    """A simulator that runs collectives by algorithms, beside those that its options name."""

    @property
    def algorithms(self) -> CollectiveChoice | None:
        """Which algorithms run collectives; None where rings alone do."""

    def selections(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> list[tuple[int, str]]:
        """Return a collective of each group, kind and size that has algorithms, and which one runs it."""

    def with_algorithms(self, text: str) -> Simulate:
        """Return the same simulator, which has them for collectives that its options name none for."""


def with_algorithms(simulate: Simulate, text: str) -> Simulate:
    """Return a simulator that runs collectives by algorithms, where its options name none.

    Raises:
        TopoplanError: it runs rings alone, or the text names no algorithm.
    """
    if not isinstance(simulate, TakesAlgorithms):
        raise TopoplanError(f"algorithms {shown(text)}: {RINGS_ALONE}")
    return simulate.with_algorithms(text)


def build_simulate(simulator: Simulator, host: Host | None = None) -> Simulate:
    """Build a simulator; its full runs are checked.

    Args:
        simulator: its component.
        host: where it finds components that its options name; all that are installed unless given.
    """
    simulate = simulator.build()
    if host is not None and isinstance(simulate, FindsAlgorithms):
        simulate = simulate.with_host(host)
    return _GuardedSimulate(simulate, _who(simulator))


def strategy_fault(search: Search, candidate: Candidate, problem: Problem, error: Exception) -> PluginError | None:
    """Blame a searcher for what pricing its candidate raised, if its strategy or its fabric is none for the problem.

    Whole strategies are long, so that they are looked at only when pricing one has failed.

    Returns:
        What is wrong with the candidate, its cause being ``error``; None if nothing is.
    """
    who = getattr(search, "who", None)
    reason = _why_no_strategy(candidate.base.strategy, problem) if who else ""
    if who and not reason and isinstance(error, FabricError) and candidate.fabric is not None:
        return PluginError(f"{who}: ask proposed a fabric that cannot be used: {error}")
    if not reason:
        return None
    fault = PluginError(f"{who}: ask proposed {reason}")
    fault.__cause__ = error
    return fault


def _who(component: Component) -> str:
    """Name a component for messages; where a host made it, with its plugin."""
    return str(getattr(component, "who", f"{component.kind.value} {component.name!r}"))


class _GuardedSimulate(Simulate):
    """A simulator whose calls are checked; the shortcuts that it has are its own, and what they return is looked at."""

    def __init__(self, simulate: Simulate, who: str) -> None:
        self._simulate, self._who = simulate, who
        checks: Mapping[str, Callable[..., str]] = {
            "makespan": _why_no_makespan,
            "makespans": _why_no_makespans,
            "link_seconds": _why_no_rows,
            "record": _why_no_record,
        }
        for name in dir(type(simulate)):
            if (
                name not in ("with_seed", "with_algorithms")
                and not name.startswith("_")
                and getattr(type(simulate), name) is not getattr(Simulate, name, None)
            ):
                method = getattr(simulate, name)
                guarded = name in checks or name == "draws"
                setattr(self, name, self._checked(name, method, checks.get(name)) if guarded else method)

    def __call__(self, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> Timeline:
        """Run one iteration."""
        timeline: Timeline = self._calling("a run", self._simulate, taskgraph, fabric, cluster)
        expect(timeline, Timeline, f"{self._who}: a run")
        if reason := _why_no_timeline(timeline, taskgraph, fabric, cluster):
            raise PluginError(f"{self._who}: a run returned {reason}")
        return timeline

    def with_seed(self, seed: int) -> Simulate:
        """Return the same simulator with other draws of paths, its runs checked likewise."""
        simulate = self._calling("with_seed", self._simulate.with_seed, seed)
        expect(simulate, Simulate, f"{self._who}: with_seed")
        return self if simulate is self._simulate else _GuardedSimulate(simulate, self._who)

    def with_algorithms(self, text: str) -> Simulate:
        """Return the same simulator with algorithms of collectives, its runs checked likewise."""
        return _GuardedSimulate(with_algorithms(self._simulate, text), self._who)

    def _calling(self, what: str, method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """Call code of the simulator; what it raises names it."""
        try:
            with printing_aside():
                return method(*arguments, **named)
        except (TopoplanError, TooLargeError, MemoryError):
            raise
        except (Exception, SystemExit) as error:
            raise_if_interrupted(error)
            raise PluginError(f"{self._who}: {what} raised {exception_line(error)}") from error

    def _checked(self, name: str, method: Callable[..., Any], check: Callable[..., str] | None) -> Callable[..., Any]:
        """Return a method of the simulator whose errors name it, and so does what it returns where a check refuses it.

        Args:
            name: of the method.
            method: it itself.
            check: says what is wrong with a value that the method returned for arguments; empty if nothing.
        """

        def checked(*arguments: Any, **named: Any) -> Any:
            value = self._calling(name, method, *arguments, **named)
            if check is not None and (reason := check(value, *arguments, *named.values())):
                raise PluginError(f"{self._who}: {name} returned {reason}")
            return value

        return checked


def _why_no_makespan(value: Any, *_: Any) -> str:
    """Say why a value cannot be the seconds of an iteration; empty if it can."""
    if type(value) is float and value >= 0:
        return ""
    if not _are_numbers(value, ()):
        return f"{_kind_of(value)} (must be a number)"
    return "" if value >= 0 else f"{shown(value)} s for an iteration (must be at least 0)"


def _why_no_makespans(
    values: Any, _taskgraph: TaskGraph, _fabric: AnyFabric, _cluster: Cluster, seeds: Sequence[int]
) -> str:
    """Say why a value cannot be the seconds of an iteration under each of some seeds; empty if it can."""
    if not _are_numbers(values, (len(seeds),)):
        return f"{_kind_of(values)} (must be an array of {len(seeds)} numbers, one for each seed)"
    return "" if np.all(np.asarray(values) >= 0) else f"{shown(values)} s for an iteration (must be at least 0)"


def _are_numbers(value: Any, shape: tuple[int, ...]) -> bool:
    """Say whether a value is a real number, or an array of them, of this shape."""
    if isinstance(value, bool | str | bytes | complex) or value is None:
        return False
    array = np.asarray(value)
    return array.shape == shape and array.dtype.kind in "fiu"


def _kind_of(value: Any) -> str:
    """Name a value of a wrong kind, with its shape where it has one."""
    if isinstance(value, np.ndarray) and value.shape:
        return f"an array of {value.dtype} of shape {value.shape}"
    return "None" if value is None else f"{type(value).__name__} {shown(value, 40)}"


def _why_no_rows(rows: Any, taskgraph: TaskGraph, fabric: AnyFabric, _cluster: Cluster) -> str:
    """Say why a value cannot be seconds that messages of operators keep links busy; empty if it can."""
    n_links, n_ops = fabric.links.n_links, int(taskgraph.op.max(initial=-1)) + 1
    if not isinstance(rows, np.ndarray) or rows.dtype.kind not in "fiu" or rows.ndim != 2:
        return f"{_kind_of(rows)} (must be an array of numbers, a row for each operator, a column for each link)"
    if len(rows) and (len(rows) > max(n_ops, 1) or rows.shape[1] < n_links):
        most = f"at most {max(n_ops, 1)} rows, one for each operator, and at least {n_links} columns, one for each link"
        return f"an array of shape {rows.shape} (must have {most})"
    if rows.size and not (rows.min() >= 0 and rows.max() < np.inf):
        bad = rows[~((rows >= 0) & (rows < np.inf))][0]
        return f"{bad} s for a link (must be finite and at least 0)"
    return ""


def _why_no_timeline(timeline: Timeline, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> str:
    """Say what of a timeline cannot be one of this iteration; empty if all can."""
    n_links = fabric.links.n_links
    for field, rows, what in (
        ("start", taskgraph.n_tasks, "tasks"),
        ("finish", taskgraph.n_tasks, "tasks"),
        ("device_busy", cluster.n_devices, "devices"),
        ("link_bytes", n_links, "links"),
        ("link_busy", n_links, "links"),
    ):
        values = getattr(timeline, field)
        if values.shape != (rows,):
            return f"a timeline whose {field} has shape {values.shape} (must be ({rows},), one for each of the {what})"
        if rows and not (values.min() >= 0 and values.max() < np.inf):
            bad = int(np.flatnonzero(~((values >= 0) & (values < np.inf)))[0])
            return f"a timeline whose {field} is {values[bad]} at {bad} (must be finite and at least 0)"
    early = np.flatnonzero(timeline.finish < timeline.start * (1 - _ROUNDING))
    if len(early):
        ends = f"finishes at {timeline.finish[early[0]]} s, before it starts at {timeline.start[early[0]]} s"
        return f"a timeline whose task {early[0]} {ends}"
    return _why_no_totals(timeline) or _why_too_busy(timeline, fabric)


def _why_too_busy(timeline: Timeline, fabric: AnyFabric) -> str:
    """Say which device or link did more than fits into the makespan; empty if none did.

    A link passes no more than its bandwidth in any second; where a fabric is rebuilt, the greatest that it ever has.
    """
    most = timeline.makespan * (1 + _ROUNDING)
    for field in ("device_busy", "link_busy"):
        values = getattr(timeline, field)
        if len(values) and values.max() > most:
            row = int(values.argmax())
            return f"a timeline whose {field} is {values[row]} s at {row}, above its makespan, {timeline.makespan} s"
    over = np.flatnonzero(timeline.link_bytes > fabric.links.link_bandwidth * most)
    if len(over):
        row, speed = int(over[0]), float(fabric.links.link_bandwidth[over[0]])
        limit = f"must be at most {speed * timeline.makespan}: {speed} bytes/s over its makespan, {timeline.makespan} s"
        return f"a timeline whose link_bytes are {timeline.link_bytes[row]} at {row} ({limit})"
    return ""


def _why_no_record(value: Any, taskgraph: TaskGraph, fabric: AnyFabric, cluster: Cluster) -> str:
    """Say why a value cannot be the timeline and the recording of this iteration; empty if it can."""
    if not (isinstance(value, tuple) and [*map(type, value[1:])] == [Recording] and isinstance(value[0], Timeline)):
        return f"{type(value).__name__} {shown(value, 40)} (must be a Timeline and a Recording)"
    timeline, recording = value
    links, critical = recording.links, recording.critical
    for field, values, most in (
        ("links.link", links.link, fabric.links.n_links),
        ("links.task", links.task, taskgraph.n_tasks),
        ("critical.task", critical.task, taskgraph.n_tasks),
        ("links.start", links.start, np.inf),
        ("links.finish", links.finish, np.inf),
        ("links.nbytes", links.nbytes, np.inf),
    ):
        bad = np.flatnonzero(~((values >= 0) & (values < most)))
        if len(bad):
            limit = "finite and at least 0" if most == np.inf else f"from 0 to {most - 1}"
            return f"a recording whose {field} is {values[bad[0]]} at {bad[0]} (must be {limit})"
    return _why_no_timeline(timeline, taskgraph, fabric, cluster)


def _why_no_totals(timeline: Timeline) -> str:
    """Say what of the numbers of a whole timeline cannot be; empty if all can."""
    bounds = timeline.bounds
    if not isinstance(bounds, Bounds):
        return f"a timeline whose bounds are {_kind_of(bounds)} (must be Bounds)"
    for name, value in [("makespan", timeline.makespan)] + [
        (f"bounds.{name}", getattr(bounds, name)) for name in ("device", "link", "chain", "collective")
    ]:
        if not _are_numbers(value, ()):
            return f"a timeline whose {name} is {_kind_of(value)} (must be a number)"
        if not 0 <= value < np.inf:
            return f"a timeline whose {name} is {value} s (must be finite and at least 0)"
        if name != "makespan" and value > timeline.makespan * (1 + _ROUNDING):
            return f"a timeline whose {name} is {value} s, above its makespan, {timeline.makespan} s"
    if isinstance(timeline.events, bool) or not isinstance(timeline.events, _INTEGERS):
        return f"a timeline whose events are {_kind_of(timeline.events)} (must be a whole number)"
    if timeline.events < 0:
        return f"a timeline whose events are {timeline.events} (must be at least 0)"
    last = float(timeline.finish.max(initial=0.0))
    if last > timeline.makespan * (1 + _ROUNDING):
        return f"a timeline whose makespan is {timeline.makespan} s, but a task finishes at {last} s"
    return ""


@runtime_checkable
class KnowsBest(Protocol):
    """What a search has that proposes nothing which it knows to be slower than the best plan of all searchers."""

    def know_best(self, cost: float) -> None:
        """Take note of the seconds of the best plan so far that fits."""


@runtime_checkable
class TakesTurns(Protocol):
    """What a search has that proposes nothing in some turns, and is asked again all the same."""

    @property
    def waits(self) -> bool:
        """Whether it proposed nothing in its last turn, and may in one of the next."""


@runtime_checkable
class PlansInVain(Protocol):
    """What a search has some turns of which are worth a proposal in work, though they bring none."""

    @property
    def in_vain(self) -> bool:
        """Whether its last turn was one of these."""


@runtime_checkable
class SaysLeftOut(Protocol):
    """What a search has that may give up a part of what it could propose."""

    @property
    def left_out(self) -> str:
        """What it gave up, and why: a line that begins with the name of the searcher; empty if nothing."""


@contextmanager
def _building(what: str) -> Iterator[None]:
    """Name a call of a searcher in what its code raises, also where it makes a fabric that is none."""
    try:
        with calling(what):
            yield
    except FabricError as error:
        if not str(error).startswith("fabric "):  # it says already whose fabric it is
            raise
        raise PluginError(f"{what} made a fabric that cannot be used: {error}") from error


class _GuardedSearch(Search):
    """A searcher under way whose every call is checked.

    Attributes:
        who: names it in messages.
    """

    def __init__(self, search: Search, who: str, allowed: Allowed) -> None:
        self._search, self.who, self._allowed = search, who, allowed
        # Looked up once: a protocol looks at each of its attributes whenever it is asked.
        self._knows_best = search if isinstance(search, KnowsBest) else None
        self._turns = search if isinstance(search, TakesTurns) else None
        self._vain = search if isinstance(search, PlansInVain) else None

    def know_best(self, cost: float) -> None:
        """Pass the seconds of the best plan on to a search that makes use of them."""
        if self._knows_best is not None:
            with calling(f"{self.who}: know_best"):
                self._knows_best.know_best(cost)

    def ask(self) -> list[Candidate]:
        """Propose candidates."""
        with _building(f"{self.who}: ask"):
            candidates = self._search.ask()
        return self._checked(candidates, "ask")

    def _checked(self, candidates: Sequence[Candidate], method: str) -> list[Candidate]:
        """Check what a method of the searcher proposed."""
        expect(candidates, Sequence, f"{self.who}: {method}", "a sequence of Candidate")
        for candidate in candidates:
            expect(candidate, Candidate, f"{self.who}: {method}: an element of what it")
            if reason := self._allowed.why_wrong(candidate):
                raise PluginError(f"{self.who}: {method} proposed {reason}")
            start = candidate.base.strategy
            if candidate.placements and isinstance(start, StagedStrategy) and not (start.is_placed or start.program):
                raise TopoplanError(
                    f"{self.who}: places operators one by one, which those of stages with programs cannot be (start "
                    "from placements, or choose mcmc or anneal, which move such stages)"
                )
        return list(candidates)

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take the prices of candidates."""
        with _building(f"{self.who}: tell"):
            self._search.tell(trials)

    def adopt(self, trial: Trial) -> None:
        """Go on from a state."""
        self._allowed.give(trial.state)
        with _building(f"{self.who}: adopt"):
            self._search.adopt(trial)

    reached = property(lambda self: self._search.reached)
    follows = property(lambda self: self._search.follows)
    plans = property(lambda self: self._search.plans)
    acceptance = property(lambda self: self._search.acceptance)
    waits = property(lambda self: False if self._turns is None else self._turns.waits)
    in_vain = property(lambda self: False if self._vain is None else self._vain.in_vain)
    left_out = property(lambda self: self._search.left_out if isinstance(self._search, SaysLeftOut) else "")

    def report(self, strategy: Strategy | None) -> Mapping[str, Any] | None:
        """Return what the searcher reports; None, and a warning, where it cannot: the search is done by then."""
        try:
            with calling(f"{self.who}: report"):
                report = self._search.report(strategy)
            if report is not None:
                expect(report, Mapping, f"{self.who}: report", "a mapping of JSON values")
        except TopoplanError as error:
            warnings.warn(TopoplanWarning(f"{error}; it is left out"), stacklevel=2)
            return None
        return report


class _GuardedScreenedSearch(_GuardedSearch):
    """The same of one whose proposals can be rejected before they are candidates."""

    def __init__(self, search: Search, who: str, allowed: Allowed) -> None:
        super().__init__(search, who, allowed)
        assert isinstance(search, Screened)
        self._screened: Screened = search

    def ask_screened(self, rejects: Rejects, most: int) -> tuple[int, list[Candidate]]:
        """Propose until a proposal is not rejected."""
        with _building(f"{self.who}: ask_screened"):
            rejected, candidates = self._screened.ask_screened(rejects, most)
        candidates = self._checked(candidates, "ask_screened")
        if not isinstance(rejected, _INTEGERS) or not 0 <= rejected <= most - len(candidates):
            raise PluginError(
                f"{self.who}: ask_screened counted {shown(rejected)} rejected proposals beside {len(candidates)} "
                f"candidates (must be {most} together at most)"
            )
        return int(rejected), candidates


def _why_no_strategy(strategy: object, problem: Problem) -> str:
    """Say what of a strategy does not fit the graph or the cluster of the problem; empty if all does."""
    graph, n_devices = problem.graph, problem.cluster.n_devices
    if not isinstance(strategy, Strategy):
        return f"{shown(strategy)} as the strategy of a state (must be a Strategy)"
    if len(strategy.placements) != len(graph.operators):
        return f"a strategy of {len(strategy.placements)} placements (the model has {len(graph.operators)} operators)"
    reasons = (why_misplaced(op, placement, graph, n_devices) for op, placement in enumerate(strategy.placements))
    return next(filter(None, reasons), "")
