"""The best plan on one mesh, within the memory of the devices.

At first the search minimizes time alone.  If the plan does not fit, gradients and optimizer state are sharded among
devices with equal parameters.  If that does not suffice, `topoplan_spmd_planning.limits` plans within their memory.

In the recursion both streams wait for each other between stages.  In the task graph a task waits only for its
predecessors, so that the computation of several stages can hide communication.  A plan that counts computation for less
(`AHEAD`) sends less data and is sometimes faster.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import attrs
import numpy as np

from topoplan import Problem, StagedStrategy, TopoplanError
from topoplan.errors import NoPlanFitsError
from topoplan_engine.fitting import least_memory
from topoplan_engine.lowering import Lowering
from topoplan_engine.lowering.gather_units import gathers
from topoplan_engine.program_strategies import program_of as forms_of
from topoplan_engine.program_strategies import program_strategy, with_program
from topoplan_spmd_planning.bounds import with_bound
from topoplan_spmd_planning.columns import Columns
from topoplan_spmd_planning.limits import HIGHEST, at_prices, fastest_within, measured
from topoplan_spmd_planning.machine import Machine
from topoplan_spmd_planning.mesh_prices import Prices, least_bytes, least_exchange, priced
from topoplan_spmd_planning.planning import Solution, TooManyStatesError, solve
from topoplan_spmd_planning.program import Verb
from topoplan_spmd_planning.space import Joint, Mesh, MeshProgram, Outline, mesh_program
from topoplan_spmd_planning.strategy import program_of, strategy_with
from topoplan_spmd_planning.tables import EACH
from topoplan_spmd_planning.uniform import Repeats, by_boundary, repeats_of, variants

__all__ = ["AHEAD", "MeshPlan", "OverMemory", "PlanTooLargeError", "fastest_on", "fitted", "tight"]

#: Weight of a second of computation in plans whose communication runs ahead.
AHEAD = 0.25

#: Prices of a byte at which plans with equal layers are looked for, at most.
_PRICES = 12
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
        beyond: those of them that no sum over operators has: what comes and goes (gradients of activations,
            gathered parameters).
        least: estimated seconds that no plan on the mesh within the memory beats; 0 if they are not known.
    """

    model: MeshProgram
    solution: Solution[Joint]
    strategy: StagedStrategy
    memory: float
    beyond: float
    least: float

    @property
    def seconds(self) -> float:
        """Estimated seconds of an iteration, with the weight of computation."""
        return self.solution.outcome.objective


@attrs.frozen
class OverMemory:
    """The fastest plan on a mesh where it does not fit; `fitted` finds the fastest one that does.

    Attributes:
        nearest: this plan.
        within: returns the fastest plan within the memory, None if it takes longer than so many seconds; raises
            `NoPlanFitsError` if there is none.
    """

    nearest: MeshPlan
    within: Callable[[float], MeshPlan | None]


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
    equal_layers: bool = False,
    gathers_again: bool = False,
    beam: int,
    max_states: int,
    weight: float = 1.0,
    bound: float = np.inf,
) -> MeshPlan | OverMemory | None:
    """Return the fastest plan on a mesh; ``weight`` multiplies the seconds of computation.

    With ``whole_batch`` operators are priced for the whole batch, because micro-batches are not wanted.  With
    ``equal_layers`` the operators of equal layers have one signature and one storage.  With ``gathers_again``
    parameters that are gathered from slices are given back (`SpmdProgram.gathers_again`).

    None if every plan takes longer than ``bound`` seconds, or if slices are uneven.

    Raises:
        TopoplanError: too many states, or an operator that has no signature on the mesh.
        PlanTooLargeError: no plan fits the devices.
    """
    model = mesh_program(problem, outline, mesh)
    states = _states(problem, state)
    planner = _Planner(
        problem=problem,
        machine=machine,
        lowering=lowering,
        repeats=outline.known.fact("repeats", partial(repeats_of, outline, problem.graph)) if equal_layers else None,
        sharded=states[-1],
        whole_batch=whole_batch,
        gathers_again=gathers_again,
        beam=beam,
        max_states=max_states,
        weight=weight,
    )
    prices = planner.prices(model)
    is_tight = outline.known.fact("tight", partial(tight, problem))
    if is_tight and (min_bytes := least_bytes(prices, model, problem.graph)) * (1 - _SLACK) > planner.limit:
        raise PlanTooLargeError(f"{planner.subject}: no plan fits", min_bytes)
    if np.isfinite(bound) and least_exchange(prices, model) * (1 - _SLACK) > bound * (1 + _SLACK):
        return None
    if (solution := planner.run(model, planner.columns(model, np.inf), bound)) is None:
        return None
    fixed, fastest = planner.uniform(model, solution)
    if fastest.outcome.objective > bound * (1 + _SLACK):
        return None
    for sharded in states:
        plan = planner.plan(fixed, fastest, sharded)
        if plan is None or plan.memory <= planner.limit:
            return plan
    assert plan is not None, "there is a state"
    return OverMemory(plan, partial(planner.within, model, plan))


