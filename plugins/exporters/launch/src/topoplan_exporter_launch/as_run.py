"""Plans that leave to a trainer what it does with gradients, as it runs them: sums in fp32, clipping, its streams.

A plan of one program, or of placements, says nothing of the bytes in which gradients are summed, nor of their norm.
Megatron-LM and torchtitan sum them in fp32 where weights are in bf16, and let updates wait for the norm of all; and
each communicator has a stream of its own.  `as_run` says so in stages, as `--plan-from` reads it from the files here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from topoplan import Cluster, DeviceMesh, OperatorGraph, Stage, StagedStrategy, Strategy, TopoplanError, Zero
from topoplan.arrays import I32
from topoplan.model.sharding import Signature
from topoplan.model.spmd import SpmdProgram
from topoplan_engine.pass_orders import alternating_order
from topoplan_engine.recomputation import regions_of
from topoplan_engine.sharding.programs import why_invalid
from topoplan_engine.sharding.signatures import signatures
from topoplan_engine.sharding.stage_programs import stage_programs
from topoplan_exporter_launch.grid import Grid
from topoplan_exporter_launch.meshes import places_of, sliced_along
from topoplan_exporter_launch.targets import Target

__all__ = ["as_run", "unsaid"]


def as_run(graph: OperatorGraph, cluster: Cluster, strategy: Strategy, target: Target, *, gives_back: bool) -> Strategy:
    """Return a strategy with what a trainer adds to it; the same one where it says that itself, or is none of those.

    Args:
        graph, cluster, strategy: what is trained, where and how.
        target: named in messages.
        gives_back: whether the trainer always gives back what it gathers of weights in slices.
    """
    try:
        if isinstance(strategy, StagedStrategy) and not strategy.one_stream and not strategy.is_placed:
            return strategy
        if strategy.program is not None and strategy.whole_batch:
            full: StagedStrategy | None = _of_program(graph, strategy.program, target, gives_back=gives_back)
        elif isinstance(strategy, StagedStrategy):
            full = _of_pipeline(graph, strategy) if strategy.is_placed else None
        else:
            full = _of_stages(graph, strategy, [range(len(graph.operators))])
    except TopoplanError:  # what the trainer does not run is refused elsewhere
        return strategy
    return strategy if full is None or why_invalid(full, graph, cluster.n_devices) else full


def _of_program(graph: OperatorGraph, program: SpmdProgram, target: Target, *, gives_back: bool) -> StagedStrategy:
    """Return the one stage of a program."""
    places = places_of(graph, program, (-1,) * len(graph.operators), target)
    sliced = sorted(sliced_along(graph, program, places, target))
    shares = program.sharded_state and not sliced
    (body,) = stage_programs(  # small weights are in slices with the others
        graph,
        [0] * len(graph.operators),
        [program.mesh],
        program.rules,
        program.gradient_bucket_bytes,
        sliced,
        gathers_again=program.gathers_again or gives_back,
    )
    zero = Zero(level=2, axes=places.data_axes) if shares else Zero()
    mesh = DeviceMesh(axes=[f"d{axis}" for axis in range(len(program.mesh))], sizes=program.mesh)
    stage = Stage(
        operators=np.arange(len(graph.operators)), mesh=mesh, body=body, zero=zero, gradient_bytes=_bytes(graph)
    )
    return StagedStrategy.of(graph, [stage], alternating_order("1f1b", [0], 1), 1, True)


def _of_pipeline(graph: OperatorGraph, strategy: StagedStrategy) -> StagedStrategy | None:
    """Return the stages of a pipeline of placed operators; all of them recompute their layers, or none does."""
    members = [stage.operators.tolist() for stage in strategy.stages]
    recomputes = strategy.recomputes
    if any(recomputes) and not all(recomputes):
        return None
    return _of_stages(graph, strategy, members, strategy, recompute="full" if any(recomputes) else "none")


def _of_stages(
    graph: OperatorGraph,
    strategy: Strategy,
    members: Sequence[Sequence[int]],
    pipeline: StagedStrategy | None = None,
    *,
    recompute: str = "none",
) -> StagedStrategy | None:
    """Return stages of placed operators as programs; None where one cuts more than its samples.

    Args:
        graph, strategy: see `as_run`.
        members: operators of each stage.
        pipeline: has the order of passes; None for one stage that takes the whole batch.
        recompute: what runs again.
    """
    rules: list[tuple[Signature, ...]] = [()] * len(graph.operators)
    devices: list[I32] = []
    for operators in members:
        devices.append(strategy.placements[operators[0]].devices)
        for op in operators:
            operator, placement = graph.operators[op], strategy.placements[op]
            cut = operator.sample_cut(len(devices[-1]))
            rule = next((rule for rule in signatures(operator) if rule.dim == operator.sample_dim), None)
            if placement.degrees != cut or not np.array_equal(placement.devices, devices[-1]) or rule is None:
                return None
            rules[op] = (rule,)
    stage_of = np.empty(len(rules), dtype=np.int64)
    for number, operators in enumerate(members):
        stage_of[list(operators)] = number
    regions = regions_of(recompute, graph)
    programs = stage_programs(graph, stage_of.tolist(), [(len(each),) for each in devices], rules)
    stages = [
        Stage(
            operators=operators,
            mesh=DeviceMesh(axes=["dp"], sizes=[len(devices[number])], devices=devices[number]),
            body=programs[number],
            recomputed=() if recompute == "none" else regions[list(operators)],
            gradient_bytes=_bytes(graph),
        )
        for number, operators in enumerate(members)
    ]
    if pipeline is None:
        return StagedStrategy.of(graph, stages, alternating_order("1f1b", [0], 1), 1, True)
    return StagedStrategy.of(graph, stages, pipeline.order, pipeline.micro_batches, True, pipeline.blocks)


def unsaid(graph: OperatorGraph, grid: Grid) -> tuple[str, ...]:
    """Return lines that say what a plan leaves to a trainer, which its price does not have; none if nothing."""
    if grid.clips is not None or graph.precision != "bf16":
        return ()
    return (
        "Unless settings say otherwise, gradients are summed in fp32 and clipped. The time of the plan has neither;",
        "topoplan optimize with --for and the trainer's name, or with --plan-from and this file, has both.",
    )


def _bytes(graph: OperatorGraph) -> int:
    """Return the bytes of a number of a gradient where it is summed; 0 for those of the weight.

    Megatron-LM sets ``accumulate_allreduce_grads_in_fp32`` with ``--bf16``; torchtitan's ``mixed_precision_reduce`` is
    ``float32``.
    """
    return 4 if graph.precision == "bf16" else 0
