"""The best plan on one mesh, within the memory of the devices.

At first the search minimizes time alone.  If the plan does not fit, gradients and optimizer state are sharded among
devices with equal parameters.  If that does not suffice, `topoplan_searcher_spmd.limits` plans within their memory.

In the recursion both streams wait for each other between stages.  In the task graph a task waits only for its
predecessors, so that the computation of several stages can hide communication.  A plan that counts computation for less
(`AHEAD`) sends less data and is sometimes faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
import numpy as np

from topoplan import Problem, SpmdStrategy
from topoplan.errors import NoPlanFitsError
from topoplan_engine.fitting import least_memory
from topoplan_engine.lowering import Lowering
from topoplan_searcher_spmd.bounds import with_bound
from topoplan_searcher_spmd.limits import Run, fastest_within
from topoplan_searcher_spmd.machine import Machine
from topoplan_searcher_spmd.prices import Prices, least_bytes, least_exchange, priced
from topoplan_searcher_spmd.space import Joint, Mesh, MeshProgram, Outline, mesh_program
from topoplan_spmd_planning.columns import Columns
from topoplan_spmd_planning.planning import Solution, solve
from topoplan_spmd_planning.program import Verb
from topoplan_spmd_planning.strategy import program_of, strategy_with
from topoplan_spmd_planning.tables import EACH

__all__ = ["AHEAD", "MeshPlan", "Overfull", "PlanTooLargeError", "fastest_on", "fitted", "tight"]

#: Weight of a second of computation in plans whose communication runs ahead.
AHEAD = 0.25

#: Relative rounding error of a bound: bytes are summed in another order than for a plan.
_SLACK = 1e-9


@attrs.frozen
class MeshPlan:
    """A plan on one mesh.

    Attributes:
        model: its program.
        solution: what the search found.
        strategy: the plan.
        memory: bytes of the fullest device.
        beyond: those of them that no sum over operators has: gradients of activations, which come and go.
        least: estimated seconds that no plan on the mesh within the memory beats; 0 if they are not known.
    """

    model: MeshProgram
    solution: Solution[Joint]
    strategy: SpmdStrategy
    memory: float
    beyond: float
    least: float

    @property
    def seconds(self) -> float:
        """Estimated seconds of an iteration, with the weight of computation."""
        return self.solution.outcome.objective


@attrs.frozen
class Overfull:
    """The fastest plan on a mesh where it does not fit; `fitted` finds the fastest one that does.

    Attributes:
        nearest: this plan.
        subject: the beginning of error messages.
        plan_of: converts a solution into a plan, with the state of parameters as small as allowed.
        limit: memory of the devices.
        columns: returns the columns of the mesh with bytes, and with a limit for their sum.
        run: runs the kernel.
    """

    nearest: MeshPlan
    subject: str
    plan_of: Callable[[Solution[Joint]], MeshPlan | None]
    limit: float
    columns: Callable[[float], Columns]
    run: Run[Joint]


class PlanTooLargeError(NoPlanFitsError):
    """No plan on a mesh fits.

    Attributes:
        needed: bytes of the fullest device of ``nearest``, or a lower bound on them.
        nearest: the plan that minimizes time alone; None if bounds prove that no plan fits.
    """

    def __init__(self, message: str, needed: float, nearest: MeshPlan | None = None) -> None:
        super().__init__(message)
        self.needed, self.nearest = needed, nearest


def fastest_on(
    problem: Problem,
    outline: Outline,
    mesh: Mesh,
    machine: Machine,
    lowering: Lowering,
    *,
    state: str,
    whole_batch: bool = False,
    beam: int,
    max_states: int,
    weight: float = 1.0,
    bound: float = np.inf,
) -> MeshPlan | Overfull | None:
    """Return the fastest plan on a mesh; ``weight`` multiplies the seconds of computation.

    With ``whole_batch`` operators are priced for the whole batch, because micro-batches are not wanted.

    None if every plan takes longer than ``bound`` seconds, or if slices are uneven.

    Raises:
        TopoplanError: too many states, or an operator that has no signature on the mesh.
        PlanTooLargeError: no plan fits the devices.
    """
    model = mesh_program(problem, outline, mesh)
    limit = float(problem.cluster.usable_memory.min())
    subject = f"searcher spmd: model {problem.graph.name!r}"
    states = _states(problem, state)
    prices = Prices(problem, model, machine, states[-1], whole_batch=whole_batch)
    is_tight = outline.known.fact("tight", partial(tight, problem))
    if is_tight and (min_bytes := least_bytes(prices, model, problem.graph)) * (1 - _SLACK) > limit:
        raise PlanTooLargeError(f"{subject}: no plan fits", min_bytes)
    if np.isfinite(bound) and least_exchange(prices, model) * (1 - _SLACK) > bound * (1 + _SLACK):
        return None

    def run(
        columns: Columns, bound: float, *, patience: int | None = None, crowd: int | None = None
    ) -> Solution[Joint] | None:
        return solve(
            model.program,
            with_bound(columns, model, bound),
            max_states=max_states,
            who=subject,
            beam=beam,
            patience=patience,
            crowd=None if crowd is None else min(crowd, EACH * beam),
        )

    if (fastest := run(_columns(prices, model, subject, weight, np.inf), bound)) is None:
        return None
    for sharded in states:
        plan = _mesh_plan(problem, model, fastest, sharded, lowering)
        if plan is None or plan.memory <= limit:
            return plan
    assert plan is not None, "there is a state"
    return Overfull(
        nearest=plan,
        subject=subject,
        plan_of=lambda solution: _mesh_plan(problem, model, solution, states[-1], lowering),
        limit=limit,
        columns=partial(_columns, prices, model, subject, weight),
        run=run,
    )


def _states(problem: Problem, state: str) -> tuple[bool, ...]:
    """Return whether gradients and optimizer state may be in slices where parameters are whole, in order of trial."""
    if problem.restriction is not None and not problem.restriction.shards_state:
        return (False,)
    return {"auto": (False, True), "whole": (False,), "sharded": (True,)}[state]


def fitted(result: MeshPlan | Overfull | None, bound: float = np.inf) -> MeshPlan | None:
    """Return the fastest plan that fits, or nearly; ``result`` itself unless its plan does not fit.

    None if all plans that fit take longer than ``bound`` seconds.

    Raises:
        TopoplanError: too many states.
        PlanTooLargeError: no plan fits.
    """
    if not isinstance(result, Overfull):
        return result
    nearest = result.nearest
    if nearest.seconds > bound * (1 + _SLACK):
        return None
    refused = f"{result.subject}: no plan fits"
    for beyond in dict.fromkeys((nearest.beyond, 0.0)):  # a plan that fits may have less beyond sums than the fastest
        try:
            plan = _within(result, result.limit - beyond, bound)
            if plan is not None and plan.memory > result.limit:  # or more
                plan = _within(result, result.limit - beyond - (plan.memory - result.limit), bound)
        except NoPlanFitsError as error:
            refused = str(error)
            continue
        if plan is None or plan.memory <= result.limit:
            return plan
    raise PlanTooLargeError(refused, nearest.memory, nearest)


def _within(result: Overfull, limit: float, bound: float) -> MeshPlan | None:
    """Return the fastest plan whose bytes add up to at most ``limit``, or nearly; see `fitted`.

    Raises:
        NoPlanFitsError: no plan does.
        TopoplanError: too many states.
    """
    if limit <= 0:
        raise NoPlanFitsError(f"{result.subject}: no plan fits")
    program, columns = result.nearest.model.program, result.columns(limit)
    limited = fastest_within(program, columns, result.nearest.solution, result.run, result.subject, bound)
    plan = None if limited is None else result.plan_of(limited.solution)
    return None if plan is None or limited is None else attrs.evolve(plan, least=limited.least)


def _columns(prices: Prices, model: MeshProgram, subject: str, weight: float, limit: float) -> Columns:
    """Return the columns of a mesh, with a ``weight`` of the seconds of computation."""
    columns = priced(prices, model, limit, subject)
    return columns._replace(seconds=columns.seconds * weight, back=columns.back * weight)


def _mesh_plan(
    problem: Problem, model: MeshProgram, solution: Solution[Joint], sharded: bool, lowering: Lowering
) -> MeshPlan | None:
    """Return the plan of a solution; None if slices are uneven."""
    strategy = _strategy(problem, model, solution, sharded)
    if strategy is None:
        return None
    memory = float(lowering.memory(strategy).max())
    beyond = memory - float(lowering.resting_memory(strategy).max())
    least = solution.outcome.objective if solution.exact else 0.0
    return MeshPlan(model, solution, strategy, memory, beyond, least)


def tight(problem: Problem) -> bool:
    """Say whether a plan may not fit, because the devices cannot hold the model with its weights on every device."""
    minimum, cluster = least_memory(problem.graph, problem.costs), problem.cluster
    most = minimum.states + minimum.activations + minimum.weights * cluster.n_devices
    return most > float(cluster.usable_memory.min()) * cluster.n_devices


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
