"""The best plan on one mesh, within the memory of the devices.

Nothing but time counts at first.  If the plan does not fit, gradients and optimizer state are shared among devices
with equal parameters; if that does not help, bytes become a third thing to weigh, and the search keeps of each state
every way that is not beaten in time, debts and bytes at once.

The recursion lets both streams wait for each other between stages; in the task graph only what needs something waits
for it, so that more than the computation of one stage hides communication.  A plan that counts computation for less
(`AHEAD`) sends less, and is sometimes the better one.
"""

from __future__ import annotations

import attrs

from topoplan import Problem, Strategy
from topoplan.lowering import Lowering
from topoplan_searcher_hidup.planning import Solution, solve
from topoplan_searcher_hidup.strategy import program_of, strategy_with
from topoplan_searcher_spmd.machine import Machine
from topoplan_searcher_spmd.prices import Prices, priced
from topoplan_searcher_spmd.space import Written, written

__all__ = ["AHEAD", "Planned", "plan_on"]

#: What a second of computation counts for in plans whose communication runs ahead.
AHEAD = 0.25


@attrs.frozen
class Planned:
    """A plan on one mesh: what was found, the strategy, seconds as reckoned, and bytes of the fullest device."""

    written: Written
    solution: Solution
    strategy: Strategy
    memory: float

    @property
    def seconds(self) -> float:
        """Seconds of an iteration, as the recursion reckons them (with computation as it was counted)."""
        return self.solution.outcome.objective


def plan_on(
    problem: Problem,
    mesh: tuple[int, ...],
    machine: Machine,
    lowering: Lowering,
    *,
    state: str,
    max_states: int,
    weight: float = 1.0,
) -> Planned | None:
    """Plan on a mesh, a second of computation counted as ``weight``; None where slices are not even after all.

    Raises:
        TopoplanError: too many states, or no plan that fits the devices.
    """
    model = written(problem, mesh)
    limit = float(problem.cluster.device_memory.min())
    tries = [(sharded, bound) for bound in (float("inf"), limit) for sharded in (False, True)]
    if state != "auto":
        tries = [(state == "sharded", float("inf")), (state == "sharded", limit)]
    found = None
    for sharded, bound in tries:
        if bound == limit and sharded != tries[-1][0]:
            continue
        columns = priced(Prices(problem, model, machine, sharded), model, bound)
        columns = columns._replace(seconds=columns.seconds * weight, back=columns.back * weight)
        who = f"searcher spmd: model {problem.graph.name!r}"
        solution = solve(model.program, columns, max_states=max_states, who=who)
        strategy = _strategy(problem, model, solution, sharded)
        if strategy is None:
            return None
        found = Planned(model, solution, strategy, float(lowering.memory(strategy).max()))
        if found.memory <= limit:
            break
    return found


def _strategy(problem: Problem, model: Written, solution: Solution, sharded: bool) -> Strategy | None:
    rules, stored = {}, {}
    for stage in solution.stages:
        for at, rule in stage.computations:
            instruction = model.program.instructions[at]
            if instruction.op >= 0:
                rules[instruction.op] = model.rules(instruction.op, rule)
            else:
                for value, form in zip(instruction.outputs, rule.outputs, strict=True):
                    stored[value] = model.axes(model.forms[value], form)
    forms = program_of(model.program, model.mesh, rules, stored, sharded)
    return strategy_with(forms, solution.stages, model.program, problem)
