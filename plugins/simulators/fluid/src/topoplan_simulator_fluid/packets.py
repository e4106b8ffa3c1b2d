"""FlexNetPacket's transport, packet by packet.

What that program (TopoOpt, NSDI'23; its simulator is htsim) does with a message, read from its sources:

* A flow opens with a packet of one byte, and sends once this is answered.  Answers take no time.  Data goes in packets
  of 8936 bytes, up to a window of them on their way: 100 at first, 101 after the first answer (``tcp.cpp``).
* A link is a queue without limit, which is served in order of arrival, and a pipe behind it with the link's latency.  A
  packet that leaves more than 50 in its queue, itself among them, is marked (``queue.cpp``, ``ecnqueue.cpp``).
* DCTCP (Alizadeh et al., SIGCOMM 2010): once for each window of answers the marked share f of these changes a mean, ``a
  += (f - a) / 16``, and the window becomes ``1 - a/2`` of itself, one packet at least.  Each answer widens it by a
  packet up to a threshold, which is the window when a mark was seen; beyond, all answers of a window together do
  (``dctcp.cpp``).
* What is not answered in time is taken for lost, though nothing ever is: after 1 ms for the first packet of a flow of
  a ring over routes, 10 ms for that of others, and then after the mean time of an answer and four mean deviations, 10
  ms at least.  Such a flow starts again with a window of one packet.  Timers are looked at once a millisecond.
* Members of a ring wait for each other in every round, and draw paths anew.
* Tasks that wait for nothing start in the order in which a hash table lists them (`_listed`).

Times are whole picoseconds, and what happens at the same time happens in the order in which it was scheduled, as in
that program: where no paths are drawn, both end together, to some picoseconds.  Two things differ.  Its own fat-tree
does not mark packets in queues of hosts; and paths are drawn from other random numbers.

Data flow: `run_packets` takes the columns of a stepped iteration.  Events are those of queues, pipes, flows, tasks,
timers that are over, and the clock that looks at timers; each has a number, and a heap orders them.  What a flow does
with an answer is `topoplan_simulator_fluid.windows`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.model.taskgraph import TaskKind
from topoplan_engine.kernels.jit import inline_kernel, interrupted, njit, part, raise_interrupt
from topoplan_engine.network.tables import PathColumns, RingColumns
from topoplan_engine.simulation.columns import TaskColumns
from topoplan_engine.simulation.flows import Entities
from topoplan_engine.simulation.messages import PACKET
from topoplan_simulator_fluid.drawing import draw_path
from topoplan_simulator_fluid.prepared import Prepared
from topoplan_simulator_fluid.slowed import Beside
from topoplan_simulator_fluid.windows import (
    FLOW,
    LOOK,
    NEVER,
    answer,
    is_late,
    may_send,
    restart,
    take_for_lost,
)

__all__ = ["PS", "run_packets"]

#: Picoseconds of a second.
PS = 1e12
_TRANSFER = int(TaskKind.TRANSFER)
_COLLECTIVE = int(TaskKind.COLLECTIVE)
#: Bytes in a queue above which a packet that leaves it is marked.
_MARKED_ABOVE = 50 * PACKET
#: More packets than one event sends, and rows that it writes.
_AT_ONCE = 256
#: Events between two looks for a signal, less one.
_ASK = (1 << 17) - 1
#: Sizes that a hash table of libstdc++ grows through.
_SIZES = (13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061, 712697, 1447153)

#: Decorates a part of the loop that is called seldom, or from several places: it is not inlined, which takes longer to
#: compile than to call.
_part: Any = part(_nrt=False)

#: One packet on its way.
#:
#: first_byte, sent_at, leaves_pipe: its first byte; picoseconds.  hop, last_hop: places in ``PathColumns.links``.
#: flow, message: who sends it, and the how manieth message of that flow it belongs to.  size: bytes, 1 for one that
#: opens a flow.  behind: the packet behind it in a queue or pipe, -1 for none.  mark: whether some queue was long.
_PACKET = np.dtype(
    [
        *((name, np.int64) for name in ("first_byte", "sent_at", "leaves_pipe", "hop", "last_hop")),
        *((name, np.int32) for name in ("flow", "message", "size", "behind")),
        ("mark", np.int8),
    ],
    align=True,
)
#: One link: picoseconds for a whole packet, for one byte, and of its latency; bytes in its queue; first and last packet
#: of queue and pipe, no first is -1; the last row that was written of it, -1 for none.
_LINK = np.dtype(
    [
        *((name, np.int64) for name in ("whole", "opening", "latency", "queued")),
        *((name, np.int32) for name in ("first", "last", "pipe_first", "pipe_last")),
        ("row", np.int64),
    ],
    align=True,
)
#: One row of `topoplan.model.recording.LinkUse`, in picoseconds.
_ROW = np.dtype([(name, np.int64) for name in ("link", "task", "start", "finish", "nbytes")])
_HEAP, _ORDER, _WATCHED, _FREE, _USED, _ENDED, _ROWS = range(7)


class _Numbers(NamedTuple):
    """First number of the events of each kind; links' queues begin at 0."""

    pipe: int
    flow: int
    late: int
    task: int
    clock: int


