"""The ``flexnet`` simulator: FlexNet's logical simulator, exactly (see `topoplan_simulator_flexnet.model`).

The kernel is imported when the simulator is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Simulator, hookimpl, option
from topoplan.options import SEEDS
from topoplan_engine.simulation.component import COLLECTIVE, GRADIENT_SYNC, MEMORY, SimulatorOfModel

if TYPE_CHECKING:
    from topoplan_engine.simulation.base import Simulation

__all__ = ["Flexnet", "topoplan_simulators"]


@attrs.frozen(kw_only=True)
class Flexnet(SimulatorOfModel):
    """FlexNet's logical simulator, exactly: FIFO links, messages in segments."""

    name = "flexnet"
    example = {"segment_bytes": 1 << 22}

    segment_bytes: int = option(
        1 << 20, help="size of the pieces that messages are sent in", unit="bytes", minimum=1, maximum=1 << 50
    )
    ring_direction: Literal["forward", "random"] = option(
        "random", help="way round a ring: as listed, or a coin for each all-reduce, as FlexNet does it"
    )
    seed: int = option(1, help="draws the directions; 1 gives FlexNet's published times", minimum=0, maximum=SEEDS)
    gradient_sync: Literal["overlap", "barrier"] = option("overlap", help=GRADIENT_SYNC)
    collective: Literal["ring", "parameter-server", "nccl-serial"] = option("ring", help=COLLECTIVE)
    memory: Literal["ignore", "limit", "penalty"] = option("ignore", help=MEMORY)

    def build(self) -> Simulation:
        """Build the simulator."""
        from topoplan_simulator_flexnet.model import Model

        seed = self.seed if self.ring_direction == "random" else None
        return self.simulation(Model(self.segment_bytes, seed))


@hookimpl
def topoplan_simulators() -> type[Simulator]:
    """Register the simulator."""
    return Flexnet
