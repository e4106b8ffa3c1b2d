"""Which strategies a trainer can run, as a value that searchers get before they plan.

Trainers put devices on a mesh along each of whose axes all operators do the same: they cut samples, or matrices as
Megatron-LM does, or experts (`AxisUse`).  A `Restriction` lists the meshes of one trainer, says which signature an
operator may have along an axis, in which sharding a parameter may be stored, which conversions of activations the
trainer sends, and what its pipelines are like.  At last `Restriction.refusal` looks at a whole strategy.

Exporters have one (`topoplan.Exporter.restriction`).  A search that is restricted has it in `topoplan.Problem`, and
searchers whose class says that they are ``restrictable`` obey it:

    exporter ─► restriction ─► problem ─► searcher: only strategies that the trainer runs ─► exporter writes the plan
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import Literal

import attrs

from topoplan.model.cluster import Cluster
from topoplan.model.graph import Operator, OperatorGraph
from topoplan.model.sharding import Sharding, Signature
from topoplan.model.strategy import Strategy

__all__ = ["AxisUse", "PipelineLimits", "Restriction"]


class AxisUse(StrEnum):
    """What an axis of a mesh is for."""

    DATA = "data"
    """Samples are cut, and parameters are whole."""
    SHARDED_DATA = "fsdp"
    """Samples are cut, and parameters are stored in slices (ZeRO's third stage, fully sharded data parallelism)."""
    EXPERT = "expert"
    """Experts are cut, and samples elsewhere."""
    TENSOR = "tensor"
    """Matrices are cut by columns and by rows in turn, and everything else is whole."""
    SEQUENCE = "tensor and sequence"
    """The same, and what lies between matrices is cut by positions."""
    MODEL = "model"
    """Anything is cut."""


@attrs.frozen(kw_only=True)
class PipelineLimits:
    """The pipelines that a trainer runs.

    Attributes:
        cuts: where stages may end: behind whole layers, or behind any operator.
        schedules: names of pass orders (`topoplan.PassOrder.name`).
        recompute: which stages may run their forward passes twice: any, all or none, or none.
    """

    cuts: Literal["layers", "operators"]
    schedules: tuple[str, ...]
    recompute: Literal["any", "all or none", "none"]


class Restriction(ABC):
    """Which strategies a trainer runs; the methods here allow everything.

    Attributes:
        name: of the trainer, in messages.
        meshes: the uses of the axes of its meshes, the first axis being the slowest one; any axis may have one device.
        shards_state: it can keep parameters whole and slices of gradients and optimizer state (ZeRO's second stage).
        pipelines: its pipelines; None if it has none.

    Example: a trainer that has data parallelism alone.

        >>> class Plain(Restriction):
        ...     name = "plain"
        ...     meshes = ((AxisUse.DATA,),)
        ...
        ...     def refusal(self, graph, cluster, strategy):
        ...         return "" if strategy.whole_batch else "plain: has no pipelines"
        >>> Plain().pipelines is None
        True
    """

    name: str = ""
    meshes: tuple[tuple[AxisUse, ...], ...] = ()
    shards_state: bool = False
    pipelines: PipelineLimits | None = None

    def allows(self, operator: Operator, use: AxisUse, signature: Signature) -> bool:
        """Say whether an operator may have a signature along an axis of this use."""
        return True

    def stores(self, elements: int, use: AxisUse, stored: Sharding, used: Sharding) -> bool:
        """Say whether a parameter of so many elements may be stored so along an axis where its operator uses it so."""
        return True

    def converts(self, use: AxisUse, source: Sharding, target: Sharding) -> bool:
        """Say whether along an axis an activation that is made so may be wanted in another sharding."""
        return True

    @abstractmethod
    def refusal(self, graph: OperatorGraph, cluster: Cluster, strategy: Strategy) -> str:
        """Say why the trainer cannot run a whole strategy, naming the first operator; empty if it can."""
