"""A model whose scores over many words hold more memory than all of its layers."""

from __future__ import annotations

from topoplan_operators import GraphBuilder
from topoplan_operators.handle import Handle
from topoplan_operators.losses import cross_entropy

__all__ = ["language_model"]


def language_model(layers=2, words=4096, samples=64, channels=16):
    """Return linear layers without biases, scores over words, and their loss."""
    builder = GraphBuilder("words", batch_size=samples)
    x = builder.input((channels,))
    for number in range(layers):
        x = builder.linear(x, channels, bias=False, name=f"layer{number}")
    scores = builder.linear(x, words, bias=False, name="scores")
    targets = Handle((samples,), 8)
    builder.append(cross_entropy(scores, targets), [scores, targets], "loss")
    return builder.build()
