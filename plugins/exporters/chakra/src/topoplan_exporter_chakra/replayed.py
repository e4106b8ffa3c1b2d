"""How long ASTRA-sim's congestion-unaware backend takes for traces: its rules, node by node.

For the note that an export prints: where the time differs from the plan's, so much of it is due to these rules.  They
are read in ASTRA-sim at 518bd51 and its analytical backend, and checked against its runs (the package's README).

- A rank runs one kernel, and one SEND or COLL, at a time: of those that wait for nothing more, the lowest id first
  (Workload.cc, HardwareResource.cc).  A RECV takes no turn.
- A message takes its size over the bandwidth of the first axis in which its ends differ, and a latency for each hop:
  two on a switch, the shorter way round a ring (MultiDimTopology.cpp).
- A collective of all ranks goes axis by axis, an all-reduce by reduce-scatters up to the last axis and all-gathers back
  (``localBWAware``).  One of some ranks is a single ring over them in the order of the group (CommunicatorGroup.cc).
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from itertools import pairwise

import attrs

from topoplan_exporter_chakra.product import Axis
from topoplan_exporter_chakra.schema import CollectiveType, Node, NodeType

__all__ = ["replayed_seconds"]


def replayed_seconds(
    nodes: Sequence[Sequence[Node]],
    groups: Mapping[str, Sequence[int]],
    axes: tuple[Axis, ...],
    microsecond: float,
    *,
    in_turn: bool = True,
) -> float:
    """Return when the last node of all ranks has ended.

    Args:
        nodes: of each rank, as `topoplan_exporter_chakra.ranks.traces` writes them: the id of a node is its place.
        groups: ranks by the name of a process group.
        axes: of the network, the innermost first.
        microsecond: seconds that the traces call a microsecond.
        in_turn: a rank runs one SEND or COLL at a time.  Without, all run that can, and share no links: the least time
            if nothing had to wait for its turn.
    """
    if not in_turn:
        nodes = [[attrs.evolve(node, ctrl_deps=()) for node in mine] for mine in nodes]
    return _Replay(nodes, groups, _Network(axes), microsecond, in_turn).run()


class _Network:
    """Seconds of messages and collectives on a product of axes."""

    def __init__(self, axes: tuple[Axis, ...]) -> None:
        self._axes = axes
        self._n_ranks = 1
        for axis in axes:
            self._n_ranks *= axis.size

    def message(self, src: int, dst: int, size: float) -> float:
        """Return the seconds of a message."""
        for axis in self._axes:
            src, src_place = divmod(src, axis.size)
            dst, dst_place = divmod(dst, axis.size)
            if src_place != dst_place:
                ahead = (dst_place - src_place) % axis.size
                hops = {"Switch": 2, "Ring": min(ahead, axis.size - ahead)}.get(axis.shape, 1)
                return hops * axis.latency + size / axis.bandwidth
        return 0.0

    def collective(self, kind: CollectiveType, size: float, members: Sequence[int]) -> float:
        """Return the seconds of a collective whose ``comm_size`` is ``size``."""
        if len(members) == self._n_ranks:
            return self._by_axes(kind, size)
        count = len(members)
        turns = 2 if kind is CollectiveType.ALL_REDUCE else 1
        part = size if kind is CollectiveType.ALL_GATHER else size / count
        step = max(self.message(a, b, part) for a, b in pairwise([*members, members[0]]))
        return turns * (count - 1) * step

    def _by_axes(self, kind: CollectiveType, size: float) -> float:
        seconds = 0.0
        axes = self._axes if kind is not CollectiveType.ALL_GATHER else self._axes[::-1]
        for place, axis in enumerate(axes):
            latency = axis.latency * (2 if axis.shape == "Switch" else 1)
            part = size if kind is CollectiveType.ALL_GATHER else size / axis.size
            turns = 2 if kind is CollectiveType.ALL_REDUCE else 1  # once on the way in and once on the way back
            seconds += turns * (axis.size - 1) * (latency + part / axis.bandwidth)
            if place < len(axes) - 1:
                size = size * axis.size if kind is CollectiveType.ALL_GATHER else size / axis.size
        return seconds


class _Replay:
    """Runs the nodes of all ranks."""

    def __init__(
        self,
        nodes: Sequence[Sequence[Node]],
        groups: Mapping[str, Sequence[int]],
        network: _Network,
        microsecond: float,
        in_turn: bool,
    ) -> None:
        self._nodes, self._groups, self._network, self._microsecond = nodes, groups, network, microsecond
        self._in_turn = in_turn
        self._waits = [[len({*node.ctrl_deps, *node.data_deps}) for node in mine] for mine in nodes]
        self._after: list[list[list[int]]] = [[[] for _ in mine] for mine in nodes]
        for mine, after in zip(nodes, self._after, strict=True):
            for node in mine:
                for needed in {*node.ctrl_deps, *node.data_deps}:
                    after[needed].append(node.id)
        self._kernels: list[list[int]] = [[] for _ in nodes]  # ready ones, a heap of ids
        self._calls: list[list[int]] = [[] for _ in nodes]
        self._in_kernel, self._in_call = [False] * len(nodes), [False] * len(nodes)
        self._arrived: dict[tuple[int, int, int], float] = {}
        self._receiving: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._entered: dict[tuple[str, int], list[tuple[int, int]]] = {}
        self._turn: dict[tuple[str, int], int] = {}
        self._events: list[tuple[float, int, int]] = []

    def run(self) -> float:
        """Return the time of the last event."""
        for rank, mine in enumerate(self._nodes):
            for node in mine:
                if not self._waits[rank][node.id]:
                    self._ready(rank, node.id, 0.0)
            self._issue(rank, 0.0)
        now = 0.0
        while self._events:
            now, rank, number = heapq.heappop(self._events)
            kind = self._nodes[rank][number].type
            if kind is NodeType.COMP:
                self._in_kernel[rank] = False
            elif kind is not NodeType.RECV:
                self._in_call[rank] = False
            for after in self._after[rank][number]:
                self._waits[rank][after] -= 1
                if not self._waits[rank][after]:
                    self._ready(rank, after, now)
            self._issue(rank, now)
        return now

    def _ready(self, rank: int, number: int, now: float) -> None:
        node = self._nodes[rank][number]
        if node.type is NodeType.COMP:
            heapq.heappush(self._kernels[rank], number)
        elif node.type is NodeType.RECV:
            ends = _ends(node)
            if ends in self._arrived:
                heapq.heappush(self._events, (max(now, self._arrived[ends]), rank, number))
            else:
                self._receiving[ends] = rank, number
        else:
            heapq.heappush(self._calls[rank], number)

    def _issue(self, rank: int, now: float) -> None:
        """Start what a rank can."""
        if self._kernels[rank] and not self._in_kernel[rank]:
            self._in_kernel[rank] = True
            number = heapq.heappop(self._kernels[rank])
            seconds = self._nodes[rank][number].duration * self._microsecond
            heapq.heappush(self._events, (now + seconds, rank, number))
        while self._calls[rank] and not (self._in_turn and self._in_call[rank]):
            self._in_call[rank] = True
            number = heapq.heappop(self._calls[rank])
            node = self._nodes[rank][number]
            if node.type is NodeType.SEND:
                self._send(rank, node, now)
            else:
                self._enter(rank, node, now)

    def _send(self, rank: int, node: Node, now: float) -> None:
        ends = _ends(node)
        end = now + self._network.message(ends[0], ends[1], float(node.attributes["comm_size"]))  # type: ignore[arg-type]
        heapq.heappush(self._events, (end, rank, node.id))
        self._arrived[ends] = end
        if ends in self._receiving:
            heapq.heappush(self._events, (end, *self._receiving.pop(ends)))

    def _enter(self, rank: int, node: Node, now: float) -> None:
        """Enter a collective; the last of its ranks starts it."""
        group = str(node.attributes["pg_name"])
        turn = self._turn[group, rank] = self._turn.get((group, rank), -1) + 1
        inside = self._entered.setdefault((group, turn), [])
        inside.append((rank, node.id))
        members = self._groups[group]
        if len(inside) == len(members):
            kind = CollectiveType(int(node.attributes["comm_type"]))  # type: ignore[arg-type]
            size = float(node.attributes["comm_size"])  # type: ignore[arg-type]
            end = now + self._network.collective(kind, size, members)
            for each in inside:
                heapq.heappush(self._events, (end, *each))


def _ends(node: Node) -> tuple[int, int, int]:
    """Return source, destination and tag of a message."""
    src, dst, tag = (node.attributes[f"comm_{key}"] for key in ("src", "dst", "tag"))
    assert isinstance(src, int)
    assert isinstance(dst, int)
    assert isinstance(tag, int)
    return src, dst, tag
