"""Operators that work piece by piece while slices of what they read go around a ring of devices.

In place of an all-gather among `p` devices each one sends what it has to its neighbour, and hands on what it gets, in
`p - 1` steps; meanwhile the operator works on the slices that are there.  In the backward pass the slices go around
again, and sums of their gradients after them, to where the slices are stored.

    forward    sends            X1 | X2 | X3             X: keys and values of another device
               computes      C0 | C1 | C2 | C3
    backward   sends            X1 | X2 | X3
               computes      C0 | C1 | C2 | C3
               sends                 | G1 | G2 | G3      G: the sum of their gradients so far

A matrix whose rows or columns are cut reads a gathered tensor so, or makes sums that are scattered so: its terms of
each slice are added one device after the other while the next piece is worked on.  What it read is gathered again, at
once, for the gradients of weights.

    columns    sends            X1 | X2 | X3             rows    computes   C0 | C1 | C2 | C3
               computes      C0 | C1 | C2 | C3                   sends           | S0 | S1 | S2

So runs tensor parallelism whose messages hide behind products (Wang et al., Overlap Communication with Dependent
Computation via Decomposition, ASPLOS 2023; Transformer Engine's userbuffers; PyTorch's async tensor parallelism), and
ring attention (Liu et al., Ring Attention with Blockwise Transformers, 2023).  Where attention is causal and
each device has one slice of the positions, device `r` works on `r + 1` of the `p` pieces alone, on its own one half as
much; with zig-zag halves, the `r`-th from both ends, every device has as much work in every piece (Zhu,
ring-flash-attention, 2024; Megatron-LM's context parallelism).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64
from topoplan.model.graph import Operator
from topoplan.model.sharding import Signature
from topoplan.model.staged import Stage
from topoplan.model.taskgraph import Collective
from topoplan_engine.lowering.spmd_costs import DeviceCosts
from topoplan_engine.sharding.mesh import MeshStep
from topoplan_engine.sharding.programs import Reshard
from topoplan_engine.sharding.stage_graphs import StageGraph
from topoplan_engine.training import shared_weights

__all__ = ["Ring", "causal_passes", "rings_of", "works_in_order"]


class Ring(NamedTuple):
    """What an operator reads from a ring, or adds up along one.

    Attributes:
        axis: of the mesh.
        gathers, scatters: reshardings in whose place it is: of what is read, and of what is made.
        gathered, scattered: bytes of these, on all devices of a ring together; each sends its share in a step.
        work: (p, D) shares of the operator's seconds that each place spends on each piece.
    """

    axis: int
    gathers: tuple[Reshard, ...]
    scatters: tuple[Reshard, ...]
    gathered: int
    scattered: int
    work: F64

    @property
    def reshards(self) -> tuple[Reshard, ...]:
        """All reshardings in whose place it is."""
        return self.gathers + self.scatters


def rings_of(stage: StageGraph) -> dict[int, Ring]:
    """Return the rings of a stage's operators, by their numbers in its graph."""
    rings = {}
    columns, mesh = stage.stage.rings.tolist(), stage.program.mesh
    for op, position in enumerate(stage.position):
        axis = columns[position] if position >= 0 and columns else -1
        if axis < 0 or mesh[axis] == 1:
            continue
        operator = stage.graph.operators[op]
        trains = operator.weights or shared_weights(operator)  # what has weights gathers for all that read the same
        first = [each for each in stage.reshards if each.users[0] == op and (trains or each.users == (op,))]
        gathers = tuple(each for each in first if _sends_along(each, axis, Collective.ALL_GATHER))
        reshards = [each for each in stage.reshards if each.op == op]
        scatters = tuple(each for each in reshards if _sends_along(each, axis, Collective.REDUCE_SCATTER))
        if gathers or scatters:
            ordered = stage.stage.zigzag or axis not in _cuts_of_queries(operator, stage.program.rules[op])
            work = _even(mesh, axis) if ordered else _in_order(mesh, axis)
            rings[op] = Ring(axis, gathers, scatters, _bytes(gathers), _bytes(scatters), work)
    return rings


def _bytes(reshards: Sequence[Reshard]) -> int:
    return sum(round(each.nbytes * _sent(each)[0].share) for each in reshards)


def _sent(reshard: Reshard) -> list[MeshStep]:
    return [step for step in reshard.forward if not step.free]


def _sends_along(reshard: Reshard, axis: int, kind: Collective) -> bool:
    sent = _sent(reshard)
    return reshard.output >= 0 and len(sent) == 1 and sent[0].step.collective is kind and sent[0].axes == (axis,)


def _cuts_of_queries(operator: Operator, rules: Sequence[Signature]) -> list[int]:
    """Return the axes of the mesh that cut the positions of queries of a causal attention to all positions."""
    if "causal" not in operator.tags or "window" in operator.tags:
        return []
    queries = next(number for number, dim in enumerate(operator.dims) if dim.name == "q")
    return [axis for axis, rule in enumerate(rules) if rule.dim == queries]


def _even(mesh: tuple[int, ...], axis: int) -> F64:
    return np.full((mesh[axis], math.prod(mesh)), 1.0 / mesh[axis])


def _in_order(mesh: tuple[int, ...], axis: int) -> F64:
    """(p, D) shares where device `r` works on its own piece, of which half counts, and on those of `r` before it.

    >>> _in_order((3,), 0).tolist()
    [[1.0, 0.3333333333333333, 0.2], [0.0, 0.6666666666666666, 0.4], [0.0, 0.0, 0.4]]
    """
    place = np.unravel_index(np.arange(math.prod(mesh)), mesh)[axis]
    piece = np.arange(mesh[axis])[:, None]
    work: F64 = np.where(piece == 0, 0.5, (piece <= place).astype(np.float64)) / (place + 0.5)
    return work


def works_in_order(stage: Stage, operators: Sequence[Operator]) -> bool:
    """Return whether causal attention is more work on devices with later positions."""
    rules = zip(operators, stage.program.rules, strict=True)
    return not stage.zigzag and any(_cuts_of_queries(operator, each) for operator, each in rules)


def causal_passes(stage: Stage, operators: Sequence[Operator], passes: Sequence[DeviceCosts]) -> list[DeviceCosts]:
    """Return what operators cost where causal attention is more work on devices with later positions.

    Of `p` slices in order the `r`-th one attends to `r` whole ones and to half of itself: `(2r + 1) / p` of the mean.
    """
    if stage.zigzag:
        return list(passes)
    result = []
    mesh = stage.mesh.sizes
    places = np.unravel_index(np.arange(stage.mesh.n_devices), mesh)
    for operator, rules, price in zip(operators, stage.program.rules, passes, strict=True):
        number, count = np.zeros(stage.mesh.n_devices), 1
        for axis in _cuts_of_queries(operator, rules):
            number, count = number * mesh[axis] + places[axis], count * mesh[axis]
        work = (2 * number + 1) / count
        changed = price._replace(forward=price.forward * work, backward=price.backward * work)
        result.append(price if count == 1 else changed)
    return result
