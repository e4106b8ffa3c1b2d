"""From a number of hosts and rails to the switches of each tier, and the cables between them.

Data flow: a `Clos` says what is asked; `_tiers` counts switches and joins them, network by network (all rails, or one
rail each), as columns of cables; `wire` puts the planes side by side and makes the fabric.
"""

from __future__ import annotations

import math

import attrs
import numpy as np

from topoplan import Cluster, Fabric, LinkKind, TopoplanError
from topoplan.arrays import I64

__all__ = ["Clos", "wire"]


@attrs.frozen(kw_only=True)
class Clos:
    """What is asked of the network.

    Attributes:
        hosts, rails: hosts, and NICs of each.
        unit: hosts of a unit; None for as many as fit.
        ports: of a switch.
        joined: whether rails meet.
        oversubscription, core_oversubscription: of leaves and of spines, down over up.
        by_rail: of three tiers, the leaves of a rail share spines; else those of some units.
    """

    hosts: int
    rails: int
    unit: int | None
    ports: int
    joined: bool
    oversubscription: float
    core_oversubscription: float
    by_rail: bool

    @property
    def name(self) -> str:
        """The topology's, for messages."""
        return "rail-optimized" if self.joined else "rail-only"

    @property
    def unit_hosts(self) -> int:
        """Hosts of a unit: all that one leaf has room for where there is nothing above it.

        Raises:
            TopoplanError: a leaf has too few ports.
        """
        needs_no_spine = self.rails == 1 or not self.joined
        if self.unit is None:
            if needs_no_spine and self.hosts <= self.ports:
                return self.hosts
            return min(max(down_ports(self.ports, self.oversubscription), 1), self.hosts)
        above = self.hosts > self.unit or not needs_no_spine
        needed = self.unit + (_up(self.unit, self.oversubscription) if above else 0)
        if needed > self.ports:
            raise TopoplanError(
                f"topology {self.name}: unit {self.unit}: a leaf of {self.ports} ports has no room for {self.unit} "
                f"hosts and {needed - self.unit} uplinks (unit={down_ports(self.ports, self.oversubscription)}, or "
                f"ports={needed})"
            )
        return self.unit


def down_ports(ports: int, oversubscription: float) -> int:
    """Return the ports of a switch that lead down where the rest leads up.

    >>> down_ports(64, 1.0), down_ports(64, 3.0), down_ports(64, 0.5)
    (32, 48, 21)
    """
    return math.floor(ports * oversubscription / (1 + oversubscription) + 1e-9)


def _up(down: int, oversubscription: float) -> int:
    """Return the uplinks of a switch with so many ports down, at least one."""
    return max(1, math.ceil(down / oversubscription - 1e-9))


@attrs.frozen
class _Tier:
    """Switches of a tier that are numbered one after the other, and the cables that lead down from it.

    Attributes:
        count: how many.
        lower, upper: (c,) ends of each cable, numbers in the tier below and in this one.
    """

    count: int
    lower: I64
    upper: I64


