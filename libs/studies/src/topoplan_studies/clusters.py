"""The cluster of every network of a study: how many interfaces a host has, how fast, and what that is to cost.

- *Equal interfaces.*  ``degree`` and ``interface-bandwidth-gbps`` say what a host has, and every network uses all of
  it.  Where the study does not say ``degree``, all networks have that of `interfaces_unless_given`.
- *Equal cost.*  A network that has to cost as much as another one is built at the study's bandwidth, priced, and
  made faster or slower until it costs the same (`topoplan_studies.prices.affordable`); where its links do not all
  follow, it is built again and again until its bill comes as near as it gets.  One of switches that are not counted
  port by port then has one interface a host, as fast as the money buys, unless a machine says what is inside hosts: its
  interfaces stay as many as they are.  A network whose rates are its own (from a
  file) is scaled by its `Topology.rate_option`, hosts' interfaces with it.  What a network that follows demand costs is
  taken from the fabric that it builds for no demand at all.
- *From a catalogue* (`Prices.catalogue`) there are interfaces of listed bandwidths only: the fastest for the money, and
  at a switch, without a machine, as many of them as give most.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from topoplan.errors import TopoplanError
from topoplan.model.reconfigurable import AnyFabric
from topoplan.plugin.components import Topology, TopologyContext
from topoplan.plugin.host import Host
from topoplan_engine.experiment import build_cluster, interfaces_unless_given
from topoplan_engine.host_models import at_machine
from topoplan_engine.network.building import build_fabric
from topoplan_engine.options import ClusterOptions
from topoplan_studies.prices import Basis, Item, Prices, affordable, bill, cost, largest_factor
from topoplan_studies.study import BATCH, MACHINE, Network, Study

__all__ = ["EQUAL", "Settings", "Target", "cluster_of"]

#: What varies in a study -> its value.
Settings = Mapping[str, float | str]

#: Costs that differ by no more than this share are equal.
EQUAL = 0.01
#: How often the bandwidth is doubled or halved if the network has to be built to know its cost, and the relative
#: precision of the bandwidth that the bisection then finds.
_OCTAVES, _PRECISION = 20, 1e-6
#: If the cost is off by a larger share, some links do not follow the bandwidth of interfaces.
_MISSED = 1e-5
#: Rates of interfaces and of a network's own links are rounded apart, to nine digits: links stay below interfaces.
_BELOW = 1 - 2e-8


@attrs.frozen(kw_only=True)
class Target:
    """The cost that a network should have, because another network has it.

    Attributes:
        cost: of the network that others have to cost as much as.
        network: its name.
        planned: what this one costs, wired for no demand.
        reason: why that is something else, if it is.
    """

    cost: float
    network: str
    planned: float
    reason: str


def cluster_of(
    study: Study, network: Network, settings: Settings, host: Host, prices: Prices
) -> tuple[ClusterOptions, Network, Target | None]:
    """Return the cluster of a network at a setting, the network, scaled, and the cost that it should have, if any.

    Raises:
        TopoplanError: the network cannot be built, has no price, or is not in the catalogue.
    """
    options = _options(study, settings, host, prices)
    parts = _parts(network, options, host)  # what it refuses is said before anything runs
    standard = network.costs_as or next(
        (candidate.costs_as for candidate in study.networks if candidate.costs_as), None
    )
    if standard is None or standard == network.name:
        return options, network, None
    standard_network = next(candidate for candidate in study.networks if candidate.name == standard)
    budget = cost(_parts(standard_network, options, host), prices)
    if _fabric(network, options, host).switching == "ideal":
        reason = "an ideal switch is not for sale, and keeps its bandwidth"
    elif network.costs_as is None:
        reason = "it keeps its bandwidth"
    elif prices.whole:
        options, network, reason = _from_catalogue(network, options, host, prices, budget)
    else:
        options, network, reason = _for_money(network, options, host, prices, budget, parts)
    planned = cost(_parts(network, options, host), prices)
    return options, network, Target(cost=budget, network=standard, planned=planned, reason=reason)


def _options(study: Study, settings: Settings, host: Host, prices: Prices) -> ClusterOptions:
    """Return the cluster at a setting, the same for all networks."""
    changes: dict[str, Any] = {
        key.replace("-", "_"): value for key, value in settings.items() if key not in (BATCH, MACHINE)
    }
    topologies = [_topology(network, host) for network in study.networks]
    options, _ = at_machine(interfaces_unless_given(attrs.evolve(study.cluster, **changes), topologies), host)
    speed = options.interface_bandwidth_gbps
    if prices.whole and prices.basis("nic", speed) is not Basis.LISTED:
        listed = ", ".join(f"{gbps:g}" for gbps in prices.bandwidths("nic"))
        raise TopoplanError(
            f"--catalogue: interface-bandwidth-gbps {speed:g}: prices {prices.name} list no [[nic]] of it "
            f"(have: {listed})"
        )
    return options


def _for_money(
    network: Network, options: ClusterOptions, host: Host, prices: Prices, budget: float, parts: tuple[Item, ...]
) -> tuple[ClusterOptions, Network, str]:
    """Return the cluster and the network at the bandwidth that costs ``budget``, and why it may cost something else."""
    bundled = _on_one_interface(network, options, host)
    if bundled is not options:
        parts = _parts(network, bundled, host)

    def total(factor: float) -> float:
        return cost(_parts(_scaled(network, factor * _BELOW, host), _faster(bundled, factor), host), prices)

    try:
        factor = affordable(parts, prices, budget)
        if abs(total(factor) - budget) > _MISSED * budget:  # links with a bandwidth of their own
            factor = largest_factor(total, prices, budget, _OCTAVES, _PRECISION)
        faster = _faster(bundled, factor), _scaled(network, factor * _BELOW, host)
        return *faster, "its cost comes no closer at any bandwidth"
    except TopoplanError as error:
        return options, network, f"it keeps its bandwidth, as {error}"


def _scaled(network: Network, factor: float, host: Host) -> Network:
    """Return a network whose rates are so many times its own, if they do not follow the cluster's interfaces."""
    option = _topology(network, host).rate_option
    if option is None or factor == 1:
        return network
    topology = network.choice.make(host, Topology)
    options = {**network.choice.options, option: float(f"{getattr(topology, option) * factor:.9g}")}
    return attrs.evolve(network, choice=attrs.evolve(network.choice, options=options))


