"""From one tensor form to another: collectives, their conjugates in the backward pass, and what they cost.

    producer's form ─► convert(given, wanted) ─► collectives forward, collectives backward ─► seconds

Every forward collective has a *conjugate* that does the same for gradients.  The gradient of slices is sliced alike;
the gradient of a whole tensor is held in partial sums, one from what each device does with it, which the conjugate of
what made the tensor whole adds up.  So slices that were gathered come back as sums that are scattered, a sum that each
device gets comes back as a sum, and a whole tensor that is sliced needs nothing back.

No conversion leads to partial sums, nor to a replicated parameter, which only storage can be.

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
    """What each device does by itself to one tensor: nothing is sent."""

    SLICE = "dynamic_slice"
    """It keeps its slice of what it has."""
    IDENTITY = "replicate"
    """Nothing is done: a parameter is read as it is."""


@attrs.frozen
class CollectiveStep:
    """One collective, or local step; ``axes``: the one it slices or joins along, (split, joined) of an all-to-all."""

    collective: Collective | Local
    axes: tuple[int, ...] = ()

    def __str__(self) -> str:
        return "_".join((self.name, *map(str, self.axes)))

    @property
    def name(self) -> str:
        """HiDup's name of what is done: ``all_gather``."""
        return self.collective.value if isinstance(self.collective, Local) else self.collective.name.lower()

    @property
    def free(self) -> bool:
        """Whether nothing is sent."""
        return isinstance(self.collective, Local)


@attrs.frozen
class Conversion:
    """The collectives that bring a tensor into another form, and those that bring its gradient back."""

    forward: tuple[CollectiveStep, ...]
    backward: tuple[CollectiveStep, ...]


def convert(given: Sharding, wanted: Sharding) -> Conversion | None:
    """Return what makes ``wanted`` of ``given``: nothing at all for equal forms, None where it cannot be made."""
    if given == wanted:
        return Conversion((), ())
    if wanted.holding not in (Holding.REPLICATED, Holding.SHARDED):
        return None
    reduce = CollectiveStep(Collective.ALL_REDUCE)
    local = () if wanted == REPLICATED else (CollectiveStep(Local.SLICE, (wanted.axis,)),)
    match given.holding:
        case Holding.REPLICATED:
            return Conversion(local, ())
        case Holding.PENDING_GRADIENT:
            return Conversion((CollectiveStep(Local.IDENTITY), *local), (reduce,))
        case Holding.PARTIAL if wanted == REPLICATED:
            return Conversion((reduce,), (reduce,))
        case Holding.PARTIAL:
            at = (wanted.axis,)
            return Conversion(
                (CollectiveStep(Collective.REDUCE_SCATTER, at),), (CollectiveStep(Collective.ALL_GATHER, at),)
            )
        case _ if wanted == REPLICATED:
            at = (given.axis,)
            return Conversion(
                (CollectiveStep(Collective.ALL_GATHER, at),), (CollectiveStep(Collective.REDUCE_SCATTER, at),)
            )
        case _:
            there, back = (wanted.axis, given.axis), (given.axis, wanted.axis)
            return Conversion(
                (CollectiveStep(Collective.ALL_TO_ALL, there),), (CollectiveStep(Collective.ALL_TO_ALL, back),)
            )


@runtime_checkable
class CollectiveCosts(Protocol):
    """What a cost function has that prices collectives too."""

    @property
    def n_devices(self) -> int:
        """By how many devices work is divided where they share it."""

    def collective(self, kind: Collective, nbytes: int) -> float:
        """Return the seconds of one collective over all devices, for a tensor of ``nbytes`` as a whole."""


def seconds(steps: Iterable[CollectiveStep], nbytes: int, costs: CollectiveCosts) -> float:
    """Return the seconds of the collectives one after the other, for a tensor of ``nbytes`` as a whole."""
    kinds = [step.collective for step in steps]
    return sum((costs.collective(kind, nbytes) for kind in kinds if isinstance(kind, Collective)), 0.0)


@attrs.frozen(kw_only=True)
class Rings:
    """Collectives as rings over all devices, where an estimator says nothing of them.

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
        """Return the rings of a cluster: through a host's interfaces, all together, where there are several hosts."""
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
        alone = self.shared / self.n_devices if kind is Collective.ALL_TO_ALL else 1.0
        sent = nbytes / self.n_devices * alone
        return rounds * (sent / self.bandwidth + self.latency) * (2 if kind is Collective.ALL_REDUCE else 1)
