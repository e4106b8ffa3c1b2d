"""The simulators that come with topoplan: ``fluid`` and ``flexnet``.

Both are registered as a plugin (`topoplan_simulators`).  Their kernels are imported when one is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan.components import Simulator
from topoplan.hookspecs import hookimpl
from topoplan.options import SEEDS, option

if TYPE_CHECKING:
    from topoplan.simulate.run import Simulation

__all__ = ["FLEXNET", "FLUID", "FlexnetOptions", "FluidOptions", "topoplan_simulators"]

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


@attrs.frozen(kw_only=True)
class FlexnetOptions:
    """Options of ``flexnet``."""

    segment_bytes: int = option(
        1 << 20, help="size of the pieces that messages are sent in", unit="bytes", minimum=1, maximum=1 << 50
    )
    ring_direction: Literal["forward", "random"] = option(
        "random", help="way round a ring: as listed, or a coin for each all-reduce, as FlexNet does it"
    )
    seed: int = option(1, help="draws the directions; 1 gives FlexNet's published times", minimum=0, maximum=SEEDS)
    gradient_sync: Literal["overlap", "barrier"] = option("overlap", help=_SYNC)
    collective: Literal["ring", "parameter-server"] = option("ring", help=_COLLECTIVE)
    memory: Literal["ignore", "limit", "penalty"] = option("ignore", help=_MEMORY)


def _fluid(options: FluidOptions) -> Simulation:
    from topoplan.simulate.run import fluid_simulation

    return fluid_simulation(options)


def _flexnet(options: FlexnetOptions) -> Simulation:
    from topoplan.simulate.run import flexnet_simulation

    return flexnet_simulation(options)


def _memory(options: FluidOptions | FlexnetOptions) -> Memory:
    return options.memory


FLUID = Simulator(
    name="fluid",
    summary="flows share links; agrees with packet simulation within some percent",
    options=FluidOptions,
    build=_fluid,
    memory=_memory,
    example={"level": "stepped"},
)

FLEXNET = Simulator(
    name="flexnet",
    summary="FlexNet's logical simulator, exactly: FIFO links, messages in segments",
    options=FlexnetOptions,
    build=_flexnet,
    memory=_memory,
    example={"segment_bytes": 1 << 22},
)


@hookimpl
def topoplan_simulators() -> list[Simulator]:
    """Return the simulators that come with topoplan."""
    return [FLUID, FLEXNET]