def _from_catalogue(
    network: Network, options: ClusterOptions, host: Host, prices: Prices, budget: float
) -> tuple[ClusterOptions, Network, str]:
    """Return cluster and network with most bandwidth for sale for ``budget``, and why they cost something else."""
    assert options.degree is not None
    if any(group.degree or group.interface_bandwidth_gbps for group in options.hosts):
        raise TopoplanError("--catalogue: cluster.hosts: hosts of unequal interfaces cannot be made to cost the same")
    fewer = _topology(network, host).switched and not _has_insides(options, host)
    counts = range(1, options.degree + 1) if fewer else (options.degree,)
    best: tuple[float, int, ClusterOptions, Network] | None = None
    cheapest: tuple[float, ClusterOptions, Network] | None = None
    for count in counts:
        for gbps in prices.bandwidths("nic"):
            offer = attrs.evolve(options, degree=count, interface_bandwidth_gbps=gbps)
            try:
                scaled = _scaled(network, gbps / options.interface_bandwidth_gbps, host)
                price = cost(_parts(scaled, offer, host), prices)
            except TopoplanError:
                continue  # so many interfaces, or so slow ones, do not suit it
            if cheapest is None or price < cheapest[0]:
                cheapest = price, offer, scaled
            if price <= budget and (best is None or (count * gbps, -count) > best[:2]):
                best = count * gbps, -count, offer, scaled
    if best is not None:
        return *best[2:], "parts that are for sale come no closer without costing more"
    assert cheapest is not None  # it was built with what the study says
    return *cheapest[1:], "nothing cheaper is for sale"


def _on_one_interface(network: Network, options: ClusterOptions, host: Host) -> ClusterOptions:
    """Return the cluster with the bandwidth of a host on one interface, if the network can be built so.

    Interfaces of a machine stay: each is behind a link of its own inside the host, which one alone would wait for.
    """
    assert options.degree is not None
    if not network.choice.make(host, Topology).bundles_interfaces or _has_insides(options, host):
        return options
    bundled = _faster(attrs.evolve(options, degree=1, hosts=_regrouped(options)), options.degree)
    try:
        _parts(network, bundled, host)
    except TopoplanError:
        return options
    return bundled


def _has_insides(options: ClusterOptions, host: Host) -> bool:
    """Say whether hosts are modelled inside (``--machine``)."""
    return build_cluster(options, host).host is not None


def _topology(network: Network, host: Host) -> type[Topology]:
    return network.choice.find(host, Topology)


def _parts(network: Network, options: ClusterOptions, host: Host) -> tuple[Item, ...]:
    return bill(_fabric(network, options, host))


def _fabric(network: Network, options: ClusterOptions, host: Host) -> AnyFabric:
    topology = network.choice.make(host, Topology)
    context = TopologyContext(cluster=build_cluster(options, host), demand=None, rng=np.random.default_rng(0))
    return build_fabric(topology, context)


def _regrouped(options: ClusterOptions) -> tuple[Any, ...]:
    """Give groups of hosts that state a number of interfaces one, as many times as fast in proportion to the others."""
    assert options.degree is not None
    groups = []
    for group in options.hosts:
        degree = group.degree or options.degree
        speed = (group.interface_bandwidth_gbps or options.interface_bandwidth_gbps) * degree / options.degree
        groups.append(attrs.evolve(group, degree=1, interface_bandwidth_gbps=speed))
    return tuple(groups)


def _faster(options: ClusterOptions, factor: float) -> ClusterOptions:
    """Return a cluster whose interfaces are ``factor`` times as fast, to nine digits."""

    def times(gbps: float) -> float:
        return float(f"{gbps * factor:.9g}")

    groups = tuple(
        group
        if group.interface_bandwidth_gbps is None
        else attrs.evolve(group, interface_bandwidth_gbps=times(group.interface_bandwidth_gbps))
        for group in options.hosts
    )
    return attrs.evolve(options, interface_bandwidth_gbps=times(options.interface_bandwidth_gbps), hosts=groups)
