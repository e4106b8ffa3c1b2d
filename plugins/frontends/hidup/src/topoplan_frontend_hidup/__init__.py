"""HiDup's four models as topoplan frontends: options and registration.

`bert` and `vit` build the graphs, `encoder` the layers that both have.  Every model comes with two experts for each
token (SGMoE) and with one (Switch).  Source: HiDup (Zhang et al., SoCC 2022, section 6.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph

__all__ = ["BertOptions", "VitOptions", "topoplan_frontends"]


@attrs.frozen
class BertOptions:
    """Options of the BERT models; the defaults are those of HiDup."""

    world_size: int = option(
        8, minimum=1, maximum=65_536, help="devices that batch (32 samples each), experts and vocabulary follow"
    )
    layers: int = option(8, minimum=1, maximum=1024, help="encoder layers; every second one has experts")
    width: int = option(768, minimum=1, help="channels of a token")
    hidden: int = option(3072, minimum=1, help="channels inside a feed-forward layer or an expert")
    heads: int = option(12, minimum=1, help="attention heads")
    experts: int | None = option(None, minimum=1, help="experts of a layer; unset: two for each device")
    positions: int = option(128, minimum=1, help="tokens of a sample")
    capacity_factor: float = option(1.25, above=0, help="slots of an expert over its even share of the choices")
    words: int = option(33278, minimum=1, help="vocabulary, rounded up to rows for each device")


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


@attrs.frozen
class _Bert:
    """Builds a language model: its name, and experts for each token."""

    name: str
    chosen: int

    def __call__(self, options: BertOptions, batch_size: int | None) -> OperatorGraph:
        from topoplan_frontend_hidup.bert import build

        return build(self.name, options, batch_size, chosen=self.chosen)


@attrs.frozen
class _Vit:
    """Builds a vision transformer: its name, and experts for each patch."""

    name: str
    chosen: int

    def __call__(self, options: VitOptions, batch_size: int | None) -> OperatorGraph:
        from topoplan_frontend_hidup.vit import build

        return build(self.name, options, batch_size, chosen=self.chosen)


_SMALL = {"world-size": 2, "layers": 2, "width": 16, "hidden": 32, "heads": 2}
_SMALL_BERT = {**_SMALL, "positions": 8, "words": 60}
_SMALL_VIT = {**_SMALL, "image": 8, "classes": 4}


@hookimpl
def topoplan_frontends() -> list[Frontend]:
    """Register BERT and ViT, each with two experts for a token and with one."""
    language = "a language model whose every second layer has experts"
    vision = "a vision transformer whose every second layer has experts"
    return [
        Frontend(
            name="bert-sgmoe",
            summary=f"BERT-SGMoE: {language}, two for each token",
            options=BertOptions,
            build=_Bert("bert-sgmoe", 2),
            example=_SMALL_BERT,
        ),
        Frontend(
            name="bert-switch",
            summary=f"BERT-Switch: {language}, one for each token",
            options=BertOptions,
            build=_Bert("bert-switch", 1),
            example=_SMALL_BERT,
        ),
        Frontend(
            name="vit-sgmoe",
            summary=f"ViT-SGMoE: {vision}, two for each patch",
            options=VitOptions,
            build=_Vit("vit-sgmoe", 2),
            example=_SMALL_VIT,
        ),
        Frontend(
            name="vit-switch",
            summary=f"ViT-Switch: {vision}, one for each patch",
            options=VitOptions,
            build=_Vit("vit-switch", 1),
            example=_SMALL_VIT,
        ),
    ]
