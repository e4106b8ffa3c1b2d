"""What timing a pipeline under a schedule writes into, so that thousands of pipelines need no new arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64
from topoplan_searcher_pipeline.stage_simulation import Room

__all__ = ["ScheduleRoom", "room_for"]


class ScheduleRoom(NamedTuple):
    """What a schedule writes into.

    Attributes:
        recomputes: (S,) stages with recomputation.
        peaks: (2, S) see `memory_of`.
        stages: (5, S) times of stages, in the order of `StageTimes`.
        inside, loads: (E,), (2, E, H) likewise; loads are ``egress`` and ``ingress``.
        simulation: what the simulation writes into.
    """

    recomputes: NDArray[np.bool_]
    peaks: F64
    stages: F64
    inside: F64
    loads: F64
    simulation: Room


def room_for(
    shape: tuple[int, ...], stages: int, micro_batches: int, rooms: dict[tuple[int, ...], ScheduleRoom]
) -> ScheduleRoom:
    """Return room for a pipeline with so many stages and micro-batches, one of ``rooms`` if there is one of that size.

    ``shape`` has the numbers of pairs of stages with transfers, and of hosts.
    """
    pairs, hosts = shape
    size = (stages, micro_batches, pairs, hosts)
    if size not in rooms:
        rooms[size] = ScheduleRoom(
            np.empty(stages, dtype=np.bool_),
            np.empty((2, stages)),
            np.empty((5, stages)),
            np.empty(pairs),
            np.empty((2, pairs, hosts)),
            Room.of(stages, micro_batches, pairs, hosts),
        )
    return rooms[size]
