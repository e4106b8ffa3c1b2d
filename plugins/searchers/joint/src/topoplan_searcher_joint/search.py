"""The search: a few proposals for each best state, one after the other, the next ones made of what was faster."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from topoplan import Candidate, Problem, Search, StagedStrategy, State, Strategy, Trial
from topoplan_engine.states import state_key
from topoplan_joint_moves import KINDS, algorithm_names, communicators, kinds_of, relayouts, text_of_rules

if TYPE_CHECKING:
    from topoplan_searcher_joint import Joint

__all__ = ["JointSearch"]

#: A time is less than another one if it is by more than rounding.
_LESS = 1 - 1e-9
_Rules = frozenset[tuple[str, str]]


class JointSearch(Search):
    """Proposes one state at a time; see `topoplan.search.protocol.Search`.

    It begins anew when another searcher reached a state that is faster, and proposes nothing twice for a strategy.
    """

    def __init__(self, options: Joint, problem: Problem, rng: np.random.Generator) -> None:
        self._options, self._problem, self._rng = options, problem, rng
        self._names = {kind: algorithm_names(kind, problem.cluster) for kind in KINDS}
        self._best: Trial | None = None
        self._steps: Iterator[Candidate] | None = None
        self._seconds = float("inf")
        self._known: set[bytes] = set()
        # Layouts that were proposed, by the keys of their strategies.
        self._layout_of: dict[bytes, str] = {}

    def ask(self) -> Sequence[Candidate]:
        """Propose the next state."""
        if self._best is None or self._steps is None:
            return []
        candidate = next(self._steps, None)
        if candidate is None:
            self._steps = None
            return []
        return [candidate]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take the price of the last proposal, and continue from it if it is faster."""
        for trial in trials:
            self._seconds = trial.cost
            best = self._trial
            if (trial.fits, best.cost * _LESS) > (best.fits, trial.cost):
                self._best = trial

    def adopt(self, trial: Trial) -> None:
        """Continue from another state."""
        self._best = trial
        self._known.add(state_key(trial.state))
        self._steps = self._moves()

    def report(self, strategy: Strategy | None) -> Mapping[str, Any] | None:
        """Return the layout of a strategy that it moved to another one."""
        layout = self._layout_of.get(strategy.key) if strategy is not None else None
        return None if layout is None else {"layout": layout}

    def _moves(self) -> Iterator[Candidate]:
        """Yield moves, each of the best state so far, until none of a round is faster."""
        before = float("inf")
        while self._trial.cost < before * _LESS:
            before = self._trial.cost
            if self._options.algorithms:
                yield from self._algorithms()
            if self._options.wiring and self._problem.reconfigurable:
                yield from self._new(self._wired(self._trial.state))
            if self._options.layouts:
                yield from self._layouts()

    @property
    def _trial(self) -> Trial:
        assert self._best is not None
        return self._best

    def _new(self, state: State) -> Iterator[Candidate]:
        """Yield a state unless it was proposed before."""
        if state_key(state) not in self._known:
            self._known.add(state_key(state))
            yield Candidate(base=state, cutoff_seconds=self._trial.cost / _LESS)  # that it is as fast says something

    # ── Wiring and layouts ──────────────────────────────────────────────────────────────────────────────

    def _wired(self, state: State) -> State:
        """Return a state on the topology's own fabric for its demand."""
        demand = self._trial.demand() if state is self._trial.state else self._problem.demand(state.strategy)
        return attrs.evolve(state, fabric=self._problem.build_fabric(demand, self._rng))

    def _layouts(self) -> Iterator[Candidate]:
        """Yield the strategy in other layouts, wired for them where the network follows demand."""
        state, problem = self._trial.state, self._problem
        if not isinstance(state.strategy, StagedStrategy):
            return
        for layout, strategy in relayouts(state.strategy, problem.graph, problem.cluster.n_devices):
            if problem.restriction and problem.restriction.refusal(problem.graph, problem.cluster, strategy):
                continue
            self._layout_of[strategy.key] = layout
            moved = attrs.evolve(state, strategy=strategy)
            if problem.reconfigurable and self._options.wiring:
                moved = self._wired(moved)
            yield from self._new(moved)

    # ── Algorithms of collectives ───────────────────────────────────────────────────────────────────────

    def _algorithms(self) -> Iterator[Candidate]:
        """Yield rules for all kinds of collectives, or for each by itself; then without each kind, and each shape.

        Where rules for all kinds change nothing, no kind does.
        """
        kinds, shapes = self._kinds_and_shapes()
        if self._trial.state.collectives:  # of another network, or another layout
            yield from self._ruled(frozenset(), shapes)
        start = self._seconds = self._trial.cost
        every: _Rules = frozenset((kind, "") for kind in kinds)
        yield from self._ruled(every, shapes)
        if self._trial.cost < start * _LESS:
            yield from self._fewer(every, kinds, shapes)
        elif self._seconds > start / _LESS:
            for kind in kinds:
                yield from self._ruled(frozenset({(kind, "")}), shapes)

    def _kinds_and_shapes(self) -> tuple[tuple[str, ...], list[str]]:
        strategy = self._trial.state.strategy
        return kinds_of(strategy), [*communicators(strategy, self._problem.cluster)]

    def _fewer(self, rules: _Rules, kinds: Sequence[str], shapes: Sequence[str]) -> Iterator[Candidate]:
        """Yield rules without each kind of collective, then without each shape of groups, from those that are best."""
        for kind in kinds:
            rules = yield from self._without(rules, {(kind, "")}, shapes)
        if len(shapes) > 1:
            # All-to-alls have no rings of the network, so that theirs is a rule for all shapes.
            places = {kind: [""] if kind == KINDS[-1] else shapes for kind, _ in rules}
            rules = frozenset((kind, shape) for kind in places for shape in places[kind])
            for shape in shapes:
                rules = yield from self._without(rules, {(kind, shape) for kind in KINDS}, shapes)

    def _without(
        self, rules: _Rules, some: set[tuple[str, str]], shapes: Sequence[str]
    ) -> Generator[Candidate, None, _Rules]:
        """Yield rules without some of them; return those of both that are faster."""
        fewer = rules - some
        if not fewer or fewer == rules:
            return rules
        before = self._trial.cost
        yield from self._ruled(fewer, shapes)
        return fewer if self._trial.cost < before * _LESS else rules

    def _ruled(self, rules: _Rules, shapes: Sequence[str]) -> Iterator[Candidate]:
        text = text_of_rules(sorted(rules), self._names, shapes)
        yield from self._new(attrs.evolve(self._trial.state, collectives=text))
