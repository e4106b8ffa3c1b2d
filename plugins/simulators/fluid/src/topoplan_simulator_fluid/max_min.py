"""Max-min fair rates on the wire: no flow can be faster but at the cost of one that is no faster.

Rates are those of progressive filling (Bertsekas, Gallager, Data Networks, 1992, section 6.5.2): all flows get faster
together; where a link is full, its flows keep their rate, and the others go on.  The link that stops a flow is its
*bottleneck*; its flows have one rate, the *level* of the link.  A flow may load a link several times over.

Levels are whole numbers of a unit so small that rounding down costs no flow more than a billionth (`units`).  So sums
of what flows take of a link do not depend on their order.  What rounding leaves over does: where a flow crosses two
equal links, the first stops it, and the other flows of the second one would share the rest.  So levels that differ by
less than 2^-40 of them are equal: equal links get equal levels, and an entity that stands for k equal flows takes what
they take, to the last bit.

Data flow: `enter` and `end_flows` of `topoplan_simulator_fluid.sharing` change loads during an instant; `renew` then
computes levels, moves flows whose bottleneck changed, and puts the next ends into the tree of ends.

Work: one pass over the slots of the flows whose rate may change, and a heap of their links.  Filling begins anew where
what has changed can first matter; what fills before fills as it did:

- Where a flow has ended, at its level.  No link of its path had filled before, and none fills sooner without it.
- Where a flow has entered, at the level that a link of its path has if all its flows stop there, and nothing before.

Where thousands of flows end one by one, rates are renewed when a 64th part of them has ended (`LATE_ENDS`), or when a
16th part of what loads some link has (`topoplan_simulator_fluid.sharing.FREED_AT_MOST`); until then what they leave is
not used.  A flow that enters renews rates at once.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from topoplan.arrays import F64, I32, I64
from topoplan_engine.kernels.jit import inline_kernel, part
from topoplan_engine.network.tables import LOAD
from topoplan_simulator_fluid.queues import replace
from topoplan_simulator_fluid.rows import DIRTY, ENDED, ENTERED, SETTLED, STALE, TOUCHED, Sharing
from topoplan_simulator_fluid.sharing import join_at, leave, next_end, note, served

__all__ = ["ALWAYS", "FLOWING", "GRAIN", "LATE_ENDS", "Filling", "filling", "give_back", "renew"]

#: Rates are renewed when at least one in so many of the flows has ended; always where one entity may stand for many.
LATE_ENDS, ALWAYS = 64, 1 << 31
#: Units of load are counted in these, so that a level has as many digits as possible.
GRAIN = LOAD >> 10
#: Levels are equal that differ by no more than one in 2 to the power of so many: what rounding leaves over is shared by
#: the flows that have yet to stop, and would give some of equal flows more than the others.
_EQUAL_BITS = 40
#: No capacity is more units of rate and load than this.
_MOST = 1 << 61
_HEAP, FLOWING, _ENDED, _FULL, _KEPT, _AGAIN = range(6)


class Filling(NamedTuple):
    """State of progressive filling; E links, N flows.

    Attributes:
        capacity: (E,) of each link, in units of rate times grains of load.
        load: (E,) grains of load of the flows over it.
        rest: (E,) what of its capacity no flow has taken.
        open_load: (E,) grains of load of the flows that still get faster; 0 between two fillings.
        level: (E,) rate of the flows that are bottlenecked at each link, in units; 0 where none is.
        next_level: (E,) the same, computed anew.
        full: links that are bottlenecks, in the order in which they filled; ``rank`` (E,) of each link in it.
        again: those of them that may fill at another level.
        heap, key: heap of links by level, then number, and the level of each of its places.
        stopped: (N,) whether the bottleneck of each flow is found.
        slot: (N,) its slot there.
        unit: (1,) bytes/s of a unit of rate; a power of two.
        counts: links in the heap; flows; flows that ended since rates were renewed; links in ``full``; how many of
            these filled before any at which a flow has ended since; links in ``again``.
    """

    capacity: I64
    load: I64
    rest: I64
    open_load: I64
    level: I64
    next_level: I64
    full: I32
    rank: I32
    again: I32
    heap: I32
    key: I64
    stopped: NDArray[np.bool_]
    slot: I32
    unit: F64
    counts: I64


@part()
def filling(bandwidth: F64, n_flows: int) -> Filling:
    """Return the state before any flow has entered, of links of these bytes/s."""
    n_links = len(bandwidth)
    largest = 1.0
    for link in range(n_links):
        if bandwidth[link] < np.inf:
            largest = max(largest, bandwidth[link])
    unit = 2.0 ** (np.ceil(np.log2(largest * (LOAD // GRAIN))) - 61)
    capacity = np.empty(n_links, np.int64)
    for link in range(n_links):
        capacity[link] = np.int64(min(bandwidth[link] / unit * (LOAD // GRAIN), float(_MOST)))
    return Filling(
        capacity,
        np.zeros(n_links, np.int64),
        capacity.copy(),
        np.zeros(n_links, np.int64),
        np.zeros(n_links, np.int64),
        np.zeros(n_links, np.int64),
        np.zeros(n_links, np.int32),
        np.zeros(n_links, np.int32),
        np.zeros(n_links, np.int32),
        np.zeros(n_links + 1, np.int32),
        np.zeros(n_links + 1, np.int64),
        np.zeros(n_flows, np.bool_),
        np.zeros(n_flows, np.int32),
        np.full(1, unit),
        np.zeros(6, np.int64),
    )


@inline_kernel
def _grains(load: int) -> int:
    """Load in grains, rounded up: no link carries more than it can."""
    return int((load + (GRAIN - 1)) // GRAIN)


@inline_kernel
def _before(f: Filling, a: int, b: int) -> bool:
    """Whether place ``a`` of the heap comes before place ``b``."""
    return bool((f.key[a] < f.key[b]) | ((f.key[a] == f.key[b]) & (f.heap[a] < f.heap[b])))


@inline_kernel
def _sink(f: Filling, node: int) -> None:
    """Restore the heap below a place."""
    size = f.counts[_HEAP]
    while True:
        child = 2 * node + 1
        if child >= size:
            return
        if child + 1 < size and _before(f, child + 1, child):
            child += 1
        if not _before(f, child, node):
            return
        f.heap[node], f.heap[child] = f.heap[child], f.heap[node]
        f.key[node], f.key[child] = f.key[child], f.key[node]
        node = child


@inline_kernel
def _rise(f: Filling, node: int) -> None:
    """Restore the heap above a place."""
    while node > 0 and _before(f, node, (node - 1) // 2):
        above = (node - 1) // 2
        f.heap[node], f.heap[above] = f.heap[above], f.heap[node]
        f.key[node], f.key[above] = f.key[above], f.key[node]
        node = above


@inline_kernel
def _drop(f: Filling) -> None:
    """Take the first link out of the heap."""
    f.counts[_HEAP] -= 1
    last = f.counts[_HEAP]
    f.heap[0], f.key[0] = f.heap[last], f.key[last]
    _sink(f, 0)


@inline_kernel
def give_back(s: Sharing, f: Filling, ended: I32, count: int) -> None:
    """Give the links of flows that have just ended what the flows took of them; rates are those of before."""
    for i in range(count):
        flow = s.flows[ended[i]]
        link = s.slots[flow.home].link
        f.counts[_KEPT] = min(f.counts[_KEPT], f.rank[link])
        for slot in range(flow.slot, flow.slot + flow.used):
            passed_link, load = s.slots[slot].link, _grains(s.slots[slot].load)
            f.load[passed_link] -= load
            f.rest[passed_link] += load * f.level[link]


@inline_kernel
def _note_entered(s: Sharing, f: Filling) -> None:
    """Add the loads of flows that have entered, and keep only what fills before they can matter."""
    for i in range(s.counts[ENTERED]):
        flow = s.flows[s.work[ENTERED, i]]
        for slot in range(flow.slot, flow.slot + flow.used):
            f.load[s.slots[slot].link] += _grains(s.slots[slot].load)
    lowest_level = _MOST
    for i in range(s.counts[ENTERED]):
        flow = s.flows[s.work[ENTERED, i]]
        for slot in range(flow.slot, flow.slot + flow.used):
            link = s.slots[slot].link
            lowest_level = min(lowest_level, f.capacity[link] // f.load[link])
    lowest_level -= (lowest_level >> (_EQUAL_BITS - 1)) + 1
    while f.counts[_KEPT] > 0 and f.level[f.full[f.counts[_KEPT] - 1]] >= lowest_level:
        f.counts[_KEPT] -= 1


@inline_kernel
def _note_idle(s: Sharing, f: Filling) -> None:
    """Note which links all flows have left."""
    for i in range(s.counts[TOUCHED]):
        link = s.work[TOUCHED, i]
        s.links[link].freed = 0
        if s.links[link].length == 0:
            f.level[link] = 0
            s.share[link] = np.inf


@inline_kernel
def _open(s: Sharing, f: Filling, flow: int, level: int) -> None:
    """Let a flow that had this level get faster again: its links are in the heap."""
    f.stopped[flow] = False
    first = s.flows[flow].slot
    for slot in range(first, first + s.flows[flow].used):
        link, load = s.slots[slot].link, _grains(s.slots[slot].load)
        if f.open_load[link] == 0:
            f.heap[f.counts[_HEAP]] = link
            f.counts[_HEAP] += 1
        f.open_load[link] += load
        f.rest[link] += load * level


@inline_kernel
def _order(f: Filling) -> None:
    """Order the heap by the level that each link has if all flows stop there."""
    size = f.counts[_HEAP]
    for i in range(size):
        f.key[i] = f.rest[f.heap[i]] // f.open_load[f.heap[i]]
    for node in range(size // 2 - 1, -1, -1):
        _sink(f, node)


@inline_kernel
def _tie(f: Filling, height: int) -> None:
    """Give links whose level is equal to this one its key, so that their numbers order them."""
    most, tied, size = height + (height >> _EQUAL_BITS), 0, f.counts[_HEAP]
    while f.counts[_HEAP] > 0 and f.key[0] <= most:
        link = f.heap[0]
        if f.open_load[link] > 0:
            level = f.rest[link] // f.open_load[link]
            if level > most:
                f.key[0] = level
                _sink(f, 0)
                continue
            _drop(f)
            tied += 1
            f.heap[size - tied] = link  # places that the heap has left
        else:
            _drop(f)
    for i in range(size - tied, size):
        link, node = f.heap[i], f.counts[_HEAP]
        f.heap[node], f.key[node] = link, height
        f.counts[_HEAP] += 1
        _rise(f, node)


@inline_kernel
def _fill(s: Sharing, f: Filling) -> None:
    """Find the bottleneck of every flow, and the level of every link: of equal levels, the first link stops a flow."""
    count = f.counts[_KEPT]
    height = f.level[f.full[count - 1]] if count > 0 else 0
    _order(f)
    _tie(f, height)
    while f.counts[_HEAP] > 0:
        link = f.heap[0]
        if f.open_load[link] == 0:
            _drop(f)
            continue
        level = f.rest[link] // f.open_load[link]
        if level - height <= height >> _EQUAL_BITS:
            level = height
        if level > f.key[0]:  # flows that stopped elsewhere left more
            f.key[0] = level
            _sink(f, 0)
            continue
        level = max(level, 1)
        _drop(f)
        f.next_level[link], f.full[count], f.rank[link] = level, link, count
        count += 1
        row = s.links[link].row
        for place in range(row, row + s.links[link].length):
            flow = s.incidence[place].flow
            if not f.stopped[flow]:
                f.stopped[flow], f.slot[flow] = True, s.incidence[place].slot
                first = s.flows[flow].slot
                for i in range(first, first + s.flows[flow].used):
                    passed_link, load = s.slots[i].link, _grains(s.slots[i].load)
                    f.rest[passed_link] -= load * level
                    f.open_load[passed_link] -= load
        if level > height:
            height = level
            _tie(f, height)
    f.counts[_FULL] = f.counts[_KEPT] = count


@inline_kernel
def _take_out(s: Sharing, f: Filling, now: float) -> int:
    """Take flows out of bottlenecks that are theirs no more, and list them; return how many there are."""
    count = 0
    for i in range(f.counts[_AGAIN]):
        link = f.again[i]
        record = s.links[link]
        for place in range(record.row + record.bottlenecked_here - 1, record.row - 1, -1):
            flow = s.incidence[place].flow
            if s.slots[f.slot[flow]].link != link:
                s.flows[flow].virtual_finish = max(s.virtual_finish[place] - served(s, link, now), 0.0)
                leave(s, flow, record)
                note(s, link, DIRTY)
                s.work[TOUCHED, count] = flow
                count += 1
    return count


@inline_kernel
def renew(s: Sharing, f: Filling, late_ends: int, now: float) -> None:
    """Bring rates, bottlenecks and ends up to date at the end of an instant."""
    f.counts[FLOWING] += s.counts[ENTERED] - s.counts[ENDED]
    f.counts[_ENDED] += s.counts[ENDED]
    late = f.counts[_ENDED] > 0 and (s.counts[STALE] > 0 or f.counts[_ENDED] * late_ends >= f.counts[FLOWING])
    if s.counts[ENTERED] > 0 or late:
        _renew_all(s, f, now)
    for i in range(s.counts[DIRTY]):
        link = s.work[DIRTY, i]
        s.links[link].work_marks &= TOUCHED + 1
        replace(s.ends, link, next_end(s, link))
    s.counts[SETTLED] = s.counts[DIRTY]
    s.counts[DIRTY] = 0


@inline_kernel
def _renew_all(s: Sharing, f: Filling, now: float) -> None:
    """Compute rates anew, but those that what has changed cannot change."""
    _note_entered(s, f)
    first = f.counts[_KEPT]
    f.counts[_AGAIN] = f.counts[_FULL] - first
    for i in range(f.counts[_AGAIN]):
        link = f.full[first + i]
        f.again[i], f.next_level[link] = link, 0
        row = s.links[link].row
        for place in range(row, row + s.links[link].bottlenecked_here):
            _open(s, f, s.incidence[place].flow, f.level[link])
    for i in range(s.counts[ENTERED]):
        _open(s, f, s.work[ENTERED, i], 0)
    _note_idle(s, f)
    _fill(s, f)
    for i in range(s.counts[TOUCHED]):
        s.links[s.work[TOUCHED, i]].work_marks &= DIRTY + 1
    moved = _take_out(s, f, now)
    for i in range(f.counts[_AGAIN]):
        _set_level(s, f, f.again[i], now)
    for i in range(first, f.counts[_FULL]):
        _set_level(s, f, f.full[i], now)
    for i in range(moved):
        flow = s.work[TOUCHED, i]
        join_at(s, flow, f.slot[flow], s.flows[flow].virtual_finish, now)
    for i in range(s.counts[ENTERED]):
        flow = s.work[ENTERED, i]
        join_at(s, flow, f.slot[flow], s.flows[flow].virtual_finish, now)
    f.counts[_ENDED] = s.counts[TOUCHED] = s.counts[ENTERED] = s.counts[STALE] = 0


@inline_kernel
def _set_level(s: Sharing, f: Filling, link: int, now: float) -> None:
    """Let a link that has flows serve them at its new level from now on."""
    if f.next_level[link] == f.level[link] or s.links[link].length == 0:
        return
    record = s.links[link]
    record.served = served(s, link, now) if f.level[link] > 0 else 0.0
    record.since = now
    s.share[link] = f.next_level[link] * f.unit[0] if f.next_level[link] > 0 else np.inf
    f.level[link] = f.next_level[link]
    note(s, link, DIRTY)
