"""What the messages of a staged iteration go along: groups of communicators, and transfers between meshes.

Collectives of one communicator have one message each time, whatever its size, and so have transfers of equally sliced
tensors between two meshes.  `Patterns` lists each of these once, for all devices, in columns: as vertices of a graph
whose edges join devices to groups, groups to the messages of their collectives, and devices to transfers.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64, digest
from topoplan.model.graph import OperatorGraph
from topoplan.model.staged import StagedStrategy
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.csr import frozen
from topoplan_engine.lowering.folding.classes import FlowEdges, bits_of, label
from topoplan_engine.lowering.folding.exchanges import Exchanges, Sent
from topoplan_engine.lowering.folding.pair_messages import pair_messages
from topoplan_engine.lowering.places import copy_groups, devices_of, neighbours, ordered_groups
from topoplan_engine.lowering.stage_costs import StageCosts, summed_bytes
from topoplan_engine.lowering.stage_links import Routes, routes_between
from topoplan_engine.lowering.stage_rings import rings_of
from topoplan_engine.lowering.stage_ties import TiedGroup, tied_groups
from topoplan_engine.lowering.task_columns import Weights
from topoplan_engine.sharding.mesh import mesh_groups
from topoplan_engine.sharding.stage_graphs import Link, StageGraph

__all__ = ["BY_ALGORITHM", "Listing", "MessageLoads", "Patterns", "SpreadMessages", "Transfers"]


#: Operator of the tasks of `Patterns.taskgraph` that are collectives by an algorithm; that of all others is 0.
BY_ALGORITHM = 1
#: Members of the groups that are listed where paths are drawn for all of them.
_MOST_MEMBERS = 1 << 13


class SpreadMessages(NamedTuple):
    """Messages that load all equal paths between two switches, a route; n of them.

    Attributes:
        source, target: (R,) switches of each route.
        between: (E,) whether each link joins two switches.
        flow, route, times: (n,) a flow, a route, and how many times it takes this at a time.
    """

    source: I64
    target: I64
    between: Any
    flow: I64
    route: I64
    times: I64


class MessageLoads(NamedTuple):
    """What the messages of a task graph put on links; N flows, a message has one or several.

    Attributes:
        task: (N,) whose flow it is, ascending.
        load_ptr, links, loads: as compressed rows, the links of each, and units of load there.
        shares: units of load there by which links are shared, which may be rounded.
        variant: (N,) number of the algorithm whose flow it is, the only one of the message then; 0: of no algorithm.
        constants: (N, k) what else tells flows apart: latencies, rates that they never exceed.
        bandwidth: (E,) bytes/s of all links.
        draws: whether some flow has several paths, of which it draws one; it loads each by its weight here.
        spread: where flows load all equal paths between switches: which.  Of links between switches only those are in
            ``links`` that may hold messages up.
        outside: (E,) where flows are on paths of their own: which links are not inside of hosts.
    """

    task: I32
    load_ptr: I64
    links: I32
    loads: I64
    shares: I64
    variant: I64
    constants: F64
    bandwidth: F64
    draws: bool
    spread: SpreadMessages | None = None
    outside: Any = None

    def evened(self, level: int) -> Any:
        """(E,) links that tell no messages apart: of no level 0, between hosts or switches at 1, all at 2."""
        if level == 2:
            return np.ones(len(self.bandwidth), dtype=bool)
        between = self.outside if self.spread is None else self.spread.between
        return between if level else np.zeros(len(self.bandwidth), dtype=bool)

    def listed(self, n_messages: int) -> np.ndarray:
        """(N,) whether the links of a flow count: those of a collective of the network are listed with each kind."""
        return (self.task < n_messages) | (self.variant > 0)


class Listing(NamedTuple):
    """The groups of a stage along some axes, in the order in which its mesh lists their members; G of them.

    Attributes:
        groups: (G, size) places.
        row: (G,) vertex of the set of devices of each, which stages of one rank share.
        message: (G,) vertex of the message of its collectives.
        transfers: of an all-to-all, if there is one.
        key: of the sets of devices.
        n_all_to_alls: all-to-alls of a micro-batch that are such transfers.
    """

    groups: I64
    row: I64
    message: I64
    transfers: AllToAll | None
    key: bytes
    n_all_to_alls: int


class AllToAll(NamedTuple):
    """(n,) messages of all-to-alls: vertices, and members that send and receive; see `pair_messages`.

    ``n_messages`` is how many from member to member each is.
    """

    message: I64
    sender: I64
    receiver: I64
    n_messages: I64


class Transfers(NamedTuple):
    """What is sent from one mesh to another: places and bytes, and (n,) the vertex of each; -1 where it is local."""

    routes: Routes
    message: I64


class Patterns:
    """Devices, groups and messages of an iteration, as vertices 0 .. n_vertices - 1: devices come first.

    Attributes:
        listings: (stage, axes) -> the groups.
        hops: (stage, axis) -> (D,) vertices of what each place sends to the next one along the axis.
        transfers: (link, whether it is its gradient) -> what is sent.
        copies: stages that are the same in several copies of the model -> (places,) vertices of their sums.
        tied: sums of weights that stages share, and the vertex of each.
        everyone: vertex of a sum among all devices, -1 if there is none.
        n_devices: of the cluster.
        n_vertices: how many there are.
    """

    def __init__(
        self,
        strategy: StagedStrategy,
        graph: OperatorGraph,
        n_devices: int,
        stages: Sequence[StageGraph],
        costs: Sequence[StageCosts],
        exchanges: Sequence[Exchanges],
        chosen: Collection[Collective] = (),
        endpoint: I32 | None = None,
    ) -> None:
        """List what an iteration sends.

        Args:
            strategy, graph: what is lowered.
            n_devices: of the cluster.
            stages, costs: of the strategy.
            exchanges: what each stage sends inside of itself.
            chosen: collectives that run by algorithms.
            endpoint: (D,) host of each device, where messages of an all-to-all between the same two of them are one;
                None: none are.
        """
        self._strategy, self._graph, self.n_devices, self._chosen = strategy, graph, n_devices, chosen
        self._endpoint, self._counts = endpoint, [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        self.n_vertices = n_devices
        self._colors: list[Any] = []
        self._edges: list[tuple[Any, Any, Any]] = []
        # Messages in the order of their vertices: members of collectives, or both ends of transfers.
        self._messages: list[tuple[str, I64, I64 | I32]] = []
        self._sent: dict[int, set[Sent]] = {}  # in communicators, by the first vertex of their messages
        self._numbers: dict[object, int] = {}
        self._color_devices(stages, costs)
        # Stages of one rank share rows, and where their meshes list members in one order, messages.
        self._rows: dict[tuple[int, bytes], I64] = {}
        self._messages_of: dict[tuple[int, bytes], I64] = {}
        self._all_to_alls: dict[object, AllToAll] = {}
        self._transfers_of: dict[object, Transfers] = {}
        self.listings = {
            (stage, axes): self._listing(
                stage, axes, sent, several.written_out.get(axes, 0), several.uneven.get(axes, ())
            )
            for stage, several in enumerate(exchanges)
            for axes, sent in several.collectives.items()
        }
        self._hops_of: dict[object, I64] = {}
        self.hops = {
            (stage, axis): self._hops(stage, axis) for stage, several in enumerate(exchanges) for axis in several.hops
        }
        self.transfers: dict[tuple[Link, bool], Transfers] = {}
        for link in dict.fromkeys(link for stage in stages for several in stage.sends.values() for link in several):
            for gradient in (False, True)[: 1 + link.gradient]:
                self.transfers[link, gradient] = self._transfers(link, gradient)
        self.tied: list[tuple[TiedGroup, int]] = []
        self._tie(tied_groups(strategy, graph))
        self.copies = {
            several: self._sum_copies(several, devices, summed_bytes(stages[several[0]]))
            for several, devices in copy_groups(strategy)
        }
        self.everyone = self._everyone() if strategy.clips else -1

    def taskgraph(self) -> TaskGraph:
        """Return all messages as tasks that do not wait: each once, and collectives as all-gathers behind them.

        What a collective waits for depends on its kind (an all-reduce goes round twice), its loads do not.  By an
        algorithm they do, and which one it is depends on the size, so that behind these all collectives are listed once
        more for each of their kinds and sizes that runs by algorithms.
        """
        count = sum(len(vertices) for _, vertices, _ in self._messages)
        repeated, as_kind, nbytes, by_algorithm = self._again()
        total = count + len(repeated)
        kind = np.full(total, int(TaskKind.COLLECTIVE), np.int8)
        src, dst, group, collective = (np.full(total, -1, each) for each in (np.int32, np.int32, np.int32, np.int8))
        ptr: list[I64] = [np.zeros(1, np.int64)]
        members: list[I64 | I32] = [np.zeros(0, np.int32)]
        n_groups = first = 0
        for name, vertices, ends in self._messages:
            rows = slice(first, first + len(vertices))
            first = rows.stop
            if name == "transfer":
                kind[rows], (src[rows], dst[rows]) = TaskKind.TRANSFER, ends
                continue
            collective[rows], group[rows] = Collective.ALL_REDUCE, n_groups + np.arange(len(vertices))
            n_groups += len(vertices)
            ptr.append(ptr[-1][-1] + ends.shape[1] * np.arange(1, len(vertices) + 1))
            members.append(ends.ravel())
        group[count:], collective[count:] = group[repeated], as_kind
        return TaskGraph(
            kind=frozen(kind),
            device=frozen(np.full(total, -1, np.int32)),
            seconds=frozen(np.zeros(total)),
            size=frozen(np.append(np.full(count, 1 << 20), nbytes)),
            src=frozen(src),
            dst=frozen(dst),
            group=frozen(group),
            op=frozen(np.append(np.zeros(count, np.int32), by_algorithm.astype(np.int32))),
            collective=frozen(collective),
            group_ptr=np.concatenate(ptr),
            group_members=np.concatenate(members),
            succ_ptr=np.zeros(total + 1, np.int32),
            succ=[],
            n_devices=self.n_devices,
            op_names=("messages", "messages by algorithms"),
        )

    @property
    def messages(self) -> I64:
        """(M,) the vertex of each message: of the first M tasks of `taskgraph`."""
        return np.concatenate([np.zeros(0, np.int64), *(vertices for _, vertices, _ in self._messages)])

    def first_of_classes(self, of_message: I64, classes: I64, device: int, latency: F64) -> I64:
        """Return a message of each class: the first one that a device sends, receives or takes part in, if any does.

        Args:
            of_message: (M,) class of each message.
            classes: ascending.
            device: whose messages come first.
            latency: (M,) seconds; messages with the most of a class come before all others.
        """
        mine = np.zeros(len(of_message), dtype=np.bool_)
        row = 0
        for name, vertices, ends in self._messages:
            mine[row : row + len(vertices)] = (ends == device).any(axis=0 if name == "transfer" else 1)
            row += len(vertices)
        order = np.lexsort((~mine, -latency))
        numbers, first = np.unique(of_message[order], return_index=True)
        chosen: I64 = order[first[np.searchsorted(numbers, classes)]]
        return chosen

    def ends_of(self, message: int) -> tuple[str, Any]:
        """Return the name of a message's kind, and the members of its group, or sender and receiver, by its number."""
        for name, vertices, ends in self._messages:
            if message < len(vertices):
                return name, ends[:, message] if name == "transfer" else ends[message]
            message -= len(vertices)
        raise IndexError(message)

    def groups_of(self, of_message: I64, classes: I64) -> list[tuple[I64, I64 | I32]]:
        """Return places in ``classes`` of collectives, and the members (G, n) of the groups that run these.

        All groups along the same axes of a stage are together, since their members wait for each other.  Where they are
        many, these are the first `_MOST_MEMBERS`: neighbours, whose messages meet.
        """
        groups: list[tuple[I64, I64 | I32]] = []
        row = 0
        for name, vertices, ends in self._messages:
            of_rows = np.unique(of_message[row : row + len(vertices)])
            row += len(vertices)
            if name == "collective" and ends.shape[1] > 1:
                places = np.flatnonzero(np.isin(classes, of_rows))
                groups.append((places, ends[: max(1, _MOST_MEMBERS // ends.shape[1])]))
        return groups

    def host_sets(self, device_host: I32) -> tuple[I64, I64]:
        """Return a number for the set of hosts of each message, and the hosts of all collectives of several hosts.

        Equal hashes of hosts are taken for equal sets.
        """
        sets, remote = [np.zeros(0, np.int64)], np.zeros(int(device_host.max()) + 1, dtype=np.bool_)
        for name, _, ends in self._messages:
            hosts = np.sort(device_host[ends.T if name == "transfer" else ends].astype(np.int64), axis=1)
            duplicate = np.zeros(hosts.shape, dtype=np.bool_)
            duplicate[:, 1:] = hosts[:, 1:] == hosts[:, :-1]
            sets.append(np.where(duplicate, np.uint64(0), label(np.uint64(1), hosts)).sum(axis=1).view(np.int64))
            if name != "transfer":
                several = hosts[hosts[:, 0] < hosts[:, -1]]
                remote[several.ravel()] = True
        return np.concatenate(sets), np.flatnonzero(remote)

    def vertices(self) -> Any:
        """(V,) uint64 colors of what tells vertices apart by themselves."""
        return np.concatenate(self._colors)

    def edges(self) -> tuple[Any, Any, Any]:
        """Return tails, heads and labels of the edges between vertices."""
        tails, heads, labels = zip(*self._edges, strict=True) if self._edges else ([], [], [])
        none, no_label = np.zeros(0, np.int64), np.zeros(0, np.uint64)
        return np.concatenate([none, *tails]), np.concatenate([none, *heads]), np.concatenate([no_label, *labels])

    # ── Vertices ────────────────────────────────────────────────────────────────────────────────────────────

    def _number(self, key: object) -> int:
        """Return a number for a pattern, the same for equal ones."""
        return self._numbers.setdefault(key, 1 + len(self._numbers))

    def _add(self, count: int, color: Any) -> I64:
        self._colors.append(np.broadcast_to(np.asarray(color, dtype=np.uint64), (count,)))
        self.n_vertices += count
        return np.arange(self.n_vertices - count, self.n_vertices)

    def _edge(self, tails: Any, heads: Any, name: Any) -> None:
        tails, heads = np.broadcast_arrays(tails, heads)
        labels = np.broadcast_to(np.asarray(name, dtype=np.uint64), tails.shape)
        self._edges.append((tails.ravel(), heads.ravel(), labels.ravel()))

    def _color_devices(self, stages: Sequence[StageGraph], costs: Sequence[StageCosts]) -> None:
        """Color devices by their rank, and by what they compute in each of its stages."""
        color = np.zeros(self.n_devices, np.uint64)
        for number, stage in enumerate(stages):
            rank = int(self._strategy.order.rank_of[number])
            devices = stage.stage.mesh.devices
            color[devices] = label(color[devices], np.uint64(rank + 1), costs[number].column)
            rows = [*stage.stage.shares, *(row for ring in rings_of(stage).values() for row in ring.work)]
            for row in {row.tobytes(): row for row in rows if (row != row[0]).any()}.values():
                color[devices] = label(color[devices], bits_of(row))
        self._colors.append(color)

    def _hops(self, stage: int, axis: int) -> I64:
        mesh, rank = self._strategy.stages[stage].mesh, int(self._strategy.order.rank_of[stage])
        ends = np.stack([mesh.devices, mesh.devices[neighbours(mesh, axis)[0]]])
        key = rank, digest([ends])
        if key not in self._hops_of:
            number = self._number(("hop", key))
            message = self._hops_of[key] = self._add(mesh.n_devices, label(number))
            self._messages.append(("transfer", message, ends))
            self._edge(ends[0], message, label(number, 1))
            self._edge(message, ends[1], label(number, 2))
        return self._hops_of[key]

    def _everyone(self) -> int:
        devices, number = devices_of(self._strategy), self._number("everyone")
        (vertex,) = self._add(1, label(number))
        self._messages.append(("collective", np.array([vertex]), devices[None]))
        self._sent[int(vertex)] = {Sent(Collective.ALL_REDUCE, 4, 1, once=True)}
        self._edge(devices, vertex, label(number, 1))
        return int(vertex)

    def _listing(
        self, stage: int, axes: tuple[int, ...], sent: set[Sent], all_to_alls: int, weights: Sequence[Weights]
    ) -> Listing:
        mesh, rank = self._strategy.stages[stage].mesh, int(self._strategy.order.rank_of[stage])
        key, ordered = ordered_groups(mesh, axes)
        groups = mesh_groups(mesh.sizes, axes)
        if (rank, key) not in self._rows:
            number = self._number(("row", rank, key))
            self._rows[rank, key] = self._add(len(ordered), label(number))
            self._edge(self._rows[rank, key][:, None], mesh.devices[ordered], label(number, 1))
        row = np.empty(len(groups), np.int64)
        row[np.argsort(mesh.devices[groups].min(axis=1))] = self._rows[rank, key]
        listed = (rank, digest([mesh.devices[groups]]))
        number = self._number(("listing", listed))
        if listed not in self._messages_of:
            message = self._messages_of[listed] = self._add(len(groups), label(number))
            self._messages.append(("collective", message, mesh.devices[groups]))
            self._edge(row, message, label(number, 2))
        self._sent.setdefault(int(self._messages_of[listed][0]), set()).update(sent)
        # Messages that are equal in one stage may differ in another one of its rank.
        messages_key = listed, tuple((each.end, digest([each.values])) for each in weights)
        if all_to_alls and messages_key not in self._all_to_alls:
            number = self._number(("all-to-all", messages_key))
            self._all_to_alls[messages_key] = self._all_to_all(stage, groups, row, number, weights)
        transfers = self._all_to_alls.get(messages_key) if all_to_alls else None
        return Listing(groups, row, self._messages_of[listed], transfers, key, all_to_alls)

    def _all_to_all(self, stage: int, groups: I64, row: I64, number: int, weights: Sequence[Weights]) -> AllToAll:
        devices = self._strategy.stages[stage].mesh.devices[groups]
        endpoint = np.arange(groups.size).reshape(groups.shape) if self._endpoint is None else self._endpoint[devices]
        kind = None
        if weights:
            of_members = np.stack([each.of_members(groups).ravel() for each in weights], axis=1)
            kind = np.unique(of_members, axis=0, return_inverse=True)[1].reshape(groups.shape)
        pairs = pair_messages(endpoint, kind)
        sizes = [bits_of(each.of_pairs(groups, pairs.sender, pairs.receiver)) for each in weights]
        message = self._add(len(pairs.sender), label(number, 3, pairs.n_messages, *sizes))
        self._counts.append((message, pairs.n_messages))
        flat = devices.ravel()
        self._messages.append(("transfer", message, np.stack([flat[pairs.sender], flat[pairs.receiver]])))
        of_message, member = pairs.senders
        self._edge(flat[member], message[of_message], label(number, 4))
        of_message, member = pairs.receivers
        self._edge(message[of_message], flat[member], label(number, 5))
        self._edge(row[pairs.sender // groups.shape[1]], message, label(number, 6))
        return AllToAll(message, pairs.sender, pairs.receiver, pairs.n_messages)

    def _transfers(self, link: Link, gradient: bool) -> Transfers:
        strategy, tensor = self._strategy, self._graph.operators[link.op].outputs[link.output]
        ends = [(link.sent, link.source), (link.arrives, link.target)][:: -1 if gradient else 1]
        (sent, source), (arrives, target) = ends
        key = (tensor.shape, tensor.itemsize, sent, source, arrives, target)
        if key in self._transfers_of:
            return self._transfers_of[key]
        meshes = strategy.stages[source].mesh, strategy.stages[target].mesh
        routes = routes_between(tensor, sent, meshes[0], arrives, meshes[1])
        away = ~routes.local
        src, dst = meshes[0].devices[routes.source[away]], meshes[1].devices[routes.target[away]]
        number = self._number(key)
        vertex = np.full(len(away), -1, dtype=np.int64)
        vertex[away] = message = self._add(int(away.sum()), label(number, routes.nbytes[away]))
        self._messages.append(("transfer", message, np.stack([src, dst])))
        self._edge(src, message, label(number, 1))
        self._edge(message, dst, label(number, 2))
        stays = self._add(int(routes.local.sum()), label(number, 3))  # nothing is sent, but what comes next waits
        self._edge(meshes[0].devices[routes.source[routes.local]], stays, label(number, 4))
        self._transfers_of[key] = Transfers(routes, vertex)
        return self._transfers_of[key]

    def _tie(self, groups: Sequence[TiedGroup]) -> None:
        """Add the sums of tied weights."""
        for group in groups:
            number = self._number(("tied", group.owner))
            (vertex,) = self._add(1, label(number, group.nbytes, len(group.members)))
            stages = np.array([member.stage for member in group.members])
            self._messages.append(("collective", np.array([vertex]), group.devices[None]))
            self._sent[int(vertex)] = {Sent(Collective.ALL_REDUCE, group.nbytes, 1, once=True)}
            self._edge(group.devices, vertex, label(number, stages))
            self.tied.append((group, int(vertex)))

    def _sum_copies(self, stages: tuple[int, ...], devices: I32, nbytes: int) -> I64:
        """Add the sums of stages that are the same in several copies of the model; see `copy_groups`."""
        number = self._number(("copies", stages))
        message = self._add(len(devices), label(number))
        self._messages.append(("collective", message, devices))
        self._sent[int(message[0])] = {Sent(Collective.ALL_REDUCE, nbytes, 1, once=True)}
        for copy, stage in enumerate(stages):
            self._edge(self._strategy.stages[stage].mesh.devices, message, label(number, copy + 1))
        return message

    def multiplied(self, loads: MessageLoads) -> MessageLoads:
        """Return loads in which a message that is several of an all-to-all has those of all of them."""
        count = np.ones(self.n_vertices, np.int64)
        for vertices, counts in self._counts:
            count[vertices] = counts
        if (count == 1).all():
            return loads
        times = count[self.vertex_of(loads)]
        of_entry = np.repeat(times, np.diff(loads.load_ptr))
        spread = loads.spread and loads.spread._replace(times=loads.spread.times * times[loads.spread.flow])
        return loads._replace(loads=loads.loads * of_entry, shares=loads.shares * of_entry, spread=spread)

    def with_loads(self, loads: MessageLoads, *, evened: int = 0) -> tuple[Any, Any, Any, Any, FlowEdges]:
        """Return colors of all vertices and links, the edges between vertices, and those of loads.

        ``evened``: those of some links are left out (`MessageLoads.evened`), and latencies tell no messages apart.
        """
        messages = self.messages
        color = np.append(self.vertices(), label(np.uint64(7), bits_of(loads.bandwidth)))
        first = np.searchsorted(loads.task, loads.task)
        flow = np.arange(len(loads.task)) - first  # its number among those of its message
        flow = np.where(loads.variant > 0, self.n_vertices + loads.variant, flow)
        extra = np.flatnonzero(loads.task >= len(messages))
        of_task = self.vertex_of(loads)
        constants = label(flow, *(bits_of(column) for column in loads.constants.T[min(evened, 1) :]))
        with np.errstate(over="ignore"):
            np.add.at(color, of_task, constants)
            if len(extra):
                np.add.at(color, of_task[extra], constants[extra] * np.uint64(3))
        once, outside = loads.listed(len(messages)), ~loads.evened(evened)
        tails, heads, labels = self.edges()
        flows = FlowEdges(
            of_task,
            label(np.uint64(8), flow),
            once,
            loads.load_ptr,
            loads.links,
            loads.loads,
            outside,
            self.n_vertices,
        )
        return color, tails.astype(np.int32), heads.astype(np.int32), labels, flows

    def latencies(self, loads: MessageLoads) -> F64:
        """(M,) seconds of each message before it flows, with the network's rings."""
        latency = np.zeros(len(self.messages))
        once = np.flatnonzero((loads.task < len(latency)) & (loads.variant == 0))
        np.maximum.at(latency, loads.task[once], loads.constants[once, 0])
        return latency

    def vertex_of(self, loads: MessageLoads) -> I64:
        """(N,) the vertex of the message of each flow."""
        vertices = np.concatenate([np.zeros(0, np.int64), *(vertices for _, vertices, _ in self._messages)])
        of_task: I64 = np.append(vertices, vertices[self._again()[0]])
        return of_task[loads.task]

    def _again(self) -> tuple[I64, I64, I64, I64]:
        """Return what `taskgraph` has behind all messages: rows of collectives, their kinds, sizes, and operators."""
        blocks, first = [], 0
        for name, vertices, _ in self._messages:
            if name == "collective":
                blocks.append((first + np.arange(len(vertices)), self._sent[int(vertices[0])]))
            first += len(vertices)
        listed = [(rows, int(Collective.ALL_GATHER), 1 << 20, 0) for rows, _ in blocks]
        for rows, sent in blocks if self._chosen else ():
            several = {
                (int(each.kind), size)
                for each in sent
                if each.kind in self._chosen
                for size in each.sizes(self._strategy.micro_batches)
                if size > 0
            }
            listed += [(rows, kind, size, BY_ALGORITHM) for kind, size in sorted(several)]
        counts = [len(rows) for rows, *_ in listed]
        columns = np.array([each[1:] for each in listed], dtype=np.int64).reshape(-1, 3)
        kinds, sizes, ops = np.repeat(columns, counts, axis=0).T
        return np.concatenate([np.zeros(0, np.int64), *(rows for rows, *_ in listed)]), kinds, sizes, ops
