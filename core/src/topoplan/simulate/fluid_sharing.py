"""How flows share links: rates, and when the next of them ends, with work that does not grow with the flows.

A flow's rate is the smallest share ``C/n`` of its links; the link that gives it is its *bottleneck*.  All flows
with one bottleneck have one rate, so a link counts how many bytes it has *served* to each of them since it was
last idle, and a flow that joins with ``left`` bytes to go gets the *tag* ``served + left``: it ends when the link has
served that much.  This is the virtual time of fair queueing (Demers, Keshav, Shenker, SIGCOMM 1989).  A link
whose share changes brings its count up to date; its flows need not be touched unless their bottleneck changes.

Data flow: `enter` and `end_flows` change loads during an instant and note the links; `settle` then computes shares,
moves flows whose bottleneck changed and puts the next end of every changed link into the heap of ends, from
which `end_flows` takes what ends.

A link keeps all flows over it in one list and those that it is the bottleneck of in another.  It looks through
the first when its share falls.  When its share rises it looks through the second, unless the new share is still
*safe*: at most the smallest share that any of these flows has elsewhere.

State lies in one tuple of columns; nothing here allocates, so that numba need not count references.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.kernels import part
from topoplan.simulate.network import LOAD
from topoplan.simulate.queues import rekey, remove

__all__ = ["ENDS", "Sharing", "add_link", "end_flows", "enter", "idle", "settle"]

TOUCHED, DIRTY, ENTERED, ENDS, OVER = range(5)


class Sharing(NamedTuple):
    """State of links, flows and slots; a slot is one link of one flow.

    Attributes:
        capacity: bytes/s of each link.
        load: units of load on it; share: bytes/s of a flow, infinite when idle; before: the share before this instant.
        served: bytes served to each of its flows by ``since``, in seconds.
        first: first flow that it is the bottleneck of; soonest: smallest tag of these; stale: that one may have left.
        safe: share up to which none of them has another bottleneck.
        mark: 1 for a link in ``TOUCHED`` (its load changed), 2 for one in ``DIRTY`` (its next end may have), or both.
        row, length, room: where its slots start in ``over``, how many there are, and would have room.
        over: (2, n) slots and their flows, link by link.
        bottleneck, tag, following, preceding: of each flow, the latter two in the list of the bottleneck; -1 for none.
        slot_ptr, used: first slot of a flow, and how many are filled.
        slot_link, slot_load, slot_position: of each slot; the last says where it is in ``over``.
        work: (3, n) links touched, links dirty and flows entered in this instant.
        ends, who, place: heap of the next end of each link.
        counts: lengths of the rows of ``work``, of the heap, and of ``over``.
    """

    capacity: F64
    load: I64
    share: F64
    before: F64
    served: F64
    since: F64
    first: I32
    soonest: F64
    stale: Any
    safe: F64
    mark: Any
    row: I64
    length: I32
    room: I32
    over: I32
    bottleneck: I32
    tag: F64
    following: I32
    preceding: I32
    slot_ptr: I64
    used: I32
    slot_link: I32
    slot_load: I64
    slot_position: I64
    work: I32
    ends: F64
    who: I32
    place: I32
    counts: I64


@numba.njit(cache=True, no_cfunc_wrapper=True)
def idle(capacity: F64, slot_ptr: I64) -> Sharing:
    """Return idle links, and flows that have not begun."""
    n_links, n_flows, n_slots = len(capacity), len(slot_ptr) - 1, slot_ptr[len(slot_ptr) - 1]
    return Sharing(
        capacity=capacity,
        load=np.zeros(n_links, np.int64),
        share=np.full(n_links, np.inf),
        before=np.empty(n_links),
        served=np.zeros(n_links),
        since=np.zeros(n_links),
        first=np.full(n_links, -1, np.int32),
        soonest=np.empty(n_links),
        stale=np.zeros(n_links, np.bool_),
        safe=np.empty(n_links),
        mark=np.zeros(n_links, np.int8),
        row=np.zeros(n_links, np.int64),
        length=np.zeros(n_links, np.int32),
        room=np.zeros(n_links, np.int32),
        # A row that is full moves to the end with more than twice the room, so all rows ever made take 4 n_slots.
        over=np.empty((2, 4 * (n_slots + n_links)), np.int32),
        bottleneck=np.full(n_flows, -1, np.int32),
        tag=np.empty(n_flows),
        following=np.empty(n_flows, np.int32),
        preceding=np.empty(n_flows, np.int32),
        slot_ptr=slot_ptr,
        used=np.zeros(n_flows, np.int32),
        slot_link=np.empty(n_slots, np.int32),
        slot_load=np.empty(n_slots, np.int64),
        slot_position=np.empty(n_slots, np.int64),
        work=np.empty((3, max(n_links, n_flows)), np.int32),
        ends=np.empty(n_links + 1),
        who=np.empty(n_links + 1, np.int32),
        place=np.full(n_links, -1, np.int32),
        counts=np.zeros(5, np.int64),
    )


@part
def add_link(s: Sharing, flow: int, link: int, load: int) -> None:
    """Add a link to the path of a flow, which has used none of its slots before the first."""
    slot = s.slot_ptr[flow] + s.used[flow]
    s.slot_link[slot], s.slot_load[slot] = link, load
    s.used[flow] += 1


@part
def _note(s: Sharing, link: int, what: int) -> None:
    """Add a link to ``touched`` or ``dirty`` unless it is there."""
    if not s.mark[link] & (what + 1):
        s.mark[link] |= what + 1
        s.work[what, s.counts[what]] = link
        s.counts[what] += 1


@part
def enter(s: Sharing, flow: int, volume: float) -> None:
    """Let a flow begin that has ``volume`` bytes to go; its slots are filled."""
    if s.counts[OVER] + _room_needed(s, flow) > s.over.shape[1]:
        _compact(s)
    s.tag[flow] = volume
    s.work[ENTERED, s.counts[ENTERED]] = flow
    s.counts[ENTERED] += 1
    for slot in range(s.slot_ptr[flow], s.slot_ptr[flow] + s.used[flow]):
        link = s.slot_link[slot]
        length = s.length[link]
        if length == s.room[link]:
            row, room = s.row[link], 2 * length + 1
            s.row[link], s.room[link] = s.counts[OVER], room
            for i in range(length):
                position = s.counts[OVER] + i
                s.over[0, position], s.over[1, position] = s.over[0, row + i], s.over[1, row + i]
                s.slot_position[s.over[0, position]] = position
            s.counts[OVER] += room
        position = s.row[link] + length
        s.over[0, position], s.over[1, position] = slot, flow
        s.slot_position[slot] = position
        s.length[link] = length + 1
        s.load[link] += s.slot_load[slot]
        _note(s, link, TOUCHED)
    s.bottleneck[flow] = s.slot_link[s.slot_ptr[flow]]  # some link, until `settle` finds the right one


@part
def _room_needed(s: Sharing, flow: int) -> int:
    """Return how much ``over`` grows at most when a flow enters."""
    needed = 0
    for slot in range(s.slot_ptr[flow], s.slot_ptr[flow] + s.used[flow]):
        link = s.slot_link[slot]
        if s.length[link] == s.room[link]:
            needed += 2 * s.length[link] + 1
    return needed


@part
def _compact(s: Sharing) -> None:
    """Lay the rows of ``over`` out anew, with half as much room again: flows drew other paths than before."""
    s.counts[OVER] = 0
    for link in range(len(s.capacity)):
        s.row[link], s.room[link] = s.counts[OVER], s.length[link] + (s.length[link] + 1) // 2
        s.counts[OVER] += s.room[link]
        s.length[link] = 0
    for flow in range(len(s.tag)):
        if s.bottleneck[flow] >= 0:
            for slot in range(s.slot_ptr[flow], s.slot_ptr[flow] + s.used[flow]):
                link = s.slot_link[slot]
                position = s.row[link] + s.length[link]
                s.over[0, position], s.over[1, position], s.slot_position[slot] = slot, flow, position
                s.length[link] += 1


@part
def end_flows(s: Sharing, limit: float, ended: Any) -> int:
    """Take out the flows that end by ``limit``, and write them to ``ended``; return how many."""
    found = 0
    while s.counts[ENDS] > 0 and s.ends[0] <= limit:
        link = s.who[0]
        s.counts[ENDS] = remove(s.ends, s.who, s.place, s.counts[ENDS], link)
        flow = s.first[link]
        while flow >= 0:
            following = s.following[flow]
            left = max(s.tag[flow] - s.served[link], 0.0)
            if s.since[link] + left / s.share[link] <= limit:
                _leave(s, flow, link)
                _quit(s, flow)
                ended[found] = flow
                found += 1
            flow = following
        _note(s, link, DIRTY)
    return found


@part
def _quit(s: Sharing, flow: int) -> None:
    """Take a flow off its links."""
    for slot in range(s.slot_ptr[flow], s.slot_ptr[flow] + s.used[flow]):
        link, position = s.slot_link[slot], s.slot_position[slot]
        s.length[link] -= 1
        last = s.row[link] + s.length[link]
        s.over[0, position], s.over[1, position] = s.over[0, last], s.over[1, last]
        s.slot_position[s.over[0, position]] = position
        s.load[link] -= s.slot_load[slot]
        _note(s, link, TOUCHED)
    s.bottleneck[flow] = -1


@part
def _leave(s: Sharing, flow: int, link: int) -> None:
    """Take a flow off the list of its bottleneck."""
    before, after = s.preceding[flow], s.following[flow]
    if before >= 0:
        s.following[before] = after
    else:
        s.first[link] = after
    if after >= 0:
        s.preceding[after] = before
    if s.tag[flow] <= s.soonest[link]:
        s.stale[link] = 1


@part
def _served(s: Sharing, link: int, now: float) -> float:
    """Bytes that a busy link has served to each of its flows by ``now``."""
    return float(s.served[link] + s.share[link] * (now - s.since[link]))


@part
def _join(s: Sharing, flow: int, left: float, now: float) -> None:
    """Find the bottleneck of a flow with ``left`` bytes to go: of equal shares, the first on its path."""
    smallest, second, link = np.inf, np.inf, -1
    for slot in range(s.slot_ptr[flow], s.slot_ptr[flow] + s.used[flow]):
        other = s.slot_link[slot]
        if s.share[other] < smallest:
            smallest, second, link = s.share[other], smallest, other
        elif s.share[other] < second:
            second = s.share[other]
    s.tag[flow] = _served(s, link, now) + left
    after = s.first[link]
    if after >= 0:
        s.preceding[after] = flow
    else:
        s.safe[link], s.soonest[link], s.stale[link] = np.inf, np.inf, 0
    s.preceding[flow], s.following[flow] = -1, after
    s.bottleneck[flow] = link
    s.first[link] = flow
    s.safe[link] = min(s.safe[link], second)
    s.soonest[link] = min(s.soonest[link], s.tag[flow])
    _note(s, link, DIRTY)


@part
def _move(s: Sharing, flow: int, now: float) -> None:
    """Give a flow its new bottleneck."""
    link = s.bottleneck[flow]
    left = max(s.tag[flow] - _served(s, link, now), 0.0)
    _leave(s, flow, link)
    _note(s, link, DIRTY)
    _join(s, flow, left, now)


@part
def settle(s: Sharing, now: float) -> None:
    """Bring shares, bottlenecks and ends up to date at the end of an instant."""
    for i in range(s.counts[TOUCHED]):
        link = s.work[TOUCHED, i]
        s.before[link] = s.share[link]
        if s.load[link] == 0:
            s.served[link], s.share[link] = 0.0, np.inf
        else:
            if s.share[link] < np.inf:
                s.served[link] = _served(s, link, now)
            s.share[link] = s.capacity[link] * LOAD / s.load[link]
        s.since[link] = now
        _note(s, link, DIRTY)
    for i in range(s.counts[ENTERED]):
        flow = s.work[ENTERED, i]
        _join(s, flow, s.tag[flow], now)
    for i in range(s.counts[TOUCHED]):
        link = s.work[TOUCHED, i]
        new = s.share[link]
        if new < s.before[link]:
            for k in range(s.row[link], s.row[link] + s.length[link]):
                elsewhere = s.bottleneck[s.over[1, k]]
                if s.share[elsewhere] > new:
                    _move(s, s.over[1, k], now)
                elif elsewhere != link and s.safe[elsewhere] > new:
                    s.safe[elsewhere] = new
        elif new > s.safe[link]:
            _look_elsewhere(s, link, now)
    for i in range(s.counts[DIRTY]):
        link = s.work[DIRTY, i]
        s.mark[link] = 0
        s.counts[ENDS] = _schedule(s, s.counts[ENDS], link)
    s.counts[TOUCHED] = s.counts[ENTERED] = s.counts[DIRTY] = 0


@part
def _look_elsewhere(s: Sharing, link: int, now: float) -> None:
    """Move the flows of a link that now have their smallest share elsewhere."""
    safe = np.inf
    flow = s.first[link]
    while flow >= 0:
        following = s.following[flow]
        elsewhere = np.inf
        for slot in range(s.slot_ptr[flow], s.slot_ptr[flow] + s.used[flow]):
            if s.slot_link[slot] != link:
                elsewhere = min(elsewhere, s.share[s.slot_link[slot]])
        if elsewhere < s.share[link]:
            _move(s, flow, now)
        else:
            safe = min(safe, elsewhere)
        flow = following
    s.safe[link] = safe


@part
def _schedule(s: Sharing, n_ends: int, link: int) -> int:
    """Put the next end of a link into the heap, or take the link out; return the new length of the heap."""
    flow = s.first[link]
    if flow < 0:
        return remove(s.ends, s.who, s.place, n_ends, link) if s.place[link] >= 0 else n_ends
    if s.stale[link]:
        soonest = np.inf
        while flow >= 0:
            soonest = min(soonest, s.tag[flow])
            flow = s.following[flow]
        s.soonest[link], s.stale[link] = soonest, 0
    end = s.since[link] + max(s.soonest[link] - s.served[link], 0.0) / s.share[link]
    return int(rekey(s.ends, s.who, s.place, n_ends, end, link))
