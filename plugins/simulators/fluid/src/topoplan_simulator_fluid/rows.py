"""State of the fluid model's links and flows, and the rows that say which flows are over a link.

State lies in a few columns of records, one for each link, flow and slot (one link of one flow): what belongs together
is read together, and a function that is not inlined is handed little.  Nothing here allocates but `idle`, so that
numba need not count references.

Each link has a row of the slots over it, those of its *own* flows (that it is the bottleneck of) first.

Invariants between two instants, after `topoplan_simulator_fluid.sharing.settle` (1 to 6 are in
`topoplan_simulator_fluid.kernel`; tests check them after each instant):

7. The first ``own`` places of a row are those of the link's own flows, and ``tags`` holds their tags; ``position`` of
   a slot is its place.
8. ``near[i]`` is the bottleneck of ``over[i].flow``.
9. The load of a link is the sum over its row, its share ``capacity * LOAD / load``, infinite when idle; with flows of
   its own its ``limit`` is the larger of ``share`` and ``safe``.
10. No link on the path of a flow has a smaller share than its bottleneck.
11. The lists of ``work`` are empty and no link is marked.
12. ``soonest`` is the smallest tag of a link's own flows unless it is ``stale``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan_engine.kernels.jit import inline_kernel
from topoplan_simulator_fluid.queues import tree

__all__ = ["DIRTY", "ENTERED", "TOUCHED", "Sharing", "add_slot", "idle", "make_room", "put", "swap"]

TOUCHED, DIRTY, ENTERED, OVER = range(4)

#: One link.
#:
#: capacity: bytes/s.  load: units of load on it.  before: its share before this instant.  served: bytes served to each
#: of its own flows (those that it is the bottleneck of) by ``since``, in seconds.  soonest: smallest tag of these;
#: stale: that one may have left.  safe: share up to which none of them has another bottleneck.  mark: 1 for a link in
#: ``TOUCHED`` (its load changed), 2 for one in ``DIRTY`` (its next end may have), or both.  row, own, length, room:
#: where its slots start in ``over``; how many are of its own flows, which come first; how many there are; and how many
#: would have room.
_LINK = np.dtype(
    [
        *((name, np.float64) for name in ("capacity", "before", "served", "since", "soonest", "safe")),
        *((name, np.int64) for name in ("load", "row")),
        *((name, np.int32) for name in ("own", "length", "room")),
        *((name, np.int8) for name in ("stale", "mark")),
    ],
    align=True,
)
#: One flow: its tag (bytes to go, until `settle` finds its bottleneck), where its slots start and how many are filled;
#: its bottleneck and its slot there, -1 for none.
_FLOW = np.dtype(
    [("tag", np.float64), ("slot", np.int64), ("used", np.int32), ("bottleneck", np.int32), ("home", np.int32)],
    align=True,
)
#: One slot: its link, the units of load there, and where it is in ``over``.
_SLOT = np.dtype([("load", np.int64), ("position", np.int32), ("link", np.uint32)], align=True)
#: One place of a row: a slot and its flow.
_PLACE = np.dtype([("slot", np.int32), ("flow", np.int32)], align=True)


class Sharing(NamedTuple):
    """State of links, flows and slots; a slot is one link of one flow.

    Attributes:
        links, flows, slots: records of each.
        share: bytes/s of a flow on each link, infinite when idle.
        limit: of each link, the larger of ``share`` and ``safe``.
        over: rows of slots, link by link; near: the bottlenecks of their flows; tags: of the flows that come first.
        work: (3, n) links touched, links dirty and flows entered in this instant.
        ends: the next end of each link, as a tree of minima (`topoplan_simulator_fluid.queues.replace`).
        counts: lengths of the rows of ``work``, and of what rows take of ``over``.
    """

    links: Any
    flows: Any
    slots: Any
    share: F64
    limit: F64
    over: Any
    near: Any
    tags: F64
    work: I32
    ends: F64
    counts: I64


@numba.njit(cache=True, no_cfunc_wrapper=True)
def idle(capacity: F64, slot_ptr: I64) -> Sharing:
    """Return idle links, and flows that have not begun."""
    n_links, n_flows, n_slots = len(capacity), len(slot_ptr) - 1, slot_ptr[len(slot_ptr) - 1]
    start = n_slots // (2 * n_links) + 1
    links, flows = np.zeros(n_links, _LINK), np.zeros(n_flows, _FLOW)
    for link in range(n_links):
        of = links[link]
        of.capacity, of.safe = capacity[link], np.inf
        of.row, of.room = link * start, start
    for flow in range(n_flows):
        flows[flow].slot, flows[flow].bottleneck = slot_ptr[flow], -1
    # A row that is full moves to the end with more than twice the room, so all rows ever made take 4 n_slots.
    room = 4 * (n_slots + n_links)
    return Sharing(
        links=links,
        flows=flows,
        slots=np.empty(n_slots, _SLOT),
        share=np.full(n_links, np.inf),
        limit=np.full(n_links, np.inf),
        over=np.empty(room, _PLACE),
        near=np.empty(room, np.uint32),
        tags=np.empty(room),
        work=np.empty((3, max(n_links, n_flows)), np.int32),
        ends=tree(n_links),
        counts=np.array([0, 0, 0, n_links * start]),
    )


@inline_kernel
def make_room(s: Sharing, flow: int) -> None:
    """See to it that every row that a flow will be in can grow."""
    f, needed = s.flows[flow], 0
    for slot in range(f.slot, f.slot + f.used):
        of = s.links[s.slots[slot].link]
        if of.length == of.room:
            needed += 2 * of.length + 1
    if s.counts[OVER] + needed > len(s.over):
        _lay_out(s)


@inline_kernel
def _grow(s: Sharing, of: Any) -> None:
    """Move the row of a link (``of``, its record) to the end, with more than twice the room."""
    row, new = of.row, s.counts[OVER]
    for i in range(of.length):
        put(s, new + i, s.over[row + i].slot, s.over[row + i].flow, s.near[row + i])
        s.tags[new + i] = s.tags[row + i]
    of.row, of.room = new, 2 * of.length + 1
    s.counts[OVER] += of.room


@inline_kernel
def add_slot(s: Sharing, slot: int, flow: int, near: int) -> None:
    """Add a slot to the row of its link."""
    of = s.links[s.slots[slot].link]
    if of.length == of.room:
        _grow(s, of)
    put(s, of.row + of.length, slot, flow, near)
    of.length += 1


@inline_kernel
def put(s: Sharing, position: int, slot: int, flow: int, near: int) -> None:
    """Fill one place of a row."""
    s.over[position].slot, s.over[position].flow, s.near[position] = slot, flow, near
    s.slots[slot].position = position


@inline_kernel
def swap(s: Sharing, one: int, other: int) -> None:
    """Let two places of a row change their contents, tags left out."""
    slot, flow, near = s.over[one].slot, s.over[one].flow, s.near[one]
    put(s, one, s.over[other].slot, s.over[other].flow, s.near[other])
    put(s, other, slot, flow, near)


@inline_kernel
def _lay_out(s: Sharing) -> None:
    """Lay the rows out anew, with half as much room again: flows drew other paths than before."""
    s.counts[OVER] = 0
    for link in range(len(s.links)):
        of = s.links[link]
        of.row, of.room = s.counts[OVER], of.length + (of.length + 1) // 2
        s.counts[OVER] += of.room
        of.length = 0
    for home in (True, False):
        for flow in range(len(s.flows)):
            f = s.flows[flow]
            if f.bottleneck >= 0:
                for slot in range(f.slot, f.slot + f.used):
                    if (slot == f.home) == home:
                        of = s.links[s.slots[slot].link]
                        s.tags[of.row + of.length] = f.tag
                        add_slot(s, slot, flow, f.bottleneck)