class _State(NamedTuple):
    """What the events change; T tasks, N entities, D devices, E links.

    Attributes:
        start, finish, makespan, link_bytes: (T,), (T,), (1,), (E,) picoseconds and bytes; -1 before.
        draws, waits, open_rings, running, queue_head, queue_tail, next_in_queue, leader, flows_left, rounds_left: see
            `topoplan_simulator_fluid.kernel.State`.
        flows, links: records of each.
        watched: (N,) flows whose timers are looked at.
        times, order, numbers: the heap of events, the earliest first; of equal times, the one that was scheduled first.
        counts: events in the heap and ever, flows watched, packets that are free again and ever used, tasks that have
            ended, rows.
    """

    start: I64
    finish: I64
    makespan: I64
    link_bytes: I64
    draws: I64
    waits: I32
    open_rings: I32
    running: I32
    queue_head: I32
    queue_tail: I32
    next_in_queue: I32
    leader: I32
    flows_left: I32
    rounds_left: I32
    flows: Any
    links: Any
    watched: I32
    times: I64
    order: I64
    numbers: I32
    counts: I64


def run_packets(p: Prepared, seed: int, time_to_end: F64, stop: float, record: bool) -> Any:
    """Run one iteration, which the user may interrupt.

    Args:
        p: columns of a stepped iteration.
        seed: draws paths.
        time_to_end, stop: see `topoplan_simulator_fluid.kernel`; the makespan is infinite if it comes too late.
        record: write down which task crosses each link when.

    Returns:
        Start and finish of tasks, bytes of links, makespan, number of events, rows.
    """
    columns = (tuple(p.tasks), tuple(p.entities), tuple(p.paths), tuple(p.rings), tuple(p.beside))
    start, finish, link_bytes, makespan, events, rows, n_rows = _run(
        *columns, p.n_devices, seed, time_to_end, stop, record
    )
    if events < 0:
        raise_interrupt()
    return _seconds(start), _seconds(finish), link_bytes * 1.0, makespan, events, rows[:n_rows]


