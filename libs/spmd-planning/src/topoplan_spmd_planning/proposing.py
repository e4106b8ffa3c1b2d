"""HiDup's plan for a problem, and the candidate that proposes it to a search."""

from __future__ import annotations

from typing import Literal

from topoplan import Candidate, Placement, Problem, State
from topoplan.model.sharding import Signature
from topoplan_engine.sharding.signatures import signatures
from topoplan_spmd_planning.hints import Hints
from topoplan_spmd_planning.planning import HidupPlan, plan
from topoplan_spmd_planning.prices import Prices
from topoplan_spmd_planning.program import Program, write_down
from topoplan_spmd_planning.released import released
from topoplan_spmd_planning.strategy import strategy_of

__all__ = ["candidate_of", "placements_of", "plan_of"]

_NO_HINTS = Hints()


def plan_of(
    problem: Problem, kind: Literal["released", "derived"], max_states: int, hints: Hints = _NO_HINTS
) -> tuple[Program[Signature], HidupPlan]:
    """Return a model as a program with the signatures of a ``kind`` that ``hints`` allow, and HiDup's plan of it.

    Raises:
        TopoplanError: hints that the program cannot follow, too many states, or no plan at all.
    """
    if kind == "released":
        program = write_down(problem.graph, released)
    else:
        program = write_down(problem.graph, signatures, problem.cluster.n_devices)
    program = hints.restricted(program)
    return program, plan(program, Prices(problem), max_states=max_states, model=problem.graph.name)


def candidate_of(plan: HidupPlan, program: Program[Signature], problem: Problem, state: State) -> Candidate:
    """Return the plan as a candidate on the fabric of ``state``, with both micro-batches.

    If the plan has an unsound rule or uneven slices, the candidate has its placements alone.
    """
    strategy = strategy_of(plan, program, problem)
    if strategy is not None:
        return Candidate(base=State(strategy, state.fabric))
    return Candidate(base=state, placements=placements_of(plan, program, problem))


def placements_of(plan: HidupPlan, program: Program[Signature], problem: Problem) -> dict[int, Placement]:
    """Return placements that cut every operator as in the plan, over all devices.

    Placements cannot express all signatures.  If every device runs an operator undivided, or its rule cuts no dimension
    of the iteration space (`topoplan_spmd_planning.released.unsound`), it keeps its current placement.
    """
    placements = {}
    for stage in plan.stages:
        for number, signature in stage.computations:
            op = program.instructions[number].op
            degrees = _degrees(signature, op, problem)
            if degrees is not None:
                placements[op] = problem.space.intern(Placement(degrees, range(problem.cluster.n_devices)))
    return placements


def _degrees(signature: Signature, op: int, problem: Problem) -> tuple[int, ...] | None:
    """Return the degrees of a signature's cut, or None if it has none with a price."""
    if op < 0 or signature.dim < 0:
        return None
    operator, devices = problem.graph.operators[op], problem.cluster.n_devices
    degrees = tuple(devices if dim == signature.dim else 1 for dim in range(len(operator.dims)))
    fits = operator.dims[signature.dim].size >= devices and problem.costs.supports(op, degrees)
    return degrees if fits else None
