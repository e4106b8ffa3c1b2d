"""Small changes of a wiring: pure functions, random numbers from the generator that they are given.

Two-way links are counts in a symmetric matrix (n, n).  A move returns the new matrix, or None where the
wiring has no such move; hosts keep within their interfaces.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from topoplan.arrays import F64, I64
from topoplan_directconnect.permutations import group_sizes, ring_steps

__all__ = ["Steps", "add_link", "change_steps", "cross_links", "links_of_rings", "move_end", "steps_of"]

#: Group size -> the steps of its own two-way rings.
Steps = dict[int, list[int]]


def links_of_rings(n: int, rings: Mapping[int, Sequence[Sequence[int]]]) -> I64:
    """Return (n, n) 1 where a ring walks, in either direction: links that must stay."""
    needed = np.zeros((n, n), dtype=np.int64)
    hosts = np.arange(n)
    for hop in sorted({hop for walks in rings.values() for ring in walks for hop in ring}):
        needed[hosts, (hosts + hop) % n] = needed[(hosts + hop) % n, hosts] = 1
    return needed


def cross_links(count: I64, loose: I64, wish: F64, rng: np.random.Generator) -> I64 | None:
    """Take two links a-b and c-d, and join a with c and b with d instead.

    Args:
        count: (n, n) links.
        loose: (n, n) those of them that may go.
        wish: (n, n) not negative; a pair a, c is drawn in proportion, where it has anything.
        rng: draws.
    """
    hosts = np.flatnonzero(loose.any(axis=1))
    wanted = np.triu(wish + wish.T, 1)[np.ix_(hosts, hosts)]
    if len(hosts) < 4:
        return None
    if wanted.any():
        at = int(rng.choice(wanted.size, p=(wanted / wanted.sum()).ravel()))
        a, c = int(hosts[at // len(hosts)]), int(hosts[at % len(hosts)])
    else:
        a, c = (int(host) for host in rng.choice(hosts, 2, replace=False))
    ends = []
    for host, other in ((a, c), (c, a)):
        near = [int(far) for far in np.flatnonzero(loose[host]) if far != other and far not in ends]
        if not near:
            return None
        ends.append(near[int(rng.integers(len(near)))])
    b, d = ends
    return _changed(count, ((a, b, -1), (c, d, -1), (a, c, 1), (b, d, 1)))


def move_end(count: I64, loose: I64, free: I64, rng: np.random.Generator) -> I64 | None:
    """Give one end of a link to a host that has a free interface; (n,) ``free``."""
    spare = np.flatnonzero(free > 0)
    ends = np.argwhere(loose > 0)
    if not len(spare) or not len(ends):
        return None
    a, b = (int(host) for host in ends[int(rng.integers(len(ends)))])
    others = spare[(spare != a) & (spare != b)]
    if not len(others):
        return None
    return _changed(count, ((a, b, -1), (a, int(others[int(rng.integers(len(others)))]), 1)))


def add_link(count: I64, free: I64, rng: np.random.Generator) -> I64 | None:
    """Join two hosts that have free interfaces; (n,) ``free``."""
    spare = np.flatnonzero(free > 0)
    if len(spare) < 2:
        return None
    a, b = (int(host) for host in rng.choice(spare, 2, replace=False))
    return _changed(count, ((a, b, 1),))


def steps_of(n: int, rings: Mapping[int, Sequence[Sequence[int]]]) -> Steps:
    """Return the steps of the rings that have links of their own: those of one hop, each named with its reverse."""
    own = {g: walks for g, walks in rings.items() if all(len(ring) == 1 for ring in walks)}
    return {g: [min(ring[0], n - ring[0]) for ring in walks[::2]] for g, walks in own.items()}


def change_steps(n: int, steps: Steps, most: int, rng: np.random.Generator) -> Steps | None:
    """Give a ring another step, take one away, or add one, for a group size of its own or another.

    One ring over all hosts always stays: it keeps them connected.

    Args:
        n: hosts.
        steps: of the rings that have links of their own.
        most: rings that the interfaces allow.
        rng: draws.
    """
    after = {g: list(own) for g, own in steps.items()}
    total = sum(map(len, after.values()))
    loose = [(g, i) for g, own in after.items() for i in range(len(own)) if g != n or len(own) > 1]
    kinds = ["replace", *(["drop"] if loose else []), *(["add"] if total < most else []), *(["shift"] if loose else [])]
    kind = kinds[int(rng.integers(len(kinds)))]
    if kind in ("drop", "shift"):
        g, i = loose[int(rng.integers(len(loose)))]
        del after[g][i]
    if kind in ("add", "shift"):
        sizes = group_sizes(n)
        g = sizes[int(rng.integers(len(sizes)))]
        after.setdefault(g, []).append(_step(n, g, rng))
    if kind == "replace":
        all_of_them = [(g, i) for g, own in after.items() for i in range(len(own))]
        g, i = all_of_them[int(rng.integers(len(all_of_them)))]
        after[g][i] = _step(n, g, rng)
    after = {g: sorted(own) for g, own in sorted(after.items()) if own}
    return None if after == {g: sorted(own) for g, own in sorted(steps.items())} else after


def _step(n: int, g: int, rng: np.random.Generator) -> int:
    """Draw a step, the smaller one of a ring and its reverse, evenly over their logarithms."""
    steps = [step for step in ring_steps(n, g) if 2 * step <= n]
    weight = np.diff(np.log([*steps, n / 2 + 1]))
    return steps[int(rng.choice(len(steps), p=weight / weight.sum()))]


def _changed(count: I64, changes: Sequence[tuple[int, int, int]]) -> I64:
    after = count.copy()
    for a, b, change in changes:
        after[a, b] += change
        after[b, a] += change
    return after