@njit()
def _run(
    of_tasks: Any,
    of_entities: Any,
    of_paths: Any,
    of_rings: Any,
    of_beside: Any,
    n_devices: int,
    seed: int,
    time_to_end: F64,
    stop: float,
    record: bool,
) -> Any:
    """Run one iteration; see `run_packets`: times are picoseconds, and behind the rows is how many are written.

    The number of events is -1 if the user has interrupted the loop.
    """
    columns = (TaskColumns(*of_tasks), Entities(*of_entities), PathColumns(*of_paths), RingColumns(*of_rings))
    p = Prepared(*columns, n_devices, 1, 0, Beside(*of_beside))
    n_tasks, n_links, n_flows = len(p.tasks.kind), len(p.paths.bandwidth), len(p.entities.task)
    first_task = 2 * (n_links + n_flows)
    n = _Numbers(n_links, 2 * n_links, 2 * n_links + n_flows, first_task, first_task + n_tasks)
    s = _initial(p, n.clock + 1)
    packets, free = np.zeros(4 * _AT_ONCE, _PACKET), np.empty(4 * _AT_ONCE, np.int32)
    rows = np.empty(16 * _AT_ONCE if record else 0, _ROW)
    delay = 0
    for t in _listed(n_tasks):
        if p.tasks.preds[t] == 0:
            _push(s, delay, n.task + t)
            delay += 1
    _push(s, LOOK, n.clock)
    events = 0
    while s.counts[_HEAP] > 0 and s.counts[_ENDED] < n_tasks:
        now, number = s.times[0], int(s.numbers[0])
        _pop(s)
        events += 1
        if events & _ASK == 0 and interrupted():
            events = -1
            break
        if len(packets) - s.counts[_USED] + s.counts[_FREE] < _AT_ONCE:
            packets, free = _twice(packets), _twice(free)
        if record and len(rows) == s.counts[_ROWS]:
            rows = _twice(rows)
        if stop < np.inf and n.task <= number < n.clock:
            is_starting = s.start[number - n.task] < 0  # no event when it ends
            if is_starting and now / PS + time_to_end[number - n.task] >= stop:
                s.makespan[0] = NEVER
                break
        _event(p, s, n, packets, free, rows, number, seed, now)
        if number == n.clock and s.counts[_HEAP] > 0:
            _push(s, now + LOOK, n.clock)
    makespan = s.makespan[0] / PS if s.makespan[0] < NEVER else np.inf
    return s.start, s.finish, s.link_bytes, makespan, events, rows, s.counts[_ROWS]


@part()
def _twice(column: Any) -> Any:
    """Return a column with as much room again."""
    longer = np.empty(2 * len(column), column.dtype)
    for i in range(len(column)):
        longer[i] = column[i]
    return longer


def _seconds(ps: I64) -> F64:
    """Seconds of picoseconds; -1 stays."""
    return np.where(ps < 0, -1.0, ps / PS)


@part()
def _initial(p: Prepared, numbers: int) -> _State:
    """Return the state before the first event."""
    n_tasks, n_flows, n_links = len(p.tasks.kind), len(p.entities.task), len(p.paths.bandwidth)
    leader, open_rings = np.zeros(n_flows, np.int32), np.zeros(n_tasks, np.int32)
    for e in range(n_flows):
        leader[e] = e if p.entities.ring_size[e] > 0 else leader[e - 1]
        if p.entities.ring_size[e] > 0:
            open_rings[p.entities.task[e]] += 1
    links = np.zeros(n_links, _LINK)
    for i in range(n_links):
        link = links[i]
        link.whole, link.opening = _ps(PACKET / p.paths.bandwidth[i]), _ps(1.0 / p.paths.bandwidth[i])
        link.latency = _ps(p.paths.latency[i])
        link.first = link.pipe_first = link.row = -1
    return _State(
        np.full(n_tasks, -1, np.int64),
        np.full(n_tasks, -1, np.int64),
        np.zeros(1, np.int64),
        np.zeros(n_links, np.int64),
        np.zeros(len(p.paths.pair), np.int64),
        p.tasks.preds.copy(),
        open_rings,
        np.full(p.n_devices, -1, np.int32),
        np.full(p.n_devices, -1, np.int32),
        np.full(p.n_devices, -1, np.int32),
        np.full(n_tasks, -1, np.int32),
        leader,
        p.entities.ring_size.copy(),
        p.entities.rounds.copy(),
        np.zeros(n_flows, FLOW),
        links,
        np.empty(n_flows, np.int32),
        np.empty(numbers, np.int64),
        np.empty(numbers, np.int64),
        np.empty(numbers, np.int32),
        np.zeros(7, np.int64),
    )


