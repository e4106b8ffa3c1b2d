"""ViT-Switch as a topoplan frontend: the model of `vit-sgmoe`, with one expert for each patch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Frontend, hookimpl
from topoplan_frontend_vit_sgmoe import VitOptions

if TYPE_CHECKING:
    from topoplan import OperatorGraph

__all__ = ["build", "topoplan_frontends"]


def build(options: VitOptions, batch_size: int | None) -> OperatorGraph:
    """Build the graph; see `topoplan_frontend_vit_sgmoe.model.build`."""
    from topoplan_frontend_vit_sgmoe.model import build as build_model

    return build_model("vit-switch", options, batch_size, chosen=1)


@hookimpl
def topoplan_frontends() -> list[Frontend]:
    """Register ViT-Switch."""
    return [
        Frontend(
            name="vit-switch",
            summary="ViT-Switch: a vision transformer whose every second layer has experts, one for each patch",
            options=VitOptions,
            build=build,
            example={"world-size": 2, "layers": 2, "width": 16, "hidden": 32, "heads": 2, "image": 8, "classes": 4},
        )
    ]