def _tiers(clos: Clos) -> list[_Tier]:
    """Return leaves, and the tiers above them; leaf ``u * rails + r`` is that of unit u and rail r."""
    unit, rails = clos.unit_hosts, clos.rails
    units = math.ceil(clos.hosts / unit)
    host, rail = np.divmod(np.arange(clos.hosts * rails), rails)
    tiers = [_Tier(units * rails, host, host // unit * rails + rail)]
    numbers = np.arange(units * rails).reshape(units, rails)
    networks = [numbers.ravel()] if clos.joined else list(numbers.T)
    if len(networks[0]) == 1:
        return tiers
    up = _up(unit, clos.oversubscription)
    pods, cores = [], clos.ports < len(networks[0])
    for network in networks:
        pods += _pods(clos, network, units) if cores else [network]
    spines = _joined(pods, up, down_ports(clos.ports, clos.core_oversubscription) if cores else clos.ports)
    tiers.append(spines)
    if cores:
        each = len(pods) // len(networks)
        tiers.append(_core(clos, len(networks), each, spines.count // len(pods), _spine_up(clos)))
    return tiers


def _spine_up(clos: Clos) -> int:
    """Return the uplinks of a spine."""
    down = down_ports(clos.ports, clos.core_oversubscription)
    return min(_up(down, clos.core_oversubscription), clos.ports - down)


def _pods(clos: Clos, leaves: I64, units: int) -> list[I64]:
    """Return the leaves of each set that shares spines, as many as the ports down of a spine at most."""
    most = down_ports(clos.ports, clos.core_oversubscription)
    if not clos.joined:
        parts = np.array_split(leaves, math.ceil(len(leaves) / most))
    elif clos.by_rail:
        by_rail = leaves.reshape(units, clos.rails).T
        blocks = math.ceil(units / most)
        parts = [part for of_rail in by_rail for part in np.array_split(of_rail, blocks)]
        if len(parts) > clos.ports and blocks == 1:  # more pods than cores join: some rails share spines
            fewest = math.ceil(len(leaves) / most)
            pods = next(pods for pods in range(fewest, clos.rails + 1) if clos.rails % pods == 0)
            parts = np.array_split(by_rail.ravel(), pods)
    else:
        together = max(most // clos.rails, 1)
        if most < clos.rails:
            raise TopoplanError(
                f"topology rail-optimized: pods=units: a spine has {most} ports for the {clos.rails} leaves of a unit "
                "(more ports, or pods=rail)"
            )
        parts = np.array_split(leaves, math.ceil(units / together))
    if len({len(part) for part in parts}) > 1:
        sizes = sorted({len(part) for part in parts})
        raise TopoplanError(
            f"topology {clos.name}: {len(leaves)} leaves make pods of {sizes[0]} and of {sizes[-1]} under "
            f"spines of {most} ports down, and cores join equal pods (choose hosts, unit or pods so that all are full)"
        )
    return parts


def _joined(pods: list[I64], up: int, down: int) -> _Tier:
    """Return spines that join all leaves of each pod, over ``up`` cables of each, dealt out in turn."""
    spines = math.ceil(len(pods[0]) * up / down)
    lower, upper = [], []
    for number, leaves in enumerate(pods):
        cable = np.arange(len(leaves) * up)
        lower.append(np.repeat(leaves, up))
        upper.append(number * spines + cable % spines)
    return _Tier(spines * len(pods), np.concatenate(lower), np.concatenate(upper))


def _core(clos: Clos, networks: int, pods: int, spines: int, up: int) -> _Tier:
    """Return core switches: those of group s join spine s of every pod of a network (Al-Fares et al., SIGCOMM 2008)."""
    if pods > clos.ports:
        raise TopoplanError(
            f"topology {clos.name}: {pods} pods need core switches of as many ports, not {clos.ports} (more "
            "ports, or fewer hosts)"
        )
    each = math.ceil(pods * up / clos.ports)
    spine = np.repeat(np.arange(networks * pods * spines), up)
    network, place = spine // (pods * spines), spine % spines
    pod = spine // spines % pods
    cable = np.tile(np.arange(up), networks * pods * spines)
    upper = (network * spines + place) * each + (cable + pod * up) % each
    return _Tier(networks * spines * each, spine, upper)


def wire(clos: Clos, cluster: Cluster, planes: int, paths: int) -> Fabric:
    """Return the fabric; nodes are hosts, then the leaves of all planes, the spines and the cores.

    The leaves of a rail's planes follow each other, so that each NIC has the lanes to these.
    """
    tiers = _tiers(clos)
    counts = [tier.count * planes for tier in tiers]
    first = np.concatenate([[cluster.n_hosts], cluster.n_hosts + np.cumsum(counts)])
    ends = []
    for level, tier in enumerate(tiers):
        for plane in range(planes):
            lower = tier.lower if level == 0 else first[level - 1] + tier.lower * planes + plane
            ends.append(np.stack([lower, first[level] + tier.upper * planes + plane], axis=1))
    cables = np.concatenate(ends)
    rate = np.minimum.reduce(cluster.interface_bandwidth)
    at_host = np.minimum(cables[:, 0], cluster.n_hosts - 1)
    own_rate = np.where(cables[:, 0] < cluster.n_hosts, cluster.interface_bandwidth[at_host], rate)
    kind = np.where((cables[:, 0] < cluster.n_hosts) & (planes > 1), LinkKind.LANE, LinkKind.NETWORK)
    fabric = Fabric.from_links(
        name=clos.name,
        n_hosts=cluster.n_hosts,
        n_switches=sum(counts),
        links=np.concatenate([cables, cables[:, ::-1]]),
        bandwidth=np.tile(own_rate / planes, 2),
        latency=cluster.latency,
        kind=np.tile(kind, 2),
        max_paths=paths * planes,
        switching="packet",
    )
    names = [f"host {host}" for host in range(cluster.n_hosts)]
    for name, tier in zip(("leaf", "spine", "core"), tiers, strict=False):
        for number in range(tier.count):
            for plane in range(planes):
                where = f" of plane {plane}" if planes > 1 else ""
                what = f"{number // clos.rails} rail {number % clos.rails}" if name == "leaf" else f"{number}"
                names.append(f"{name} {what}{where}")
    return attrs.evolve(fabric, node_names=names)
