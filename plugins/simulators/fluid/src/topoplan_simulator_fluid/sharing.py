"""How flows share links: rates, and when the next of them ends, with work that does not grow with the flows.

A flow's rate is the smallest share ``C/n`` of its links; the link that gives it is its *bottleneck*.  All flows
with one bottleneck have one rate, so a link counts how many bytes it has *served* to each of them since it was
last idle, and a flow that joins with ``left`` bytes to go gets the *tag* ``served + left``: it ends when the link has
served that much.  This is the virtual time of fair queueing (Demers, Keshav, Shenker, SIGCOMM 1989).  A link
whose share changes brings its count up to date; its flows need not be touched unless their bottleneck changes.

Data flow: `enter` and `end_flows` change loads during an instant and note the links; `settle` then computes shares,
moves flows whose bottleneck changed and puts the next end of every changed link into the tree of ends, from
which `end_flows` takes what ends.

A link keeps all flows over it in a row, its *own* ones (that it is the bottleneck of) first.  When its share falls it
looks through the others, when it rises through its own, unless the new share is still *safe*: at most the smallest
share that any of these has elsewhere.

State and rows are `topoplan_simulator_fluid.rows`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from topoplan.arrays import F64
from topoplan_engine.kernels.jit import inline_kernel
from topoplan_engine.network.tables import LOAD
from topoplan_simulator_fluid.queues import first_of, replace
from topoplan_simulator_fluid.rows import DIRTY, ENTERED, TOUCHED, Sharing, add_slot, make_room, put, swap

__all__ = ["add_link", "crosses", "end_flows", "enter", "settle"]


@inline_kernel
def add_link(s: Sharing, flow: int, link: int, load: int) -> None:
    """Add a link to the path of a flow, which has used none of its slots before the first."""
    f = s.flows[flow]
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
def _note(s: Sharing, link: int, what: int) -> None:
    """Add a link to ``touched`` or ``dirty`` unless it is there."""
    of = s.links[link]
    if not of.mark & (what + 1):
        of.mark |= what + 1
        s.work[what, s.counts[what]] = link
        s.counts[what] += 1


@inline_kernel
def enter(s: Sharing, flow: int, volume: float) -> None:
    """Let a flow begin that has ``volume`` bytes to go; its slots are filled."""
    f = s.flows[flow]
    make_room(s, flow)
    for i in range(f.slot, f.slot + f.used):
        slot = s.slots[i]
        add_slot(s, i, flow, slot.link)
        s.links[slot.link].load += slot.load
        _note(s, slot.link, TOUCHED)
    f.tag, f.bottleneck, f.home = volume, s.slots[f.slot].link, -1  # some link, until `settle` finds the right one
    s.work[ENTERED, s.counts[ENTERED]] = flow
    s.counts[ENTERED] += 1


@inline_kernel
def end_flows(s: Sharing, limit: float, ended: Any) -> int:
    """Take out the flows that end by ``limit``, and write them to ``ended``; return how many."""
    found = 0
    while s.ends[1] <= limit:
        link = first_of(s.ends)
        of = s.links[link]
        replace(s.ends, link, np.inf)
        soonest = np.inf
        # Tags beyond are not worth a division.  Late in a long iteration, times are rounded to many bytes: what
        # `_next_end` takes for an end must be found here, too, or the clock would stand still.
        late = limit - of.since + limit * 1e-15
        near = of.served + late * s.share[link] * (1 + 1e-6) + 1.0
        for position in range(of.row + of.own - 1, of.row - 1, -1):
            tag = s.tags[position]
            if tag <= near and of.since + max(tag - of.served, 0.0) / s.share[link] <= limit:
                flow = s.over[position].flow
                _leave(s, flow, of)
                _quit(s, flow)
                ended[found] = flow
                found += 1
            else:
                soonest = min(soonest, tag)
        of.soonest, of.stale = soonest, False
        _note(s, link, DIRTY)
    return found


@inline_kernel
def _quit(s: Sharing, flow: int) -> None:
    """Take a flow off its links."""
    f = s.flows[flow]
    for i in range(f.slot, f.slot + f.used):
        slot = s.slots[i]
        of = s.links[slot.link]
        of.length -= 1
        last = of.row + of.length
        put(s, slot.position, s.over[last].slot, s.over[last].flow, s.near[last])
        of.load -= slot.load
        _note(s, slot.link, TOUCHED)
    f.bottleneck = -1


@inline_kernel
def _leave(s: Sharing, flow: int, of: Any) -> None:
    """Take a flow from those that a link (``of``, its record) is the bottleneck of."""
    position = s.slots[s.flows[flow].home].position
    of.own -= 1
    last = of.row + of.own
    if s.tags[position] <= of.soonest:
        of.stale = True
    s.tags[position] = s.tags[last]
    swap(s, position, last)


@inline_kernel
def _served(s: Sharing, link: int, now: float) -> float:
    """Bytes that a busy link has served to each of its flows by ``now``."""
    of = s.links[link]
    return float(of.served + s.share[link] * (now - of.since))


@inline_kernel
def _join(s: Sharing, flow: int, left: float, now: float) -> None:
    """Find the bottleneck of a flow with ``left`` bytes to go: of equal shares, the first on its path."""
    f = s.flows[flow]
    smallest, second, home = np.inf, np.inf, -1
    for slot in range(f.slot, f.slot + f.used):
        share = s.share[s.slots[slot].link]
        second = min(second, max(share, smallest))
        if share < smallest:
            smallest, home = share, slot
    link = s.slots[home].link
    for slot in range(f.slot, f.slot + f.used):
        s.near[s.slots[slot].position] = link
    of = s.links[link]
    if of.own == 0:
        of.safe, of.soonest, of.stale = np.inf, np.inf, False
    f.tag, f.bottleneck, f.home = _served(s, link, now) + left, link, home
    place = of.row + of.own
    swap(s, s.slots[home].position, place)
    s.tags[place] = f.tag
    of.own += 1
    of.safe = min(of.safe, second)
    of.soonest = min(of.soonest, f.tag)
    s.limit[link] = max(s.share[link], of.safe)
    _note(s, link, DIRTY)


@inline_kernel
def _move(s: Sharing, flow: int, now: float) -> None:
    """Give a flow its new bottleneck."""
    link = s.flows[flow].bottleneck
    of = s.links[link]
    left = max(s.flows[flow].tag - _served(s, link, now), 0.0)
    _leave(s, flow, of)
    _note(s, link, DIRTY)
    _join(s, flow, left, now)


@inline_kernel
def settle(s: Sharing, now: float) -> None:
    """Bring shares, bottlenecks and ends up to date at the end of an instant."""
    for i in range(s.counts[TOUCHED]):
        link = s.work[TOUCHED, i]
        of = s.links[link]
        of.before = s.share[link]
        if of.load == 0:
            of.served, s.share[link] = 0.0, np.inf
        else:
            if s.share[link] < np.inf:
                of.served = _served(s, link, now)
            s.share[link] = of.capacity * LOAD / of.load
        of.since = now
        if of.own > 0:
            s.limit[link] = max(s.share[link], of.safe)
            _note(s, link, DIRTY)
        else:
            s.limit[link] = s.share[link]
        of.mark &= DIRTY + 1
    for i in range(s.counts[ENTERED]):
        flow = s.work[ENTERED, i]
        _join(s, flow, s.flows[flow].tag, now)
    for i in range(s.counts[TOUCHED]):
        link = s.work[TOUCHED, i]
        of = s.links[link]
        new = s.share[link]
        if new < of.before:
            above = False
            for near in s.near[of.row + of.own : of.row + of.length]:
                above |= s.limit[near] > new
            if above:
                _look_here(s, link, now)
        elif new > of.safe and of.own > 0:
            _look_elsewhere(s, link, now)
    for i in range(s.counts[DIRTY]):
        link = s.work[DIRTY, i]
        of = s.links[link]
        of.mark = 0
        replace(s.ends, link, _next_end(s, link))
    s.counts[TOUCHED] = s.counts[ENTERED] = s.counts[DIRTY] = 0


@inline_kernel
def _look_here(s: Sharing, link: int, now: float) -> None:
    """Move the flows over a link that now have their smallest share here."""
    of = s.links[link]
    new = s.share[link]
    for position in range(of.row + of.own, of.row + of.length):
        elsewhere = s.near[position]
        if s.limit[elsewhere] > new:
            if s.share[elsewhere] > new:
                _move(s, s.over[position].flow, now)
            else:
                s.links[elsewhere].safe = s.limit[elsewhere] = new


@inline_kernel
def _look_elsewhere(s: Sharing, link: int, now: float) -> None:
    """Move the flows of a link that now have their smallest share elsewhere."""
    of = s.links[link]
    here, safe = s.share[link], np.inf
    for position in range(of.row + of.own - 1, of.row - 1, -1):
        flow, elsewhere = s.over[position].flow, np.inf
        f = s.flows[flow]
        s.share[link] = np.inf
        for i in range(f.slot, f.slot + f.used):
            elsewhere = min(elsewhere, s.share[s.slots[i].link])
        s.share[link] = here
        if elsewhere < here:
            _move(s, flow, now)
        else:
            safe = min(safe, elsewhere)
    of.safe = safe
    s.limit[link] = max(here, safe)


@inline_kernel
def _next_end(s: Sharing, link: int) -> float:
    """When the next of the flows that a link is the bottleneck of ends; infinite where none is."""
    of = s.links[link]
    if of.own == 0:
        return np.inf
    if of.stale:
        soonest = np.inf
        for position in range(of.row, of.row + of.own):
            soonest = min(soonest, s.tags[position])
        of.soonest, of.stale = soonest, False
    return float(of.since + max(of.soonest - of.served, 0.0) / s.share[link])
