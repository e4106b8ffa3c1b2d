"""The construction of a fabric from traffic (TopoOpt, NSDI'23, section 4).

The topology ``topoopt`` calls `construct`, and the searcher ``totientperm`` calls it with other splits.

All links are two-way, because interfaces are, with one exception.  More than two hosts with a single interface can be
connected only by a one-way ring: the transmitting side of each interface is joined to the receiving side of the next.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import attrs
import numpy as np

from topoplan import Cluster, Demand, Fabric, TopoplanError
from topoplan.arrays import F64, I64
from topoplan_directconnect.balance import balanced_routes, ring_load
from topoplan_directconnect.coins import multi_hop_rings
from topoplan_directconnect.greedy import add_heaviest, join_components
from topoplan_directconnect.matching import add_matchings, fill_free
from topoplan_directconnect.permutations import group_sizes, ring_steps, select_paper, select_released
from topoplan_directconnect.split import allot_paper, allot_released, paper_pairs
from topoplan_directconnect.traffic import Traffic, neighbour_bytes, traffic

__all__ = ["Rings", "construct", "fabric_of", "rebalanced", "rule_pairs"]

Rules = Literal["paper", "released", "greedy"]
Rings = dict[int, tuple[tuple[int, ...], ...]]


def rule_pairs(cluster: Cluster, demand: Demand | None, rules: Rules) -> int:
    """Return the number of pairs of interfaces for rings by the rules; 0 for greedy, or if hosts have one interface."""
    degree = int(cluster.interfaces.min())
    if rules == "greedy":
        return 0
    if rules == "released" or degree < 2:
        return degree // 2
    return paper_pairs(traffic(demand, cluster.n_hosts), degree)


def construct(
    cluster: Cluster,
    demand: Demand | None,
    *,
    rules: Rules,
    paths: int,
    rng: np.random.Generator,
    pairs: int | None = None,
    detours: bool = False,
    steps: Mapping[int, Sequence[int]] | None = None,
) -> Fabric:
    """Wire a cluster for a demand.

    Every host uses at most its interfaces, and all of them if the parity of their sum permits.  A link has the
    bandwidth of the slower of its two interfaces.

    The fabric has rings for every size of evenly spaced groups, on their own links or by several hops, even if direct
    links provide a shorter path.  A task graph file cannot name other rings, so the simulated rings are those of a
    packet simulator.

    Args:
        cluster: hosts; the one with the fewest interfaces limits the rings.
        demand: the demand; None for rings over all hosts only.
        rules: as published, as in FlexNet (all interfaces for rings), or greedy (no rings).
        paths: number of equal-cost paths for a pair.
        rng: breaks ties among matchings.
        pairs: pairs of interfaces for rings, 1 .. fewest // 2, instead of the number by the rules.
        detours: direct links are selected by bytes times saved hops, instead of by bytes alone.
        steps: group size -> steps of its rings, instead of those by the rules; in total at most ``pairs``, and they
            must connect all hosts.  For ``paper`` only.

    Raises:
        TopoplanError: ``released`` with an odd or unequal number of interfaces.
    """
    n, degree = cluster.n_hosts, int(cluster.interfaces.min())
    if rules == "released":
        _check_released(cluster)
    free = cluster.interfaces.astype(np.int64)
    count = np.zeros((n, n), dtype=np.int64)
    one_way = np.zeros((n, n), dtype=np.int64)
    load = traffic(demand, n)
    rings: Rings = {}
    if n > 2 and degree == 1:
        one_way[np.arange(n), np.arange(1, n + 1) % n] = 1
        free -= 1
        rings = _all_rings(n, {n: [1]}, two_way=False, several=False)
    elif rules != "greedy" and n > 1 and degree > 1:
        ring_steps_of = _select_steps(load, n, degree, rules, pairs) if steps is None else steps
        for step in (step for steps in ring_steps_of.values() for step in steps):
            _add_ring(count, free, step)
        rings = _all_rings(n, ring_steps_of, two_way=True, several=rules == "paper")
    elif rules != "greedy" and n == 2:
        rings = {2: ((1,),)}
    if rules == "paper":
        ring_links = count.copy()
        add_matchings(count, free, load.matrix, rng, detours=detours)
        fill_free(count, free, ring_links, load.matrix, rng)
    elif rules == "greedy":
        _add_greedily(count, free, neighbour_bytes(demand, n), rng, connected=bool(one_way.any()))
    return fabric_of(cluster, count + one_way, rings, paths)


def _add_greedily(count: I64, free: I64, exchanged: F64, rng: np.random.Generator, *, connected: bool) -> None:
    """Add direct links by bytes, and join all hosts unless they are ``connected`` already.

    Raises:
        TopoplanError: the interfaces cannot join them.
    """
    ring_links = count.copy()
    add_heaviest(count, free, exchanged)
    fill_free(count, free, ring_links, exchanged, rng)
    if not connected and not join_components(count, free, exchanged):
        raise TopoplanError("topology topoopt: the interfaces cannot connect all hosts (use rules=paper)")


def _check_released(cluster: Cluster) -> None:
    """Raise `TopoplanError` unless all hosts have the same even number of interfaces."""
    degree = int(cluster.interfaces.min())
    if degree % 2 or (cluster.interfaces != degree).any():
        raise TopoplanError(
            f"topology topoopt: the released rules need the same even number of interfaces at every host, "
            f"not {sorted(set(cluster.interfaces.tolist()))} (use rules=paper)"
        )


def rebalanced(fabric: Fabric, demand: Demand) -> Fabric:
    """Return the same links with load-aware routes for the point-to-point traffic of a demand."""
    plain = fabric if fabric.routes is None else attrs.evolve(fabric, routes=None)
    n = fabric.n_hosts
    matrix = traffic(demand, n).matrix if fabric.rings else neighbour_bytes(demand, n)
    routes = balanced_routes(plain, matrix, ring_load(plain, demand))
    return plain if routes is None else attrs.evolve(plain, routes=routes)


def _select_steps(load: Traffic, n: int, degree: int, rules: Rules, pairs: int | None) -> Mapping[int, Sequence[int]]:
    """Return group size -> steps of its rings, by the rules."""
    if rules == "released":
        return {g: select_released(ring_steps(n, g), c) for g, c in allot_released(load, n, degree // 2)}
    n_pairs = paper_pairs(load, degree) if pairs is None else pairs
    return {g: select_paper(ring_steps(n, g), c) for g, c in allot_paper(load, n, n_pairs)}


def _add_ring(count: I64, free: I64, step: int) -> None:
    """Add a two-way link from every host to the host ``step`` further: all rings of this step."""
    n = len(count)
    hosts = np.arange(n)
    count[hosts, (hosts + step) % n] += 1
    count[(hosts + step) % n, hosts] += 1
    free -= 2


def _all_rings(n: int, steps_by_size: Mapping[int, Sequence[int]], *, two_way: bool, several: bool) -> Rings:
    """Return the rings of every size of evenly spaced groups: on its own links, else by coin change.

    Args:
        n: hosts.
        steps_by_size: group size -> steps of the rings with their own links.
        two_way: every ring has a reverse.
        several: balance multi-hop rings over all links.
    """
    coins: dict[int, int] = {}
    for steps in steps_by_size.values():
        for step in steps:
            for coin in {step, n - step} if two_way else {step}:
                coins[coin] = coins.get(coin, 0) + (2 if two_way and 2 * step == n else 1)
    rings: Rings = {}
    for g in group_sizes(n):
        if g in steps_by_size:
            offsets = ((step, n - step) if two_way else (step,) for step in _drop_common_repetitions(steps_by_size[g]))
            rings[g] = tuple((hop,) for pair in offsets for hop in pair)
        else:
            rings[g] = _rings_by_hops(n, g, tuple(coins.items()), several)
    return rings


@functools.lru_cache(maxsize=4096)
def _rings_by_hops(n: int, g: int, coins: tuple[tuple[int, int], ...], several: bool) -> tuple[tuple[int, ...], ...]:
    """Return `multi_hop_rings` of groups of ``g``; a search asks for the same few sets of coins again and again."""
    return multi_hop_rings(n, ring_steps(n, g), dict(coins), several=several)


def _drop_common_repetitions(steps: Iterable[int]) -> list[int]:
    """Divide the multiplicities of all steps by their common divisor: rings with equal shares are listed once."""
    step_list = list(steps)
    names = sorted(set(step_list))
    times = [step_list.count(step) for step in names]
    common = math.gcd(*times)
    return [step for step, count in zip(names, times, strict=True) for _ in range(count // common)]


def fabric_of(cluster: Cluster, count: I64, rings: Rings, paths: int) -> Fabric:
    """Turn (n, n) counts of directed links into a fabric; a link is as fast as the slower of its two interfaces."""
    src, dst = np.nonzero(count)
    parallel = count[src, dst]
    speed = np.minimum(cluster.interface_bandwidth[src], cluster.interface_bandwidth[dst])
    return Fabric.from_links(
        name="topoopt",
        n_hosts=cluster.n_hosts,
        links=np.repeat(np.stack([src, dst], axis=1), parallel, axis=0),
        bandwidth=np.repeat(speed, parallel),
        latency=cluster.latency,
        max_paths=paths,
        rings=rings,
    )
