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
import numpy as np

from topoplan import Problem, Strategy
from topoplan.lowering import Lowering
from topoplan_searcher_hidup.planning import Solution, solve
from topoplan_searcher_hidup.program import Verb
from topoplan_searcher_hidup.strategy import program_of, strategy_with
from topoplan_searcher_spmd.bounds import bounded
from topoplan_searcher_spmd.machine import Machine
from topoplan_searcher_spmd.prices import Prices, priced
from topoplan_searcher_spmd.space import Joint, Mesh, Outline, Written, written

__all__ = ["AHEAD", "Planned", "plan_on"]

#: What a second of computation counts for in plans whose communication runs ahead.
AHEAD = 0.25


@attrs.frozen
class Planned:
    """A plan on one mesh: what was found, the strategy, seconds as reckoned, and bytes of the fullest device."""

    written: Written
    solution: Solution[Joint]
    strategy: Strategy
    memory: float

    @property
    def seconds(self) -> float:
        """Seconds of an iteration, as the recursion reckons them (with computation as it was counted)."""
        return self.solution.outcome.objective


def plan_on(
    problem: Problem,
    outline: Outline,
    mesh: Mesh,
    machine: Machine,
    lowering: Lowering,
    *,
    state: str,
    beam: int,
    max_states: int,
    weight: float = 1.0,
    bound: float = np.inf,
) -> Planned | None:
    """Plan on a mesh, a second of computation counted as ``weight``.

    None where every plan takes longer than ``bound`` seconds, or where slices are not even after all.

    Raises:
        TopoplanError: too many states, or no plan that fits the devices.
    """
    model = written(problem, outline, mesh)
    limit = float(problem.cluster.device_memory.min())
    who = f"searcher spmd: model {problem.graph.name!r}"
    states = {"auto": (False, True), "whole": (False,), "sharded": (True,)}[state]
    found = None
    for room in (np.inf, limit):
        columns = priced(Prices(problem, model, machine, states[-1]), model, room, who)
        columns = columns._replace(seconds=columns.seconds * weight, back=columns.back * weight)
        solution = solve(model.program, bounded(columns, model, bound), max_states=max_states, who=who, beam=beam)
        if solution is None:
            return None
        for sharded in states if room == np.inf else states[-1:]:
            strategy = _strategy(problem, model, solution, sharded)
            if strategy is None:
                return None
            found = Planned(model, solution, strategy, float(lowering.memory(strategy).max()))
            if found.memory <= limit:
                return found
    return found


def _strategy(problem: Problem, model: Written, solution: Solution[Joint], sharded: bool) -> Strategy | None:
    rules, stored = {}, {}
    for stage in solution.stages:
        for at, rule in stage.computations:
            instruction = model.program.instructions[at]
            if instruction.op >= 0:
                rules[instruction.op] = rule.rules
            else:
                for value, forms in zip(instruction.outputs, rule.outputs, strict=True):
                    stored[value] = model.stored(forms) if instruction.verb is Verb.READ else forms
    program = program_of(model.program, model.mesh.sizes, rules, stored, sharded)
    return strategy_with(program, solution.stages, model.program, problem)
