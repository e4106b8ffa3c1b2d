"""The columns of one iteration that the kernel of the fluid simulator reads."""

from __future__ import annotations

from typing import NamedTuple

from topoplan_engine.network.tables import PathColumns, RingColumns
from topoplan_engine.simulation.columns import TaskColumns
from topoplan_engine.simulation.flows import Entities
from topoplan_simulator_fluid.slowed import Beside

__all__ = ["InPackets", "Prepared"]


class Prepared(NamedTuple):
    """What the kernel reads.

    Attributes:
        tasks, entities, paths, rings, n_devices: what runs, on what.
        transport: see `topoplan_engine.simulation.messages.Transport`.
        late_ends: on the wire, rates are renewed when one in so many of the flows has ended
            (`topoplan_simulator_fluid.max_min`).
        beside: devices that compute slower beside messages.
    """

    tasks: TaskColumns
    entities: Entities
    paths: PathColumns
    rings: RingColumns
    n_devices: int
    transport: int
    late_ends: int
    beside: Beside


class InPackets(Prepared):
    """Columns of a stepped iteration that runs packet by packet (`topoplan_simulator_fluid.packets`)."""

    __slots__ = ()
