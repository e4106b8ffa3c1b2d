"""Resharding along one axis of a mesh: collectives, their conjugates in the backward pass, and their costs.

    source ─► convert(source, target) ─► collectives forward, collectives backward ─► seconds

Every forward collective has a *conjugate* for the gradients.  The gradient of slices has the same slices.  The gradient
of a whole tensor is in partial sums, one from each device, which the conjugate of the collective that made the tensor
whole adds up.  So the conjugate of an all-gather is a reduce-scatter, that of an all-reduce an all-reduce, and a whole
tensor that is sliced needs none.

No conversion leads to partial sums, nor to a parameter whose gradient is pending, which only storage can be.

Source: HiDup (Zhang et al., SoCC 2022, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol, runtime_checkable

import attrs
import numpy as np

from topoplan.model.cluster import Cluster
from topoplan.model.sharding import REPLICATED, Holding, Sharding
from topoplan.model.taskgraph import Collective

__all__ = ["CollectiveCosts", "CollectiveStep", "Conversion", "Local", "Rings", "convert", "seconds"]


class Local(StrEnum):
    """A step that each device does by itself: nothing is sent."""

    SLICE = "dynamic_slice"
    """The device takes its slice of the whole tensor."""
    IDENTITY = "replicate"
    """A parameter is read as it is."""


@attrs.frozen
class CollectiveStep:
    """One collective, or local step.

    Attributes:
        collective: its kind.
        axes: the axis along which it slices or joins; (split, joined) of an all-to-all; none of an all-reduce.
    """

    collective: Collective | Local
    axes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return "_".join((self.name, *map(str, self.axes)))

    @property
    def name(self) -> str:
        """HiDup's name of the step, for example ``all_gather``."""
        return self.collective.value if isinstance(self.collective, Local) else self.collective.name.lower()

    @property
    def free(self) -> bool:
        """Whether nothing is sent."""
        return isinstance(self.collective, Local)


@attrs.frozen
class Conversion:
    """The collectives that bring a tensor to another sharding, and those that bring its gradient back."""

    forward: tuple[CollectiveStep, ...]
    backward: tuple[CollectiveStep, ...]


def convert(source: Sharding, target: Sharding) -> Conversion | None:
    """Return the collectives from one sharding to another: none if they are equal; None if there is no way."""
    if source == target:
        return Conversion((), ())
    if target.holding not in (Holding.REPLICATED, Holding.SHARDED):
        return None
    reduce = CollectiveStep(Collective.ALL_REDUCE)
    local = () if target == REPLICATED else (CollectiveStep(Local.SLICE, (target.axis,)),)
    match source.holding:
        case Holding.REPLICATED:
            return Conversion(local, ())
        case Holding.PENDING_GRADIENT:
            return Conversion((CollectiveStep(Local.IDENTITY), *local), (reduce,))
        case Holding.PARTIAL if target == REPLICATED:
            return Conversion((reduce,), (reduce,))
        case Holding.PARTIAL:
            axes = (target.axis,)
            return Conversion(
                (CollectiveStep(Collective.REDUCE_SCATTER, axes),), (CollectiveStep(Collective.ALL_GATHER, axes),)
            )
        case _ if target == REPLICATED:
            axes = (source.axis,)
            return Conversion(
                (CollectiveStep(Collective.ALL_GATHER, axes),), (CollectiveStep(Collective.REDUCE_SCATTER, axes),)
            )
        case _:
            forward, backward = (target.axis, source.axis), (source.axis, target.axis)
            return Conversion(
                (CollectiveStep(Collective.ALL_TO_ALL, forward),),
                (CollectiveStep(Collective.ALL_TO_ALL, backward),),
            )


@runtime_checkable
class CollectiveCosts(Protocol):
    """The part of a cost function that prices collectives, if it has one."""

    @property
    def n_devices(self) -> int:
        """Number of devices that share work."""

    def collective(self, kind: Collective, nbytes: int) -> float:
        """Return the seconds of one collective over all devices, for a tensor of ``nbytes`` as a whole."""


def seconds(steps: Iterable[CollectiveStep], nbytes: int, costs: CollectiveCosts) -> float:
    """Return the seconds of the collectives one after the other, for a tensor of ``nbytes`` as a whole."""
    kinds = [step.collective for step in steps]
    return sum((costs.collective(kind, nbytes) for kind in kinds if isinstance(kind, Collective)), 0.0)


@attrs.frozen(kw_only=True)
class Rings:
    """Collectives as rings over all devices, for estimators that do not price collectives.

    Source of the formulas: Thakur, Rabenseifner, Gropp: Optimization of Collective Communication Operations in
    MPICH, IJHPCA 19(1), 2005.

    Attributes:
        n_devices: devices in the ring.
        bandwidth: bytes/s between two neighbours, of the slowest pair.
        shared: devices that send to other hosts through one host's interfaces.
        latency: seconds of a round.
    """

    n_devices: int
    bandwidth: float
    shared: int
    latency: float

    @classmethod
    def of(cls, cluster: Cluster) -> Rings:
        """Return the rings of a cluster; those of several hosts go through all interfaces of a host."""
        inside = float(cluster.inside_bandwidth.min())
        if cluster.n_hosts == 1:
            return cls(n_devices=cluster.n_devices, bandwidth=inside, shared=1, latency=cluster.latency)
        outside = float((cluster.interfaces * cluster.interface_bandwidth).min())
        return cls(
            n_devices=cluster.n_devices,
            bandwidth=min(inside, outside),
            shared=int(np.bincount(cluster.device_host).max()),
            latency=cluster.latency,
        )

    def collective(self, kind: Collective, nbytes: int) -> float:
        """Return the seconds of one collective; see `CollectiveCosts`."""
        rounds = self.n_devices - 1
        share = self.shared / self.n_devices if kind is Collective.ALL_TO_ALL else 1.0
        sent = nbytes / self.n_devices * share
        return rounds * (sent / self.bandwidth + self.latency) * (2 if kind is Collective.ALL_REDUCE else 1)
