"""FlexNetPacket's transport as flows, which is what the simulator makes of iterations too large for packets."""

from __future__ import annotations

from typing import Any

from topoplan_engine.simulation.base import Simulation
from topoplan_engine.simulation.messages import Transport
from topoplan_simulator_fluid import Fluid
from topoplan_simulator_fluid.model import Model

__all__ = ["as_flows"]


def as_flows(**options: Any) -> Simulation:
    """Return a simulator of FlexNetPacket's transport that simulates no packets; options are those of `Fluid`."""
    component = Fluid(transport="flexnetpacket", **options)
    return component.simulation(Model(component.level == "stepped", component.seed, Transport.FLEXNETPACKET))
