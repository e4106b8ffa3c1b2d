"""CANDLE Uno as a topoplan frontend: its options and its registration; `model` builds the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph


@attrs.frozen(kw_only=True)
class CandleUno(Frontend):
    """CANDLE Uno: drug response from chains of wide linear layers.

    An unset option has the value of the preset, or else its default.
    """

    name = "candle-uno"
    example = {"dense-layers": "32-16", "dense-feature-layers": "32"}

    preset: Literal["", "candle16", "candle32", "candle128"] = option("", help="published configuration to start from")
    dialect: Literal["standard", "flexnet"] = option(
        "standard", help="flexnet: FlexNet's names, cuts and element sizes"
    )
    dense_layers: tuple[int, ...] | None = option(
        None, minimum=1, help="widths behind the concatenation; default 4192-4192-4192"
    )
    dense_feature_layers: tuple[int, ...] | None = option(
        None, minimum=1, help="widths of every feature's own layers; default 4192-4192-4192"
    )

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `model.build`."""
        from topoplan_frontend_candle_uno.model import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return CandleUno
