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

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from topoplan.arrays import F64, I32, I64
from topoplan.errors import TopoplanError
from topoplan.model.collective import CollectiveGroup, CollectiveRounds
from topoplan_engine.csr import select
from topoplan_engine.network.round_loads import bytes_on_links, longest_delays
from topoplan_engine.network.tables import Network

__all__ = ["RoundsPrice", "grouped", "grouped_rows", "priced", "priced_groups"]

#: Messages of rows whose target moves on that are put on paths one by one; of more, as many rounds are, spread evenly.
_MOST_TURNS = 1 << 18
_GOLDEN = (5**0.5 - 1) / 2
#: Loads of links that are held at a time, of several rounds: some tens of MB.
_MOST_LOADS = 1 << 22
#: Messages of groups that are priced at a time.
_MOST_MESSAGES = 1 << 18


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


def grouped_rows(members: I32, host: I32) -> list[tuple[I64, I32, CollectiveGroup]]:
    """Return many groups of n members, as `grouped` lists each: rows that have as many in each host, and their members.

    Args:
        members: (G, n) devices.
        host: (D,) of each device.

    Example:
        >>> ((rows, members, group),) = grouped_rows(np.array([[0, 8, 1, 9], [2, 10, 3, 11]]), np.arange(16) // 8)
        >>> rows.tolist(), members.tolist(), group.in_hosts
        ([0, 1], [[0, 1, 8, 9], [2, 3, 10, 11]], (2, 2))
    """
    hosts, n = host[members].astype(np.int64), members.shape[1]
    order = np.argsort(hosts, axis=1, kind="stable")
    ordered = np.take_along_axis(hosts, order, axis=1)
    begins = np.ones(hosts.shape, dtype=bool)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    start = np.maximum.accumulate(np.where(begins, np.arange(n), 0), axis=1)
    first = np.empty_like(order)  # where the host of each member is first listed
    np.put_along_axis(first, order, np.take_along_axis(order, start, axis=1), axis=1)
    by_host = np.argsort(first, axis=1, kind="stable")
    ordered = np.take_along_axis(first, by_host, axis=1)
    begins[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    several = []
    patterns, place = np.unique(np.packbits(begins, axis=1), axis=0, return_inverse=True)
    for number in range(len(patterns)):
        rows = np.flatnonzero(place.ravel() == number)
        counts = np.diff(np.append(np.flatnonzero(begins[rows[0]]), n))
        listed = np.take_along_axis(members[rows], by_host[rows], axis=1)
        several.append((rows, listed, CollectiveGroup(tuple(counts.tolist()))))
    return several


def priced(network: Network, members: I32, rounds: CollectiveRounds) -> RoundsPrice:
    """Return what rounds cost among devices (n,), listed as `grouped` does.

    Raises:
        TopoplanError: two members that must communicate cannot, or there are no switches to add.
    """
    (price,) = _priced(network, members[None], _messages(rounds, len(members)), rounds)
    return price


def priced_groups(network: Network, members: I32, rounds: CollectiveRounds) -> list[RoundsPrice | TopoplanError]:
    """Return what the same rounds cost in each of several groups, or why they cannot run there.

    Args:
        network: of all groups.
        members: (G, n) devices, each row listed as `grouped` does, with as many in each host.
        rounds: of such a group.
    """
    messages = _messages(rounds, members.shape[1])
    at_a_time = max(1, _MOST_MESSAGES // max(1, len(messages.source)))
    prices: list[RoundsPrice | TopoplanError] = []
    for first in range(0, len(members), at_a_time):
        several = members[first : first + at_a_time]
        try:
            prices += _priced(network, several, messages, rounds)
        except TopoplanError:
            prices += [_price_or_refusal(network, each[None], messages, rounds) for each in several]
    return prices


def _price_or_refusal(
    network: Network, members: I32, messages: _Messages, rounds: CollectiveRounds
) -> RoundsPrice | TopoplanError:
    try:
        return _priced(network, members, messages, rounds)[0]
    except TopoplanError as error:
        return error


def _priced(network: Network, members: I32, messages: _Messages, rounds: CollectiveRounds) -> list[RoundsPrice]:
    """Return the prices of groups (G, n)."""
    paths = _Paths.of(network, members, messages)
    seconds, loads = np.zeros(len(members)), [paths.nothing]
    step, turns = np.unique(messages.step), messages.turn >= 0
    entries = _Entries.of(network, paths.rows) if turns.any() and not rounds.overlaps else None
    for number in step.tolist() if not rounds.overlaps else []:
        rows = messages.step == number
        for among, times in _alike(messages, rows):
            loads.append(paths.load(among, np.full(len(among), times)))
            seconds += paths.seconds(loads[-1])
        if entries is not None and (rows & turns).any():
            turned, of_turns = paths.turned(np.flatnonzero(rows & turns), entries)
            loads.append(turned)
            seconds += of_turns
    if rounds.overlaps:
        loads.append(paths.load(np.arange(len(messages.source)), messages.times))
        seconds = paths.seconds(loads[-1])
    total = _Loads.summed(loads)
    group, link = np.divmod(total.cell, network.n_links)
    ptr = np.searchsorted(group, np.arange(len(members) + 1))
    latency, inside, between = _latencies(messages, paths)
    return [
        RoundsPrice(
            float(latency[g]),
            int(inside[g]),
            int(between[g]),
            float(seconds[g]),
            link[ptr[g] : ptr[g + 1]],
            total.load[ptr[g] : ptr[g + 1]],
            messages.part,
        )
        for g in range(len(members))
    ]


class _Loads(NamedTuple):
    """Bytes on links for a byte of the tensor: ascending cells (group x links + link) that carry something."""

    cell: I64
    load: F64

    @classmethod
    def of(cls, cell: I64, load: F64) -> _Loads:
        """Sum what is listed, in the order of the list."""
        if not len(cell):
            return cls(cell, load)
        most = int(cell.max()) + 1
        if most <= 4 * len(cell):
            total = np.bincount(cell, load, minlength=most).astype(np.float64)
            cells = np.flatnonzero(total)
            return cls(cells, total[cells])
        cells, place = np.unique(cell, return_inverse=True)
        return cls(cells, np.bincount(place.ravel(), load).astype(np.float64))

    @classmethod
    def summed(cls, loads: Sequence[_Loads]) -> _Loads:
        """Return the sum of several."""
        return cls.of(np.concatenate([each.cell for each in loads]), np.concatenate([each.load for each in loads]))


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


class _Entries(NamedTuple):
    """The links of all pairs of all groups, one after the other: i entries.

    Attributes:
        ptr: (G x pairs + 1,) those of each pair of each group.
        place, cells: (i,) the cell of each, and the different ones.
        weight: (i,) share of a message.
    """

    ptr: I64
    place: I64
    cells: I64
    weight: F64

    @classmethod
    def of(cls, network: Network, rows: I32) -> _Entries:
        """List those of (G, pairs) rows of paths."""
        paths = network.paths
        owner, path = select(paths.row_ptr, rows.ravel())
        first = np.append(True, owner[1:] != owner[:-1]) if len(owner) else np.zeros(0, bool)
        weight = np.diff(paths.cumulative_weight[path], prepend=0.0)
        weight[first] = paths.cumulative_weight[path][first]
        of_path, entry = select(paths.path_ptr, path)
        owner, links = owner[of_path], paths.links[entry]
        cells, place = np.unique(owner // max(1, rows.shape[1]) * network.n_links + links, return_inverse=True)
        return cls(np.searchsorted(owner, np.arange(rows.size + 1)), place.ravel(), cells, weight[of_path])


class _Paths(NamedTuple):
    """Which links messages cross: those between members on rows of paths, those with switches on a tree of links.

    Attributes:
        network, members, messages: what they are of; G groups.
        rows: (G, pairs) of paths of the pairs of members between which messages are sent.
        pair: (m,) which of these a message is of; -1 with switches.
        delay: (G, m) seconds of the longest path.
        leaves: (m,) whether it leaves a host.
        member: (m,) of a message with switches; else -1.
        tree: where messages with switches go; None if there are none.
    """

    network: Network
    members: I32
    messages: _Messages
    rows: I32
    pair: I64
    delay: F64
    leaves: np.ndarray
    member: I64
    tree: _Tree | None

    @classmethod
    def of(cls, network: Network, members: I32, messages: _Messages) -> _Paths:
        groups, n = members.shape
        direct = np.flatnonzero((messages.source < n) & (messages.target < n))
        keys, place = np.unique(messages.source[direct] * n + messages.target[direct], return_inverse=True)
        source, target = np.divmod(keys, n)
        rows = network.rows_between(members[:, source].ravel(), members[:, target].ravel())
        count = len(messages.source)
        delay, leaves = np.zeros((groups, count)), np.zeros(count, dtype=bool)
        rows_of_groups = rows.reshape(groups, len(keys))
        delay[:, direct] = longest_delays(rows, network.paths).reshape(groups, len(keys))[:, place.ravel()]
        host = network.cluster.device_host[members[0]]
        leaves[direct] = (host[source] != host[target])[place.ravel()]
        pair, member = np.full(count, -1), np.full(count, -1)
        pair[direct] = place.ravel()
        tree = None
        if len(direct) < count:
            tree = _Tree.of(network, members)
            switched = np.flatnonzero(pair < 0)
            member[switched] = np.minimum(messages.source[switched], messages.target[switched])
            delay[:, switched], leaves[switched] = tree.delay[:, None], tree.between_hosts
        return cls(network, members, messages, rows_of_groups, pair, delay, leaves, member, tree)

    @property
    def nothing(self) -> _Loads:
        """No loads."""
        return _Loads(np.zeros(0, np.int64), np.zeros(0))

    def load(self, rows: I64, times: F64) -> _Loads:
        """Return bytes on links for a byte of the tensor, of messages that are each sent so many times."""
        nbytes: F64 = self.messages.share[rows] * times
        direct = self.pair[rows] >= 0
        of_pair = np.bincount(self.pair[rows][direct], nbytes[direct], minlength=self.rows.shape[1]).astype(np.float64)
        loads = [_Loads(*bytes_on_links(self.rows, of_pair, self.network.paths))]
        if self.tree is not None and not direct.all():
            m, switched = self.messages, rows[~direct]
            up = m.source[switched] < m.target[switched]  # switches have the highest number
            for way in (True, False):
                ends = switched[up == way]
                loads.append(self.tree.load(self.member[ends], m.key[ends], nbytes[~direct][up == way], up=way))
        return _Loads.summed(loads) if len(loads) > 1 else loads[0]

    def seconds(self, loads: _Loads) -> F64:
        """(G,) seconds that the busiest link of each group needs."""
        group, link = np.divmod(loads.cell, self.network.n_links)
        seconds = np.zeros(len(self.members))
        np.maximum.at(seconds, group, loads.load / self.network.bandwidth[link])
        return seconds

    def turned(self, rows: I64, entries: _Entries) -> tuple[_Loads, F64]:
        """Return bytes on links of messages whose target moves on, and (G,) the seconds of their rounds together."""
        messages, groups, pairs = self.messages, *self.rows.shape
        seconds = np.zeros(groups)
        turns, number = np.unique(messages.turn[rows], return_inverse=True)
        bandwidth = self.network.bandwidth[entries.cells % self.network.n_links]
        group = entries.cells // self.network.n_links
        cells = len(entries.cells)
        at_a_time, times = max(1, _MOST_LOADS // max(1, cells)), float(messages.times[rows[0]])
        total = np.zeros(cells)
        for first in range(0, len(turns), at_a_time):
            among = np.flatnonzero((number >= first) & (number < first + at_a_time))
            pair = (np.arange(groups)[:, None] * pairs + self.pair[rows[among]]).ravel()
            message, entry = select(entries.ptr, pair)
            row = among[message % len(among)]
            place = (number[row] - first) * cells + entries.place[entry]
            nbytes = messages.share[rows[row]] * entries.weight[entry]
            count = min(at_a_time, len(turns) - first)
            load = np.bincount(place, nbytes, minlength=count * cells).reshape(count, -1)
            total += load.sum(axis=0) * times
            longest = np.zeros((count, groups))
            if cells:
                starts = np.flatnonzero(np.append(True, group[1:] != group[:-1]))
                longest[:, group[starts]] = np.maximum.reduceat(load / bandwidth, starts, axis=1)
            seconds += longest.sum(axis=0) * times
        used = np.flatnonzero(total)
        return _Loads(entries.cells[used], total[used]), seconds


class _Tree(NamedTuple):
    """Links from members to switches that add, and back.

    Inside a host these are the first link and the last one of a device's paths.  Between hosts sums meet on the way to
    one of the members, and go back from it: a link carries a sum once, whichever members are behind it.

    Attributes:
        network: whose links these are.
        members: (G, n) devices.
        between_hosts: whether switches of the network add; otherwise those inside the host.
        delay: (G,) seconds of the longest way up, and down again.
    """

    network: Network
    members: I32
    between_hosts: bool
    delay: F64

    @classmethod
    def of(cls, network: Network, members: I32) -> _Tree:
        """Look for switches between members."""
        hosts = network.cluster.device_host[members]
        between_hosts = bool((hosts[0] != hosts[0, 0]).any())
        peers = np.flatnonzero(hosts[0] != hosts[0, 0]) if between_hosts else np.arange(1, members.shape[1])
        fabric, groups = network.fabric, len(members)
        ends = np.repeat(members[:, 0], len(peers)), members[:, peers].ravel()
        owner, links, delay = _first_paths(network, *ends)
        group = owner // max(1, len(peers))
        if between_hosts:
            of_fabric = links < fabric.n_links
            switched = fabric.link_dst[links[of_fabric]] >= fabric.n_hosts
            has_switch = np.bincount(group[of_fabric], switched, minlength=groups) > 0
        else:
            has_switch = np.bincount(group, minlength=groups) > len(peers)
        if not has_switch.all():
            where = "hosts" if between_hosts else "devices"
            raise TopoplanError(f"fabric {fabric.name!r}: no switch between its {where}, which could add")
        return cls(network, members, between_hosts, delay.reshape(groups, -1).max(axis=1, initial=0.0))

    def load(self, member: I64, key: I64, nbytes: F64, *, up: bool) -> _Loads:
        """Return bytes on links: where the same sum comes from two sides, or goes to them, it is one message."""
        _, first, number = np.unique(key, return_index=True, return_inverse=True)
        number = number.ravel()
        far = member[first][number] if self.between_hosts else np.where(member == 0, 1, 0)
        source, target = (member, far) if up else (far, member)
        rows = np.flatnonzero(source != target)
        ends = self.members[:, source[rows]].ravel(), self.members[:, target[rows]].ravel()
        owner, links, _ = _first_paths(self.network, *ends)
        group, row = np.divmod(owner, max(1, len(rows)))
        cell: I64 = group * np.int64(self.network.n_links) + links
        if self.between_hosts:
            _, once = np.unique(number[rows][row] + (len(first) * cell), return_index=True)
        else:
            last = np.append(owner[1:] != owner[:-1], True) if len(owner) else np.zeros(0, dtype=bool)
            once = np.flatnonzero(np.roll(last, 1) if up else last)
        return _Loads.of(cell[once], nbytes[rows][row[once]])


def _first_paths(network: Network, source: I64 | I32, target: I64 | I32) -> tuple[I64, I32, F64]:
    """Return the links of the first path of each pair, which pair each is of, and the latency of each pair's."""
    rows = network.rows_between(source.astype(np.int32), target.astype(np.int32))
    paths = network.paths
    path = paths.row_ptr[rows]
    owner, entry = select(paths.path_ptr, path)
    return owner, paths.links[entry], paths.delay[path]


def _latencies(messages: _Messages, paths: _Paths) -> tuple[F64, I64, I64]:
    """(G,) Return the seconds of all latencies in a row, and how many are inside hosts and between them.

    Of the messages of a step those count that wait longest; where latencies between hosts are fewer than repeats, the
    others are inside hosts.
    """
    groups = len(paths.members)
    if not len(messages.source):
        return np.zeros(groups), np.zeros(groups, np.int64), np.zeros(groups, np.int64)
    kinds = np.stack([messages.step, messages.latencies, messages.between])
    rows, kind = np.unique(kinds, axis=1, return_inverse=True)
    kind = kind.ravel()
    order = np.argsort(kind, kind="stable")
    starts = np.searchsorted(kind[order], np.arange(rows.shape[1]))
    of_side = [np.where(side, paths.delay, 0.0)[:, order] for side in (~paths.leaves, paths.leaves)]
    longest_inside, longest_between = (np.maximum.reduceat(delay, starts, axis=1) for delay in of_side)
    leaves = np.bincount(kind, paths.leaves, minlength=rows.shape[1]) > 0
    outside = np.where(rows[2] < 0, np.where(leaves, rows[1], 0), rows[2])
    totals = outside * longest_between + (rows[1] - outside) * longest_inside
    different, place = np.unique(totals, axis=0, return_inverse=True)
    seconds, inside, between = [], [], []
    for total in different:
        by_step = np.lexsort((rows[1], outside, total, rows[0]))  # the last of each step is the slowest
        slowest = by_step[np.append(rows[0][by_step][1:] != rows[0][by_step][:-1], True)]
        seconds.append(float(total[slowest].sum()))
        between.append(int(outside[slowest].sum()))
        inside.append(int((rows[1] - outside)[slowest].sum()))
    place = place.ravel()
    return np.array(seconds)[place], np.array(inside)[place], np.array(between)[place]
