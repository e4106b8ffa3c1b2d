"""Which message holds each link when: written down from outside the event loop, before each event.

A segment holds every link on its path from the time at which it takes it to the end of its last byte, latency included.
Segments of one message that follow each other on a link without a gap are one row.

Data flow: `record` runs `topoplan_simulator_flexnet.kernel.advance` one event at a time and looks at the first entry of
the queue before each; when there may be no room for the rows of one more segment, it makes room.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.errors import TopoplanError
from topoplan.model.recording import LinkUse
from topoplan_engine.kernels.jit import inline_kernel, interrupted, kernel, raise_interrupt
from topoplan_simulator_flexnet.kernel import Prepared, State, advance

__all__ = ["record"]

#: Rows that there is room for at first, beyond those of one step.
SPARE = 1 << 16
#: Rows that are written down at most: 32 bytes each.
MOST_ROWS = 50_000_000
#: Events between two looks for a signal, less one.
_ASK = (1 << 16) - 1


_COLUMNS = ("link", "task", "start", "finish", "nbytes")


class _Rows(NamedTuple):
    """Rows so far, in milliseconds; (1,) how many are ``used``; (E,) the ``last`` row of each link, -1 for none."""

    link: I32
    task: I32
    start: F64
    finish: F64
    nbytes: F64
    used: I64
    last: I64


def record(prepared: Prepared, state: State) -> tuple[int, LinkUse]:
    """Run one iteration from its initial state; return how many events there were, and the rows of all links by time.

    Raises:
        TopoplanError: there are too many rows.
    """
    longest = int((state.path_last - state.path_first).max(initial=0))
    longest = max(longest, int(np.diff(prepared.paths.path_ptr).max(initial=0)))
    rows = _room(longest + SPARE, np.full(len(state.link_free), -1, np.int64))
    events = 0
    while state.queue.length[0] > 0:
        count = _record(prepared, state, np.zeros(0), rows, longest)
        if count < 0:
            raise_interrupt()
        events += int(count)
        if state.queue.length[0] > 0:
            rows = _grown(rows)
    written = slice(int(rows.used[0]))
    order = np.lexsort((rows.start[written], rows.link[written]))
    links = LinkUse(
        link=rows.link[written][order],
        task=rows.task[written][order],
        start=rows.start[written][order] / 1e3,
        finish=rows.finish[written][order] / 1e3,
        nbytes=rows.nbytes[written][order],
    )
    return events, links


def _room(count: int, last: I64) -> _Rows:
    if count > MOST_ROWS:
        raise TopoplanError(
            f"record: messages take turns on links more than {MOST_ROWS // 2} times (take a larger segment-bytes)"
        )
    return _Rows(
        np.empty(count, np.int32),
        np.empty(count, np.int32),
        np.empty(count),
        np.empty(count),
        np.empty(count),
        np.zeros(1, np.int64),
        last,
    )


def _grown(rows: _Rows) -> _Rows:
    """Return the same rows with twice the room."""
    larger, count = _room(2 * len(rows.link), rows.last), int(rows.used[0])
    for name in _COLUMNS:
        getattr(larger, name)[:count] = getattr(rows, name)[:count]
    larger.used[0] = count
    return larger


@kernel
def _record(p: Prepared, s: State, time_to_end: F64, rows: _Rows, longest: int) -> int:
    """Run until the end, or until there may be no room for one more segment; return events, -1 if interrupted."""
    n_tasks, events = len(p.tasks.kind), 0
    while s.queue.length[0] > 0 and rows.used[0] <= len(rows.link) - longest:
        number = int(s.queue.ids[0])
        events += 1
        if events & _ASK == 0 and interrupted():
            return -1
        if s.path_last[number] > s.path_first[number]:
            _write(p, s, rows, number, number if number < n_tasks else s.owner[s.owner[number]])
        advance(p, s, time_to_end, np.inf, 1)
    return events


@inline_kernel
def _write(p: Prepared, s: State, rows: _Rows, message: int, task: int) -> None:
    """Write how the next segment of a message will cross its links, as the event loop will let it."""
    sent = min(s.bytes_left[message], p.segment)
    head = s.ready[message]
    for hop in range(s.path_first[message], s.path_last[message]):
        link = p.paths.links[hop]
        began = max(s.link_free[link], head)
        head = began + p.paths.latency[link]
        ended = head + (s.segment_time[link] if sent == p.segment else sent / p.paths.bandwidth[link])
        row = rows.last[link]
        if row < 0 or rows.task[row] != task or rows.finish[row] != began:
            row = rows.last[link] = rows.used[0]
            rows.used[0] += 1
            rows.link[row], rows.task[row], rows.start[row], rows.nbytes[row] = link, task, began, 0.0
        rows.finish[row] = ended
        rows.nbytes[row] += sent
