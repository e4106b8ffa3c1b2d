"""Coin change modulo n: rings for group sizes without their own links.

The existing rings give every host links of the same few steps, the coins.  A ring of another step p uses several hops:
p is changed into as few coins as possible, because each hop uses a link (TopoOpt, NSDI'23, section 4.3).  The graph is
circulant, so one table of residues is valid for all sources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

__all__ = ["change", "coin_table", "multi_hop_rings"]


def coin_table(n: int, coins: Sequence[int]) -> list[int]:
    """Return, for every residue modulo ``n``, the least number of coins with this sum; -1 if there are none.

    Breadth-first search over residues from 0, O(n coins).
    """
    table = [-1] * n
    table[0] = 0
    level = [0]
    while level:
        next_level = []
        for residue in level:
            for coin in coins:
                target = (residue + coin) % n
                if table[target] < 0:
                    table[target] = table[residue] + 1
                    next_level.append(target)
        level = next_level
    return table


def change(n: int, table: Sequence[int], residue: int, load: Mapping[int, float]) -> tuple[int, ...]:
    """Change ``residue`` into as few coins as possible, at each step with the least load.

    Args:
        n: modulus.
        table: of `coin_table`.
        residue: the sum; its entry in the table is not negative.
        load: coin -> its load so far; each use here counts 1.

    Returns:
        The coins in the order of the hops, ascending.
    """
    uses = dict.fromkeys(load, 0)
    coins_used: list[int] = []
    while residue:
        fitting = [c for c in load if table[(residue - c) % n] == table[residue] - 1]
        coin = min(fitting, key=lambda c: (load[c] + uses[c], c))
        uses[coin] += 1
        coins_used.append(coin)
        residue = (residue - coin) % n
    return tuple(sorted(coins_used))


def multi_hop_rings(
    n: int, steps: Sequence[int], coins: Mapping[int, int], *, several: bool
) -> tuple[tuple[int, ...], ...]:
    """Return rings over a group whose steps have no links, each followed by its reverse, if that exists.

    Args:
        n: hosts.
        steps: steps that visit all members of the group.
        coins: step -> number of links of this step at every host.
        several: add rings of the same length as long as this lowers the busiest link's share of the bytes and there are
            fewer rings than links; otherwise one ring (and its reverse), as in FlexNet.
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
            new_load = dict(load)
            for hop in ring:
                new_load[hop] += 1
                if two_way:
                    new_load[n - hop] += 1
            count = len(rings) + (2 if two_way else 1)
            worst = max(new_load[c] / coins[c] for c in coins) / count
            if best is None or worst < best[0] - 1e-12:
                best = (worst, ring, new_load)
        assert best is not None
        if best[0] >= busiest - 1e-12:
            return tuple(rings)
        busiest, ring, load = best
        rings.append(ring)
        if two_way:
            rings.append(tuple(n - hop for hop in ring))
        if not several or len(rings) >= sum(coins.values()):
            return tuple(rings)