@part()
def _listed(n: int) -> I64:
    """Order in which a hash table of libstdc++ lists the keys 0, 1 .. n - 1 that were put into it one after the other.

    A key goes to the front.  When the table grows, it puts all keys into a new one, in the order of its list.
    """
    order, first, count = np.empty(2 * n + 1, np.int64), n, 0
    k = 0
    for key in range(n):
        if k < len(_SIZES) and key == _SIZES[k]:
            for i in range(count // 2):
                order[first + i], order[first + count - 1 - i] = order[first + count - 1 - i], order[first + i]
            k += 1
        first -= 1
        order[first] = key
        count += 1
    return order[first : first + count]


@inline_kernel
def _ps(seconds: float) -> int:
    """Picoseconds; never less than the seconds, but for their rounding, so that nothing is faster than its bounds."""
    return int(np.ceil(seconds * PS - 1e-4))


@inline_kernel
def _push(s: _State, time: int, number: int) -> None:
    """Schedule an event."""
    node = s.counts[_HEAP]
    while node > 0:
        parent = (node - 1) >> 1
        if s.times[parent] <= time:
            break
        s.times[node], s.order[node], s.numbers[node] = s.times[parent], s.order[parent], s.numbers[parent]
        node = parent
    s.times[node], s.order[node], s.numbers[node] = time, s.counts[_ORDER], number
    s.counts[_HEAP] += 1
    s.counts[_ORDER] += 1


@inline_kernel
def _pop(s: _State) -> None:
    """Drop the earliest event."""
    s.counts[_HEAP] -= 1
    last = s.counts[_HEAP]
    time, order, number = s.times[last], s.order[last], s.numbers[last]
    node = 0
    while True:
        child = 2 * node + 1
        if child >= last:
            break
        if child + 1 < last:
            child += _before(s, child + 1, s.times[child], s.order[child])
        if not _before(s, child, time, order):
            break
        s.times[node], s.order[node], s.numbers[node] = s.times[child], s.order[child], s.numbers[child]
        node = child
    s.times[node], s.order[node], s.numbers[node] = time, order, number


@inline_kernel
def _before(s: _State, node: int, time: int, order: int) -> bool:
    return bool((s.times[node] < time) | ((s.times[node] == time) & (s.order[node] < order)))


@inline_kernel
def _event(
    p: Prepared, s: _State, n: _Numbers, packets: Any, free: Any, rows: Any, number: int, seed: int, now: int
) -> None:
    """Let happen what an event stands for."""
    if number < n.pipe:
        _leave_queue(p, s, n, packets, rows, number, now)
    elif number < n.flow:
        link = s.links[number - n.pipe]
        packet = int(link.pipe_first)
        link.pipe_first = packets[packet].behind
        _next_hop(p, s, n, packets, free, packet, now)
        if link.pipe_first >= 0:
            _push(s, packets[link.pipe_first].leaves_pipe, number)
    elif number < n.late:
        if _begin(p, s, number - n.flow, seed):
            _send_one(p, s, packets, free, number - n.flow, 0, now)
        else:
            _message_ended(p, s, n, number - n.flow, now)
    elif number < n.task:
        flow = s.flows[number - n.late]
        if flow.late and not flow.ended:
            take_for_lost(flow)
            _send_one(p, s, packets, free, number - n.late, flow.answered, now)
    elif number < n.clock:
        _task_event(p, s, n, number - n.task, now)
    else:
        _look_at_timers(s, n, now)


@inline_kernel
def _next_hop(p: Prepared, s: _State, n: _Numbers, packets: Any, free: Any, packet: int, now: int) -> None:
    """Put a packet into the queue of its next link; or it has arrived, and is answered."""
    record = packets[packet]
    if record.hop < record.last_hop:
        record.hop += 1
        _enter_queue(s, packets, packet, int(p.paths.links[record.hop]), now)
        return
    f, first_byte, size, mark, sent_at = int(record.flow), record.first_byte, record.size, record.mark, record.sent_at
    flow = s.flows[f]
    is_current = record.message == flow.message
    free[s.counts[_FREE]] = packet
    s.counts[_FREE] += 1
    if not is_current or flow.ended:
        return
    if first_byte == flow.arrived + 1:
        flow.arrived += size
    answer_time = answer(flow, sent_at, mark, now)
    if answer_time == 1:
        _message_ended(p, s, n, f, now)
        return
    if answer_time == -1:
        _send_one(p, s, packets, free, f, flow.answered, now)
    while may_send(flow):
        _send_one(p, s, packets, free, f, flow.sent, now)
        flow.sent += PACKET


@_part
def _begin(p: Prepared, s: _State, f: int, seed: int) -> bool:
    """Begin a message: draw its path; whether this has links."""
    flow, row = s.flows[f], p.entities.path_set[f]
    path = draw_path(p.paths, s.draws, row, seed)
    is_ring = p.tasks.kind[p.entities.task[f]] == _COLLECTIVE and p.paths.pair[row] >= 0
    restart(flow, np.int64(p.entities.volume[f]), path, is_ring)
    if p.paths.path_ptr[path + 1] == p.paths.path_ptr[path]:
        flow.ended = 1
        return False
    if not flow.watched:
        flow.watched = 1
        s.watched[s.counts[_WATCHED]] = f
        s.counts[_WATCHED] += 1
    return True


@_part
def _send_one(p: Prepared, s: _State, packets: Any, free: Any, f: int, delay: int, now: int) -> None:
    """Send the packet of a flow that begins behind a byte, or the one that opens it.

    There is room.  Like in that program, the one that opens a flow keeps the time of the packet that was in its place.
    """
    if s.counts[_FREE] > 0:
        s.counts[_FREE] -= 1
        packet = int(free[s.counts[_FREE]])
    else:
        packet = int(s.counts[_USED])
        packets[packet].sent_at = 0
        s.counts[_USED] += 1
    flow, record = s.flows[f], packets[packet]
    record.flow, record.message, record.mark = f, flow.message, 0
    record.hop, record.last_hop = p.paths.path_ptr[flow.path], p.paths.path_ptr[flow.path + 1] - 1
    if flow.opened:
        record.first_byte, record.size, record.sent_at = delay + 1, PACKET, now
    else:
        record.first_byte, record.size, flow.sent = 1, 1, 1
    _enter_queue(s, packets, packet, int(p.paths.links[record.hop]), now)
    if flow.timeout == NEVER:
        flow.timeout = now + flow.patience


@inline_kernel
def _enter_queue(s: _State, packets: Any, packet: int, number: int, now: int) -> None:
    """Put a packet at the end of the queue of a link."""
    link, record = s.links[number], packets[packet]
    record.behind = -1
    link.queued += record.size
    if link.first < 0:
        link.first = link.last = packet
        _push(s, now + (link.whole if record.size > 1 else link.opening), number)
    else:
        packets[link.last].behind = packet
        link.last = packet


@inline_kernel
def _leave_queue(p: Prepared, s: _State, n: _Numbers, packets: Any, rows: Any, number: int, now: int) -> None:
    """Take the first packet of a queue that has been written on its link; it goes into the pipe."""
    link, packet = s.links[number], int(s.links[number].first)
    record = packets[packet]
    following = int(record.behind)
    if link.queued > _MARKED_ABOVE:
        record.mark = 1
    link.queued -= record.size
    if record.size > 1:
        s.link_bytes[number] += PACKET
        if len(rows) > 0:
            _write(s, rows, number, int(p.entities.task[record.flow]), now)
    link.first, record.behind, record.leaves_pipe = following, -1, now + link.latency
    if link.pipe_first < 0:
        link.pipe_first = link.pipe_last = packet
        _push(s, record.leaves_pipe, n.pipe + number)
    else:
        packets[link.pipe_last].behind = packet
        link.pipe_last = packet
    if following >= 0:
        _push(s, now + (link.whole if packets[following].size > 1 else link.opening), number)


@inline_kernel
def _write(s: _State, rows: Any, number: int, task: int, now: int) -> None:
    """Write down that a packet has crossed a link: in the last row, if it goes on with that."""
    link = s.links[number]
    if link.row >= 0 and rows[link.row].task == task and rows[link.row].finish == now - link.whole:
        rows[link.row].finish = now
        rows[link.row].nbytes += PACKET
        return
    link.row = s.counts[_ROWS]
    s.counts[_ROWS] += 1
    row = rows[link.row]
    row.link, row.task, row.start, row.finish, row.nbytes = number, task, now - link.whole, now, PACKET


@_part
def _look_at_timers(s: _State, n: _Numbers, now: int) -> None:
    """Schedule the flows that have waited too long, and forget those that have ended."""
    kept_count = 0
    for i in range(s.counts[_WATCHED]):
        f = int(s.watched[i])
        if s.flows[f].ended:
            s.flows[f].watched = 0
            continue
        s.watched[kept_count] = f
        kept_count += 1
        later = is_late(s.flows[f], now)
        if later >= 0:
            _push(s, now + later, n.late + f)
    s.counts[_WATCHED] = kept_count


@_part
def _message_ended(p: Prepared, s: _State, n: _Numbers, f: int, now: int) -> None:
    """Take note that a message is there: the last one of a round begins the next round, or ends the ring."""
    leader, task = int(s.leader[f]), int(p.entities.task[f])
    s.flows_left[leader] -= 1
    if s.flows_left[leader] > 0:
        return
    s.rounds_left[leader] -= 1
    if s.rounds_left[leader] > 0:
        s.flows_left[leader] = p.entities.ring_size[leader]
        for e in range(leader, leader + p.entities.ring_size[leader]):
            _push(s, now, n.flow + e)
        return
    s.open_rings[task] -= 1
    if s.open_rings[task] == 0:
        _task_ended(p, s, n, task, now)


@inline_kernel
def _task_ended(p: Prepared, s: _State, n: _Numbers, task: int, now: int) -> None:
    """End a task; successors that waited for it alone become ready."""
    s.finish[task] = s.makespan[0] = now
    s.counts[_ENDED] += 1
    for i in range(p.tasks.succ_ptr[task], p.tasks.succ_ptr[task + 1]):
        successor = p.tasks.succ[i]
        s.waits[successor] -= 1
        if s.waits[successor] == 0:
            _push(s, now, n.task + successor)


@_part
def _task_event(p: Prepared, s: _State, n: _Numbers, task: int, now: int) -> None:
    """Start a task that waits for nothing, or queue it on its device; or end it there."""
    first, last = int(p.entities.of_task[task]), int(p.entities.of_task[task + 1])
    kind, device = p.tasks.kind[task], p.tasks.device[task]
    if kind in (_TRANSFER, _COLLECTIVE):
        s.start[task] = now
        if first == last:
            _task_ended(p, s, n, task, now)
        inside_hosts = _ps(p.tasks.seconds[task]) if kind == _COLLECTIVE else 0
        for e in range(first, last):
            _push(s, now + inside_hosts, n.flow + e)
    elif s.running[device] == task:
        s.running[device] = -1
        _task_ended(p, s, n, task, now)
        following = int(s.queue_head[device])
        if following >= 0:
            s.queue_head[device] = s.next_in_queue[following]
            _compute(p, s, n, following, now)
    elif s.running[device] < 0:
        _compute(p, s, n, task, now)
    elif s.queue_head[device] < 0:
        s.queue_head[device] = s.queue_tail[device] = task
    else:
        s.next_in_queue[s.queue_tail[device]] = task
        s.queue_tail[device] = task


@inline_kernel
def _compute(p: Prepared, s: _State, n: _Numbers, task: int, now: int) -> None:
    """Begin a compute task on its device, which is idle."""
    s.running[p.tasks.device[task]] = task
    s.start[task] = now
    _push(s, now + _ps(p.tasks.seconds[task]), n.task + task)
