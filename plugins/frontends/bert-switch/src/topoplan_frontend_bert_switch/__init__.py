"""BERT-Switch as a topoplan frontend: the model of `bert-sgmoe`, with one expert for each token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topoplan import Frontend, hookimpl
from topoplan_frontend_bert_sgmoe import BertOptions

if TYPE_CHECKING:
    from topoplan import OperatorGraph

__all__ = ["build", "topoplan_frontends"]


def build(options: BertOptions, batch_size: int | None) -> OperatorGraph:
    """Build the graph; see `topoplan_frontend_bert_sgmoe.model.build`."""
    from topoplan_frontend_bert_sgmoe.model import build as build_model

    return build_model("bert-switch", options, batch_size, chosen=1)


@hookimpl
def topoplan_frontends() -> list[Frontend]:
    """Register BERT-Switch."""
    return [
        Frontend(
            name="bert-switch",
            summary="BERT-Switch: a language model whose every second layer has experts, one for each token",
            options=BertOptions,
            build=build,
            example={"world-size": 2, "layers": 2, "width": 16, "hidden": 32, "heads": 2, "positions": 8, "words": 60},
        )
    ]
