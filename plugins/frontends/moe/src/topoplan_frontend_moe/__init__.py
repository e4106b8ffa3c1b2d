"""A mixture of experts as a topoplan frontend: its options and its registration; `model` builds the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph


@attrs.frozen(kw_only=True)
class Moe(Frontend):
    """Mixture of experts: a gate sends every sample to its best experts."""

    name = "moe"
    example = {"num-exp": 4, "in-dim": 32}

    dialect: Literal["standard", "flexnet"] = option(
        "standard", help="flexnet: FlexNet's names, cuts and element sizes"
    )
    num_exp: int = option(5, minimum=1, maximum=4096, help="experts")
    num_select: int = option(2, minimum=1, help="experts that see a sample")
    alpha: float = option(2.0, above=0, help="slots of an expert, relative to an even share of the samples")
    in_dim: int = option(784, minimum=1, help="elements of a sample")
    hidden_size: int = option(64, minimum=1, help="width of the gate's first layer")
    out_dim: int = option(10, minimum=1, help="number of classes")

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `model.build`."""
        from topoplan_frontend_moe.model import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return Moe
