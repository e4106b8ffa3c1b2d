"""How flows share links: rates, and when the next of them ends, with work that does not grow with the flows.

Flows enter and end here with any transport; the rule by which `settle` shares links is FlexNetPacket's
(`topoplan_simulator_fluid.max_min` has that of the wire).  There, a flow's rate is the smallest share ``C/n`` of its
links; the link that gives it is its *bottleneck*.  All flows with one bottleneck have one rate, so a link counts how
many bytes it has *served* to each of them since it was last idle, and a flow that joins with some bytes to go gets the
*virtual finish* ``served + bytes``: it ends when the link has served that much.  This is the virtual time of fair
queueing (Demers, Keshav, Shenker, SIGCOMM 1989).  A link whose share changes brings its count up to date; its flows
need not be touched unless their bottleneck changes.

Data flow: `enter` and `end_flows` change loads during an instant and list the links; `settle` then computes shares,
moves flows whose bottleneck changed and puts the next end of every changed link into the tree of ends, from
which `end_flows` takes the flows that end.

A link has all flows over it in a row, those that are *bottlenecked here* first.  When its share falls, the other flows
are looked through; when it rises, these ones, unless the new share is within the *reuse threshold*: the smallest share
that any of them has elsewhere.

State and rows are `topoplan_simulator_fluid.rows`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topoplan.arrays import F64, I64
from topoplan_engine.kernels.jit import inline_kernel
from topoplan_engine.network.tables import LOAD
from topoplan_simulator_fluid.queues import first_of, replace
from topoplan_simulator_fluid.rows import (
    DIRTY,
    ENDED,
    ENTERED,
    SETTLED,
    STALE,
    TOUCHED,
    Sharing,
    add_slot,
    make_room,
    put,
    swap,
)

__all__ = [
    "FREED_AT_MOST",
    "add_link",
    "bytes_left_over",
    "crosses",
    "end_flows",
    "enter",
    "join_at",
    "leave",
    "next_end",
    "note",
    "served",
    "settle",
]


#: One in so many units of what loads a link may be free before rates are computed anew, on the wire.
FREED_AT_MOST = 16


@inline_kernel
def add_link(s: Sharing, slot_of_link: I64, flow: int, link: int, load: int) -> None:
    """Add a link to the path of a flow, which has used none of its slots before the first.

    Args:
        s, flow, link, load: what is added to what.
        slot_of_link: (E,) slot that was given to each link last: a flow that crosses one twice has one slot there.
    """
    f = s.flows[flow]
    before = slot_of_link[link]
    if f.slot <= before < f.slot + f.used and s.slots[before].link == link:
        s.slots[before].load += load
        return
    slot_of_link[link] = f.slot + f.used
    slot = s.slots[f.slot + f.used]
    slot.link, slot.load = link, load
    f.used += 1


@inline_kernel
def crosses(s: Sharing, flow: int, size: float, link_bytes: F64) -> None:
    """Add ``size`` bytes for each load unit of a flow's to those of the links on its path that ``link_bytes`` has."""
    f = s.flows[flow]
    for i in range(f.slot, f.slot + f.used):
        slot = s.slots[i]
        if slot.link < len(link_bytes):
            link_bytes[slot.link] += size * (slot.load / LOAD)


@inline_kernel
def note(s: Sharing, link: int, work: int) -> None:
    """Add a link to the list ``TOUCHED`` or ``DIRTY`` unless it is there."""
    record = s.links[link]
    if not record.work_marks & (work + 1):
        record.work_marks |= work + 1
        s.work[work, s.counts[work]] = link
        s.counts[work] += 1


@inline_kernel
def enter(s: Sharing, flow: int, volume: float) -> None:
    """Let a flow with ``volume`` bytes to go enter its links; its slots are filled."""
    f = s.flows[flow]
    make_room(s, flow)
    for i in range(f.slot, f.slot + f.used):
        slot = s.slots[i]
        add_slot(s, i, flow, slot.link)
        s.links[slot.link].load += slot.load
        note(s, slot.link, TOUCHED)
    f.virtual_finish, f.home = volume, -1
    f.bottleneck = s.slots[f.slot].link  # some link, until `settle` finds the right one
    s.work[ENTERED, s.counts[ENTERED]] = flow
    s.counts[ENTERED] += 1


