"""The ``fluid`` simulator: flows share links at rates (see `topoplan_simulator_fluid.model`).

The kernel is imported when the simulator is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Simulator, hookimpl, option
from topoplan.options import SEEDS
from topoplan.plugin.components import MemoryPolicy

if TYPE_CHECKING:
    from topoplan_engine.simulation.base import Simulation

__all__ = ["Fluid", "topoplan_simulators"]


_SYNC = "overlap: sum gradients as soon as they are there; barrier: after the whole backward pass"
_COLLECTIVE = "ring: all-reduce over rings; parameter-server: send to the first member and back"
_MEMORY = "too much on a device: ignore it, refuse it (limit), or add 1 ms per MB (penalty)"


@attrs.frozen(kw_only=True)
class Fluid(Simulator):
    """Flows share links; agrees with packet simulation within some percent."""

    name = "fluid"
    example = {"level": "stepped"}

    level: Literal["coupled", "stepped"] = option(
        "coupled",
        help="coupled: a ring is one flow (but of few hosts with a choice of paths); "
        "stepped: every round has a barrier (slower, closer)",
    )
    seed: int = option(0, help="draws one of several equal paths", minimum=0, maximum=SEEDS)
    gradient_sync: Literal["overlap", "barrier"] = option("overlap", help=_SYNC)
    collective: Literal["ring", "parameter-server"] = option("ring", help=_COLLECTIVE)
    memory: Literal["ignore", "limit", "penalty"] = option("penalty", help=_MEMORY)

    def build(self) -> Simulation:
        """Build the simulator."""
        from topoplan_engine.kernels.compiling import compile_beside
        from topoplan_engine.simulation.base import Simulation
        from topoplan_simulator_fluid import kernel
        from topoplan_simulator_fluid.model import Model

        compile_beside(kernel.__name__)
        return Simulation(
            Model(self.level == "stepped", self.seed),
            barriers=self.gradient_sync == "barrier",
            server=self.collective == "parameter-server",
        )

    @property
    def memory_policy(self) -> MemoryPolicy:
        """What the option ``memory`` says."""
        return self.memory

    @property
    def first_draw(self) -> int:
        """The option ``seed``."""
        return self.seed


@hookimpl
def topoplan_simulators() -> type[Simulator]:
    """Register the simulator."""
    return Fluid
