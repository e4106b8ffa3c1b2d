"""Searchers that another one brings along: they take turns with it, as if the user had named them after it.

A searcher that is to serve every problem (`BringsCompanions`) names planners and searchers of the network for the
machine and the topology at hand.  Together they are a portfolio: one that is not installed, or that the user has named
already, does not take part; one that cannot search the problem is left out, and the result says why; one that fails is
left out with a warning, too.  A planner proposes many plans at once, which are of no use for most models; so it waits
until it has had no more than a quarter as many candidates as there were turns.  While one of its plans is the best of
all, it may have fifteen for each turn: its next plans are then the most likely to be better.

On large problems, where a plan of a mesh or of a pipeline takes seconds, planners begin one after the other: each knows
the best plan of those before it, and leaves out what cannot be better.

Under a time limit turns are no measure: one of another searcher may take as long as all plans of a planner.  The driver
then says which members have had less than their share of the time (``behind``); these wait for nothing.

Where a plan is to be written in a format that cannot say programs or pipelines, planners of these stay away
(`writable`).
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import attrs
import numpy as np

from topoplan.errors import PluginError, TopoplanError, TopoplanWarning
from topoplan.model.problem import Problem
from topoplan.model.strategy import Strategy
from topoplan.plugin.components import Exporter, Searcher, Topology
from topoplan.plugin.host import Host
from topoplan.search.protocol import Candidate, Search, Trial
from topoplan_engine.experiment import Choice, Experiment
from topoplan_engine.guarded import KnowsBest, PlansInVain, SaysLeftOut, TakesTurns, build_search

__all__ = ["BringsCompanions", "FollowsPipelines", "PortfolioMember", "build_member", "companions_of", "writable"]

#: Turns after which planners are built and asked: about as many as `auto` has plans by estimates.  On large problems,
#: where a chain takes seconds for each turn, fewer: as many as have so many parts of operators.
_TURNS_BEFORE, _PARTS_BEFORE = 10, 2**17
#: Parts of operators in candidates of a planner without a better state, and the fewest such candidates, after which
#: those that wait for it begin.
_PARTS_IN_VAIN, _FEWEST_IN_VAIN = 2**19, 4
#: Candidates of a planner for each turn, and of one that proposed the best state so far.
_SHARE, _SHARE_OF_LEADER = 0.25, 15.0


@runtime_checkable
class BringsCompanions(Protocol):
    """What a `topoplan.Searcher` has that brings others along."""

    def companions(self, topology: Topology, n_devices: int) -> Sequence[Choice]:
        """Return them in the order of their turns, after its own."""

    def without(self, kinds: Sequence[type[Strategy]]) -> Self:
        """Return it with options under which it brings no planner of strategies of these kinds along."""


def writable(host: Host, experiment: Experiment) -> tuple[Experiment, str]:
    """Let searchers leave out the planners whose plans the experiment's outputs cannot be written of.

    Returns:
        The experiment, and a line that says so; the experiment as it is and no line where nothing is to be left out.

    Raises:
        TopoplanError: a searcher, an exporter or an option is unknown or wrong.
    """
    exporters = [host.get(Exporter, choice.name) for choice, _ in experiment.outputs]
    limiting = [exporter for exporter in exporters if exporter.unwritable]
    kinds = tuple(dict.fromkeys(kind for exporter in limiting for kind in exporter.unwritable))
    if not kinds:
        return experiment, ""
    choices, limited = [], []
    for choice in experiment.searchers:
        searcher = choice.make(host, Searcher)
        if isinstance(searcher, BringsCompanions) and (changes := _changes(searcher, searcher.without(kinds))):
            choice = attrs.evolve(choice, options={**choice.options, **changes})
            limited.append(f"{choice.name}:{','.join(f'{key}={json.dumps(changes[key])}' for key in changes)}")
        choices.append(choice)
    if not limited:
        return experiment, ""
    formats = " and ".join(dict.fromkeys(exporter.name for exporter in limiting))
    line = f"searched with {' and '.join(limited)}, because {formats} cannot say every kind of plan (json can)"
    return attrs.evolve(experiment, searchers=tuple(choices)), line


def _changes(searcher: Searcher, limited: Searcher) -> dict[str, Any]:
    """Return the options in which two searchers differ, as the second one has them."""
    names = [field.name for field in attrs.fields(type(searcher))]
    return {name: getattr(limited, name) for name in names if getattr(limited, name) != getattr(searcher, name)}


def companions_of(
    host: Host, searchers: Sequence[Searcher], topology: Topology, n_devices: int
) -> tuple[Searcher, ...]:
    """Return the companions of all searchers that are installed and not among them; each once."""
    names = {searcher.name for searcher in searchers}
    companions: list[Searcher] = []
    for searcher in searchers:
        if isinstance(searcher, BringsCompanions):
            for choice in searcher.companions(topology, n_devices):
                if choice.name not in names and host.has(Searcher, choice.name):
                    names.add(choice.name)
                    companions.append(choice.make(host, Searcher))
    return tuple(companions)


@runtime_checkable
class FollowsPipelines(Protocol):
    """What a `topoplan.Searcher` has that may have better plans only where pipelines are good ones."""

    def follows_pipelines(self, problem: Problem) -> bool:
        """Return whether it takes part in a portfolio only once a pipeline of stages is the best plan."""


def build_member(
    searcher: Searcher, problem: Problem, rng: np.random.Generator, before: Sequence[PortfolioMember] = ()
) -> PortfolioMember:
    """Build a companion; one that cannot search the problem proposes nothing.

    A planner may take a minute to plan, and is built when the others have had their first turns, so that a run of a
    few proposals does without; on large problems, when those ``before`` it have planned.
    """

    def build() -> Search:
        return build_search(searcher, problem, rng)

    if searcher.constructs:
        parts = len(problem.graph.operators) * problem.cluster.n_devices
        turns, in_vain = _PARTS_BEFORE // parts, max(_FEWEST_IN_VAIN, _PARTS_IN_VAIN // parts)
        planners = [member for member in before if member.constructs] if turns < _TURNS_BEFORE else ()
        begins = min(_TURNS_BEFORE, turns)
        member = PortfolioMember(build, _SHARE, searcher.name, begins=begins, before=planners, patience=in_vain)
        member.idles = isinstance(searcher, FollowsPipelines) and searcher.follows_pipelines(problem)
        return member
    try:
        return PortfolioMember(build(), name=searcher.name)
    except TopoplanError as error:
        _warn_of_fault(error)
        return PortfolioMember(None, name=searcher.name, refusal=str(error))


def _warn_of_fault(error: TopoplanError) -> None:
    """Warn if a companion did not refuse the problem, but has a fault."""
    if isinstance(error, PluginError):
        warnings.warn(TopoplanWarning(f"{error}; the other searchers continue"), stacklevel=3)


class PortfolioMember(Search):
    """A companion that takes part in the search; it proposes nothing more once it has said that it cannot.

    Args:
        search: None if it could not even be built; or what builds it after some turns.
        share: candidates for each turn that it may have while another searcher leads; None for no such limit.
        name: of the searcher.
        refusal: why it could not be built.
        begins: turns after which it is built, if that takes long.
        before: planners that it waits for.
        patience: candidates without a better state after which others do not wait for it.

    Attributes:
        constructs: whether it is a planner.
        leads: whether it proposed the best state so far.
        behind: whether it has had less than its share of a time limit.
        in_vain: whether its last turn was worth a proposal in work, though it brought none.
        idles: whether it waits for a pipeline to be the best plan.
    """

    def __init__(
        self,
        search: Search | Callable[[], Search] | None,
        share: float | None = None,
        name: str = "",
        refusal: str = "",
        begins: int = _TURNS_BEFORE,
        before: Sequence[PortfolioMember] = (),
        patience: float = math.inf,
    ) -> None:
        self._name, self._refusal, self._begins_after, self._before = name, refusal, begins, before
        self._search = search if isinstance(search, Search) else None
        self._build = None if search is None or isinstance(search, Search) else search
        #: States that it is given before it is built.
        self._states: list[Trial] = []
        self._share, self.constructs, self._is_over = share, share is not None, False
        self._patience, self._idle = patience, 0
        self._turns = self._candidates = 0
        self._best_cost, self._is_asked = math.inf, False
        self.leads = self.behind = self.in_vain = self.idles = False

    @property
    def who(self) -> str | None:
        """Name of the companion in messages, if it has one."""
        return getattr(self._search, "who", None)

    @property
    def plans(self) -> bool:
        """Whether it is still to be built, or plans: in the middle of a turn, too, where a driver may leave it."""
        if self._is_over or self.idles:
            return False
        return self._is_asked or self._build is not None or (self._search is not None and self._search.plans)

    @property
    def plans_next(self) -> str:
        """Name of the planner that is built in the next turn, which may take a minute; empty if none is."""
        return self._name if self.plans and self._build is not None and self._begins(self._turns) else ""

    @property
    def left_out(self) -> str:
        """Why it takes, or took, no part, or gave up one: in a line that begins with its name; empty if it does not."""
        if self.idles:
            return f"{self._name}: not asked, for no pipeline was the best plan (-s {self._name} asks it)"
        if self._build is not None:
            return f"{self._name}: the search ended before its first turn"
        if self._search is None:
            return f"{self._name}: {self._refusal}"
        return self._search.left_out if isinstance(self._search, SaysLeftOut) else ""

    def _begins(self, turns: int) -> bool:
        """Whether a planner is built by now."""
        return self.behind or (turns >= self._begins_after and not any(member.goes_first for member in self._before))

    @property
    def comes_later(self) -> bool:
        """Whether it has proposed nothing, and a planner that it waits for on large problems still plans."""
        return not self.proposed and any(member.goes_first for member in self._before)

    @property
    def goes_first(self) -> bool:
        """Whether others wait for it: it plans, and did not propose too much in vain."""
        return self.plans and self._idle < self._patience

    def leave(self) -> None:
        """Take note that it gets no further turn, so that others do not wait for it."""
        self._is_over = True

    @property
    def holds(self) -> bool:
        """Whether the search does not end by patience, because it plans: its first plans alone on large problems."""
        return self.plans and not (self._begins_after < _TURNS_BEFORE and self._candidates)

    @property
    def proposed(self) -> bool:
        """Whether it has proposed candidates, or can propose none."""
        return self._candidates > 0 or not self.plans

    @property
    def waits(self) -> bool:
        """Whether it may propose more after further turns: it has had its share of candidates, or planned in vain."""
        return self._has_had_share or (isinstance(self._search, TakesTurns) and self._search.waits)

    @property
    def _has_had_share(self) -> bool:
        if self._share is None or self.behind:
            return False
        return self._candidates > (_SHARE_OF_LEADER if self.leads else self._share) * self._turns

    def ask(self) -> Sequence[Candidate]:
        """Propose what the companion proposes, if it is its turn."""
        self._turns, self.in_vain = self._turns + 1, False
        if self.idles:
            return []
        if self._build is not None and not self._begins(self._turns - 1):
            return []
        self._is_asked = True
        try:
            if self._build is not None:
                build, self._build = self._build, None
                self._search = build()
                for trial in self._states:
                    self._search.adopt(trial)
                self._states.clear()
                self.know_best(self._best_cost)
            if self._search is None or self._has_had_share:
                return []
            candidates = self._search.ask()
            self._candidates += len(candidates)
            self._idle += len(candidates)
            self.in_vain = isinstance(self._search, PlansInVain) and self._search.in_vain
            return candidates
        except TopoplanError as error:
            _warn_of_fault(error)
            self._search, self._refusal = None, str(error)
            return []
        finally:
            self._is_asked = False

    def tell(self, trials: Sequence[Trial]) -> None:
        """Pass prices on."""
        if self._search is not None:
            self._search.tell(trials)

    def adopt(self, trial: Trial) -> None:
        """Pass a state on."""
        if self._build is not None:
            self._states.append(trial)
        elif self._search is not None:
            self._search.adopt(trial)

    def know_stages(self, stages: int) -> None:
        """Take note of how many stages the best plan so far has."""
        self.idles = self.idles and stages < 2

    def know_best(self, cost: float) -> None:
        """Take note of the seconds of the best plan so far that fits."""
        self._best_cost, self._idle = cost, 0
        if isinstance(self._search, KnowsBest):
            self._search.know_best(cost)

    @property
    def reached(self) -> Trial | None:
        """What the companion reached."""
        return None if self._search is None else self._search.reached

    @property
    def follows(self) -> bool:
        """Whether the companion follows."""
        return self._search is not None and self._search.follows

    def report(self, strategy: Strategy | None) -> Mapping[str, Any] | None:
        """Return what the companion says of a strategy."""
        return None if self._search is None else self._search.report(strategy)
