"""From traffic to wires: the whole construction of one fabric (TopoOpt, NSDI'23, section 4).

`construct` is what the topology builds and what the ``totientperm`` searcher varies.

All links are two-way, since interfaces are, with one exception: hosts with a single interface can only be
joined (beyond two of them) by wiring the transmitting side of each to the receiving side of the next, a
one-way ring.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import attrs
import numpy as np

from topoplan import Cluster, Demand, Fabric, TopoplanError
from topoplan.arrays import I64
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
    """Return how many pairs of interfaces the rules give to rings; 0 where hosts have one interface, and for greedy."""
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

    Every host stays within its interfaces, and uses all of them where the parity of their sum permits.  A
    link has the bandwidth of the slower of the two interfaces that it joins.

    The fabric has rings for every size of evenly spaced groups, by links of their own or by several hops,
    even where direct links make a shorter way: a task graph file can name no other, so what is simulated
    here is what a packet simulator runs.

    Args:
        cluster: hosts; the one with the fewest interfaces limits the rings.
        demand: what to wire for; None for rings over all hosts only.
        rules: as published, as FlexNet does it (all interfaces to rings), or greedy (no rings at all).
        paths: equal-cost paths kept for a pair.
        rng: breaks ties among matchings.
        pairs: pairs of interfaces for rings, 1 .. fewest // 2, instead of what the rules say.
        detours: direct links go by bytes times the hops that they save, instead of by bytes alone.
        steps: group size -> steps of its rings, instead of what the rules choose; they must keep within
            ``pairs`` together and connect all hosts.  For ``paper`` only.

    Raises:
        TopoplanError: ``released`` with an odd or unequal number of interfaces.
    """
    n, degree = cluster.n_hosts, int(cluster.interfaces.min())
    if rules == "released" and (degree % 2 or (cluster.interfaces != degree).any()):
        raise TopoplanError(
            f"topology topoopt: the released rules need the same even number of interfaces at every host, "
            f"not {sorted(set(cluster.interfaces.tolist()))} (use rules=paper)"
        )
    free = cluster.interfaces.astype(np.int64)
    count = np.zeros((n, n), dtype=np.int64)
    load = traffic(demand, n)
    one_way = np.zeros((n, n), dtype=np.int64)
    rings: Rings = {}
    if n > 2 and degree == 1:
        hosts = np.arange(n)
        one_way[hosts, (hosts + 1) % n] = 1
        free -= 1
        rings = _all_rings(n, {n: [1]}, two_way=False, several=False)
    elif rules == "greedy":
        pass
    elif n > 1 and degree > 1:
        chosen = _chosen(load, n, degree, rules, pairs) if steps is None else {g: list(c) for g, c in steps.items()}
        for step in (step for steps in chosen.values() for step in steps):
            _add_ring(count, free, step)
        rings = _all_rings(n, chosen, two_way=True, several=rules == "paper")
    elif n == 2:
        rings = {2: ((1,),)}
    fixed = count.copy()
    if rules == "paper":
        add_matchings(count, free, load.matrix, rng, detours=detours)
        fill_free(count, free, fixed, load.matrix, rng)
    elif rules == "greedy":
        exchanged = neighbour_bytes(demand, n)
        add_heaviest(count, free, exchanged)
        fill_free(count, free, fixed, exchanged, rng)
        if not one_way.any() and not join_components(count, free, exchanged):
            raise TopoplanError("topology topoopt: the interfaces cannot connect all hosts (use rules=paper)")
    return fabric_of(cluster, count + one_way, rings, paths)


def rebalanced(fabric: Fabric, demand: Demand) -> Fabric:
    """Return the same wires with load-aware routes for the point-to-point traffic of a demand."""
    plain = fabric if fabric.routes is None else attrs.evolve(fabric, routes=None)
    n = fabric.n_hosts
    matrix = traffic(demand, n).matrix if fabric.rings else neighbour_bytes(demand, n)
    routes = balanced_routes(plain, matrix, ring_load(plain, demand))
    return plain if routes is None else attrs.evolve(plain, routes=routes)


def _chosen(load: Traffic, n: int, degree: int, rules: Rules, pairs: int | None) -> dict[int, list[int]]:
    """Return group size -> steps of its rings, by the rules."""
    if rules == "released":
        return {g: select_released(ring_steps(n, g), c) for g, c in allot_released(load, n, degree // 2)}
    n_pairs = paper_pairs(load, degree) if pairs is None else pairs
    return {g: select_paper(ring_steps(n, g), c) for g, c in allot_paper(load, n, n_pairs)}


def _add_ring(count: I64, free: I64, step: int) -> None:
    """Link every host both ways with the host ``step`` further; all rings of this step at once."""
    n = len(count)
    hosts = np.arange(n)
    count[hosts, (hosts + step) % n] += 1
    count[(hosts + step) % n, hosts] += 1
    free -= 2


def _all_rings(n: int, chosen: dict[int, list[int]], *, two_way: bool, several: bool) -> Rings:
    """Return the rings of every size of evenly spaced groups: of its own links, else by coin change.

    Args:
        n: hosts.
        chosen: group size -> steps of its own rings.
        two_way: every ring has a reverse.
        several: balance multi-hop rings over all links.
    """
    coins: dict[int, int] = {}
    for steps in chosen.values():
        for step in steps:
            for coin in {step, n - step} if two_way else {step}:
                coins[coin] = coins.get(coin, 0) + (2 if two_way and 2 * step == n else 1)
    rings: Rings = {}
    for g in group_sizes(n):
        if g in chosen:
            offsets = ((step, n - step) if two_way else (step,) for step in _reduced(chosen[g]))
            rings[g] = tuple((hop,) for pair in offsets for hop in pair)
        else:
            rings[g] = multi_hop_rings(n, ring_steps(n, g), coins, several=several)
    return rings


def _reduced(steps: Iterable[int]) -> list[int]:
    """Drop repetitions that all steps share: rings of equal shares need be named once."""
    listed = list(steps)
    names = sorted(set(listed))
    times = [listed.count(step) for step in names]
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
