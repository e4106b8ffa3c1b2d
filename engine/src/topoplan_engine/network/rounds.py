"""What the rounds of a collective cost on a network: latencies, seconds for each byte, and bytes on each link.

Data flow: `grouped` lists the members of a group host by host, an algorithm yields `CollectiveRounds` for it, and
`priced` puts their messages on the paths of a `Network`, all messages of a round in one pass, as a `RoundsPrice`.  It
is linear in the bytes of the tensor:

    seconds = latency + seconds_per_byte x bytes

A round lasts as long as its busiest link needs for the bytes that all its messages put there; where rounds overlap, in
pieces, that holds for the bytes of all rounds together.  A message that has several paths loads each by its share.  A
round has the latency of its longest path; latencies inside hosts and between them are counted apart, for protocols that
add to them (`topoplan_engine.network.protocols`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.errors import TopoplanError
from topoplan.model.collective import CollectiveGroup, CollectiveRounds
from topoplan_engine.csr import select
from topoplan_engine.network.tables import Network

__all__ = ["RoundsPrice", "grouped", "priced"]

#: Messages of rows whose target moves on that are put on paths one by one; of more, as many rounds are, spread evenly.
_MOST_TURNS = 1 << 18
_GOLDEN = (5**0.5 - 1) / 2
#: Loads of links that are held at a time, of several rounds: some tens of MB.
_MOST_LOADS = 1 << 22


class RoundsPrice(NamedTuple):
    """The cost of a collective on a network.

    Attributes:
        latency: seconds of latencies of paths, one after the other.
        inside, between: how many latencies inside hosts and between them that are.
        seconds_per_byte: of the tensor.
        links, load: links that carry something, and bytes on each for a byte of the tensor.
        part: of the messages whose target moves on, the share that was put on paths; the others are taken to be like
            them.
    """

    latency: float
    inside: int
    between: int
    seconds_per_byte: float
    links: I64
    load: F64
    part: float


def grouped(members: I32, host: I32) -> tuple[I32, CollectiveGroup]:
    """Return the members host by host, in the order in which hosts are first listed, and their group.

    Example:
        >>> members, group = grouped(np.array([0, 8, 1, 9]), np.arange(16) // 8)
        >>> members.tolist(), group.in_hosts
        ([0, 1, 8, 9], (2, 2))
    """
    _, first, place, counts = np.unique(host[members], return_index=True, return_inverse=True, return_counts=True)
    order = np.argsort(first[place], kind="stable")
    return members[order], CollectiveGroup(tuple(counts[np.argsort(first)].tolist()))


def priced(network: Network, members: I32, rounds: CollectiveRounds) -> RoundsPrice:
    """Return what rounds cost among devices (n,), listed as `grouped` does.

    Raises:
        TopoplanError: two members that must communicate cannot, or there are no switches to add.
    """
    messages = _messages(rounds, len(members))
    paths = _Paths.of(network, members, messages)
    total, seconds = np.zeros(network.n_links), 0.0
    step = np.unique(messages.step)
    for number in step.tolist() if not rounds.overlaps else []:
        rows = messages.step == number
        loads = [paths.load(among, np.full(len(among), times)) for among, times in _alike(messages, rows)]
        total += sum(loads)
        seconds += sum(float((load / network.bandwidth).max()) for load in loads)
        turned = paths.turned(np.flatnonzero(rows & (messages.turn >= 0)))
        total += turned[0]
        seconds += turned[1]
    if rounds.overlaps:
        total = paths.load(np.arange(len(messages.source)), messages.times)
        seconds = float((total / network.bandwidth).max())
    links = np.flatnonzero(total)
    latency, inside, between = _latencies(messages, paths)
    return RoundsPrice(latency, inside, between, seconds, links, total[links], messages.part)


class _Messages(NamedTuple):
    """Messages as they are put on paths: rows of `CollectiveRounds`, a row for each turn where the target moves on.

    Attributes:
        source, target, step: (m,) as there.
        share: (m,) of the tensor's bytes, each time.
        key: (m,) messages to or from switches of one key carry parts of the same sum.
        times: (m,) how often each is sent; also how many messages one stands for that are left out.
        turn: (m,) which repeat it is; messages of different turns are never sent at a time; -1 where all are of one.
        latencies, between: (m,) latencies in a row, and those between hosts; the latter -1 where the path says.
        part: see `RoundsPrice`.
    """

    source: I64
    target: I64
    step: I64
    share: F64
    key: I64
    times: F64
    turn: I64
    latencies: I64
    between: I64
    part: float


def _messages(rounds: CollectiveRounds, n: int) -> _Messages:
    repeats = rounds.repeats.astype(np.int64)
    latencies = np.where(rounds.latencies < 0, repeats, rounds.latencies)
    turning = rounds.turn != 0
    most, part = int(repeats[turning].max(initial=0)), 1.0
    turns = np.arange(most)
    if most * int(turning.sum()) > _MOST_TURNS:
        count = max(2, _MOST_TURNS // int(turning.sum()))
        turns = np.unique(((np.arange(count) + 0.5) * _GOLDEN % 1 * most).astype(np.int64))
        part = len(turns) / most
    still = np.flatnonzero(~turning)
    row = np.concatenate([still, np.tile(np.flatnonzero(turning), len(turns))])
    turn = np.concatenate([np.full(len(still), -1), np.repeat(turns, int(turning.sum()))])
    sent = turn < repeats[row]
    row, turn = row[sent], turn[sent]
    target = rounds.target[row].astype(np.int64)
    target = np.where(turn >= 0, (target + np.maximum(turn, 0) * rounds.turn[row]) % n, target)
    order = np.argsort(rounds.step[row], kind="stable")
    row, turn, target = row[order], turn[order], target[order]
    return _Messages(
        source=rounds.source[row].astype(np.int64),
        target=target,
        step=rounds.step[row].astype(np.int64),
        share=rounds.count[row] / rounds.chunks,
        key=rounds.chunk[row] * (rounds.chunks + 1) + rounds.count[row],
        times=np.where(turn >= 0, 1 / part, repeats[row]),
        turn=turn,
        latencies=latencies[row],
        between=rounds.between[row].astype(np.int64),
        part=part,
    )


def _alike(messages: _Messages, of_step: np.ndarray) -> list[tuple[I64, float]]:
    """Return the messages whose target stays, of each round of a step, and how many rounds are like it."""
    rounds: list[tuple[I64, float]] = []
    still = np.flatnonzero(of_step & (messages.turn < 0))
    before = 0.0
    for times in np.unique(messages.times[still]).tolist():
        rounds.append((still[messages.times[still] >= times], times - before))
        before = times
    return rounds


class _Paths(NamedTuple):
    """Which links messages cross: those between members on rows of paths, those with switches on a tree of links.

    Attributes:
        network, messages: what they are of.
        pair: (m,) which pair of members a message is of; -1 with switches.
        owner, link, weight: (i,) the links of each pair, and its share of traffic on each.
        delay: (m,) seconds of the longest path.
        leaves: (m,) whether it leaves a host.
        device: (m,) device of a message with switches; else -1.
        tree: where messages with switches go; None if there are none.
    """

    network: Network
    messages: _Messages
    pair: I64
    owner: I64
    link: I32
    weight: F64
    delay: F64
    leaves: np.ndarray
    device: I64
    tree: _Tree | None

    @classmethod
    def of(cls, network: Network, members: I32, messages: _Messages) -> _Paths:
        n = len(members)
        direct = np.flatnonzero((messages.source < n) & (messages.target < n))
        devices = members.astype(np.int64)
        key = devices[messages.source[direct]] * network.cluster.n_devices + devices[messages.target[direct]]
        keys, place = np.unique(key, return_inverse=True)
        source, target = np.divmod(keys, network.cluster.n_devices)
        rows = network.rows_between(source.astype(np.int32), target.astype(np.int32))
        paths = network.paths
        owner, path = select(paths.row_ptr, rows)
        first = np.append(True, owner[1:] != owner[:-1]) if len(owner) else np.zeros(0, bool)
        weight = np.diff(paths.cumulative_weight[path], prepend=0.0)
        weight[first] = paths.cumulative_weight[path][first]
        of_path, entry = select(paths.path_ptr, path)
        delay, leaves = np.zeros(len(messages.source)), np.zeros(len(messages.source), dtype=bool)
        longest = np.maximum.reduceat(paths.delay[path], np.flatnonzero(first)) if len(owner) else np.zeros(0)
        host = network.cluster.device_host
        delay[direct] = longest[place]
        leaves[direct] = (host[source] != host[target])[place]
        pair, device = np.full(len(delay), -1), np.full(len(delay), -1)
        pair[direct] = place
        tree = None
        if len(direct) < len(delay):
            tree = _Tree.of(network, members)
            switched = np.flatnonzero(pair < 0)
            ends = np.where(messages.source[switched] < n, messages.source[switched], messages.target[switched])
            device[switched] = devices[ends]
            delay[switched], leaves[switched] = tree.delay, tree.between_hosts
        return cls(
            network, messages, pair, owner[of_path], paths.links[entry], weight[of_path], delay, leaves, device, tree
        )

    def load(self, rows: I64, times: F64) -> F64:
        """(E,) bytes on each link for a byte of the tensor, of messages that are each sent so many times."""
        nbytes: F64 = self.messages.share[rows] * times
        direct = self.pair[rows] >= 0
        pairs = int(self.pair.max(initial=-1)) + 1
        of_pair = np.bincount(self.pair[rows][direct], nbytes[direct], minlength=pairs)
        on_links = of_pair[self.owner] * self.weight
        load: F64 = np.bincount(self.link, on_links, minlength=self.network.n_links).astype(np.float64)
        if self.tree is not None and not direct.all():
            m, switched = self.messages, rows[~direct]
            up = m.source[switched] < m.target[switched]  # switches have the highest number
            for way in (True, False):
                ends = switched[up == way]
                load += self.tree.load(self.device[ends], m.key[ends], nbytes[~direct][up == way], up=way)
        return load

    def turned(self, rows: I64) -> tuple[F64, float]:
        """Return bytes on each link of messages whose target moves on, and the seconds of their rounds together."""
        messages, bandwidth = self.messages, self.network.bandwidth
        total, seconds = np.zeros(len(bandwidth)), 0.0
        if not len(rows):
            return total, seconds
        ptr = np.searchsorted(self.owner, np.arange(int(self.pair.max()) + 2))
        turns, number = np.unique(messages.turn[rows], return_inverse=True)
        at_a_time = max(1, _MOST_LOADS // len(bandwidth))
        for first in range(0, len(turns), at_a_time):
            among = (number >= first) & (number < first + at_a_time)
            message, entry = select(ptr, self.pair[rows[among]])
            place = (number[among][message] - first) * len(bandwidth) + self.link[entry]
            nbytes = (messages.share[rows[among]])[message] * self.weight[entry]
            count = min(at_a_time, len(turns) - first)
            load = np.bincount(place, nbytes, minlength=count * len(bandwidth)).reshape(count, -1)
            times = float(messages.times[rows[0]])
            total += load.sum(axis=0) * times
            seconds += float((load / bandwidth).max(axis=1).sum()) * times
        return total, seconds


class _Tree(NamedTuple):
    """Links from members to switches that add, and back.

    Inside a host these are the first link and the last one of a device's paths.  Between hosts sums meet on the way to
    one of the members, and go back from it: a link carries a sum once, whichever members are behind it.

    Attributes:
        network: whose links these are.
        members: (n,) devices.
        between_hosts: whether switches of the network add; otherwise those inside the host.
        delay: seconds of the longest way up, and down again.
    """

    network: Network
    members: I32
    between_hosts: bool
    delay: float

    @classmethod
    def of(cls, network: Network, members: I32) -> _Tree:
        """Look for switches between members."""
        hosts = network.cluster.device_host[members]
        between_hosts = bool((hosts != hosts[0]).any())
        fabric, peers = network.fabric, members[hosts != hosts[0]] if between_hosts else members[1:]
        _, links, delay = _first_paths(network, np.full(len(peers), members[0]), peers)
        if between_hosts:
            on_fabric = links[links < fabric.n_links]
            has_switch = bool((fabric.link_dst[on_fabric] >= fabric.n_hosts).any())
        else:
            has_switch = len(links) > len(peers)
        if not has_switch:
            where = "hosts" if between_hosts else "devices"
            raise TopoplanError(f"fabric {fabric.name!r}: no switch between its {where}, which could add")
        return cls(network, members, between_hosts, delay)

    def load(self, device: I64, key: I64, nbytes: F64, *, up: bool) -> F64:
        """(E,) bytes on each link: where the same sum comes from two sides, or goes to them, it is one message."""
        _, first, number = np.unique(key, return_index=True, return_inverse=True)
        if self.between_hosts:
            far = device[first][number]
        else:
            far = np.where(device == self.members[0], self.members[1], self.members[0])
        source, target = (device, far) if up else (far, device)
        rows = np.flatnonzero(source != target)
        owner, links, _ = _first_paths(self.network, source[rows], target[rows])
        if self.between_hosts:
            _, once = np.unique(number[rows][owner] * self.network.n_links + links, return_index=True)
        else:
            ends = np.append(owner[1:] != owner[:-1], True) if len(owner) else np.zeros(0, dtype=bool)
            once = np.flatnonzero(np.roll(ends, 1) if up else ends)
        on_links = np.bincount(links[once], nbytes[rows][owner[once]], minlength=self.network.n_links)
        return on_links.astype(np.float64)


def _first_paths(network: Network, source: I64 | I32, target: I64 | I32) -> tuple[I64, I32, float]:
    """Return the links of the first path of each pair, which pair each is of, and the longest latency."""
    rows = network.rows_between(source.astype(np.int32), target.astype(np.int32))
    paths = network.paths
    path = paths.row_ptr[rows]
    owner, entry = select(paths.path_ptr, path)
    return owner, paths.links[entry], float(paths.delay[path].max(initial=0.0))


def _latencies(messages: _Messages, paths: _Paths) -> tuple[float, int, int]:
    """Return the seconds of all latencies in a row, and how many are inside hosts and between them.

    Of the messages of a step those count that wait longest; where latencies between hosts are fewer than repeats, the
    others are inside hosts.
    """
    seconds, inside, between = 0.0, 0, 0
    kinds = np.stack([messages.step, messages.latencies, messages.between])
    rows, kind = np.unique(kinds, axis=1, return_inverse=True)
    kind = kind.ravel()
    count = rows.shape[1]
    longest_inside, longest_between = np.zeros(count), np.zeros(count)
    np.maximum.at(longest_inside, kind[~paths.leaves], paths.delay[~paths.leaves])
    np.maximum.at(longest_between, kind[paths.leaves], paths.delay[paths.leaves])
    leaves = np.bincount(kind, paths.leaves, minlength=count) > 0
    outside = np.where(rows[2] < 0, np.where(leaves, rows[1], 0), rows[2])
    total = outside * longest_between + (rows[1] - outside) * longest_inside
    order = np.lexsort((rows[1], outside, total, rows[0]))  # the last of each step is the slowest
    last = np.append(rows[0][order][1:] != rows[0][order][:-1], True)
    slowest = order[last]
    seconds = float(total[slowest].sum())
    between = int(outside[slowest].sum())
    inside = int((rows[1] - outside)[slowest].sum())
    return seconds, inside, between
