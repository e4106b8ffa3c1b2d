"""Which flow crosses each link when, and how fast: written down from outside the event loop, instant by instant.

After each instant the loop leaves two lists: the flows that ended in it, and the links whose next end may have moved.
Every flow whose rate has changed is bottlenecked at one of these, so that nothing else is looked at.  A flow whose rate
changes or that ends has crossed its links since the last change at one rate: that is one row for each link.

Data flow: `record` runs `topoplan_simulator_fluid.kernel.advance` one instant at a time; when there may be no room for
the rows of one more instant, it makes room.  The loop is that of `run`, so that the outcome is the same.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.errors import TopoplanError
from topoplan.model.recording import LinkUse
from topoplan_engine.kernels.jit import inline_kernel, interrupted, kernel, raise_interrupt
from topoplan_engine.network.tables import LOAD
from topoplan_engine.simulation.columns import Outcome
from topoplan_simulator_fluid.kernel import ALL_INSTANTS, State, advance, initial_state
from topoplan_simulator_fluid.prepared import Prepared
from topoplan_simulator_fluid.remaining import Deadline, no_deadline
from topoplan_simulator_fluid.rows import DIRTY, ENDED, SETTLED

__all__ = ["record"]

#: Rows that there is room for at first, beyond those of one step.
SPARE = 1 << 16
#: Rows that are written down at most: 40 bytes each.
MOST_ROWS = 50_000_000
#: Instants between two looks for a signal, less one.
_ASK = (1 << 12) - 1


_COLUMNS = ("link", "entity", "start", "finish", "nbytes")


class _Rows(NamedTuple):
    """Rows so far, of entities in the place of tasks; (1,) how many are ``used``."""

    link: I32
    entity: I32
    start: F64
    finish: F64
    nbytes: F64
    used: I64


class _Pace(NamedTuple):
    """What is known of entities that flow; N of them, S slots.

    Attributes:
        rate: (N,) bytes/s for each unit of load; 0 of one that does not flow.
        since: (N,) seconds; when the rate began to hold.
        left: (N,) bytes to go then, for each unit of load.
        used: (N,) links of its path.
        link, load: (S,) copies of the slots, which the next round overwrites.
    """

    rate: F64
    since: F64
    left: F64
    used: I32
    link: I32
    load: I64


def record(prepared: Prepared, seed: int) -> tuple[Outcome, LinkUse]:
    """Run one iteration; return its outcome and the rows of all links, in no order.

    Raises:
        TopoplanError: there are too many rows.
    """
    state, never = initial_state(prepared), no_deadline()
    pace = _pace(prepared)
    rows = _room(len(pace.link) + SPARE)
    events = 0
    while state.now[0] < np.inf:
        count = _record(prepared, state, seed, never, pace, rows, ALL_INSTANTS)
        if count < 0:
            raise_interrupt()
        events += int(count)
        if state.now[0] < np.inf:
            rows = _grown(rows)
    written = slice(int(rows.used[0]))
    links = LinkUse(
        link=rows.link[written],
        task=prepared.entities.task[rows.entity[written]],
        start=rows.start[written],
        finish=rows.finish[written],
        nbytes=rows.nbytes[written],
    )
    return Outcome(state.start, state.finish, state.link_bytes, float(state.makespan[0]), events), links


def _pace(prepared: Prepared) -> _Pace:
    """Return the pace before anything flows."""
    n_entities, n_slots = len(prepared.entities.task), int(prepared.entities.slot_ptr[-1])
    return _Pace(
        np.zeros(n_entities),
        np.zeros(n_entities),
        np.zeros(n_entities),
        np.zeros(n_entities, np.int32),
        np.zeros(n_slots, np.int32),
        np.zeros(n_slots, np.int64),
    )


def _room(count: int) -> _Rows:
    if count > MOST_ROWS:
        raise TopoplanError(f"record: rates on links change more than {MOST_ROWS // 2} times (record a smaller run)")
    return _Rows(
        np.empty(count, np.int32),
        np.empty(count, np.int32),
        np.empty(count),
        np.empty(count),
        np.empty(count),
        np.zeros(1, np.int64),
    )


def _grown(rows: _Rows) -> _Rows:
    """Return the same rows with twice the room."""
    larger, count = _room(2 * len(rows.link)), int(rows.used[0])
    for name in _COLUMNS:
        getattr(larger, name)[:count] = getattr(rows, name)[:count]
    larger.used[0] = count
    return larger


@kernel
def _record(p: Prepared, s: State, seed: int, never: Deadline, pace: _Pace, rows: _Rows, most: int) -> int:
    """Run until the end, for ``most`` instants, or until there may be no room for one more.

    Return the number of events, or -1 if the user has interrupted the loop.
    """
    events, instants = 0, 0
    room = len(rows.link) - len(pace.link)
    while s.now[0] < np.inf and rows.used[0] <= room and instants < most:
        now = s.now[0]
        instants += 1
        if instants & _ASK == 0 and interrupted():
            return -1
        events += advance(p, s, seed, never, 1)
        for i in range(s.sharing.counts[ENDED]):
            flow = int(s.ended[i])
            rest_bytes = pace.left[flow]
            # Ends within a picosecond happen together: the rate says when this one really came.
            _write(p, s, pace, rows, flow, rest_bytes, max(now, pace.since[flow] + rest_bytes / pace.rate[flow]))
            pace.rate[flow] = 0.0
        for i in range(s.sharing.counts[SETTLED]):
            link = s.sharing.work[DIRTY, i]
            first = s.sharing.links[link].row
            rate = s.sharing.share[link]
            for place in range(first, first + s.sharing.links[link].bottlenecked_here):
                flow = int(s.sharing.incidence[place].flow)
                if pace.rate[flow] == 0.0:
                    _begin(p, s, pace, flow)
                elif pace.rate[flow] != rate:
                    moved = min(pace.left[flow], pace.rate[flow] * (now - pace.since[flow]))
                    _write(p, s, pace, rows, flow, moved, now)
                    pace.left[flow] -= moved
                else:
                    continue
                pace.rate[flow], pace.since[flow] = rate, now
    return int(events)


@inline_kernel
def _begin(p: Prepared, s: State, pace: _Pace, flow: int) -> None:
    """Take note of the bytes and the links of a flow that begins."""
    first = p.entities.slot_ptr[flow]
    pace.left[flow] = p.entities.volume[flow] * LOAD / p.entities.load[flow]
    pace.used[flow] = s.sharing.flows[flow].used
    for i in range(pace.used[flow]):
        pace.link[first + i] = s.sharing.slots[first + i].link
        pace.load[first + i] = s.sharing.slots[first + i].load


@inline_kernel
def _write(p: Prepared, s: State, pace: _Pace, rows: _Rows, flow: int, moved: float, finish: float) -> None:
    """Write what a flow has moved since its rate began to hold: a row for each link."""
    start = pace.since[flow]
    if moved <= 0.0:
        return
    if finish <= start:  # too short a time for a number between both
        finish = np.nextafter(start, np.inf)
    first = p.entities.slot_ptr[flow]
    for i in range(first, first + pace.used[flow]):
        if pace.link[i] < len(s.link_bytes):
            row = rows.used[0]
            rows.link[row], rows.entity[row] = pace.link[i], flow
            rows.start[row], rows.finish[row] = start, finish
            rows.nbytes[row] = moved * (pace.load[i] / LOAD)
            rows.used[0] += 1
