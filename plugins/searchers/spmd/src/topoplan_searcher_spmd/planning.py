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

from topoplan import Problem, SpmdStrategy
from topoplan.errors import NoPlanFitsError
from topoplan_engine.fitting import least_memory
from topoplan_engine.lowering import Lowering
from topoplan_searcher_spmd.bounds import bounded
from topoplan_searcher_spmd.machine import Machine
from topoplan_searcher_spmd.prices import Prices, least_bytes, priced
from topoplan_searcher_spmd.space import Joint, Mesh, Outline, Written, written
from topoplan_spmd_planning.planning import Solution, solve
from topoplan_spmd_planning.program import Verb
from topoplan_spmd_planning.strategy import program_of, strategy_with

__all__ = ["AHEAD", "PlanTooLargeError", "Planned", "plan_on"]

#: What a second of computation counts for in plans whose communication runs ahead.
AHEAD = 0.25

#: What a bound may be off by: bytes are summed in another order than for a plan.
_SLACK = 1e-9


@attrs.frozen
class Planned:
    """A plan on one mesh: what was found, the strategy, estimated seconds, and bytes of the fullest device."""

    written: Written
    solution: Solution[Joint]
    strategy: SpmdStrategy
    memory: float

    @property
    def seconds(self) -> float:
        """Seconds of an iteration, as the recursion estimates them (with computation as it was counted)."""
        return self.solution.outcome.objective


class PlanTooLargeError(NoPlanFitsError):
    """No plan on a mesh fits.

    Attributes:
        needed: bytes that a device needs: at least, or those of ``nearest``.
        nearest: the plan that does not count bytes; None where bounds alone say that no plan fits.
    """

    def __init__(self, message: str, needed: float, nearest: Planned | None = None) -> None:
        super().__init__(message)
        self.needed, self.nearest = needed, nearest


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
        TopoplanError: too many states.
        PlanTooLargeError: no plan fits the devices.
    """
    model = written(problem, outline, mesh)
    limit = float(problem.cluster.device_memory.min())
    who = f"searcher spmd: model {problem.graph.name!r}"
    states = {"auto": (False, True), "whole": (False,), "sharded": (True,)}[state]
    prices = Prices(problem, model, machine, states[-1])
    if tight(problem) and (needed := least_bytes(prices, model, problem.graph)) * (1 - _SLACK) > limit:
        raise PlanTooLargeError(f"{who}: no plan fits", needed)
    planned = None
    for room in (np.inf, limit):
        columns = priced(prices, model, room, who)
        columns = columns._replace(seconds=columns.seconds * weight, back=columns.back * weight)
        try:
            solution = solve(model.program, bounded(columns, model, bound), max_states=max_states, who=who, beam=beam)
        except NoPlanFitsError as error:
            if planned is None:
                raise
            raise PlanTooLargeError(str(error), planned.memory, planned) from None
        if solution is None:
            return None
        for sharded in states if room == np.inf else states[-1:]:
            strategy = _strategy(problem, model, solution, sharded)
            if strategy is None:
                return None
            planned = Planned(model, solution, strategy, float(lowering.memory(strategy).max()))
            if planned.memory <= limit:
                return planned
    return planned


def tight(problem: Problem) -> bool:
    """Say whether devices cannot hold all that a model has, weights on every device: then plans may not fit."""
    minimum, cluster = least_memory(problem.graph, problem.costs), problem.cluster
    most = minimum.states + minimum.activations + minimum.weights * cluster.n_devices
    return most > float(cluster.device_memory.min()) * cluster.n_devices


def _strategy(problem: Problem, model: Written, solution: Solution[Joint], sharded: bool) -> SpmdStrategy | None:
    rules, stored = {}, {}
    for stage in solution.stages:
        for index, rule in stage.computations:
            instruction = model.program.instructions[index]
            if instruction.op >= 0:
                rules[instruction.op] = rule.rules
            else:
                for value, forms in zip(instruction.outputs, rule.outputs, strict=True):
                    stored[value] = model.stored(forms) if instruction.verb is Verb.READ else forms
    program = program_of(model.program, model.mesh.sizes, rules, stored, sharded)
    return strategy_with(program, solution.stages, model.program, problem)
