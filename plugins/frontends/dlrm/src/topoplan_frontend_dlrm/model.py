"""The DLRM model (Naumov et al., 2019), with concatenation as its interaction.

Dense features pass the bottom MLP; every sparse feature sums a bag of rows of its table; all of it is
concatenated and passes the top MLP.
"""

from __future__ import annotations

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan_frontend_dlrm import Dlrm
from topoplan_operators import GraphBuilder, with_preset

WHERE = "frontend dlrm"
INDEX_BYTES = 8


@attrs.frozen(kw_only=True)
class Sizes:
    """The resolved options; the defaults here apply if neither user nor preset sets a field."""

    arch_sparse_feature_size: int = 2
    arch_embedding_size: tuple[int, ...] = (4,)
    embedding_bag_size: int = 1
    arch_mlp_bot: tuple[int, ...] = (4, 2)
    arch_mlp_top: tuple[int, ...] = (8, 2)


def _published(batch_size: int, tables: int, feature: int, bottom: int, top: int) -> dict[str, object]:
    return {
        "batch_size": batch_size,
        "arch_sparse_feature_size": feature,
        "arch_embedding_size": (10_000_000,) * tables,
        "embedding_bag_size": 100,
        "arch_mlp_bot": (bottom,) * 8,
        "arch_mlp_top": (*(top,) * 16, 1),
    }


#: Configurations of TopoOpt (NSDI'23).
PRESETS = {
    "dlrm16": _published(16384, 16, 256, 1024, 2048),
    "dlrm32": _published(32768, 32, 256, 1024, 2048),
    "dlrm128": _published(65536, 64, 128, 2048, 4096),
}


def build(options: Dlrm, batch_size: int | None) -> OperatorGraph:
    """Build the operator graph: bottom MLP, embeddings, concatenation, top MLP, in this order.

    Raises:
        TopoplanError: an MLP without a layer, or a number that is too small.
    """
    sizes, batch = with_preset(WHERE, options, batch_size, Sizes, presets=PRESETS)
    for key, widths in (("arch-mlp-bot", sizes.arch_mlp_bot), ("arch-mlp-top", sizes.arch_mlp_top)):
        if len(widths) < 2:
            raise TopoplanError(
                f"{WHERE}: {key}: {widths[0]} alone has no layer (give the input and each layer's width)"
            )
    b = GraphBuilder("dlrm", batch, options.dialect)
    x = b.input((sizes.arch_mlp_bot[0],))
    for k, width in enumerate(sizes.arch_mlp_bot[1:]):
        x = b.linear(x, width, activation="relu", name=f"bot{k}")
    bags = [b.input((sizes.embedding_bag_size,), INDEX_BYTES) for _ in sizes.arch_embedding_size]
    features = [
        b.embedding(bag, rows, sizes.arch_sparse_feature_size, name=f"emb{k}")
        for k, (bag, rows) in enumerate(zip(bags, sizes.arch_embedding_size, strict=True))
    ]
    x = b.concat([x, *features], name="interact")
    last = len(sizes.arch_mlp_top) - 2
    for k, width in enumerate(sizes.arch_mlp_top[1:]):
        x = b.linear(x, width, activation="sigmoid" if k == last else "relu", name=f"top{k}")
    return b.build()
