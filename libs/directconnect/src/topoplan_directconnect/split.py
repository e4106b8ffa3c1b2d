"""The division of a host's interfaces: between rings and direct links, and among the sizes of groups.

A two-way ring takes a pair of interfaces at every host.
"""

from __future__ import annotations

import math

from topoplan_directconnect.traffic import Traffic

__all__ = ["allot_paper", "allot_released", "paper_pairs"]


def paper_pairs(load: Traffic, degree: int) -> int:
    """Return the number of pairs of interfaces for rings by the published rule.

    The paper gives max(1, ceil(d AR / (AR + MP))) of d interfaces to all-reduces.  Counted in pairs for
    two-way rings: max(1, ceil(d/2 AR / (AR + MP))), and never more than floor(d/2).

    Args:
        load: AR and MP, bytes that cross the network.
        degree: interfaces of a host, at least 2.
    """
    share = math.ceil(degree / 2 * load.ring_share() - 1e-9)
    return min(degree // 2, max(1, share))


def allot_paper(load: Traffic, n: int, pairs: int) -> list[tuple[int, int]]:
    """Divide ``pairs`` rings among group sizes in proportion to their bytes, the heaviest first.

    One ring over all ``n`` hosts is reserved first, because it keeps the fabric connected.

    Returns:
        (group size, rings), the heaviest size first.
    """
    size_bytes = load.ring_bytes()
    total = sum(size_bytes.values())
    rings = {n: 1}
    remaining = pairs - 1
    for size in sorted(size_bytes, key=lambda g: (-size_bytes[g], -g)):
        share = math.ceil(pairs * size_bytes[size] / total - 1e-9) - (size == n)
        ring_pairs = max(0, min(remaining, share))
        remaining -= ring_pairs
        if ring_pairs:
            rings[size] = rings.get(size, 0) + ring_pairs
    rings[n] += remaining
    return sorted(rings.items(), key=lambda item: (-size_bytes.get(item[0], 0.0), -item[0]))


def allot_released(load: Traffic, n: int, pairs: int) -> list[tuple[int, int]]:
    """Divide ``pairs`` rings as in FlexNet (``generate_dp_topology``).

    FlexNet's ratio is inverted (total / weight), so that the heaviest size gets all rings.  If that is not the size of
    all hosts, one of these rings is replaced by a ring over all hosts.  Without any group (an error in FlexNet) all
    rings are over all hosts.

    Returns:
        (group size, rings), the heaviest size first.
    """
    weight = {size: total * (2 * size - 1) / size for size, total in load.summed.items()}
    total_bytes = sum(weight.values())
    rings: list[tuple[int, int]] = []
    pairs_used = 0
    for size in sorted(weight, key=lambda g: (-weight[g], -g)):
        count = min(max(1, math.floor(total_bytes * 2 * pairs / weight[size])), pairs - pairs_used)
        rings.append((size, count))
        pairs_used += count
        if pairs_used == pairs:
            break
    if not rings:
        return [(n, pairs)]
    if all(size != n for size, _ in rings):
        size, count = rings.pop()
        if count > 1:
            rings.append((size, count - 1))
        rings.append((n, 1))
    return rings
