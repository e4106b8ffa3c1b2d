"""AlexNet as a topoplan frontend: its options and its registration; `model` builds the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph


@attrs.frozen
class AlexnetOptions:
    """Options of the AlexNet frontend; one that is not given comes from the preset, else has the default named."""

    preset: Literal["", "alexnet"] = option("", help="published configuration to start from")
    dialect: Literal["standard", "flexnet"] = option("standard", help="flexnet: FlexNet's names, cuts and layer shapes")
    classes: int | None = option(None, minimum=1, help="classes to tell apart; default 1000, in FlexNet 10")


def build(options: AlexnetOptions, batch_size: int | None) -> OperatorGraph:
    """Build the graph; see `model.build`."""
    from topoplan_frontend_alexnet.model import build as build_model

    return build_model(options, batch_size)


@hookimpl
def topoplan_frontends() -> list[Frontend]:
    """Register AlexNet."""
    return [
        Frontend(
            name="alexnet",
            summary="AlexNet: five convolutions and three linear layers",
            options=AlexnetOptions,
            build=build,
            example={"classes": 10},
        )
    ]
