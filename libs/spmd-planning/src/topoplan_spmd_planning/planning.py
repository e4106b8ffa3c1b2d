"""Planning: runs the kernel on a program and its prices, then reconstructs the plan from the kernel's choices.

For every stage the kernel stores only the numbers of its signatures.  They determine the plan: if an input does not
have the form that its signature needs, the stage has converted it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Generic

import attrs
import numpy as np

from topoplan import TopoplanError
from topoplan.errors import NoPlanFitsError
from topoplan.model.sharding import Signature
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.fitting import size_text
from topoplan_spmd_planning.columns import LONGEST, PATH_BITS, Columns, columns_of
from topoplan_spmd_planning.counting import most_states
from topoplan_spmd_planning.kernel import DONE, OVER_BEAM, PAUSED, expand, refill, stack_for
from topoplan_spmd_planning.prices import Prices
from topoplan_spmd_planning.program import Program, R
from topoplan_spmd_planning.repeats import empty_repeats, enlarge, forget_stages
from topoplan_spmd_planning.tables import (
    CUT,
    EACH,
    FORGOTTEN,
    GONE_ON,
    STATES,
    Tables,
    empty_tables,
    forget,
    grow,
    thin,
)

__all__ = ["HidupPlan", "Outcome", "SearchTooLongError", "Solution", "Stage", "TooManyStatesError", "plan", "solve"]

#: Entries that are expanded between two checks for Ctrl-C.
_AT_A_TIME = 1 << 12
#: No limit on the states at a cut.
_ALL = 1 << 50
#: Initial capacity of the tables in states.  Pages that are never written take no memory.
_ROOM = 1 << 17
#: States that a search with a beam expands before the beam becomes narrower, and how narrow at least.
_PATIENCE, _NARROWEST = 1 << 18, 100
#: States at earlier cuts are removed if there are so many: later ones may repeat their stages.
_MANY = 1 << 20


class TooManyStatesError(TopoplanError):
    """A model has more states than the limit."""


class SearchTooLongError(TopoplanError):
    """A search has expanded more entries than its patience."""


@attrs.frozen
class Outcome:
    """The result of a search.

    Attributes:
        objective: HiDup's objective of the best plan, in seconds; it ranks plans and predicts no time.
        states, entries: number of expanded states, and of their entries that were not dominated.
    """

    objective: float
    states: int
    entries: int


@attrs.frozen
class Stage(Generic[R]):
    """Conversions, then computations.

    Attributes:
        conversions: (value, old form, new form).
        computations: (instruction, signature).
    """

    conversions: tuple[tuple[int, Any, Any], ...]
    computations: tuple[tuple[int, R], ...]


@attrs.frozen
class Solution(Generic[R]):
    """The best plan of a program: the outcome, the stages, and whether it is certainly the best (no beam was used)."""

    outcome: Outcome
    stages: tuple[Stage[R], ...]
    exact: bool = True


@attrs.frozen
class HidupPlan:
    """HiDup's plan.

    Attributes:
        outcome: the objective, and the size of the search.
        stages: in order.
        compute, forward, backward: seconds of all instructions forward, and of all conversions either way.
    """

    outcome: Outcome
    stages: tuple[Stage[Signature], ...]
    compute: float
    forward: float
    backward: float


def plan(program: Program[Signature], prices: Prices, *, max_states: int, model: str) -> HidupPlan:
    """Search a program.

    Args:
        program: instructions and values.
        prices: of both.
        max_states: most states to keep at a time.
        model: for messages.

    Raises:
        TopoplanError: too many states, or no plan at all.
    """
    subject = f"searcher hidup: model {model!r}"
    columns = columns_of(program, prices, subject)
    largest = most_states(program, columns)
    if largest.states > max_states:
        raise _too_many(subject, max_states, largest.name, f": at least {largest.states:.10g}")
    solution = solve(program, columns, max_states=max_states, who=subject)
    assert solution is not None, "there is no bound"
    prices_of_conversions = (
        prices.conversion(program.values[v].nbytes, a, b) for stage in solution.stages for v, a, b in stage.conversions
    )
    exchange_prices = [price for price in prices_of_conversions if price is not None]
    return HidupPlan(
        outcome=solution.outcome,
        stages=solution.stages,
        compute=sum(
            prices.compute(program.instructions[i], s) for stage in solution.stages for i, s in stage.computations
        ),
        forward=sum(forward_seconds for forward_seconds, _ in exchange_prices),
        backward=sum(backward_seconds for _, backward_seconds in exchange_prices),
    )


def solve(
    program: Program[R],
    columns: Columns,
    *,
    max_states: int,
    who: str,
    beam: int | None = None,
    patience: int | None = None,
    max_entries: int | None = None,
) -> Solution[R] | None:
    """Run the kernel on a program and follow its choices; None if no plan is within the bound of seconds.

    Error messages begin with ``who``.  If a cut has more states than ``beam``, only the fastest are expanded, a quarter
    of ``beam``.  Then the plan need not be the best one.  A search that has expanded very many states continues with a
    sixteenth of ``beam``, so that many tensors that live at once cost seconds and not minutes.  If a cut has more than
    ``max_entries`` entries, by default `EACH` for each of ``beam`` states, about a quarter of so many continue.

    Raises:
        TopoplanError: too many states, or no plan at all.
        SearchTooLongError: with ``patience``: more than about so many entries, or a beam would be necessary.
    """
    tables = empty_tables(columns, min(_ROOM, max_states), 2 * _ROOM)
    stack, repeats = stack_for(columns), empty_repeats(columns, len(tables.cut))
    most, exact = _ALL if beam is None else beam, True
    narrow = min(most, max(_NARROWEST, most // 16))
    while (status := expand(columns, tables, stack, repeats, _AT_A_TIME, most, max_entries or EACH * most)) != DONE:
        if patience is not None and (status == OVER_BEAM or tables.counts[GONE_ON] > patience):
            raise SearchTooLongError(f"{who}: more than {patience} entries")
        stop_if_wanted()
        if status == PAUSED:
            continue
        if status == OVER_BEAM:
            if tables.counts[STATES] + tables.counts[FORGOTTEN] > _PATIENCE:
                most = min(most, narrow)
            thin(tables, max(1, most // 4), (max_entries or _ALL) // 4)
            exact = False
            continue
        if tables.counts[STATES] >= min(_MANY, max_states):
            forget(tables)
            forget_stages(repeats)
        if tables.counts[STATES] >= max_states:
            instruction = program.instructions[int(tables.counts[CUT])].name
            raise _too_many(who, max_states, instruction)
        tables = grow(tables, max_states)
        repeats = enlarge(repeats, len(tables.cut))
        refill(columns, tables)
    end = int(tables.first[-1])
    if end < 0 and columns.bound < np.inf:
        return None
    if end < 0:
        within = "" if columns.limit == np.inf else f" within {size_text(columns.limit)} of each device"
        remark = "" if exact else f" (among the expanded states: a beam of {beam} may be too narrow)"
        kind = TopoplanError if columns.limit == np.inf else NoPlanFitsError
        raise kind(f"{who}: no plan leads to its loss in partial sums{within}{remark}")
    best = _best(tables, end)
    states = int(tables.counts[STATES] + tables.counts[FORGOTTEN]) - 1
    outcome = Outcome(objective=_total(tables, best), states=states, entries=int(tables.counts[GONE_ON]))
    return Solution(outcome, _follow(program, _choices(tables, best)), exact)


def _too_many(subject: str, max_states: int, name: str, at_least: str = "") -> TooManyStatesError:
    return TooManyStatesError(
        f"{subject}: more than {max_states} states at {name!r}{at_least} (their number is exponential in the tensors "
        f"that live at once: raise the searcher's option max-states, or use mcmc)"
    )


def _total(tables: Tables, entry: int) -> float:
    return float(tables.time[entry] + tables.debt[entry] + tables.due[entry])


def _best(tables: Tables, state: int) -> int:
    """Return the entry with the least sum of time and debts; of equal ones the first one of the frontier."""
    best = entry = int(tables.head[state])
    while entry >= 0:
        if _total(tables, entry) < _total(tables, best):
            best = entry
        entry = int(tables.following[entry])
    return best


def _choices(tables: Tables, entry: int) -> list[list[int]]:
    """Return for each stage the numbers of the signatures of its instructions, on the path to ``entry``."""
    stages = []
    while tables.before[entry] >= 0:
        path = int(tables.path[entry])
        length = path >> (LONGEST * PATH_BITS)
        stages.append([path >> (k * PATH_BITS) & ((1 << PATH_BITS) - 1) for k in range(length)])
        entry = int(tables.before[entry])
    return stages[::-1]


def _follow(program: Program[R], choices: Sequence[Sequence[int]]) -> tuple[Stage[R], ...]:
    """Return the stages that follow from the choices."""
    stages, position = [], 0
    forms: dict[int, tuple[Hashable, ...]] = {}
    for numbers in choices:
        conversions, computations = [], []
        for number in numbers:
            instruction = program.instructions[position]
            signature = instruction.signatures[number]
            for value, target in zip(instruction.inputs, signature.inputs, strict=True):
                if target not in forms[value]:
                    conversions.append((value, forms[value][0], target))
                    forms[value] += (target,)
            forms |= {v: (form,) for v, form in zip(instruction.outputs, signature.outputs, strict=True)}
            computations.append((position, signature))
            position += 1
        stages.append(Stage(tuple(conversions), tuple(computations)))
    return tuple(stages)
