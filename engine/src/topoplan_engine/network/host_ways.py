"""Ways of a group's rings through a host: the order of its devices, from one that owns a NIC to one of another NIC.

Zigzags through k devices, k even, one from each of them, share no link of a full mesh: they are Walecki's paths, each
in both directions.  As many rings as devices take one each.  Fewer rings, on hosts with fewer NICs than devices, must
begin and end at devices of NICs: two of these devices stand half-way round from each other, so that a zigzag leads from
one to the other, and the same one back.  Of an odd number of rings three go round: from one device to the second, from
that to the third, and from that to the first, over links that the zigzags leave, which a search finds.
"""

from __future__ import annotations

import itertools

import numpy as np

from topoplan.arrays import I64, i64

__all__ = ["ways_between", "ways_through", "zigzag"]

#: Devices of the largest mesh in which ways are searched for: each pair has as many as the others have orders.
_MOST_SEARCHED = 8


def zigzag(count: int, first: int) -> list[int]:
    """Return ``first, first+1, first-1, first+2, ...`` modulo ``count``: of an even count it ends half-way round.

    >>> zigzag(8, 0), zigzag(8, 4)[-1]
    ([0, 1, 7, 2, 6, 3, 5, 4], 0)
    """
    return [(first + (step + 1) // 2 * (1 if step % 2 else -1)) % count for step in range(count)]


def ways_through(nics: I64, count: int) -> list[I64]:
    """Return ways through all devices of a host that begin at NICs of their own and end at NICs of their own.

    Of an even number of devices they share no link of a full mesh, if they are even in number or the devices are eight
    at most; of others one may carry two.

    Args:
        nics: (devices,) of each.
        count: ways.

    Returns:
        For each way the devices in its order; nothing where there are fewer NICs.

    >>> [way.tolist() for way in ways_through(np.array([0, 1, 0, 1]), 2)]  # in at one NIC and out at the other one
    [[0, 2, 3, 1], [1, 3, 2, 0]]
    """
    gates = np.unique(nics, return_index=True)[1]
    return ways_between(gates[:count], len(nics)) if len(gates) >= count else []


def ways_between(gates: I64, devices: int) -> list[I64]:
    """Return a way through all devices of a host for each gate: it begins there and ends at another gate.

    Args:
        gates: devices.
        devices: how many there are.

    Returns:
        For each way the devices in its order; see `ways_through`.

    >>> [way.tolist() for way in ways_between(np.array([1, 3]), 4)]
    [[1, 0, 2, 3], [3, 2, 0, 1]]
    """
    count, half = len(gates), len(gates) // 2
    if count % 2 and count > 1 and devices % 2 == 0 and devices <= _MOST_SEARCHED:
        return _odd_ways(gates, devices)
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


def _odd_ways(gates: I64, devices: int) -> list[I64]:
    """Return ways that begin once and end once at each gate, an odd number of these, and share no link."""
    paired, three = gates[:-3], gates[-3:].tolist()
    half = len(paired) // 2
    round_table = np.full(devices, -1, dtype=np.int64)
    round_table[:half], round_table[devices // 2 : devices // 2 + half] = paired[:half], paired[half:]
    round_table[round_table < 0] = np.setdiff1d(np.arange(devices), paired)
    place = np.argsort(round_table)
    ways = [round_table[zigzag(devices, int(place[gate]))] for gate in paired.tolist()]
    links = sum(_links(way.tolist(), devices) for way in ways)
    several = [_orders(*ends, devices, links) for ends in zip(three, three[1:] + three[:1], strict=True)]
    for first, second in itertools.product(*several[:2]):
        if not first[0] & second[0]:
            for third in several[2]:
                if not third[0] & (first[0] | second[0]):
                    return [*ways, *(i64(order) for _, order in (first, second, third))]
    raise AssertionError(f"{devices} devices have no such ways from {gates.tolist()}")


def _orders(start: int, end: int, devices: int, used: int) -> list[tuple[int, list[int]]]:
    """Return the orders of all devices from one to another over links that are not used, and the links of each."""
    middle = [each for each in range(devices) if each not in (start, end)]
    orders = ([start, *order, end] for order in itertools.permutations(middle))
    return [(links, order) for order in orders if not (links := _links(order, devices)) & used]


def _links(order: list[int], devices: int) -> int:
    """Return a bit for each link on a way."""
    return sum(1 << (tail * devices + head) for tail, head in itertools.pairwise(order))
