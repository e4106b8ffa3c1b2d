"""How a strategy runs a model, in the words of parallel training: data, tensor and expert degrees, stages, devices.

Operators that are cut alike are one group, so that a strategy of hundreds of placements has a few lines.  What
is cut is read from the roles of dimensions (`topoplan.model.graph.Role`), and for programs on a mesh from their
signatures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs

from topoplan.model.graph import Operator, OperatorGraph, Role, Slices
from topoplan.model.sharding import Sharding, arguments
from topoplan.model.spmd import SpmdProgram
from topoplan.model.staged import StagedStrategy
from topoplan.model.strategy import Strategy
from topoplan_engine.distinct import distinct_values
from topoplan_engine.experts import expert_dims
from topoplan_engine.sharding.programs import pieces

__all__ = ["Cuts", "Group", "groups_of", "names_of"]


@attrs.frozen(kw_only=True)
class Cuts:
    """Into how many parts an operator is cut, by what the parts are; 1 for what is whole.

    Attributes:
        data: samples.
        slices: how many samples each slice has, where they are not cut as evenly as can be.
        expert: experts.
        tensor: channels of weights, by where they lie: ``out`` for those that an operator makes, ``in`` for those that
            it sums over, so that parts hold partial sums, ``heads`` for those of attention; without what is whole.
        attribute: positions or channels inside a sample, of what has no weights along them.
        copies: devices that run the same part.
    """

    data: int = 1
    slices: tuple[int, ...] = ()
    expert: int = 1
    tensor: tuple[tuple[str, int], ...] = ()
    attribute: int = 1
    copies: int = 1


@attrs.frozen(kw_only=True)
class Group:
    """Operators that run alike.

    Attributes:
        operators: their numbers, ascending.
        stage: of a pipeline, or -1.
        cuts: how each of them is cut.
        weights: of programs: for each axis of the mesh what a device holds of the weights, ``Replicate`` or
            ``Shard(axis of the weight)``; empty where there are none, or no program.
        gathered: weights in slices are put together for use.
        devices: device sets that run them, each ascending; one where all operators run on the same devices.
    """

    operators: tuple[int, ...]
    stage: int
    cuts: Cuts
    weights: tuple[str, ...]
    gathered: bool
    devices: tuple[tuple[int, ...], ...]


def groups_of(strategy: Strategy, graph: OperatorGraph) -> list[Group]:
    """Group the operators that run in the same way; groups are in the order of their first operators."""
    experts, stages = expert_dims(graph), strategy.stage_of.tolist()
    pipelined = isinstance(strategy, StagedStrategy) and strategy.program is None
    programs = _programs_of(strategy)
    operators_of: dict[tuple[object, ...], list[int]] = {}
    for index, (op, placement) in enumerate(zip(graph.operators, strategy.placements, strict=True)):
        program, row, _ = programs[index] if programs else (None, index, ())
        copies = 1 if program is None else program.n_devices // placement.parts
        cuts = _cuts(op, placement.degrees, experts[index], copies)
        weights = ((), False) if program is None else _weights(program, row, op)
        stage = stages[index] if pipelined else -1
        operators_of.setdefault((stage, cuts, *weights), []).append(index)
    groups = []
    for (stage, cuts, weights, gathered), operators in operators_of.items():  # type: ignore[assignment]
        if programs:  # operators of a stage have one tuple, which may be long
            sets = {*{id(programs[op][2]): programs[op][2] for op in operators}.values()}
        else:
            sets = {tuple(distinct_values(strategy.placements[op].devices).tolist()) for op in operators}
        groups.append(
            Group(
                operators=tuple(operators),
                stage=stage,  # type: ignore[arg-type]
                cuts=cuts,  # type: ignore[arg-type]
                weights=weights,  # type: ignore[arg-type]
                gathered=gathered,  # type: ignore[arg-type]
                devices=tuple(sorted(sets)),
            )
        )
    return groups


def _programs_of(strategy: Strategy) -> list[tuple[SpmdProgram, int, tuple[int, ...]]]:
    """Return for each operator its program, its number there, and the devices; nothing where there are no programs."""
    programs: dict[int, tuple[SpmdProgram, int, tuple[int, ...]]] = {}
    for stage in strategy.stages if isinstance(strategy, StagedStrategy) and not strategy.is_placed else ():
        devices = tuple(sorted(stage.mesh.devices.tolist()))
        programs |= {op: (stage.program, row, devices) for row, op in enumerate(stage.operators.tolist())}
    return [programs[op] for op in sorted(programs)]


def _cuts(op: Operator, degrees: Sequence[int], expert_dim: int, copies: int) -> Cuts:
    data, expert, attribute, tensor = 1, 1, 1, dict[str, int]()
    slices: tuple[int, ...] = ()
    for index, (dim, degree) in enumerate(zip(op.dims, degrees, strict=True)):
        if degree == 1:
            continue
        if index == expert_dim:
            expert *= degree
        elif dim.role is Role.SAMPLE:
            data *= int(degree)
            slices = degree.sizes if isinstance(degree, Slices) else slices
        elif dim.role is Role.ATTRIBUTE and not any(axis.dim == index for w in op.weights for axis in w.axes):
            attribute *= degree
        else:
            where = "out" if dim.role is not Role.REDUCTION else "heads" if op.kind == "attention" else "in"
            tensor[where] = tensor.get(where, 1) * degree
    return Cuts(
        data=data, slices=slices, expert=expert, tensor=tuple(tensor.items()), attribute=attribute, copies=copies
    )


def _weights(program: SpmdProgram, index: int, op: Operator) -> tuple[tuple[str, ...], bool]:
    """Return what a device holds of an operator's largest weight, and whether slices of it are put together."""
    numbers = range(len(op.inputs), len(arguments(op)))
    if not numbers:
        return (), False
    most = max(numbers, key=lambda k: arguments(op)[k].nbytes)
    stored = program.stored[index][most]
    gathered = pieces(program, program.wanted(index, most)) < pieces(program, stored)
    return tuple(map(_said, stored)), gathered


def _said(form: Sharding) -> str:
    return f"Shard({form.axis})" if form.sliced else "Replicate"


def names_of(operators: Sequence[int], graph: OperatorGraph) -> Mapping[str, int]:
    """Count operators by kind, the most frequent first."""
    counts: dict[str, int] = {}
    for op in operators:
        kind = graph.operators[op].kind
        counts[kind] = counts.get(kind, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
