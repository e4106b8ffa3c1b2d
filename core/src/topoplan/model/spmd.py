"""SPMD programs: which sharding every device has of every tensor, on a mesh of devices.

If single devices have parts of operators, a strategy is placements.  If all devices run every operator, each on
its share (single program, multiple data), it is more: tensors change their shardings between operators, by collectives
that placements do not tell.  An `SpmdProgram` holds, for every operator and every axis of a mesh of devices, the
signature that it runs under, and the sharding in which everything is stored that no operator makes.  What changes its
sharding follows from that (`topoplan_engine.sharding.programs`); `topoplan_engine.lowering.spmd` makes tasks of it.

The mesh numbers devices with its last axis fastest: on (2, 4) the second axis joins devices 0-3 and 4-7.
Along each axis shardings are those of `topoplan.model.sharding`; where two axes slice one axis of a tensor, the later
one slices the slices of the earlier one.
"""

from __future__ import annotations

import math

import attrs

from topoplan.arrays import ints
from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan.model.sharding import MeshSharding, Signature, arguments

__all__ = ["SpmdProgram"]


@attrs.frozen(kw_only=True, cache_hash=True)
class SpmdProgram:
    """What every device does.

    Attributes:
        mesh: devices along each axis.
        rules: (n_ops) signatures of each operator, one for every axis of the mesh.
        stored: (n_ops) for every argument of each operator (inputs, then weights) its shardings along the axes, where
            no operator makes it; empty where one does.
        sharded_state: whether devices with equal parameters share what the optimizer and the gradients need of memory
            (ZeRO's second stage, Rajbhandari et al., SC 2020); as much is sent as without.
    """

    mesh: tuple[int, ...] = attrs.field(converter=ints)
    rules: tuple[tuple[Signature, ...], ...]
    stored: tuple[tuple[MeshSharding, ...], ...]
    sharded_state: bool = False

    def __attrs_post_init__(self) -> None:
        if not self.mesh or min(self.mesh) < 1:
            raise TopoplanError(f"program: a mesh of {self.mesh} devices (at least one along each of its axes)")

    @property
    def n_devices(self) -> int:
        """Devices of the mesh."""
        return math.prod(self.mesh)

    def made(self, op: int, output: int) -> MeshSharding:
        """Return the shardings in which an operator makes an output."""
        return tuple(rule.outputs[output] for rule in self.rules[op])

    def wanted(self, op: int, argument: int) -> MeshSharding:
        """Return the shardings in which an operator wants an argument."""
        return tuple(rule.inputs[argument] for rule in self.rules[op])

    def degrees(self, op: int, n_dims: int) -> tuple[int, ...]:
        """Return the cut of an operator that its signatures make."""
        degrees = [1] * n_dims
        for rule, size in zip(self.rules[op], self.mesh, strict=True):
            if rule.dim >= 0:
                degrees[rule.dim] *= size
        return tuple(degrees)

    def why_invalid(self, graph: OperatorGraph, n_devices: int) -> str | None:
        """Return why the program is none for this model on so many devices, or None if it is one.

        Whether it computes what the graph says is asked of `topoplan_engine.sharding.programs.why_invalid`.
        """
        if self.n_devices != n_devices:
            return f"program: a mesh of {' x '.join(map(str, self.mesh))} for {n_devices} devices"
        if len(self.rules) != len(graph.operators) or len(self.stored) != len(graph.operators):
            return (
                f"program: signatures of {len(self.rules)} operators, model {graph.name!r} has {len(graph.operators)}"
            )
        fed_inputs = {(v, into) for _, _, v, into in graph.edges.reshape(-1, 4).tolist()}
        for index, op in enumerate(graph.operators):
            where, count = f"program: operator {op.name!r}", len(arguments(op))
            rules, stored = self.rules[index], self.stored[index]
            if len(rules) != len(self.mesh) or len(stored) != count:
                return f"{where}: needs {len(self.mesh)} signatures and shardings of {count} arguments"
            for rule in rules:
                if len(rule.inputs) != count or len(rule.outputs) != len(op.outputs) or rule.dim >= len(op.dims):
                    return f"{where}: signature {rule} does not fit its {count} arguments"
            for argument, shardings in enumerate(stored):
                if len(shardings) != (0 if (index, argument) in fed_inputs else len(self.mesh)):
                    return f"{where}: argument {argument} has {len(shardings)} shardings in storage"
        return None
