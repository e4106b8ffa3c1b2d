"""Valiant routes: by way of a third group, so that no demand overloads the links between two groups.

Sources: Valiant, SIAM J. Comput. 11, 1982; on a dragonfly: Kim et al., ISCA 2008, section 4.2.

A message goes to its own group's router with a link to the third group, over that link, inside the third group to the
router with a link to the group of its target, over that one, and to its target.  Each third group gets an equal share.
Pairs in one group keep their shortest paths.
"""

from __future__ import annotations

import numpy as np

from topoplan import Fabric, TopoplanError
from topoplan.arrays import I64
from topoplan.model.fabric import Routes

__all__ = ["valiant_routes"]

#: Links of all paths together: a gigabyte of them.
_MOST_LINKS = 1 << 27
#: Links of the longest path.
_LONGEST = 8


def valiant_routes(fabric: Fabric, switch_of_host: I64, routers: int, groups: int, most_paths: int) -> Routes:
    """Return paths of all pairs of hosts in different groups, over each third group.

    Where there are more third groups than ``most_paths``, a pair takes as many of them, at even distances.

    Args:
        fabric: hosts at routers, which are numbered group by group.
        switch_of_host: (H,) router of each host.
        routers: of a group.
        groups: three at least.
        most_paths: of a pair.

    Raises:
        TopoplanError: there are fewer than three groups, or too many paths to write them down.
    """
    if groups < 3:
        raise TopoplanError(f"topology dragonfly: routing=valiant: {groups} groups have no third one (routing=minimal)")
    hosts, n_paths = fabric.n_hosts, min(groups - 2, most_paths)
    group = switch_of_host // routers
    source, target = (ends.ravel() for ends in np.meshgrid(np.arange(hosts), np.arange(hosts), indexing="ij"))
    apart = group[source] != group[target]
    source, target = source[apart], target[apart]
    if len(source) * n_paths * _LONGEST > _MOST_LINKS:
        raise TopoplanError(
            f"topology dragonfly: routing=valiant: {len(source)} pairs of hosts with {n_paths} paths each are too many "
            f"to write down (paths={max(_MOST_LINKS // _LONGEST // len(source), 1)}, or routing=minimal)"
        )
    third = _third_groups(group[source], group[target], groups, n_paths, source + target)
    source, target = np.repeat(source, n_paths), np.repeat(target, n_paths)
    gates = _gates(fabric, routers, groups)
    pick = source + target + third
    nodes = [source, hosts + switch_of_host[source]]
    for from_group, to_group in ((group[source], third), (third, group[target])):
        which = gates.first[from_group, to_group] + pick % gates.count[from_group, to_group]
        nodes += [hosts + gates.routers[which, 0], hosts + gates.routers[which, 1]]
    nodes += [hosts + switch_of_host[target], target]
    steps = np.stack(nodes, axis=1)
    moves = steps[:, :-1] != steps[:, 1:]
    links = fabric.link_rows(steps[:, :-1][moves], steps[:, 1:][moves])
    pairs = np.stack([source, target], axis=1)[::n_paths]
    return Routes(
        pairs=pairs,
        pair_ptr=np.arange(len(pairs) + 1) * n_paths,
        path_ptr=np.concatenate([[0], np.cumsum(moves.sum(axis=1))]),
        links=links,
        weight=np.full(len(source), 1.0 / n_paths),
    )


def _third_groups(first: I64, second: I64, groups: int, n_paths: int, start: I64) -> I64:
    """(pairs * n_paths,) groups that are neither of two, at even distances from a place of each pair's own."""
    place = (start[:, None] + np.arange(n_paths) * (groups - 2) // n_paths) % (groups - 2)
    low, high = np.minimum(first, second)[:, None], np.maximum(first, second)[:, None]
    place = place + (place >= low)
    result: I64 = (place + (place >= high)).ravel()
    return result


class _Gates:
    """The links between groups, sorted by both: ``first[a, b] .. first[a, b] + count[a, b]`` are those from a to b.

    Attributes:
        routers: (k, 2) where each leaves and enters.
    """

    def __init__(self, routers: I64, first: I64, count: I64) -> None:
        self.routers, self.first, self.count = routers, first, count


def _gates(fabric: Fabric, routers: int, groups: int) -> _Gates:
    hosts = fabric.n_hosts
    ends = np.stack([fabric.link_src, fabric.link_dst], axis=1).astype(np.int64) - hosts
    ends = ends[(ends >= 0).all(axis=1)]
    ends = ends[ends[:, 0] // routers != ends[:, 1] // routers]
    key = ends[:, 0] // routers * groups + ends[:, 1] // routers
    order = np.argsort(key, kind="stable")
    first = np.searchsorted(key[order], np.arange(groups * groups)).reshape(groups, groups)
    return _Gates(ends[order], first, np.bincount(key, minlength=groups * groups).reshape(groups, groups))
