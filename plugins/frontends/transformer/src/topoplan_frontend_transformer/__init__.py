"""Transformer as a topoplan frontend: its options and its registration; `model` builds the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph


@attrs.frozen(kw_only=True)
class Transformer(Frontend):
    """Transformer: an encoder and a decoder stream of multi-head attention.

    An unset option has the value of the preset, or else its default.
    """

    name = "transformer"
    example = {"num-layers": 2, "hidden-size": 64, "num-heads": 4, "sequence-length": 16}

    preset: Literal["", "transformer16", "transformer32", "transformer128"] = option(
        "", help="published configuration to start from"
    )
    dialect: Literal["standard", "flexnet"] = option(
        "standard", help="flexnet: FlexNet's names, cuts and element sizes"
    )
    num_layers: int | None = option(None, minimum=1, maximum=1024, help="layers of each of the two streams; default 12")
    hidden_size: int | None = option(None, minimum=1, help="channels; default 512")
    num_heads: int | None = option(None, minimum=1, help="attention heads, a divisor of the hidden size; default 16")
    sequence_length: int | None = option(None, minimum=1, help="positions of a sample; default 128")

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `model.build`."""
        from topoplan_frontend_transformer.model import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return Transformer
