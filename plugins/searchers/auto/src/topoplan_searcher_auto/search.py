"""The search: it prices some plans, then improves the best by a Markov chain of large and small moves.

A proposal gives a new placement to one operator, to a connected block, to all operators of one form, or to the block
and everything of its forms; or it copies placements along edges.  The chain accepts as `mcmc` does, colder: a slowdown
``d``, as a share of the best time, with probability ``exp(-alpha * d)``; the random number is drawn first, so that it
is a cutoff.  Strategies that were priced before are not proposed again: what is known of them decides at once.

A chain that is behind the best plan of all searchers ends after some proposals, and so do the plans before it; on large
problems these are few, and fewer if it is far behind.  On large problems with layers a planner finds a plan first,
which may show that placements are hopeless.

Moves of whole forms are for models that repeat layers: the best strategies often place these layers equally, and a
chain of single moves sees next to none of such strategies.  Those that come near the best soon bring nothing more and
take longest to be priced, so that a kind of move is the rarer the longer it brought nothing.
"""

from __future__ import annotations

import bisect
import hashlib
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from topoplan import Candidate, Placement, Problem, Search, State, Strategy, Trial
from topoplan_engine.equal_operators import layers_of
from topoplan_placement_moves import Propagation, operators_of_same_form
from topoplan_placement_moves.planning import plans

if TYPE_CHECKING:
    from topoplan_searcher_auto import Auto

__all__ = ["AutoSearch"]

#: Chance that a walk along edges continues by one operator.
_CONTINUATION = 0.75
#: How often each kind of move is drawn for models with equal layers, while each brings something better: walks, blocks,
#: single operators, forms, and blocks with their forms.
_FREQUENCIES = (1.0, 1.0, 3.0, 1.0, 1.0)
#: Moves of a kind in vain after which it is drawn half as often, and the least share of its frequency.
_HALVED_AFTER, _LEAST_SHARE = 16, 1 / 16
#: Proposals after which the chain returns to the best state.
_RESET_EVERY = 40
#: Priced strategies that are remembered, the oldest forgotten first.
_REMEMBERED = 10_000
#: Proposals in one turn that may be decided by what is remembered.
_TRIES = 50
#: A chain whose best strategy takes this many times as long as the best plan of all is behind, or far behind.
_BEHIND, _FAR_BEHIND = 1.1, 2.0
#: Parts of operators in all proposals together that a chain makes while it is behind, and by how much faster they are
#: used up while it is far behind.
_PARTS_BEHIND, _SPENT_FAR_BEHIND = 2**21, 8
#: The same of a chain without hope: one whose best strategy takes so many times as long.
_HOPELESS, _SPENT_HOPELESS = 20.0, 32
#: Where the best strategy of a chain with hope takes so much less than before, its proposals until then do not count.
_NEARER = 0.99
#: Parts of operators that a chain makes for each turn: on larger problems it waits some turns for each proposal, in
#: which planners have theirs.
_PARTS_A_TURN = 2**15
#: Parts of operators from which on it waits for a plan of a model with layers, and parts for each of these turns.
_PARTS_LARGE, _PARTS_FIRST = 2**17 // 10, 2**6


