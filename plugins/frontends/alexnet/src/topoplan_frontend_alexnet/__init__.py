"""AlexNet as a topoplan frontend: its options and its registration; `model` builds the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph


@attrs.frozen(kw_only=True)
class Alexnet(Frontend):
    """AlexNet: five convolutions and three linear layers.

    An unset option has the value of the preset, or else its default.
    """

    name = "alexnet"
    example = {"classes": 10}

    preset: Literal["", "alexnet"] = option("", help="published configuration to start from")
    dialect: Literal["standard", "flexnet"] = option("standard", help="flexnet: FlexNet's names, cuts and layer shapes")
    classes: int | None = option(None, minimum=1, help="number of classes; default 1000, in FlexNet 10")
    image: tuple[int, ...] | None = option(
        None, minimum=1, unit="pixels", help="of each side, or height-width (240-320); default 224, in FlexNet 229"
    )

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `model.build`."""
        from topoplan_frontend_alexnet.model import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return Alexnet
