"""The BERT models: embedding, positions, encoder layers, and the loss over the vocabulary."""

from __future__ import annotations

from topoplan import OperatorGraph
from topoplan.options import check
from topoplan_frontend_hidup import BertSgmoe
from topoplan_frontend_hidup.encoder import SAMPLES_PER_DEVICE, encoder
from topoplan_operators import GraphBuilder, Handle, dense, losses, pointwise, shaping

__all__ = ["build"]


def build(options: BertSgmoe, batch_size: int | None) -> OperatorGraph:
    """Build the operator graph.

    Args:
        options: of the model.
        batch_size: samples, or None for 32 on each device.

    Raises:
        TopoplanError: an option out of its range, or heads that do not divide the width.
    """
    check(options, f"frontend {options.name}")
    world = options.world_size
    b = GraphBuilder(options.name, SAMPLES_PER_DEVICE * world if batch_size is None else batch_size)
    words = world * (options.words // world + 1)
    tokens, targets = b.input((options.positions,)), b.input((options.positions,))
    x = b.append(dense.token_embedding(tokens, words, options.width), [tokens], "embedding")[0]
    x = b.append(pointwise.elementwise("multiply", [x]), [x], "embedding_scale")[0]
    # Sines of positions and the causal mask are data, the same for every sample.
    x = b.add(x, Handle((1, options.positions, options.width)), name="positions")
    mask = Handle((options.positions, options.positions))
    x = encoder(b, x, options, positions=options.positions, mask=mask)
    x = b.linear(x, words, name="decoder")
    x = b.append(pointwise.softmax(x, log=True), [x], "log_softmax")[0]
    x = b.append(shaping.transpose(x, 1, 2), [x], "classes_transpose")[0]
    b.append(losses.nll_loss(x, targets), [x, targets], "loss")
    return b.build()
