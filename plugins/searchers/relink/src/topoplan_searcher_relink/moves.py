"""Small changes of a wiring: pure functions of the wiring and a random generator.

Two-way links are counts in a symmetric matrix (n, n).  A move returns the new matrix, or None if the wiring has no such
move.  A move never uses more interfaces than a host has.
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
    """Return an (n, n) matrix: 1 for each link that a ring uses in either direction.  Moves must not remove these."""
    ring_links = np.zeros((n, n), dtype=np.int64)
    hosts = np.arange(n)
    for hop in sorted({hop for directions in rings.values() for ring in directions for hop in ring}):
        ring_links[hosts, (hosts + hop) % n] = ring_links[(hosts + hop) % n, hosts] = 1
    return ring_links


def cross_links(count: I64, movable: I64, savings: F64, rng: np.random.Generator) -> I64 | None:
    """Replace two links a-b and c-d by a-c and b-d.

    Args:
        count: (n, n) links.
        movable: (n, n) those of them that a move may remove.
        savings: (n, n) weights, not negative; the pair a, c is drawn in proportion to them, or uniformly if all are 0.
        rng: random generator.
    """
    hosts = np.flatnonzero(movable.any(axis=1))
    weights = np.triu(savings + savings.T, 1)[np.ix_(hosts, hosts)]
    if len(hosts) < 4:
        return None
    if weights.any():
        index = int(rng.choice(weights.size, p=(weights / weights.sum()).ravel()))
        a, c = int(hosts[index // len(hosts)]), int(hosts[index % len(hosts)])
    else:
        a, c = (int(host) for host in rng.choice(hosts, 2, replace=False))
    ends = []
    for host, partner in ((a, c), (c, a)):
        neighbours = [int(far) for far in np.flatnonzero(movable[host]) if far != partner and far not in ends]
        if not neighbours:
            return None
        ends.append(neighbours[int(rng.integers(len(neighbours)))])
    b, d = ends
    return _apply(count, ((a, b, -1), (c, d, -1), (a, c, 1), (b, d, 1)))


def move_end(count: I64, movable: I64, free: I64, rng: np.random.Generator) -> I64 | None:
    """Give one end of a link to a host that has a free interface; (n,) ``free``."""
    spare = np.flatnonzero(free > 0)
    ends = np.argwhere(movable > 0)
    if not len(spare) or not len(ends):
        return None
    a, b = (int(host) for host in ends[int(rng.integers(len(ends)))])
    targets = spare[(spare != a) & (spare != b)]
    if not len(targets):
        return None
    return _apply(count, ((a, b, -1), (a, int(targets[int(rng.integers(len(targets)))]), 1)))


def add_link(count: I64, free: I64, rng: np.random.Generator) -> I64 | None:
    """Join two hosts that have free interfaces; (n,) ``free``."""
    spare = np.flatnonzero(free > 0)
    if len(spare) < 2:
        return None
    a, b = (int(host) for host in rng.choice(spare, 2, replace=False))
    return _apply(count, ((a, b, 1),))


def steps_of(n: int, rings: Mapping[int, Sequence[Sequence[int]]]) -> Steps:
    """Return the steps of the rings with their own links (rings of one hop); a step stands for its reverse, too."""
    direct_rings = {g: directions for g, directions in rings.items() if all(len(ring) == 1 for ring in directions)}
    return {g: [min(ring[0], n - ring[0]) for ring in directions[::2]] for g, directions in direct_rings.items()}


def change_steps(n: int, steps: Steps, most: int, rng: np.random.Generator) -> Steps | None:
    """Replace the step of a ring, remove a ring, add a ring, or move a ring to another group size.

    One ring over all hosts always remains, because it keeps them connected.

    Args:
        n: hosts.
        steps: of the rings with their own links.
        most: number of rings that the interfaces allow.
        rng: random generator.
    """
    result = {g: list(offsets) for g, offsets in steps.items()}
    total = sum(map(len, result.values()))
    removable = [(g, i) for g, offsets in result.items() for i in range(len(offsets)) if g != n or len(offsets) > 1]
    kinds = [
        "replace",
        *(["drop"] if removable else []),
        *(["add"] if total < most else []),
        *(["shift"] if removable else []),
    ]
    kind = kinds[int(rng.integers(len(kinds)))]
    if kind in ("drop", "shift"):
        g, i = removable[int(rng.integers(len(removable)))]
        del result[g][i]
    if kind in ("add", "shift"):
        sizes = group_sizes(n)
        g = sizes[int(rng.integers(len(sizes)))]
        result.setdefault(g, []).append(_step(n, g, rng))
    if kind == "replace":
        positions = [(g, i) for g, offsets in result.items() for i in range(len(offsets))]
        g, i = positions[int(rng.integers(len(positions)))]
        result[g][i] = _step(n, g, rng)
    result = {g: sorted(offsets) for g, offsets in sorted(result.items()) if offsets}
    return None if result == {g: sorted(offsets) for g, offsets in sorted(steps.items())} else result


def _step(n: int, g: int, rng: np.random.Generator) -> int:
    """Draw a step log-uniformly; of a ring and its reverse, only the smaller step is drawn."""
    steps = [step for step in ring_steps(n, g) if 2 * step <= n]
    weight = np.diff(np.log([*steps, n / 2 + 1]))
    return steps[int(rng.choice(len(steps), p=weight / weight.sum()))]


def _apply(count: I64, changes: Sequence[tuple[int, int, int]]) -> I64:
    result = count.copy()
    for a, b, change in changes:
        result[a, b] += change
        result[b, a] += change
    return result
