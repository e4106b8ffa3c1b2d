"""A fabric that is rebuilt between the phases of an iteration, as an optical circuit switch does it.

`Fabric` is one network, in which messages find their ways.  `ReconfigurableFabric` is several that take turns, and the
time that a rebuild takes: it has no links to route over, and no column of `Fabric`.  What takes either is annotated
`AnyFabric`; what needs one network asks ``isinstance(fabric, Fabric)``, and refuses or goes through `wirings`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np

from topoplan.arrays import digest
from topoplan.errors import FabricError
from topoplan.model.fabric import Fabric, Switching

__all__ = ["AnyFabric", "ReconfigurableFabric"]


@attrs.frozen(kw_only=True)
class ReconfigurableFabric:
    """The fabrics of one iteration, in the order of time, and what it takes to get from one to the next.

    Attributes:
        forward, backward: for the forward and the backward pass.
        reduce: for the all-reduces after them.
        delay: seconds that a rebuild takes; nothing runs meanwhile.  None is needed between phases of the
            same wires, whose routes and rings may differ.
    """

    forward: Fabric
    backward: Fabric
    reduce: Fabric
    delay: float

    def __attrs_post_init__(self) -> None:
        if not 0 <= self.delay < float("inf"):
            raise FabricError(f"fabric {self.name!r}: delay {self.delay} s must be finite and not negative")
        for part in self.wirings:
            if not isinstance(part, Fabric):
                raise FabricError(f"fabric {self.name!r}: a phase is {type(part).__name__} (must be a Fabric)")
            if (part.n_hosts, part.n_switches) != (self.n_hosts, self.n_switches):
                raise FabricError(f"fabric {self.name!r}: a phase has other nodes ({part.n_nodes}, not {self.n_nodes})")

    @property
    def name(self) -> str:
        """Which topology built it."""
        return self.forward.name

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return self.forward.n_hosts

    @property
    def n_switches(self) -> int:
        """Number of switches that pass packets; what rebuilds the fabric is none of them."""
        return self.forward.n_switches

    @property
    def n_nodes(self) -> int:
        """Hosts and switches together."""
        return self.forward.n_nodes

    @property
    def switching(self) -> Switching | None:
        """What its links pass, for pricing them; None where the topology does not say."""
        return self.forward.switching

    @property
    def wirings(self) -> tuple[Fabric, Fabric, Fabric]:
        """The fabrics that exist one after the other."""
        return self.forward, self.backward, self.reduce

    def map_wirings(self, change: Callable[[Fabric], Fabric]) -> ReconfigurableFabric:
        """Return the fabric with each of its wirings changed."""
        forward, backward, reduce = (change(wiring) for wiring in self.wirings)
        return attrs.evolve(self, forward=forward, backward=backward, reduce=reduce)

    @functools.cached_property
    def key(self) -> bytes:
        """Hashable identity of the value, for caches, as `Fabric.key` is."""
        return digest([self])

    @functools.cached_property
    def links(self) -> Fabric:
        """The links of all phases, each as fast as it ever is: a list for reports, and no network to route in."""
        ends = np.concatenate([np.stack([part.link_src, part.link_dst], axis=1) for part in self.wirings])
        links, row = np.unique(ends, axis=0, return_inverse=True)
        columns: dict[str, Any] = {"link_src": links[:, 0], "link_dst": links[:, 1]}
        for name in ("link_count", "link_bandwidth", "link_latency", "link_kind"):
            columns[name] = np.zeros(len(links))
            np.maximum.at(columns[name], row.ravel(), np.concatenate([getattr(part, name) for part in self.wirings]))
        return attrs.evolve(self.forward, routes=None, rings={}, cycles=(), **columns)


#: A network that stays as it is, or one that is rebuilt in time: its properties are those of the other one, too.
AnyFabric = Fabric | ReconfigurableFabric
