"""DLRM as a topoplan frontend: its options and its registration; `model` builds the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph


@attrs.frozen(kw_only=True)
class Dlrm(Frontend):
    """DLRM: embedding tables and two MLPs for recommendation.

    An unset option has the value of the preset, or else its default.
    """

    name = "dlrm"
    example = {"arch-embedding-size": "100-200", "arch-mlp-bot": "16-8", "arch-mlp-top": "8-8-1"}

    preset: Literal["", "dlrm16", "dlrm32", "dlrm128"] = option("", help="published configuration to start from")
    dialect: Literal["standard", "flexnet"] = option(
        "standard", help="flexnet: FlexNet's names, cuts and element sizes"
    )
    arch_sparse_feature_size: int | None = option(None, minimum=1, help="elements of an embedding row; default 2")
    arch_embedding_size: tuple[int, ...] | None = option(None, minimum=1, help="rows of every table; default 4")
    embedding_bag_size: int | None = option(None, minimum=1, help="rows that a sample looks up in a table; default 1")
    arch_mlp_bot: tuple[int, ...] | None = option(None, minimum=1, help="bottom MLP, input first; default 4-2")
    arch_mlp_top: tuple[int, ...] | None = option(
        None, minimum=1, help="top MLP; its first number is ignored: the input is what is concatenated; default 8-2"
    )

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `model.build`."""
        from topoplan_frontend_dlrm.model import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return Dlrm
