"""The messages from one operator's passes to another's as one flow, where a placed iteration has very many of them.

An operator whose parts all send to all parts of the next one makes an all-to-all, equal or not: tables on some devices
send every device its samples.  Up to `MOST_MESSAGES` transfers of an iteration are flows of their own.  Beyond, those
between the same passes of the same two operators, or behind the same join, are coupled, as the messages of a ring are:

- They begin when the last of the passes that they wait for has ended, and end together.
- All move in proportion to their bytes.  A link has as many units of load as messages cross it, each by its bytes over
  those of the largest one.  A message with several paths has drawn one by their weights, always the same: each link
  with the mean of its load would make all of them faster than any draw of messages one by one.
- So they take the longest latency of their paths and the bytes on the fullest link over its bandwidth, if they are
  alone.  Bytes on links are those of the messages.

What one device sends early does not compete with what others wait for, as it does one by one.

    transfers -> one of them sends for all; the others are joins behind it -> what waits for each

Data flow: `coupled_messages` rewrites a task graph, row by row; `with_coupled_messages` gives the rows that send the
links of their messages, in rows of loads that only this iteration has: a search meets other messages all the time.
"""

from __future__ import annotations

from typing import NamedTuple

import attrs
import numpy as np

from topoplan.arrays import F64, I32, I64, U64, i32, i64
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.csr import append, frozen, indptr
from topoplan_engine.network.ring_loads import ring_loads
from topoplan_engine.network.tables import LOAD, Network, RingColumns
from topoplan_engine.simulation.columns import TaskColumns
from topoplan_engine.simulation.flows import Entities
from topoplan_engine.simulation.message_paths import GOLDEN, MessagePaths, paths_of_messages
from topoplan_engine.simulation.replaced import replaced

__all__ = [
    "MOST_MESSAGES",
    "CoupledFlows",
    "CoupledMessages",
    "coupled_flows",
    "coupled_messages",
    "coupled_words",
    "starts_of_coupled",
    "streams_of",
    "with_coupled_messages",
]

#: Transfers of the largest placed iteration whose messages are all flows of their own.
MOST_MESSAGES = 1 << 16

#: How much that changes, as tables say it.
_HOW_MUCH = (
    "beside a flow for each message DLRM on 64 to 256 hosts took 1.8 % less to 0.3 % more, and where the network alone "
    "decides, on 16 to 64 hosts, nine of ten within 11 %, all 17 % less to 23 % more"
)

_ALL_TO_ALL = int(Collective.ALL_TO_ALL)
_TRANSFER, _COLLECTIVE, _JOIN = int(TaskKind.TRANSFER), int(TaskKind.COLLECTIVE), int(Collective.JOIN)


class CoupledMessages(NamedTuple):
    """A task graph whose transfers are coupled; G groups of M messages.

    Attributes:
        taskgraph: with the rows of the original, of which these transfers are joins.
        sender: (G,) the row of each group that sends for all, ascending.
        message: (M,) rows of the transfers, group by group.
        counts: (G,) how many each group has.
        src, dst, size: (M,) of the transfers.
        stream: (M,) a number of each, from which it draws its path.
    """

    taskgraph: TaskGraph
    sender: I64
    message: I64
    counts: I64
    src: I32
    dst: I32
    size: I64
    stream: U64


class CoupledFlows(NamedTuple):
    """What groups of messages put on links, as `RingColumns` has it, and (G,) their latencies and bytes/s at most."""

    load_ptr: I64
    links: I32
    load: I64
    latency: F64
    max_rate: F64


def coupled_messages(taskgraph: TaskGraph, most: int) -> CoupledMessages | None:
    """Couple the transfers of a task graph that come from one pass, or join, each; None for no more than ``most``.

    Passes of one operator in several micro-batches may wait for each other, so that what these send is left as it is;
    so is what passes of traces and of unknown operators send, which may be any passes.
    """
    if taskgraph.n_tasks <= most:
        return None
    tails, heads = taskgraph.edges()
    enters, leaves = taskgraph.kind[heads] == _TRANSFER, taskgraph.kind[tails] == _TRANSFER
    before = np.zeros(taskgraph.n_tasks, np.int64)
    before[heads[enters]] = tails[enters]
    behind_join = taskgraph.collective[before] == _JOIN
    is_known = (taskgraph.op >= 0) & (taskgraph.op[before] >= 0) & (not taskgraph.foreign)
    is_message = (taskgraph.kind == _TRANSFER) & (behind_join | is_known & (taskgraph.micro_batch is None))
    counts = np.bincount(heads, minlength=taskgraph.n_tasks), np.diff(taskgraph.succ_ptr)
    is_message &= (counts[0] == 1) & (counts[1] == 1) & (taskgraph.kind[before] != _TRANSFER)
    message = np.flatnonzero(is_message)
    if len(message) <= most:
        return None
    enters, leaves = is_message[heads], is_message[tails]
    first_pass = np.where(behind_join[message], before[message], -1 - taskgraph.op[before[message]])
    ops = int(taskgraph.op.max()) + 2
    passes = ((first_pass + ops) * len(TaskKind) + taskgraph.kind[before[message]]) * ops + taskgraph.op[message] + 1
    _, first, group = np.unique(passes, return_index=True, return_inverse=True)  # a number for each two passes
    group = np.argsort(np.argsort(first))[group.ravel()]  # in the order of their first messages
    sender = np.sort(message[first])
    stands_for = np.arange(taskgraph.n_tasks)
    stands_for[message] = sender[group]
    other_rows = message[stands_for[message] != message]
    tails = np.concatenate([np.where(leaves, stands_for[tails], tails), stands_for[other_rows]])
    heads = np.concatenate([np.where(enters, stands_for[heads], heads), other_rows])
    order = np.argsort(group, kind="stable")
    message = message[order]
    columns = {name: getattr(taskgraph, name).copy() for name in ("kind", "size", "src", "dst", "group", "collective")}
    columns["kind"][message], columns["collective"][message], columns["size"][message] = _COLLECTIVE, _JOIN, 0
    columns["src"][message] = columns["dst"][message] = -1
    columns["group"][message] = taskgraph.n_groups
    joined = attrs.evolve(
        taskgraph,
        **columns,
        group_ptr=append(taskgraph.group_ptr, taskgraph.group_ptr[-1:] + 1),
        group_members=append(taskgraph.group_members, taskgraph.src[message[:1]]),
        succ_ptr=i32(indptr(np.bincount(tails, minlength=taskgraph.n_tasks))),
        succ=i32(heads[np.argsort(tails, kind="stable")]),
    )
    src, dst, size = taskgraph.src[message], taskgraph.dst[message], taskgraph.size[message]
    stream = passes[order].astype(np.uint64) * GOLDEN + streams_of(src, dst, taskgraph.n_devices)
    return CoupledMessages(joined, sender, message, np.bincount(group), src, dst, size, stream)


