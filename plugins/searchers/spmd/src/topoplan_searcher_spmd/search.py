"""The plans as a searcher: it plans for the fabric that it is given, and the simulator chooses.

Proposed are the plans of the meshes that are reckoned the fastest, each with both micro-batches and with the whole
batch at once, HiDup's plan, and data parallelism; so what wins is never slower, as simulated, than either of these.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from topoplan import Candidate, Problem, State, Strategy, TopoplanError, Trial
from topoplan.fabric import Fabric
from topoplan.lowering import Lowering
from topoplan.spmd import conversions_of
from topoplan.strategy import data_parallel
from topoplan_searcher_hidup import HidupOptions
from topoplan_searcher_hidup.search import HidupSearch
from topoplan_searcher_spmd import SpmdOptions
from topoplan_searcher_spmd.machine import Machine
from topoplan_searcher_spmd.planning import AHEAD, Planned, plan_on
from topoplan_searcher_spmd.space import meshes

__all__ = ["SpmdSearch"]


@attrs.define
class _Proposal:
    """A strategy to simulate: its name, and what came of it."""

    name: str
    candidate: Candidate
    seconds: float | None = None


class SpmdSearch:
    """Proposes its plans, once; learns from their prices which is the best."""

    def __init__(self, options: SpmdOptions, problem: Problem) -> None:
        self._options, self._problem = options, problem
        self._trial: Trial | None = None
        self._proposals: list[_Proposal] = []
        self._planned: list[Planned] = []

    def adopt(self, trial: Trial) -> None:
        """Plan for the fabric of ``trial``."""
        self._trial = trial

    def ask(self) -> Sequence[Candidate]:
        """Propose the plans; then nothing.

        Raises:
            TopoplanError: there is no plan on any mesh.
        """
        if self._trial is None or self._proposals:
            return []
        state = self._trial.state
        self._planned = self._plans(state.fabric)
        for planned in self._planned[: self._options.finalists]:
            mesh = "x".join(map(str, planned.written.mesh))
            ahead = self._plan(planned.written.mesh, state.fabric, AHEAD)
            whole = attrs.evolve(planned.strategy, schedule=None)
            named = {f"{mesh} whole batch": whole}
            if planned.strategy.schedule is not None:
                named[f"{mesh} duplex"] = planned.strategy
            if ahead is not None and ahead.strategy.schedule is not None:
                named[f"{mesh} duplex, ahead"] = ahead.strategy
            self._proposals += [
                _Proposal(name, Candidate(base=State(strategy, state.fabric))) for name, strategy in named.items()
            ]
        if (hidup := self._hidup()) is not None:
            self._proposals.append(_Proposal("hidup", hidup))
        if (plain := self._data_parallel()) is not None:
            self._proposals.append(_Proposal("data parallelism", Candidate(base=State(plain, state.fabric))))
        return [proposal.candidate for proposal in self._proposals]

    def tell(self, trials: Sequence[Trial]) -> None:
        """Keep what each plan took."""
        for proposal, trial in zip(self._proposals, trials, strict=False):
            proposal.seconds = trial.cost

    def report(self) -> Mapping[str, Any]:
        """Return the plans with what they were reckoned and simulated to take, and the best one in full."""
        done = [proposal for proposal in self._proposals if proposal.seconds is not None]
        best = min(done, key=lambda proposal: proposal.seconds or 0.0, default=None)
        answer: dict[str, Any] = {
            "chosen": None if best is None else best.name,
            "meshes": [
                {
                    "mesh": list(planned.written.mesh),
                    "planned_s": planned.seconds,
                    "memory_bytes": planned.memory,
                    "sharded_state": planned.strategy.program is not None and planned.strategy.program.sharded_state,
                    "states": planned.solution.outcome.states,
                    "frontier_entries": planned.solution.outcome.entries,
                }
                for planned in self._planned
            ],
            "simulated_s": {proposal.name: proposal.seconds for proposal in done},
        }
        strategy = None if best is None else best.candidate.state().strategy
        if strategy is not None and strategy.program is not None:
            answer |= self._told(strategy)
        return answer

    def _told(self, strategy: Strategy) -> dict[str, Any]:
        """Tell a program: its mesh, its collectives by kind, and the forms of every operator."""
        program, graph = strategy.program, self._problem.graph
        assert program is not None
        counts: Counter[str] = Counter()
        for move in conversions_of(program, graph):
            counts.update(str(step.step.collective) for step in (*move.forward, *move.backward) if not step.free)
        return {
            "mesh": list(program.mesh),
            "sharded_state": program.sharded_state,
            "collectives": dict(sorted(counts.items())),
            "program": [
                {"operator": op.name, "signatures": [str(rule) for rule in program.rules[index]]}
                for index, op in enumerate(graph.operators)
            ],
        }

    def _plans(self, fabric: Fabric) -> list[Planned]:
        """Plan on every mesh; the fastest first, those that do not fit the devices last."""
        found, refused = [], None
        for mesh in meshes(self._problem.cluster.n_devices, self._options.meshes):
            try:
                planned = self._plan(mesh, fabric, 1.0)
            except TopoplanError as error:
                refused = refused or error
                continue
            if planned is not None:
                found.append(planned)
        if not found and refused is not None:
            raise refused
        limit = float(self._problem.cluster.device_memory.min())
        return sorted(found, key=lambda planned: (planned.memory > limit, planned.seconds))

    def _plan(self, mesh: tuple[int, ...], fabric: Fabric, weight: float) -> Planned | None:
        """Plan on one mesh."""
        problem, options = self._problem, self._options
        lowering = Lowering(problem.graph, problem.cluster, problem.costs)
        return plan_on(
            problem,
            mesh,
            Machine(problem.cluster, fabric),
            lowering,
            state=options.state,
            max_states=options.max_states,
            weight=weight,
        )

    def _hidup(self) -> Candidate | None:
        """Return what the searcher ``hidup`` proposes, if it has a plan."""
        assert self._trial is not None
        try:
            search = HidupSearch(HidupOptions(max_states=self._options.max_states), self._problem)
        except TopoplanError:
            return None
        search.adopt(self._trial)
        return search.ask()[0]

    def _data_parallel(self) -> Strategy | None:
        """Return data parallelism over all devices, if it can be priced."""
        graph, devices = self._problem.graph, range(self._problem.cluster.n_devices)
        placements = tuple(data_parallel(graph, op, devices) for op in range(len(graph.operators)))
        fits = all(
            self._problem.costs.supports(op, placed.degrees)
            and all(degree <= dim.size for degree, dim in zip(placed.degrees, graph.operators[op].dims, strict=True))
            for op, placed in enumerate(placements)
        )
        return Strategy(placements) if fits else None
