"""What components of simulators have in common whose model `topoplan_engine.simulation.base.Simulation` runs.

The host loads this module with every simulator: kernels are imported when a simulator is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from topoplan.plugin.components import MemoryPolicy, Simulator

if TYPE_CHECKING:
    from topoplan.model.reconfigurable import AnyFabric
    from topoplan_engine.simulation.base import Model, Simulation

__all__ = ["COLLECTIVE", "GRADIENT_SYNC", "MEMORY", "GradientSum", "SimulatorOfModel"]


#: Help texts of the options of these names.
GRADIENT_SYNC = "overlap: sum gradients as soon as they are there; barrier: after the whole backward pass"
COLLECTIVE = (
    "ring: all-reduce over rings; parameter-server: send to the first member and back; nccl-serial: as FlexFlow with "
    "NCCL, one after the other when all else has ended, off the network"
)
#: How gradients are summed.
GradientSum = Literal["ring", "parameter-server", "nccl-serial"]
MEMORY = "too much on a device: ignore it, refuse it (limit), or add 1 ms per MB (penalty)"


class SimulatorOfModel(Simulator):
    """A simulator with a seed, options on gradients, and one on memory; each class declares them, in its order."""

    seed: int
    gradient_sync: Literal["overlap", "barrier"]
    collective: GradientSum
    memory: MemoryPolicy

    def simulation(self, model: Model) -> Simulation:
        """Return what runs a model, with gradients summed as the options say."""
        from topoplan_engine.simulation.base import Simulation

        return Simulation(model, barriers=self.gradient_sync == "barrier", collective=self.collective)

    def observed(self, fabric: AnyFabric) -> str:
        """Return how far times on such a network were from what they were compared with; empty if that is not known."""
        return ""

    @property
    def memory_policy(self) -> MemoryPolicy:
        """The option ``memory``."""
        return self.memory

    @property
    def first_draw(self) -> int:
        """The option ``seed``."""
        return self.seed
