"""How the interfaces of a host are divided: rings or direct links, and which group gets how many rings.

A two-way ring takes a pair of interfaces at every host.
"""

from __future__ import annotations

import math

from topoplan_directconnect.traffic import Traffic

__all__ = ["allot_paper", "allot_released", "paper_pairs"]


def paper_pairs(load: Traffic, degree: int) -> int:
    """Return the pairs of interfaces that rings get by the published rule.

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

    One ring over all ``n`` hosts is set aside before everything else: it keeps the fabric connected.

    Returns:
        (group size, rings), the heaviest size first.
    """
    carried = load.ring_bytes()
    total = sum(carried.values())
    rings = {n: 1}
    remaining = pairs - 1
    for size in sorted(carried, key=lambda g: (-carried[g], -g)):
        share = math.ceil(pairs * carried[size] / total - 1e-9) - (size == n)
        allotted = max(0, min(remaining, share))
        remaining -= allotted
        if allotted:
            rings[size] = rings.get(size, 0) + allotted
    rings[n] += remaining
    return sorted(rings.items(), key=lambda item: (-carried.get(item[0], 0.0), -item[0]))


def allot_released(load: Traffic, n: int, pairs: int) -> list[tuple[int, int]]:
    """Divide ``pairs`` rings as FlexNet does (``generate_dp_topology``).

    Its ratio is upside down (total / weight), so that the heaviest size takes everything; when that is not
    the size of all hosts, one ring of it is given back for a ring over all hosts.  Without any group, which
    FlexNet cannot do, all rings go over all hosts.

    Returns:
        (group size, rings), the heaviest size first.
    """
    weight = {size: total * (2 * size - 1) / size for size, total in load.summed.items()}
    everything = sum(weight.values())
    rings: list[tuple[int, int]] = []
    used = 0
    for size in sorted(weight, key=lambda g: (-weight[g], -g)):
        count = min(max(1, math.floor(everything * 2 * pairs / weight[size])), pairs - used)
        rings.append((size, count))
        used += count
        if used == pairs:
            break
    if not rings:
        return [(n, pairs)]
    if all(size != n for size, _ in rings):
        size, count = rings.pop()
        if count > 1:
            rings.append((size, count - 1))
        rings.append((n, 1))
    return rings
