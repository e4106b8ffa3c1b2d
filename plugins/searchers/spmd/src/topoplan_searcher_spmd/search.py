"""The search: it plans mesh by mesh for the fabric of the first state, and the simulator chooses.

It first proposes HiDup's plan, so that the fastest plan is never slower; one that plans equal layers unequally stands
beside the others, for comparison.  It then proposes the plans of all meshes that may be among the best, with two
micro-batches and with the whole batch, and, for the fastest meshes, plans whose communication runs ahead.  At last it
proposes data parallelism, for comparison.

Where to plan a mesh takes seconds, it leaves out meshes whose plans are estimated to be slower than the best plan of
other searchers, by as much as estimates were too low so far; and each mesh that was planned in vain is a turn.

Strategies of placements (data parallelism, and HiDup's plan where that is one) come last, with the time of the fastest
program as their cutoff: they have tasks for every device, and to simulate one may take longer than all programs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import numpy as np

from topoplan import Candidate, PlacedStrategy, Problem, Search, StagedStrategy, State, Strategy, TopoplanError, Trial
from topoplan.errors import NoPlanFitsError
from topoplan.model.placement import Placement
from topoplan.model.spmd import SpmdProgram
from topoplan_engine.fitting import needs_more, no_plan_fits
from topoplan_engine.lowering import Lowering
from topoplan_engine.program_strategies import program_of, program_strategy
from topoplan_engine.search.common_restriction import as_run
from topoplan_engine.sharding.programs import reshards_of
from topoplan_searcher_spmd import Spmd
from topoplan_spmd_planning.machine import Machine
from topoplan_spmd_planning.mesh_planning import AHEAD, MeshPlan, OverMemory, PlanTooLargeError, fastest_on, fitted
from topoplan_spmd_planning.planning import TooManyStatesError
from topoplan_spmd_planning.proposing import candidate_of, plan_of
from topoplan_spmd_planning.space import Mesh, meshes, outline
from topoplan_spmd_planning.uniform import is_uniform

__all__ = ["SpmdSearch", "data_parallel"]

#: How much faster, as a share, a plan must be whose equal layers are planned unequally.
_WORTH = 0.01
#: Parts of operators from which on meshes are left out for a plan of another searcher: less is planned soon.
_PARTS_LARGE = 2**17 // 10
#: Least simulated seconds of a plan, as a share of its estimate: where no plan was simulated, all communication may
#: hide behind computation; and by how much less a share may be than that of all plans so far.
_LEAST_SHARE, _LESS = 0.5, 0.9
#: How much slower than that plan, as a factor, a mesh may be for whose communication to run ahead a plan is made.
_NEAR = 1.1


@attrs.define
class _Proposal:
    """A strategy to simulate: its name, its simulated seconds, and whether it fits into memory."""

    name: str
    candidate: Candidate
    seconds: float | None = None
    fits: bool = True


class SpmdSearch(Search):
    """Proposes its plans mesh by mesh and records their costs."""

    def __init__(self, options: Spmd, problem: Problem) -> None:
        self._options, self._problem = options, problem
        self._outline = outline(problem.graph, problem.restriction)
        self._lowering = Lowering(problem.graph, problem.cluster, problem.costs)
        self._rounds: Iterator[list[_Proposal]] | None = None
        self._asked: list[_Proposal] = []
        self._proposals: list[_Proposal] = []
        self._plans: list[MeshPlan] = []
        self._dominated = 0
        self._refused: TopoplanError | None = None
        self._too_many_states = False
        self._nearest: tuple[Mesh, PlanTooLargeError] | None = None
        self._is_large = len(problem.graph.operators) * problem.cluster.n_devices >= _PARTS_LARGE
        #: Seconds of the best plan of other searchers, and of own plans, as shares of their estimates.
        self._best_of_others = math.inf
        self._shares: list[float] = []
        #: Whether the last turn brought no candidate, because a plan of a mesh was looked for in vain.
        self.in_vain = self.waits = False

    def adopt(self, trial: Trial) -> None:
        """Plan for the fabric of the first ``trial``."""
        if self._rounds is None:
            self._rounds = self._plan_rounds(trial)
            self._proposals.append(_Proposal("initial strategy", Candidate(base=trial.state), trial.cost, trial.fits))

    def ask(self) -> Sequence[Candidate]:
        """Propose the next plans, or nothing if all are proposed.

        Raises:
            TopoplanError: there is no plan on any mesh.
        """
        self.in_vain, runs = False, self._outline.known.runs
        answer = None if self._rounds is None else next(self._rounds, None)
        self._asked, self.waits = answer or [], answer == []
        self.in_vain = self.waits and self._outline.known.runs > runs
        self._proposals += self._asked
        return [proposal.candidate for proposal in self._asked]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Record the simulated seconds of each plan."""
        for proposal, trial in zip(self._asked, trials, strict=False):
            if trial.cost < math.inf or proposal.candidate.cutoff_seconds == math.inf:  # else it was not simulated
                proposal.seconds, proposal.fits = trial.cost, trial.fits

    def know_best(self, cost: float) -> None:
        """Take note of the seconds of the best plan so far; it is of another searcher if no own plan is so fast."""
        if self._is_large and cost < min(map(self._seconds, self._proposals), default=math.inf):
            self._best_of_others = cost

    def report(self, strategy: Strategy | None) -> Mapping[str, Any]:
        """Return all plans with their estimated and simulated seconds, and one plan in full.

        That plan is the one of ``strategy``, or the fastest if ``strategy`` is None.
        """
        simulated = [proposal for proposal in self._proposals if proposal.seconds is not None]
        best = min(simulated, key=lambda proposal: (not proposal.fits, proposal.seconds or 0.0), default=None)
        if strategy is not None:
            best = next((entry for entry in simulated if entry.candidate.state().strategy == strategy), None)
        answer: dict[str, Any] = {
            "chosen": None if best is None else best.name,
            "meshes": [
                {
                    "mesh": list(plan.model.mesh.sizes),
                    "axes": [str(role) for role in plan.model.mesh.roles],
                    "planned_s": plan.seconds,
                    "at_least_s": plan.least,
                    "memory_bytes": plan.memory,
                    "sharded_state": program_of(plan.strategy).sharded_state,
                    "states": plan.solution.outcome.states,
                    "exact": plan.solution.exact,
                    "frontier_entries": plan.solution.outcome.entries,
                }
                for plan in sorted(self._plans, key=lambda plan: plan.seconds)
            ],
            "meshes_outdone": self._dominated,
            "simulated_s": {proposal.name: proposal.seconds for proposal in simulated},
        }
        program = None if best is None else _program_of(best.candidate.state().strategy)
        return answer if program is None else answer | self._describe(program)

    def _describe(self, program: SpmdProgram) -> dict[str, Any]:
        """Describe a program: its mesh, its collectives by kind, and the signatures of every operator."""
        graph = self._problem.graph
        counts: Counter[str] = Counter()
        for move in reshards_of(program, graph):
            counts.update(step.step.name for step in (*move.forward, *move.backward) if not step.free)
        return {
            "mesh": list(program.mesh),
            "sharded_state": program.sharded_state,
            "gathers_again": program.gathers_again,
            "collectives": dict(sorted(counts.items())),
            "program": [
                {"operator": op.name, "signatures": [str(rule) for rule in program.rules[index]]}
                for index, op in enumerate(graph.operators)
            ],
        }

    def _plan_rounds(self, trial: Trial) -> Iterator[list[_Proposal]]:
        """Yield the proposals of each round."""
        fabric, placed = trial.state.fabric, []
        hidup = self._hidup(trial) if self._problem.restriction is None else None
        if hidup is not None and (hidup.state().strategy.whole_batch or self._overlapping):
            if isinstance(hidup.state().strategy, PlacedStrategy):
                placed.append(("hidup", hidup))
            else:
                yield [_Proposal("hidup", hidup)]
        simulated: dict[Mesh, list[_Proposal]] = {}
        machine = Machine(self._problem.cluster, fabric)
        for mesh, plan in self._mesh_plans(machine):
            if plan is None:
                yield []
                continue
            self._plans.append(plan)
            whole_batch = program_strategy(program_of(plan.strategy), self._problem.graph)
            named = {f"{mesh} whole batch": as_run(self._problem, whole_batch)}
            if self._overlaps(plan.strategy):
                named[f"{mesh} two-microbatch"] = plan.strategy
            simulated[mesh] = [
                _Proposal(name, Candidate(base=State(strategy, fabric)))
                for name, strategy in named.items()
                if self._runs(strategy)
            ]
            yield simulated[mesh]
            self._shares += [self._seconds(entry) / plan.seconds for entry in simulated[mesh] if entry.seconds]
        if not any(simulated.values()) and not self._dominated:
            if self._nearest is not None:
                raise self._too_large(*self._nearest)
            if self._refused is not None:
                raise self._without_plan(self._refused)
        best = sorted(simulated, key=lambda mesh: min(map(self._seconds, simulated[mesh]), default=math.inf))
        for mesh in best[: self._options.shortlist]:
            if min(map(self._seconds, simulated[mesh]), default=math.inf) > _NEAR * self._best_of_others:
                break
            overlap_plan = self._tried(mesh, partial(self._ahead, mesh, machine))
            if isinstance(overlap_plan, MeshPlan) and self._overlaps(overlap_plan.strategy):
                yield [_Proposal(f"{mesh} two-microbatch, ahead", Candidate(base=State(overlap_plan.strategy, fabric)))]
        if (plain := data_parallel(self._problem)) is not None:
            name = "data parallelism"
            strategy = as_run(self._problem, plain)
            placed.append((name, Candidate(base=State(strategy, fabric), comparison=name)))
        for name, candidate in placed:
            yield [_Proposal(name, attrs.evolve(candidate, cutoff_seconds=self._fastest()))]

    def _fastest(self) -> float:
        """Return the simulated seconds of the fastest own proposal that fits; infinite if none does.

        The initial strategy is left out: what is constructed is reported even where that one is faster.
        """
        return min((self._seconds(proposal) for proposal in self._proposals[1:] if proposal.fits), default=math.inf)

    def _mesh_plans(self, machine: Machine) -> Iterator[tuple[Mesh, MeshPlan | None]]:
        """Yield the plans that may be among the best; last, by time, meshes whose fastest plan does not fit.

        The time of that plan bounds those of plans that fit, and such plans take longer to find.  Beside a better
        plan of another searcher, also yield None for each mesh without a plan.
        """
        experts = max(self._outline.experts, default=-1) >= 0
        over_memory: list[tuple[Mesh, OverMemory]] = []
        cluster, restriction = self._problem.cluster, self._problem.restriction
        whole = restriction is not None and not restriction.shards_state and self._options.state == "sharded"
        for mesh in meshes(cluster, self._options.meshes, experts=experts, restriction=restriction):
            if whole and mesh.data:  # the trainer shards the state of parameters that it shards themselves
                continue
            plan = self._tried(mesh, partial(self._plan, mesh, machine, bound=self._bound()))
            if self._options.unequal_layers:
                plan = self._faster(
                    plan, self._tried(mesh, partial(self._plan, mesh, machine, bound=self._bound(), equal_layers=False))
                )
            if isinstance(plan, OverMemory):
                over_memory.append((mesh, plan))
            elif plan is None and self._too_many_states and not self._plans and not over_memory:
                break  # these depend on the model more than on the mesh
            elif plan is not None or self._best_of_others < math.inf:
                yield mesh, plan
        for mesh, nearest in sorted(over_memory, key=lambda pair: pair[1].nearest.seconds):
            plan = self._tried(mesh, partial(self._fitted, nearest))
            assert not isinstance(plan, OverMemory)
            if plan is not None or self._best_of_others < math.inf:
                yield mesh, plan

    @staticmethod
    def _faster(
        equal: MeshPlan | OverMemory | None, unequal: MeshPlan | OverMemory | None
    ) -> MeshPlan | OverMemory | None:
        """Return the plan whose equal layers are planned equally, unless the other one is faster by more than 1 %."""
        if equal is None or unequal is None:
            return equal or unequal
        seconds = [(plan.nearest if isinstance(plan, OverMemory) else plan).seconds for plan in (equal, unequal)]
        return unequal if seconds[1] < seconds[0] * (1 - _WORTH) else equal

    def _tried(self, mesh: Mesh, make: Callable[[], MeshPlan | OverMemory | None]) -> MeshPlan | OverMemory | None:
        """Return a plan of a mesh, or None if there is none; keep the first error, and that of the nearest plan."""
        try:
            return make()
        except PlanTooLargeError as error:
            if self._nearest is None or error.needed < self._nearest[1].needed:
                self._nearest = mesh, error
        except TopoplanError as error:
            self._refused = self._refused or error
            self._too_many_states |= isinstance(error, TooManyStatesError)
        return None

    def _without_plan(self, refused: TopoplanError) -> TopoplanError:
        """Return an error that says what the trainer, if there is one, cannot do with the batch."""
        restriction, devices = self._problem.restriction, self._problem.cluster.n_devices
        batch = self._problem.graph.batch_size
        if restriction is None or batch % devices == 0:
            return refused
        return TopoplanError(
            f"{refused}, and none of the other meshes of {restriction.name} has a plan for a batch of {batch}; a "
            f"multiple of {devices} can be cut by samples alone (--batch-size)"
        )

    def _runs(self, strategy: Strategy) -> bool:
        """Say whether the trainer runs a whole plan, if plans are for one; keep the first reason why not."""
        problem = self._problem
        if problem.restriction is None:
            return True
        why = problem.restriction.refusal(problem.graph, problem.cluster, strategy)
        if why and self._refused is None:
            self._refused = TopoplanError(f"searcher spmd: {why}")
        return not why

    @property
    def _overlapping(self) -> bool:
        """Whether micro-batches may take turns; no trainer lets them."""
        return self._options.schedule == "any" and self._problem.restriction is None

    def _overlaps(self, strategy: Strategy) -> bool:
        """Say whether a plan overlaps micro-batches, and may."""
        return self._overlapping and not strategy.whole_batch

    def _too_large(self, mesh: Mesh, refused: PlanTooLargeError) -> NoPlanFitsError:
        """Return an error that states the missing memory of the nearest plan, and what would help."""
        problem, plan = self._problem, refused.nearest
        if plan is None:
            message = needs_more(problem, refused.needed)
            return NoPlanFitsError(f"{refused}: of all meshes devices need the least on {mesh}, and {message}")
        use = self._lowering.memory_use(plan.strategy)
        message = no_plan_fits(problem, plan.strategy, use)
        return NoPlanFitsError(f"{refused}: of the plans that do not count bytes, on {mesh}, {message}")

    @staticmethod
    def _seconds(proposal: _Proposal) -> float:
        """Return the simulated seconds of a proposal; infinite if it was not simulated."""
        return np.inf if proposal.seconds is None else proposal.seconds

    def _bound(self) -> float:
        """Return the largest estimated seconds of a plan on the shortlist; infinite if there is room on it.

        Less where that cannot be better than the best plan of other searchers.
        """
        limit = float(self._problem.cluster.usable_memory.min())
        share = _LESS * min(self._shares, default=_LEAST_SHARE / _LESS)
        fit = sorted(plan.seconds for plan in self._plans if plan.memory <= limit)
        last = fit[self._options.shortlist - 1] if len(fit) >= self._options.shortlist else np.inf
        return min(last, self._best_of_others / share)

    def _plan(
        self, mesh: Mesh, machine: Machine, *, weight: float = 1.0, bound: float = np.inf, equal_layers: bool = True
    ) -> MeshPlan | OverMemory | None:
        """Plan on one mesh; count the meshes that are dropped."""
        problem, options = self._problem, self._options
        plan = fastest_on(
            problem,
            self._outline,
            mesh,
            machine,
            self._lowering,
            state=options.state,
            gathers_again=options.gathered == "again",
            whole_batch=not self._overlapping,
            equal_layers=equal_layers,
            beam=options.beam,
            max_states=options.max_states,
            weight=weight,
            bound=bound,
        )
        self._dominated += plan is None and bound < np.inf
        return plan

    def _ahead(self, mesh: Mesh, machine: Machine) -> MeshPlan | None:
        """Return a plan that fits and counts computation for less."""
        return fitted(self._plan(mesh, machine, weight=AHEAD))

    def _fitted(self, over_memory: OverMemory) -> MeshPlan | None:
        """Return a plan that fits; count the meshes that are dropped."""
        bound = self._bound()
        plan = fitted(over_memory, bound)
        self._dominated += plan is None and bound < np.inf
        return plan

    def _hidup(self, trial: Trial) -> Candidate | None:
        """Return the candidate of the searcher ``hidup``, if it has a plan.

        It is there for comparison if it plans equal layers unequally and no option allows that.
        """
        try:
            described, plan = plan_of(self._problem, "released", self._options.max_states)
        except TopoplanError:
            return None
        candidate = candidate_of(plan, described, self._problem, trial.state)
        program = candidate.state().strategy.program
        unequal = program is not None and not is_uniform(program, self._problem.graph)
        return (
            attrs.evolve(candidate, comparison="hidup") if unequal and not self._options.unequal_layers else candidate
        )


def _program_of(strategy: Strategy) -> SpmdProgram | None:
    """Return the program of all operators, that of the only stage where a trainer adds to it; None if there is none."""
    if isinstance(strategy, StagedStrategy) and len(strategy.stages) == 1 and not strategy.is_placed:
        return strategy.stages[0].program
    return strategy.program


def data_parallel(problem: Problem) -> Strategy | None:
    """Return data parallelism over all devices; None if a sample cannot be cut so often, or its parts have no price."""
    graph, count = problem.graph, problem.cluster.n_devices
    cuts = [operator.sample_cut(count) for operator in graph.operators]
    placements = tuple(Placement(cut, range(math.prod(cut))) for cut in cuts)
    fits = all(
        problem.costs.supports(op, placement.degrees)
        and all(degree <= dim.size for degree, dim in zip(placement.degrees, graph.operators[op].dims, strict=True))
        for op, placement in enumerate(placements)
    )
    return PlacedStrategy(placements) if fits else None
