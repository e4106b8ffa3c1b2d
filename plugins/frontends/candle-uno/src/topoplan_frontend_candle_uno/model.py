"""The Uno drug-response network of the CANDLE benchmarks.

Every feature of cell and drugs passes its own chain of linear layers; the two doses join them as they
are; the concatenation passes the dense layers and a last one that tells the growth.
"""

from __future__ import annotations

import attrs

from topoplan.model.graph import OperatorGraph
from topoplan_frontend_candle_uno import CandleUno
from topoplan_operators import GraphBuilder, with_preset

WHERE = "frontend candle-uno"


@attrs.frozen(kw_only=True)
class Sizes:
    """The resolved options; the defaults here apply if neither user nor preset sets a field."""

    dense_layers: tuple[int, ...] = (4192,) * 3
    dense_feature_layers: tuple[int, ...] = (4192,) * 3


def _published(batch_size: int, width: int, feature_layers: int) -> dict[str, object]:
    return {
        "batch_size": batch_size,
        "dense_layers": (*(width,) * 8, 1),
        "dense_feature_layers": (width,) * feature_layers,
    }


#: Configurations of TopoOpt (NSDI'23); their dense layers end in one of width 1, before the model's own.
PRESETS = {
    "candle16": _published(16384, 4096, 12),
    "candle32": _published(32768, 8192, 12),
    "candle128": _published(131072, 16384, 16),
}

#: Elements of each input, in the order of the concatenation.
INPUTS = {
    "cell_rnaseq": 942,
    "dose1": 1,
    "dose2": 1,
    "drug1_descriptors": 5270,
    "drug1_fingerprints": 2048,
    "drug2_descriptors": 5270,
    "drug2_fingerprints": 2048,
}


def build(options: CandleUno, batch_size: int | None) -> OperatorGraph:
    """Build the operator graph: feature chains, concatenation, dense layers, the last layer."""
    sizes, batch = with_preset(WHERE, options, batch_size, Sizes, presets=PRESETS)
    b = GraphBuilder("candle-uno", batch, options.dialect)
    encoded = []
    for feature, elements in INPUTS.items():
        x = b.input((elements,))
        if not feature.startswith("dose"):
            for k, width in enumerate(sizes.dense_feature_layers):
                x = b.linear(x, width, activation="relu", name=f"{feature}{k}")
        encoded.append(x)
    x = b.concat(encoded, name="features")
    for k, width in enumerate(sizes.dense_layers):
        x = b.linear(x, width, activation="relu", name=f"dense{k}")
    b.linear(x, 1, name="growth")
    return b.build()
