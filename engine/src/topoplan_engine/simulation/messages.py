"""What simulators send: messages, and collectives as rounds of a ring, on the wire and as FlexNetPacket sends them.

`Transport.WIRE` is physics: a message is its bytes, and a ring of n members passes ``2 (n-1)/n`` of an all-reduce over
each of its links, however small it is.  `Transport.FLEXNETPACKET` is what the packet simulator of TopoOpt (NSDI'23)
makes of them: whole packets, and small all-reduces in one round.

Planners price messages by the same rules as simulators, so that their estimates follow them: plugins may import what
stands in ``__all__``.  All functions run compiled and plain.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from topoplan.model.taskgraph import Collective
from topoplan_engine.kernels.jit import inline_kernel, njit

__all__ = ["PACKET", "WINDOW", "Transport", "collective_rounds", "packets", "ring_rounds"]


class Transport(IntEnum):
    """How messages are sent: on the wire, or as FlexNetPacket does."""

    WIRE = 0
    FLEXNETPACKET = 1


#: Bytes of a packet of FlexNetPacket; its messages are whole packets, and every hop stores one before it sends it on.
PACKET = 8936
#: Packets that a flow of FlexNetPacket sends before it waits for answers; that to its first one is one of them.
WINDOW = 101
#: Bytes below which a collective is small.
_SMALL = 9000
_ALL_REDUCE = int(Collective.ALL_REDUCE)


@inline_kernel
def packets(size: float) -> float:
    """Packets of a message of so many bytes, at least one."""
    return float(max(1.0, np.ceil(size / PACKET)))


@njit(inline="always")
def ring_rounds(size: int, members: int, collective: int) -> tuple[int, float]:
    """Rounds of a `Collective` on a ring, and the bytes that each member sends in one of them.

    An all-reduce of S bytes goes round twice, in ``2 (n-1)`` rounds of ``S/n`` bytes (Patarasuk, Yuan, J. Parallel
    Distrib. Comput. 69, 2009).  Of an all-gather or a reduce-scatter, which goes round once, ``size`` is half the bytes
    of the tensor (`topoplan.model.taskgraph.TaskGraph.size`).

    >>> ring_rounds(1 << 20, 64, int(Collective.ALL_REDUCE))
    (126, 16384.0)
    """
    if collective == _ALL_REDUCE:
        return 2 * (members - 1), float(size) / members
    return members - 1, 2.0 * size / members


@njit(inline="always")
def collective_rounds(size: int, members: int, collective: int) -> tuple[int, float]:
    """Rounds of a `Collective` as FlexNetPacket runs it, one if it is small, and bytes of each member in one of them.

    An all-reduce goes round twice.  FlexNet knows no all-gathers and reduce-scatters (of twice
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
