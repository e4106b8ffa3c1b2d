"""The best plan on one mesh, within the memory of the devices.

At first the search minimizes time alone.  If the plan does not fit, gradients and optimizer state are sharded among
devices with equal parameters.  If that does not suffice, bytes become a further criterion: the search keeps all entries
of a state that are not dominated in time, debts and bytes together.

In the recursion both streams wait for each other between stages.  In the task graph a task waits only for its
predecessors, so that the computation of several stages can hide communication.  A plan that counts computation for less
(`AHEAD`) sends less data and is sometimes faster.
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan import Problem, SpmdStrategy
from topoplan.errors import NoPlanFitsError
from topoplan_engine.fitting import least_memory
from topoplan_engine.lowering import Lowering
from topoplan_searcher_spmd.bounds import with_bound
from topoplan_searcher_spmd.machine import Machine
from topoplan_searcher_spmd.prices import Prices, least_bytes, least_exchange, priced
from topoplan_searcher_spmd.space import Joint, Mesh, MeshProgram, Outline, mesh_program
from topoplan_spmd_planning.planning import Solution, solve
from topoplan_spmd_planning.program import Verb
from topoplan_spmd_planning.strategy import program_of, strategy_with

__all__ = ["AHEAD", "MeshPlan", "PlanTooLargeError", "plan_on"]

#: Weight of a second of computation in plans whose communication runs ahead.
AHEAD = 0.25

#: Relative rounding error of a bound: bytes are summed in another order than for a plan.
_SLACK = 1e-9


@attrs.frozen
class MeshPlan:
    """A plan on one mesh: its program, the solution, the strategy, and the bytes of the fullest device."""

    model: MeshProgram
    solution: Solution[Joint]
    strategy: SpmdStrategy
    memory: float

    @property
    def seconds(self) -> float:
        """Estimated seconds of an iteration, with the weight of computation."""
        return self.solution.outcome.objective


class PlanTooLargeError(NoPlanFitsError):
    """No plan on a mesh fits.

    Attributes:
        needed: bytes of the fullest device of ``nearest``, or a lower bound on them.
        nearest: the plan that minimizes time alone; None if bounds prove that no plan fits.
    """

    def __init__(self, message: str, needed: float, nearest: MeshPlan | None = None) -> None:
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
) -> MeshPlan | None:
    """Plan on a mesh; ``weight`` multiplies the seconds of computation.

    None if every plan takes longer than ``bound`` seconds, or if slices are uneven.

    Raises:
        TopoplanError: too many states, or an operator that has no signature on the mesh.
        PlanTooLargeError: no plan fits the devices.
    """
    model = mesh_program(problem, outline, mesh)
    limit = float(problem.cluster.device_memory.min())
    subject = f"searcher spmd: model {problem.graph.name!r}"
    states = {"auto": (False, True), "whole": (False,), "sharded": (True,)}[state]
    prices = Prices(problem, model, machine, states[-1])
    if tight(problem) and (min_bytes := least_bytes(prices, model, problem.graph)) * (1 - _SLACK) > limit:
        raise PlanTooLargeError(f"{subject}: no plan fits", min_bytes)
    if np.isfinite(bound) and least_exchange(prices, model) * (1 - _SLACK) > bound * (1 + _SLACK):
        return None
    best = None
    for room in (np.inf, limit):
        columns = priced(prices, model, room, subject)
        columns = columns._replace(seconds=columns.seconds * weight, back=columns.back * weight)
        try:
            solution = solve(
                model.program, with_bound(columns, model, bound), max_states=max_states, who=subject, beam=beam
            )
        except NoPlanFitsError as error:
            if best is None:
                raise
            raise PlanTooLargeError(str(error), best.memory, best) from None
        if solution is None:
            return None
        for sharded in states if room == np.inf else states[-1:]:
            strategy = _strategy(problem, model, solution, sharded)
            if strategy is None:
                return None
            best = MeshPlan(model, solution, strategy, float(lowering.memory(strategy).max()))
            if best.memory <= limit:
                return best
    return best


def tight(problem: Problem) -> bool:
    """Say whether a plan may not fit, because the devices cannot hold the model with its weights on every device."""
    minimum, cluster = least_memory(problem.graph, problem.costs), problem.cluster
    most = minimum.states + minimum.activations + minimum.weights * cluster.n_devices
    return most > float(cluster.device_memory.min()) * cluster.n_devices


def _strategy(problem: Problem, model: MeshProgram, solution: Solution[Joint], sharded: bool) -> SpmdStrategy | None:
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