def with_coupled_messages(
    coupled: CoupledMessages, entities: Entities, network: Network
) -> tuple[Entities, RingColumns]:
    """Give the rows that send their flows; return these, and loads of all rings, theirs behind those of the network.

    Raises:
        TopoplanError: there is no path for a message.
    """
    group, largest = np.repeat(np.arange(len(coupled.counts)), coupled.counts), _largest(coupled)
    ways = paths_of_messages(network, coupled.src, coupled.dst, coupled.stream)
    share = coupled.size / np.maximum(largest, 1)[group]
    flows = coupled_flows(ways, group, len(coupled.counts), share, network)
    rings = network.rings_in_full
    extended = rings._replace(
        load_ptr=append(rings.load_ptr, rings.load_ptr[-1] + flows.load_ptr[1:]),
        load_links=append(rings.load_links, flows.links),
        load=append(rings.load, flows.load),
    )
    columns = {
        "path_set": -1,
        "ring": len(rings.load_ptr) - 1 + np.arange(len(coupled.counts)),
        "volume": largest.astype(np.float64),
        "setup_latency": flows.latency,
        "max_rate": flows.max_rate,
        "cap": -1,
    }
    one_each = np.ones(len(coupled.counts), np.int64)
    return replaced(entities, coupled.sender, one_each, columns, network, extended), extended


def coupled_flows(ways: MessagePaths, group: I64, n_groups: int, share: F64, network: Network) -> CoupledFlows:
    """Couple messages: those of each group, which come one after the other.

    Args:
        ways: the paths of (k,) messages.
        group: (k,) ascending; none is empty.
        n_groups: how many there are.
        share: (k,) bytes of each over those of the largest message of its group.
        network: whose paths these are.
    """
    paths, group, count = network.paths, group[ways.message], len(ways.message)
    load_ptr, links, load = ring_loads(
        i32(np.arange(count)),
        np.bincount(group, minlength=n_groups),
        frozen(np.arange(count + 1)),
        frozen(indptr(ways.lengths)),
        ways.links,
        frozen(np.ones(count)),
        network.n_links,
        ways.share * share[ways.message],
    )
    latency = np.maximum.reduceat(ways.delay, np.searchsorted(group, np.arange(n_groups)))
    max_rate = np.full(n_groups, np.inf)
    np.minimum.at(max_rate, np.repeat(np.arange(n_groups), np.diff(load_ptr)), paths.bandwidth[links] / (load / LOAD))
    return CoupledFlows(load_ptr, links, load, latency, max_rate)


def streams_of(src: I32, dst: I32, n_devices: int) -> U64:
    """(n,) a number of each message between two devices."""
    numbers: U64 = src.astype(np.uint64) * np.uint64(n_devices) + dst.astype(np.uint64)
    return numbers


def _largest(coupled: CoupledMessages) -> I64:
    """(G,) bytes of the largest message of each group."""
    return i64(np.maximum.reduceat(coupled.size, indptr(coupled.counts)[:-1]))


def starts_of_coupled(original: TaskGraph, tasks: TaskColumns, start: F64, finish: F64) -> F64:
    """(T,) starts of tasks, where messages are coupled: the end of what each message waits for.

    Args:
        original: the task graph with transfers.
        tasks: its rows as they were run, and further ones.
        start, finish: (T,) of the run.
    """
    coupled = (original.kind == _TRANSFER) & (tasks.kind[: original.n_tasks] == _COLLECTIVE)
    if not coupled.any():
        return start
    tails, heads = original.edges()
    enters = coupled[heads]
    starts = start.copy()
    starts[heads[enters]] = finish[tails[enters]]
    return starts


def coupled_words(tasks: TaskColumns, entities: Entities, *, all_to_alls: bool) -> str:
    """Return which messages of an iteration are coupled, in words; empty where none is.

    Args:
        tasks, entities: what was run.
        all_to_alls: whether single flows of all-to-alls are coupled messages.
    """
    single = np.diff(entities.of_task) == 1
    single[single] = entities.path_set[entities.of_task[:-1][single]] < 0
    several = int((single & (tasks.collective == _JOIN)).sum())
    several += int((single & (tasks.collective == _ALL_TO_ALL)).sum()) if all_to_alls else 0
    if several == 0:
        return ""
    return f"{several:,} all-to-alls and sets of messages between two operators as one flow each ({_HOW_MUCH})"
