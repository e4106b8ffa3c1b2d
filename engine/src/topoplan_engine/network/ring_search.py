"""Rings along links: Hamiltonian cycles of the graph that direct links make of a group's hosts.

A fabric of hosts that are wired to each other, as a torus is, may say no rings (`topoplan.Fabric.rings`,
`topoplan.Fabric.cycles`).  A ring in the order in which hosts are listed then crosses several links a step, and leaves
most links idle.  `find_cycles` looks for cycles along links that share none, each of which serves as two rings, one
each way.

How: of a graph in which all hosts have an even number of links, Euler's tour gives every link a direction and perfect
matchings part it into 2-factors, that is cycles that visit all hosts together (Petersen 1891; the matchings are found
by random walks, Goel, Kapralov, Khanna, STOC 2010).  Two cycles of a factor become one where a square crosses them: its
other two sides, of another factor, change places with them.  What this leaves in pieces, and graphs of other degrees,
are searched by rotations (Posa, Discrete Math. 14, 1976).  Full meshes have a construction of their own.  Of links of
several speeds, those of one speed and above count, a faster link several times, and the speed that gives the most
counts.

All draws come from a fixed seed, and work is bounded: nothing is found where a cycle may exist, but never the reverse.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from random import Random

import numpy as np

from topoplan.arrays import F64, I32, I64, digest, i64
from topoplan.model.fabric import Fabric
from topoplan.search.stopping import stop_if_wanted
from topoplan_engine.cache import LruCache

__all__ = ["find_cycles"]

#: Links among the hosts of a group in which cycles are looked for, and rings that a group gets at most.
_MOST_LINKS, _MOST_RINGS = 200_000, 64
#: Steps of a search among n hosts: so many, and so many times n.
_STEPS, _STEPS_OF_HOST = 100_000, 400
#: Speeds of links that are tried as that of a ring, and searches for more cycles than were found.
_SPEEDS, _TRIES = 4, 4

_Cycle = list[int]


class _OutOfStepsError(Exception):
    """A search has taken all of its steps."""


class _Steps:
    """Counts what a search does, and ends it."""

    def __init__(self, hosts: int) -> None:
        self.left = _STEPS + _STEPS_OF_HOST * hosts

    def take(self, count: int = 1) -> None:
        """Take some steps."""
        self.left -= count
        if self.left < 0:
            raise _OutOfStepsError


_found: LruCache[tuple[bytes, bytes], I64] = LruCache(1024)
#: By how the hosts of a group are joined, which is the same for all stages of a pipeline on a torus.
_found_for: LruCache[bytes, I64] = LruCache(1024)


def find_cycles(fabric: Fabric, hosts: I32) -> I64:
    """Return (rings, members) the place in a group to which each member sends, ring by ring; none where none is found.

    Args:
        fabric: of whose links those between two of the hosts count.
        hosts: (members,) of the group, each once.

    >>> links = [(0, 2), (2, 1), (1, 3), (3, 0)]
    >>> circle = Fabric.from_links(
    ...     name="circle", n_hosts=4, links=[*links, *((b, a) for a, b in links)], bandwidth=1e9, latency=0
    ... )
    >>> sorted(find_cycles(circle, np.arange(4, dtype=np.int32)).tolist())  # both ways around
    [[2, 3, 1, 0], [3, 2, 0, 1]]
    """
    key = fabric.key, hosts.tobytes()
    receivers = _found.find(key)
    return _found.put(key, _find(fabric, hosts)) if receivers is None else receivers


def _find(fabric: Fabric, hosts: I32) -> I64:
    n = len(hosts)
    place = np.full(fabric.n_nodes, -1, dtype=np.int64)
    place[hosts] = np.arange(n)
    source, target = place[fabric.link_src], place[fabric.link_dst]
    among = np.flatnonzero((source >= 0) & (target >= 0))
    none = i64(np.zeros((0, n), dtype=np.int64))
    if n < 2 or len(among) < n or len(among) > _MOST_LINKS:
        return none
    source, target, bandwidth = i64(source[among]), i64(target[among]), fabric.link_bandwidth[among]
    key = digest([n, source, target, bandwidth])
    receivers = _found_for.find(key)
    return _found_for.put(key, _search(n, source, target, bandwidth)) if receivers is None else receivers


def _search(n: int, source: I64, target: I64, bandwidth: F64) -> I64:
    """Do so for ``n`` hosts, given the places of hosts that links join, and bytes/s of these."""
    speed = {(a, b): rate for a, b, rate in zip(source.tolist(), target.tolist(), bandwidth.tolist(), strict=True)}
    best: tuple[float, list[_Cycle]] = (0.0, [])
    speeds = np.unique(list(speed.values()))
    for rate in speeds[np.unique(np.linspace(0, len(speeds) - 1, _SPEEDS).astype(np.int64))].tolist():
        rings = _rings(n, {pair: int(each / rate * (1 + 1e-9)) for pair, each in speed.items() if each >= rate})
        if rate * len(rings) > best[0] * (1 + 1e-9):
            best = (rate * len(rings), rings)
    receivers = np.empty((len(best[1]), n), dtype=np.int64)
    for ring, cycle in enumerate(best[1]):
        receivers[ring, cycle] = np.roll(cycle, -1)
    return i64(receivers)


def _rings(n: int, capacity: dict[tuple[int, int], int]) -> list[_Cycle]:
    """Return rings over links that carry ``capacity`` rings each, as hosts in the order of each ring."""
    if n == 2:
        return [[0, 1]] * min(capacity.get((0, 1), 0), capacity.get((1, 0), 0), 1)
    edges = Counter({(a, b): min(count, capacity.get((b, a), 0)) for (a, b), count in capacity.items() if a < b})
    edges += Counter()  # leaves out those of none
    cycles = _walecki(n, min(edges.values())) if len(edges) == n * (n - 1) // 2 else _cycles(n, edges)
    cycles = cycles[: _MOST_RINGS // 2]
    if cycles:
        return [way for cycle in cycles for way in (cycle, [cycle[0], *cycle[:0:-1]])]
    return _one_way(n, list(capacity))


def _one_way(n: int, links: list[tuple[int, int]]) -> list[_Cycle]:
    """Return the ring of links that all lead to the only host that one can send to; none where some have a choice."""
    following = dict(links)
    cycle, host = [0], following.get(0, 0)
    while host != 0 and len(cycle) < n:
        cycle.append(host)
        host = following.get(host, 0)
    return [cycle] if len(links) == len(following) == n == len(cycle) and host == 0 else []


def _walecki(n: int, times: int) -> list[_Cycle]:
    """Return (n - 1) // 2 cycles that share no link of a full mesh, each as often as it has each link (Walecki, 1892).

    All hosts but one stand on a circle; zigzags through it, each turned by one host, begin and end at the last one.  An
    even number has one more host, which each zigzag passes on one of its steps: all of these steps are of other hosts.
    """
    half = (n - 1) // 2  # of the hosts on the circle
    circle, last, cycles = 2 * half, 2 * half, []
    for turn in range(half):
        steps = [0, *(way for step in range(1, half + 1) for way in (step, -step))][:circle]
        cycle = [last, *((turn + step) % circle for step in steps)]
        if n % 2 == 0:
            before = half // 2 if half % 2 == 0 else -((half - 1) // 2)
            cycle.insert(cycle.index((turn + before) % circle, 1) + 1, n - 1)
        cycles += [cycle] * times
    return cycles


def _cycles(n: int, edges: Counter[tuple[int, int]]) -> list[_Cycle]:
    """Return cycles over links, (smaller, larger) host -> how often, that share none."""
    degree = Counter[int]()
    for (a, b), count in edges.items():
        degree[a] += count
        degree[b] += count
    if len(degree) < n or min(degree.values()) < 2:
        return []
    steps, random, best = _Steps(n), Random(0), list[_Cycle]()
    even = len(set(degree.values())) == 1 and degree[0] % 2 == 0
    most = min(_MOST_RINGS, min(degree.values())) // 2
    for number in range(_TRIES):
        if number:
            edges = Counter(dict(random.sample(list(edges.items()), len(edges))))
        cycles = _joined_factors(n, edges, random, steps) if even else []
        unused = edges - Counter(pair for cycle in cycles for pair in _pairs(cycle))
        try:
            while len(cycles) < most:
                cycles.append(_posa(n, list(unused), random, steps))
                unused -= Counter(_pairs(cycles[-1]))
        except _OutOfStepsError:
            pass
        best = max(best, cycles, key=len)
        if len(best) == most or steps.left < 0:
            break
    return best


def _pairs(cycle: _Cycle) -> Iterator[tuple[int, int]]:
    """Go through the links of a cycle, the smaller host first."""
    for a, b in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        yield min(a, b), max(a, b)


# ── Graphs of one even degree ────────────────────────────────────────────────────────────────────────────────────


def _joined_factors(n: int, edges: Counter[tuple[int, int]], random: Random, steps: _Steps) -> list[_Cycle]:
    """Return the cycles through all hosts that come of one draw of 2-factors."""
    factors = _Factors(n, _two_factors(n, edges, random))
    with contextlib.suppress(_OutOfStepsError):
        factors.join(random, steps)
    return factors.cycles()


def _two_factors(n: int, edges: Counter[tuple[int, int]], random: Random) -> list[list[int]]:
    """Return 2-factors of a graph of one even degree, as the host that follows each; they share no link."""
    leaving = _euler(n, edges)
    factors = []
    while leaving[0]:
        following = _matching(leaving, random)
        for host, next_host in enumerate(following):
            leaving[host].remove(next_host)
        factors.append(following)
    return factors


def _euler(n: int, edges: Counter[tuple[int, int]]) -> list[list[int]]:
    """Give each link the direction in which tours pass it that come back to where they began: as many in as out."""
    links = [list[int]() for _ in range(n)]  # by number, at both ends
    ends = [pair for pair, count in edges.items() for _ in range(count)]
    for number, (a, b) in enumerate(ends):
        links[a].append(number)
        links[b].append(number)
    used, leaving = [False] * len(ends), [list[int]() for _ in range(n)]
    for start in range(n):
        host = start
        while links[host]:
            number = links[host].pop()
            if not used[number]:
                used[number] = True
                neighbour = sum(ends[number]) - host
                leaving[host].append(neighbour)
                host = neighbour
    return leaving


def _matching(leaving: list[list[int]], random: Random) -> list[int]:
    """Return for each host one of those that it leads to, all of them different, where as many lead to each."""
    sender = [-1] * len(leaving)  # of each host that is taken
    for first in range(len(leaving)):
        chosen, host = dict[int, int](), first
        while True:  # a random walk; what it chose last at each host is a way without loops
            target = chosen[host] = random.choice(leaving[host])
            if sender[target] < 0:
                break
            host = sender[target]
        host = first
        while True:
            target = chosen[host]
            host, sender[target] = sender[target], host
            if host < 0:
                break
    following = [0] * len(leaving)
    for target, host in enumerate(sender):
        following[host] = target
    return following


class _Factors:
    """2-factors of a graph, whose cycles are joined by squares.

    State: of each factor the two neighbours of each host, the number of its cycle, and the hosts of each cycle; of each
    link its factors.
    """

    def __init__(self, n: int, following: list[list[int]]) -> None:
        self._n = n
        self._beside = [[list[int]() for _ in range(n)] for _ in following]
        self._factors: dict[tuple[int, int], list[int]] = {}
        self._around = [set[int]() for _ in range(n)]
        for factor, after in enumerate(following):
            for host, neighbour in enumerate(after):
                self._add(factor, host, neighbour)
                self._around[host].add(neighbour)
                self._around[neighbour].add(host)
        self._cycle = [[-1] * n for _ in following]
        self._hosts: list[dict[int, _Cycle]] = [{} for _ in following]
        for factor, cycle in enumerate(self._cycle):
            for start in range(n):
                if cycle[start] < 0:
                    self._hosts[factor][start] = self._walk(factor, start)
                    for host in self._hosts[factor][start]:
                        cycle[host] = start

    def _add(self, factor: int, a: int, b: int) -> None:
        self._beside[factor][a].append(b)
        self._beside[factor][b].append(a)
        self._factors.setdefault((min(a, b), max(a, b)), []).append(factor)

    def _remove(self, factor: int, a: int, b: int) -> None:
        self._beside[factor][a].remove(b)
        self._beside[factor][b].remove(a)
        self._factors[min(a, b), max(a, b)].remove(factor)

    def _walk(self, factor: int, start: int) -> _Cycle:
        """Return the cycle of a host."""
        beside = self._beside[factor]
        cycle, before, host = [start], start, beside[start][0]
        while host != start:
            cycle.append(host)
            a, b = beside[host]
            before, host = host, b if a == before else a
        return cycle

    def _merge(self, factor: int, a: int, b: int) -> None:
        """Let the cycles of two hosts be one: that of fewer hosts gets the number of the other."""
        cycle, hosts = self._cycle[factor], self._hosts[factor]
        fewer, more = sorted((cycle[a], cycle[b]), key=lambda number: len(hosts[number]))
        for host in hosts[fewer]:
            cycle[host] = more
        hosts[more] += hosts.pop(fewer)

    def join(self, random: Random, steps: _Steps) -> None:
        """Join cycles until each factor is one.

        Squares that join cycles of two factors come first.  Where there are none, a square that joins two of one factor
        and may part one of the other makes new ones.
        """
        while any(len(hosts) > 1 for hosts in self._hosts):
            if not sum(self._join_all(factor, random, steps, parts=False) for factor in range(len(self._hosts))):
                split = [factor for factor, hosts in enumerate(self._hosts) if len(hosts) > 1]
                if not self._join_all(random.choice(split), random, steps, parts=True):
                    return

    def _join_all(self, factor: int, random: Random, steps: _Steps, *, parts: bool) -> int:
        """Join cycles of a factor wherever a square does, but only once if that may part one of another factor."""
        joined, first, cycle = 0, random.randrange(self._n), self._cycle[factor]
        for a in (*range(first, self._n), *range(first)):
            if len(self._hosts[factor]) == 1:
                break
            for c in sorted(self._around[a]):
                steps.take()
                if cycle[a] != cycle[c] and self._join_at(factor, a, c, steps, parts):
                    joined += 1
                    if parts:
                        return joined
        return joined

    def _join_at(self, factor: int, a: int, c: int, steps: _Steps, parts: bool) -> bool:
        """Join the cycles of two neighbours by a square on their link, if one does."""
        for b in self._beside[factor][a]:
            for d in self._beside[factor][c]:
                for giver in self._factors.get((min(a, c), max(a, c)), ()):
                    has_sides = giver != factor and giver in self._factors.get((min(b, d), max(b, d)), ())
                    if has_sides and (self._cycle[giver][a] == self._cycle[giver][b]) == parts:
                        self._swap(factor, giver, (a, b, c, d))
                        self._merge(factor, a, c)
                        if parts:
                            self._part(giver, a, steps)
                        else:
                            self._merge(giver, a, b)
                        return True
        return False

    def _part(self, factor: int, a: int, steps: _Steps) -> None:
        """Let the cycle of a host have a number of its own where it is no longer all that its number stands for."""
        hosts, cycle = self._hosts[factor], self._cycle[factor]
        apart = self._walk(factor, a)
        steps.take(len(apart) // 4)
        number = cycle[a]
        if len(apart) < len(hosts[number]):
            remainder = set(hosts.pop(number)).difference(apart)
            for part in (apart, sorted(remainder)):
                hosts[part[0]] = part
                for host in part:
                    cycle[host] = part[0]

    def _swap(self, factor: int, giver: int, square: tuple[int, int, int, int]) -> None:
        a, b, c, d = square
        for loser, winner, pairs in ((factor, giver, ((a, b), (c, d))), (giver, factor, ((a, c), (b, d)))):
            for x, y in pairs:
                self._remove(loser, x, y)
                self._add(winner, x, y)

    def cycles(self) -> list[_Cycle]:
        """Return the factors that are one cycle."""
        whole = [self._walk(factor, 0) for factor in range(len(self._beside))]
        return [cycle for cycle in whole if len(cycle) == self._n > 2]


# ── Other graphs ─────────────────────────────────────────────────────────────────────────────────────────────────


def _posa(n: int, links: list[tuple[int, int]], random: Random, steps: _Steps) -> _Cycle:
    """Return a cycle through all hosts, found by rotations of paths; raises where it is out of steps.

    A path grows at its end.  Where it cannot, a link from its end to a host on it turns all that comes after that host.
    """
    around = [list[int]() for _ in range(n)]
    for a, b in links:
        around[a].append(b)
        around[b].append(a)
    path, numbers = np.empty(n, dtype=np.int64), np.arange(n)  # arrays, of which long parts are turned again and again
    while True:
        stop_if_wanted()
        end, length = random.randrange(n), 1
        first = path[0] = end
        place = np.full(n, -1)
        place[end] = 0
        unvisited = [len(links) for links in around]  # of each host's links, those to hosts that are not on the path
        for host in around[end]:
            unvisited[host] -= 1
        for _ in range(20 * n):
            steps.take(len(around[end]))
            if length == n and first in around[end]:
                return path.tolist()
            new = [host for host in around[end] if place[host] < 0]
            if new:
                end = min(new, key=lambda each: (unvisited[each], random.random()))
                place[end], path[length] = length, end
                length += 1
                for neighbour in around[end]:
                    unvisited[neighbour] -= 1
                continue
            turns = [place[host] + 1 for host in around[end] if place[host] < length - 2]
            if not turns:
                break
            turn = random.choice(turns)
            steps.take(int(length - turn) // 4)
            path[turn:length] = path[turn:length][::-1].copy()
            place[path[turn:length]] = numbers[turn:length]
            end = int(path[length - 1])
        steps.take(n)
