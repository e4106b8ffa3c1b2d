"""Layers whose parameters are gathered together, used, and given back.

Where parameters are stored in slices (ZeRO's third stage, Rajbhandari et al., SC 2020) and not kept, a device holds
those of one layer whole, and gathers those of the next one meanwhile, as FSDP2 and DeepSpeed do.  A layer is
what the names of operators say: ``layers.7`` of ``layers.7.mlp.up``.  An operator whose name has no number is a layer
by itself if it has parameters that are gathered, and belongs to the one before it if not.

    forward    gathers    1 | 2 |     3 (as 1 is given back) | ...
               computes       1       | 2                    | ...
    backward   the same from the end; the last layer stays in between, if its backward pass comes at once
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64, i32
from topoplan.model.graph import OperatorGraph
from topoplan.model.spmd import SpmdProgram
from topoplan.model.staged import StagedStrategy
from topoplan_engine.checkpoints import checkpoint_regions, repeated_operators
from topoplan_engine.sharding.programs import Reshard, pieces, reshards_of
from topoplan_engine.sharding.stage_graphs import StageGraph

if TYPE_CHECKING:
    from topoplan_engine.lowering.stage_sums import Gathering

__all__ = [
    "GatherUnits",
    "GathersAgain",
    "gather_units",
    "gathered_bytes",
    "gathers",
    "keeps_gathered",
    "parts_of",
    "sent_again",
    "stage_units",
    "units_of",
]

#: The part of an operator's name that names its layer: up to the first number that more of the name follows.
_LAYER = re.compile(r"(.*?\d+)[._]")


class GatherUnits(NamedTuple):
    """The layers of a program that gathers again.

    Attributes:
        unit: (n_ops,) layer of each operator, ascending.
        nbytes: (U,) bytes of what is gathered for each layer, on every device.
        given_back: reshardings whose result is given back: of parameters that operators of one layer use.
    """

    unit: I64
    nbytes: F64
    given_back: frozenset[Reshard]

    @property
    def last(self) -> int:
        """The last layer, which stays until its backward pass if no other pass comes in between."""
        return len(self.nbytes) - 1

    def in_backward(self) -> F64:
        """(n_ops,) gathered bytes while each operator's backward pass runs: its layer's, and the next one's."""
        gathered: F64 = (self.nbytes + np.append(0.0, self.nbytes[:-1]))[self.unit]
        return gathered


def gather_units(strategy: StagedStrategy, graph: OperatorGraph) -> GatherUnits | None:
    """Return the layers; None for a program that keeps what it gathers, or gathers nothing."""
    program = strategy.program
    if program is None or not program.gathers_again:
        return None
    return units_of(program, graph, reshards_of(program, graph), parts_of(strategy).tolist())


def parts_of(strategy: StagedStrategy) -> I32:
    """(n_ops,) the parts in which micro-batches take turns; each operator is one where the whole batch goes through."""
    return i32(np.arange(len(strategy.placements))) if strategy.whole_batch else strategy.stage_of


def units_of(
    program: SpmdProgram, graph: OperatorGraph, reshards: Sequence[Reshard], stage: Sequence[int]
) -> GatherUnits | None:
    """Return the layers of a program that gathers again, given its reshardings and the stage of each operator."""
    gathers = [reshard for reshard in reshards if _is_gather(program, reshard)]
    if not gathers:
        return None
    unit = _units([op.name for op in graph.operators], stage, {r.users[0] for r in gathers})
    given_back = [reshard for reshard in gathers if len({int(unit[op]) for op in reshard.users}) == 1]
    nbytes = np.zeros(int(unit[-1]) + 1)
    for reshard in given_back:
        nbytes[unit[reshard.users[0]]] += gathered_bytes(program, reshard)
    return GatherUnits(unit, nbytes, frozenset(given_back))


def stage_units(stage: StageGraph) -> GatherUnits | None:
    """Return the layers of a stage, each of whose operators is a part; None where nothing is gathered."""
    return units_of(stage.program, stage.graph, stage.reshards, range(len(stage.operator)))


def gathered_bytes(program: SpmdProgram, reshard: Reshard) -> float:
    """Return the bytes of the result of a resharding on one device."""
    return reshard.nbytes / pieces(program, program.wanted(reshard.users[0], reshard.argument))


