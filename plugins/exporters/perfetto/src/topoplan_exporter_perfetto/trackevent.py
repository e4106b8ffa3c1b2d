"""Plan -> a trace of TrackEvent packets, Perfetto's own format: protocol buffers, without a library.

Field numbers are those of ``protos/perfetto/trace`` in Perfetto's sources (``trace_packet``, ``track_event``,
``track_descriptor``, ``counter_descriptor``, ``interned_data``).  Names are written once and referred to by numbers.
Packets are compressed by zlib, about a megabyte of them in one packet (``compressed_packets``).

A reader matches an end with the last begin on its track, so that events of a track follow each other here as they do in
time: each slice ends before the next one of its lane begins.  Lanes of one track have one name, under which the UI
shows them together.  A dependency is a flow with a number of its own, from the slice that ends to the one that waited.

Data flow: `slices` and `tracks` give columns; `_Tracks` numbers the tracks; `_slices` and `_counters` write packets;
`_compressed` puts them together.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from topoplan import Plan
from topoplan.arrays import I64
from topoplan_exporter_perfetto import wire
from topoplan_exporter_perfetto.slices import (
    SORTS,
    Slices,
    causes_first,
    dependencies,
    slices_of,
    stages_of,
    task_names,
)
from topoplan_exporter_perfetto.tracks import (
    Levels,
    busy_links,
    link_name,
    link_rates,
    memory_totals,
    path_slices,
    waits,
)

__all__ = ["write"]

_BEGIN, _END, _COUNTER = 1, 2, 4
_EXPLICIT = 3  # order of the tracks below one: by rank
_BYTES = 3  # unit of a counter
_CATEGORIES = (*SORTS, "link", "critical")
_LINK, _CRITICAL = 4, 5
_ARGUMENTS = ("task", "bytes", "micro-batch", "members", "waited for", "stage")
_TASK, _SIZE, _MICRO_BATCH, _MEMBERS, _WAITED, _STAGE = range(1, 7)
#: Number of the packet sequence, and flags: names begin here, and names are needed.
_SEQUENCE, _CLEARED, _NEEDED = 1, 1, 2
#: Bytes of packets that are compressed together, and the level, higher ones of which save less than they take.
_TOGETHER, _LEVEL = 1 << 20, 1


def write(plan: Plan) -> bytes:
    """Write the timeline of a plan, and what was recorded of it.

    Raises:
        TopoplanError: the plan has no timeline.
    """
    slices = slices_of(plan)
    names, name = task_names(plan.taskgraph)
    tracks, parts = _Tracks(), []
    texts: list[str] = []
    root = tracks.add("iteration" if plan.recording is None else "iteration: critical path", children=True)
    if plan.recording is not None and len(plan.recording.critical.task):
        packets, texts = _critical(plan, root, name)
        parts.append(packets)
    parts += _devices(plan, tracks, root, slices, name)
    if plan.recording is not None:
        parts += _network(plan, tracks, root, name)
    head = b"".join([_interned(names, texts), *tracks.packets])
    return b"".join([_compressed(head, np.array([len(head)])), *parts])


class _Tracks:
    """Numbers tracks, and writes a packet for each.

    Attributes:
        packets: so far.
    """

    def __init__(self) -> None:
        self.packets: list[bytes] = []

    def add(self, name: str, parent: int = 0, *, children: bool = False, unit: int = 0, unit_name: str = "") -> int:
        """Add a track below its parent, 0 being the root, in the order in which tracks are added; return its number.

        Args:
            name: as the UI shows it; lanes of one name below one parent are shown together.
            parent: number of another track.
            children: tracks follow below it.
            unit, unit_name: of a counter; a track is one if either is given.
        """
        uuid = len(self.packets) + 1
        fields = [wire.packed(1, uuid), wire.text(2, name), wire.packed(12, uuid)]
        fields += [wire.packed(5, parent)] if parent else []
        fields += [wire.packed(11, _EXPLICIT)] if children else []
        if unit or unit_name:
            named = wire.text(6, unit_name) if unit_name else wire.packed(3, unit)
            fields.append(wire.text(8, named))
        self.packets.append(_packet(wire.text(60, b"".join(fields))))
        return uuid


class _Named(NamedTuple):
    """Slices to write: (n,) columns; arguments are (number of the name, values, rows that have it)."""

    track: I64
    start: I64
    end: I64
    name: I64
    category: I64
    arguments: Sequence[tuple[int, I64, I64]]
    strings: Sequence[tuple[int, I64, I64]] = ()


def _critical(plan: Plan, track: int, name: I64) -> tuple[bytes, list[str]]:
    """Write the critical path on a track; return also the texts that its arguments refer to."""
    task, start, end = path_slices(plan)
    texts, which = np.unique(waits(plan), return_inverse=True)
    rows = np.arange(len(task))
    column = np.full(len(task), track)
    named = _Named(
        column,
        start,
        end,
        name[task],
        np.full(len(task), _CRITICAL),
        [(_TASK, task, rows)],
        [(_WAITED, which + 1, rows)],
    )
    return _slices(named), texts.tolist()


def _devices(plan: Plan, tracks: _Tracks, root: int, slices: Slices, name: I64) -> list[bytes]:
    """Write the tracks of devices: compute, and below it sends, collectives and memory."""
    cluster, tasks = plan.cluster, plan.taskgraph
    # A flow ends where the UI has seen its begin: packets of one time are read in the order of the file.
    order = causes_first(slices, *dependencies(tasks, slices))
    slices = Slices(*(column[order] for column in slices))
    totals = Levels(*np.zeros((3, 0), np.int64))
    if plan.recording is not None:
        totals = memory_totals(plan.recording.memory)
    lanes = np.zeros((cluster.n_devices, len(SORTS)), dtype=np.int64)
    np.maximum.at(lanes, (slices.device, slices.sort), slices.lane + 1)
    first, further = np.zeros_like(lanes), np.zeros(cluster.n_devices, dtype=np.int64)
    counter = np.zeros(cluster.n_devices, dtype=np.int64)
    has_memory = np.isin(np.arange(cluster.n_devices), totals.owner)
    for device in np.flatnonzero(lanes.any(axis=1) | has_memory).tolist():
        label = f"device {device} ({cluster.device_preset[device]}, host {cluster.device_host[device]})"
        first[device, 0] = device_track = tracks.add(label, root, children=True)
        for sort, label in enumerate(("compute", "sends", "collectives")):
            # Compute of a device stands on its own track, all further lanes below it.
            for lane in range(sort == 0, int(lanes[device, sort])):
                track = tracks.add(label, device_track)
                further[device] = track if (sort, lane) == (0, 1) else further[device]
                first[device, sort] = first[device, sort] if lane else track
        if has_memory[device]:
            counter[device] = tracks.add("memory", device_track, unit=_BYTES)
    rows = np.arange(len(slices.task))
    sized = rows[tasks.size[slices.task] > 0]
    several = rows[slices.sort == 2]
    arguments = [(_TASK, slices.task, rows), (_SIZE, tasks.size[slices.task[sized]], sized)]
    arguments.append((_MEMBERS, np.diff(tasks.group_ptr)[tasks.group[slices.task[several]]].astype(np.int64), several))
    if tasks.micro_batch is not None:
        cut = rows[tasks.micro_batch[slices.task] >= 0]
        arguments.append((_MICRO_BATCH, tasks.micro_batch[slices.task[cut]].astype(np.int64), cut))
    if (stage := stages_of(plan)) is not None:
        staged = rows[stage[slices.task] >= 0]
        arguments.append((_STAGE, stage[slices.task[staged]], staged))
    beside = (slices.sort == 0) & (slices.lane > 0)
    track_of = np.where(beside, further[slices.device] - 1, first[slices.device, slices.sort]) + slices.lane
    named = _Named(
        track_of,
        slices.start,
        slices.end,
        name[slices.task],
        slices.sort + 1,
        arguments,
    )
    on_path = np.zeros(tasks.n_tasks, dtype=bool)
    if plan.recording is not None:
        on_path[plan.recording.critical.task] = True
    sources, targets = dependencies(tasks, slices)
    packets = _slices(named, np.flatnonzero(on_path[slices.task]), sources, targets)
    return [packets, _counters(counter[totals.owner], totals)]


def _network(plan: Plan, tracks: _Tracks, root: int, name: I64) -> list[bytes]:
    """Write the tracks of links that are used: the tasks that use them, and their rates."""
    assert plan.recording is not None
    rows, links = plan.recording.links, plan.fabric.links
    if not len(rows.link):
        return []
    busy, rates = busy_links(rows), link_rates(rows)
    lanes = np.zeros(links.n_links, dtype=np.int64)
    np.maximum.at(lanes, busy.link, busy.lane + 1)
    first, counter = np.zeros((2, links.n_links), dtype=np.int64)
    group = tracks.add("network", root, children=True)
    for link in np.flatnonzero(lanes).tolist():
        link_track = tracks.add(link_name(links, link), group, children=True)
        counter[link] = tracks.add("rate", link_track, unit_name="B/s")
        first[link] = tracks.add("busy", link_track)
        for _ in range(1, int(lanes[link])):
            tracks.add("busy", link_track)
    every = np.arange(len(busy.task))
    named = _Named(
        first[busy.link] + busy.lane,
        busy.start,
        busy.end,
        name[busy.task],
        np.full(len(every), _LINK),
        [(_TASK, busy.task, every), (_SIZE, busy.nbytes, every)],
    )
    return [_slices(named), _counters(counter[rates.owner], rates)]


def _slices(
    named: _Named, critical: I64 | None = None, sources: I64 | None = None, targets: I64 | None = None
) -> bytes:
    """Write the begin and the end of each slice, one behind the other.

    Args:
        named: the slices, those of one track by time.
        critical: rows that are on the critical path.
        sources, targets: (e,) rows of both ends of each flow; flows are numbered from 1.
    """
    first: wire.Message = [
        wire.flags(9, _BEGIN),
        wire.number(11, named.track),
        wire.number(10, named.name + 1),
        wire.number(3, named.category),
    ]
    if critical is not None and len(critical):
        first.append(wire.number(3, np.full(len(critical), _CRITICAL), critical))
    for argument, values, rows in named.arguments:
        if len(rows):
            first.append(wire.repeated(4, [wire.flags(1, argument), wire.number(3, values)], rows, len(rows)))
    for argument, values, rows in named.strings:
        first.append(wire.repeated(4, [wire.flags(1, argument), wire.number(17, values)], rows, len(rows)))
    for field, ends in ((47, sources), (48, targets)):
        if ends is not None and len(ends):
            order = np.argsort(ends, kind="stable")
            first.append(wire.fixed64(field, order + 1, ends[order]))
    last: wire.Message = [wire.flags(9, _END), wire.number(11, named.track)]
    count = len(named.track)
    return _between(_packets(named.start, first, names=True), _packets(named.end, last), count)


def _counters(track: I64, levels: Levels) -> bytes:
    """Write the values of counters."""
    event: wire.Message = [wire.flags(9, _COUNTER), wire.number(11, track), wire.number(30, levels.value)]
    return _between(_packets(levels.time, event), [], len(track))


def _packets(time: I64, event: wire.Message, *, names: bool = False) -> wire.Message:
    """Put events into packets, which say whether they refer to names by their numbers."""
    head = [wire.number(8, time), wire.flags(10, _SEQUENCE), *([wire.flags(13, _NEEDED)] if names else [])]
    return wire.within(1, [*head, *wire.within(11, event, len(time))], len(time))


def _between(first: wire.Message, second: wire.Message, count: int) -> bytes:
    """Write (count,) messages of two kinds in turn."""
    sizes = np.stack([wire.sizes_of(first, count), wire.sizes_of(second, count)], axis=1)
    ends = np.cumsum(sizes.ravel())
    places = (ends - sizes.ravel()).reshape(-1, 2)
    buffer = np.empty(int(ends[-1]) if count else 0, np.uint8)
    wire.write(buffer, first, places[:, 0])
    wire.write(buffer, second, places[:, 1])
    return _compressed(buffer.tobytes(), ends)


def _compressed(data: bytes, ends: I64) -> bytes:
    """Compress packets, the last byte of each before ``ends``; no packet is cut."""
    last = np.searchsorted(ends, np.arange(_TOGETHER, len(data), _TOGETHER))
    bounds = np.unique(np.concatenate([[0], ends[last], [len(data)]])).tolist()
    blocks = (zlib.compress(data[first:end], _LEVEL) for first, end in pairwise(bounds))
    return b"".join(wire.text(1, wire.text(50, block)) for block in blocks)


def _interned(names: Sequence[str], texts: Sequence[str]) -> bytes:
    """Write the packet that numbers all names, from 1."""

    def entries(field: int, values: Sequence[str]) -> bytes:
        numbered = (wire.packed(1, number) + wire.text(2, value) for number, value in enumerate(values, 1))
        return b"".join(wire.text(field, entry) for entry in numbered)

    data = entries(1, _CATEGORIES) + entries(2, names) + entries(3, _ARGUMENTS) + entries(29, texts)
    return _packet(wire.text(12, data), _CLEARED | _NEEDED)


def _packet(content: bytes, state: int = 0) -> bytes:
    """Write one packet of the sequence."""
    fields: list[Any] = [wire.packed(10, _SEQUENCE), content]
    fields += [wire.packed(13, state)] if state else []
    return wire.text(1, b"".join(fields))
