"""Promises of topologies: ``build(context) -> Fabric``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from topoplan import AnyFabric, Cluster, Demand, Fabric, Topology, TopologyContext, TopoplanError
from topoplan_testing import reference
from topoplan_testing._common import example, global_randomness_untouched
from topoplan_testing._hardware import interfaces_fault, rings_fault

_SIZES = (2, 4, 8, 13, 16)


def check_fabric_has_the_hosts_of_the_cluster(component: type[Topology]) -> None:
    """The example builds a fabric of exactly the cluster's hosts: of `example_cluster`, or of 2, 4, 8, 13 or 16."""
    count, refusals = 0, []
    for cluster in _clusters(component):
        try:
            fabric = _build(component, cluster, None)
        except TopoplanError as error:
            refusals.append(f"{cluster.n_hosts} hosts: {error}")
            continue
        count += 1
        assert isinstance(fabric, AnyFabric), f"build returned {type(fabric).__name__}"
        assert component.rebuilds or isinstance(fabric, Fabric), "the fabric is rebuilt in time (declare rebuilds)"
        assert fabric.n_hosts == cluster.n_hosts, f"asked for {cluster.n_hosts} hosts, got {fabric.n_hosts}"
    assert count, (
        f"no fabric for the example (Topology.example_cluster names a cluster that suits it): {'; '.join(refusals)}"
    )


def check_all_hosts_are_connected(component: type[Topology]) -> None:
    """Every host reaches every other one."""
    for cluster, fabric in _fabrics(component):
        for host in range(cluster.n_hosts):
            lost = set(range(cluster.n_hosts)) - set(reference.hops(fabric, host))
            assert not lost, f"of {cluster.n_hosts} hosts, host {host} cannot reach {sorted(lost)}"


def check_links_stay_within_interfaces(component: type[Topology]) -> None:
    """No host sends or receives over more links, or more bandwidth, than its interfaces have."""
    for cluster, fabric in _fabrics(component):
        fault = interfaces_fault(fabric, cluster)
        assert not fault, f"of {cluster.n_hosts} hosts: {fault}"


def check_rings_have_their_links(component: type[Topology]) -> None:
    """Every ring visits its whole group, over links that are there."""
    for cluster, fabric in _fabrics(component):
        fault = rings_fault(fabric)
        assert not fault, f"of {cluster.n_hosts} hosts: {fault}"


def check_routes_lead_from_source_to_destination(component: type[Topology]) -> None:
    """Explicit routes are unbroken paths between their hosts, and the shares of a pair sum to 1."""
    for _, fabric in _fabrics(component):
        routes = fabric.routes
        if routes is None:
            continue
        for row, (source, destination) in enumerate(routes.pairs.tolist()):
            paths = range(routes.pair_ptr[row], routes.pair_ptr[row + 1])
            for path in paths:
                node = source
                for link in routes.links[routes.path_ptr[path] : routes.path_ptr[path + 1]]:
                    assert fabric.link_src[link] == node, f"route {source} -> {destination} breaks at node {node}"
                    node = int(fabric.link_dst[link])
                assert node == destination, f"route {source} -> {destination} ends at node {node}"
            share = sum(routes.weight[path] for path in paths)
            assert not paths or abs(share - 1) < 1e-9, f"shares of {source} -> {destination} sum to {share}"


def check_same_seed_same_fabric(component: type[Topology]) -> None:
    """A generator in the same state gives the same fabric."""
    for (cluster, first), (_, second) in zip(_fabrics(component), _fabrics(component), strict=True):
        assert first == second, f"two builds for {cluster.n_hosts} hosts differ"


def check_demand_is_ignored_unless_declared(component: type[Topology]) -> None:
    """Only a topology that `follows_demand` builds differently for a demand."""
    if component.follows_demand:
        return
    for cluster, fabric in _fabrics(component):
        demand_fabric = _build(component, cluster, reference.demand(cluster.n_hosts))
        assert fabric == demand_fabric, "the fabric depends on the demand (declare follows_demand)"


def check_global_randomness_is_untouched(component: type[Topology]) -> None:
    """Randomness comes from the context's generator alone."""
    with global_randomness_untouched():
        list(_fabrics(component))


def _fabrics(component: type[Topology]) -> Iterator[tuple[Cluster, Fabric]]:
    """Yield fabrics for the clusters that the topology can wire; it refuses others with a `TopoplanError`.

    Why it refuses all of them is for `check_fabric_has_the_hosts_of_the_cluster` to tell.  Of a fabric that is rebuilt
    during the iteration every phase is one: each must keep the promises.
    """
    for cluster in _clusters(component):
        demands = (None, reference.demand(cluster.n_hosts)) if component.follows_demand else (None,)
        for demand in demands:
            try:
                fabric = _build(component, cluster, demand)
            except TopoplanError:
                continue
            yield from ((cluster, wiring) for wiring in fabric.wirings)


def _clusters(component: type[Topology]) -> Sequence[Cluster]:
    """Return what the example is built for: the cluster that the component names, or several sizes."""
    if (cluster := component.example_cluster()) is not None:
        return (cluster,)
    return [reference.cluster(n_hosts) for n_hosts in _SIZES]


def _build(component: type[Topology], cluster: Cluster, demand: Demand | None) -> AnyFabric:
    context = TopologyContext(cluster=cluster, demand=demand, rng=np.random.default_rng(1))
    return example(component).build(context)
