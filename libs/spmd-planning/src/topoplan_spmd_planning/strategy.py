"""Converts a plan into a strategy: a signature for every operator, and two micro-batches in the plan's stages."""

from __future__ import annotations

from collections.abc import Sequence

from topoplan import MicroBatch, Problem, StagedStrategy
from topoplan.model.sharding import Sharding, Signature
from topoplan.model.spmd import SpmdProgram
from topoplan_engine.program_strategies import overlapped_strategy, program_strategy
from topoplan_engine.sharding.programs import why_invalid
from topoplan_spmd_planning.planning import HidupPlan, Stage
from topoplan_spmd_planning.program import Program, R

__all__ = ["MICRO_BATCHES", "program_of", "stages_of", "strategy_of", "strategy_with"]

#: HiDup's copies of the model.
MICRO_BATCHES = 2


def strategy_of(plan: HidupPlan, program: Program[Signature], problem: Problem) -> StagedStrategy | None:
    """Return the plan as a strategy; None if one of its rules is unsound or its slices are uneven."""
    devices = problem.cluster.n_devices
    rules: dict[int, tuple[Signature, ...]] = {
        program.instructions[number].op: (s,) for stage in plan.stages for number, s in stage.computations
    }
    stored: dict[int, tuple[Sharding, ...]] = {
        value: (form,)
        for stage in plan.stages
        for number, s in stage.computations
        if program.instructions[number].op < 0
        for value, form in zip(program.instructions[number].outputs, s.outputs, strict=True)
    }
    forms = program_of(program, (devices,), rules, stored)
    return strategy_with(forms, plan.stages, program, problem)


def strategy_with(
    forms: SpmdProgram, stages: Sequence[Stage[R]], program: Program[R], problem: Problem
) -> StagedStrategy | None:
    """Return the strategy of a program with two micro-batches in ``stages``; None if slices are uneven.

    If the samples cannot be divided into two equal parts, or half of a part has no price, the strategy does not divide
    the batch.
    """
    graph = problem.graph
    numbers = stages_of(stages, program)
    overlapped = overlapped_strategy(forms, graph, numbers, MICRO_BATCHES)
    for candidate in (overlapped, program_strategy(forms, graph)):
        if not _priced(candidate, problem):
            continue
        if why_invalid(candidate, graph, problem.cluster.n_devices) is None:
            return candidate
    return None


def _priced(strategy: StagedStrategy, problem: Problem) -> bool:
    """Say whether every operator has a price, of the batch and of a micro-batch."""
    costs, count = problem.costs, strategy.micro_batches
    return all(
        costs.supports(op, placement.degrees)
        and costs.supports_micro_batch(op, placement.degrees, MicroBatch.of(operator, count))
        for op, (operator, placement) in enumerate(zip(problem.graph.operators, strategy.placements, strict=True))
    )


def program_of(
    program: Program[R],
    mesh: tuple[int, ...],
    rules: dict[int, tuple[Signature, ...]],
    stored: dict[int, tuple[Sharding, ...]],
    sharded_state: bool = False,
) -> SpmdProgram:
    """Return the program of a strategy.

    Args:
        program: the model.
        mesh: devices along each axis.
        rules: signatures of each operator of the graph.
        stored: forms of data and parameters.
        sharded_state: see `SpmdProgram`.
    """
    runs = [instruction for instruction in program.instructions if instruction.op >= 0]
    runs.sort(key=lambda instruction: instruction.op)
    return SpmdProgram(
        mesh=mesh,
        rules=tuple(rules[instruction.op] for instruction in runs),
        stored=tuple(tuple(stored.get(value, ()) for value in instruction.inputs) for instruction in runs),
        sharded_state=sharded_state,
    )


def stages_of(stages: Sequence[Stage[R]], program: Program[R]) -> list[int]:
    """Return the stage of each operator; stages without operators, which only read, do not count."""
    stage: dict[int, int] = {}
    for planned_stage in stages:
        ops = [program.instructions[index].op for index, _ in planned_stage.computations]
        number = len(set(stage.values()))
        stage.update({op: number for op in ops if op >= 0})
    return [stage[op] for op in sorted(stage)]
