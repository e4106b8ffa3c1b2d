"""Windows of FlexNetPacket's flows: what a flow may send, how answers and marks change that, and what counts as lost.

A flow sends one message.  Its numbers are bytes, as in that program: it opens with byte 1, and each packet behind it
has `PACKET` bytes, so that a message of S bytes is all bytes up to S.  An answer says up to which byte all have come.
This is ``tcp.cpp`` and ``dctcp.cpp`` of htsim, without what never happens in queues that drop nothing.

Data flow: `topoplan_simulator_fluid.packets` asks `restart` to begin a message, `answer` when an answer comes, and
`take_for_lost` when none has come in time; afterwards it sends as many packets as `may_send` lets it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topoplan_engine.kernels.jit import inline_kernel
from topoplan_engine.simulation.messages import PACKET

__all__ = ["FLOW", "LOOK", "NEVER", "answer", "is_late", "may_send", "restart", "take_for_lost"]

#: Picoseconds between two looks at timers; the least that an answer is waited for; and the first answer to a flow of a
#: ring over routes.
LOOK, _PATIENCE, _RING_PATIENCE = 10**9, 10**10, 10**9
NEVER = 1 << 62
#: The first window, and the threshold up to which it grows by a packet with each answer.
_FIRST_WINDOW, _NO_THRESHOLD = 100 * PACKET, 10_000 * PACKET
#: Answers that repeat the one before them until a packet counts as lost.
_REPEATED = 3

#: One flow.
#:
#: share: mean share of marked answers (alpha of DCTCP).  size: bytes of the message.  window, threshold: bytes.
#: judged: bytes of answers after which the window is judged.  sent, answered, arrived: up to which byte it has sent,
#: has been answered, and has arrived.  mean, deviation: picoseconds that an answer takes.  patience, timeout:
#: picoseconds that it waits for one, and when that is over.  recover: up to which byte it had sent when it took a
#: packet for lost.  path: of this message.  answers, marked: since the window was judged.  repeated: answers that said
#: the same as the one before.  opened, ended: the first packet has been answered, the message has arrived.
#: late, watched: its timer is over; it is among those that are looked at.  recovering: since a packet counts as lost.
FLOW = np.dtype(
    [
        ("share", np.float64),
        *((name, np.int64) for name in ("size", "window", "threshold", "judged", "sent", "answered", "arrived")),
        *((name, np.int64) for name in ("mean", "deviation", "patience", "timeout", "recover", "path")),
        *((name, np.int32) for name in ("answers", "marked", "repeated", "message")),
        *((name, np.int8) for name in ("opened", "ended", "late", "watched", "recovering")),
    ],
    align=True,
)


@inline_kernel
def restart(flow: Any, size: int, path: int, ring: bool) -> None:
    """Begin a message of so many bytes on a path; ``ring``: of a ring over routes."""
    flow.size, flow.path = max(PACKET, size), path
    flow.window, flow.threshold, flow.judged = _FIRST_WINDOW, _NO_THRESHOLD, 2 * PACKET
    flow.sent = flow.answered = flow.arrived = flow.mean = flow.deviation = flow.recover = 0
    flow.share, flow.answers, flow.marked, flow.repeated = 0.0, 0, 0, 0
    flow.opened = flow.ended = flow.late = flow.recovering = 0
    flow.timeout, flow.patience = NEVER, _RING_PATIENCE if ring else _PATIENCE
    flow.message += 1


@inline_kernel
def may_send(flow: Any) -> bool:
    """Whether the window has room for the next packet, if there is one."""
    return bool(flow.answered + flow.window >= flow.sent + PACKET and flow.sent < flow.size)


@inline_kernel
def answer(flow: Any, sent_at: int, mark: int, now: int) -> int:
    """Take the answer to a packet; return 1 if the message has just arrived, -1 if a packet is to be sent again."""
    _judge(flow, mark)
    arrived = flow.arrived
    if arrived < flow.answered:
        return 0
    if arrived == 1:
        flow.opened = 1
    _measure(flow, now - sent_at)
    if arrived >= flow.size and not flow.ended:
        flow.ended, flow.answered = 1, arrived
        return 1
    if arrived <= flow.answered:
        return int(_repeat(flow))
    flow.timeout = now + flow.patience
    if arrived >= flow.sent:
        flow.sent, flow.timeout = arrived, NEVER
    before, flow.answered = flow.answered, arrived
    if not flow.recovering:
        flow.repeated = 0
        _widen(flow)
    elif arrived >= flow.recover:
        flow.window = min(flow.threshold, flow.sent - arrived + PACKET)
        flow.repeated = flow.recovering = 0
    else:
        flow.window = max(flow.window - (arrived - before), 0) + PACKET
        return -1
    return 0


@inline_kernel
def _judge(flow: Any, mark: int) -> None:
    """Count an answer, and shrink the window once for each window of them."""
    flow.answers += 1
    if mark:
        flow.marked += 1
        flow.threshold = min(flow.threshold, flow.window)
    if flow.answers * PACKET >= flow.judged:
        flow.share = 15.0 / 16.0 * flow.share + 1.0 / 16.0 * (flow.marked / flow.answers)
        flow.answers = flow.marked = 0
        if flow.share > 0.0:
            flow.window = max(PACKET, np.int64(flow.window * (1.0 - flow.share / 2.0)))
            flow.threshold = flow.window
        flow.judged = flow.window


@inline_kernel
def _measure(flow: Any, took: int) -> None:
    """Note how long an answer took, and how long to wait for others therefore (RFC 6298)."""
    if took > 0:
        if flow.mean > 0:
            flow.deviation = 3 * flow.deviation // 4 + abs(took - flow.mean) // 4
            flow.mean = 7 * flow.mean // 8 + took // 8
        else:
            flow.mean, flow.deviation = took, took // 2
        flow.patience = flow.mean + 4 * flow.deviation
    flow.patience = max(flow.patience, _PATIENCE)


@inline_kernel
def _widen(flow: Any) -> None:
    """Widen the window after an answer, by what it does not hold back and one packet at most."""
    more = min(flow.answered + flow.window - flow.sent, PACKET)
    if more < 0:
        return
    if flow.window < flow.threshold:
        flow.window += min(flow.threshold - flow.window, more)
    else:
        flow.window += more * PACKET // flow.window


@inline_kernel
def _repeat(flow: Any) -> int:
    """Take an answer that says nothing new; return -1 if a packet is to be sent again."""
    if flow.recovering:
        flow.window += PACKET
        return 0
    flow.repeated += 1
    if flow.repeated != _REPEATED or flow.answered < flow.recover:
        return 0
    _deflate(flow)
    flow.window = flow.threshold + 3 * PACKET
    flow.recovering, flow.recover = 1, flow.sent
    return -1


@inline_kernel
def _deflate(flow: Any) -> None:
    flow.answers = flow.marked = 0
    flow.threshold = max(flow.window // 2, 2 * PACKET)
    flow.judged = flow.window


@inline_kernel
def is_late(flow: Any, now: int) -> int:
    """Look at the timer of a flow; picoseconds until it starts again if its patience is over, else -1."""
    if now <= flow.timeout or flow.sent == 0 or flow.late:
        return -1
    flow.late = 1
    too_late = now - flow.timeout
    while too_late > LOOK:
        too_late >>= 1
    flow.patience *= 2
    flow.timeout = now + flow.patience
    return int((LOOK - too_late) // 200)


@inline_kernel
def take_for_lost(flow: Any) -> None:
    """Take for lost what has not been answered: the next packet is that behind the last answer, the window one packet.

    The caller sends that packet.
    """
    flow.late = 0
    if flow.recovering:
        flow.window = min(flow.threshold, flow.sent - flow.answered + PACKET)
    _deflate(flow)
    flow.window = PACKET
    flow.recovering = flow.repeated = 0
    flow.recover = flow.sent
    if flow.opened:
        flow.sent = flow.answered + PACKET
