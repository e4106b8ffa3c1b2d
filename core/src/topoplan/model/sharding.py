"""Shardings and signatures: what holds when every device runs every operator, each on its share.

In an SPMD program (single program, multiple data) a tensor exists on all devices in one of four ways, a *sharding*:
whole on each (`REPLICATED`), a slice along one axis on each (`shard`), a term of a sum on each (`PARTIAL`), or a
parameter that each keeps whole and whose gradient is yet to be summed (`PENDING_GRADIENT`).  The first three are
Replicate, Shard and Partial of PyTorch's DTensor; the fourth is how data parallelism stores parameters.  A *signature*
of an operator says which shardings its arguments must have and which its outputs then have.

Texts of shardings, in files too, have HiDup's words (Zhang et al.: Accelerating Large-Scale Distributed Neural Network
Training with SPMD Parallelism, SoCC 2022, section 3): ``full``, ``gather_0``, ``reduce`` and ``replicate``.
`topoplan_engine.sharding` derives the signatures of an operator, and how a tensor comes from one sharding to another.
"""

from __future__ import annotations

from enum import StrEnum

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import Operator, Tensor

__all__ = [
    "PARTIAL",
    "PENDING_GRADIENT",
    "REPLICATED",
    "Holding",
    "MeshSharding",
    "Sharding",
    "Signature",
    "arguments",
    "shard",
]


class Holding(StrEnum):
    """What each device holds of a tensor."""

    REPLICATED = "full"
    """All of it."""
    SHARDED = "gather"
    """Its slice along one axis; the devices' slices, put together, are the tensor."""
    PARTIAL = "reduce"
    """A tensor of full shape; the devices' tensors, added up, are the tensor."""
    PENDING_GRADIENT = "replicate"
    """All of a parameter, whose gradients on the devices must still be added up."""


@attrs.frozen(cache_hash=True)
class Sharding:
    """What the devices hold of a tensor; ``axis`` is the axis of slices, -1 for the other holdings."""

    holding: Holding
    axis: int = -1

    def __attrs_post_init__(self) -> None:
        if self.sliced != (self.axis >= 0):
            lacks = "needs the axis that it is sliced along" if self.sliced else f"has no axis, not {self.axis}"
            raise TopoplanError(f"sharding {self.holding} {lacks}")

    def __str__(self) -> str:
        return f"{self.holding}_{self.axis}" if self.holding is Holding.SHARDED else str(self.holding)

    @property
    def sliced(self) -> bool:
        """Whether each device holds a slice."""
        return self.holding is Holding.SHARDED


REPLICATED = Sharding(Holding.REPLICATED)
PARTIAL = Sharding(Holding.PARTIAL)
PENDING_GRADIENT = Sharding(Holding.PENDING_GRADIENT)

#: The sharding of a tensor along every axis of a mesh.
MeshSharding = tuple[Sharding, ...]


def shard(axis: int) -> Sharding:
    """Return the sharding into slices along ``axis``."""
    return Sharding(Holding.SHARDED, axis)


@attrs.frozen(cache_hash=True)
class Signature:
    """The shardings of an operator's arguments (inputs, then weights) and outputs.

    Attributes:
        dim: the dimension that is cut over all devices; -1 where none is.  It is no part of what is compared.
    """

    inputs: tuple[Sharding, ...]
    outputs: tuple[Sharding, ...]
    dim: int = attrs.field(default=-1, eq=False)

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"


def arguments(op: Operator) -> tuple[Tensor, ...]:
    """Return what the operator reads: inputs, then weights."""
    return (*op.inputs, *op.weights)
