"""The ask/tell contract between searchers and the driver.

A `State` is a point of the joint space: a strategy, its fabric, and what runs its collectives, priced together.
A searcher proposes candidates (`Candidate`), each given as a *change to a state*, and gets their
prices (`Trial`).  It never calls the evaluator, owns no budget and reads no clock, so it can be stopped,
resumed, run in many chains and swapped.

The driver (`topoplan_engine.search.driver`) goes round: ``ask`` -> price -> ``tell``, until the budget is spent or
``ask`` returns nothing.  Searchers take turns; a new best that one reached, others are given by ``adopt``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from topoplan.model.placement import Placement
from topoplan.model.reconfigurable import AnyFabric
from topoplan.model.strategy import Strategy

if TYPE_CHECKING:
    from topoplan.model.problem import Demand, Problem

__all__ = ["Candidate", "Progress", "Run", "Search", "State", "Trial"]


@attrs.frozen(eq=False)
class State:
    """A strategy and the fabric (with its routes) that it runs on.  Compared by identity."""

    strategy: Strategy
    fabric: AnyFabric
    collectives: str = ""  #: algorithms where options name none, as ``--collective`` says them


@attrs.frozen(kw_only=True, eq=False)
class Candidate:
    """A state, given as a change to another one.

    Attributes:
        base: the state that it changes.
        placements: operators whose placement differs from the base's.
        fabric: the fabric, where it differs from the base's.
        cutoff_seconds: the candidate is useful only if it costs less than this; the evaluator may stop as soon
            as a bound proves that it does not, and answer with ``inf``.
        comparison: what it is, in a word or two, where a searcher that constructs its answer has it priced for
            comparison only, and does not stand for it; empty otherwise.
    """

    base: State
    placements: Mapping[int, Placement] = attrs.field(factory=dict)
    fabric: AnyFabric | None = None
    cutoff_seconds: float = float("inf")
    comparison: str = ""

    def state(self) -> State:
        """Return the state that the candidate describes; the base itself when nothing changes."""
        base = self.base
        if not self.placements and self.fabric is None:
            return base
        strategy = base.strategy.with_changes(self.placements) if self.placements else base.strategy
        return State(strategy, self.fabric or base.fabric, base.collectives)


@attrs.frozen(kw_only=True, eq=False)
class Trial:
    """A priced candidate.

    Attributes:
        state: what was priced.
        cost: seconds per iteration, memory penalty included; ``inf`` if it is infeasible, or sure to reach its cutoff.
        demand: returns what the strategy asks of the network; computed when called.
        fits: every device holds what the strategy keeps on it; always true where memory does not matter.
    """

    state: State
    cost: float
    demand: Callable[[], Demand]
    fits: bool = True

    @property
    def rank(self) -> tuple[bool, float]:
        """What the best of several trials has least of: first whether it does not fit, then the cost."""
        return not self.fits, self.cost


class Search(ABC):
    """What a searcher builds.  `ask` and `tell` alternate; `tell` gets the trials in the order asked.

    Only `ask` must be written.  By default a search keeps the state that it is to go on from, and learns nothing from
    prices; the properties and `report` are for those that have something to say there.

    Attributes:
        state: what `adopt` got last; None before.
    """

    state: State | None = None

    @abstractmethod
    def ask(self) -> Sequence[Candidate]:
        """Propose candidates.  Empty says: nothing now; from every searcher at once it ends the run."""

    def tell(self, trials: Sequence[Trial]) -> None:  # noqa: B027  to learn nothing is a default, not an omission
        """Take the prices of the candidates last asked, or of the first of them if the budget ran out."""

    def adopt(self, trial: Trial) -> None:
        """Go on from here: the initial state, or one that another searcher reached."""
        self.state = trial.state

    @property
    def reached(self) -> Trial | None:
        """Trial that the last `tell` moved it to, though it may be no new best: offered to those that `follows`."""
        return None

    @property
    def follows(self) -> bool:
        """Whether it adopts what searchers of another axis `reached`, and not new bests alone."""
        return False

    @property
    def plans(self) -> bool:
        """Whether it is still planning, where `ask` proposed nothing: it is asked again, and the run goes on.

        A planner works in small turns: each call of `ask` takes one step of its plan, so that others have their turns
        meanwhile and the driver can look at the clock.  Steps of more than a second call `topoplan.stop_if_wanted`.
        """
        return False

    @property
    def acceptance(self) -> float | None:
        """Share of its candidates that it accepted, for progress reports; None for one that does not choose."""
        return None

    def report(self, strategy: Strategy | None) -> Mapping[str, Any] | None:
        """Return JSON values: what a searcher that constructs its answer estimated for a strategy; None: it has not.

        They stand in the plan's provenance and beside simulated figures: ``speedup`` over one device, which takes
        ``one_device_s``, for example.  None asks for its best strategy, because none of its could be simulated.
        """
        return None


@attrs.frozen(kw_only=True)
class Run:
    """A search about to start, as observers receive it.

    Attributes:
        budget: candidates to price after the initial state.
        patience: share of the budget after which the search ends if nothing was better; None to spend all.
        time_limit: seconds after which it ends; infinite without such a limit.
    """

    problem: Problem
    budget: int
    seed: int
    searchers: tuple[str, ...]
    patience: float | None = None
    time_limit: float = float("inf")


@attrs.frozen(kw_only=True)
class Progress:
    """How far a search is.

    Attributes:
        evaluations: candidates priced so far, the initial state included.
        best, initial: seconds per iteration.
        acceptance: share of its proposals that the strategy searcher accepted; None if it does not say.
        elapsed: seconds since the start, without those that kernels took to compile.
        origin: where the best comes from: ``initial strategy``, ``found by mcmc``, ``constructed by spmd``.
    """

    evaluations: int
    best: float
    initial: float
    acceptance: float | None
    elapsed: float
    origin: str = ""
