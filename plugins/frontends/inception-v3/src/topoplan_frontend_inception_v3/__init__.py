"""Inception v3 as a topoplan frontend: its options and its registration; `model` builds the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph


@attrs.frozen
class InceptionV3Options:
    """Options of the Inception v3 frontend; one that is not given has the default named."""

    dialect: Literal["standard", "flexnet"] = option("standard", help="flexnet: FlexNet's names, cuts and layer shapes")
    classes: int | None = option(None, minimum=1, help="classes to tell apart; default 1000, in FlexNet 10")


def build(options: InceptionV3Options, batch_size: int | None) -> OperatorGraph:
    """Build the graph; see `model.build`."""
    from topoplan_frontend_inception_v3.model import build as build_model

    return build_model(options, batch_size)


@hookimpl
def topoplan_frontends() -> list[Frontend]:
    """Register Inception v3."""
    return [
        Frontend(
            name="inception-v3",
            summary="Inception v3: convolutions in parallel branches",
            options=InceptionV3Options,
            build=build,
            example={"classes": 10},
        )
    ]
