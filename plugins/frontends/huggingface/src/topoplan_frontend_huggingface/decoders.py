"""Decoders with RMS normalization, rotary positions and gated feed-forward parts: Llama and its descendants.

Names of operators with weights are the paths of their modules in transformers: ``model.layers.3.self_attn.q_proj``.
"""

from __future__ import annotations

from topoplan_frontend_huggingface.attention import grouped, latent
from topoplan_frontend_huggingface.blocks import INDEX, Blocks, cross_entropy
from topoplan_frontend_huggingface.experts import feed_forward, routed
from topoplan_frontend_huggingface.families import Decoder, Dense, Grouped
from topoplan_operators import GraphBuilder

__all__ = ["decoder"]


def decoder(builder: GraphBuilder, sizes: Decoder, positions: int) -> None:
    """Add the operators of a decoder, from words to the loss of every position."""
    b = Blocks(builder)
    tokens, targets = builder.input((positions,), INDEX), builder.input((positions,), INDEX)
    x = b.words(tokens, sizes.words, sizes.hidden, "model.embed_tokens")
    for number, part in enumerate(sizes.layers):
        layer = b.within(f"model.layers.{number}")
        y, module = layer.rms_norm(x, "input_layernorm"), layer.within("self_attn")
        attend = sizes.attention
        y = grouped(module, y, attend) if isinstance(attend, Grouped) else latent(module, y, attend)
        x = layer.sum(x, y, "add1")
        y, module = layer.rms_norm(x, "post_attention_layernorm"), layer.within("mlp")
        if isinstance(part, Dense):
            y = feed_forward(module, y, part.width, sizes.activation, bias=part.bias)
        else:
            y = routed(module, y, part, sizes.activation)
        x = layer.sum(x, y, "add2")
    x = b.rms_norm(x, "model.norm")
    scores = (b.tied_linear if sizes.tied else b.linear)(x, sizes.words, "lm_head")
    b.add(cross_entropy(scores, targets), [scores, targets], "loss")
