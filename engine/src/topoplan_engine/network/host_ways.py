"""Ways of a group's rings through a host: the order of its devices, from one that owns a NIC to one of another NIC.

Zigzags through k devices, k even, one from each of them, share no link of a full mesh: they are Walecki's paths, each
in both directions.  As many rings as devices take one each.  Fewer rings, on hosts with fewer NICs than devices, must
begin and end at devices of NICs: two of these devices stand half-way round from each other, so that a zigzag leads from
one to the other, and the same one back.
"""

from __future__ import annotations

import numpy as np

from topoplan.arrays import I64, i64

__all__ = ["ways_through", "zigzag"]


def zigzag(count: int, first: int) -> list[int]:
    """Return ``first, first+1, first-1, first+2, ...`` modulo ``count``: of an even count it ends half-way round.

    >>> zigzag(8, 0), zigzag(8, 4)[-1]
    ([0, 1, 7, 2, 6, 3, 5, 4], 0)
    """
    return [(first + (step + 1) // 2 * (1 if step % 2 else -1)) % count for step in range(count)]


def ways_through(nics: I64, count: int) -> list[I64]:
    """Return ways through all devices of a host that begin at NICs of their own and end at NICs of their own.

    Of an even count, and an even number of devices, they share no link of a full mesh; of others one may carry two.

    Args:
        nics: (devices,) of each.
        count: ways.

    Returns:
        For each way the devices in its order; nothing where there are fewer NICs.

    >>> [way.tolist() for way in ways_through(np.array([0, 1, 0, 1]), 2)]  # in at one NIC and out at the other one
    [[0, 2, 3, 1], [1, 3, 2, 0]]
    """
    devices, half = len(nics), count // 2
    gates = np.unique(nics, return_index=True)[1]
    if len(gates) < count:
        return []
    round_table = np.full(devices, -1, dtype=np.int64)
    round_table[:half], round_table[devices // 2 : devices // 2 + half] = gates[:half], gates[half : 2 * half]
    round_table[round_table < 0] = np.setdiff1d(np.arange(devices), gates[: 2 * half])
    place = np.argsort(round_table)
    ways = []
    for number in range(count):
        entrance, exit_gate = gates[number], gates[(number + half) % count]
        way = round_table[zigzag(devices, int(place[entrance]))]
        ways.append(i64(np.append(way[way != exit_gate], exit_gate)))
    return ways
