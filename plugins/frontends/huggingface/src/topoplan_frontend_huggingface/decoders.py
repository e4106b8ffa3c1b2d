"""Decoders with RMS normalization, rotary positions and gated feed-forward parts: Llama and its descendants.

Names of operators with weights are the paths of their modules in transformers: ``model.layers.3.self_attn.q_proj``.
"""

from __future__ import annotations

from topoplan_frontend_huggingface.attention import grouped, latent
from topoplan_frontend_huggingface.blocks import INDEX, Blocks
from topoplan_frontend_huggingface.experts import feed_forward, routed
from topoplan_frontend_huggingface.families import Decoder, Dense, Grouped
from topoplan_frontend_huggingface.heads import Head
from topoplan_operators import GraphBuilder

__all__ = ["decoder"]


def decoder(builder: GraphBuilder, sizes: Decoder, head: Head, positions: int) -> None:
    """Add the operators of a decoder, from words to what ``head`` adds behind the last layer."""
    b = Blocks(builder)
    tokens = builder.input((positions,), INDEX)
    x = b.words(tokens, sizes.words, sizes.hidden, "model.embed_tokens")
    for number, (part, window) in enumerate(zip(sizes.layers, sizes.windows, strict=True)):
        layer = b.within(f"model.layers.{number}")
        y, module = layer.rms_norm(x, "input_layernorm"), layer.within("self_attn")
        if isinstance(sizes.attention, Grouped):
            y = grouped(module, y, sizes.attention, causal=sizes.causal, window=window)
        else:
            y = latent(module, y, sizes.attention, causal=sizes.causal, window=window)
        x = layer.sum(x, y, "add1")
        y, module = layer.rms_norm(x, "post_attention_layernorm"), layer.within("mlp")
        if isinstance(part, Dense):
            y = feed_forward(module, y, part.width, sizes.activation, bias=part.bias)
        else:
            y = routed(module, y, part, sizes.activation)
        x = layer.sum(x, y, "add2")
    head.add(b, b.rms_norm(x, "model.norm"))
