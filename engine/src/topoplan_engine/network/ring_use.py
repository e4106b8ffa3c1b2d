"""Which links of a host the rings of a plan's collectives use, for results.

A host that is wired to several hosts, or to switches on which others are not, has more links than one ring enters and
leaves by: where no rings along links are known, there is one.  Its result is right for such rings, and too slow for a
library that uses all interfaces; so tables say it.  On rails and planes a group has a ring for each.

Data flow: a plan goes in; `collective_links` finds the group with most bytes, and the links on which its rings leave
hosts.
"""

from __future__ import annotations

import attrs
import numpy as np

from topoplan.arrays import I32, I64
from topoplan.model.fabric import Fabric, LinkKind
from topoplan.model.plan import Plan
from topoplan.model.taskgraph import Collective, TaskGraph, TaskKind
from topoplan_engine.distinct import distinct_values
from topoplan_engine.host_models import shares_links
from topoplan_engine.network.lanes import lanes_of
from topoplan_engine.network.rings import cycles_of, rings_of
from topoplan_engine.network.routing import paths
from topoplan_engine.network.stripes import interfaces_of

__all__ = ["CollectiveLinks", "collective_links", "group_links"]

_RINGS = (int(Collective.ALL_REDUCE), int(Collective.ALL_GATHER), int(Collective.REDUCE_SCATTER))


@attrs.frozen
class CollectiveLinks:
    """Links by which the rings of a group leave a host.

    Attributes:
        hosts: of the group.
        used, available: links that the rings use of the host where they use the smallest part, and that it has.
        over_hosts: steps of its rings that pass other hosts on the way, of all ``steps``.
        steps: from a host to the next, on all rings.
        found: rings that were found along links; 0 where there is one in listed order.
    """

    hosts: int
    used: int
    available: int
    over_hosts: int
    steps: int
    found: int = 0

    @property
    def text(self) -> str:
        """What tables say.

        >>> CollectiveLinks(hosts=64, used=1, available=8, over_hosts=0, steps=64).text
        '1 of 8 links of a host: a ring takes one path from host to host'
        >>> CollectiveLinks(hosts=64, used=1, available=4, over_hosts=60, steps=64).text
        '1 of 4 links of a host: 60 of 64 steps of its ring, in listed order, pass other hosts'
        """
        used = f"{self.used} of {self.available} links of a host"
        if self.found:
            return f"{used}: no more than {self.found} rings along links were found"
        if self.over_hosts:
            return f"{used}: {self.over_hosts} of {self.steps} steps of its ring, in listed order, pass other hosts"
        return f"{used}: a ring takes one path from host to host"


def collective_links(plan: Plan, tasks: TaskGraph) -> CollectiveLinks | None:
    """Return the links of the group whose collectives have the most bytes; ``tasks`` are those that were simulated.

    None if it leaves no link of a host idle and no step of its rings passes other hosts.  None, too, where the fabric
    says the rings itself: they are meant so; on rails and planes, which have rings of their own; and where hosts are
    modelled inside, whose groups run rings over all NICs.
    """
    if shares_links(plan.cluster.host):
        return None
    fabric = plan.fabric.wirings[-1]  # gradients are summed in the last phase
    lanes = lanes_of(fabric, plan.cluster)
    if fabric.max_paths > 1 and (lanes.most > 1 or interfaces_of(fabric, plan.cluster, lanes).on_rails):
        return None
    rings = np.flatnonzero((tasks.kind == TaskKind.COLLECTIVE) & np.isin(tasks.collective, _RINGS) & (tasks.size > 0))
    nbytes = np.bincount(tasks.group[rings], tasks.size[rings].astype(np.float64), max(tasks.n_groups, 1))
    for group in np.argsort(-nbytes, kind="stable")[: np.count_nonzero(nbytes)].tolist():
        devices = tasks.group_members[tasks.group_ptr[group] : tasks.group_ptr[group + 1]]
        hosts = plan.cluster.device_host[devices]
        if (hosts != hosts[0]).any():
            stops = hosts[np.sort(np.unique(hosts, return_index=True)[1])]
            links = group_links(fabric, stops)
            return links if links is not None and (links.used < links.available or links.over_hosts) else None
    return None


def group_links(fabric: Fabric, hosts: I32) -> CollectiveLinks | None:
    """Return the links of a group on these hosts, each listed once; None where the fabric says its rings.

    Rings that are found along links have no step that passes another host.
    """
    if rings_of(fabric, hosts) or fabric.cycles:
        return None
    cycles = cycles_of(fabric, hosts)
    receivers = hosts[cycles] if len(cycles) else np.roll(hosts, -1)[None]
    source, target = np.tile(hosts, len(receivers)), receivers.ravel()
    ways = paths(fabric, source, target)
    if (np.diff(ways.pair_ptr) == 0).any():
        return None
    first = ways.path_ptr[ways.pair_ptr[:-1]]  # one path of each step: the others are as long
    last = ways.path_ptr[ways.pair_ptr[:-1] + 1]
    leaving = distinct_values(ways.links[first])
    over_hosts = int((_hosts_passed(fabric, ways.links, first, last) > 0).sum())
    used, available = _leaving(fabric, leaving), _leaving(fabric, np.arange(fabric.n_links))
    share = np.where(available[hosts] > 0, used[hosts] / np.maximum(available[hosts], 1), 1.0)
    host = hosts[np.argmin(share)]
    if not used[host]:
        return None
    return CollectiveLinks(len(hosts), int(used[host]), int(available[host]), over_hosts, len(source), len(cycles))


def _leaving(fabric: Fabric, links: I64 | I32) -> I64:
    """(H,) how many of these links, with their parallel ones, leave each host for the network."""
    outside = links[fabric.link_kind[links] != LinkKind.INSIDE]
    counts = np.bincount(fabric.link_src[outside], fabric.link_count[outside], fabric.n_nodes)
    leaving: I64 = counts[: fabric.n_hosts].astype(np.int64)
    return leaving


def _hosts_passed(fabric: Fabric, links: I32, first: I64, last: I64) -> I64:
    """(steps,) hosts on the way of each step, whose links are ``links[first:last]``."""
    is_host = np.concatenate([[0], np.cumsum(fabric.link_dst[links] < fabric.n_hosts)])
    passed: I64 = is_host[last - 1] - is_host[first]
    return passed
