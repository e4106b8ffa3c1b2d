"""The topology that another one changes, from the text of an option: ``fattree``, or ``rails/unit=32/ports=64``."""

from __future__ import annotations

from topoplan import Host, Topology, TopoplanError
from topoplan.options import parse_component

__all__ = ["named_topology"]


def named_topology(of: str, name: str) -> Topology:
    """Make the topology that option ``of`` of the topology ``name`` names, its options behind slashes.

    Raises:
        TopoplanError: there is none, it refuses its options, it follows a demand, or it is the same one.

    >>> named_topology("fattree/levels=2", "degraded").levels
    2
    """
    where = f"topology {name}: of"
    text, *options = of.split("/")
    kind, values = parse_component(f"{text}:{','.join(options)}", where)
    if kind == name:
        raise TopoplanError(f"{where}={name} (name another topology)")
    try:
        topology = Host.discover().make(Topology, kind, values)
    except TopoplanError as error:
        raise TopoplanError(f"{where}: {error}") from error.__cause__
    if topology.follows_demand:
        raise TopoplanError(f"{where}={kind} is wired for a demand (take one that is not)")
    return topology