class AutoSearch(Search):
    """Plans, then one chain over strategies; the fabric is that of the state it adopted last."""

    follows = True
    reached: Trial | None = None

    def __init__(self, options: Auto, problem: Problem, rng: np.random.Generator) -> None:
        self._alpha, self._problem, self._rng = options.alpha, problem, rng
        self._propagation = Propagation(problem.graph, problem.space, _CONTINUATION)
        self._same_form = operators_of_same_form(problem.graph)
        self._repeats = any(len(group) > 1 for group in self._same_form)
        self._plans: Iterator[Strategy | None] | None = plans(problem) if options.plans else iter(())
        self._current: Trial | None = None
        self._best: Trial | None = None
        #: Seconds of the best plan of all searchers, and how many proposals are left while this is far better.
        self._best_cost = math.inf
        parts = len(problem.graph.operators) * problem.cluster.n_devices
        self._most_behind = self._left_behind = max(1, _PARTS_BEHIND // parts)
        #: Seconds of its best strategy when it last came nearer.
        self._nearest = math.inf
        #: Turns for each proposal, and those since the last one.
        self._turns, self._waited = parts // _PARTS_A_TURN, 0
        #: Turns in which it waits for the first plan of a planner.
        self._later = 0
        if options.hybrids and parts >= _PARTS_LARGE and any(layers_of(problem.graph).layer):
            self._later = parts // _PARTS_FIRST
        #: Whether a proposal was not made for that reason.
        self._gave_up = False
        #: A state that is asked for whatever is remembered: the best strategy on a fabric that another kind reached.
        self._moved: State | None = None
        self._asked: Candidate | None = None
        #: For each priced state a lower bound on its cost, and its trial if that is its cost.
        self._remembered: dict[bytes, tuple[float, Trial | None]] = {}
        self._since_reset = self._proposed = self._accepted = 0
        #: Kind of the last move, and how many of each were drawn since the last one that was better than the best.
        self._kind, self._in_vain = 0, [0] * len(_FREQUENCIES)

    @property
    def acceptance(self) -> float | None:
        """Share of the proposals that were accepted."""
        return self._accepted / self._proposed if self._proposed else None

    def adopt(self, trial: Trial) -> None:
        """Continue from ``trial``; from its fabric alone if its strategy is of a kind that the moves do not fit."""
        if self._best is not None and type(trial.state.strategy) is not type(self._best.state.strategy):
            self._moved = State(self._best.state.strategy, trial.state.fabric)
            return
        self._current = trial
        self._since_reset = 0
        if self._best is None or trial.rank < self._best.rank:
            self._best = trial

    def ask(self) -> Sequence[Candidate]:
        """Propose a plan as long as there are some, then one change to the current state, as between estimates."""
        if self._current is None or self._best is None:
            return []
        if self._later:
            self._later -= 1
            if self._is_hopeless(self._best):  # estimates take seconds, and find nothing so much faster
                self._later, self._left_behind, self._gave_up, self._plans = 0, -1, True, None
            elif self._best_cost < math.inf:
                self._later = 0
            return []
        if self._moved is not None:
            self._asked = Candidate(base=self._moved)
            return [self._asked]
        self._waited += 1
        if self.waits:
            return []
        self._waited = 0
        if not self._may_propose(self._best):
            self._plans = None
            return []
        if self._plans is not None:
            try:
                plan = next(self._plans)
            except StopIteration:
                self._plans, self._current = None, self._best
            else:
                if plan is not None:
                    self._asked = Candidate(base=State(plan, self._best.state.fabric), cutoff_seconds=self._best.cost)
                    return [self._asked]
        self._asked = self._new_proposal(self._current, self._best)
        return [self._asked]

    def ask_screened(
        self, rejects: Callable[[State, Mapping[int, Placement], float], bool], most: int
    ) -> tuple[int, Sequence[Candidate]]:
        """Propose changes until one is not rejected; see `topoplan_engine.screening.Screened`."""
        is_ready = self._plans is None and self._moved is None and self._turns <= 1 and not self._later
        if not is_ready or self._current is None or self._best is None:
            return 0, self.ask()
        for rejected in range(most):
            if not self._may_propose(self._best):
                return rejected, []
            candidate = self._asked = self._new_proposal(self._current, self._best)
            if not rejects(candidate.base, candidate.placements, candidate.cutoff_seconds):
                return rejected, [candidate]
            self.reached = None
            self._proposed += 1
            self._since_reset += 1
            self._remember(_key(candidate.state()), math.inf, None, candidate.cutoff_seconds)
        return most, []

    @property
    def waits(self) -> bool:
        """Whether it proposes nothing in this turn, and may in one of the next."""
        return self._later > 0 or 0 < self._waited < self._turns

    @property
    def plans(self) -> bool:
        """Whether it makes estimates, so that it may have nothing to propose yet."""
        return self._plans is not None and self._current is not None

    def _may_propose(self, best: Trial) -> bool:
        """Count a proposal if the chain is behind, and say whether it may still be made."""
        if best.cost <= _BEHIND * self._best_cost if best.fits else self._best_cost == math.inf:
            return True
        is_far = not best.fits or best.cost > _FAR_BEHIND * self._best_cost
        if best.fits and best.cost < _NEARER * self._nearest and not self._is_hopeless(best):
            self._nearest, self._left_behind = best.cost, self._most_behind
        self._left_behind -= _SPENT_HOPELESS if self._is_hopeless(best) else _SPENT_FAR_BEHIND if is_far else 1
        self._gave_up = self._left_behind < 0
        return not self._gave_up

    def _is_hopeless(self, best: Trial) -> bool:
        """Say whether the best strategy takes so much longer than the best plan that no change makes up for it."""
        return best.cost > _HOPELESS * self._best_cost

    def know_best(self, cost: float) -> None:
        """Take note of the seconds of the best plan so far that fits, of whichever searcher."""
        self._best_cost = cost

    @property
    def left_out(self) -> str:
        """What the chain gave up, and why: in a line that begins with its name; empty if nothing."""
        if not self._gave_up or self._best is None:
            return ""
        times = self._best.cost / self._best_cost
        how = f"took {times:.3g} times as long as the best plan" if self._best.fits else "did not fit"
        return f"auto: its placements of single operators ended after {self._proposed} proposals: the best {how}"

    def tell(self, trials: Sequence[Trial]) -> None:
        """Accept the proposal if it costs less than its cutoff."""
        self.reached = None
        for trial in trials:
            assert self._asked is not None
            assert self._best is not None
            self._proposed += 1
            self._since_reset += 1
            self._remember(_key(trial.state), trial.cost, trial, self._asked.cutoff_seconds)
            if self._moved is not None:
                self._moved, self._current, self._best = None, trial, trial
                continue
            if trial.cost < self._asked.cutoff_seconds:
                self._accepted += 1
                self._current = self.reached = trial
            if trial.rank < self._best.rank:
                self._best, self._since_reset, self._in_vain[self._kind] = trial, 0, 0

    def _new_proposal(self, current: Trial, best: Trial) -> Candidate:
        """Return a change whose outcome is not known; known ones are accepted or rejected on the way."""
        candidate = Candidate(base=current.state)
        for _ in range(_TRIES):
            if self._since_reset >= _RESET_EVERY:
                current, self._since_reset = best, 0
            cutoff = self._cutoff(current, best)
            changes = self._changes(current.state.strategy.placements)
            candidate = Candidate(base=current.state, placements=changes, cutoff_seconds=cutoff)
            bound, trial = self._remembered.get(_key(candidate.state()), (0.0, None))
            if trial is None and bound < cutoff:
                break
            self._since_reset += 1
            if trial is not None and trial.cost < cutoff:
                current = trial
        self._current = current
        return candidate

    def _cutoff(self, current: Trial, best: Trial) -> float:
        """Draw the cost below which the next proposal is accepted; one as fast as the current state always is."""
        if math.isinf(current.cost):
            return math.inf
        slack = -math.log(1.0 - self._rng.random()) * best.cost / self._alpha
        return math.nextafter(current.cost + slack, math.inf)

    def _changes(self, placements: Sequence[Placement]) -> dict[int, Placement]:
        """Draw a move: which kind, which operator, and which placement."""
        rng, same_form = self._rng, self._same_form
        kind = self._kind = self._likely_kind() if self._repeats else int(rng.integers(3))
        op = int(rng.integers(len(placements)))
        placement = self._problem.space.random_placement(op, rng)
        changes = {op: placement}
        if kind == 0:
            changes = self._propagation.spread(placements, rng) or changes
        elif kind == 1:
            changes = self._propagation.block(op, placement, rng)
        elif kind == 3:
            changes = dict.fromkeys(same_form[op], placement)
        elif kind == 4:
            block = self._propagation.block(op, placement, rng)
            changes = {like: new for member, new in block.items() for like in same_form[member]} | block
        return self._that_differ(changes, placements)

    def _likely_kind(self) -> int:
        """Draw a kind of move: one that has brought nothing better for long is rare."""
        shares = (max(_LEAST_SHARE, 1 / (1 + count / _HALVED_AFTER)) for count in self._in_vain)
        sums = list(itertools.accumulate(f * share for f, share in zip(_FREQUENCIES, shares, strict=True)))
        kind = bisect.bisect_right(sums, self._rng.random() * sums[-1], hi=len(sums) - 1)
        self._in_vain[kind] += 1
        return kind

    @staticmethod
    def _that_differ(changes: Mapping[int, Placement], placements: Sequence[Placement]) -> dict[int, Placement]:
        return {op: placement for op, placement in changes.items() if placement is not placements[op]}

    def _remember(self, key: bytes, cost: float, trial: Trial | None, cutoff: float) -> None:
        """Remember a cost, or that it is at least the cutoff."""
        known_bound = self._remembered.pop(key, (0.0, None))[0]
        self._remembered[key] = (cost, trial) if cost < math.inf else (max(known_bound, cutoff), None)
        if len(self._remembered) > _REMEMBERED:
            del self._remembered[next(iter(self._remembered))]


def _key(state: State) -> bytes:
    return hashlib.blake2b(state.strategy.key + state.fabric.key, digest_size=16).digest()
