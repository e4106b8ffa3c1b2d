"""Decoders with rotary positions: Llama and its descendants, and families that arrange a layer in another way.

Names of operators with weights are the paths of their modules in transformers: ``model.layers.3.self_attn.q_proj``.
"""

from __future__ import annotations

from topoplan_frontend_huggingface.attention import grouped, latent
from topoplan_frontend_huggingface.blocks import INDEX, Blocks, learned_positions
from topoplan_frontend_huggingface.experts import feed_forward, plain_feed_forward, routed
from topoplan_frontend_huggingface.heads import Head, WordHead
from topoplan_frontend_huggingface.sizes import Decoder, Dense, FeedForward, Grouped, Plain
from topoplan_operators import GraphBuilder, Handle, pointwise

__all__ = ["decoder"]


def decoder(builder: GraphBuilder, sizes: Decoder, head: Head, positions: int) -> None:
    """Add the operators of a decoder, from words to what ``head`` adds behind the last layer.

    Layers that predict further words stand behind the head: they run where it does, as in Megatron-LM.
    """
    b = Blocks(builder)
    tokens = builder.input((positions,), INDEX)
    x = b.words(tokens, sizes.words, sizes.hidden, sizes.modules.words)
    if sizes.modules.positions:
        x = b.add(learned_positions(x, sizes.rows or sizes.positions), [x], sizes.modules.positions)[0]
    if sizes.modules.words_norm:
        x = b.normalize(x, sizes.modules.words_norm, sizes.norms)
    for number, (part, window) in enumerate(zip(sizes.layers, sizes.windows, strict=True)):
        x = _layer(b.within(f"{sizes.modules.layers}.{number}"), x, sizes, part, window)
    head.add(b, b.normalize(x, sizes.modules.norm, sizes.norms))
    if isinstance(head, WordHead):
        for number in range(sizes.predictions):
            name = f"mtp{number + 1}" if number else "mtp"  # no number of a layer: a pipeline is not cut here
            x = _prediction(b.within(name), x, tokens, sizes, head)


def _layer(b: Blocks, x: Handle, sizes: Decoder, part: FeedForward, window: int | None) -> Handle:
    """Return what a layer makes of ``x`` (samples, positions, channels)."""
    norms, inside = sizes.norms, sizes.modules.feed_forward
    read = b.normalize(x, norms.before[0], norms) if norms.before[0] else x
    y = _attended(b.within(sizes.modules.attention), read, sizes, window)
    if norms.after[0]:
        y = b.normalize(y, norms.after[0], norms)
    first = b.sum(x, y, "add1")
    source = x if norms.parallel else first
    if norms.before[1]:
        read = b.normalize(source, norms.before[1], norms)
    elif not norms.parallel:
        read = first
    y = _fed_forward(b.within(inside) if inside else b, read, part, sizes.activation)
    if norms.after[1]:
        y = b.normalize(y, norms.after[1], norms)
    return b.sum(first, y, "add2")


def _attended(b: Blocks, x: Handle, sizes: Decoder, window: int | None) -> Handle:
    if isinstance(sizes.attention, Grouped):
        return grouped(b, x, sizes.attention, causal=sizes.causal, window=window)
    return latent(b, x, sizes.attention, causal=sizes.causal, window=window)


def _fed_forward(b: Blocks, x: Handle, part: FeedForward, activation: str) -> Handle:
    if isinstance(part, Dense):
        return feed_forward(b, x, part, activation)
    return plain_feed_forward(b, x, part, activation) if isinstance(part, Plain) else routed(b, x, part, activation)


def _prediction(b: Blocks, x: Handle, tokens: Handle, sizes: Decoder, head: WordHead) -> Handle:
    """Return the channels of a layer that predicts one word further, and add its scores and loss.

    It reads the channels before it and the next word, both normalized, through one projection; words and head are
    those of the model.  Source: DeepSeek-V3 (arXiv 2412.19437), section 2.2.
    """
    following = b.rms_norm(b.tied_words(tokens, sizes.words, sizes.hidden, "embed_tokens"), "enorm")
    previous = b.rms_norm(x, "hnorm")
    pair = b.add(pointwise.concat([following, previous], 2), [following, previous], "concat")[0]
    x = _layer(b, b.linear(pair, sizes.hidden, "eh_proj"), sizes, sizes.layers[-1], sizes.windows[-1])
    head.add_again(b.within("shared_head"), b.rms_norm(x, "shared_head.norm"))
    return x
