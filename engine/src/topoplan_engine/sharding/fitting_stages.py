"""Whether samples can be divided among micro-batches and devices, and whether programs fit the operators of stages.

`topoplan_engine.sharding.programs.why_invalid` asks this of a strategy, after the strategy itself
(`topoplan.Strategy.why_invalid`) has said that its stages, devices and passes go together.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from topoplan.model.graph import Operator, OperatorGraph
from topoplan.model.placement import Placement
from topoplan.model.sharding import arguments
from topoplan.model.spmd import SpmdProgram
from topoplan.model.staged import StagedStrategy

__all__ = ["why_few_samples", "why_program_unfit", "why_stages_unfit"]


def why_stages_unfit(strategy: StagedStrategy, graph: OperatorGraph, n_devices: int) -> str | None:
    """Return which operator fits neither the micro-batches nor its stage, or None."""
    if reason := _why_no_program(strategy, n_devices):
        return reason
    if strategy.program is not None:
        fed = {(v, into) for _, _, v, into in graph.edges.reshape(-1, 4).tolist()}
        reason = why_program_unfit(strategy.program, graph.operators, fed)
        reason = reason or why_few_samples(graph, strategy.placements, strategy.micro_batches)
    elif strategy.is_placed:
        reason = why_few_samples(graph, strategy.placements, strategy.micro_batches)
    else:
        reason = _why_uneven(strategy, graph) or _why_programs_unfit(strategy, graph)
    if reason:
        return reason
    stage_placements = StagedStrategy.of(graph, strategy.stages, strategy.order, strategy.micro_batches).placements
    wrong = next((op for op, each in enumerate(stage_placements) if each != strategy.placements[op]), None)
    return None if wrong is None else f"placement of {graph.operators[wrong].name!r} is not that of its stage"


def _why_no_program(strategy: StagedStrategy, n_devices: int) -> str | None:
    """Return which stage is no part of one program of all devices, where there is one stream; or None."""
    first = strategy.stages[0]
    if not strategy.one_stream:
        bodies = enumerate(stage.body for stage in strategy.stages)
        number = next((k for k, body in bodies if not isinstance(body, tuple) and body.sharded_state), None)
        what = "program has sharded_state (a stage says it as zero=Zero(level=2, axes=...))"
        return None if number is None else f"stage {number}: {what}"
    for number, stage in enumerate(strategy.stages):
        if stage.is_placed or stage.mesh != first.mesh or stage.zero.level or len(stage.recomputed):
            return f"stage {number} is no part of the program of stage 0 (one stream needs one mesh, and no ZeRO)"
    if first.mesh.n_devices != n_devices:
        return f"program: a mesh of {' x '.join(map(str, first.mesh.sizes))} for {n_devices} devices"
    return None


def why_few_samples(graph: OperatorGraph, placements: Sequence[Placement], count: int) -> str | None:
    """Return which operator has no samples for some part of one of ``count`` micro-batches, or None."""
    if count < 1 or graph.batch_size % count:
        return f"{count} micro-batches do not divide a batch of {graph.batch_size}"
    for op, placement in zip(graph.operators, placements, strict=True):
        if (dim := op.sample_dim) >= 0:
            size, degree = op.dims[dim].size, placement.degrees[dim]
            if size % count:
                return f"{count} micro-batches do not divide the {size} samples of operator {op.name!r}"
            if degree > size // count:
                return (
                    f"operator {op.name!r} is cut into {degree} parts, but a micro-batch has {size // count} samples "
                    f"(use at most {size // degree} micro-batches)"
                )
    return None


def why_program_unfit(
    program: SpmdProgram, operators: Sequence[Operator], fed: Collection[tuple[int, int]]
) -> str | None:
    """Return which signature or storage of a program does not fit its operator, or None.

    Args:
        program: one with signatures for each operator.
        operators: those that the program is of.
        fed: (operator, argument) of what another of them makes.
    """
    for index, op in enumerate(operators):
        where, count = f"program: operator {op.name!r}", len(arguments(op))
        rules, stored = program.rules[index], program.stored[index]
        if len(rules) != len(program.mesh) or len(stored) != count:
            return f"{where}: needs {len(program.mesh)} signatures and shardings of {count} arguments"
        for rule in rules:
            if len(rule.inputs) != count or len(rule.outputs) != len(op.outputs) or rule.dim >= len(op.dims):
                return f"{where}: signature {rule} does not fit its {count} arguments"
        for argument, shardings in enumerate(stored):
            if len(shardings) != (0 if (index, argument) in fed else len(program.mesh)):
                return f"{where}: argument {argument} has {len(shardings)} shardings in storage"
    return None


def _why_uneven(strategy: StagedStrategy, graph: OperatorGraph) -> str | None:
    """Return which operator has no equal parts for micro-batches and devices, or None."""
    count = strategy.micro_batches
    if count < 1 or graph.batch_size % count:
        return f"{count} micro-batches do not divide a batch of {graph.batch_size}"
    for op, placement in zip(graph.operators, strategy.placements, strict=True):
        if (dim := op.sample_dim) >= 0:
            size, degree = op.dims[dim].size, placement.degrees[dim]
            if size % (count * degree):
                return (
                    f"operator {op.name!r} has {size} samples for {count} micro-batches on {degree} devices "
                    f"(needs a multiple of {count * degree})"
                )
    return None


def _why_programs_unfit(strategy: StagedStrategy, graph: OperatorGraph) -> str | None:
    """Return which program of a stage does not fit its operators, or None."""
    sources = {(v, into): u for u, _, v, into in graph.edges.reshape(-1, 4).tolist()}
    for number, stage in enumerate(strategy.stages):
        stage_of = strategy.stage_of_copies[strategy.copy_of[number]]
        inside = {
            (position, into)
            for position, op in enumerate(stage.operators.tolist())
            for into in range(len(graph.operators[op].inputs))
            if (op, into) in sources and stage_of[sources[op, into]] == number
        }
        operators = [graph.operators[op] for op in stage.operators.tolist()]
        if reason := why_program_unfit(stage.program, operators, inside):
            return f"stage {number}: {reason}"
    return None