def _states(problem: Problem, state: str) -> tuple[bool, ...]:
    """Return whether gradients and optimizer state may be in slices where parameters are whole, in order of trial."""
    if problem.restriction is not None and not problem.restriction.shards_state:
        return (False,)
    return {"auto": (False, True), "whole": (False,), "sharded": (True,)}[state]


def fitted(result: MeshPlan | OverMemory | None, bound: float = np.inf) -> MeshPlan | None:
    """Return the fastest plan that fits, or nearly; ``result`` itself unless its plan does not fit.

    None if all plans that fit take longer than ``bound`` seconds.

    Raises:
        TopoplanError: too many states.
        PlanTooLargeError: no plan fits.
    """
    if not isinstance(result, OverMemory):
        return result
    nearest = result.nearest
    if nearest.seconds > bound * (1 + _SLACK):
        return None
    try:
        return result.within(bound)
    except NoPlanFitsError as error:
        raise PlanTooLargeError(str(error), nearest.memory, nearest) from None


@attrs.frozen(kw_only=True, eq=False)
class _Planner:
    """Plans of one model on one mesh.

    Attributes:
        problem, machine, lowering: what plans are for.
        repeats: the instructions of equal layers, if these are planned equally.
        sharded: whether gradients and optimizer state may be in slices; bytes are counted so.
        whole_batch, gathers_again, beam, max_states, weight: see `fastest_on`.
    """

    problem: Problem
    machine: Machine
    lowering: Lowering
    repeats: Repeats | None
    sharded: bool
    whole_batch: bool
    gathers_again: bool
    beam: int
    max_states: int
    weight: float

    @property
    def limit(self) -> float:
        """Bytes of the smallest device."""
        return float(self.problem.cluster.usable_memory.min())

    @property
    def subject(self) -> str:
        """The beginning of error messages."""
        return f"searcher spmd: model {self.problem.graph.name!r}"

    def prices(self, model: MeshProgram) -> Prices:
        """Return the prices of a program."""
        return Prices(
            self.problem,
            model,
            self.machine,
            self.sharded,
            whole_batch=self.whole_batch,
            gathers_again=self.gathers_again,
        )

    def columns(self, model: MeshProgram, limit: float) -> Columns:
        """Return the columns of a program, with a weight of the seconds of computation."""
        columns = priced(self.prices(model), model, limit, self.subject)
        return columns._replace(seconds=columns.seconds * self.weight, back=columns.back * self.weight)

    def run(
        self,
        model: MeshProgram,
        columns: Columns,
        bound: float,
        *,
        patience: int | None = None,
        max_entries: int | None = None,
    ) -> Solution[Joint] | None:
        """Run the kernel."""
        model.outline.known.runs += 1
        return solve(
            model.program,
            with_bound(columns, model, bound),
            max_states=self.max_states,
            who=self.subject,
            beam=self.beam,
            patience=patience,
            max_entries=None if max_entries is None else min(max_entries, EACH * self.beam),
        )

    def plan(self, model: MeshProgram, solution: Solution[Joint], sharded: bool) -> MeshPlan | None:
        """Return the plan of a solution; None if slices are uneven."""
        strategy = _strategy(self.problem, model, solution, sharded)
        if strategy is None:
            return None
        graph, program = self.problem.graph, forms_of(strategy)
        if self.gathers_again and gathers(program, graph):
            program = attrs.evolve(program, gathers_again=True)
            strategy = with_program(strategy, program, graph)
        if self.whole_batch:  # it holds more at a time than with two micro-batches
            strategy = program_strategy(program, graph)
        memory = float(self.lowering.memory(strategy).max())
        beyond = memory - float(self.lowering.resting_memory(strategy).max())
        lower_bound = solution.outcome.objective if solution.exact else 0.0
        return MeshPlan(model, solution, strategy, memory, beyond, lower_bound)

    def uniform(
        self, model: MeshProgram, solution: Solution[Joint], price: float = 0.0
    ) -> tuple[MeshProgram, Solution[Joint]]:
        """Return the fastest solution found in which equal layers are treated equally, given the fastest of all.

        Args:
            model: the program.
            solution: its fastest solution.
            price: seconds that a byte costs, in both.
        """
        if self.repeats is None or not (first := [*variants(model, self.repeats, solution)]):
            return model, solution
        best: tuple[MeshProgram, Solution[Joint]] | None = None
        for source in (None, *by_boundary(model, self.repeats)):
            bound = np.inf if best is None else best[1].outcome.objective
            fastest = solution if source is None else self._priced(source, price, bound)
            if fastest is None:
                continue
            programs = first if source is None else [*variants(source, self.repeats, fastest)]
            if not programs and source is not None:
                best = source, fastest
            for program in programs:
                bound = np.inf if best is None else best[1].outcome.objective
                if (candidate := self._priced(program, price, bound)) is not None:
                    best = program, candidate
        if best is None:  # no layer can do what another one does
            return model, solution
        return best[0], attrs.evolve(best[1], exact=False)

    def _priced(self, model: MeshProgram, price: float, bound: float) -> Solution[Joint] | None:
        """Return the fastest solution at a price of a byte; None if there is none that is faster than a bound."""
        columns = self.columns(model, self.limit if price else np.inf)
        if price:
            columns = at_prices(model.program, columns, np.full(len(model.program.instructions), price))
        try:
            solution = self.run(model, columns, bound)
        except TooManyStatesError:
            raise
        except TopoplanError:  # what a layer does is impossible in another one
            return None
        return None if solution is None or solution.outcome.objective >= bound else solution

    def _measured(self, model: MeshProgram, solution: Solution[Joint]) -> MeshPlan | None:
        """Return the plan of a solution at a price of bytes, with its seconds alone."""
        seconds, _ = measured(model.program, self.columns(model, np.inf), solution.stages)
        outcome = attrs.evolve(solution.outcome, objective=seconds)
        return self.plan(model, attrs.evolve(solution, outcome=outcome, exact=False), self.sharded)

    def within(self, model: MeshProgram, nearest: MeshPlan, bound: float) -> MeshPlan | None:
        """Return the fastest plan within the memory, or nearly; None if it takes longer than ``bound`` seconds.

        Raises:
            NoPlanFitsError: there is none.
            TopoplanError: too many states.
        """
        if self.repeats is None:
            return self._limited(model, nearest, bound)
        best, above = self._uniform_within(model, nearest)
        plans = [] if best is None else [best]
        for plan in (above, *plans):  # what is not in layers may fit, or be faster, with these layers
            try:
                improved = self._limited(plan.model, plan, np.inf)
            except NoPlanFitsError:
                continue
            if improved is not None and improved.memory <= self.limit * (1 + _SLACK):
                plans.append(improved)
        if not plans:
            raise NoPlanFitsError(
                f"{self.subject}: no plan leads to its loss in partial sums within {self.limit / 1e9:.1f} GB of each "
                "device (of those that plan equal layers equally)"
            )
        fastest = min(plans, key=lambda plan: plan.seconds)
        return None if fastest.seconds > bound * (1 + _SLACK) else attrs.evolve(fastest, least=0.0)

    def _limited(self, model: MeshProgram, nearest: MeshPlan, bound: float) -> MeshPlan | None:
        """Return the fastest plan of a program within the memory; see `within`."""
        refused = NoPlanFitsError(f"{self.subject}: no plan fits")
        for beyond in dict.fromkeys((nearest.beyond, 0.0)):  # a plan that fits may have less beyond sums
            limit = self.limit - beyond
            try:
                plan = self._summing(model, nearest.solution, limit, bound)
                if plan is not None and plan.memory > self.limit:  # or more
                    plan = self._summing(model, nearest.solution, limit - (plan.memory - self.limit), bound)
            except NoPlanFitsError as error:
                refused = error
                continue
            if plan is None or plan.memory <= self.limit:
                return plan
        raise refused

    def _summing(self, model: MeshProgram, fastest: Solution[Joint], limit: float, bound: float) -> MeshPlan | None:
        """Return the fastest plan whose bytes add up to at most ``limit``, or nearly; see `fastest_within`."""
        if limit <= 0:
            raise NoPlanFitsError(f"{self.subject}: no plan fits")
        columns = self.columns(model, limit)
        run = partial(self.run, model)
        limited = fastest_within(model.program, columns, fastest, run, self.subject, bound)
        plan = None if limited is None else self.plan(model, limited.solution, self.sharded)
        return None if plan is None or limited is None else attrs.evolve(plan, least=limited.least)

    def _uniform_within(self, model: MeshProgram, nearest: MeshPlan) -> tuple[MeshPlan | None, MeshPlan]:
        """Return the fastest plan with equal layers that fits at some price of a byte, and the last that does not.

        Prices are those of `topoplan_spmd_planning.limits`: between a plan that fits and one that does not, the one at
        which both cost the same.
        """
        above, best = nearest, None
        price = HIGHEST * above.seconds / self.limit
        for _ in range(_PRICES):
            solution = self._priced(model, price, np.inf)
            plan = None if solution is None else self._measured(*self.uniform(model, solution, price))
            if plan is None or (best is None and plan.memory > self.limit):
                return best, above
            if plan.memory > self.limit:
                assert best is not None
                ended, above = plan.memory >= above.memory or plan.seconds >= best.seconds, plan
            else:
                ended = best is not None and plan.seconds >= best.seconds * (1 - _SLACK)
                best = plan if best is None or plan.seconds < best.seconds else best
            saved = above.memory - best.memory
            if ended or saved <= 0 or best.seconds <= above.seconds:
                break
            price = (best.seconds - above.seconds) / saved
        return best, above


def _seconds_of(plan: MeshPlan) -> float:
    return plan.seconds


def tight(problem: Problem) -> bool:
    """Say whether a plan may not fit, because the devices cannot hold the model with its weights on every device."""
    minimum, cluster = least_memory(problem.graph, problem.costs), problem.cluster
    most = minimum.states + minimum.activations + minimum.weights * cluster.n_devices
    return most > float(cluster.usable_memory.min()) * cluster.n_devices


def _strategy(problem: Problem, model: MeshProgram, solution: Solution[Joint], sharded: bool) -> StagedStrategy | None:
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
