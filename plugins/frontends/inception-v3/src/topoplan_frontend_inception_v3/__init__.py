"""Inception v3 as a topoplan frontend: its options and its registration; `model` builds the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph


@attrs.frozen(kw_only=True)
class InceptionV3(Frontend):
    """Inception v3: convolutions in parallel branches.

    An unset option has its default.
    """

    name = "inception-v3"
    example = {"classes": 10}

    dialect: Literal["standard", "flexnet"] = option("standard", help="flexnet: FlexNet's names, cuts and layer shapes")
    classes: int | None = option(None, minimum=1, help="number of classes; default 1000, in FlexNet 10")

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `model.build`."""
        from topoplan_frontend_inception_v3.model import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return InceptionV3
