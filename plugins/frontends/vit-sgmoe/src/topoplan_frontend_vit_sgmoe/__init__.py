"""ViT-SGMoE as a topoplan frontend: its options and its registration; `model` builds the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph

__all__ = ["VitOptions", "build", "topoplan_frontends"]


@attrs.frozen
class VitOptions:
    """Options of the vision transformers; the defaults are those of HiDup."""

    world_size: int = option(
        8, minimum=1, maximum=65_536, help="devices that batch (32 samples each) and experts follow"
    )
    layers: int = option(8, minimum=1, maximum=1024, help="encoder layers; every second one has experts")
    width: int = option(768, minimum=1, help="channels of a patch")
    hidden: int = option(3072, minimum=1, help="channels inside a feed-forward layer or an expert")
    heads: int = option(12, minimum=1, help="attention heads")
    experts: int | None = option(None, minimum=1, help="experts of a layer; unset: two for each device")
    image: int = option(32, minimum=1, help="height and width of an image of three colours", unit="pixels")
    patch: int = option(4, minimum=1, help="height and width of a patch; divides the image", unit="pixels")
    capacity_factor: float = option(1.25, above=0, help="slots of an expert over its even share of the choices")
    classes: int = option(10, minimum=1, help="kinds of image")


def build(options: VitOptions, batch_size: int | None) -> OperatorGraph:
    """Build the graph; see `model.build`."""
    from topoplan_frontend_vit_sgmoe.model import build as build_model

    return build_model("vit-sgmoe", options, batch_size, chosen=2)


@hookimpl
def topoplan_frontends() -> list[Frontend]:
    """Register ViT-SGMoE."""
    return [
        Frontend(
            name="vit-sgmoe",
            summary="ViT-SGMoE: a vision transformer whose every second layer has experts, two for each patch",
            options=VitOptions,
            build=build,
            example={"world-size": 2, "layers": 2, "width": 16, "hidden": 32, "heads": 2, "image": 8, "classes": 4},
        )
    ]