@inline_kernel
def end_flows(s: Sharing, limit: float, ended: Any) -> int:
    """Take out the flows that end by ``limit``, and write them to ``ended``; return how many."""
    count = 0
    while s.ends[1] <= limit:
        link = first_of(s.ends)
        record = s.links[link]
        replace(s.ends, link, np.inf)
        soonest = np.inf
        # Beyond this virtual finish no division is needed.  Late in a long iteration, times are rounded to many bytes:
        # what `next_end` takes for an end must end here, too, or the clock would stand still.
        late = limit - record.since + limit * 1e-15
        latest = record.served + late * s.share[link] * (1 + 1e-6) + 1.0
        for position in range(record.row + record.bottlenecked_here - 1, record.row - 1, -1):
            finish = s.virtual_finish[position]
            if finish <= latest and record.since + max(finish - record.served, 0.0) / s.share[link] <= limit:
                flow = s.incidence[position].flow
                leave(s, flow, record)
                _quit(s, flow)
                ended[count] = flow
                count += 1
            else:
                soonest = min(soonest, finish)
        record.soonest, record.soonest_outdated = soonest, False
        note(s, link, DIRTY)
    s.counts[ENDED] = count
    return count


@inline_kernel
def _quit(s: Sharing, flow: int) -> None:
    """Take a flow off its links."""
    f = s.flows[flow]
    for i in range(f.slot, f.slot + f.used):
        slot = s.slots[i]
        record = s.links[slot.link]
        record.length -= 1
        last = record.row + record.length
        put(s, slot.position, s.incidence[last].slot, s.incidence[last].flow, s.flow_bottleneck[last])
        record.load -= slot.load
        record.freed += slot.load
        if record.freed * FREED_AT_MOST >= record.load:
            s.counts[STALE] = 1
        note(s, slot.link, TOUCHED)
    f.bottleneck = -1


@inline_kernel
def leave(s: Sharing, flow: int, record: Any) -> None:
    """Take a flow from those that are bottlenecked at a link, given its record."""
    position = s.slots[s.flows[flow].home].position
    record.bottlenecked_here -= 1
    last = record.row + record.bottlenecked_here
    if s.virtual_finish[position] <= record.soonest:
        record.soonest_outdated = True
    s.virtual_finish[position] = s.virtual_finish[last]
    swap(s, position, last)


@inline_kernel
def served(s: Sharing, link: int, now: float) -> float:
    """Bytes that a busy link has served to each of its flows by ``now``."""
    record = s.links[link]
    return float(record.served + s.share[link] * (now - record.since))


@inline_kernel
def _join(s: Sharing, flow: int, bytes_left: float, now: float) -> None:
    """Find the bottleneck of a flow, given its bytes to go: of equal shares, the first on its path."""
    f = s.flows[flow]
    smallest, second, home = np.inf, np.inf, -1
    for slot in range(f.slot, f.slot + f.used):
        share = s.share[s.slots[slot].link]
        second = min(second, max(share, smallest))
        if share < smallest:
            smallest, home = share, slot
    join_at(s, flow, home, bytes_left, now)
    link = s.slots[home].link
    s.links[link].reuse_threshold = min(s.links[link].reuse_threshold, second)
    s.limit[link] = max(s.share[link], s.links[link].reuse_threshold)


@inline_kernel
def join_at(s: Sharing, flow: int, home: int, bytes_left: float, now: float) -> None:
    """Give a flow with these bytes to go the bottleneck of its slot ``home``."""
    f = s.flows[flow]
    link = s.slots[home].link
    for slot in range(f.slot, f.slot + f.used):
        s.flow_bottleneck[s.slots[slot].position] = link
    record = s.links[link]
    if record.bottlenecked_here == 0:
        record.reuse_threshold, record.soonest, record.soonest_outdated = np.inf, np.inf, False
    f.virtual_finish, f.bottleneck, f.home = served(s, link, now) + bytes_left, link, home
    place = record.row + record.bottlenecked_here
    swap(s, s.slots[home].position, place)
    s.virtual_finish[place] = f.virtual_finish
    record.bottlenecked_here += 1
    record.soonest = min(record.soonest, f.virtual_finish)
    note(s, link, DIRTY)


@inline_kernel
def _move(s: Sharing, flow: int, now: float) -> None:
    """Give a flow its new bottleneck."""
    link = s.flows[flow].bottleneck
    record = s.links[link]
    bytes_left = max(s.flows[flow].virtual_finish - served(s, link, now), 0.0)
    leave(s, flow, record)
    note(s, link, DIRTY)
    _join(s, flow, bytes_left, now)


