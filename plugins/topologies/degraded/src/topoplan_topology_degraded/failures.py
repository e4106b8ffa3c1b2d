"""What fails of a fabric, and the fabric without it.

A cable is one of the links that a row stands for, in both directions.  Data flow: `Failures` says what fails; `without`
draws what it does not name, counts the cables that are left of each row, and leaves out nodes, routes and rings that
are gone.
"""

from __future__ import annotations

import attrs
import numpy as np
from numpy.typing import NDArray

from topoplan import Fabric, LinkKind, TopoplanError
from topoplan.arrays import I64
from topoplan.errors import nearest, shown
from topoplan.model.fabric import Routes

__all__ = ["Failures", "without"]

Bools = NDArray[np.bool_]


@attrs.frozen(kw_only=True)
class Failures:
    """What fails: numbers, or shares of what there is (a float below or equal to 1).

    Attributes:
        links: cables that end at no NIC of a switched network, else any.
        nics: cables at hosts.
        hosts: drawn of all.
        names: nodes, and cables as ``node~node``.
    """

    links: int | float = 0
    nics: int | float = 0
    hosts: int = 0
    names: tuple[str, ...] = ()


def without(fabric: Fabric, failures: Failures, rng: np.random.Generator) -> Fabric:
    """Return what is left of a fabric.

    Raises:
        TopoplanError: a name is unknown, or more is to fail than there is.
    """
    is_gone = np.zeros(fabric.n_nodes, dtype=bool)
    pairs = np.sort(np.stack([fabric.link_src, fabric.link_dst], axis=1), axis=1).astype(np.int64)
    ends, row = np.unique(pairs, axis=0, return_inverse=True)
    cables = np.zeros(len(ends), dtype=np.int64)
    np.maximum.at(cables, row.ravel(), fabric.link_count)
    inside = np.zeros(len(ends), dtype=bool)
    inside[row.ravel()] = fabric.link_kind == LinkKind.INSIDE
    lost_cables = np.zeros(len(ends), dtype=np.int64)
    for name in failures.names:
        _fail_named(fabric, name, ends, cables, lost_cables, is_gone)
    if failures.hosts:
        hosts_left = np.flatnonzero(~is_gone[: fabric.n_hosts])
        if failures.hosts >= len(hosts_left):
            raise TopoplanError(f"topology degraded: hosts: {failures.hosts} fail, but there are {len(hosts_left)}")
        named = int(is_gone[: fabric.n_hosts].sum())
        is_gone[rng.choice(hosts_left, max(failures.hosts - named, 0), replace=False)] = True
    if int(is_gone[: fabric.n_hosts].sum()) != failures.hosts:
        raise TopoplanError(
            f"topology degraded: {int(is_gone[: fabric.n_hosts].sum())} hosts fail by name, but hosts={failures.hosts} "
            "(a network has the hosts of the cluster and those that fail: say how many)"
        )
    at_host = (ends < fabric.n_hosts).any(axis=1)
    switched = not (ends < fabric.n_hosts).all(axis=1).any()
    stays = ~is_gone[ends].any(axis=1) & ~inside
    _draw(failures.nics, "nics", cables, lost_cables, at_host & stays, rng)
    _draw(failures.links, "links", cables, lost_cables, (~at_host if switched else at_host) & stays, rng)
    return _left(fabric, is_gone, (cables - lost_cables)[row.ravel()], cables[row.ravel()])


def _fail_named(fabric: Fabric, name: str, ends: I64, cables: I64, lost_cables: I64, is_gone: Bools) -> None:
    """Take away a node, or one cable between two nodes."""
    names = [fabric.node_name(node) for node in range(fabric.n_nodes)]
    nodes = []
    for part in name.split("~"):
        if part.strip() not in names:
            raise TopoplanError(
                f"topology degraded: failed: no node {shown(part.strip())}{nearest(part.strip(), names)}"
            )
        nodes.append(names.index(part.strip()))
    if len(nodes) == 1:
        is_gone[nodes[0]] = True
        return
    places = np.flatnonzero((ends == sorted(nodes)).all(axis=1)).tolist() if len(nodes) == 2 else []
    if not len(places) or lost_cables[places[0]] >= cables[places[0]]:
        raise TopoplanError(f"topology degraded: failed: no cable {shown(name)} (names of two nodes that are joined)")
    lost_cables[places[0]] += 1


