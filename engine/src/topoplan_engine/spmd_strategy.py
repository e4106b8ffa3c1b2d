"""One program over all devices, in which micro-batches may overlap: what planners of HiDup's kind propose.

Every device has one compute stream and one communication stream, both in the order of the program; a stage of a
`topoplan.StagedStrategy` has a stream for each communicator, and no two micro-batches of one rank under way at a time.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np

from topoplan.arrays import ARRAY_EQ, I32, OneLine, digest, i32
from topoplan.model.graph import OperatorGraph
from topoplan.model.placement import Placement
from topoplan.model.spmd import SpmdProgram
from topoplan.model.strategy import PlacedStrategy, Strategy, why_misordered
from topoplan_engine.sharding.fitting_stages import why_few_samples, why_program_unfit

__all__ = ["SpmdStrategy"]


@attrs.frozen(repr=False, hash=False)
class SpmdStrategy(OneLine, Strategy):
    """Every device runs every operator, each on its share of the tensors; placements only show how that cuts them.

    Stages follow each other on all devices.  Where there are several micro-batches, they take turns in each stage, and
    one computes while another one communicates (HiDup, Zhang et al., SoCC 2022, section 3.3, with two of them).  With
    one micro-batch and a stage for every operator the batch goes through in the order of the program.

    Attributes:
        program: the shardings of all tensors on a mesh of devices.
        stage_of: (n_ops,) stage of each operator, from 0 without gaps; never falls along an edge.
        micro_batches: equal parts of the batch.  Activations of all are there when the forward pass ends.
    """

    program: SpmdProgram
    stage_of: I32 = attrs.field(converter=i32, eq=ARRAY_EQ)
    micro_batches: int = 1

    @classmethod
    def of(cls, program: SpmdProgram, graph: OperatorGraph) -> SpmdStrategy:
        """Return the strategy of a program that takes the whole batch at once."""
        cuts = [program.degrees(index, len(op.dims)) for index, op in enumerate(graph.operators)]
        placements = tuple(Placement(cut, np.arange(int(np.prod(cut, dtype=np.int64)))) for cut in cuts)
        return cls(placements, program, np.arange(len(cuts)))

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def whole_batch(self) -> bool:
        """See `Strategy.whole_batch`."""
        return self.micro_batches == 1 and bool((self.stage_of == np.arange(len(self.stage_of))).all())

    @property
    def order_name(self) -> str:
        """See `Strategy.order_name`."""
        return "two-microbatch"

    @property
    def _order_key(self) -> bytes:
        return digest([self.program, self.stage_of, self.micro_batches])

    def with_changes(self, changes: Mapping[int, Placement]) -> Strategy:
        """Return placements alone: a program says more than they do, and fits changed ones no longer."""
        return PlacedStrategy(self.placements).with_changes(changes)

    def why_invalid(self, graph: OperatorGraph, n_devices: int) -> str | None:
        """Return why program, placements, stages and cluster do not go together, or None if they do."""
        program = self.program
        if program.n_devices != n_devices:
            return f"program: a mesh of {' x '.join(map(str, program.mesh))} for {n_devices} devices"
        if len(program.rules) != len(graph.operators) or len(program.stored) != len(graph.operators):
            count = len(graph.operators)
            return f"program: signatures of {len(program.rules)} operators, model {graph.name!r} has {count}"
        fed = {(v, into) for _, _, v, into in graph.edges.reshape(-1, 4).tolist()}
        if reason := why_program_unfit(program, graph.operators, fed):
            return reason
        for index, (op, placement) in enumerate(zip(graph.operators, self.placements, strict=True)):
            if placement.degrees != (cut := program.degrees(index, len(op.dims))):
                return f"program: operator {op.name!r} is cut by {cut}, its placement by {placement.degrees}"
        return (
            _why_misnumbered(self.stage_of, graph)
            or why_misordered(self.stage_of, graph)
            or why_few_samples(graph, self.placements, self.micro_batches)
        )


def _why_misnumbered(stage_of: I32, graph: OperatorGraph) -> str | None:
    """Return which stage is missing of (n_ops,) stages, or None."""
    if len(stage_of) != len(graph.operators):
        return f"stages of {len(stage_of)} operators, model {graph.name!r} has {len(graph.operators)}"
    missing = np.setdiff1d(np.arange(stage_of.max() + 1), stage_of)
    if stage_of.min() < 0 or len(missing):
        return f"stage {missing[0] if len(missing) else stage_of.min()} has no operator (stages begin at 0)"
    return None
