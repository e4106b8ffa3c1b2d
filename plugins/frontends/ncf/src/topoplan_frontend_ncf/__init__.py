"""NCF as a topoplan frontend: its options and its registration; `model` builds the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import attrs

from topoplan import Frontend, hookimpl, option

if TYPE_CHECKING:
    from topoplan import OperatorGraph


@attrs.frozen(kw_only=True)
class Ncf(Frontend):
    """NCF: neural collaborative filtering over many embedding tables.

    An unset option has the value of the preset, or else its default.
    """

    name = "ncf"
    example = {"ntables": 2, "unum-per-table": 100, "inum-per-table": 100}

    preset: Literal["", "ncf128"] = option("", help="published configuration to start from")
    dialect: Literal["standard", "flexnet"] = option(
        "standard", help="flexnet: FlexNet's names, cuts and element sizes"
    )
    unum_per_table: int | None = option(None, minimum=1, help="users in a table; default 2")
    inum_per_table: int | None = option(None, minimum=1, help="items in a table; default 2")
    factor_num: int | None = option(None, minimum=1, help="elements of a row for matrix factorization; default 16")
    edim_per_table: int | None = option(None, minimum=1, help="elements of a row for the MLP; default 16")
    ntables: int | None = option(None, minimum=1, maximum=4096, help="tables of each of the four kinds; default 4")
    embedding_bag_size: int | None = option(None, minimum=1, help="rows that a sample looks up in a table; default 1")
    arch_mlp_top: tuple[int, ...] | None = option(
        None, minimum=1, help="MLP; its first number is ignored: the input is what is concatenated; default 8-2"
    )

    def build(self, batch_size: int | None) -> OperatorGraph:
        """Build the graph; see `model.build`."""
        from topoplan_frontend_ncf.model import build as build_model

        return build_model(self, batch_size)


@hookimpl
def topoplan_frontends() -> type[Frontend]:
    """Register the frontend."""
    return Ncf