@inline_kernel
def bytes_left_over(s: Sharing, link: int, now: float) -> float:
    """Bytes that have yet to cross a link of what flows over it; rates have not changed until ``now``."""
    record, rest_bytes = s.links[link], 0.0
    for position in range(record.row, record.row + record.length):
        flow = s.flows[s.incidence[position].flow]
        load = s.slots[s.incidence[position].slot].load
        rest_bytes += max(flow.virtual_finish - served(s, flow.bottleneck, now), 0.0) * (load / LOAD)
    return rest_bytes


@inline_kernel
def settle(s: Sharing, now: float) -> None:
    """Bring shares, bottlenecks and ends up to date at the end of an instant."""
    for i in range(s.counts[TOUCHED]):
        link = s.work[TOUCHED, i]
        record = s.links[link]
        record.before = s.share[link]
        if record.load == 0:
            record.served, s.share[link] = 0.0, np.inf
        else:
            if s.share[link] < np.inf:
                record.served = served(s, link, now)
            s.share[link] = record.capacity * LOAD / record.load
        record.since = now
        if record.bottlenecked_here > 0:
            s.limit[link] = max(s.share[link], record.reuse_threshold)
            note(s, link, DIRTY)
        else:
            s.limit[link] = s.share[link]
        record.work_marks &= DIRTY + 1
    for i in range(s.counts[ENTERED]):
        flow = s.work[ENTERED, i]
        _join(s, flow, s.flows[flow].virtual_finish, now)
    for i in range(s.counts[TOUCHED]):
        link = s.work[TOUCHED, i]
        record = s.links[link]
        new = s.share[link]
        if new < record.before:
            above = False
            for bottleneck in s.flow_bottleneck[record.row + record.bottlenecked_here : record.row + record.length]:
                above |= s.limit[bottleneck] > new
            if above:
                _look_here(s, link, now)
        elif new > record.reuse_threshold and record.bottlenecked_here > 0:
            _look_elsewhere(s, link, now)
    for i in range(s.counts[DIRTY]):
        link = s.work[DIRTY, i]
        record = s.links[link]
        record.work_marks = 0
        replace(s.ends, link, next_end(s, link))
    s.counts[SETTLED] = s.counts[DIRTY]
    s.counts[TOUCHED] = s.counts[ENTERED] = s.counts[DIRTY] = 0


@inline_kernel
def _look_here(s: Sharing, link: int, now: float) -> None:
    """Move the flows over a link that now have their smallest share here."""
    record = s.links[link]
    new = s.share[link]
    for position in range(record.row + record.bottlenecked_here, record.row + record.length):
        elsewhere = s.flow_bottleneck[position]
        if s.limit[elsewhere] > new:
            if s.share[elsewhere] > new:
                _move(s, s.incidence[position].flow, now)
            else:
                s.links[elsewhere].reuse_threshold = s.limit[elsewhere] = new


@inline_kernel
def _look_elsewhere(s: Sharing, link: int, now: float) -> None:
    """Move the flows of a link that now have their smallest share elsewhere."""
    record = s.links[link]
    share, threshold = s.share[link], np.inf
    for position in range(record.row + record.bottlenecked_here - 1, record.row - 1, -1):
        flow, elsewhere = s.incidence[position].flow, np.inf
        f = s.flows[flow]
        s.share[link] = np.inf
        for i in range(f.slot, f.slot + f.used):
            elsewhere = min(elsewhere, s.share[s.slots[i].link])
        s.share[link] = share
        if elsewhere < share:
            _move(s, flow, now)
        else:
            threshold = min(threshold, elsewhere)
    record.reuse_threshold = threshold
    s.limit[link] = max(share, threshold)


@inline_kernel
def next_end(s: Sharing, link: int) -> float:
    """End of the next flow that is bottlenecked at a link, in seconds; infinite if none is."""
    record = s.links[link]
    if record.bottlenecked_here == 0:
        return np.inf
    if record.soonest_outdated:
        soonest = np.inf
        for position in range(record.row, record.row + record.bottlenecked_here):
            soonest = min(soonest, s.virtual_finish[position])
        record.soonest, record.soonest_outdated = soonest, False
    return float(record.since + max(record.soonest - record.served, 0.0) / s.share[link])
