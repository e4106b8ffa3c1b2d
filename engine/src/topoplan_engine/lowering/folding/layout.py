"""Tasks for one device, group and message of each class: the layout of a folded iteration, and the iteration itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import I32, I64
from topoplan.model.mesh import DeviceMesh
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.csr import indptr
from topoplan_engine.distinct import distinct_columns
from topoplan_engine.interrupt import OversizeError
from topoplan_engine.lowering.folding.class_loads import class_loads
from topoplan_engine.lowering.folding.classes import Classes, few_classes_of, label
from topoplan_engine.lowering.folding.evened import first_of_equal_links, spread_of_flows
from topoplan_engine.lowering.folding.patterns import Listing, MessageLoads, Patterns, SpreadMessages
from topoplan_engine.lowering.places import Communicator, CopySums, OrderedPlaces, Sends, TiedSum, neighbours
from topoplan_engine.lowering.task_columns import TaskColumns, Weights, scales_of_pairs
from topoplan_engine.sharding.stage_graphs import Link

__all__ = ["FoldedIteration", "FoldedLayout"]

#: Passes, and messages of all-to-alls, of the largest folded iteration in which messages are distinguished by the
#: links between switches that they load.
_MOST_PASSES = 1 << 20
#: The same of the largest folded iteration, whose tasks take some 11 GB.
_MOST_FOLDED = 1 << 26
#: Devices up to which messages on paths of their own are distinguished as far as an iteration can be folded at all.
_FEW_DEVICES = 1 << 10


class Carried(NamedTuple):
    """What flows put on links, as compressed rows, of those that are ``between`` (E,) hosts."""

    between: Any
    load_ptr: I64
    links: I32
    loads: I64


class FoldedIteration(NamedTuple):
    """One iteration with one task for each class of tasks; T tasks, C classes of messages, F flows of these.

    Attributes:
        taskgraph: its messages are those of representatives.
        copies: (T,) tasks that each stands for.
        message: (T,) the class of messages of a transfer or collective; -1 of other tasks.
        flow_ptr: (C+1,) the flows of each class of messages: those that a message has at a time, and behind them one
            for each algorithm that may run a collective there.
        variant: (F,) number of the algorithm of each flow, 0 of the others; ascending in each class.
        load_ptr, links, loads, shares: as compressed rows, links that represent their classes, and what all messages of
            a class put there (`MessageLoads`).
        device_class, first_device: (D,) class of each device, and the first device of each class.
        first_link: (E,) the link that represents each one.
        same_hosts: (C,) of a class of collectives, how many groups are on the hosts of its representative.
        hosts: hosts of all groups of several hosts, ascending.
        draws: see `MessageLoads`.
        spread: what flows of classes put on routes between switches.
        evened: whether messages of one class may load different links between switches; see `FoldedLayout`.
        carried: what flows put on these, where they have paths of their own.
        groups: classes of collectives, and (G, n) the members of the groups that run these at the same time
            (`Patterns.groups_of`); none where nothing draws.
    """

    taskgraph: TaskGraph
    copies: I64
    message: I64
    flow_ptr: I64
    variant: I64
    load_ptr: I64
    links: I32
    loads: I64
    shares: I64
    device_class: I64
    first_device: I64
    first_link: I64
    same_hosts: I64
    hosts: I64
    draws: bool
    spread: SpreadMessages | None = None
    evened: bool = False
    carried: Carried | None = None
    groups: Sequence[tuple[I64, I64 | I32]] = ()

    @property
    def n_tasks(self) -> int:
        """Tasks of the whole iteration."""
        return int(self.copies.sum())

    @property
    def representatives(self) -> I64:
        """(D,) the device whose passes stand for those of each one."""
        passes = self.taskgraph.device[self.taskgraph.device >= 0]
        of_class = self.first_device.copy()
        of_class[self.device_class[passes]] = passes
        return of_class[self.device_class]

    def groups_like(self, task: int) -> tuple[int, int]:
        """Return how many collectives like a task are on its hosts, and how many there are."""
        return int(self.same_hosts[self.message[task]]), int(self.copies[task])


class _Flows(NamedTuple):
    """Flows of classes of messages: (N,) that of each flow of a message, and `FoldedIteration.flow_ptr`, ``variant``.

    Those of messages that are not sent have none, -1.
    """

    of: I64
    ptr: I64
    variant: I64


class _FoldedCommunicator(NamedTuple):
    """Classes of groups; G of them.

    Attributes:
        size: members of each group.
        number: (P,) the class of each place's group.
        message: (G,) class of the messages of its collectives.
        copies: (G,) groups of each class.
        transfers: of an all-to-all: (n,) classes of groups, classes of messages, and how many there are of each.
        groups: all groups of places, of whose members ``pairs`` (2, n) are a sender and a receiver of each class.
        counted_once: an all-to-all is one of the tasks of the whole iteration.
    """

    size: int
    number: I64
    message: I64
    copies: I64
    transfers: tuple[I64, I64, I64] | None
    groups: I64
    pairs: I64
    counted_once: bool

    def add(
        self,
        tasks: TaskColumns,
        kind: Collective,
        weights: Sequence[Weights] = (),
        **columns: Any,
    ) -> tuple[I64, I64]:
        """Add a collective in each class of groups."""
        is_one = kind is Collective.ALL_TO_ALL and tasks.one_task and not weights
        if is_one:
            columns = {**columns, "size": columns["size"] * self.size}
        if kind is not Collective.ALL_TO_ALL or self.transfers is None or is_one:
            collective = {"kind": TaskKind.COLLECTIVE, "collective": kind, "message": self.message}
            numbers = tasks.add(len(self.message), **columns, **collective, copies=self.copies)
            return numbers[self.number], numbers[self.number]
        nothing = {**columns, "size": 0}
        group, message, number = self.transfers
        scales = scales_of_pairs(weights, self.groups, *self.pairs)
        if self.counted_once:  # the join behind the transfers counts
            nothing, number = {**nothing, "copies": np.zeros_like(self.copies)}, np.zeros_like(number)
        enter = self._joins(tasks, nothing)
        transfers = tasks.add(
            len(group), **{**columns, "kind": TaskKind.TRANSFER, "scale": scales, "message": message, "copies": number}
        )
        nothing = {**columns, "size": 0}
        leave = self._joins(tasks, nothing)
        tasks.edges(enter[group], transfers)
        tasks.edges(transfers, leave[group])
        return enter[self.number], leave[self.number]

    def join(self, tasks: TaskColumns, **columns: Any) -> I64:
        """Add a join in each class of groups."""
        return self._joins(tasks, columns)[self.number]

    def _joins(self, tasks: TaskColumns, columns: Mapping[str, Any]) -> I64:
        join = {"kind": TaskKind.COLLECTIVE, "collective": Collective.JOIN}
        return tasks.add(len(self.message), **{"copies": self.copies, **columns, **join})


class _FoldedPlaces:
    """A place of each class of devices, in the order of the first devices of classes."""

    def __init__(self, mesh: DeviceMesh, stage: int, layout: FoldedLayout) -> None:
        self._mesh, self._stage, self._layout = mesh, stage, layout
        self._communicators: dict[tuple[int, ...], Communicator] = {}
        devices = mesh.devices
        number = layout.classes.of[devices]
        different = np.unique(number)  # by first occurrence, and so by the first device of each
        first = layout.classes.first[different]
        self.number_of_place = np.searchsorted(different, number)
        by_device = np.argsort(devices)
        self.rows = by_device[np.searchsorted(devices, first, sorter=by_device)]
        self.devices, self.order = devices[self.rows], np.arange(len(first))

    def communicator(self, axes: tuple[int, ...]) -> Communicator:
        """Return the classes of groups along some axes."""
        if axes not in self._communicators:
            self._communicators[axes] = self._communicator(axes)
        return self._communicators[axes]

    def _communicator(self, axes: tuple[int, ...]) -> Communicator:
        stop_if_wanted()
        listing = self._layout.patterns.listings[self._stage, axes]
        of = self._layout.classes.of
        message, copies = np.unique(of[listing.message], return_counts=True)
        number = np.searchsorted(message, of[listing.message[self._group(listing)]])
        transfers, pairs = None, np.zeros((2, 0), np.int64)
        if listing.transfers is not None:
            several, first, number_of = np.unique(of[listing.transfers.message], return_index=True, return_inverse=True)
            count = np.bincount(number_of.ravel(), listing.transfers.n_messages).astype(np.int64)
            pairs = np.stack([listing.transfers.sender[first], listing.transfers.receiver[first]])
            group = pairs[0] // listing.groups.shape[1]
            transfers = np.searchsorted(message, of[listing.message[group]]), several, count
        groups, once = listing.groups, self._layout.counted_once
        return _FoldedCommunicator(groups.shape[1], number, message, copies, transfers, groups, pairs, once)

    def next_along(self, axis: int) -> tuple[Mapping[str, Any], I64]:
        """Return columns of transfers from a place of each class to the next one, and who sends to each."""
        message = self._layout.classes.of[self._layout.patterns.hops[self._stage, axis]]
        _, number, copies = np.unique(message, return_inverse=True, return_counts=True)
        _, before = neighbours(self._mesh, axis)
        columns = {"message": message[self.rows], "copies": copies[number.ravel()[self.rows]]}
        return columns, self.number_of_place[before[self.rows]]

    def streams(self, axes: tuple[int, ...]) -> tuple[bytes, I64]:
        """Return a key of the groups along some axes, and a place in one group of each class."""
        listing = self._layout.patterns.listings[self._stage, axes]
        _, first = np.unique(self._layout.classes.of[listing.row[self._group(listing)]], return_index=True)
        return listing.key, first

    def _group(self, listing: Listing) -> I64:
        """(P,) the group of each place."""
        group = np.empty(listing.groups.size, dtype=np.int64)
        group[listing.groups] = np.arange(len(listing.groups))[:, None]
        return group[self.rows]


def _classes(strategy: StagedStrategy, patterns: Patterns, loads: MessageLoads) -> tuple[Classes, int]:
    """Return classes of vertices and links, and which links had to be left out (`MessageLoads.evened`).

    Raises:
        OversizeError: there are too many even so.
    """
    exact = _MOST_FOLDED if loads.spread is None and patterns.n_devices <= _FEW_DEVICES else _MOST_PASSES
    tries = [(0, exact), (1, _MOST_FOLDED)] if loads.spread else [(0, exact), (1, _MOST_PASSES), (2, _MOST_FOLDED)]
    if loads.spread is None and loads.outside is None:
        tries = [(0, _MOST_FOLDED)]
    operators = min(len(stage.operators) for stage in strategy.stages)
    for evened, most in tries:
        stop_if_wanted()
        kinds = max(1, most // max(1, 2 * strategy.micro_batches * operators))
        classes = few_classes_of(*patterns.with_loads(loads, evened=evened), patterns.n_devices, kinds)
        if classes is not None and _passes(strategy, patterns, classes) <= most:
            return classes, evened
    raise OversizeError(
        f"plan: devices differ in what their messages load on this network, and one of each kind has more than "
        f"{_MOST_FOLDED:,} passes and messages of all-to-alls (use fewer micro-batches or devices, or a network of "
        "equal racks)"
    )


def _passes(strategy: StagedStrategy, patterns: Patterns, classes: Classes) -> int:
    """Return how many passes of operators one device of each class runs, and messages of all-to-alls of each class."""
    kinds = [len(np.unique(classes.of[stage.mesh.devices])) for stage in strategy.stages]
    passes = 2 * int(np.dot(kinds, [len(stage.operators) for stage in strategy.stages]))
    for listing in patterns.listings.values():
        if listing.transfers is not None:
            passes += listing.n_all_to_alls * len(np.unique(classes.of[listing.transfers.message]))
    return passes * strategy.micro_batches


class FoldedLayout:
    """Tasks for one device of each class.

    Attributes:
        patterns: what the iteration sends.
        classes: of its vertices, and of links behind them.
        counted_once: all-to-alls of equal shares are one task each in the whole iteration.
        evened: messages are not distinguished by the links between switches that they load (1), or by any (2), since
            too many classes would be left.  All messages of a class then load all of these links, are as slow as the
            slowest of them, and have the longest latency.
    """

    columns: Mapping[str, Any] = {"message": -1, "copies": 1}

    def __init__(
        self,
        strategy: StagedStrategy,
        patterns: Patterns,
        loads: MessageLoads,
        *,
        one_task: bool = False,
        counted_once: bool = False,
    ) -> None:
        self._loads, self.patterns, self.counted_once = patterns.multiplied(loads), patterns, counted_once
        self.classes, self.evened = _classes(strategy, patterns, self._loads)
        self.groups = TaskColumns(one_task=one_task)
        self._places = [_FoldedPlaces(stage.mesh, n, self) for n, stage in enumerate(strategy.stages)]

    def places(self, stage: int) -> OrderedPlaces:
        """Return a place of each class."""
        return self._places[stage]

    def sends(self, link: Link, gradient: bool) -> Sends:
        """Return one transfer of each class."""
        routes, message = self.patterns.transfers[link, gradient]
        source, target = (link.target, link.source) if gradient else (link.source, link.target)
        number = np.where(message < 0, -1, self.classes.of[message])
        ends = [
            self._places[stage].number_of_place[rows]
            for stage, rows in ((source, routes.source), (target, routes.target))
        ]
        distinct = distinct_columns(number, *ends)
        first, copies = distinct.first, distinct.counts
        away = number[first] >= 0
        nothing = np.full(len(first), -1)
        columns = {"message": number[first][away], "copies": copies[away]}
        return Sends(ends[0][first], ends[1][first], nothing, nothing, routes.nbytes[first], ~away, columns)

    def tied_sums(self) -> Sequence[TiedSum]:
        """Return one sum of each class."""
        sums: dict[int, TiedSum] = {}
        vertices = np.array([vertex for _, vertex in self.patterns.tied], dtype=np.int64)
        numbers, counts = np.unique(self.classes.of[vertices], return_counts=True)
        copies = dict(zip(numbers.tolist(), counts.tolist(), strict=True))
        for group, vertex in self.patterns.tied:
            number = int(self.classes.of[vertex])
            if number not in sums:
                places = [int(self._places[each.stage].number_of_place[each.place]) for each in group.members]
                sums[number] = TiedSum(group, places, {"message": number, "copies": copies[number]})
        return list(sums.values())

    def copy_sums(self, stages: tuple[int, ...], devices: I32) -> CopySums:
        """Return one sum of each class."""
        message = self.classes.of[self.patterns.copies[stages]]
        number, copies = np.unique(message, return_counts=True)
        of_places = [np.searchsorted(number, message[self._places[stage].rows]) for stage in stages]
        return CopySums(len(number), of_places, {"message": number, "copies": copies})

    def everyone(self) -> Mapping[str, Any]:
        """Return the sum among all devices."""
        return {"message": self.classes.of[self.patterns.everyone], "copies": 1}

    def iteration(self, columns: dict[str, Any], op_names: tuple[str, ...], device_host: I32) -> FoldedIteration:
        """Return the iteration, given its columns but those of groups, and the (D,) host of each device."""
        stop_if_wanted()
        n_devices = len(device_host)
        number, copies = columns.pop("message"), columns.pop("copies")
        used, message = np.unique(number, return_inverse=True)
        message = message.ravel() - (used[0] < 0)
        used = used[used >= 0]
        devices, n_vertices = self.classes.of[:n_devices], self.patterns.n_vertices
        computes = columns["device"] >= 0
        sizes = np.bincount(devices, minlength=int(devices.max()) + 1)
        copies[computes] = sizes[devices[columns["device"][computes]]]
        busiest = np.bincount(columns["device"][computes], columns["seconds"][computes], n_devices).argmax()
        stop_if_wanted()
        of_message = self.classes.of[self.patterns.messages]
        latency = self.patterns.latencies(self._loads) if self.evened else np.zeros(len(of_message))
        chosen = self.patterns.first_of_classes(of_message, used, int(busiest), latency)
        groups = self._label(columns, message, chosen, int(busiest))
        host_sets, hosts = self.patterns.host_sets(device_host)
        labels = label(of_message, host_sets)
        of_chosen, ordered = labels[chosen], np.sort(labels)
        same_hosts = np.searchsorted(ordered, of_chosen, "right") - np.searchsorted(ordered, of_chosen)
        first_link = self.classes.first[self.classes.of[n_vertices:]] - n_vertices
        flows = self._flows(used)
        numbers, carried = np.arange(len(first_link)), None
        between = self._loads.evened(self.evened)
        sums = class_loads(self._loads, flows.of, int(flows.ptr[-1]), between | (first_link == numbers))
        if self.evened:
            evened = sums.among(between)
            first_link = first_of_equal_links(evened, self._loads.bandwidth, first_link)
            carried = Carried(between, *evened[:3]) if self._loads.spread is None else None
        return FoldedIteration(
            TaskGraph(**columns, **groups, op_names=op_names, n_devices=n_devices),
            copies,
            message,
            flows.ptr,
            flows.variant,
            *sums.among(first_link == numbers),
            device_class=devices,
            first_device=self.classes.first[: int(devices.max()) + 1],
            first_link=first_link,
            same_hosts=same_hosts,
            hosts=hosts,
            draws=self._loads.draws,
            spread=self._loads.spread and spread_of_flows(self._loads.spread, flows.of),
            evened=self.evened > 0,
            carried=carried,
            groups=self.patterns.groups_of(of_message, used) if self._loads.draws else (),
        )

    def _label(self, columns: dict[str, Any], message: I64, chosen: I64, device: int) -> dict[str, Any]:
        """Write groups, senders and receivers: those of the messages that are chosen; joins have a device alone."""
        members, ends = [np.array([device], dtype=np.int32)], np.full((2, len(chosen)), -1)
        group_of = np.full(len(chosen), -1)
        for number, row in enumerate(chosen.tolist()):
            name, devices = self.patterns.ends_of(row)
            if name == "transfer":
                ends[:, number] = devices
                continue
            group_of[number] = len(members)
            members.append(devices)
        transfers = columns["kind"] == TaskKind.TRANSFER
        columns["src"][transfers], columns["dst"][transfers] = ends[:, message[transfers]]
        collectives = columns["kind"] == TaskKind.COLLECTIVE
        columns["group"][collectives] = np.append(group_of, 0)[message[collectives]]  # joins have message -1
        return {"group_ptr": indptr([len(each) for each in members]), "group_members": np.concatenate(members)}

    def _flows(self, used: I64) -> _Flows:
        """Return the flows of classes of messages."""
        loads = self._loads
        dense = np.full(int(self.classes.of.max()) + 1, -1)
        dense[used] = np.arange(len(used))
        of_flow = dense[self.classes.of[self.patterns.vertex_of(loads)]]
        number = np.arange(len(loads.task)) - np.searchsorted(loads.task, loads.task)
        once = np.flatnonzero((of_flow >= 0) & loads.listed(len(self.patterns.messages)))
        # A message of the network has a few flows, an algorithm one: those of a class, by algorithm and number.
        variants, numbers = int(loads.variant.max(initial=0)) + 1, int(number.max(initial=0)) + 1
        number = np.where(loads.variant > 0, 0, number)
        keys = (of_flow[once] * variants + loads.variant[once]) * numbers + number[once]
        flows, place = np.unique(keys, return_inverse=True)
        flow = np.full(len(loads.task), -1)
        flow[once] = place.ravel()
        of_class, variant = np.divmod(flows // numbers, variants)
        return _Flows(flow, indptr(np.bincount(of_class, minlength=len(used))), variant)
