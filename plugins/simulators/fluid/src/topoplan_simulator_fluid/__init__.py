"""The ``fluid`` simulator: flows share links at rates (see `topoplan_simulator_fluid.model`).

The kernel is imported when the simulator is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Simulator, hookimpl, option
from topoplan.options import SEEDS

if TYPE_CHECKING:
    from topoplan_engine.simulation.base import Simulation

__all__ = ["FLUID", "FluidOptions", "build", "topoplan_simulators"]

Memory = Literal["ignore", "limit", "penalty"]

_SYNC = "overlap: sum gradients as soon as they are there; barrier: after the whole backward pass"
_COLLECTIVE = "ring: all-reduce over rings; parameter-server: send to the first member and back"
_MEMORY = "too much on a device: ignore it, refuse it (limit), or add 1 ms per MB (penalty)"


@attrs.frozen(kw_only=True)
class FluidOptions:
    """Options of ``fluid``."""

    level: Literal["coupled", "stepped"] = option(
        "coupled",
        help="coupled: a ring is one flow (but of few hosts with a choice of paths); "
        "stepped: every round has a barrier (slower, closer)",
    )
    seed: int = option(0, help="draws one of several equal paths", minimum=0, maximum=SEEDS)
    gradient_sync: Literal["overlap", "barrier"] = option("overlap", help=_SYNC)
    collective: Literal["ring", "parameter-server"] = option("ring", help=_COLLECTIVE)
    memory: Literal["ignore", "limit", "penalty"] = option("penalty", help=_MEMORY)


def build(options: FluidOptions) -> Simulation:
    """Build the simulator."""
    from topoplan_engine.kernels.compiling import compile_beside
    from topoplan_engine.simulation.base import Simulation
    from topoplan_simulator_fluid import kernel
    from topoplan_simulator_fluid.model import Model

    compile_beside(kernel.__name__)
    return Simulation(
        Model(options.level == "stepped", options.seed),
        barriers=options.gradient_sync == "barrier",
        server=options.collective == "parameter-server",
    )


def _memory(options: FluidOptions) -> Memory:
    return options.memory


FLUID = Simulator(
    name="fluid",
    summary="flows share links; agrees with packet simulation within some percent",
    options=FluidOptions,
    build=build,
    memory=_memory,
    example={"level": "stepped"},
)


@hookimpl
def topoplan_simulators() -> list[Simulator]:
    """Register the simulator."""
    return [FLUID]
