"""State of the fluid model's links and flows, and the incidence of both: rows of the flows over each link.

State lies in a few columns of records, one for each link, flow and slot (one link of one flow): what belongs together
is read together.  Only `idle` allocates, so that numba need not count references.  Numbers of rows that are never -1
are unsigned: for a signed one every access would ask first whether it counts from the end.

Each link has a row of the slots over it; those of the flows that are *bottlenecked here* stand first.

Invariants between two instants, after `topoplan_simulator_fluid.sharing.settle` (1 to 6 are in
`topoplan_simulator_fluid.kernel`; tests check them after each instant):

7. The first ``bottlenecked_here`` places of a row are those of flows whose bottleneck is the link, and
   ``virtual_finish`` holds theirs; ``position`` of a slot is its place.
8. ``flow_bottleneck[i]`` is the bottleneck of ``incidence[i].flow``.
9. The load of a link is the sum over its row, its share ``capacity * LOAD / load``, infinite if it is idle; if flows
   are bottlenecked here, its ``limit`` is the larger of ``share`` and ``reuse_threshold``.
10. No link on the path of a flow has a smaller share than its bottleneck.
11. The lists of ``work`` are empty and no link is marked.
12. ``soonest`` is the smallest virtual finish of the flows that are bottlenecked here, unless ``soonest_outdated``.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan_engine.kernels.jit import inline_kernel, part
from topoplan_simulator_fluid.queues import tree

__all__ = [
    "DIRTY",
    "ENDED",
    "ENTERED",
    "SETTLED",
    "STALE",
    "TOUCHED",
    "Sharing",
    "add_slot",
    "idle",
    "make_room",
    "put",
    "swap",
]

TOUCHED, DIRTY, ENTERED, USED, SETTLED, ENDED, STALE = range(7)

#: One link.
#:
#: capacity: bytes/s.  load: units of load on it.  freed: those of flows that have ended since rates were computed, on
#: the wire.  before: its share before this instant.  served: bytes served to each
#: flow that is bottlenecked here by ``since``, in seconds.  soonest: smallest virtual finish of these;
#: soonest_outdated: that flow may have left.  reuse_threshold: share up to which none of them has another bottleneck.
#: work_marks: 1 for a link in ``TOUCHED`` (its load changed), 2 for one in ``DIRTY`` (its next end may have), or
#: both.  row, bottlenecked_here, length, row_capacity: first place of its row in ``incidence``; how many places are of
#: flows that are bottlenecked here, which stand first; how many there are; and for how many there is room.
_LINK = np.dtype(
    [
        *((name, np.float64) for name in ("capacity", "before", "served", "since", "soonest", "reuse_threshold")),
        ("load", np.int64),
        ("freed", np.int64),
        ("row", np.uint32),
        *((name, np.int32) for name in ("bottlenecked_here", "length", "row_capacity")),
        *((name, np.int8) for name in ("soonest_outdated", "work_marks")),
    ],
    align=True,
)
#: One flow: its virtual finish (bytes to go, until `settle` finds its bottleneck), its first slot and how many are
#: filled; its bottleneck and its slot there, -1 for none.
_FLOW = np.dtype(
    [
        ("virtual_finish", np.float64),
        ("slot", np.uint32),
        ("used", np.int32),
        ("bottleneck", np.int32),
        ("home", np.int32),
    ],
    align=True,
)
#: One slot: its link, the units of load there, and its place in ``incidence``.
_SLOT = np.dtype([("load", np.int64), ("position", np.uint32), ("link", np.uint32)], align=True)
#: One place of a row: a slot and its flow.
_PLACE = np.dtype([("slot", np.uint32), ("flow", np.uint32)], align=True)


class Sharing(NamedTuple):
    """State of links, flows and slots; a slot is one link of one flow.

    Attributes:
        links, flows, slots: records of each.
        share: bytes/s of a flow on each link, infinite when idle.
        limit: of each link, the larger of ``share`` and ``reuse_threshold``.
        incidence: rows of slots, link by link.
        flow_bottleneck: of the flow of each place of ``incidence``.
        virtual_finish: of the same flow, in those places where it is bottlenecked here.
        work: (3, n) links touched, links dirty and flows entered in this instant.
        ends: the next end of each link, as a tree of minima (`topoplan_simulator_fluid.queues.replace`).
        counts: lengths of the rows of ``work``, and places of ``incidence`` that are used; of the last instant, links
            that were dirty (they stand in ``work`` until the next one), and flows that ended; whether
            these have freed much of a link since rates were computed.
    """

    links: Any
    flows: Any
    slots: Any
    share: F64
    limit: F64
    incidence: Any
    flow_bottleneck: Any
    virtual_finish: F64
    work: I32
    ends: F64
    counts: I64


@part()
def idle(capacity: F64, slot_ptr: I64) -> Sharing:
    """Return idle links, and flows that have not entered."""
    n_links, n_flows, n_slots = len(capacity), len(slot_ptr) - 1, slot_ptr[len(slot_ptr) - 1]
    start = n_slots // (2 * n_links) + 1
    links, flows = np.zeros(n_links, _LINK), np.zeros(n_flows, _FLOW)
    for link in range(n_links):
        record = links[link]
        record.capacity, record.reuse_threshold = capacity[link], np.inf
        record.row, record.row_capacity = link * start, start
    for flow in range(n_flows):
        flows[flow].slot, flows[flow].bottleneck = slot_ptr[flow], -1
    # A row that is full moves to the end with more than twice the room, so all rows ever made take 4 n_slots.
    places = 4 * (n_slots + n_links)
    return Sharing(
        links=links,
        flows=flows,
        slots=np.empty(n_slots, _SLOT),
        share=np.full(n_links, np.inf),
        limit=np.full(n_links, np.inf),
        incidence=np.empty(places, _PLACE),
        flow_bottleneck=np.empty(places, np.uint32),
        virtual_finish=np.empty(places),
        work=np.empty((3, max(n_links, n_flows)), np.int32),
        ends=tree(n_links),
        counts=np.array([0, 0, 0, n_links * start, 0, 0, 0]),
    )


@inline_kernel
def make_room(s: Sharing, flow: int) -> None:
    """Make sure that the row of every link of a flow can grow."""
    f, needed = s.flows[flow], 0
    for slot in range(f.slot, f.slot + f.used):
        record = s.links[s.slots[slot].link]
        if record.length == record.row_capacity:
            needed += 2 * record.length + 1
    if s.counts[USED] + needed > len(s.incidence):
        _lay_out(s)


@inline_kernel
def _grow(s: Sharing, record: Any) -> None:
    """Move the row of a link, given its record, to the end, with more than twice as many places."""
    row, new = record.row, s.counts[USED]
    for i in range(record.length):
        put(s, new + i, s.incidence[row + i].slot, s.incidence[row + i].flow, s.flow_bottleneck[row + i])
        s.virtual_finish[new + i] = s.virtual_finish[row + i]
    record.row, record.row_capacity = new, 2 * record.length + 1
    s.counts[USED] += record.row_capacity


@inline_kernel
def add_slot(s: Sharing, slot: int, flow: int, bottleneck: int) -> None:
    """Add a slot to the row of its link."""
    record = s.links[s.slots[slot].link]
    if record.length == record.row_capacity:
        _grow(s, record)
    put(s, record.row + record.length, slot, flow, bottleneck)
    record.length += 1


@inline_kernel
def put(s: Sharing, position: int, slot: int, flow: int, bottleneck: int) -> None:
    """Fill one place of a row."""
    s.incidence[position].slot, s.incidence[position].flow, s.flow_bottleneck[position] = slot, flow, bottleneck
    s.slots[slot].position = position


@inline_kernel
def swap(s: Sharing, a: int, b: int) -> None:
    """Exchange the contents of two places of a row, virtual finishes left out."""
    slot, flow, bottleneck = s.incidence[a].slot, s.incidence[a].flow, s.flow_bottleneck[a]
    put(s, a, s.incidence[b].slot, s.incidence[b].flow, s.flow_bottleneck[b])
    put(s, b, slot, flow, bottleneck)


@inline_kernel
def _lay_out(s: Sharing) -> None:
    """Lay the rows out anew, with half as many places again: flows drew other paths than before."""
    s.counts[USED] = 0
    for link in range(len(s.links)):
        record = s.links[link]
        record.row, record.row_capacity = s.counts[USED], record.length + (record.length + 1) // 2
        s.counts[USED] += record.row_capacity
        record.length = 0
    for home in (True, False):
        for flow in range(len(s.flows)):
            f = s.flows[flow]
            if f.bottleneck >= 0:
                for slot in range(f.slot, f.slot + f.used):
                    if (slot == f.home) == home:
                        record = s.links[s.slots[slot].link]
                        s.virtual_finish[record.row + record.length] = f.virtual_finish
                        add_slot(s, slot, flow, f.bottleneck)
