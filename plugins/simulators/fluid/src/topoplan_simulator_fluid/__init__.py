"""The ``fluid`` simulator: flows share links at rates (see `topoplan_simulator_fluid.model`).

The kernel is imported when the simulator is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Simulator, TopoplanError, hookimpl, option
from topoplan.options import SEEDS
from topoplan_engine.simulation.component import COLLECTIVE, GRADIENT_SYNC, MEMORY, SimulatorOfModel

if TYPE_CHECKING:
    from topoplan import AnyFabric
    from topoplan_engine.simulation.base import Simulation

__all__ = ["Fluid", "topoplan_simulators"]


@attrs.frozen(kw_only=True)
class Fluid(SimulatorOfModel):
    """Flows share links; agrees with packet simulation within some percent."""

    name = "fluid"
    example = {"level": "stepped"}

    level: Literal["coupled", "stepped"] = option(
        "coupled", help="coupled: a ring is one flow; stepped: every round has a barrier (slower, closer)"
    )
    transport: Literal["wire", "flexnetpacket"] = option(
        "wire",
        help="wire: bytes, one-way latencies and max-min fair shares; flexnetpacket: the windows, handshakes, whole "
        "packets and small all-reduces of that program",
    )
    seed: int = option(0, help="draws one of several equal paths", minimum=0, maximum=SEEDS)
    gradient_sync: Literal["overlap", "barrier"] = option("overlap", help=GRADIENT_SYNC)
    collective: Literal["ring", "parameter-server", "nccl-serial"] = option("ring", help=COLLECTIVE)
    memory: Literal["ignore", "limit", "penalty"] = option("penalty", help=MEMORY)
    algorithms: str = option(
        "",
        help="of collectives, as --collective says them: all-reduce=ring+tree;all-to-all=pxn, the fastest for each "
        "group and size; auto for all that switches need not add for; unset: rings of the network",
        metavar="COLLECTIVE=NAME+...;...",
    )
    protocol: Literal["inside", "none", "auto", "ll", "ll128", "simple"] = option(
        "inside",
        help="of NCCL, whose latencies collectives have; auto: the fastest; inside: the fastest's latencies where all "
        "members are in one host of a machine with NVSwitches, those of links elsewhere; none: those of links alone",
    )

    def observed(self, fabric: AnyFabric) -> str:
        """Return how far times of this level and transport were off on such networks (``docs/agreement.md``)."""
        from topoplan_simulator_fluid.observed import observed

        return observed(fabric, self.level, self.transport)

    def build(self) -> Simulation:
        """Build the simulator."""
        from topoplan_engine.simulation.collective_choice import CollectiveChoice
        from topoplan_engine.simulation.messages import Transport
        from topoplan_simulator_fluid.model import MOST_PACKETS, Model

        transport = Transport.WIRE if self.transport == "wire" else Transport.FLEXNETPACKET
        stepped = self.level == "stepped"
        waits = self.protocol == "inside" and transport is Transport.WIRE
        algorithms = CollectiveChoice(self.algorithms, "none" if self.protocol == "inside" else self.protocol)
        if algorithms and transport is not Transport.WIRE:
            raise TopoplanError(
                "simulator fluid: algorithms and protocol need transport=wire (FlexNetPacket has rings)"
            )
        if algorithms and self.collective != "ring":
            raise TopoplanError(f"simulator fluid: collective={self.collective} sums gradients without algorithms")
        return self.simulation(Model(stepped, self.seed, transport, MOST_PACKETS[stepped], algorithms, waits))


@hookimpl
def topoplan_simulators() -> type[Simulator]:
    """Register the simulator."""
    return Fluid
