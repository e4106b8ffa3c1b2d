"""ResNet-50 as a topoplan frontend: its options and its registration; `model` builds the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph


@attrs.frozen(kw_only=True)
class Resnet50(Frontend):
    """ResNet-50: bottleneck blocks with shortcuts.

    An unset option has the value of the preset, or else its default.
    """

    name = "resnet50"
    example = {"classes": 10}

    preset: Literal["", "resnet128"] = option("", help="published configuration to start from")
    dialect: Literal["standard", "flexnet"] = option("standard", help="flexnet: FlexNet's names, cuts and layer shapes")
    classes: int | None = option(None, minimum=1, help="number of classes; default 1000, in FlexNet 10")

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `model.build`."""
        from topoplan_frontend_resnet50.model import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return Resnet50