def _draw(
    asked: int | float, what: str, cables: I64, lost_cables: I64, may_fail: Bools, rng: np.random.Generator
) -> None:
    """Draw cables that fail, each with the same chance, of those that are left."""
    if not asked:
        return
    cables_left = np.where(may_fail, cables - lost_cables, 0)
    total = int(cables_left.sum())
    count = round(asked * total) if isinstance(asked, float) else asked
    if count > total:
        raise TopoplanError(f"topology degraded: {what}: {count} fail, but there are {total}")
    failing = rng.choice(total, count, replace=False)
    lost_cables += np.bincount(np.searchsorted(np.cumsum(cables_left), failing, side="right"), minlength=len(cables))


def _left(fabric: Fabric, is_gone: Bools, cables_left: I64, cables: I64) -> Fabric:
    """Return the fabric with ``cables_left`` of the ``cables`` of each row, without nodes that are gone."""
    keep = (cables_left > 0) & ~is_gone[fabric.link_src] & ~is_gone[fabric.link_dst]
    kept_nodes = np.flatnonzero(~is_gone)
    number = np.full(fabric.n_nodes, -1, dtype=np.int64)
    number[kept_nodes] = np.arange(len(kept_nodes))
    share = cables_left[keep] / cables[keep]
    n_hosts = int((kept_nodes < fabric.n_hosts).sum())
    names = tuple(fabric.node_name(node) for node in kept_nodes.tolist()) if fabric.node_names or is_gone.any() else ()
    fewer_hosts = n_hosts < fabric.n_hosts
    cycles = [
        [int(number[host]) for host in cycle]
        for cycle in fabric.cycles
        if not is_gone[list(cycle)].any() and _has(fabric, keep, np.array(cycle), np.roll(cycle, -1))
    ]
    hosts = np.arange(fabric.n_hosts)
    rings = {
        size: tuple(
            each for each in rings if all(_has(fabric, keep, hosts, (hosts + jump) % len(hosts)) for jump in each)
        )
        for size, rings in ({} if fewer_hosts else fabric.rings).items()
    }
    rings = {size: each for size, each in rings.items() if each}
    looks = fabric.rings_along_links or bool((fabric.cycles and not cycles) or (fabric.rings and not rings))
    return Fabric(
        name=f"{fabric.name} (degraded)",
        n_hosts=n_hosts,
        n_switches=len(kept_nodes) - n_hosts,
        link_src=number[fabric.link_src[keep]],
        link_dst=number[fabric.link_dst[keep]],
        link_count=np.maximum(np.rint(fabric.link_count[keep] * share), 1),
        link_bandwidth=fabric.link_bandwidth[keep] * share,
        link_latency=fabric.link_latency[keep],
        link_kind=fabric.link_kind[keep],
        routes=None if fabric.routes is None else _routes(fabric.routes, keep, number),
        max_paths=fabric.max_paths,
        rings=rings,
        cycles=cycles,
        rings_along_links=looks,
        switching=fabric.switching,
        node_names=names,
    )


def _has(fabric: Fabric, keep: Bools, source: I64, target: I64) -> bool:
    """Whether all these links were there and are left."""
    rows = fabric.link_rows(source, target)
    return bool((rows >= 0).all() and keep[rows].all())


def _routes(routes: Routes, keep: Bools, number: I64) -> Routes | None:
    """Return the paths that are left, with the shares of those that are gone; shortest paths for pairs without any."""
    lengths = np.diff(routes.path_ptr)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    whole = np.bincount(owner, ~keep[routes.links], minlength=len(lengths)) == 0
    pair = np.repeat(np.arange(len(routes.pairs)), np.diff(routes.pair_ptr))
    weight = np.where(whole, routes.weight, 0.0)
    total = np.bincount(pair, weight, minlength=len(routes.pairs))
    stays = (total > 0) & (number[routes.pairs] >= 0).all(axis=1)
    path = whole & stays[pair]
    if not stays.any():
        return None
    new_row = np.cumsum(keep) - 1
    return Routes(
        pairs=number[routes.pairs[stays]],
        pair_ptr=np.concatenate([[0], np.cumsum(np.bincount(pair[path], minlength=len(routes.pairs))[stays])]),
        path_ptr=np.concatenate([[0], np.cumsum(lengths[path])]),
        links=new_row[routes.links[path[owner]]],
        weight=(weight / np.where(total[pair] > 0, total[pair], 1.0))[path],
    )
