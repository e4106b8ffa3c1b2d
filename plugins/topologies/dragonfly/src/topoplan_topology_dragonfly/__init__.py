"""Dragonfly: groups of routers, any two of which are joined (Kim et al., ISCA 2008).

A router has p hosts, a - 1 links to the other routers of its group and h to other groups, of which there are at most
a h + 1.  The a h outer links of a group are numbered; link i is that of router i // h, and leads i + 1 groups ahead,
modulo their number.  Where there are g groups, fewer than a h + 1, any two are joined by a h // (g - 1) links.
"""

from __future__ import annotations

import math
from typing import Literal

import attrs
import numpy as np

from topoplan import Fabric, Topology, TopologyContext, TopoplanError, hookimpl, option

__all__ = ["Dragonfly", "topoplan_topologies"]


@attrs.frozen(kw_only=True)
class Dragonfly(Topology):
    """Dragonfly: groups of routers that are all joined, and links between any two groups."""

    name = "dragonfly"
    switched = True

    hosts: int | None = option(
        None, help="hosts of a router (p); half of the routers when absent", minimum=1, maximum=512
    )
    routers: int | None = option(None, help="routers of a group (a); as few as have room", minimum=1, maximum=1024)
    links: int | None = option(
        None, help="links of a router to other groups (h); half of the routers when absent", minimum=1, maximum=512
    )
    groups: int | None = option(None, help="groups; as few as have room when absent", minimum=1, maximum=65_536)
    routing: Literal["minimal", "valiant"] = option(
        "minimal", help="paths between groups: the shortest, or by way of each third group in equal shares"
    )
    paths: int = option(16, help="number of paths for a pair of hosts", minimum=1, maximum=65_536)

    def build(self, context: TopologyContext) -> Fabric:
        """Join the routers; links between them are as fast as the host with the most bandwidth.

        Raises:
            TopoplanError: there is no room for the hosts of the cluster, or more groups than links to join them; or no
                third group for Valiant's routes.
        """
        from topoplan_graph_fabrics import at_switches, limit_links
        from topoplan_topology_dragonfly.valiant import valiant_routes

        count = context.cluster.n_hosts
        p, a, h = self._sizes(self.routers or self._fewest_routers(count))
        most = a * h + 1
        groups = self.groups or math.ceil(count / (p * a))
        if groups > most:
            asked = f"groups {self.groups}" if self.groups else f"{count} hosts in groups of {p * a}"
            raise TopoplanError(
                f"topology dragonfly: {asked} need more than the {most} groups that routers={a}, links={h} join "
                f"(room for {p * a * most} hosts; use routers={self._fewest_routers(count)})"
            )
        if p * a * groups < count:
            room = f"{groups} groups of {a} routers with {p} hosts have room for {p * a * groups}, not {count}"
            raise TopoplanError(f"topology dragonfly: {room} (use groups={math.ceil(count / (p * a))})")
        links = groups * a * (a - 1) // 2 + a * h // max(groups - 1, 1) * groups * (groups - 1) // 2
        limit_links(self.name, links, f"{groups} groups of {a} routers with {h} links to others")
        router = np.arange(count) // p
        pairs = _pairs(groups, a, h)
        fabric = at_switches("dragonfly", context.cluster, router, pairs, n_switches=groups * a, max_paths=self.paths)
        if self.routing == "minimal":
            return fabric
        return attrs.evolve(fabric, routes=valiant_routes(fabric, router, a, groups, self.paths))

    def _sizes(self, routers: int) -> tuple[int, int, int]:
        """Return p, a and h: of those that are not given, the balanced ones."""
        half = max(routers // 2, 1)
        return self.hosts or half, routers, self.links or half

    def _fewest_routers(self, hosts: int) -> int:
        """Return the smallest even a whose full network has room for the hosts."""
        routers = 2
        while True:
            p, a, h = self._sizes(routers)
            if p * a * (a * h + 1) >= hosts:
                return routers
            routers += 2


def _pairs(groups: int, a: int, h: int) -> np.ndarray:
    """Return (k, 2) routers that are joined; those of a group follow each other."""
    first, second = np.triu_indices(a, 1)
    inner = np.stack([first, second], axis=1)[None] + (np.arange(groups) * a)[:, None, None]
    if groups == 1:
        return inner.reshape(-1, 2)
    ahead = groups - 1
    group, other_group = np.triu_indices(groups, 1)
    number = np.arange(a * h // ahead)[:, None] * ahead
    source = group * a + (number + (other_group - group) % groups - 1) // h
    target = other_group * a + (number + (group - other_group) % groups - 1) // h
    return np.concatenate([inner.reshape(-1, 2), np.stack([source.ravel(), target.ravel()], axis=1)])


@hookimpl
def topoplan_topologies() -> type[Topology]:
    """Register the topology."""
    return Dragonfly
