"""Messages within one window: bursts, which are served in turn where they go the same way.

A flow of FlexNetPacket begins with a packet of one byte.  Once that is answered, it sends up to a whole window at once.
If all of its packets are among these, nothing makes it wait for answers: it stands in the queue of its sender's link as
one burst, and does not share that link with the burst behind it.  Two bursts between the same two hosts that leave by
the same link so begin to flow one after the other, the second when the first could have left.  The first packet of a
flow waits for the bursts that are queued when it is sent, too; for those whose own first packet is not answered yet, it
does not.  Path sets of no pair, those inside hosts and along the jumps of rings, have no bursts.

Bursts to different hosts share the link, as all other flows do.  If the first of them is held up further on, the
next ones pass it in its queue there; a flow that holds a share of every link on its path cannot make way for them.

Data flow: `burst_begins` is asked when a message within one window is sent.  Where one may have to wait for another,
the two hosts are a channel of `topoplan_engine.lowering.symmetry.refinement`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32
from topoplan_engine.kernels.jit import inline_kernel, part
from topoplan_engine.simulation.messages import PACKET, WINDOW

__all__ = ["BURST", "Bursts", "burst_begins", "no_bursts"]

#: Bytes that a flow sends at once.
BURST = WINDOW * PACKET


class Bursts(NamedTuple):
    """The bursts between each two hosts, by their set of paths (a row of `PathColumns`); R rows.

    Invariant, between two instants (1 to 12 are in `topoplan_simulator_fluid.kernel` and
    `topoplan_simulator_fluid.rows`):

    13. Of a set of paths that sent a burst, ``answered <= queued`` and ``latest < queued``; no burst of it that is on
        the way to its first link begins after ``latest``, unless it leaves by another link.

    Attributes:
        link: (R,) link by which the latest burst leaves; -1 before the first.
        queued: (R,) seconds; when the link could have served all bursts so far.
        latest: (R,) seconds; when the latest of them begins to flow.
        answered: (R,) seconds; when the link could have served those that had begun when the first of the others was
            sent.
    """

    link: I32
    queued: F64
    latest: F64
    answered: F64


@part()
def no_bursts(rows: int) -> Bursts:
    """Return the state before the first burst."""
    return Bursts(np.full(rows, -1, np.int32), np.zeros(rows), np.zeros(rows), np.zeros(rows))


@inline_kernel
def burst_begins(bursts: Bursts, row: int, link: int, now: float, setup: float, seconds: float) -> float:
    """Return when a burst begins to flow that is sent now, and queue it.

    Args:
        row, link: its set of paths, and the first link on its path.
        setup: seconds until a first packet that waits for nothing is answered.
        seconds: that its first link needs for it.
    """
    if bursts.link[row] != link:
        bursts.link[row] = link
        bursts.queued[row] = bursts.answered[row] = now
    elif bursts.latest[row] <= now:
        bursts.answered[row] = bursts.queued[row]
    begins = max(max(now, bursts.answered[row]) + setup, bursts.queued[row])
    bursts.latest[row], bursts.queued[row] = begins, begins + seconds
    return float(begins)
