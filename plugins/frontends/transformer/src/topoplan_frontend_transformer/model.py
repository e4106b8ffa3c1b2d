"""Two streams of transformer layers, as FlexNet's "BERT": an encoder and a decoder that attends to it.

A layer of the encoder is self-attention and two linear layers; one of the decoder attends to itself, then
to the encoder, and has two linear layers too.  Linear layers are as wide as the model; normalization is
left out.  Both dialects build the same layers.
"""

from __future__ import annotations

import attrs

from topoplan.errors import TopoplanError
from topoplan.model.graph import OperatorGraph
from topoplan_frontend_transformer import Transformer
from topoplan_operators import GraphBuilder, with_preset

WHERE = "frontend transformer"


@attrs.frozen(kw_only=True)
class Sizes:
    """The resolved options; the defaults here apply if neither user nor preset sets a field."""

    num_layers: int = 12
    hidden_size: int = 512
    num_heads: int = 16
    sequence_length: int = 128


#: Configurations of TopoOpt (NSDI'23).
PRESETS = {
    "transformer16": {
        "batch_size": 1024,
        "num_layers": 6,
        "hidden_size": 768,
        "num_heads": 12,
        "sequence_length": 256,
    },
    "transformer32": {
        "batch_size": 2048,
        "num_layers": 12,
        "hidden_size": 768,
        "num_heads": 12,
        "sequence_length": 256,
    },
    "transformer128": {
        "batch_size": 8192,
        "num_layers": 12,
        "hidden_size": 1024,
        "num_heads": 16,
        "sequence_length": 64,
    },
}


def build(options: Transformer, batch_size: int | None) -> OperatorGraph:
    """Build the operator graph: ten operators a layer, and a last linear layer on the decoder.

    Raises:
        TopoplanError: heads that do not divide the hidden size, or a number that is too small.
    """
    sizes, batch = with_preset(WHERE, options, batch_size, Sizes, presets=PRESETS)
    width = sizes.hidden_size
    if width % sizes.num_heads:
        raise TopoplanError(
            f"{WHERE}: num-heads: {sizes.num_heads} does not divide hidden-size {width} (choose a divisor)"
        )
    b = GraphBuilder("transformer", batch, options.dialect)
    x = y = b.input((sizes.sequence_length, width))
    for k in range(sizes.num_layers):
        enc, dec = f"enc{k}", f"dec{k}"
        x = b.add(b.attention(x, x, x, width, sizes.num_heads, name=f"{enc}_attention"), x, name=f"{enc}_add")
        x = b.linear(x, width, activation="relu", name=f"{enc}_linear1")
        x = b.linear(x, width, name=f"{enc}_linear2")
        y = b.add(b.attention(y, y, y, width, sizes.num_heads, name=f"{dec}_attention"), y, name=f"{dec}_add")
        y = b.add(b.attention(y, x, x, width, sizes.num_heads, name=f"{dec}_cross"), y, name=f"{dec}_cross_add")
        y = b.linear(y, width, activation="relu", name=f"{dec}_linear1")
        y = b.linear(y, width, name=f"{dec}_linear2")
    b.linear(y, 1, name="head")
    return b.build()
