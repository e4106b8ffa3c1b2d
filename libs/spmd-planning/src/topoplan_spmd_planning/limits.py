"""The fastest plan within the memory of the devices.

A search that counts bytes keeps every entry that is not dominated in time, debts and bytes together.  Their number
grows with the layers, so such a search ends for small models only.  Larger ones are planned by Lagrangian relaxation
(Fisher, The Lagrangian relaxation method for solving integer programming problems, Management Science 1981): a byte
costs some seconds, no plan is refused, and the search is as short as one without a limit.

1. Exact search, which counts bytes, as long as it has expanded few entries.
2. Prices: of the plans that are fastest at some price, find the last one within the limit and the first one above it.
   Each search bounds the seconds of all plans within the limit from below.
3. Mixture: equal layers change their signatures at the same price, all at once.  So the first instructions pay more
   than this price and the others less; as few pay more as leave the plan within the limit.
4. A search that counts bytes again, now for plans that are faster still.  It drops the slowest entries of cuts that
   have too many, so that it ends in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Protocol

import attrs
import numpy as np

from topoplan import TopoplanError
from topoplan.arrays import F64
from topoplan.errors import NoPlanFitsError
from topoplan_spmd_planning.columns import Columns, forms_of
from topoplan_spmd_planning.planning import SearchTooLongError, Solution, Stage, TooManyStatesError
from topoplan_spmd_planning.program import Program, R

__all__ = ["HIGHEST", "Limited", "Run", "at_prices", "fastest_within", "measured"]

#: Entries that the exact search may expand.
_PATIENCE = 1 << 21
#: Entries at a cut of the last search, times the squared number of instructions: entries are compared with each other.
_ENTRY_BUDGET = 1 << 32
#: A plan that takes so little longer than the lower bound, as a share of its seconds, is not improved by prices.
_CLOSE = 1e-3
#: Prices to try at most, and the share by which those of a mixture are above and below the one between two plans.
_PRICES, _SPREAD = 24, 0.02
#: Cuts at which the price of a mixture may fall.
_CUTS = 128
#: Seconds of a full memory at the highest price, as a multiple of the seconds of the fastest plan.
HIGHEST = 1e6
#: Relative rounding error of sums.
_SLACK = 1e-9


class Run(Protocol[R]):
    """Runs the kernel on columns; see `topoplan_spmd_planning.planning.solve`."""

    def __call__(
        self, columns: Columns, bound: float, /, *, patience: int | None = None, max_entries: int | None = None
    ) -> Solution[R] | None:
        """Return the fastest plan; None if all take longer than ``bound`` seconds."""


@attrs.frozen
class Limited(Generic[R]):
    """A plan within the limit, and seconds that no plan within the limit beats (0 if they are not known)."""

    solution: Solution[R]
    least: float


@attrs.frozen
class _Plan(Generic[R]):
    """A plan with its seconds and bytes, without any price."""

    solution: Solution[R]
    seconds: float
    nbytes: float


def fastest_within(
    program: Program[R], columns: Columns, fastest: Solution[R], run: Run[R], who: str, bound: float = np.inf
) -> Limited[R] | None:
    """Return a plan within ``columns.limit``, seldom slower than the fastest one; None if all exceed ``bound`` seconds.

    Args:
        program: instructions and values.
        columns: their prices and bytes.
        fastest: the plan that counts no bytes.
        run: runs the kernel.
        who: the beginning of error messages.
        bound: upper limit on the seconds of a useful plan.

    Raises:
        NoPlanFitsError: no plan is within the limit.
        TopoplanError: too many states.
    """
    try:
        exact = run(columns, bound, patience=_PATIENCE)
    except (SearchTooLongError, TooManyStatesError):
        relaxation = _Relaxation(program, columns, run, bound)
        return relaxation.improved(fastest, who)
    return None if exact is None else Limited(exact, exact.outcome.objective)


class _Relaxation(Generic[R]):
    """The best plan within the limit and the lower bound so far."""

    best: _Plan[R]

    def __init__(self, program: Program[R], columns: Columns, run: Run[R], bound: float) -> None:
        self._program, self._columns, self._run, self._bound = program, columns, run, bound
        self._price = 0.0
        self.least = 0.0

    def close(self, share: float) -> bool:
        """Say whether the best plan takes at most so much longer than the lower bound."""
        return self.best.seconds - self.least <= share * self.best.seconds

    def improved(self, fastest: Solution[R], who: str) -> Limited[R] | None:
        """Return the best plan after all steps; see `fastest_within`."""
        if not self.try_prices(fastest, who):
            return None
        self.mix()
        self.count()
        return Limited(attrs.evolve(self.best.solution, exact=self.close(_SLACK)), self.least)

    def try_prices(self, fastest: Solution[R], who: str) -> bool:
        """Find the best plan at one price for all; say whether there may be one within the bound.

        Raises:
            NoPlanFitsError: no plan is within the limit.
        """
        above, limit = self._measured(fastest), self._columns.limit
        price, bound = HIGHEST * above.seconds / limit, self._bound
        fit: _Plan[R] | None = None
        fits: list[_Plan[R]] = []
        for _ in range(_PRICES):
            plan = self._at(np.full(len(self._program.instructions), price), bound + price * limit)
            if plan is None:
                return False
            if plan.solution.exact:
                self.least = max(self.least, plan.seconds + price * (plan.nbytes - limit))
            if self.least > self._bound * (1 + _SLACK):
                return False
            if fit is None and plan.nbytes > limit * (1 + _SLACK):
                raise _no_plan(who, limit, plan.solution.exact)
            if plan.nbytes > limit * (1 + _SLACK):
                ended = self._not_below(plan, price, above)
                above = plan
            else:
                ended = fit is not None and self._not_below(plan, price, fit)
                fit = plan
            assert fit is not None
            fits.append(fit)
            self.best, self._price = min(fits, key=lambda plan: plan.seconds), price
            saved = above.nbytes - fit.nbytes
            if ended or self.close(_CLOSE) or fit.seconds <= above.seconds or saved <= 0:
                break
            price = (fit.seconds - above.seconds) / saved
            bound = min(self._bound, fit.seconds)
        return True

    @staticmethod
    def _not_below(plan: _Plan[R], price: float, reference: _Plan[R]) -> bool:
        """Say whether a plan costs as much as a known one at a price: no other price leads to a plan between."""
        cost = plan.seconds + price * plan.nbytes
        return cost >= (reference.seconds + price * reference.nbytes) * (1 - _SLACK)

    def mix(self) -> None:
        """Improve the best plan with prices that fall once, after as few instructions as possible."""
        count, limit = len(self._program.instructions), self._columns.limit
        too_few, enough = 0, count
        while enough - too_few > max(1, count // _CUTS) and not self.close(_CLOSE):
            cut = (too_few + enough) // 2
            prices = self._price * np.where(np.arange(count) < cut, 1 + _SPREAD, 1 - _SPREAD)
            plan = self._at(prices, np.inf)
            assert plan is not None, "there is no bound"
            if plan.nbytes > limit * (1 + _SLACK):
                too_few = cut
                continue
            enough = cut
            if plan.seconds < self.best.seconds:
                self.best = plan

    def count(self) -> None:
        """Improve the best plan by a search that counts bytes and drops the slowest of too many entries of a cut."""
        if self.close(_SLACK):
            return
        max_entries = max(1, _ENTRY_BUDGET // len(self._program.instructions) ** 2)
        try:
            plan = self._run(self._columns, self.best.seconds, max_entries=max_entries)
        except TopoplanError:  # the entries that continued lead nowhere, or there are too many states
            return
        if plan is None:
            return
        if plan.outcome.objective < self.best.seconds:
            self.best = self._measured(plan)
        if plan.exact:  # then nothing that fits is faster than the best one, which may be an equal one
            self.least = max(self.least, self.best.seconds)

    def _at(self, prices: F64, bound: float) -> _Plan[R] | None:
        """Return the fastest plan at ``prices`` (n,) of a byte in seconds; see `Columns.priced`."""
        solution = self._run(at_prices(self._program, self._columns, prices), bound)
        return None if solution is None else self._measured(solution)

    def _measured(self, solution: Solution[R]) -> _Plan[R]:
        seconds, nbytes = measured(self._program, self._columns, solution.stages)
        outcome = attrs.evolve(solution.outcome, objective=seconds)
        return _Plan(attrs.evolve(solution, outcome=outcome), seconds, nbytes)


def at_prices(program: Program[Any], columns: Columns, prices: F64) -> Columns:
    """Return columns in which a byte that an instruction holds costs (n,) ``prices`` seconds; see `Columns.priced`."""
    users = np.array([value.last for value in program.values])
    return columns._replace(
        signature_bytes=columns.signature_bytes * np.repeat(prices, np.diff(columns.signature_at)),
        gathered_bytes=columns.gathered_bytes * prices[users][:, None, None],
        priced=True,
        limit=np.inf,
    )


def _no_plan(who: str, limit: float, exact: bool) -> NoPlanFitsError:
    remark = "" if exact else " (among the expanded states: a wider beam may find one)"
    return NoPlanFitsError(
        f"{who}: no plan leads to its loss in partial sums within {limit / 1e9:.1f} GB of each device{remark}"
    )


def measured(program: Program[Any], columns: Columns, stages: Sequence[Stage[Any]]) -> tuple[float, float]:
    """Return the seconds of a plan in the recursion that overlaps both passes, and its bytes."""
    codes = [{form: 1 + code for code, form in enumerate(forms)} for forms in forms_of(program)]
    time = debt = due = nbytes = 0.0
    for stage in stages:
        compute = back = forward = backward = second_forward = second_backward = 0.0
        for value, source, target in stage.conversions:
            place = value, codes[value][source], codes[value][target]
            forward += columns.forward[place]
            backward += columns.backward[place]
            second_forward += columns.second_forward[place]
            second_backward += columns.second_backward[place]
            nbytes += columns.gathered_bytes[place]
        for position, rule in stage.computations:
            number = next(
                k for k, signature in enumerate(program.instructions[position].signatures) if signature is rule
            )
            row = columns.signature_at[position] + number
            compute += columns.seconds[row]
            back += columns.back[row]
            backward += columns.sums[row]
            nbytes += columns.signature_bytes[row]
        time += max(debt, forward) + max(compute, second_forward) + max(due, backward) + max(back, second_backward)
        debt, due = compute, back
    return float(time + debt + due), float(nbytes)
