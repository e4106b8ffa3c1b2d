"""Promises of topologies: ``build(context) -> Fabric``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.cluster import Cluster
from topoplan.model.fabric import Fabric
from topoplan.model.interfaces import check_interfaces, check_rings
from topoplan.model.problem import Demand
from topoplan.plugin.components import Topology, TopologyContext
from topoplan.testing import reference
from topoplan.testing.common import example

__all__ = [
    "check_all_hosts_are_connected",
    "check_demand_is_ignored_unless_declared",
    "check_fabric_has_the_hosts_of_the_cluster",
    "check_global_randomness_is_untouched",
    "check_links_stay_within_interfaces",
    "check_rings_have_their_links",
    "check_routes_lead_from_source_to_destination",
    "check_same_seed_same_fabric",
]

_SIZES = (2, 4, 8, 13, 16)


def check_fabric_has_the_hosts_of_the_cluster(component: type[Topology]) -> None:
    """The example builds a fabric of exactly the cluster's hosts: of `example_cluster`, or of 2, 4, 8, 13 or 16."""
    found, refused = 0, []
    for cluster in _clusters(component):
        try:
            fabric = _build(component, cluster, None)
        except TopoplanError as error:
            refused.append(f"{cluster.n_hosts} hosts: {error}")
            continue
        found += 1
        assert isinstance(fabric, Fabric), f"build returned {type(fabric).__name__}"
        assert fabric.n_hosts == cluster.n_hosts, f"asked for {cluster.n_hosts} hosts, got {fabric.n_hosts}"
    assert found, (
        f"no fabric for the example (Topology.example_cluster names a cluster that suits it): {'; '.join(refused)}"
    )


def check_all_hosts_are_connected(component: type[Topology]) -> None:
    """Every host reaches every other one."""
    for cluster, fabric in _fabrics(component):
        for host in range(cluster.n_hosts):
            lost = set(range(cluster.n_hosts)) - _reached(fabric, host)
            assert not lost, f"of {cluster.n_hosts} hosts, host {host} cannot reach {sorted(lost)}"


def check_links_stay_within_interfaces(component: type[Topology]) -> None:
    """No host sends or receives over more links, or more bandwidth, than its interfaces have."""
    for cluster, fabric in _fabrics(component):
        try:
            check_interfaces(fabric, cluster)
        except TopoplanError as error:
            raise AssertionError(f"of {cluster.n_hosts} hosts: {error}") from None


def check_rings_have_their_links(component: type[Topology]) -> None:
    """Every ring visits its whole group, over links that are there."""
    for cluster, fabric in _fabrics(component):
        try:
            check_rings(fabric)
        except TopoplanError as error:
            raise AssertionError(f"of {cluster.n_hosts} hosts: {error}") from None


def check_routes_lead_from_source_to_destination(component: type[Topology]) -> None:
    """Explicit routes are unbroken paths between their hosts, and the shares of a pair sum to 1."""
    for _, fabric in _fabrics(component):
        routes = fabric.routes
        if routes is None:
            continue
        for row, (source, destination) in enumerate(routes.pairs.tolist()):
            paths = range(routes.pair_ptr[row], routes.pair_ptr[row + 1])
            for path in paths:
                at = source
                for link in routes.links[routes.path_ptr[path] : routes.path_ptr[path + 1]]:
                    assert fabric.link_src[link] == at, f"route {source} -> {destination} breaks at node {at}"
                    at = int(fabric.link_dst[link])
                assert at == destination, f"route {source} -> {destination} ends at node {at}"
            share = sum(routes.weight[path] for path in paths)
            assert not paths or abs(share - 1) < 1e-9, f"shares of {source} -> {destination} sum to {share}"


def check_same_seed_same_fabric(component: type[Topology]) -> None:
    """A generator in the same state gives the same fabric."""
    for (cluster, one), (_, two) in zip(_fabrics(component), _fabrics(component), strict=True):
        assert one == two, f"two builds for {cluster.n_hosts} hosts differ"


def check_demand_is_ignored_unless_declared(component: type[Topology]) -> None:
    """Only a topology that `follows_demand` builds differently for a demand."""
    if component.follows_demand:
        return
    for cluster, fabric in _fabrics(component):
        other = _build(component, cluster, reference.demand(cluster.n_hosts))
        assert fabric == other, "the fabric depends on the demand (declare follows_demand)"


def check_global_randomness_is_untouched(component: type[Topology]) -> None:
    """Randomness comes from the context's generator alone."""
    before = np.random.get_state()  # noqa: NPY002 - it is the global one that must not be used
    list(_fabrics(component))
    after = np.random.get_state()  # noqa: NPY002
    assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)), "np.random's own state has changed"


def _fabrics(component: type[Topology]) -> Iterator[tuple[Cluster, Fabric]]:
    """Yield fabrics for the clusters that the topology can wire; it refuses others with a `TopoplanError`.

    Why it refuses all of them is for `check_fabric_has_the_hosts_of_the_cluster` to tell.  Of a fabric that is rebuilt
    during the iteration every phase is one, and so are those that the topology names in its place: each must keep the
    promises.
    """
    for cluster in _clusters(component):
        demands = (None, reference.demand(cluster.n_hosts)) if component.follows_demand else (None,)
        for demand in demands:
            try:
                fabrics = [_build(component, cluster, demand)]
                fabrics += example(component).static(_context(cluster, demand))
            except TopoplanError:
                continue
            for one in fabrics:
                yield from ((cluster, part) for part in (one.wirings if isinstance(one, Fabric) else (one,)))


def _clusters(component: type[Topology]) -> Sequence[Cluster]:
    """Return what the example is built for: the cluster that the component names, or several sizes."""
    if (cluster := component.example_cluster()) is not None:
        return (cluster,)
    return [reference.cluster(n_hosts) for n_hosts in _SIZES]


def _build(component: type[Topology], cluster: Cluster, demand: Demand | None) -> Fabric:
    return example(component).build(_context(cluster, demand))


def _context(cluster: Cluster, demand: Demand | None) -> TopologyContext:
    return TopologyContext(cluster=cluster, demand=demand, rng=np.random.default_rng(1))


def _reached(fabric: Fabric, host: int) -> set[int]:
    """Return the nodes that can be reached from ``host``, itself included."""
    seen, todo = {host}, [host]
    while todo:
        node = todo.pop()
        for after in fabric.link_dst[fabric.link_src == node].tolist():
            if after not in seen:
                seen.add(after)
                todo.append(after)
    return seen
