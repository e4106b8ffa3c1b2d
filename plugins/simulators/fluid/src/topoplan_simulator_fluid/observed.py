"""How far simulated times were off: what is said beside a result is about results of its kind.

Data flow: ``benchmarks/exports.py`` writes ``observed.csv``, a row for each task graph that FlexNetPacket ran: the kind
of its network, its hosts, and the errors of each level and transport.  `observed` takes the rows of a kind of network,
and says how many of them there are, of which sizes, and how far they were off.
"""

from __future__ import annotations

import csv
import functools
from importlib.resources import files
from typing import NamedTuple

import numpy as np

from topoplan import AnyFabric

__all__ = ["Comparison", "comparisons", "network_kind", "observed"]


class Comparison(NamedTuple):
    """A task graph that FlexNetPacket ran.

    Attributes:
        network: `network_kind`.
        hosts: of its network.
        errors: percent of FlexNetPacket's time, by transport and level.
    """

    network: str
    hosts: int
    errors: dict[tuple[str, str], float]


@functools.cache
def comparisons() -> tuple[Comparison, ...]:
    """Return all comparisons of the table."""
    text = files("topoplan_simulator_fluid").joinpath("observed.csv").read_text(encoding="utf-8")
    return tuple(
        Comparison(
            row["network"],
            int(row["hosts"]),
            {
                (transport, level): float(row[f"{transport}_{level}"])
                for transport in ("wire", "flexnetpacket")
                for level in ("coupled", "stepped")
                if row[f"{transport}_{level}"]
            },
        )
        for row in csv.DictReader(text.splitlines())
    )


def network_kind(fabric: AnyFabric) -> str:
    """Return the kind of a network, by what decides how far times on it are off: paths and rings."""
    links = fabric.links
    if links.n_switches == 1:
        return "one switch"
    if links.n_switches:
        return "several switches"
    if links.n_links >= links.n_hosts * (links.n_hosts - 1):
        return "full mesh"
    return "direct connect with rings" if links.rings else "direct connect"


def observed(fabric: AnyFabric, level: str, transport: str) -> str:
    """Return how far times on such a network were from FlexNetPacket's, and on the wire from calculations by hand.

    Args:
        fabric: the network.
        level, transport: options of the simulator.
    """
    kind, hosts = network_kind(fabric), fabric.links.n_hosts
    of_kind = [
        comparison
        for comparison in comparisons()
        if comparison.network == kind and (transport, level) in comparison.errors
    ]
    by_hand = "by hand: exact (docs/physics.md); " if transport == "wire" else ""
    if not of_kind:
        return f"{by_hand}FlexNetPacket's packets: never compared on {kind}"
    errors = np.sort(np.abs([comparison.errors[transport, level] for comparison in of_kind]))
    median = errors[[(len(errors) - 1) // 2, len(errors) // 2]].mean()  # `numpy.median` imports masked arrays
    smallest, largest = min(comparison.hosts for comparison in of_kind), max(comparison.hosts for comparison in of_kind)
    beyond = "" if smallest <= hosts <= largest else f"; none of {hosts:,} hosts"
    return (
        f"{by_hand}FlexNetPacket's packets: median {median:.2g} %, largest {errors.max():.2g} %, of "
        f"{len(of_kind)} task graphs on {kind}, {smallest} to {largest} hosts{beyond}"
    )
