"""Coin change modulo n: rings for group sizes that got no links of their own.

The rings that were built give every host links of the same few steps, the coins.  A ring of any other step
p is walked by changing p into coins: as few hops as possible, since each hop uses a link (TopoOpt, NSDI'23,
section 4.3).  On such a circulant graph one table of residues serves all sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["change", "coin_table", "multi_hop_rings"]


def coin_table(n: int, coins: Sequence[int]) -> list[int]:
    """Return, for every residue modulo ``n``, the least number of coins that make it; -1 where none do.

    Breadth-first search over residues from 0, O(n coins).
    """
    table = [-1] * n
    table[0] = 0
    level = [0]
    while level:
        following = []
        for residue in level:
            for coin in coins:
                target = (residue + coin) % n
                if table[target] < 0:
                    table[target] = table[residue] + 1
                    following.append(target)
        level = following
    return table


def change(n: int, table: Sequence[int], residue: int, load: Mapping[int, float]) -> tuple[int, ...]:
    """Make ``residue`` of as few coins as possible, preferring those with the least load at each step.

    Args:
        n: modulus.
        table: of `coin_table`.
        residue: what to make; its entry in the table is not negative.
        load: coin -> load that it carries so far; a coin that is used here counts 1 more.

    Returns:
        The coins in the order in which they are walked, ascending.
    """
    used = dict.fromkeys(load, 0)
    walked: list[int] = []
    while residue:
        fitting = [c for c in load if table[(residue - c) % n] == table[residue] - 1]
        coin = min(fitting, key=lambda c: (load[c] + used[c], c))
        used[coin] += 1
        walked.append(coin)
        residue = (residue - coin) % n
    return tuple(sorted(walked))


def multi_hop_rings(
    n: int, steps: Sequence[int], coins: Mapping[int, int], *, several: bool
) -> tuple[tuple[int, ...], ...]:
    """Return rings over a group whose steps have no links, each followed by its reverse where that exists.

    Args:
        n: hosts.
        steps: steps that visit all members of the group.
        coins: step -> how many links of this step leave every host.
        several: add rings of the same length as long as that lowers the busiest link's share of the bytes
            and there are fewer rings than links; otherwise one ring (and its reverse), as FlexNet does.
    """
    table = coin_table(n, list(coins))
    length = min(table[step] for step in steps)
    candidates = [step for step in steps if table[step] == length]
    two_way = all((n - coin) % n in coins for coin in coins)
    load = dict.fromkeys(coins, 0.0)
    rings: list[tuple[int, ...]] = []
    busiest = float("inf")
    while True:
        best: tuple[float, tuple[int, ...], dict[int, float]] | None = None
        for step in candidates:
            ring = change(n, table, step, {c: load[c] / coins[c] for c in coins})
            after = dict(load)
            for hop in ring:
                after[hop] += 1
                if two_way:
                    after[n - hop] += 1
            count = len(rings) + (2 if two_way else 1)
            worst = max(after[c] / coins[c] for c in coins) / count
            if best is None or worst < best[0] - 1e-12:
                best = (worst, ring, after)
        assert best is not None
        if best[0] >= busiest - 1e-12:
            return tuple(rings)
        busiest, ring, load = best
        rings.append(ring)
        if two_way:
            rings.append(tuple(n - hop for hop in ring))
        if not several or len(rings) >= sum(coins.values()):
            return tuple(rings)
