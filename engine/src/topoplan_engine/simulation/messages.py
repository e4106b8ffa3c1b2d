"""What simulators send: whole packets, and collectives as rounds of a ring.

Planners price messages by the same rules, so that their estimates follow the simulators: plugins may import what
stands in ``__all__``.  All functions run compiled and plain.
"""

from __future__ import annotations

import numpy as np

from topoplan.model.taskgraph import Collective
from topoplan_engine.kernels.jit import njit

__all__ = ["PACKET", "WINDOW", "collective_rounds", "packets"]

#: Bytes of a packet; messages are whole packets, and every hop stores one before it sends it on.
PACKET = 8936
#: Packets that a flow of FlexNetPacket sends before it waits for answers; that to its first one is one of them.
WINDOW = 101
#: Bytes below which a collective is small.
_SMALL = 9000
_ALL_REDUCE = int(Collective.ALL_REDUCE)


@njit(inline="always")
def packets(size: float) -> float:
    """Packets of a message of so many bytes, at least one."""
    return float(max(1.0, np.ceil(size / PACKET)))


@njit(inline="always")
def collective_rounds(size: int, members: int, collective: int) -> tuple[int, float]:
    """Rounds of a `Collective` on a ring, one if it is small, and the bytes that each member sends in one of them.

    An all-reduce goes round twice.  Small ones are FlexNet's; it knows no all-gathers and reduce-scatters (of twice
    ``size`` bytes, see `topoplan.model.taskgraph.TaskGraph.size`), which are halves of an all-reduce here, so that two
    of them take as long.
    """
    turns = 2 if collective == _ALL_REDUCE else 1
    if size >= _SMALL * 2 * members:  # not small, and too many bytes may not fit into an integer twice
        once, remainder = size // members, size % members
        return turns * (members - 1), float(once if turns == 2 else 2 * once + 2 * remainder // members)
    whole = size if turns == 2 else 2 * size
    if whole < _SMALL * members:
        return 1, float(whole * turns * (members - 1) // members // members)
    if whole <= _SMALL * 2 * (members - 1):
        return 1, float(whole // members)
    return turns * (members - 1), float(whole // members)
