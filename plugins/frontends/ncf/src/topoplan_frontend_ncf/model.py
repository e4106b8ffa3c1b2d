"""Neural collaborative filtering (He et al., 2017) over many embedding tables.

Users and items are looked up twice: in rows for generalized matrix factorization, multiplied element by
element, and in rows for an MLP.  A last layer weighs the answers of both.
"""

from __future__ import annotations

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan_frontend_ncf import Ncf
from topoplan_operators import GraphBuilder, Handle, with_preset

WHERE = "frontend ncf"
INDEX_BYTES = 8


@attrs.frozen(kw_only=True)
class Sizes:
    """The resolved options; the defaults here apply if neither user nor preset sets a field."""

    unum_per_table: int = 2
    inum_per_table: int = 2
    factor_num: int = 16
    edim_per_table: int = 16
    ntables: int = 4
    embedding_bag_size: int = 1
    arch_mlp_top: tuple[int, ...] = (8, 2)


#: Configuration of TopoOpt (NSDI'23).
PRESETS = {
    "ncf128": {
        "batch_size": 65536,
        "unum_per_table": 1_000_000,
        "inum_per_table": 1_000_000,
        "factor_num": 64,
        "edim_per_table": 128,
        "ntables": 32,
        "arch_mlp_top": (4096,) * 8,
    }
}


def build(options: Ncf, batch_size: int | None) -> OperatorGraph:
    """Build the operator graph: four groups of tables, matrix factorization, MLP, the last layer.

    Raises:
        TopoplanError: an MLP without a layer, or a number that is too small.
    """
    sizes, batch = with_preset(WHERE, options, batch_size, Sizes, presets=PRESETS)
    if len(sizes.arch_mlp_top) < 2:
        raise TopoplanError(
            f"{WHERE}: arch-mlp-top: {sizes.arch_mlp_top[0]} alone has no layer (give two numbers or more)"
        )
    b = GraphBuilder("ncf", batch, options.dialect)
    bags = [b.input((sizes.embedding_bag_size,), INDEX_BYTES) for _ in range(sizes.ntables)]

    def tables(name: str, rows: int, dim: int) -> list[Handle]:
        return [b.embedding(bag, rows, dim, name=f"{name}{k}") for k, bag in enumerate(bags)]

    user_gmf = tables("user_gmf", sizes.unum_per_table, sizes.factor_num)
    item_gmf = tables("item_gmf", sizes.inum_per_table, sizes.factor_num)
    user_mlp = tables("user_mlp", sizes.unum_per_table, sizes.edim_per_table)
    item_mlp = tables("item_mlp", sizes.inum_per_table, sizes.edim_per_table)
    x = b.concat([*user_mlp, *item_mlp], name="mlp_concat")
    users, items = b.concat(user_gmf, name="user_gmf_concat"), b.concat(item_gmf, name="item_gmf_concat")
    factors = b.multiply(users, items, name="gmf", flexnet_name="gmf")
    factorized = b.linear(factors, 1, activation="sigmoid", bias=False, name="gmf_linear")
    for k, width in enumerate(sizes.arch_mlp_top[1:]):
        x = b.linear(x, width, activation="relu", name=f"mlp{k}")
    b.linear(b.concat([factorized, x], name="answers"), 1, activation="sigmoid", name="predict")
    return b.build()