def gathers(program: SpmdProgram, graph: OperatorGraph) -> bool:
    """Return whether a program puts some parameter together of slices."""
    return any(_is_gather(program, reshard) for reshard in reshards_of(program, graph))


def keeps_gathered(stage: StageGraph, *, at_once: bool) -> bool:
    """Return whether gathered weights stay for all micro-batches, and their gradients are whole until the last one.

    PyTorch's pipelines do so where FSDP2 does not give weights back after a forward pass.  Without a pipeline it gives
    them back after the backward pass.

    Args:
        stage: the stage.
        at_once: whether backward passes follow their forward passes, with none of another micro-batch in between.

    Source: pytorch/pytorch, ``distributed/pipelining/stage.py`` (``backward_maybe_with_nosync``).
    """
    return not stage.program.gathers_again and bool(stage.receives or stage.sends or not at_once)


def _is_gather(program: SpmdProgram, reshard: Reshard) -> bool:
    if not reshard.parameter:
        return False
    stored = program.stored[reshard.op][reshard.argument]
    return pieces(program, program.wanted(reshard.op, reshard.argument)) < pieces(program, stored)


def _units(names: Sequence[str], stage: Sequence[int], gathers: set[int]) -> I64:
    """Number the layers of operators, given names, stages of a schedule, which no layer divides, and who gathers.

    >>> _units(["embed", "h.0.up", "h.0.relu", "h.1.up", "loss"], [0, 1, 2, 3, 4], {0, 1, 3}).tolist()
    [0, 1, 1, 2, 2]
    """
    unit = np.zeros(len(names), dtype=np.int64)
    layer = None
    for op, name in enumerate(names):
        match = _LAYER.match(name)
        key = match.group(1) if match else name if op in gathers else layer
        begins = op > 0 and key != layer and stage[op] != stage[op - 1]
        unit[op] = unit[op - 1] + begins if op else 0
        if op == 0 or begins:
            layer = key
    return unit


class GathersAgain:
    """Gathers parameters for the backward pass, each layer's while the one behind it computes."""

    def __init__(
        self, writer: Gathering, units: GatherUnits, runs_backward: Sequence[bool], *, at_once: bool = True
    ) -> None:
        """Gather what is given back; ``at_once``: the last layer stayed, for its backward pass follows."""
        self._writer, self._unit = writer, units.unit
        self._reshards: dict[int, list[Reshard]] = {}
        for reshard in sorted(units.given_back, key=lambda each: (each.users[0], each.argument), reverse=True):
            number = int(units.unit[reshard.users[0]])
            stayed = at_once and number == units.last
            if not stayed and any(runs_backward[op] for op in reshard.users):
                self._reshards.setdefault(number, []).append(reshard)
        self._ends: dict[Reshard, Any] = {}
        self._begun = units.last + 2

    def before(self, op: int, reshards: Sequence[Reshard]) -> list[Any]:
        """Return what a backward pass, or one that runs again for it, waits for; with a new layer, gather the next one.

        Args:
            op: the operator, of the same layer as the last one or of one before it.
            reshards: of its inputs.
        """
        number = int(self._unit[op])
        while self._begun > number:
            self._begun -= 1
            # At the begin of a layer the one behind it has just been computed, and given back.  Before the last layer
            # begins there is nothing to hide its own gather behind.
            for reshard in self._reshards.get(self._begun - 1, ()):
                computed = [self._writer.computed]
                self._ends[reshard] = self._writer.exchange(reshard, reshard.forward, computed)
        return [self._ends[reshard] for reshard in reshards if reshard in self._ends]


def sent_again(
    graph: OperatorGraph, reshards: Sequence[Reshard], runs_backward: Sequence[bool]
) -> dict[int, list[Reshard]]:
    """Return the last operator of each checkpointed region -> the reshardings inside of it that run again."""
    region, repeated = checkpoint_regions(graph).tolist(), repeated_operators(graph)
    last = {number: op for op, number in enumerate(region) if number >= 0 and runs_backward[op]}
    repeats: dict[int, list[Reshard]] = {}
    for reshard in reshards if last else ():
        number = region[reshard.op]
        if reshard.output >= 0 and repeated[reshard.op] and any(region[op] == number for op in reshard.users):
            repeats.setdefault(last[number], []).append(reshard)
    return repeats
