"""BERT-SGMoE as a topoplan frontend: options and registration; `model` builds the graph, `encoder` its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph

__all__ = ["BertOptions", "build", "topoplan_frontends"]


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


def build(options: BertOptions, batch_size: int | None) -> OperatorGraph:
    """Build the graph; see `model.build`."""
    from topoplan_frontend_bert_sgmoe.model import build as build_model

    return build_model("bert-sgmoe", options, batch_size, chosen=2)


@hookimpl
def topoplan_frontends() -> list[Frontend]:
    """Register BERT-SGMoE."""
    return [
        Frontend(
            name="bert-sgmoe",
            summary="BERT-SGMoE: a language model whose every second layer has experts, two for each token",
            options=BertOptions,
            build=build,
            example={"world-size": 2, "layers": 2, "width": 16, "hidden": 32, "heads": 2, "positions": 8, "words": 60},
        )
    ]
