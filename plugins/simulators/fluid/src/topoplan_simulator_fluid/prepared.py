"""The columns of one iteration that the kernel of the fluid simulator reads."""

from __future__ import annotations

from typing import NamedTuple

from topoplan_engine.network.tables import PathColumns, RingColumns
from topoplan_engine.simulation.columns import TaskColumns
from topoplan_engine.simulation.flows import Entities

__all__ = ["Prepared"]


class Prepared(NamedTuple):
    """What the kernel reads."""

    tasks: TaskColumns
    entities: Entities
    paths: PathColumns
    rings: RingColumns
    n_devices: int
