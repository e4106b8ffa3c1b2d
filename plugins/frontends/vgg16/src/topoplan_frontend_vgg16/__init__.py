"""VGG-16 as a topoplan frontend: its options and its registration; `model` builds the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph


@attrs.frozen(kw_only=True)
class Vgg16(Frontend):
    """VGG-16: thirteen 3x3 convolutions and three linear layers.

    An unset option has the value of the preset, or else its default.
    """

    name = "vgg16"
    example = {"classes": 10}

    preset: Literal["", "vgg16", "vgg32", "vgg128"] = option("", help="published configuration to start from")
    dialect: Literal["standard", "flexnet"] = option("standard", help="flexnet: FlexNet's names, cuts and layer shapes")
    classes: int | None = option(None, minimum=1, help="number of classes; default 1000")

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `model.build`."""
        from topoplan_frontend_vgg16.model import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return Vgg16
